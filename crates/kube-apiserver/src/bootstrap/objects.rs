//! The objects every cluster has from its first second.

use serde_json::{Value, json};

use apimachinery::error::ApiError;
use kube_store::{Key, WriteError};

use crate::ApiServer;
use crate::strategy;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates what is missing.
pub(crate) async fn run(server: &ApiServer) -> Result<(), ApiError> {
    for name in NAMESPACES {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ensure(server, "", "namespaces", "", namespace).await?;
        default_account(server, name).await?;
    }
    service_range(server).await?;
    kubernetes_service(server).await
}

/// The ranges of cluster IPs, for those who look.
async fn service_range(server: &ApiServer) -> Result<(), ApiError> {
    let ranges: Vec<String> = server.config().service_cidrs.iter().map(ToString::to_string).collect();
    let now = kit::clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let ready = json!({"type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready",
        "lastTransitionTime": now});
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ranges}, "status": {"conditions": [ready]}});
    ensure(server, "networking.k8s.io", "servicecidrs", "", object).await
}

/// The `default` service account of a namespace: there with the namespace, so that no pod is refused for its absence.
pub(crate) async fn default_account(server: &ApiServer, namespace: &str) -> Result<(), ApiError> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    ensure(server, "", "serviceaccounts", namespace, account).await
}

/// The Service pods reach this server by: the first address of the primary range, led to where the server listens.
async fn kubernetes_service(server: &ApiServer) -> Result<(), ApiError> {
    let Some(address) = server.config().service_cidrs.first().and_then(|range| range.hosts().next()) else {
        return Ok(());
    };
    let advertise = server.config().advertise;
    let port = advertise.map_or(6443, |address| address.port());
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "labels": labels},
        "spec": {"clusterIP": address.to_string(), "ports": [{"name": "https", "port": 443, "targetPort": port}]}});
    ensure(server, "", "services", "default", service).await?;
    let Some(advertise) = advertise else { return Ok(()) };
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": advertise.ip().to_string()}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]});
    replace(server, "", "endpoints", "default", endpoints).await?;
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if advertise.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [advertise.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}]});
    replace(server, "discovery.k8s.io", "endpointslices", "default", slice).await
}

/// Creates an object, or makes an old one say the same.
async fn replace(
    server: &ApiServer,
    group: &str,
    plural: &str,
    namespace: &str,
    object: Value,
) -> Result<(), ApiError> {
    ensure(server, group, plural, namespace, object.clone()).await?;
    let storage = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let Some(stored) = server.store().get(&storage, namespace, name) else { return Ok(()) };
    let mut wanted = stored.value();
    for (key, value) in object.as_object().into_iter().flatten().filter(|(key, _)| *key != "metadata") {
        wanted[key.as_str()] = value.clone();
    }
    if wanted != stored.value() {
        // Nobody else writes these; a lost race is another start of the same server.
        let _ = server.store().update(stored.key.clone(), wanted, stored.revision).await;
    }
    Ok(())
}

/// Creates an object unless it exists, as the server itself: no admission.
pub(crate) async fn ensure(
    server: &ApiServer,
    group: &str,
    plural: &str,
    namespace: &str,
    mut object: Value,
) -> Result<(), ApiError> {
    let registry = server.registry();
    let Some(resource) = registry.resources.iter().find(|r| r.group == group && r.plural == plural) else {
        return Err(ApiError::internal(format!("{plural} is not served")));
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if server.store().get(&resource.storage_key(), namespace, &name).is_some() {
        return Ok(());
    }
    crate::stamp::stamp_new(resource, &mut object, namespace);
    apimachinery::schema::defaults::apply(&resource.schema, &mut object);
    strategy::set_defaults(resource, &mut object);
    strategy::prepare_create(resource, &mut object);
    strategy::settle(server, resource, &mut object);
    let reservation = strategy::allocate(server, resource, None, &mut object, false).await?;
    let outcome = server.store().create(Key::new(&resource.storage_key(), namespace, &name), object).await;
    drop(reservation);
    match outcome {
        Ok(_) | Err(WriteError::Exists) => Ok(()),
        Err(error) => Err(ApiError::internal(format!("{plural} {name}: {error}"))),
    }
}
