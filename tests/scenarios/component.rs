//! Programs of the product in their pods: killed, and back.

use anyhow::{Context, Result, ensure};
use e2e::machine::{holds, uid};
use e2e::wait::{BOOT, until};
use e2e::{node, product};
use serde_json::Value;

/// A program in a pod of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Component {
    label: &'static str,
    program: &'static str,
}

const fn of_cdi(label: &'static str, program: &'static str) -> Component {
    Component { label, program }
}

const fn of_kubevirt(label: &'static str, program: &'static str) -> Component {
    Component { label, program }
}

pub(crate) const VIRT_HANDLER: Component = of_kubevirt("kubevirt.io=virt-handler", "virt-handler");
pub(crate) const VIRT_CONTROLLER: Component = of_kubevirt("kubevirt.io=virt-controller", "virt-controller");
pub(crate) const CDI_CONTROLLER: Component = of_cdi("app=containerized-data-importer", "cdi-controller");
pub(crate) const UPLOAD_PROXY: Component = of_cdi("cdi.kubevirt.io=cdi-uploadproxy", "cdi-uploadproxy");

impl Component {
    /// Its pod.
    pub(crate) fn pod(self) -> Result<Value> {
        let list = product::get(&["pods", "-l", self.label])?;
        let mut pods = list["items"].as_array().into_iter().flatten();
        let found = pods.find(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        found.cloned().with_context(|| format!("no pod of {}", self.program))
    }

    /// Its process.
    pub(crate) fn process(self) -> Result<node::Process> {
        node::process(uid(&self.pod()?), self.program)
    }

    /// Waits until another process of it is Ready.
    pub(crate) fn back(self, before: &node::Process) -> Result<()> {
        until(&format!("{} to be back", self.program), BOOT, || {
            let Ok(pod) = self.pod() else { return Ok(None) };
            let Ok(process) = node::process(uid(&pod), self.program) else { return Ok(None) };
            Ok((process != *before && holds(&pod, "Ready")).then_some(()))
        })
    }

    /// Ends its program as a failure would, and waits until it is back.
    pub(crate) fn kill(self) -> Result<()> {
        let process = self.process()?;
        process.kill()?;
        self.back(&process)
    }

    /// Deletes its pod, and waits until there is another.
    pub(crate) fn delete(self) -> Result<()> {
        let pod = self.pod()?;
        let process = node::process(uid(&pod), self.program)?;
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        product::kubectl(&["delete", "pod", name])?;
        self.back(&process)
    }
}

/// Waits until nothing of a pod runs any more.
pub(crate) fn ended(pod: &Value) -> Result<()> {
    ensure!(!uid(pod).is_empty(), "no pod");
    until("nothing of the pod to run", BOOT, || Ok(node::processes(uid(pod))?.is_empty().then_some(())))
}
