//! Giving the running containers of a pod, and its own group, the sizes that the node has set aside.

use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use rpc::cri;

use crate::allocation::record::{Record, Sizes};
use crate::allocation::sized;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::pod::resize::{self, Named};
use crate::pod::start::named;
use crate::resources;

/// Changes the containers in `update`, with the pod's group around them.
///
/// # Errors
/// Why not, in words for users.
pub(crate) async fn resize(context: Arc<Context>, pod: Arc<Pod>, update: Vec<Named>) -> Result<(), String> {
    change(&context, &pod, update).await.map_err(|error| error.user_message())
}

async fn change(context: &Context, pod: &Pod, mut update: Vec<Named>) -> Result<()> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    // What was granted in between has its own turn.
    let record = Record { allocated: crate::allocation::sizes(pod), ..context.allocations.record(uid) };
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let usage = if lowers(pod, &record) { used(context, uid, &update).await? } else { Vec::new() };
    if let Some(why) = resize::forbidden(pod, &record, &usage) {
        return Err(Error::Invalid(why));
    }
    let (before, after) = (limits(pod, record.grouped.as_ref()), resources::of_pod(spec));
    let around = before.map_or(after, |before| before.most(after));
    set_group(context, pod, &around)?;
    // What becomes smaller makes room for the others.
    update.sort_by_key(|(name, _)| grows(&record, name));
    for (name, id) in update {
        let Some(container) = named(spec, &name) else { continue };
        let linux = resources::of_container(spec, &container, context.amounts.memory);
        let request = cri::UpdateContainerResourcesRequest { container_id: id, linux: Some(linux) };
        let updated = context.runtime.cri().update_container_resources(request).await;
        updated.map_err(Error::runtime("update container resources"))?;
        context.allocations.applied(uid, &name, &container.resources.clone().unwrap_or_default())?;
    }
    set_group(context, pod, &after)?;
    context.allocations.grouped(uid, record.allocated)
}

fn limits(pod: &Pod, sizes: Option<&Sizes>) -> Option<sys::limits::Limits> {
    sized(pod, sizes?).spec.as_ref().map(resources::of_pod)
}

fn memory(sizes: &Sizes, name: &str) -> i64 {
    let limit = sizes.get(name).and_then(|size| size.limits.as_ref()?.get("memory")).and_then(resources::value);
    limit.unwrap_or(i64::MAX)
}

fn grows(record: &Record, name: &str) -> bool {
    memory(&record.allocated, name) > memory(&record.applied, name)
}

/// Whether a limit on memory becomes lower, so that one has to know what is in use.
fn lowers(pod: &Pod, record: &Record) -> bool {
    let group = |sizes| limits(pod, sizes).and_then(|limits| limits.memory).unwrap_or(i64::MAX);
    group(Some(&record.allocated)) < group(record.grouped.as_ref())
        || record.allocated.keys().any(|name| memory(&record.allocated, name) < memory(&record.applied, name))
}

/// Bytes of memory that the running containers use, by name.
async fn used(context: &Context, uid: &str, update: &[Named]) -> Result<Vec<(String, i64)>> {
    let stats = context.runtime.container_stats(uid).await?;
    let used = |stat: cri::ContainerStats| {
        let memory = stat.memory?;
        let bytes = memory.usage_bytes.or(memory.working_set_bytes)?.value;
        Some((stat.attributes?.metadata?.name, i64::try_from(bytes).unwrap_or(i64::MAX)))
    };
    let used: Vec<_> = stats.into_iter().filter_map(used).collect();
    match update.iter().find(|(name, _)| !used.iter().any(|(known, _)| known == name)) {
        Some((name, _)) => {
            Err(Error::Invalid(format!("cannot decrease memory limits: missing memory usage of container {name:?}")))
        }
        None => Ok(used),
    }
}

/// Makes the pod's own group as large as `limits`.
pub(crate) fn set_group(context: &Context, pod: &Pod, limits: &sys::limits::Limits) -> Result<()> {
    let group = resources::cgroup_parent(&context.config.node_name, pod);
    let group = Path::new(group.trim_start_matches('/'));
    let set = sys::limits::apply(&context.hierarchies, group, limits);
    set.map_err(|error| Error::Invalid(kit::Chain(&error).to_string()))
}
