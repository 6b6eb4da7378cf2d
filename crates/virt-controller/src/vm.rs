//! VirtualMachine -> VirtualMachineInstance: starts, stops and restarts it as the run strategy and the requests say.

pub(crate) mod chosen;
pub mod hotplug;
pub mod instance;
mod live;
pub mod live_update;
pub mod memory_dump;
pub mod plan;
pub(crate) mod provision;
pub mod snapshots;
mod started;
pub mod status;

use std::time::Duration;

use api::kubevirt::constants::finalizer;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use chosen::References;
use k8s_openapi::api::core::v1::Namespace;
use kit::queue::{Next, Queue};
use kit::store::Key;
use kit::{Chain, clock};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use plan::{Step, View};
use serde_json::json;
use status::Facts;

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::copies::of_source;
use crate::facts::index::{claim_index, data_index, vm_indexes, vmi_indexes};
use crate::facts::instance::is_final;
use crate::facts::{data_volumes, stand_ins};
use crate::setup::Setup;
use crate::stores::{Changes, index_values};
use crate::tracking::Wanted;
use crate::volumes_update;
use crate::volumes_update::plan::Update;
use crate::{patch, write};

/// Until a claim that a changed volume names is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Until an instance type or a preference that a machine names, and that nobody made yet, is looked for again.
const CHOOSE_AGAIN: Duration = Duration::from_secs(5);

/// Workers at its queue, which everything passes.
const WORKERS: usize = 8;

/// Has machines looked after.
pub(crate) fn register(setup: &mut Setup) {
    let (context, queue) = (setup.context.clone(), Queue::default());
    wakes(&mut setup.changes, &queue);
    let stores = context.stores.clone();
    let known = async move {
        tokio::join!(
            stores.vms.synced(),
            stores.vmis.synced(),
            stores.claims.synced(),
            // A machine whose data volume is not known would start on a disk that is being filled.
            stores.data_volumes.synced(),
            stores.kubevirts.synced()
        );
    };
    setup.work(queue, WORKERS, known, move |key| reconcile(context.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.vms.wake(queue, |_, change| [change.key.clone()]);
    // A VM and its instance share their name.
    changes.vmis.wake(queue, |stores, change| stores.vms.contains(change.key).then(|| change.key.clone()));
    changes
        .claims
        .wake(queue, |stores, change| stores.vms.keys_by_index(&claim_index(&change.key.namespace, &change.key.name)));
    changes
        .data_volumes
        .wake(queue, |stores, change| stores.vms.keys_by_index(&data_index(&change.key.namespace, &change.key.name)));
    // A VM that is brought back does not start meanwhile.
    changes
        .restores
        .wake(queue, |_, change| index_values(change).filter_map(|word| of_source(word)).collect::<Vec<_>>());
    // Other machines may be selected now.
    changes.kubevirts.wake(
        queue,
        |stores, change| {
            if change.was == change.is { Vec::new() } else { stores.vms.keys() }
        },
    );
    // Whether a volume can be snapshotted, which machines say of theirs, depends on its class.
    changes.snapshot_classes.wake(queue, |stores, _| stores.vms.keys());
    changes.storage_classes.wake(queue, |stores, _| stores.vms.keys());
}

/// Brings one VM a step further.
async fn reconcile(context: Context, key: Key) -> Next {
    error::settled("vm", &key, Box::pin(sync(&context, &key)).await)
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(vm) = context.stores.vms.get(key) else { return Ok(Next::Wait) };
    let uid = vm.uid().unwrap_or_default();
    let found = context.stores.vmis.get(key);
    let mut vmi = found.clone().filter(|vmi| owned_by(vmi, &uid));
    let mut facts = Facts { references: References::held(&vm), ..Facts::default() };
    let now = clock::now();
    let mut error = None;
    let mut data = data_volumes::DataVolumes::new();
    if vm.metadata.deletion_timestamp.is_none() {
        data = provision::known(context, &vm);
        error = provision::provision(context, &vm, &mut data).await.err();
        let has_claim = |name: &str| context.stores.claims.contains(&Key::new(key.namespace.as_str(), name));
        facts.data = data_volumes::readiness(&vm, &data, has_claim);
    }
    let lacking = if vm.metadata.deletion_timestamp.is_none() {
        match keep(context, &vm).await? {
            Kept::Rewritten => return Ok(Next::Wait),
            Kept::As(references) => {
                facts.references = references;
                None
            }
            Kept::Not(failure) => Some(failure),
        }
    } else {
        None
    };
    let restoring = vm.status.as_ref().is_some_and(|status| status.restore_in_progress.is_some());
    let has_disks = lacking.is_none()
        && !restoring
        && facts.data.is_ready()
        && !volumes_update::keeps_from_starting(&vm, vmi.as_ref());
    let is_name_taken = found.is_some() && vmi.is_none();
    let plan = plan::plan(View { vm: &vm, vmi: vmi.as_ref(), is_name_taken, has_disks, now });
    if let Some(why) = plan.trouble.as_ref().filter(|_| !is_name_taken) {
        context.recorder.warning(&reference(&vm), "FailedCreate", why.clone());
    }
    let trouble = error.as_ref().map(|failed| Chain(failed).to_string()).or_else(|| plan.trouble.clone());
    facts.failure = trouble.map(|why| ("FailedCreate", why));
    let mut refused = None;
    if let Some(lacking) = lacking {
        context.recorder.warning(&reference(&vm), "FailedCreate", lacking.message.clone());
        refused = lacking.told_by_nobody.then_some(CHOOSE_AGAIN);
        facts.failure.get_or_insert((lacking.reason, lacking.message));
    }
    facts.tracking = tracking(context, &vm).await?;
    for step in &plan.steps {
        match execute(context, &vm, vmi.as_ref(), step, &facts).await {
            Ok(Outcome::Released) => return Ok(Next::Wait),
            Ok(Outcome::Started(created)) => vmi = Some(*created),
            Ok(Outcome::Done) => {}
            Err(failed) => {
                if let Some(reason) = reason_of(step) {
                    facts.failure = Some((reason, Chain(&failed).to_string()));
                    context.recorder.warning(&reference(&vm), reason, Chain(&failed).to_string());
                }
                error = Some(failed);
                break;
            }
        }
    }
    if let Some(running) = vmi.clone().filter(|_| vm.metadata.deletion_timestamp.is_none() && error.is_none()) {
        match volumes_update::follow(context, &vm, &running, &data).await {
            Ok(update) => facts.volumes = update,
            Err(failed) => error = Some(failed),
        }
        vmi = context.stores.vmis.get(key).filter(|vmi| owned_by(vmi, &uid)).or(vmi);
        if error.is_none()
            && let Some(vmi) = &vmi
        {
            error = plug(context, &vm, vmi).await.err();
        }
    }
    let mut dump = None;
    if vm.metadata.deletion_timestamp.is_none() && error.is_none() {
        let newest = context.stores.vmis.get(key).filter(|vmi| owned_by(vmi, &uid));
        match memory_dump::carry_out(context, &vm, newest.as_ref()).await {
            Ok(settled) => dump = settled,
            Err(failed) => {
                if !failed.is_conflict() {
                    facts.failure.get_or_insert_with(|| (memory_dump::TROUBLE, Chain(&failed).to_string()));
                }
                error = Some(failed);
            }
        }
    }
    facts.snapshots = snapshots::known(context, &vm);
    if let Update::Refuse(why) = &facts.volumes {
        facts.failure.get_or_insert_with(|| ("VolumesUpdateError", why.clone()));
        // Nobody tells this machine of claims.
        refused = Some(LOOK_AGAIN);
    }
    if let Update::Restart(why) = &facts.volumes {
        facts.restart_required = Some(why.clone());
    } else if let Some(running) = context.stores.vmis.get(key).filter(|vmi| owned_by(vmi, &uid))
        && error.is_none()
    {
        match live::follow(context, &vm, &running, &facts.references).await {
            Ok(live::Outcome { restart, failure }) => {
                facts.restart_required = restart;
                if let Some(failure) = failure {
                    facts.failure.get_or_insert(failure);
                    refused = Some(LOOK_AGAIN);
                }
            }
            Err(failed) => error = Some(failed),
        }
    }
    let mut wanted = status::status(&vm, vmi.as_ref(), &plan, &facts, clock::seconds(now));
    if let Some(settled) = dump {
        wanted.memory_dump_request = settled;
    }
    write_status(context, &vm, wanted).await?;
    match error {
        Some(error) => Err(error),
        None => Ok(plan.again.into_iter().chain(refused).min().map_or(Next::Wait, Next::After)),
    }
}

/// What became of what a machine names.
enum Kept {
    /// It is kept there.
    As(References),
    /// It is in the machine itself now.
    Rewritten,
    /// It cannot be had.
    Not(chosen::Failure),
}

async fn keep(context: &Context, vm: &VirtualMachine) -> Result<Kept, Error> {
    match chosen::dissolve(context, vm).await {
        Ok(true) => return Ok(Kept::Rewritten),
        Ok(false) => {}
        Err(Ok(failure)) => return Ok(Kept::Not(failure)),
        Err(Err(error)) => return Err(error),
    }
    Ok(chosen::keep(context, vm).await.map_or_else(Kept::Not, Kept::As))
}

fn owned_by(vmi: &VirtualMachineInstance, uid: &str) -> bool {
    vmi.owner_references().iter().any(|owner| owner.uid == uid && owner.controller == Some(true))
}

fn reason_of(step: &Step) -> Option<&'static str> {
    match step {
        Step::Start { .. } => Some("FailedCreate"),
        Step::Stop => Some("FailedDelete"),
        Step::Hold | Step::Release | Step::ReleaseInstance => None,
    }
}

enum Outcome {
    Done,
    Started(Box<VirtualMachineInstance>),
    Released,
}

async fn execute(
    context: &Context,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    step: &Step,
    facts: &Facts,
) -> Result<Outcome, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let vms: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    let name = vm.name_any();
    match (step, vmi) {
        (Step::Hold, _) => {
            let mut finalizers = vm.finalizers().to_vec();
            finalizers.push(finalizer::VM.to_owned());
            finalizers_patch(&vms, vm, finalizers).await.map_err(Error::api(
                "hold",
                "virtualmachine",
                &namespace,
                &name,
            ))?;
        }
        (Step::Release, _) => {
            let kept = vm.finalizers().iter().filter(|held| *held != finalizer::VM).cloned().collect();
            finalizers_patch(&vms, vm, kept).await.map_err(Error::api(
                "release",
                "virtualmachine",
                &namespace,
                &name,
            ))?;
            return Ok(Outcome::Released);
        }
        (Step::ReleaseInstance, Some(vmi)) => {
            let kept = vmi.finalizers().iter().filter(|held| *held != finalizer::VM).cloned().collect();
            let release = Error::api("release", "virtualmachineinstance", &namespace, &name);
            finalizers_patch(&vmis, vmi, kept).await.map_err(release)?;
        }
        (Step::Start { paused }, _) => {
            let whole = chosen::written_out(context, vm, &facts.references).await;
            let whole = whole.map_err(|failure| Error::Chosen(failure.message))?;
            let wanted = instance::instance(&whole, *paused, facts.tracking.starts_tracked());
            return start(context, &chosen::pinned(vm, &facts.references), &vmis, wanted)
                .await
                .map(|vmi| Outcome::Started(Box::new(vmi)));
        }
        (Step::Stop, Some(vmi)) if vmi.metadata.deletion_timestamp.is_none() => {
            let params = DeleteParams {
                preconditions: Some(Preconditions { uid: vmi.uid(), resource_version: None }),
                ..Default::default()
            };
            match vmis.delete(&name, &params).await {
                Ok(_) => {
                    let message = format!(
                        "Stopped the virtual machine by deleting the virtual machine instance {}",
                        vmi.uid().unwrap_or_default()
                    );
                    context.recorder.normal(&reference(vm), "SuccessfulDelete", message);
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(Error::api("delete", "virtualmachineinstance", &namespace, &name)(error)),
            }
        }
        (Step::Stop | Step::ReleaseInstance, _) => {}
    }
    Ok(Outcome::Done)
}

async fn finalizers_patch<K>(api: &Api<K>, object: &K, finalizers: Vec<String>) -> kube::Result<()>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let version = &object.meta().resource_version;
    let patch = json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } });
    match api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(|_| ()),
    }
}

async fn start(
    context: &Context,
    vm: &VirtualMachine,
    vmis: &Api<VirtualMachineInstance>,
    wanted: VirtualMachineInstance,
) -> Result<VirtualMachineInstance, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let name = vm.name_any();
    started::record(context, vm).await?;
    let mut created = match vmis.create(&PostParams::default(), &wanted).await {
        Ok(created) => {
            let message = format!("Started the virtual machine by creating the new virtual machine instance {name}");
            context.recorder.normal(&reference(vm), "SuccessfulCreate", message);
            created
        }
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            vmis.get(&name).await.map_err(Error::api("read", "virtualmachineinstance", &namespace, &name))?
        }
        Err(error) => return Err(Error::api("create", "virtualmachineinstance", &namespace, &name)(error)),
    };
    created.metadata.managed_fields = None;
    let words = vmi_indexes(&created);
    context.stores.vmis.put(&created, words);
    Ok(created)
}

/// What the administrator wants of the changes of this machine's disks.
async fn tracking(context: &Context, vm: &VirtualMachine) -> Result<Wanted, Error> {
    let kubevirts = context.stores.kubevirts.list();
    let gate = crate::tracking::gate(kubevirts.first());
    let Some(selectors) = crate::tracking::selectors(kubevirts.first()) else {
        return Ok(Wanted { selected: false, gate });
    };
    let name = vm.namespace().unwrap_or_default();
    let namespace = if selectors.namespace_label_selector.is_some() {
        let api: Api<Namespace> = Api::all(context.client.clone());
        api.get_opt(&name).await.map_err(Error::api("read", "namespace", "", &name))?.unwrap_or_default()
    } else {
        Namespace::default()
    };
    let selected = crate::tracking::selected(&selectors, vm.labels(), namespace.labels());
    Ok(Wanted { selected, gate })
}

/// Brings volumes of the template that come and go to the instance that is there.
async fn plug(context: &Context, vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Result<(), Error> {
    let ends = vmi.metadata.deletion_timestamp.is_some() || is_final(vmi);
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let root = |claim: &str| {
        let held = context.stores.claims.get(&Key::new(namespace.as_str(), claim));
        held.map_or_else(|| claim.to_owned(), |claim| stand_ins::root(&claim))
    };
    let Some(devices) = hotplug::devices(vm, vmi, root).filter(|_| !ends) else { return Ok(()) };
    let patch = json!({
        "metadata": { "resourceVersion": vmi.metadata.resource_version },
        "spec": { "volumes": devices.volumes, "domain": { "devices": { "disks": devices.disks } } },
    });
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(mut written) => {
            written.metadata.managed_fields = None;
            let words = vmi_indexes(&written);
            context.stores.vmis.put(&written, words);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("plug volumes into", "virtualmachineinstance", &namespace, &name)(error)),
    }
}

async fn write_status(
    context: &Context,
    vm: &VirtualMachine,
    wanted: api::kubevirt::v1::VirtualMachineStatus,
) -> Result<(), Error> {
    let old = vm.status.as_deref().cloned().unwrap_or_default();
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    // What this pass changed of the metadata (a finalizer) moved the version; requests are what must not be lost.
    let locked = ["stateChangeRequests", "memoryDumpRequest"].iter().any(|field| changed.get(field).is_some());
    let version = vm.metadata.resource_version.as_deref().filter(|_| locked);
    let mut patch = patch::status(version, &changed);
    if !locked {
        patch["metadata"] = json!({});
    }
    let namespace = vm.namespace().unwrap_or_default();
    let name = vm.name_any();
    let api: Api<VirtualMachine> = Api::namespaced(context.client.clone(), &namespace);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.stores.vms, vm_indexes, ("virtualmachine", vm)).map(drop)
}
