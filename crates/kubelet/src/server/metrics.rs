//! /metrics/resource: cpu and memory of containers and of the node, in the names upstream uses.

use std::fmt::Write;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use rpc::cri::{ListContainerStatsRequest, UInt64Value};

use super::{Site, refuse};
use crate::runtime::label;

pub(super) async fn resource(State(site): State<Site>) -> Result<String, Response> {
    let reply = site.context.runtime.cri().list_container_stats(ListContainerStatsRequest { filter: None }).await;
    let stats = reply.map_err(|status| refuse(StatusCode::INTERNAL_SERVER_ERROR, status.message().to_owned()))?;
    let (mut cpu, mut memory) = (String::new(), String::new());
    let (mut all_cpu, mut all_memory) = (0.0, 0);
    for stat in stats.into_inner().stats {
        let Some(attributes) = stat.attributes else { continue };
        let label = |key: &str| attributes.labels.get(key).map(String::as_str).unwrap_or_default();
        let labels = format!(
            "{{container=\"{}\",namespace=\"{}\",pod=\"{}\"}}",
            label(label::CONTAINER_NAME),
            label(label::POD_NAMESPACE),
            label(label::POD_NAME)
        );
        let number = |value: Option<UInt64Value>| value.map_or(0, |value| value.value);
        #[expect(clippy::cast_precision_loss, reason = "seconds with the precision of a double are what is asked for")]
        let seconds = number(stat.cpu.and_then(|cpu| cpu.usage_core_nano_seconds)) as f64 / 1e9;
        let bytes = number(stat.memory.and_then(|memory| memory.working_set_bytes));
        all_cpu += seconds;
        all_memory += bytes;
        // Writing to a String cannot fail.
        let _ = writeln!(cpu, "container_cpu_usage_seconds_total{labels} {seconds}");
        let _ = writeln!(memory, "container_memory_working_set_bytes{labels} {bytes}");
    }
    Ok(format!(
        "# TYPE container_cpu_usage_seconds_total counter\n{cpu}# TYPE container_memory_working_set_bytes gauge\n{memory}\
         # TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total {all_cpu}\n\
         # TYPE node_memory_working_set_bytes gauge\nnode_memory_working_set_bytes {all_memory}\n"
    ))
}
