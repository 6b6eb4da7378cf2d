//! Carrying a plan out, and writing the status that follows.

use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::constants::{annotation, phase};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use domain::Environment;
use k8s_openapi::api::core::v1::ObjectReference;
use kit::queue::Next;
use kit::store::Key;
use kit::{Chain, clock, merge_patch};
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use rpc::launcher::{Empty, SyncRequest};
use serde_json::json;

use super::Context;
use super::guest::Guest;
use super::handover;
use super::memory_dump;
use super::plan::{self, Step};
use super::pod::{connect, current, plug, prepare_disks};
use super::status::{self, Observed};
use super::{incoming, outgoing};
use crate::Error;
use crate::hotplug;
use crate::launcher::{CALL, answer, timed};
use crate::migration;
use crate::settings::Settings;
use crate::storage::Purpose;

/// Between two looks at a guest that is to let go of a disk.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Defining and starting a domain.
const SYNC: Duration = Duration::from_secs(120);

/// Brings one VMI forward.
pub(crate) async fn reconcile(context: &Context, key: &Key) -> Next {
    let Some(vmi) = context.vmi(key) else {
        return release(context, key).await;
    };
    let arrives = migration::plan::arrives(&vmi, &context.node);
    let has_left = migration::plan::has_left(&vmi, &context.node);
    if !arrives && (has_left || !plan::concerns(&vmi, &context.node)) {
        return release(context, key).await;
    }
    let uid = vmi.uid().unwrap_or_default();
    let guest = context.guest_or_new(key, &uid);
    if guest.uid != uid {
        // The machine of this name was given up while this node was away: its guest ends before the new one begins.
        return match release(context, key).await {
            Next::Wait => Next::After(Duration::ZERO),
            again => again,
        };
    }
    if arrives {
        return incoming::reconcile(context, key, &vmi, &guest).await;
    }
    let plan = plan::plan(&vmi, guest.known_of(&vmi), clock::now());
    let mut retry = false;
    for step in &plan.steps {
        if let Err(error) = execute(context, key, &vmi, &guest, *step).await {
            retry = true;
            trouble(context, &vmi, &guest, *step, &error);
            break;
        }
    }
    let mut waits_for_guest = false;
    if !retry {
        match change_disks(context, &vmi, &guest).await {
            Ok(waits) => {
                waits_for_guest = waits;
                guest.held().passing = None;
            }
            Err(error) => {
                retry = true;
                trouble(context, &vmi, &guest, Step::Sync, &error);
            }
        }
    }
    if let Err(error) = outgoing::step(context, &vmi, &guest).await {
        tracing::info!(vmi = %key, uid, error = %Chain(&error), "a step of the migration failed and will be tried again");
        retry = true;
    }
    let written = write(context, &vmi, &guest).await;
    if let Err(error) = &written {
        tracing::info!(vmi = %key, uid, error = %Chain(error), "the status was not written");
    }
    let waits = migration::plan::is_leaving(&vmi, &context.node) && guest.held().gone_since.is_some();
    match (retry || written.is_err(), plan.again) {
        (true, _) => Next::Retry,
        // Nobody tells when the target's time is over.
        (false, _) if waits => Next::After(Duration::from_secs(1)),
        (false, Some(after)) => Next::After(after),
        (false, None) if waits_for_guest => Next::After(ASK_AGAIN),
        (false, None) => Next::Wait,
    }
}

/// Lets go of a VMI: what was plugged goes with its pod. A guest that still runs although nothing asks for it any more is
/// ended: it may have been started elsewhere while this node was cut off.
async fn release(context: &Context, key: &Key) -> Next {
    let Some(guest) = context.guest(key) else { return Next::Wait };
    if let Some(launcher) = guest.launcher()
        && guest.known().domain
        && launcher.is_alive()
    {
        tracing::warn!(vmi = %key, uid = guest.uid, "nothing asks for this guest any more: it is ended");
        if let Err(error) = answer(CALL, launcher.client.clone().kill(timed(Empty {}, CALL))).await {
            tracing::warn!(vmi = %key, error = %Chain(&Error::from(error)), "the guest was not ended");
            return Next::Retry;
        }
    }
    context.guests().remove(key);
    Next::Wait
}

async fn execute(
    context: &Context,
    key: &Key,
    vmi: &VirtualMachineInstance,
    guest: &Arc<Guest>,
    step: Step,
) -> Result<(), Error> {
    match step {
        Step::Connect => connect(context, key, vmi, guest).await,
        Step::Plug => plug(context, vmi, guest).await,
        Step::Sync => sync(context, guest, vmi).await,
        Step::Shutdown => {
            let mut client = current(guest, vmi)?.client;
            answer(CALL, client.shutdown(timed(Empty {}, CALL))).await?;
            guest.held().shutdown_sent = true;
            context.recorder.normal(&reference(vmi), "ShuttingDown", "Signaled Graceful Shutdown");
            Ok(())
        }
        Step::Kill => {
            let mut client = current(guest, vmi)?.client;
            answer(CALL, client.kill(timed(Empty {}, CALL))).await?;
            Ok(())
        }
    }
}

/// Lends the launcher the disks that are to come, has it compare what the guest has with what it is to have, and takes back
/// what has gone. True when the guest was asked for something that it may not have heard.
async fn change_disks(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest) -> Result<bool, Error> {
    let known = guest.known();
    let running = vmi.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase::RUNNING);
    let stays = vmi.metadata.deletion_timestamp.is_none() && !migration::plan::is_leaving(vmi, &context.node);
    if !(known.connected && known.domain && running && stays) {
        return Ok(false);
    }
    let seen = guest.observed();
    let (devices, dump) = (&seen.facts().devices, seen.dump());
    let plan = hotplug::plan(vmi, devices, &guest.held().lent, |volume| dump.is_writing(volume));
    let larger = hotplug::larger(vmi, devices);
    // Told once: a disk that cannot grow is not asked again before its claim has changed.
    let grows = larger != guest.held().larger && !larger.is_empty();
    let launcher = current(guest, vmi)?;
    let mut outcome = Ok(plan.waits);
    if !plan.lend.is_empty() {
        let purpose = Purpose::Start(context.settings.current()?.tolerance);
        for attached in &plan.lend {
            match hotplug::lend(&context.pods, &context.recorder, vmi, launcher.clone(), attached, purpose).await {
                Ok(()) => guest.was_lent(&attached.volume),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
    }
    for volume in &plan.renew {
        match hotplug::renew(launcher.clone(), volume.clone()).await {
            // Known again after a restart of this process, and so taken back in the end.
            Ok(()) => guest.was_lent(volume),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    if plan.compare || grows {
        sync(context, guest, vmi).await?;
    }
    guest.held().larger = larger;
    for volume in &plan.take_back {
        hotplug::take_back(launcher.clone(), volume.clone()).await?;
        guest.held().lent.remove(volume);
    }
    outcome.and(memory_dump::begin(vmi, launcher, &guest.observed().dump()).await.map(|()| plan.waits))
}

async fn sync(context: &Context, guest: &Guest, vmi: &VirtualMachineInstance) -> Result<(), Error> {
    let mut client = current(guest, vmi)?.client;
    let settings = context.settings.current()?;
    if !guest.known().domain {
        let purpose = Purpose::Start(settings.tolerance);
        prepare_disks(context, vmi, current(guest, vmi)?, purpose).await?;
    }
    let environment = {
        let held = guest.held();
        Environment {
            emulation: held.emulation.is_some(),
            interfaces: held.plugged.as_ref().map(|p| p.interfaces.clone()).unwrap_or_default(),
            ..chosen(vmi, &settings)
        }
    };
    let encode = |value: serde_json::Result<String>| value.map_err(|e| tonic::Status::internal(e.to_string()));
    let request = SyncRequest {
        vmi: encode(serde_json::to_string(vmi))?,
        environment: encode(serde_json::to_string(&environment))?,
    };
    answer(SYNC, client.sync(timed(request, SYNC))).await?;
    let mut held = guest.held();
    held.handed_over = Some(handover::acted_on(vmi));
    held.trouble = None;
    Ok(())
}

/// What the administrator chose for every guest, as far as this one does not choose itself.
fn chosen(vmi: &VirtualMachineInstance, settings: &Settings) -> Environment {
    let kept = vmi.annotations().get(annotation::FREE_PAGE_REPORTING_DISABLED).is_some_and(|value| value == "true");
    Environment {
        free_page_reporting: settings.free_page_reporting && !kept,
        log_serial_console: settings.serial_console_log,
        smbios: settings.smbios.clone(),
        ..Default::default()
    }
}

fn trouble(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest, step: Step, error: &Error) {
    let message = Chain(error).to_string();
    tracing::info!(vmi = %vmi.name_any(), step = ?step, error = %message, "a step failed and will be tried again");
    let reason = match step {
        Step::Plug => "FailedPlugNetwork",
        Step::Connect | Step::Sync => "SyncFailed",
        Step::Shutdown | Step::Kill => return,
    };
    let mut held = guest.held();
    if !held.is_news(error, clock::now()) {
        return;
    }
    if held.told.trouble != message {
        context.recorder.warning(&reference(vmi), reason, &message);
        held.told.trouble.clone_from(&message);
    }
    held.trouble = Some(message);
}

/// Writes the status if it differs from what the VMI has, against the version it was computed from.
async fn write(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest) -> Result<(), Error> {
    tokio::time::sleep(guest.writes(0.0)).await;
    let mut seen = Observed { host_model: context.host_model.clone(), ..guest.observed() };
    let now = clock::seconds(clock::now());
    let mut moved = None;
    if let Some(state) = migration::plan::state(vmi).filter(|state| migration::plan::is_source(state, &context.node)) {
        let after = migration::status::source(state, &outgoing::known(guest, state), now);
        let failed = migration::plan::ended(&after) && !migration::plan::succeeded(&after);
        seen.on_its_way = migration::plan::is_leaving(vmi, &context.node) && !failed;
        moved = Some(after);
    }
    let before = vmi.status.as_deref().cloned().unwrap_or_default();
    // Of a guest that has left, the last word is that it has: the rest is for the node that it went to.
    let gone = moved.as_ref().is_some_and(migration::plan::succeeded);
    let mut wanted = if gone { before.clone() } else { status::status(vmi, &seen, now) };
    if moved.is_some() {
        wanted.migration_state = moved.map(Box::new);
    }
    let progress = guest.news(vmi);
    if wanted == before && progress.is_none() {
        return Ok(());
    }
    let failed = |source| Error::Write { what: format!("the status of {}", vmi.name_any()), source };
    // Nothing, and not null, which would take the status away.
    let changes = merge_patch::difference(&json!(before), json!(wanted)).unwrap_or_else(|| json!({}));
    let mut metadata = json!({ "resourceVersion": vmi.resource_version() });
    if let Some(progress) = progress {
        metadata["annotations"] = json!({ annotation::MIGRATION_PROGRESS: progress });
    }
    let patch = json!({ "metadata": metadata, "status": changes });
    let api: Api<VirtualMachineInstance> =
        Api::namespaced(context.client.clone(), vmi.namespace().as_deref().unwrap_or_default());
    guest.writes(1.0);
    match api.patch(&vmi.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(new) => context.vmis.put(&new, Vec::new()),
        // Somebody wrote meanwhile, or the VMI is gone: the watch brings the key back.
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    announce(context, vmi, guest, before.phase.as_deref(), &wanted);
    let about = reference(vmi);
    let tell = |bad: bool, reason: &str, message: &str| {
        if bad {
            context.recorder.warning(&about, reason, message);
        } else {
            context.recorder.normal(&about, reason, message);
        }
    };
    for (bad, reason, message) in status::dump::news(&before.volume_status, &wanted.volume_status) {
        tell(bad, reason, message);
    }
    if let Some((bad, reason, message)) = status::credentials::news(&before.conditions, &wanted.conditions) {
        tell(bad, reason, &message);
    }
    Ok(())
}

fn announce(
    context: &Context,
    vmi: &VirtualMachineInstance,
    guest: &Guest,
    before: Option<&str>,
    wanted: &VirtualMachineInstanceStatus,
) {
    let now = wanted.phase.as_deref();
    let reference = reference(vmi);
    if let Some(why) = status::stays_though_asked_to_move(vmi, wanted) {
        let mut held = guest.held();
        if held.told.stays != why {
            let message = format!("EvictionStrategy is set but vmi is not migratable; {why}");
            context.recorder.warning(&reference, "Migrated", message);
            held.told.stays = why;
        }
    }
    failures(context, &reference, guest);
    if now == before {
        return;
    }
    match now {
        Some(phase::RUNNING) => {
            let mut held = guest.held();
            if !held.told.started {
                held.told.started = true;
                context.recorder.normal(&reference, "Created", "VirtualMachineInstance defined.");
                context.recorder.normal(&reference, "Started", "VirtualMachineInstance started.");
            }
        }
        Some(phase::SUCCEEDED) => {
            context.recorder.normal(&reference, "Stopped", "The VirtualMachineInstance was shut down.");
        }
        Some(phase::FAILED) => {
            let why = wanted.reason.clone().unwrap_or_else(|| "the guest ended with an error".to_owned());
            context.recorder.warning(&reference, "Stopped", format!("The VirtualMachineInstance failed: {why}."));
        }
        _ => {}
    }
}

/// Says of each disk once that it failed, and again when it fails again.
fn failures(context: &Context, reference: &ObjectReference, guest: &Guest) {
    let failed = guest.observed().facts().failed_disks.clone();
    let mut held = guest.held();
    for disk in failed.iter().filter(|disk| !held.told.failed.contains(disk)) {
        context.recorder.warning(reference, "IOerror", status::failure(disk));
    }
    held.told.failed = failed;
}

fn reference(vmi: &VirtualMachineInstance) -> ObjectReference {
    vmi.object_ref(&())
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::kubevirt::v1::KubeVirtConfiguration;
    use serde_json::Value;

    #[test]
    fn the_administrator_chooses_for_every_guest() {
        let vmi =
            |annotations: Value| serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
        let configuration = json!({
            "smbios": {"manufacturer": "Acme", "product": "Cloud"},
            "virtualMachineOptions": {"disableSerialConsoleLog": {}},
        });
        let configuration = Settings::of(&serde_json::from_value(configuration).unwrap());
        let found = chosen(&vmi(json!({})), &configuration);
        assert_eq!((found.smbios.manufacturer.as_str(), found.smbios.product.as_str()), ("Acme", "Cloud"));
        assert_eq!((found.free_page_reporting, found.log_serial_console), (true, false));
        let kept = vmi(json!({"kubevirt.io/free-page-reporting-disabled": "true"}));
        let found = chosen(&kept, &Settings::of(&KubeVirtConfiguration::default()));
        assert_eq!((found.free_page_reporting, found.log_serial_console), (false, true));
    }
}
