//! What becomes of a VirtualMachineTemplateRequest, given what was made for it. Pure.
//!
//! ```text
//! snapshot of the machine -> copies of its disks beside the request -> template -> disks handed over, snapshot deleted -> Ready
//! ```
//!
//! `Progressing` is false once nothing more is done: with `Ready` true, or for good without.

use std::collections::BTreeMap;
use std::time::Duration;

use api::cdi::v1beta1::DataVolume;
use api::snapshot::v1beta1::{VirtualMachineSnapshot, VirtualMachineSnapshotContent, VirtualMachineSnapshotSpec};
use api::template::VirtualMachineTemplate;
use api::template::request::{REQUEST_UID, Status, VirtualMachineTemplateRequest};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LocalObjectReference, TypedLocalObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::ResourceExt;
use meta::conditions;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::machine;

const READY: &str = "Ready";
const PROGRESSING: &str = "Progressing";
/// The most characters of a name that is a label's value too.
const LONGEST: usize = 63;

/// What a request is about, as far as it is there.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The machine is there; known while there is no snapshot.
    pub has_machine: bool,
    /// The template of that name.
    pub template: Option<VirtualMachineTemplate>,
    /// The snapshot of that name.
    pub snapshot: Option<VirtualMachineSnapshot>,
    /// What that holds.
    pub content: Option<VirtualMachineSnapshotContent>,
    /// The copies of disks, by name.
    pub volumes: BTreeMap<String, DataVolume>,
}

/// What to do before the status is written.
#[derive(Clone, Debug)]
pub enum Step {
    /// Nothing.
    None,
    /// Make this snapshot.
    Snapshot(Box<VirtualMachineSnapshot>),
    /// Make these copies of disks.
    Volumes(Vec<DataVolume>),
    /// Make this template.
    Template(Box<VirtualMachineTemplate>),
    /// Give disks to the template, and delete the snapshot.
    HandOver,
}

/// What to do and to say.
#[derive(Clone, Debug)]
pub struct Plan {
    /// To do.
    pub step: Step,
    /// The status afterwards.
    pub status: Status,
}

/// What becomes of a request for which nothing more is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It stays.
    Stays,
    /// It is deleted after so long.
    Goes(Duration),
}

/// Whether nothing more is done for `request`, and what becomes of it then.
pub fn finished(request: &VirtualMachineTemplateRequest, now: Timestamp) -> Option<Rest> {
    let conditions = &request.status.as_ref()?.conditions;
    let find = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
    find(PROGRESSING).filter(|progressing| progressing.status == "False")?;
    let ready = find(READY).filter(|ready| ready.status == "True");
    let (Some(ready), Some(seconds)) = (ready, request.spec.ttl_seconds_after_finished) else {
        return Some(Rest::Stays);
    };
    let since = now.as_second().saturating_sub(ready.last_transition_time.0.as_second());
    let left = i64::from(seconds).saturating_sub(since);
    Some(Rest::Goes(Duration::from_secs(u64::try_from(left).unwrap_or(0))))
}

enum Turn {
    Waits(String),
    Done(String),
    Failed(&'static str, String),
}

/// What to do about `request`.
pub fn plan(request: &VirtualMachineTemplateRequest, world: &World, now: Timestamp) -> Plan {
    let mut status = request.status.clone().unwrap_or_default();
    let (step, turn) = next(request, world, &mut status);
    let (ready, progressing, reason, message) = match turn {
        Turn::Waits(what) => ("False", "True", "Waiting", what),
        Turn::Done(what) => ("True", "False", "Reconciled", what),
        Turn::Failed(reason, why) => ("False", "False", reason, why),
    };
    let mut say = |kind: &str, value: &str, message: &str| {
        conditions::set(&mut status.conditions, kind, value, Some(reason), Some(message), &Time(now));
    };
    say(READY, ready, &message);
    say(PROGRESSING, progressing, "");
    for condition in &mut status.conditions {
        condition.observed_generation = request.metadata.generation;
    }
    Plan { step, status }
}

fn next(request: &VirtualMachineTemplateRequest, world: &World, status: &mut Status) -> (Step, Turn) {
    let failed = |why: String| (Step::None, Turn::Failed("Failed", why));
    let waits = |what: String| (Step::None, Turn::Waits(what));
    let namespace = request.namespace().unwrap_or_default();
    let source = &request.spec.virtual_machine_ref;
    if source.name.is_empty() || source.namespace.is_empty() {
        let why = "spec.virtualMachineRef: name the machine and its namespace".to_owned();
        return (Step::None, Turn::Failed("InvalidConfiguration", why));
    }
    if let Some(template) = &world.template {
        let name = format!("{namespace}/{}", template.name_any());
        if !is_of(request, &template.metadata) {
            return failed(format!(
                "the VirtualMachineTemplate {name} was not made for this request: choose another name"
            ));
        }
        status.template_ref = Some(LocalObjectReference { name: template.name_any() });
        if world.snapshot.as_ref().is_some_and(|snapshot| is_of(request, &snapshot.metadata)) {
            return (Step::HandOver, Turn::Waits(format!("Waiting for the disks to be those of {name}")));
        }
        let ready = template.status.iter().flat_map(|status| &status.conditions).find(|one| one.type_ == READY);
        return match ready {
            Some(ready) if ready.status == "True" => (Step::None, Turn::Done(ready.message.clone())),
            Some(ready) if ready.status == "False" => {
                failed(format!("VirtualMachineTemplate {name}: {}", ready.message))
            }
            _ => waits(format!("Waiting for VirtualMachineTemplate {name} to be ready")),
        };
    }
    let Some(snapshot) = &world.snapshot else {
        if !world.has_machine {
            return failed(format!("there is no VirtualMachine {}/{}", source.namespace, source.name));
        }
        let wanted = snapshot_of(request);
        let what = format!("Waiting for VirtualMachineSnapshot {}/{} to be ready", source.namespace, wanted.name_any());
        return (Step::Snapshot(Box::new(wanted)), Turn::Waits(what));
    };
    let name = format!("VirtualMachineSnapshot {}/{}", source.namespace, snapshot.name_any());
    if !is_of(request, &snapshot.metadata) {
        return failed(format!("the {name} was not made for this request"));
    }
    let told = snapshot.status.clone().unwrap_or_default();
    let is = |kind: &str| told.conditions.iter().any(|one| one.type_ == kind && one.status == "True");
    if told.phase.as_deref() == Some("Failed") || is("Failure") {
        let why = told.error.and_then(|error| error.message).unwrap_or_default();
        return failed(format!("{name} failed{}{why}", if why.is_empty() { "" } else { ": " }));
    }
    if told.ready_to_use != Some(true) {
        return waits(format!("Waiting for {name} to be ready"));
    }
    let Some(content) = &world.content else { return waits(format!("Waiting for the content of {name}")) };
    copies(request, world, content)
}

/// The disks are copied, and the template made once they all are.
fn copies(
    request: &VirtualMachineTemplateRequest,
    world: &World,
    content: &VirtualMachineSnapshotContent,
) -> (Step, Turn) {
    let failed = |why: String| (Step::None, Turn::Failed("Failed", why));
    let namespace = request.namespace().unwrap_or_default();
    let mut missing = Vec::new();
    let mut waited = None;
    for backup in &content.spec.volume_backups {
        let name = volume_name(request, &backup.volume_name);
        let Some(snapshot) = backup.volume_snapshot_name.as_deref().filter(|name| !name.is_empty()) else {
            return failed(format!("the snapshot holds nothing of volume {}", backup.volume_name));
        };
        let Some(volume) = world.volumes.get(&name) else {
            missing.push(copy_of(request, &name, snapshot));
            continue;
        };
        if !is_of(request, &volume.metadata) {
            return failed(format!("the DataVolume {namespace}/{name} was not made for this request"));
        }
        match volume.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Succeeded") => {}
            Some("Failed") => return failed(format!("DataVolume {namespace}/{name} failed")),
            _ => waited = waited.or(Some(name)),
        }
    }
    if let Some(first) = missing.first().map(ResourceExt::name_any).or(waited) {
        let step = if missing.is_empty() { Step::None } else { Step::Volumes(missing) };
        return (step, Turn::Waits(format!("Waiting for DataVolume {namespace}/{first} to be ready")));
    }
    let copies = content.spec.volume_backups.iter().map(|backup| backup.volume_name.as_str());
    let copies = copies.map(|volume| (volume, volume_name(request, volume)));
    match machine::parameterized(content, &namespace, copies) {
        Ok(spec) => {
            let mut labels = request.spec.template_labels.clone();
            labels.insert(REQUEST_UID.to_owned(), request.uid().unwrap_or_default());
            let metadata = ObjectMeta { labels: Some(labels), ..named(&namespace, template_name(request)) };
            let what = format!("Waiting for VirtualMachineTemplate {namespace}/{} to be ready", template_name(request));
            (Step::Template(Box::new(VirtualMachineTemplate { metadata, spec, status: None })), Turn::Waits(what))
        }
        Err(why) => failed(why),
    }
}

/// The template's name.
pub fn template_name(request: &VirtualMachineTemplateRequest) -> String {
    let said = &request.spec.template_name;
    if said.is_empty() { request.name_any() } else { said.clone() }
}

/// The name of the snapshot that is taken for `request`.
pub fn snapshot_name(request: &VirtualMachineTemplateRequest) -> String {
    stable(&request.name_any(), request, "")
}

/// The names of the copies of disks that a snapshot's content calls for.
pub fn volume_names(
    request: &VirtualMachineTemplateRequest,
    content: Option<&VirtualMachineSnapshotContent>,
) -> Vec<String> {
    let backups = content.into_iter().flat_map(|content| &content.spec.volume_backups);
    backups.map(|backup| volume_name(request, &backup.volume_name)).collect()
}

fn volume_name(request: &VirtualMachineTemplateRequest, volume: &str) -> String {
    stable(&template_name(request), request, volume)
}

/// The same name for the same request and part, and another one for any other.
fn stable(stem: &str, request: &VirtualMachineTemplateRequest, part: &str) -> String {
    let digest = Sha256::digest(format!("{}/{part}", request.uid().unwrap_or_default()));
    let suffix: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let stem: String = stem.chars().take(LONGEST - suffix.len() - 1).collect();
    format!("{}-{suffix}", stem.trim_end_matches(['.', '-']))
}

/// Whether the object was made for `request`.
fn is_of(request: &VirtualMachineTemplateRequest, metadata: &ObjectMeta) -> bool {
    let uid = request.metadata.uid.as_ref().filter(|uid| !uid.is_empty());
    uid.is_some() && metadata.labels.as_ref().and_then(|labels| labels.get(REQUEST_UID)) == uid
}

/// The names of disks of the request that are not the template's yet.
pub fn to_hand_over(request: &VirtualMachineTemplateRequest, world: &World) -> Vec<String> {
    let uid = world.template.as_ref().and_then(ResourceExt::uid);
    let is_owned = |volume: &DataVolume| {
        let owners = volume.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| Some(&owner.uid) == uid.as_ref())
    };
    let left = world.volumes.iter().filter(|(_, volume)| is_of(request, &volume.metadata) && !is_owned(volume));
    left.map(|(name, _)| name.clone()).collect()
}

/// That `template` owns an object.
pub fn owner(template: &VirtualMachineTemplate) -> OwnerReference {
    owned_by("VirtualMachineTemplate", &template.metadata)
}

fn owned_by(kind: &str, metadata: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: "template.kubevirt.io/v1beta1".to_owned(),
        kind: kind.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn named(namespace: &str, name: String) -> ObjectMeta {
    ObjectMeta { name: Some(name), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() }
}

fn marked(request: &VirtualMachineTemplateRequest, namespace: &str, name: String) -> ObjectMeta {
    let labels = BTreeMap::from([(REQUEST_UID.to_owned(), request.uid().unwrap_or_default())]);
    ObjectMeta { labels: Some(labels), ..named(namespace, name) }
}

fn snapshot_of(request: &VirtualMachineTemplateRequest) -> VirtualMachineSnapshot {
    let source = &request.spec.virtual_machine_ref;
    VirtualMachineSnapshot {
        metadata: marked(request, &source.namespace, snapshot_name(request)),
        spec: VirtualMachineSnapshotSpec {
            source: TypedLocalObjectReference {
                api_group: Some("kubevirt.io".to_owned()),
                kind: "VirtualMachine".to_owned(),
                name: source.name.clone(),
            },
            ..VirtualMachineSnapshotSpec::default()
        },
        ..VirtualMachineSnapshot::default()
    }
}

/// A copy of a disk, which is made at once: nobody boots from it.
fn copy_of(request: &VirtualMachineTemplateRequest, name: &str, snapshot: &str) -> DataVolume {
    let namespace = request.namespace().unwrap_or_default();
    let immediately = "cdi.kubevirt.io/storage.bind.immediate.requested".to_owned();
    let mut metadata = marked(request, &namespace, name.to_owned());
    metadata.annotations = Some(BTreeMap::from([(immediately, "true".to_owned())]));
    metadata.owner_references = Some(vec![owned_by("VirtualMachineTemplateRequest", &request.metadata)]);
    let source = json!({ "snapshot": { "namespace": request.spec.virtual_machine_ref.namespace, "name": snapshot } });
    DataVolume {
        metadata,
        spec: serde_json::from_value(json!({ "source": source, "storage": {} })).unwrap_or_default(),
        status: None,
    }
}

#[cfg(test)]
mod tests;
