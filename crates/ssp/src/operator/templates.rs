//! The common templates in the cluster: those of now as they are rendered, those of an older set deprecated, those for machines
//! that the cluster cannot run taken away.

use std::collections::BTreeMap;

use http::{Method, Request, header};
use kit::{apply, operator};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, ObjectMeta};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::MANAGER;
use super::architectures::Architectures;
use super::context::Context;
use super::manifests::{self, TEMPLATING};
use crate::templates::system::Architecture;
use crate::templates::{VERSION, all, object};
use crate::{Error, words};

/// What the objects are of.
pub const OPERAND: &str = "common-templates";
/// Templates that are asked for at once.
const PAGE: u32 = 200;

/// A kind of templates.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Group and version.
    pub api_version: &'static str,
    /// The kind.
    pub kind: &'static str,
    render: fn(&crate::templates::Template, &str, &str) -> Value,
}

/// Both kinds, each made where the cluster serves it.
pub const KINDS: [Kind; 2] = [
    Kind { api_version: "template.kubevirt.io/v1alpha1", kind: "VirtualMachineTemplate", render: object::native },
    Kind { api_version: "template.openshift.io/v1", kind: "Template", render: object::openshift },
];

/// Those of the kinds that the cluster serves.
///
/// # Errors
/// When the API server cannot say.
pub async fn served(client: &Client) -> kube::Result<Vec<Kind>> {
    let mut served = Vec::new();
    for kind in KINDS {
        if operator::serves(client, kind.api_version, &[kind.kind]).await? {
            served.push(kind);
        }
    }
    Ok(served)
}

/// The manifests of all of `kinds`, in `namespace`; `more` are labels of the SSP object.
pub fn render(
    kinds: &[Kind],
    namespace: &str,
    architectures: &Architectures,
    more: &BTreeMap<String, String>,
) -> Vec<Value> {
    let labels = manifests::labels(OPERAND, TEMPLATING, more);
    let each = architectures.all.iter().flat_map(|architecture| all(*architecture, architectures.several));
    each.flat_map(|template| {
        let labels = &labels;
        kinds.iter().map(move |kind| {
            let mut manifest = (kind.render)(&template, namespace, words::IMAGES);
            operator::label(&mut manifest, labels);
            manifest
        })
    })
    .collect()
}

/// What becomes of a template that is there and is not rendered.
#[derive(Clone, Debug, PartialEq)]
enum Old {
    /// It stays, for the machines that were made of it, and nobody is to make others.
    Deprecate(Value),
    Delete,
    Keep,
}

fn old(metadata: &ObjectMeta, namespace: &str, architectures: &Architectures, is_rendered: bool) -> Old {
    let labels = metadata.labels.clone().unwrap_or_default();
    let architecture = labels.get(words::ARCHITECTURE).and_then(|word| Architecture::of(word));
    let here = metadata.namespace.as_deref() == Some(namespace);
    if !here || architecture.is_some_and(|architecture| !architectures.all.contains(&architecture)) {
        return Old::Delete;
    }
    if is_rendered || labels.contains_key(words::DEPRECATED) {
        return Old::Keep;
    }
    let kinds = [words::OS, words::WORKLOAD, words::FLAVOR];
    let offered = labels.keys().filter(|key| kinds.iter().any(|kind| key.starts_with(kind)));
    let mut change: serde_json::Map<String, Value> = offered.map(|key| (key.clone(), Value::Null)).collect();
    change.insert(words::DEPRECATED.to_owned(), json!("true"));
    Old::Deprecate(json!({ "metadata": { "labels": change, "annotations": { (words::DEPRECATED): "true" } } }))
}

/// Deprecates and deletes what `rendered` lacks, once until something else is rendered.
///
/// # Errors
/// When the API server refuses.
pub async fn tidy(
    context: &Context,
    kinds: &[Kind],
    namespace: &str,
    architectures: &Architectures,
    rendered: &[Value],
) -> Result<(), Error> {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.kind).collect();
    let state = format!("{VERSION} {namespace} {architectures:?} {words:?}");
    if context.templates.is_tidied_for(&state) {
        return Ok(());
    }
    let addresses: Vec<String> = rendered.iter().map(apply::address).collect();
    for kind in kinds {
        for metadata in list(&context.client, *kind).await? {
            let address = address(*kind, &metadata);
            match old(&metadata, namespace, architectures, addresses.contains(&address)) {
                Old::Keep => {}
                Old::Delete => apply::delete(&context.client, &address).await?,
                Old::Deprecate(change) => merge(&context.client, &address, &change).await?,
            }
        }
    }
    context.templates.tidied_for(state);
    Ok(())
}

/// Addresses of all templates that this operator has made.
///
/// # Errors
/// When the API server refuses.
pub async fn addresses(client: &Client) -> Result<Vec<String>, Error> {
    let mut all = Vec::new();
    for kind in served(client).await.map_err(Error::api("look for", "templates", ""))? {
        all.extend(list(client, kind).await?.iter().map(|metadata| address(kind, metadata)));
    }
    Ok(all)
}

fn address(kind: Kind, metadata: &ObjectMeta) -> String {
    apply::address(&json!({
        "apiVersion": kind.api_version, "kind": kind.kind,
        "metadata": { "name": metadata.name, "namespace": metadata.namespace },
    }))
}

async fn list(client: &Client, kind: Kind) -> Result<Vec<ObjectMeta>, Error> {
    let (group, version) = kind.api_version.split_once('/').unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind.kind));
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let ours = format!("app.kubernetes.io/managed-by={MANAGER},{}={}", words::TYPE, words::BASE);
    let mut page = ListParams::default().labels(&ours).limit(PAGE);
    let mut all = Vec::new();
    loop {
        let list = api.list_metadata(&page).await.map_err(Error::api("list", kind.kind, ""))?;
        all.extend(list.items.into_iter().map(|object| object.metadata));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}

async fn merge(client: &Client, address: &str, change: &Value) -> Result<(), Error> {
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(address)
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .body(change.to_string().into_bytes())
        .map_err(Error::setup("ask the API server"))?;
    match client.request::<serde::de::IgnoredAny>(request).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => done.map(drop).map_err(Error::api("patch", "template", address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(namespace: &str, labels: Value) -> ObjectMeta {
        serde_json::from_value(json!({ "name": "t", "namespace": namespace, "labels": labels })).unwrap()
    }

    #[test]
    fn an_older_template_stays_and_is_offered_no_more() {
        let here = Architectures { several: false, all: vec![Architecture::Amd64] };
        let labels = json!({
            "os.template.kubevirt.io/rhel6.0": "true", "workload.template.kubevirt.io/server": "true",
            "flavor.template.kubevirt.io/tiny": "true", "template.kubevirt.io/type": "base",
        });
        let change = json!({ "metadata": {
            "labels": {
                "os.template.kubevirt.io/rhel6.0": null, "workload.template.kubevirt.io/server": null,
                "flavor.template.kubevirt.io/tiny": null, "template.kubevirt.io/deprecated": "true",
            },
            "annotations": { "template.kubevirt.io/deprecated": "true" },
        } });
        assert_eq!(old(&metadata("ns", labels.clone()), "ns", &here, false), Old::Deprecate(change));
        assert_eq!(old(&metadata("ns", labels.clone()), "ns", &here, true), Old::Keep);
        assert_eq!(old(&metadata("other", labels), "ns", &here, true), Old::Delete);
        let done = json!({ "template.kubevirt.io/deprecated": "true" });
        assert_eq!(old(&metadata("ns", done), "ns", &here, false), Old::Keep);
        let foreign = json!({ "template.kubevirt.io/architecture": "s390x" });
        assert_eq!(old(&metadata("ns", foreign), "ns", &here, false), Old::Delete);
    }
}
