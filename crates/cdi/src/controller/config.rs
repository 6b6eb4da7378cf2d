//! CDIConfig: what the CDI object decides, and in its status what that comes to.
//!
//! ```text
//!  CDI spec.config ─▶ CDIConfig spec ─▶ status: classes, ingresses, routes, OpenShift's proxy ─▶ what workers and clients are told
//! ```

pub mod proxy;
pub mod status;

use api::cdi::constants::{self, annotation};
use api::cdi::v1beta1::{CDI, CDIConfig, CDIConfigSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kit::queue::Next;
use kit::store::Key;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::Error;
use crate::controller::context::{Context, annotation_of};
use crate::controller::labels::labels;
use crate::controller::{worker, write};

const PROXY: &str = "cdi-uploadproxy";
const PROXY_CA: &str = "cdi-uploadproxy-signer-bundle";

/// Brings the CDIConfig in line.
pub async fn sync(context: &Context) -> Result<Next, Error> {
    let cdi = context.cdi().filter(|cdi| cdi.metadata.deletion_timestamp.is_none());
    let Some(mut config) = context.configs.get(&Key::new("", constants::CONFIG)) else {
        return match cdi {
            Some(cdi) => create(context, &cdi).await,
            None => Ok(Next::Wait),
        };
    };
    let mut patch = json!({ "metadata": { "resourceVersion": config.resource_version() } });
    let mut differs = false;
    if let Some(wanted) = cdi.as_ref().and_then(decided)
        && wanted != config.spec
    {
        patch["spec"] = write::replacing(&config.spec, &wanted);
        config.spec = wanted;
        differs = true;
    }
    let found = look(context, &config).await?;
    let status = status::status(&config, &context.classes.list(), found);
    if config.status.as_deref() != Some(&status) {
        // The kind has no status subresource.
        patch["status"] = write::replacing(&config.status, &status);
        differs = true;
    }
    if differs {
        let api: Api<CDIConfig> = Api::all(context.client.clone());
        let done = api.patch(constants::CONFIG, &PatchParams::default(), &Patch::Merge(&patch)).await;
        done.map_err(Error::api("change", "CDIConfig", constants::CONFIG))?;
    }
    Ok(Next::After(std::time::Duration::from_secs(60)))
}

/// What the CDI object decides, once it is the one that does.
fn decided(cdi: &CDI) -> Option<CDIConfigSpec> {
    annotation_of(cdi, annotation::CONFIG_AUTHORITY)?;
    Some(cdi.spec.config.as_deref().cloned().unwrap_or_default())
}

async fn create(context: &Context, cdi: &CDI) -> Result<Next, Error> {
    let made = json!({
        "metadata": { "name": constants::CONFIG, "labels": labels(""), "ownerReferences": worker::owned_by(cdi) },
        "spec": decided(cdi).unwrap_or_default(),
    });
    let made: CDIConfig = serde_json::from_value(made).map_err(Error::setup("render the CDIConfig"))?;
    let api: Api<CDIConfig> = Api::all(context.client.clone());
    match api.create(&PostParams::default(), &made).await {
        // The watch brings it.
        Ok(_) => Ok(Next::Wait),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(Next::Wait),
        Err(error) => Err(Error::api("create", "CDIConfig", constants::CONFIG)(error)),
    }
}

/// What the cluster says that the configuration does not.
async fn look(context: &Context, config: &CDIConfig) -> Result<status::Found, Error> {
    let (client, namespace) = (&context.client, &context.namespace);
    let ingresses: Api<Ingress> = Api::namespaced(client.clone(), namespace);
    let ingresses = ingresses.list(&ListParams::default()).await.map_err(Error::api("list", "Ingress", namespace))?;
    let routes = of_openshift(context, "route.openshift.io", "Route", Some(namespace)).await?;
    let bundles: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let bundle = bundles.get_opt(PROXY_CA).await.map_err(Error::api("read", "ConfigMap", PROXY_CA))?;
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let exposed = services.get_opt(PROXY).await.map_err(Error::api("read", "Service", PROXY))?;
    Ok(status::Found {
        url: status::url(config, &ingresses.items, &routes, exposed.as_ref()),
        bundle: bundle.and_then(|map| map.data?.remove("ca-bundle.crt")),
        proxy: if config.spec.import_proxy.is_some() { None } else { proxy::of_cluster(context).await? },
    })
}

/// Objects of a kind that only OpenShift has; nothing elsewhere.
async fn of_openshift(
    context: &Context,
    group: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Result<Vec<Value>, Error> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, &resource),
        None => Api::all_with(context.client.clone(), &resource),
    };
    match api.list(&ListParams::default()).await {
        Ok(found) => Ok(found.items.into_iter().map(|object| json!(object)).collect()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(Error::api("list", kind, namespace.unwrap_or_default())(error)),
    }
}
