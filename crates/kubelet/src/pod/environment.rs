//! Fetching what a container's environment refers to, then resolving it.

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use kube::Api;

use crate::context::Context;
use crate::error::Error;
use crate::fields;
use crate::images::Waiting;
use crate::pod::env::{self, Inputs, Sources};

/// The container's environment, or why it cannot be made.
pub(crate) async fn of(
    context: &Context,
    pod: &Pod,
    container: &Container,
    pod_ips: &[String],
) -> Result<Vec<(String, String)>, Waiting> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let (mut config_maps, mut secrets) = (Sources::new(), Sources::new());
    for source in container.env_from.iter().flatten() {
        config_maps.extend(source.config_map_ref.iter().map(|r| (r.name.clone(), None)));
        secrets.extend(source.secret_ref.iter().map(|r| (r.name.clone(), None)));
    }
    for from in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        config_maps.extend(from.config_map_key_ref.iter().map(|r| (r.name.clone(), None)));
        secrets.extend(from.secret_key_ref.iter().map(|r| (r.name.clone(), None)));
    }
    fetch(context, namespace, &mut config_maps, &mut secrets)
        .await
        .map_err(|error| refused(kit::Chain(&error).to_string()))?;
    let host_ips = context.node_ips();
    let spec = pod.spec.as_ref();
    let inputs = Inputs {
        pod,
        config_maps: &config_maps,
        secrets: &secrets,
        services: &context.visible_services(namespace),
        field: &|path| fields::field(pod, path, pod_ips, &host_ips),
        resource: &|name, resource, divisor| {
            let other = name.filter(|name| *name != container.name);
            let named = other.map_or(Some(container), |name| {
                let mut all =
                    spec.into_iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
                all.find(|c| c.name == name)
            })?;
            fields::resource(named, resource, divisor, &context.amounts)
        },
    };
    env::resolve(container, &inputs).map_err(refused)
}

fn refused(message: String) -> Waiting {
    Waiting { reason: "CreateContainerConfigError".into(), message }
}

async fn fetch(context: &Context, namespace: &str, maps: &mut Sources, secrets: &mut Sources) -> Result<(), Error> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    for (name, data) in maps.iter_mut() {
        let found = api.get_opt(name).await.map_err(Error::api(format!("get configmap {name:?}")))?;
        *data = found.map(|found| found.data.unwrap_or_default());
    }
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    for (name, data) in secrets.iter_mut() {
        let found = api.get_opt(name).await.map_err(Error::api(format!("get secret {name:?}")))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        *data = found.map(|found| found.data.unwrap_or_default().into_iter().map(|(k, v)| (k, text(&v.0))).collect());
    }
    Ok(())
}
