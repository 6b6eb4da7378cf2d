//! /stats/summary and the volume figures of /metrics: how much containers and volumes take.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use rpc::cri::{ContainerStats, ListContainerStatsRequest, UInt64Value};
use serde_json::{Value, json};

use super::{Site, refuse};
use crate::csi::stats::{Usage, measure};
use crate::inventory::ClaimName;
use crate::runtime::label;

/// Volumes asked about at the same time.
const AT_ONCE: usize = 8;

/// A volume of a pod and its figures.
struct Measured {
    uid: String,
    name: String,
    claim: Option<ClaimName>,
    usage: Usage,
}

/// Those that cannot be measured now are left out, as upstream.
async fn volumes(site: &Site) -> Vec<Measured> {
    let all = site.context.volumes.all();
    let jobs = all.iter().flat_map(|(uid, pod)| {
        pod.iter().map(move |(name, volume)| async move {
            match measure(&site.context, uid, volume).await {
                Ok(usage) => {
                    Some(Measured { uid: uid.clone(), name: name.clone(), claim: volume.claim.clone(), usage })
                }
                Err(error) => {
                    tracing::debug!(volume = name, error = %kit::Chain(&error), "a volume was not measured");
                    None
                }
            }
        })
    });
    let jobs: Vec<_> = jobs.collect();
    futures::stream::iter(jobs).buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await
}

pub(super) async fn summary(State(site): State<Site>) -> Result<Json<Value>, Response> {
    let reply = site.context.runtime.cri().list_container_stats(ListContainerStatsRequest { filter: None }).await;
    let stats = reply.map_err(|status| refuse(StatusCode::INTERNAL_SERVER_ERROR, status.message().to_owned()))?;
    let now = kit::clock::time();
    let mut containers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let (mut cpu, mut memory) = (0, 0);
    for stat in stats.into_inner().stats {
        let label = |key: &str| stat.attributes.as_ref().and_then(|a| a.labels.get(key)).cloned().unwrap_or_default();
        let (uid, name) = (label(label::POD_UID), label(label::CONTAINER_NAME));
        let (its_cpu, its_memory) = used(&stat);
        cpu += its_cpu;
        memory += its_memory;
        let written = stat.writable_layer.as_ref().and_then(|layer| layer.used_bytes).map_or(0, |used| used.value);
        containers.entry(uid).or_default().push(json!({
            "name": name,
            "cpu": {"time": now, "usageCoreNanoSeconds": its_cpu},
            "memory": {"time": now, "workingSetBytes": its_memory},
            "rootfs": {"time": now, "usedBytes": written},
        }));
    }
    let mut by_pod: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for volume in volumes(&site).await {
        by_pod.entry(volume.uid.clone()).or_default().push(of_volume(&volume, &json!(now)));
    }
    let known = site.known.borrow().clone();
    let pods: Vec<Value> =
        known.iter().map(|(uid, pod)| of_pod(uid, pod, containers.remove(uid), by_pod.remove(uid))).collect();
    let node = json!({
        "nodeName": site.context.config.node_name,
        "cpu": {"time": now, "usageCoreNanoSeconds": cpu},
        "memory": {"time": now, "workingSetBytes": memory},
    });
    Ok(Json(json!({"node": node, "pods": pods})))
}

fn used(stat: &ContainerStats) -> (u64, u64) {
    let number = |value: Option<UInt64Value>| value.map_or(0, |value| value.value);
    (
        number(stat.cpu.and_then(|cpu| cpu.usage_core_nano_seconds)),
        number(stat.memory.and_then(|memory| memory.working_set_bytes)),
    )
}

fn of_pod(uid: &str, pod: &Arc<Pod>, containers: Option<Vec<Value>>, volumes: Option<Vec<Value>>) -> Value {
    let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
    let mut json = json!({
        "podRef": {"name": name, "namespace": namespace, "uid": uid},
        "startTime": pod.status.as_ref().and_then(|status| status.start_time.clone()),
        "containers": containers.unwrap_or_default(),
    });
    if let Some(volumes) = volumes {
        json["volume"] = json!(volumes);
    }
    json
}

fn of_volume(volume: &Measured, now: &Value) -> Value {
    let usage = &volume.usage;
    let mut json = json!({"time": now, "name": volume.name});
    for (key, figure) in figures(usage) {
        if let Some(figure) = figure {
            json[key] = figure.into();
        }
    }
    if let Some((namespace, name)) = &volume.claim {
        json["pvcRef"] = json!({"name": name, "namespace": namespace});
    }
    if let Some(abnormal) = usage.abnormal {
        json["volumeHealthStats"] = json!({"abnormal": abnormal});
    }
    json
}

fn figures(usage: &Usage) -> [(&'static str, Option<i64>); 6] {
    [
        ("availableBytes", usage.available),
        ("capacityBytes", usage.capacity),
        ("usedBytes", usage.used),
        ("inodes", usage.inodes),
        ("inodesFree", usage.inodes_free),
        ("inodesUsed", usage.inodes_used),
    ]
}

/// `kubelet_volume_stats_*` of every claim in use here.
pub(super) async fn metrics(State(site): State<Site>) -> String {
    // A claim that several pods use is one volume.
    let by_claim: BTreeMap<ClaimName, Usage> =
        volumes(&site).await.into_iter().filter_map(|volume| Some((volume.claim?, volume.usage))).collect();
    exposition(&by_claim)
}

/// A metric of volumes: its last name, its help, and where its value is.
type Metric = (&'static str, &'static str, fn(&Usage) -> Option<i64>);

const METRICS: [Metric; 7] = [
    ("available_bytes", "Number of available bytes in the volume", |usage| usage.available),
    ("capacity_bytes", "Capacity in bytes of the volume", |usage| usage.capacity),
    ("used_bytes", "Number of used bytes in the volume", |usage| usage.used),
    ("inodes", "Maximum number of inodes in the volume", |usage| usage.inodes),
    ("inodes_free", "Number of free inodes in the volume", |usage| usage.inodes_free),
    ("inodes_used", "Number of used inodes in the volume", |usage| usage.inodes_used),
    ("health_status_abnormal", "Abnormal volume health status: 1 or 0", |usage| usage.abnormal.map(i64::from)),
];

fn exposition(by_claim: &BTreeMap<ClaimName, Usage>) -> String {
    let mut text = String::new();
    for (name, help, value) in METRICS {
        let name = format!("kubelet_volume_stats_{name}");
        let mut lines = String::new();
        for ((namespace, claim), usage) in by_claim {
            if let Some(value) = value(usage) {
                // Writing to a String cannot fail.
                let _ =
                    writeln!(lines, "{name}{{namespace=\"{namespace}\",persistentvolumeclaim=\"{claim}\"}} {value}");
            }
        }
        if !lines.is_empty() {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{lines}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_volume_statistics_are_left_out() {
        let usage = Usage { capacity: Some(10), abnormal: Some(true), ..Default::default() };
        let text = exposition(&BTreeMap::from([(("ns".to_owned(), "c".to_owned()), usage)]));
        let labels = "{namespace=\"ns\",persistentvolumeclaim=\"c\"}";
        assert!(text.contains(&format!("kubelet_volume_stats_capacity_bytes{labels} 10\n")), "{text}");
        assert!(text.contains(&format!("kubelet_volume_stats_health_status_abnormal{labels} 1\n")), "{text}");
        assert!(!text.contains("inodes"), "{text}");
    }
}
