//! Finds what a machine names: the revision that was kept for it, or the object.

use api::kubevirt::v1::{InstancetypeStatusRef, VirtualMachine};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::{Chosen, Family, GROUP, Matcher, VERSION, WrongKind, revision};

/// An object that a machine names could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none.
    #[error("{resource}.{GROUP} \"{name}\" not found")]
    Missing {
        /// The kind.
        resource: String,
        /// Its name.
        name: String,
    },
    /// There is no such ControllerRevision.
    #[error("controllerrevisions.apps \"{0}\" not found")]
    NoRevision(String),
    /// The ControllerRevision keeps something else.
    #[error("controllerrevisions.apps \"{revision}\" keeps no {kind} called \"{name}\"")]
    Unfit {
        /// The revision.
        revision: String,
        /// What was asked for.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The reference is to another kind.
    #[error(transparent)]
    Kind(#[from] WrongKind),
    /// Nothing is named.
    #[error("spec.{0} names no object")]
    Nameless(&'static str),
    /// The API server could not be asked.
    #[error("cannot read what spec.{field} names: {name}")]
    Api {
        /// `instancetype` or `preference`.
        field: &'static str,
        /// The object or revision.
        name: String,
        /// Why.
        #[source]
        source: kube::Error,
    },
}

impl Error {
    /// True when there is no such object, and asking again gives the same answer until somebody makes one.
    pub fn is_absent(&self) -> bool {
        !matches!(self, Error::Api { .. })
    }
}

/// An object that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// As the API server has it, or as its revision keeps it.
    pub object: Value,
    /// The revision that keeps it, where there is one.
    pub revision: Option<String>,
}

/// The revision that the status of `vm` names for `family`, if it is of the object that `matcher` names.
pub fn kept<'a>(vm: &'a VirtualMachine, family: Family, matcher: &Matcher) -> Option<&'a str> {
    let held = held(vm, family)?;
    let same_kind = {
        let of = |kind: &str| Matcher { kind: kind.to_owned(), ..Matcher::default() }.of_cluster(family).ok();
        of(held.kind.as_deref().unwrap_or_default()) == of(&matcher.kind)
    };
    let same = held.name.as_deref() == Some(matcher.name.as_str()) && same_kind;
    let name = held.controller_revision_ref.as_ref()?.name.as_deref();
    name.filter(|name| same && !name.is_empty())
}

/// What the status of `vm` says of `family`.
pub fn held(vm: &VirtualMachine, family: Family) -> Option<&InstancetypeStatusRef> {
    let status = vm.status.as_ref()?;
    match family {
        Family::Instancetype => status.instancetype_ref.as_ref(),
        Family::Preference => status.preference_ref.as_ref(),
    }
}

/// What `vm`, a machine of `namespace`, names of `family`; none when it names nothing. In this order: the revision that its spec names,
/// the one that its status names, the object.
///
/// # Errors
/// When there is no such object, or it cannot be asked for.
pub async fn named(
    client: &Client,
    namespace: &str,
    vm: &VirtualMachine,
    family: Family,
) -> Result<Option<Found>, Error> {
    let Some(matcher) = family.named_by(&vm.spec) else { return Ok(None) };
    if matcher.name.is_empty() {
        return Err(Error::Nameless(family.field()));
    }
    let cluster = matcher.of_cluster(family)?;
    let revision = Some(matcher.revision.as_str()).filter(|name| !name.is_empty());
    if let Some(revision) = revision.or_else(|| kept(vm, family, &matcher)) {
        let object = unpacked(client, namespace, revision, family, &matcher).await?;
        return Ok(Some(Found { object, revision: Some(revision.to_owned()) }));
    }
    let object = live(client, namespace, family, cluster, &matcher.name).await?;
    Ok(Some(Found { object, revision: None }))
}

/// The specs of all that `vm` names.
///
/// # Errors
/// When something is not there, or cannot be asked for.
pub async fn all(client: &Client, namespace: &str, vm: &VirtualMachine) -> Result<Chosen, (Family, Error)> {
    let mut chosen = Chosen::default();
    for family in Family::ALL {
        let found = named(client, namespace, vm, family).await.map_err(|error| (family, error))?;
        let spec = found.map(|mut found| found.object["spec"].take());
        match family {
            Family::Instancetype => chosen.instancetype = spec,
            Family::Preference => chosen.preference = spec,
        }
    }
    Ok(chosen)
}

/// The object itself.
///
/// # Errors
/// When there is none, or it cannot be asked for.
pub async fn live(client: &Client, namespace: &str, family: Family, cluster: bool, name: &str) -> Result<Value, Error> {
    let kind = GroupVersionKind::gvk(GROUP, VERSION, family.kind(cluster));
    let resource = ApiResource::from_gvk_with_plural(&kind, &family.plural(cluster));
    let api: Api<DynamicObject> = if cluster {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    };
    match api.get_opt(name).await {
        Ok(Some(mut found)) => {
            found.metadata.managed_fields = None;
            let mut object = json!(found);
            // Objects of a list have no type of their own, nor have some servers' answers.
            object["apiVersion"] = json!(format!("{GROUP}/{VERSION}"));
            object["kind"] = json!(family.kind(cluster));
            Ok(object)
        }
        Ok(None) => Err(Error::Missing { resource: family.plural(cluster), name: name.to_owned() }),
        Err(source) => Err(Error::Api { field: family.field(), name: name.to_owned(), source }),
    }
}

async fn unpacked(
    client: &Client,
    namespace: &str,
    revision: &str,
    family: Family,
    matcher: &Matcher,
) -> Result<Value, Error> {
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(revision).await;
    let found = found.map_err(|source| Error::Api { field: family.field(), name: revision.to_owned(), source })?;
    let found = found.ok_or_else(|| Error::NoRevision(revision.to_owned()))?;
    let cluster = matcher.of_cluster(family)?;
    // Others keep their revisions in this namespace too, and anybody who may write them can write anything into one.
    let is_named = found.labels().get(&revision::label("object-name")) == Some(&matcher.name);
    let object = found.data.map(|data| data.0).unwrap_or_default();
    let fits = is_named && object["kind"] == family.kind(cluster) && object["spec"].is_object();
    let unfit =
        || Error::Unfit { revision: revision.to_owned(), kind: family.kind(cluster), name: matcher.name.clone() };
    fits.then_some(object).ok_or_else(unfit)
}
