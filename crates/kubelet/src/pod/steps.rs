//! Doing what the plan says: each step is a future of its own, and its outcome goes back to the worker.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use rpc::cri;

use crate::context::{Context, about, about_container};
use crate::error::{Error, Result};
use crate::images::{self, ImageInfo, Waiting};
use crate::pod::local_storage::{self, Usage};
use crate::pod::start::{self, Start, named};
use crate::pod::status::{Published, RESIZE};
use crate::pod::{hooks, resizing};
use crate::volumes::{self, Mounted};
use crate::{allocation, csi, device_claims, networks, resources, sandbox};

/// How a step ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Volumes(Result<Mounted>),
    Sandbox(Result<()>),
    Networks(Result<()>),
    Pulled {
        name: String,
        result: Result<ImageInfo, Waiting>,
    },
    Started {
        name: String,
        result: Result<(), Waiting>,
    },
    Cleaned {
        all: bool,
        result: Result<()>,
    },
    Published(Result<Box<Published>>),
    Released(Result<()>),
    /// Why the pod takes more of the disk than it may, if it does.
    Measured(Option<String>),
    /// Containers have their new sizes, or why not.
    Resized(Result<(), String>),
    Other(Result<()>),
}

/// What a pod has to have before its containers: the devices of its claims, and its volumes.
pub(crate) async fn set_up_volumes(context: Arc<Context>, pod: Arc<Pod>, ips: Vec<String>) -> Outcome {
    if let Err(error) = device_claims::prepare(&context, &pod).await {
        let message = format!("Failed to prepare dynamic resources: {}", kit::Chain(&error));
        context.events.warning(&about(&pod), "FailedPrepareDynamicResources", message);
        return Outcome::Volumes(Err(error));
    }
    let result = volumes::set_up(&context, &pod, &ips).await;
    if let Err(error) = &result {
        let message = match error {
            Error::Volume { name, source } => {
                format!("MountVolume.SetUp failed for volume {name:?} : {}", kit::Chain(source.as_ref()))
            }
            Error::Mount { operation, name, source } => {
                format!("{operation} failed for volume {name:?} : {}", kit::Chain(source.as_ref()))
            }
            other => format!("MountVolume.SetUp failed: {}", kit::Chain(other)),
        };
        let reason = match error {
            Error::Mount { operation, .. } if operation.starts_with("MapVolume") => "FailedMapVolume",
            _ => "FailedMount",
        };
        context.events.warning(&about(&pod), reason, message);
    }
    Outcome::Volumes(result)
}

pub(crate) async fn create_sandbox(context: Arc<Context>, pod: Arc<Pod>, attempt: u32) -> Outcome {
    let result = run_sandbox(&context, &pod, attempt).await;
    if let Err(error) = &result {
        let message = format!("Failed to create pod sandbox: {}", error.user_message());
        context.events.warning(&about(&pod), "FailedCreatePodSandBox", message);
    }
    Outcome::Sandbox(result)
}

async fn run_sandbox(context: &Context, pod: &Pod, attempt: u32) -> Result<()> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    resizing::set_group(context, pod, &resources::of_pod(spec))?;
    context.allocations.grouped(pod.metadata.uid.as_deref().unwrap_or_default(), allocation::sizes(pod))?;
    let logs = sandbox::log_directory(pod, &context.config.log_dir);
    std::fs::create_dir_all(&logs).map_err(Error::file("create", &logs))?;
    let wanted = context.networks.wanted(pod).await?;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if !wanted.is_empty() {
        context.networks.begin(uid)?;
    }
    let config = Some(sandbox::config(pod, attempt, &context.surroundings()));
    let request = cri::RunPodSandboxRequest { config, runtime_handler: runtime_handler(context, spec).await? };
    let reply = context.runtime.cri().run_pod_sandbox(request).await.map_err(Error::runtime("run sandbox"))?;
    let id = reply.into_inner().pod_sandbox_id;
    context.runtime.own(&id, uid);
    if wanted.is_empty() {
        return Ok(());
    }
    let attached = networks::attach(context, pod, &id, wanted).await;
    if attached.is_err() {
        networks::stop_sandbox(context, &id).await?;
        context.runtime.remove_sandbox(&id).await?;
    }
    attached
}

/// The handler of the pod's runtime class; an empty one is the runtime's default.
async fn runtime_handler(context: &Context, spec: &PodSpec) -> Result<String> {
    let Some(name) = spec.runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(String::new());
    };
    let class = Api::<RuntimeClass>::all(context.client.clone()).get(name).await;
    class.map(|class| class.handler).map_err(Error::api("read runtime class"))
}

pub(crate) async fn pull(context: Arc<Context>, pod: Arc<Pod>, name: String) -> Outcome {
    let wanted = pod.spec.as_ref().and_then(|spec| named(spec, &name));
    let result = match wanted {
        Some(container) => images::ensure(&context, &pod, &container, &about_container(&pod, &name)).await,
        None => Ok(ImageInfo::default()),
    };
    Outcome::Pulled { name, result }
}

pub(crate) async fn start(context: Arc<Context>, pod: Arc<Pod>, start: Start) -> Outcome {
    let name = start.name.clone();
    Outcome::Started { name, result: Box::pin(start::start(context, pod, start)).await }
}

/// The preStop hook within the grace, then the stop signal with what is left of it.
pub(crate) async fn stop(
    context: Arc<Context>,
    pod: Arc<Pod>,
    id: String,
    name: String,
    grace: i64,
    reason: String,
    ip: Option<String>,
) -> Outcome {
    let target = about_container(&pod, &name);
    context.events.normal(&target, "Killing", reason);
    let began = tokio::time::Instant::now();
    let container = pod.spec.as_ref().and_then(|spec| named(spec, &name));
    let hook = container.as_deref().and_then(|c| Some((c, c.lifecycle.as_ref()?.pre_stop.as_ref()?)));
    let allowed = std::time::Duration::from_secs(u64::try_from(grace).unwrap_or(0));
    if let Some((container, hook)) = hook
        && grace > 0
    {
        match tokio::time::timeout(allowed, hooks::run(&context, container, &id, hook, ip.as_deref())).await {
            Ok(Ok(())) => {}
            Ok(Err(message)) => {
                context.events.warning(&target, "FailedPreStopHook", format!("PreStopHook failed: {message}"));
            }
            Err(_) => context.events.warning(
                &target,
                "FailedPreStopHook",
                "PreStopHook failed: it did not end within the grace period",
            ),
        }
    }
    let used = i64::try_from(began.elapsed().as_secs()).unwrap_or(grace);
    // As upstream, a hook that used up the grace leaves two seconds for the signal.
    let left = if grace == 0 { 0 } else { (grace - used).max(2) };
    Outcome::Other(context.runtime.stop_container(&id, left).await)
}

/// Gives back what a pod without running containers holds; with `all`, every trace of it on the node.
pub(crate) async fn clean_up(context: Arc<Context>, pod: Arc<Pod>, all: bool) -> Outcome {
    Outcome::Cleaned { all, result: clean(&context, &pod, all).await }
}

async fn clean(context: &Context, pod: &Pod, all: bool) -> Result<()> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if all {
        remove_from_runtime(context, uid).await?;
        context.networks.end(uid)?;
        let logs = sandbox::log_directory(pod, &context.config.log_dir);
        remove_dir(Path::new(&logs))?;
    }
    // Before the pod is said to have ended: from then on its devices may be another's.
    if let Err(error) = device_claims::release(context, uid).await {
        let message = format!("Failed to unprepare dynamic resources: {}", kit::Chain(&error));
        context.events.warning(&about(pod), "FailedUnprepareDynamicResources", message);
        return Err(error);
    }
    let dir = context.pod_dir(uid);
    csi::teardown::release(context, uid).await?;
    if all {
        volumes::tear_down(&dir)?;
    } else {
        volumes::unmount_below(&dir)?;
    }
    volumes::local::release_unused(context).await;
    context.devices.release(uid);
    if let Some(guard) = context.config.guard.as_ref().filter(|_| all) {
        guard.forget(uid);
    }
    remove_cgroups(context, &resources::cgroup_parent(&context.config.node_name, pod))
}

/// Containers first, then sandboxes.
pub(crate) async fn remove_from_runtime(context: &Context, uid: &str) -> Result<()> {
    for container in context.runtime.list_containers(Some(uid)).await? {
        context.runtime.remove_container(&container.id).await?;
    }
    for sandbox in context.runtime.sandboxes(Some(uid)).await? {
        networks::stop_sandbox(context, &sandbox.id).await?;
        context.runtime.remove_sandbox(&sandbox.id).await?;
    }
    Ok(())
}

pub(crate) fn remove_cgroups(context: &Context, group: &str) -> Result<()> {
    for hierarchy in &context.hierarchies {
        sys::cgroup::remove(&hierarchy.mount.join(group.trim_start_matches('/')))
            .map_err(|error| Error::Invalid(kit::Chain(&error).to_string()))?;
    }
    Ok(())
}

pub(crate) fn remove_dir(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", dir)(error)),
        _ => Ok(()),
    }
}

/// Writes the status, if the pod is still the one it is about.
pub(crate) async fn publish(context: Arc<Context>, pod: Arc<Pod>, status: PodStatus) -> Outcome {
    let (name, namespace, uid) = sandbox::names(&pod);
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let body = serde_json::json!({ "metadata": { "uid": uid }, "status": replaced(&status) });
    let written = api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(body)).await;
    Outcome::Published(written.map(|pod| Box::new(Published::of(status, &pod))).map_err(Error::api("write pod status")))
}

/// A strategic merge would keep addresses that are gone, and fields we no longer set.
fn replaced(status: &PodStatus) -> serde_json::Value {
    let mut json = serde_json::to_value(status).unwrap_or_default();
    if let Some(object) = json.as_object_mut() {
        if let Some(ips) = object.get_mut("podIPs").and_then(|ips| ips.as_array_mut()) {
            ips.insert(0, serde_json::json!({"$patch": "replace"}));
        }
        let mut gone = Vec::new();
        if let Some(conditions) = object.get_mut("conditions").and_then(|c| c.as_array_mut()) {
            // What is not in a list that is merged stays in it.
            for kind in RESIZE.iter().filter(|kind| !conditions.iter().any(|c| c["type"] == **kind)) {
                gone.push(serde_json::json!({"$patch": "delete", "type": kind}));
            }
            for condition in conditions.iter_mut().filter_map(|c| c.as_object_mut()) {
                for key in ["reason", "message"] {
                    condition.entry(key).or_insert(serde_json::Value::Null);
                }
            }
            conditions.extend(gone);
        }
        for key in ["reason", "message"] {
            object.entry(key).or_insert(serde_json::Value::Null);
        }
    }
    json
}

/// Compares what the pod has written with its limits.
pub(crate) async fn measure(context: Arc<Context>, pod: Arc<Pod>) -> Outcome {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let written = match written_layers(&context, spec, uid).await {
        Ok(written) => written,
        Err(error) => {
            tracing::debug!(pod = uid, error = %kit::Chain(&error), "the layers of a pod were not measured");
            return Outcome::Measured(None);
        }
    };
    let (volumes, logs) = (context.volume_dir(uid, "empty-dir"), sandbox::log_directory(&pod, &context.config.log_dir));
    let measured = pod.clone();
    let measuring = tokio::task::spawn_blocking(move || {
        let spec = measured.spec.as_ref()?;
        let volumes =
            local_storage::disk_volumes(spec).map(|(name, _)| (name, local_storage::size(&volumes.join(name))));
        let volumes = volumes.map(|(name, size)| (name.to_owned(), size)).collect();
        let mut containers = written;
        for (name, size) in &mut containers {
            *size += local_storage::size(&Path::new(&logs).join(name));
        }
        local_storage::excess(spec, &Usage { volumes, containers })
    });
    Outcome::Measured(measuring.await.unwrap_or_default())
}

/// What the pod's containers have written beside their images, when there are limits on it.
async fn written_layers(context: &Context, spec: &PodSpec, uid: &str) -> Result<BTreeMap<String, i64>> {
    if !local_storage::has_container_limits(spec) {
        return Ok(BTreeMap::new());
    }
    let stats = context.runtime.container_stats(uid).await?;
    let size = |stat: cri::ContainerStats| {
        let used = stat.writable_layer.and_then(|layer| layer.used_bytes).map_or(0, |used| used.value);
        Some((stat.attributes?.metadata?.name, i64::try_from(used).unwrap_or(i64::MAX)))
    };
    Ok(stats.into_iter().filter_map(size).collect())
}

/// Tells the API server that nothing of the pod is left here: the object may go.
pub(crate) async fn release(context: Arc<Context>, pod: Arc<Pod>) -> Outcome {
    let (name, namespace, uid) = sandbox::names(&pod);
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(uid), resource_version: None }),
        ..Default::default()
    };
    match api.delete(&name, &params).await {
        Ok(_) => Outcome::Released(Ok(())),
        // Gone already, or another pod of that name: either way ours is over.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Outcome::Released(Ok(())),
        Err(error) => Outcome::Released(Err(Error::api("delete pod")(error))),
    }
}
