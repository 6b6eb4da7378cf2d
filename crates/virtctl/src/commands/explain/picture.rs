//! All that is looked at to explain a machine, and questions about it.

use api::kubevirt::constants::run_strategy;
use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceCondition};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::jiff::Timestamp;

/// What the cluster says of one machine.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) vm: Option<VirtualMachine>,
    pub(super) vmi: Option<VirtualMachineInstance>,
    /// The pods of the instance.
    pub(super) pods: Vec<Pod>,
    /// Events about the machine, its instance and their pods.
    pub(super) events: Vec<Event>,
    pub(super) kubevirt: Option<KubeVirt>,
    /// None when they may not be read.
    pub(super) nodes: Option<Vec<Node>>,
    pub(super) now: Timestamp,
}

impl Picture {
    /// Drops the events of other objects.
    pub(super) fn keep_related_events(&mut self) {
        let pods: Vec<String> = self.pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
        let name = self.name.clone();
        self.events.retain(|event| {
            let object = &event.involved_object;
            let about = object.name.as_deref().unwrap_or_default();
            match object.kind.as_deref() {
                Some("VirtualMachine" | "VirtualMachineInstance") => about == name,
                Some("Pod") => pods.iter().any(|pod| pod == about),
                _ => false,
            }
        });
    }

    /// `VM namespace/name`.
    pub(super) fn full_name(&self) -> String {
        let kind = if self.vm.is_none() && self.vmi.is_some() { "VMI" } else { "VM" };
        format!("{kind} {}/{}", self.namespace, self.name)
    }

    /// The command that corrects the machine. An instance of its own cannot be changed, only made anew.
    pub(super) fn edit(&self) -> String {
        let verb = if self.vm.is_none() && self.vmi.is_some() { "delete vmi" } else { "edit vm" };
        format!("kubectl {verb} {} {}", self.name, self.flag())
    }

    /// `-n namespace`, as commands need it.
    pub(super) fn flag(&self) -> String {
        format!("-n {}", self.namespace)
    }

    /// The run strategy, in the words of today.
    pub(super) fn strategy(&self) -> &str {
        let Some(vm) = &self.vm else { return run_strategy::ALWAYS };
        match (vm.spec.run_strategy.as_deref(), vm.spec.running) {
            (Some(strategy), _) if !strategy.is_empty() => strategy,
            (_, Some(true)) => run_strategy::ALWAYS,
            _ => run_strategy::HALTED,
        }
    }

    /// Why the instance failed.
    pub(super) fn reason(&self) -> Option<&str> {
        let status = self.vmi.as_ref()?.status.as_ref()?;
        status.reason.as_deref().filter(|reason| !reason.is_empty())
    }

    pub(super) fn phase(&self) -> &str {
        let status = self.vmi.as_ref().and_then(|vmi| vmi.status.as_ref());
        status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    /// A condition of the instance.
    pub(super) fn condition(&self, kind: &str) -> Option<&VirtualMachineInstanceCondition> {
        let status = self.vmi.as_ref()?.status.as_ref()?;
        status.conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// The pod that counts: the newest that is not going away, else the newest.
    pub(super) fn pod(&self) -> Option<&Pod> {
        self.pods.iter().max_by_key(|pod| {
            let meta = &pod.metadata;
            (meta.deletion_timestamp.is_none(), meta.creation_timestamp.as_ref().map(|time| time.0))
        })
    }

    /// The latest warning about an object of `kind`.
    pub(super) fn warning(&self, kind: &str) -> Option<&Event> {
        let at = |event: &Event| {
            let last = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|time| time.0);
            last.or(event.event_time.as_ref().map(|time| time.0))
        };
        self.events
            .iter()
            .filter(|event| event.type_.as_deref() == Some("Warning"))
            .filter(|event| event.involved_object.kind.as_deref() == Some(kind))
            .max_by_key(|event| at(event))
    }
}
