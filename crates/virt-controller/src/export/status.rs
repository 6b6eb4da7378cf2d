//! What the status of an export says. Pure.

use std::time::Duration;

use api::export::constants::phase;
use api::export::v1::{Condition, VirtualMachineExport, VirtualMachineExportLinks, VirtualMachineExportStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock;
use meta::conditions;

use super::links::{self, Hosts};
use super::pod;
use super::source::{NewCondition, Source, condition, reason};

/// How long an export is good for when nobody says.
const GOOD_FOR: Duration = Duration::from_secs(2 * 3600);

/// When the export's time is over.
pub fn expires(export: &VirtualMachineExport) -> Option<Timestamp> {
    let asked = export.spec.ttl_duration.as_deref().and_then(kit::duration::parse);
    let made = export.metadata.creation_timestamp.as_ref()?.0;
    made.checked_add(asked.unwrap_or(GOOD_FOR)).ok()
}

/// The status as it was, or that of an export that has only begun.
pub fn begun(export: &VirtualMachineExport, now: Timestamp) -> VirtualMachineExportStatus {
    let mut status = export.status.as_deref().cloned().unwrap_or_default();
    if status.phase.is_none() {
        status.phase = Some(phase::PENDING.to_owned());
        let new = NewCondition { kind: condition::READY, reason: reason::INITIALIZING, ..NewCondition::default() };
        set(&mut status.conditions, &new, now);
    }
    if status.ttl_expiration_time.is_none() {
        status.ttl_expiration_time = expires(export).map(|at| Time(clock::seconds(at)));
    }
    status
}

/// What is known of an export.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What it shows.
    pub source: &'a Source,
    /// Its server.
    pub pod: Option<&'a Pod>,
    /// Its Service.
    pub service: &'a str,
    /// The hosts under which it is known.
    pub hosts: &'a Hosts,
}

/// Puts what was `seen` into `status`.
pub fn say(status: &mut VirtualMachineExportStatus, seen: &Seen<'_>, now: Timestamp) {
    let source = seen.source;
    status.service_name = Some(seen.service.to_owned());
    status.virtual_machine_name = source.machine_name.clone().or_else(|| status.virtual_machine_name.take());
    let ready = |holds, reason| NewCondition { kind: condition::READY, holds, reason, message: String::new() };
    let mut links = VirtualMachineExportLinks::default();
    let (phase, new) = match seen.pod {
        None if source.skipped => {
            (phase::SKIPPED, NewCondition { message: source.message.clone(), ..ready(false, source.reason) })
        }
        None => (phase::PENDING, NewCondition { message: source.message.clone(), ..ready(false, source.reason) }),
        Some(pod) if pod::is_ready(pod) && pod.metadata.deletion_timestamp.is_none() => {
            links = links::links(source, seen.hosts);
            (phase::READY, ready(true, reason::POD_READY))
        }
        Some(pod) => match pod::phase(pod) {
            "Succeeded" => (phase::TERMINATED, ready(false, reason::POD_COMPLETED)),
            "Pending" => (phase::PENDING, ready(false, reason::POD_PENDING)),
            _ => (phase::PENDING, ready(false, reason::UNKNOWN)),
        },
    };
    status.phase = Some(phase.to_owned());
    status.links = Some(links.into());
    set(&mut status.conditions, &new, now);
    if let Some(new) = &source.condition {
        set(&mut status.conditions, new, now);
    }
}

fn set(list: &mut Vec<Condition>, new: &NewCondition, now: Timestamp) {
    let status = if new.holds { "True" } else { "False" };
    conditions::set(list, new.kind, status, Some(new.reason), Some(&new.message), &Time(now));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::links::Host;
    use super::super::source::Volume;
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn export(ttl: Value) -> VirtualMachineExport {
        serde_json::from_value(json!({
            "metadata": { "name": "e", "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "source": { "kind": "VirtualMachine", "name": "vm" }, "ttlDuration": ttl },
        }))
        .unwrap()
    }

    #[test]
    fn an_export_is_good_for_two_hours_unless_somebody_says_otherwise() {
        assert_eq!(expires(&export(Value::Null)), Some(at("2026-01-01T02:00:00Z")));
        assert_eq!(expires(&export(json!("30m"))), Some(at("2026-01-01T00:30:00Z")));
        let status = begun(&export(Value::Null), at("2026-01-01T00:10:00Z"));
        assert_eq!(status.ttl_expiration_time.unwrap().0, at("2026-01-01T02:00:00Z"));
    }

    #[test]
    fn links_are_shown_while_the_server_is_ready() {
        let claim = serde_json::from_value(json!({ "metadata": { "name": "data" } })).unwrap();
        let machine =
            serde_json::from_value(json!({ "metadata": { "name": "vm" }, "spec": { "template": {} } })).unwrap();
        let source = Source {
            volumes: vec![Volume { name: "data".into(), claim, disk: true }],
            free: true,
            machine: Some(machine),
            machine_name: Some("vm".into()),
            reason: reason::INITIALIZING,
            ..Source::default()
        };
        let export = export(Value::Null);
        let outside = Host { base: "x.example".into(), certificate: "B".into() };
        let hosts = Hosts::of(&export, "virt-export-e", " A \n", Some(outside));
        let said = |pod: Option<Value>, source: &Source| {
            let pod: Option<Pod> =
                pod.map(|status| serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap());
            let mut status = begun(&export, at("2026-01-01T00:00:00Z"));
            let seen = Seen { source, pod: pod.as_ref(), service: "virt-export-e", hosts: &hosts };
            say(&mut status, &seen, at("2026-01-01T00:01:00Z"));
            json!(status)
        };
        let ready =
            said(Some(json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] })), &source);
        assert_eq!((&ready["phase"], &ready["virtualMachineName"]), (&json!("Ready"), &json!("vm")));
        assert_eq!(
            (&ready["conditions"][0]["status"], &ready["conditions"][0]["reason"]),
            (&json!("True"), &json!("PodReady"))
        );
        assert_eq!(
            ready["links"]["internal"],
            json!({
                "cert": "A",
                "volumes": [{ "name": "data", "formats": [
                    { "format": "raw", "url": "https://virt-export-e.ns.svc/volumes/data/disk.img" },
                    { "format": "gzip", "url": "https://virt-export-e.ns.svc/volumes/data/disk.img.gz" },
                ] }],
                "manifests": [
                    { "type": "all", "url": "https://virt-export-e.ns.svc/internal/manifests/all" },
                    { "type": "auth-header-secret", "url": "https://virt-export-e.ns.svc/internal/manifests/secret" },
                ],
            })
        );
        let base = "https://x.example/api/export.kubevirt.io/v1/namespaces/ns/virtualmachineexports/e";
        let external = &ready["links"]["external"];
        assert_eq!(external["volumes"][0]["formats"][0]["url"], format!("{base}/volumes/data/disk.img"));
        assert_eq!(external["manifests"][0]["url"], format!("{base}/external/manifests/all"));
        let check = |pod, source: &Source, phase: &str, reason: &str| {
            let found = said(pod, source);
            assert_eq!((&found["phase"], &found["conditions"][0]["reason"]), (&json!(phase), &json!(reason)));
            assert_eq!(found["links"], json!({}));
        };
        check(None, &source, "Pending", "Initializing");
        check(None, &Source { skipped: true, ..source.clone() }, "Skipped", "Initializing");
        check(Some(json!({ "phase": "Pending" })), &source, "Pending", "PodPending");
        check(Some(json!({ "phase": "Running" })), &source, "Pending", "Unknown");
        check(Some(json!({ "phase": "Succeeded" })), &source, "Terminated", "PodCompleted");
    }
}
