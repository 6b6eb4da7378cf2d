//! The status of the HyperConverged object: the worst of what the objects of the other operators say. Pure.

use api::hco::{HyperConverged, Status, Version};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kit::operator;
use meta::conditions;
use serde_json::Value;

use crate::child::Child;
use crate::render::Input;
use crate::{golden_images, patches};

/// Types of conditions.
pub mod condition {
    /// The last attempt to bring the cluster to what the object says succeeded.
    pub const RECONCILE_COMPLETE: &str = "ReconcileComplete";
    /// Everything works.
    pub const AVAILABLE: &str = "Available";
    /// Something is being changed.
    pub const PROGRESSING: &str = "Progressing";
    /// Something is broken.
    pub const DEGRADED: &str = "Degraded";
    /// The product may be upgraded.
    pub const UPGRADEABLE: &str = "Upgradeable";
    /// Patches in annotations change what is rendered; there only while they do.
    pub const TAINTED: &str = "TaintedConfiguration";
    /// Pods of machines ask for the resources of their networks; there only while that is wanted.
    pub const INJECTOR: &str = "VirtNetworkResourcesInjectorReady";
    /// Machines can move to another node.
    pub const LIVE_MIGRATION: &str = "LiveMigrationPossible";
}

const COMPLETED: (&str, &str) = ("ReconcileCompleted", "Reconcile completed successfully");

/// What was seen of one of the objects that follow.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which.
    pub child: Child,
    /// The object; none while it is not there.
    pub held: Option<Value>,
    /// The cluster knows its kind.
    pub served: bool,
}

/// What the status is made from, beside the object itself.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The objects that follow.
    pub seen: &'a [Seen],
    /// Why the last attempt failed.
    pub failure: Option<&'a str>,
    /// What the manifests were made from.
    pub input: &'a Input,
    /// The Deployment of the network resources injector.
    pub injector: Option<&'a Deployment>,
}

impl Seen {
    fn status(&self) -> Value {
        self.held.as_ref().map(|held| held["status"].clone()).unwrap_or_default()
    }

    /// The version whose parts run.
    fn version(&self) -> String {
        let field = if self.child == Child::KubeVirt { "observedKubeVirtVersion" } else { "observedVersion" };
        self.status()[field].as_str().unwrap_or_default().to_owned()
    }

    /// What the object says of itself, by type of condition: status and message.
    fn says(&self, type_: &str) -> Option<(String, String)> {
        let status = self.status();
        let said = status["conditions"].as_array()?.iter().find(|said| said["type"] == type_)?;
        let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("message")))
    }

    fn has_conditions(&self) -> bool {
        self.status()["conditions"].as_array().is_some_and(|all| !all.is_empty())
    }

    /// What is not good: type of condition, its status, reason and message.
    fn troubles(&self) -> Vec<(&'static str, bool, String, String)> {
        use condition::{AVAILABLE, DEGRADED, PROGRESSING, UPGRADEABLE};
        let kind = self.child.kind().kind;
        if !self.served {
            let message = format!("the kind {kind} is not served: apply the manifests of its operator");
            let trouble = |type_, status| (type_, status, format!("{kind}NotServed"), message.clone());
            return vec![trouble(AVAILABLE, false), trouble(DEGRADED, true), trouble(UPGRADEABLE, false)];
        }
        if !self.has_conditions() {
            let (reason, message) = (format!("{kind}Conditions"), format!("{kind} resource has no conditions"));
            let trouble = |type_, status| (type_, status, reason.clone(), message.clone());
            return vec![trouble(AVAILABLE, false), trouble(PROGRESSING, true), trouble(UPGRADEABLE, false)];
        }
        let mut all = Vec::new();
        let mut add = |type_, status, what: &str, said: &str, message: &str| {
            all.push((type_, status, format!("{kind}{what}"), format!("{kind} is {said}: {message}")));
        };
        match self.says(AVAILABLE) {
            Some((status, _)) if status == "True" => {}
            Some((_, message)) => add(AVAILABLE, false, "NotAvailable", "not available", &message),
            None => add(AVAILABLE, false, "NotAvailable", "not available", "missing \"Available\" condition"),
        }
        match self.says(PROGRESSING) {
            Some((status, message)) if status == "True" => {
                add(PROGRESSING, true, "Progressing", "progressing", &message);
                add(UPGRADEABLE, false, "Progressing", "progressing", &message);
            }
            Some(_) => {}
            None => add(PROGRESSING, true, "Progressing", "progressing", "missing \"Progressing\" condition"),
        }
        match self.says(DEGRADED) {
            Some((status, message)) if status == "True" => add(DEGRADED, true, "Degraded", "degraded", &message),
            Some(_) => {}
            None => add(DEGRADED, true, "Degraded", "degraded", "missing \"Degraded\" condition"),
        }
        if let Some((status, message)) = self.says(UPGRADEABLE)
            && status == "False"
        {
            add(UPGRADEABLE, false, "NotUpgradeable", "not upgradeable", &message);
        }
        all
    }
}

/// True while parts run that are of another version than `version`.
pub fn is_upgrading(hco: &HyperConverged, seen: &[Seen], version: &str) -> bool {
    let before = operator_version(hco.status.as_ref());
    before.is_some_and(|before| before != version) && seen.iter().any(|one| one.version() != version)
}

/// The version of the product that was complete last.
fn operator_version(status: Option<&Status>) -> Option<String> {
    let versions = status.iter().flat_map(|status| &status.versions);
    versions.into_iter().find(|one| one.name == "operator").map(|one| one.version.clone())
}

/// The status that `hco` should have.
pub fn status(hco: &HyperConverged, facts: &Facts<'_>, now: Timestamp) -> Status {
    use condition::{
        AVAILABLE, DEGRADED, INJECTOR, LIVE_MIGRATION, PROGRESSING, RECONCILE_COMPLETE, TAINTED, UPGRADEABLE,
    };
    let mut status = hco.status.clone().unwrap_or_default();
    let input = facts.input;
    let upgrading = is_upgrading(hco, facts.seen, &input.version);
    let troubles: Vec<_> = facts.seen.iter().flat_map(Seen::troubles).collect();
    let of = |type_: &str| {
        let mut of_type = troubles.iter().filter(|trouble| trouble.0 == type_);
        let (_, value, reason, message) = of_type.next()?;
        // The first says why; all are told.
        let all: Vec<&str> = std::iter::once(message.as_str()).chain(of_type.map(|other| other.3.as_str())).collect();
        Some((*value, reason.clone(), all.join("; ")))
    };
    let good = |value: bool| (value, COMPLETED.0.to_owned(), COMPLETED.1.to_owned());
    let said = |value: bool, reason: &str, message: &str| (value, reason.to_owned(), message.to_owned());
    let mut available = of(AVAILABLE).unwrap_or_else(|| good(true));
    let mut progressing = of(PROGRESSING).unwrap_or_else(|| good(false));
    let degraded = of(DEGRADED).unwrap_or_else(|| good(false));
    let mut upgradeable = of(UPGRADEABLE).unwrap_or_else(|| good(true));
    if upgrading {
        let message = format!("HCO is now upgrading to version {}", input.version);
        progressing = said(true, "HCOUpgrading", &message);
        upgradeable = said(false, "HCOUpgrading", &message);
    } else if degraded.0 {
        if available.0 {
            available = said(false, "HCODegraded", "HCO is not available due to degraded components");
        }
        upgradeable = said(false, "HCODegraded", "HCO is not Upgradeable due to degraded components");
    } else if progressing.0 {
        upgradeable = said(false, "HCOProgressing", "HCO is not Upgradeable due to progressing components");
    }
    let complete = match facts.failure {
        Some(failure) => said(false, "ReconcileFailed", &format!("Error while reconciling: {failure}")),
        None => good(true),
    };
    let healthy = (complete.0, available.0, progressing.0, degraded.0);
    let list = &mut status.conditions;
    let all = [
        (RECONCILE_COMPLETE, complete),
        (AVAILABLE, available),
        (PROGRESSING, progressing),
        (DEGRADED, degraded),
        (UPGRADEABLE, upgradeable),
        (LIVE_MIGRATION, migration(input)),
    ];
    for (type_, (value, reason, message)) in all {
        set(list, type_, value, &reason, &message, now);
    }
    match injector(hco, facts.injector) {
        Some((value, reason, message)) => set(list, INJECTOR, value, reason, &message, now),
        None => conditions::remove(list, INJECTOR),
    }
    match patches::present(hco).is_empty() {
        true => conditions::remove(list, TAINTED),
        false => {
            let message = "Unsupported feature was activated via an HCO annotation";
            set(list, TAINTED, true, "UnsupportedFeatureAnnotation", message, now);
        }
    }
    for condition in list.iter_mut() {
        condition.observed_generation = hco.metadata.generation;
    }
    status.system_health_status = Some(health(healthy, upgrading).to_owned());
    status.observed_generation = hco.metadata.generation;
    if !upgrading && facts.failure.is_none() && facts.seen.iter().all(|one| one.version() == input.version) {
        status.versions = vec![Version { name: "operator".to_owned(), version: input.version.clone() }];
    }
    status.related_objects = facts.seen.iter().filter_map(related).collect();
    describe(hco, input, &mut status, now);
    status
}

/// Whether the network resources injector runs; none where it is not wanted.
fn injector(hco: &HyperConverged, held: Option<&Deployment>) -> Option<(bool, &'static str, String)> {
    if hco.spec.deployment.deploy_network_resources_injector == Some(false) {
        return None;
    }
    let Some(held) = held else {
        return Some((
            false,
            "DeploymentNotFound",
            "The Deployment of the network resources injector is not there".to_owned(),
        ));
    };
    if operator::is_rolled_out(held) {
        return Some((true, "DeploymentReady", "All replicas are ready".to_owned()));
    }
    let wanted = held.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = held.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    Some((false, "DeploymentNotReady", format!("{ready}/{wanted} replicas ready")))
}

/// Whether machines can move, and why not.
fn migration(input: &Input) -> (bool, String, String) {
    match input.topology.can_migrate() {
        true => (true, "SeveralWorkers".to_owned(), "Machines can move to another node".to_owned()),
        false => {
            let message = "There is one node for machines: they are not migrated, and stop when it is drained, unless \
                           spec.virtualization.evictionStrategy says otherwise";
            (false, "SingleWorker".to_owned(), message.to_owned())
        }
    }
}

fn describe(hco: &HyperConverged, input: &Input, status: &mut Status, now: Timestamp) {
    let info = input.topology.architectures(hco.spec.deployment.node_placements.workload.as_ref());
    let mut images = golden_images::all(&hco.spec.workload_sources, &input.schedule, &info.workloads_architectures);
    let before = std::mem::take(&mut status.data_import_cron_templates);
    for image in &mut images {
        let old = before.iter().find(|old| old.metadata.name == image.metadata.name);
        let old = old.and_then(|old| old.status.as_ref()).map(|status| status.conditions.clone()).unwrap_or_default();
        if let Some(status) = &mut image.status {
            status.conditions = std::mem::take(&mut status.conditions)
                .into_iter()
                .map(|new| {
                    let mut list = old.clone();
                    set(&mut list, &new.type_, new.status == "True", &new.reason, &new.message, now);
                    conditions::get(&list, &new.type_).cloned().unwrap_or(new)
                })
                .collect();
        }
    }
    status.data_import_cron_templates = images;
    status.data_import_schedule = Some(input.schedule.clone()).filter(|schedule| !schedule.is_empty());
    status.infrastructure_highly_available = Some(input.topology.can_migrate());
    status.node_info = Some(info);
}

fn related(seen: &Seen) -> Option<ObjectReference> {
    let held = seen.held.as_ref()?;
    let text = |pointer: &str| held.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let kind = seen.child.kind();
    Some(ObjectReference {
        api_version: Some(kind.api_version.to_owned()),
        kind: Some(kind.kind.to_owned()),
        name: text("/metadata/name"),
        namespace: text("/metadata/namespace"),
        uid: text("/metadata/uid"),
        // Not the version: it would change with each word that the object's operator says, and this object with it.
        ..ObjectReference::default()
    })
}

fn health((complete, available, progressing, degraded): (bool, bool, bool, bool), upgrading: bool) -> &'static str {
    if degraded || (!available && !upgrading) {
        "error"
    } else if !complete || progressing {
        "warning"
    } else {
        "healthy"
    }
}

/// The status of an object that does not count: of another name, or in another namespace.
pub fn invalid(hco: &HyperConverged, (namespace, name): (&str, &str), now: Timestamp) -> Status {
    let mut status = hco.status.clone().unwrap_or_default();
    let message = format!("Request does not match expected name ({name}) and namespace ({namespace})");
    set(&mut status.conditions, condition::RECONCILE_COMPLETE, false, "InvalidRequest", &message, now);
    status.observed_generation = hco.metadata.generation;
    status
}

/// The status of an object of which nothing is known yet.
pub fn initial(hco: &HyperConverged, now: Timestamp) -> Status {
    let mut status = hco.status.clone().unwrap_or_default();
    let (reason, message) = ("Init", "Initializing HyperConverged cluster");
    let unknown = |type_: &str| Condition {
        type_: type_.to_owned(),
        status: "Unknown".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: hco.metadata.generation,
    };
    status.conditions.push(unknown(condition::RECONCILE_COMPLETE));
    let known = [(condition::AVAILABLE, false), (condition::PROGRESSING, true), (condition::DEGRADED, false)];
    for (type_, value) in known {
        set(&mut status.conditions, type_, value, reason, message, now);
    }
    status.conditions.push(unknown(condition::UPGRADEABLE));
    status
}

/// The status while everything is taken away; `failure` is what stands in the way.
pub fn removing(hco: &HyperConverged, failure: Option<&str>, now: Timestamp) -> Status {
    let mut status = hco.status.clone().unwrap_or_default();
    let list = &mut status.conditions;
    match failure {
        Some(failure) => {
            let message = format!("Error while reconciling: {failure}");
            set(list, condition::RECONCILE_COMPLETE, false, "ReconcileFailed", &message, now);
        }
        None => set(list, condition::RECONCILE_COMPLETE, true, COMPLETED.0, COMPLETED.1, now),
    }
    set(list, condition::AVAILABLE, false, "Deleting", "The product is being removed", now);
    set(list, condition::PROGRESSING, true, "Deleting", "The product is being removed", now);
    status
}

fn set(list: &mut Vec<Condition>, type_: &str, value: bool, reason: &str, message: &str, now: Timestamp) {
    conditions::set(list, type_, if value { "True" } else { "False" }, Some(reason), Some(message), &Time(now));
}

#[cfg(test)]
mod tests;
