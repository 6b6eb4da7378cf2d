//! Starting one container: its environment, devices and mounts, then create, start, and the postStart hook.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use rpc::cri;

use crate::context::{Context, about_container};
use crate::device_claims::{self, cdi};
use crate::error::Error;
use crate::images::{ImageInfo, Waiting};
use crate::pod::{container, environment, hooks, mounts};
use crate::runtime::label;
use crate::volumes::Mounted;
use crate::{resources, sandbox};

/// What a start needs besides the pod.
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) sandbox: String,
    pub(crate) sandbox_attempt: u32,
    pub(crate) pod_ips: Vec<String>,
    pub(crate) image: ImageInfo,
    pub(crate) mounted: Mounted,
    /// The id of the container whose processes an ephemeral one is to see.
    pub(crate) target: Option<String>,
}

/// Creates and starts the container.
pub(crate) async fn start(context: Arc<Context>, pod: Arc<Pod>, start: Start) -> Result<(), Waiting> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let about = about_container(&pod, &start.name);
    let Some(wanted) = named(spec, &start.name) else { return Ok(()) };
    let wanted = &*wanted;
    let fail = |reason: &str, message: String| {
        context.events.warning(&about, "Failed", format!("Error: {message}"));
        Waiting { reason: reason.to_owned(), message }
    };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if let Some(guard) = context.config.guard.as_ref().filter(|_| spec.host_network != Some(true)) {
        let addresses: Vec<_> = start.pod_ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        guard.protect(&pod, &addresses).await;
    }
    let id = async {
        if let Some(refusal) = container::root_refusal(spec, wanted, start.image.uid, &start.image.user) {
            return Err((
                "CreateContainerConfigError",
                format!("{refusal} (pod: \"{}\", container: {})", full_name(&pod), start.name),
            ));
        }
        let env = environment::of(&context, &pod, wanted, &start.pod_ips)
            .await
            .map_err(|w| ("CreateContainerConfigError", w.message))?;
        let devices = context
            .devices
            .allocate(uid, &start.name, &resources::extended(wanted))
            .await
            .map_err(|error| ("CreateContainerConfigError", kit::Chain(&error).to_string()))?;
        let claimed = device_claims::for_container(&context, &pod, wanted)
            .and_then(|ids| cdi::edits(&context.config.cdi_dirs, &ids))
            .map_err(|error| ("CreateContainerConfigError", kit::Chain(&error).to_string()))?;
        let (mut mounts, log) =
            mounts::make(&context, &pod, wanted, start.attempt, &start.mounted, &env, &start.pod_ips)
                .map_err(|error| ("CreateContainerConfigError", kit::Chain(&error).to_string()))?;
        mounts.extend(devices.mounts);
        mounts.extend(claimed.mounts);
        let mapped = mounts::devices(spec, wanted, &start.mounted)
            .map_err(|error| ("CreateContainerConfigError", kit::Chain(&error).to_string()))?;
        let mut annotations = HashMap::from([(label::TERMINATION_LOG.to_owned(), log.display().to_string())]);
        annotations.extend(devices.annotations);
        let resolved = container::Resolved {
            attempt: start.attempt,
            image: start.image.id.clone(),
            env: env.into_iter().chain(devices.envs).chain(claimed.env).collect(),
            mounts,
            devices: devices.devices.into_iter().chain(claimed.devices).chain(mapped).collect(),
            annotations,
            resources: resources::of_container(spec, wanted, context.amounts.memory),
        };
        let mut config = container::config(&pod, wanted, resolved, &context.config.root);
        own_user(&mut config, spec, wanted, &start.image);
        if let Some(target) = &start.target {
            join_processes(&mut config, target);
        }
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: start.sandbox.clone(),
            config: Some(config),
            sandbox_config: Some(sandbox::config(&pod, start.sandbox_attempt, &context.surroundings())),
        };
        // Before it is there, so that one that is there has what is written down.
        let size = wanted.resources.clone().unwrap_or_default();
        let noted = context.allocations.applied(uid, &start.name, &size);
        noted.map_err(|error| ("CreateContainerError", error.user_message()))?;
        let created = context.runtime.cri().create_container(request).await;
        let created = created
            .map_err(Error::runtime("create container"))
            .map_err(|error| ("CreateContainerError", error.user_message()))?;
        Ok(created.into_inner().container_id)
    }
    .await
    .map_err(|(reason, message): (&str, String)| fail(reason, message))?;
    context.runtime.own(&id, uid);
    context.events.normal(&about, "Created", format!("Created container: {}", start.name));
    let request = cri::StartContainerRequest { container_id: id.clone() };
    let started = context.runtime.cri().start_container(request).await.map_err(Error::runtime("start container"));
    started.map_err(|error| fail("RunContainerError", error.user_message()))?;
    context.events.normal(&about, "Started", format!("Started container {}", start.name));
    let hook = wanted.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
    if let Some(hook) = hook
        && let Err(message) = hooks::run(&context, wanted, &id, hook, start.pod_ips.first().map(String::as_str)).await
    {
        context.events.warning(&about, "FailedPostStartHook", format!("PostStartHook failed: {message}"));
        context.events.normal(&about, "Killing", "FailedPostStartHook");
        if let Err(error) = context.runtime.stop_container(&id, crate::pod::plan::grace_period(spec)).await {
            tracing::warn!(container = id, error = %kit::Chain(&error), "a container whose hook failed was not stopped");
        }
        return Err(Waiting { reason: "PostStartHookError".into(), message });
    }
    Ok(())
}

/// The runtime refuses a group without a user: then the user is the image's.
fn own_user(config: &mut cri::ContainerConfig, spec: &PodSpec, container: &Container, image: &ImageInfo) {
    let group = container.security_context.as_ref().and_then(|c| c.run_as_group);
    let group = group.or(spec.security_context.as_ref().and_then(|c| c.run_as_group));
    let Some(security) = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut()) else { return };
    if let (Some(group), None) = (group, &security.run_as_user) {
        security.run_as_group = Some(cri::Int64Value { value: group });
        match image.uid {
            None if !image.user.is_empty() => security.run_as_username.clone_from(&image.user),
            uid => security.run_as_user = Some(cri::Int64Value { value: uid.unwrap_or(0) }),
        }
    }
}

/// The container runs among the processes of another one.
fn join_processes(config: &mut cri::ContainerConfig, target: &str) {
    let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
    if let Some(options) = security.and_then(|security| security.namespace_options.as_mut()) {
        options.pid = cri::NamespaceMode::Target as i32;
        target.clone_into(&mut options.target_id);
    }
}

/// The container called `name`, of whichever kind.
pub(crate) fn named<'a>(spec: &'a PodSpec, name: &str) -> Option<Cow<'a, Container>> {
    let lasting = spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name);
    lasting.map(Cow::Borrowed).or_else(|| {
        let passing = spec.ephemeral_containers.iter().flatten().find(|c| c.name == name)?;
        container::ephemeral(passing).map(Cow::Owned)
    })
}

fn full_name(pod: &Pod) -> String {
    let (name, namespace, uid) = sandbox::names(pod);
    format!("{name}_{namespace}({uid})")
}
