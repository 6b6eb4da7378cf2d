//! What this operator deploys itself: what guards the HyperConverged object, whether it is there yet or not (the webhook's certificate,
//! Service and configurations, the conversion of its versions, the policy about its namespace), and, as the object says, the network
//! resources injector and what offers virtctl for download.

mod downloads;
mod hooks;
mod injector;

pub(crate) use hooks::DEFINITION;

use std::time::Duration;

use api::hco::{CertConfig, CertSpan, HyperConverged};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::certs::Leaf;
use kit::keyring::{Keyring, Lifetimes, Span, service_names};
use kit::operator::{self, Phases};
use kit::queue::Next;
use kit::workload::Placement;
use kit::{Chain, apply, clock};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::MANAGER;
use super::context::Context;
use crate::Error;
use crate::downloads::PROGRAM;
use crate::render::Input;
use crate::topology::Topology;

/// The Service in front of the webhook.
pub(super) const SERVICE: &str = "hyperconverged-cluster-webhook-service";
/// The Secret with its certificate.
pub(super) const CERTIFICATE: &str = "hyperconverged-cluster-webhook-service-cert";
/// The ConfigMap with the authorities that verify it.
pub(super) const BUNDLE: &str = "hyperconverged-cluster-webhook-bundle";
/// Key of the bundle in it.
pub(super) const BUNDLE_KEY: &str = "ca-bundle.crt";
/// The Secret with the certificate of the network resources injector.
const INJECTOR_CERTIFICATE: &str = "virt-network-resources-injector-cert";
const AUTHORITY: &str = "hyperconverged-cluster-webhook-signer";
/// How soon a router has chosen a host.
const LOOK: Duration = Duration::from_secs(10);

/// Brings the guard to what the object says.
pub(super) async fn reconcile(context: &Context) -> Next {
    match sync(context).await {
        Ok(again) => Next::After(again),
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "the webhook is not set up");
            Next::Retry
        }
    }
}

async fn sync(context: &Context) -> Result<Duration, Error> {
    let input = &context.input;
    let hco = context.active();
    let config = hco.as_ref().map(|hco| hco.spec.security.cert_config.clone()).unwrap_or_default();
    let ring = keyring(&input.namespace, &config);
    let held = ring.read(&context.client, &input.namespace).await;
    let held = held.map_err(Error::api("read", "certificates", AUTHORITY))?;
    let renewed = ring.plan(&held, clock::now()).map_err(Error::Certificates)?;
    let mut first = ring.manifests(&renewed, &input.namespace, &json!({}));
    first.push(hooks::service(&input.namespace));
    let mut rest = hooks::render(&input.namespace, &renewed.bundle);
    let injector = injector(hco.as_ref(), context, renewed.bundle.clone());
    if let Some(wanted) = &injector {
        let (accounts, others) = operator::accounts_first(injector::render(wanted));
        first.extend(accounts);
        rest.extend(others);
        if context.injectors.list().iter().any(operator::is_rolled_out) {
            rest.push(injector::configuration(wanted));
        }
    }
    let mut again = renewed.again;
    if let Some(wanted) = downloads(hco.as_ref(), context) {
        let (accounts, others) = operator::accounts_first(downloads::render(&wanted));
        first.extend(accounts);
        rest.extend(others);
        let (outside, sooner) = seen_from_outside(context, &renewed.bundle).await?;
        rest.extend(outside);
        again = again.min(sooner);
    } else {
        operator::delete(&context.client, &downloads::addresses(&input.namespace)).await?;
    }
    let owner = owner(context).await?;
    for manifest in first.iter_mut().chain(&mut rest) {
        operator::label(manifest, &labels(&input.version));
        if manifest["metadata"]["namespace"].is_null() {
            manifest["metadata"]["ownerReferences"] = json!([owner]);
        }
    }
    // The definition has labels of its own, and nothing of it but the conversion is this operator's.
    rest.push(hooks::conversion(&input.namespace, &renewed.bundle));
    if injector.is_none() {
        let any = injector::Input { namespace: input.namespace.clone(), ..Default::default() };
        apply::delete(&context.client, &apply::address(&injector::configuration(&any))).await?;
        let addresses: Vec<String> = injector::render(&any).iter().map(apply::address).collect();
        operator::delete(&context.client, &addresses).await?;
    }
    let phases = Phases { first: &first, definitions: &[], rest: &rest };
    operator::install(&context.client, &context.applied, phases).await?;
    Ok(again)
}

/// What makes the downloads seen from outside on OpenShift, and when to look again for the host that its router chooses.
async fn seen_from_outside(context: &Context, bundle: &str) -> Result<(Vec<Value>, Duration), Error> {
    let client = &context.client;
    let serves = async |(version, kind): (&'static str, &'static str)| {
        operator::serves(client, version, &[kind]).await.map_err(Error::api("look for", version, kind))
    };
    let mut out = Vec::new();
    if !serves(downloads::ROUTE).await? {
        return Ok((out, Duration::MAX));
    }
    let route = downloads::route(&context.input.namespace, bundle);
    let known = GroupVersionKind::gvk("route.openshift.io", "v1", "Route");
    let routes: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), &context.input.namespace, &ApiResource::from_gvk(&known));
    let held = routes.get_opt(PROGRAM).await.map_err(Error::api("get", "Route", PROGRAM))?;
    out.push(route);
    let Some(host) = held.and_then(|route| downloads::host(&route.data)) else { return Ok((out, LOOK)) };
    if serves(downloads::OFFER).await? {
        out.push(downloads::offer(&host));
    }
    Ok((out, Duration::MAX))
}

/// What the server of downloads is made from; none while there is no object.
fn downloads(hco: Option<&HyperConverged>, context: &Context) -> Option<downloads::Input> {
    let hco = hco.filter(|hco| hco.metadata.deletion_timestamp.is_none())?;
    let input = &context.input;
    Some(downloads::Input { namespace: input.namespace.clone(), image: input.image.clone(), placement: infra(hco) })
}

/// Where what is no part of a node's own runs.
fn infra(hco: &HyperConverged) -> Placement {
    let infra = hco.spec.deployment.node_placements.infra.clone().unwrap_or_default();
    Placement {
        node_selector: infra.node_selector,
        affinity: json!(infra.affinity),
        tolerations: json!(infra.tolerations),
    }
}

/// The definition of the object owns what lies in no namespace: nothing is left to guard when it is gone, and no operator to take it away.
async fn owner(context: &Context) -> Result<Value, Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    let found = definitions.get_metadata(DEFINITION).await;
    let uid = found.map_err(Error::api("get", "CustomResourceDefinition", DEFINITION))?.metadata.uid;
    Ok(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "name": DEFINITION, "uid": uid,
    }))
}

/// What the injector is made from; none where it is not wanted.
fn injector(hco: Option<&HyperConverged>, context: &Context, bundle: String) -> Option<injector::Input> {
    let hco = hco.filter(|hco| hco.metadata.deletion_timestamp.is_none())?;
    let deployment = &hco.spec.deployment;
    if deployment.deploy_network_resources_injector == Some(false) {
        return None;
    }
    let topology = Topology::of(&context.nodes.list());
    Some(injector::Input {
        namespace: context.input.namespace.clone(),
        image: context.input.image.clone(),
        bundle,
        replicas: if topology.has_one_place_for_infra() { 1 } else { 2 },
        placement: infra(hco),
    })
}

fn labels(version: &str) -> Value {
    json!({
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/part-of": "hyperconverged-cluster",
        "app.kubernetes.io/component": "deployment",
        "app.kubernetes.io/version": version,
    })
}

/// The conversion as it is installed: nobody vouches for the webhook yet.
#[cfg(test)]
pub(super) fn conversion(namespace: &str) -> Value {
    hooks::conversion(namespace, "")
}

/// An object at least of every kind that is applied, for what watches them.
pub(super) fn every_kind(input: &Input) -> Vec<Value> {
    let metadata = json!({ "name": CERTIFICATE, "namespace": input.namespace });
    let mut all = hooks::render(&input.namespace, "");
    let any = injector::Input { namespace: input.namespace.clone(), ..Default::default() };
    all.extend(injector::render(&any));
    all.push(injector::configuration(&any));
    all.extend(downloads::every(&input.namespace));
    all.push(hooks::service(&input.namespace));
    all.extend(["Secret", "ConfigMap"].map(|kind| json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata })));
    all
}

fn keyring(namespace: &str, config: &CertConfig) -> Keyring {
    let leaf = |service: &str, role: &str| {
        let names = service_names(service, namespace);
        Leaf { name: names[0].clone(), role: role.to_owned(), node: None, dns: names.into() }
    };
    Keyring {
        authority: AUTHORITY.to_owned(),
        bundle: BUNDLE.to_owned(),
        bundle_key: BUNDLE_KEY.to_owned(),
        name: AUTHORITY.to_owned(),
        leaves: vec![
            (CERTIFICATE.to_owned(), leaf(SERVICE, "hco-webhook")),
            (INJECTOR_CERTIFICATE.to_owned(), leaf(injector::SERVICE, crate::injector::PROGRAM)),
            (downloads::CERTIFICATE.to_owned(), leaf(PROGRAM, PROGRAM)),
        ],
        lifetimes: lifetimes(config),
    }
}

/// As the object says.
fn lifetimes(config: &CertConfig) -> Lifetimes {
    Lifetimes::asked(span(&config.ca), span(&config.server))
}

fn span(said: &CertSpan) -> Span<'_> {
    Span { duration: said.duration.as_deref(), renew_before: said.renew_before.as_deref() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_rotations_interrupt_nobody() {
        let span = |duration: &str, renew: &str| json!({ "duration": duration, "renewBefore": renew });
        let early = json!({ "ca": span("10m", "9m"), "server": span("10m", "9m10s") });
        for config in [json!({}), early, json!({ "ca": span("10m", "5m"), "server": span("10m", "5m") })] {
            let ring = keyring("ns", &serde_json::from_value(config).unwrap());
            assert_eq!(kit::keyring::rehearse(&ring, 10), Ok(()));
        }
    }
}
