//! The instance type and the preference of a machine: kept in revisions as they were when the machine first named them, told in its status,
//! and written out when it starts.
//!
//! | what the machine names | what is done |
//! |---|---|
//! | a revision | it is used |
//! | the object that its status has a revision of | that revision is used |
//! | another object | a revision is made of it |
//!
//! Under the reference policy `expand` the machine itself is written out instead, under `expandAll` also one that has revisions.

use api::kubevirt::v1::{ControllerRevisionRef, InstancetypeStatusRef, VirtualMachine};
use instancetype::{Chosen, Family, Matcher, find, revision};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kit::Chain;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::instance;
use crate::context::Context;
use crate::error::Error;
use crate::settings::Settings;

/// What the status says of both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct References {
    /// Of the instance type.
    pub instancetype: Option<InstancetypeStatusRef>,
    /// Of the preference.
    pub preference: Option<InstancetypeStatusRef>,
}

impl References {
    /// As the status of `vm` has them.
    pub fn held(vm: &VirtualMachine) -> Self {
        let held = |family| find::held(vm, family).cloned();
        References { instancetype: held(Family::Instancetype), preference: held(Family::Preference) }
    }

    fn of(&self, family: Family) -> Option<&InstancetypeStatusRef> {
        match family {
            Family::Instancetype => self.instancetype.as_ref(),
            Family::Preference => self.preference.as_ref(),
        }
    }

    fn set(&mut self, family: Family, reference: Option<InstancetypeStatusRef>) {
        match family {
            Family::Instancetype => self.instancetype = reference,
            Family::Preference => self.preference = reference,
        }
    }
}

/// What a machine names cannot be had.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The reason of the condition.
    pub(crate) reason: &'static str,
    /// What is wrong.
    pub(crate) message: String,
    /// Nobody tells when this is over: it has to be looked at again.
    pub(crate) told_by_nobody: bool,
}

fn failure(family: Family, error: &find::Error) -> Failure {
    let reason = match family {
        Family::Instancetype => "FailedFindInstancetype",
        Family::Preference => "FailedFindPreference",
    };
    Failure { reason, message: Chain(error).to_string(), told_by_nobody: true }
}

fn store_failure(why: &str) -> Failure {
    let message = format!("error encountered while storing instancetype.kubevirt.io controllerRevisions: {why}");
    Failure { reason: "FailedCreate", message, told_by_nobody: true }
}

/// Keeps what `vm` names, and says where.
pub(crate) async fn keep(context: &Context, vm: &VirtualMachine) -> Result<References, Failure> {
    let mut references = References::default();
    for family in Family::ALL {
        let Some(matcher) = family.named_by(&vm.spec) else { continue };
        let named = Some(matcher.revision.as_str()).filter(|name| !name.is_empty());
        let name = match named.or_else(|| find::kept(vm, family, &matcher)) {
            Some(name) => name.to_owned(),
            None => store(context, vm, family, &matcher).await?,
        };
        references.set(family, Some(reference(&matcher, name)));
    }
    Ok(references)
}

fn reference(matcher: &Matcher, revision: String) -> InstancetypeStatusRef {
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    InstancetypeStatusRef {
        name: text(&matcher.name),
        kind: text(&matcher.kind),
        infer_from_volume: text(&matcher.infer_from_volume),
        infer_from_volume_failure_policy: text(&matcher.infer_from_volume_failure_policy),
        controller_revision_ref: Some(ControllerRevisionRef { name: Some(revision) }),
    }
}

/// Makes a revision of the object that `matcher` names, and returns its name.
async fn store(context: &Context, vm: &VirtualMachine, family: Family, matcher: &Matcher) -> Result<String, Failure> {
    let namespace = vm.namespace().unwrap_or_default();
    let cluster = matcher.of_cluster(family).map_err(|error| failure(family, &error.into()))?;
    let object = find::live(&context.client, &namespace, family, cluster, &matcher.name).await;
    let object = object.map_err(|error| failure(family, &error))?;
    let made = revision::of(instance::owner(vm), &namespace, &object);
    let name = made.name_any();
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    match api.create(&PostParams::default(), &made).await {
        Ok(_) => Ok(name),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let held = api.get(&name).await.map_err(|error| store_failure(&Chain(&error).to_string()))?;
            let fits = revision::is_of(&held, &object);
            let unexpected =
                || store_failure(&format!("found existing ControllerRevision with unexpected data: {name}"));
            fits.then_some(name.clone()).ok_or_else(unexpected)
        }
        Err(error) => Err(store_failure(&Chain(&error).to_string())),
    }
}

/// `vm` as its status will have it.
fn with_references(vm: &VirtualMachine, references: &References) -> VirtualMachine {
    let mut vm = vm.clone();
    let status = vm.status.get_or_insert_default();
    status.instancetype_ref.clone_from(&references.instancetype);
    status.preference_ref.clone_from(&references.preference);
    vm
}

/// `vm` with the revisions in its spec: what it is started with, to be compared later.
pub(crate) fn pinned(vm: &VirtualMachine, references: &References) -> VirtualMachine {
    let mut vm = vm.clone();
    let name = |family| references.of(family)?.controller_revision_ref.as_ref()?.name.clone();
    if let Some(matcher) = &mut vm.spec.instancetype {
        matcher.revision_name = name(Family::Instancetype);
    }
    if let Some(matcher) = &mut vm.spec.preference {
        matcher.revision_name = name(Family::Preference);
    }
    vm
}

/// `vm` with all that it names in its template.
pub(crate) async fn written_out(
    context: &Context,
    vm: &VirtualMachine,
    references: &References,
) -> Result<VirtualMachine, Failure> {
    if vm.spec.instancetype.is_none() && vm.spec.preference.is_none() {
        return Ok(vm.clone());
    }
    let namespace = vm.namespace().unwrap_or_default();
    let found = find::all(&context.client, &namespace, &with_references(vm, references)).await;
    let chosen = found.map_err(|(family, error)| failure(family, &error))?;
    let mut whole = expanded(vm, &chosen, &context.settings())?;
    let metadata = whole.spec.template.metadata.get_or_insert_default();
    for (key, value) in annotations(vm) {
        metadata.annotations.get_or_insert_default().insert(key, value);
    }
    Ok(whole)
}

/// `vm`, of this namespace, with the values of what it names in their place: what it is where those objects are not.
pub(crate) async fn alone(context: &Context, namespace: &str, vm: &VirtualMachine) -> Result<VirtualMachine, Failure> {
    if vm.spec.instancetype.is_none() && vm.spec.preference.is_none() {
        return Ok(vm.clone());
    }
    let found = find::all(&context.client, namespace, vm).await;
    let chosen = found.map_err(|(family, error)| failure(family, &error))?;
    expanded(vm, &chosen, &context.settings())
}

fn expanded(vm: &VirtualMachine, chosen: &Chosen, settings: &Settings) -> Result<VirtualMachine, Failure> {
    let unreadable =
        |error: serde_json::Error| Failure { reason: "FailedCreate", message: error.to_string(), told_by_nobody: true };
    let machine: Value = serde_json::to_value(vm).map_err(unreadable)?;
    let conflicts = instancetype::conflicts(&machine, chosen);
    if !conflicts.is_empty() {
        let paths = conflicts.join(", ");
        let message = format!("VMI conflicts with instancetype spec in fields: [{paths}]");
        return Err(Failure { reason: "FailedCreate", message, told_by_nobody: false });
    }
    let whole = instancetype::expand(machine, chosen, &settings.pod_network_binding);
    serde_json::from_value(whole).map_err(unreadable)
}

/// What an instance says of what its machine chose.
fn annotations(vm: &VirtualMachine) -> Vec<(String, String)> {
    let named = |family: Family| {
        let matcher = family.named_by(&vm.spec)?;
        let scope = if matcher.of_cluster(family).ok()? { "cluster-" } else { "" };
        Some((format!("kubevirt.io/{scope}{}-name", family.field()), matcher.name))
    };
    Family::ALL.into_iter().filter_map(named).collect()
}

/// Whether machines are written out under a reference policy, those with no revision yet being `new`.
fn dissolves(policy: &str, new: bool) -> bool {
    match policy {
        "expand" => new,
        "expandAll" => true,
        _ => false,
    }
}

/// Replaces what `vm` names by its values, where the administrator wants machines without references. True when the machine was written.
pub(crate) async fn dissolve(context: &Context, vm: &VirtualMachine) -> Result<bool, Result<Failure, Error>> {
    // Most machines name nothing, and every pass over every machine comes by here.
    if vm.spec.instancetype.is_none() && vm.spec.preference.is_none() {
        return Ok(false);
    }
    let settings = context.settings();
    let kept = |family: Family| {
        let matcher = family.named_by(&vm.spec)?;
        let named = Some(matcher.revision.as_str()).filter(|name| !name.is_empty());
        named.or_else(|| find::kept(vm, family, &matcher)).map(str::to_owned)
    };
    let revisions: Vec<String> = Family::ALL.into_iter().filter_map(kept).collect();
    if !dissolves(&settings.reference_policy, revisions.is_empty()) {
        return Ok(false);
    }
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let whole = alone(context, &namespace, vm).await.map_err(Ok)?;
    let machines: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    machines
        .replace(&name, &PostParams::default(), &whole)
        .await
        .map_err(|error| Err(Error::api("write out", "virtualmachine", &namespace, &name)(error)))?;
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    for revision in revisions {
        // Whoever named a revision of their own keeps it.
        let own = api.get_opt(&revision).await.ok().flatten().is_some_and(|held| {
            held.owner_references().iter().any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref())
        });
        if own && let Err(error) = api.delete(&revision, &DeleteParams::default()).await {
            tracing::debug!(revision, error = %Chain(&error), "revision of a machine without references not deleted");
        }
    }
    Ok(true)
}

/// Whether a machine that was started as `started` says now chooses something else.
pub(crate) fn differs(started: &Value, vm: &VirtualMachine, references: &References) -> bool {
    let now = json!(pinned(vm, references).spec);
    let name = |spec: &Value, family: Family| {
        let matcher = &spec[family.field()];
        matcher["revisionName"].as_str().or_else(|| matcher["name"].as_str()).map(str::to_owned)
    };
    Family::ALL.into_iter().any(|family| name(started, family) != name(&now, family))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither what does not exist yet, nor an API server that did not answer, is the end of it.
    #[test]
    fn whatever_cannot_be_found_is_looked_for_again() {
        let unanswered = kube::Error::Service("the connection was cut".into());
        let unanswered = find::Error::Api { field: "preference", name: "linux".to_owned(), source: unanswered };
        let absent = find::Error::NoRevision("gone".to_owned());
        for error in [unanswered, absent] {
            assert!(failure(Family::Preference, &error).told_by_nobody, "{error}");
        }
    }

    #[test]
    fn machines_keep_their_references_unless_the_policy_says_otherwise() {
        let check = |policy: &str, of_new: bool, of_old: bool| {
            assert_eq!((dissolves(policy, true), dissolves(policy, false)), (of_new, of_old), "{policy}");
        };
        check("reference", false, false);
        check("expand", true, false);
        check("expandAll", true, true);
    }
}
