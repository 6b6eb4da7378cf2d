//! Gives volumes the attributes of the class that their claims name (ControllerModifyVolume), with drivers that bring no
//! resizer, whose work this is elsewhere.

mod plan;

pub(super) use plan::parameters;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kit::clock;
use kit::controller::{self, Context, Error, Result, write};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use rpc::csi;
use rpc::csi::controller_service_capability::rpc::Type as Can;
use serde_json::{Value, json};

use self::plan::{FAILED, IN_PROGRESS, INFEASIBLE, MODIFYING, PENDING, Step};
use super::driver::{Driver, Fleet, worded};
use super::kinds::VolumeAttributesClass;
use super::{facts, secret};
use crate::expand::conditions;
use crate::sidecar::Function;

const COMPONENT: &str = "csi-resizer";
/// What the driver refused is tried again at this interval: its limits may have changed.
const RECONSIDER: i64 = 300;

/// Runs until the context's shutdown.
pub(super) async fn run(ctx: Context, fleet: Arc<Fleet>) {
    let queue = Arc::new(queue::patient());
    let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
    let classes = ctx.store::<VolumeAttributesClass>();
    claims.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(claim) = new.filter(|claim| plan::step(claim) != Step::None) {
                queue.add(Key::of(claim.as_ref()));
            }
        }
    });
    let again = {
        let (queue, claims) = (queue.clone(), claims.clone());
        move || {
            for claim in claims.all().iter().filter(|claim| plan::step(claim) != Step::None) {
                queue.add(Key::of(claim.as_ref()));
            }
        }
    };
    classes.on_change({
        let again = again.clone();
        move |_, _| again()
    });
    fleet.on_change(again);
    fleet.synced().await;
    claims.synced().await;
    volumes.synced().await;
    classes.synced().await;
    controller::work(&queue, "csi-modifier", 8, |key| reconcile(&ctx, &fleet, key)).await;
}

async fn reconcile(ctx: &Context, fleet: &Fleet, key: Key) -> Result<Next> {
    let Some(claim) = ctx.store::<PersistentVolumeClaim>().get(&key) else { return Ok(Next::Wait) };
    let volume = ctx.store::<PersistentVolume>().get(&Key::new("", facts::volume_name(&claim)));
    let Some(volume) = volume.filter(|volume| facts::is_for(volume, &claim)) else { return Ok(Next::Wait) };
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let Some(name) = facts::source(&volume).map(|csi| csi.driver.clone()) else { return Ok(Next::Wait) };
    if !fleet.serves(&name, Function::Resizer) || !fleet.is_ours(&name, None, affinity) {
        return Ok(Next::Wait);
    }
    let target = match plan::step(&claim) {
        Step::None => return Ok(Next::Wait),
        Step::Forget => {
            let over = conditions(&claim, &[MODIFYING, FAILED], None);
            write_status(ctx, &claim, json!({"modifyVolumeStatus": null, "conditions": over})).await?;
            return Ok(Next::Wait);
        }
        Step::Modify(target) => target,
    };
    if let Some(seconds) = plan::rests(&claim, &target, &clock::time(), RECONSIDER) {
        return Ok(Next::After(Duration::from_secs(u64::try_from(seconds).unwrap_or(1))));
    }
    let driver = match fleet.reach(&name, None, affinity).await {
        Ok(driver) => driver,
        Err(status) => return Err(failed(ctx, &claim, &volume, &target, &worded(&status))),
    };
    let class = ctx.store::<VolumeAttributesClass>().get(&Key::new("", target.as_str()));
    let parameters = match parameters(&target, class.as_deref(), &name, driver.abilities.can(Can::ModifyVolume)) {
        Ok(parameters) => parameters,
        Err(why) => {
            failed(ctx, &claim, &volume, &target, &why);
            note(ctx, &claim, (PENDING, &target), FAILED, &why).await?;
            return Ok(Next::Wait);
        }
    };
    if plan::state(&claim) != (IN_PROGRESS, target.as_str()) {
        let text = format!("external resizer is modifying volume {} with vac {target}", volume.name_any());
        ctx.events.record(COMPONENT, claim.as_ref(), Severity::Normal, "VolumeModify", text.clone());
        note(ctx, &claim, (IN_PROGRESS, &target), MODIFYING, &text).await?;
    }
    let parameters = parameters.into_iter().collect();
    match modify(ctx, &driver, &volume, parameters).await {
        Ok(()) => {
            finish(ctx, &key, &volume, &target).await?;
            Ok(Next::Wait)
        }
        Err(status) => {
            let error = failed(ctx, &claim, &volume, &target, &worded(&status));
            let infeasible = plan::is_infeasible(status.code());
            let state = if infeasible { INFEASIBLE } else { IN_PROGRESS };
            let Some(claim) = ctx.store::<PersistentVolumeClaim>().get(&key) else { return Ok(Next::Wait) };
            note(ctx, &claim, (state, &target), FAILED, &worded(&status)).await?;
            if infeasible {
                return Ok(Next::After(Duration::from_secs(RECONSIDER.unsigned_abs())));
            }
            Err(error)
        }
    }
}

fn failed(ctx: &Context, claim: &PersistentVolumeClaim, volume: &PersistentVolume, class: &str, why: &str) -> Error {
    let text = format!("modify volume {:?} with VolumeAttributesClass {class:?} failed: {why}", volume.name_any());
    ctx.events.record(COMPONENT, claim, Severity::Warning, "VolumeModifyFailed", text.clone());
    Error::Unfinished { object: Key::of(claim).to_string(), what: text }
}

async fn modify(
    ctx: &Context,
    driver: &Driver,
    volume: &PersistentVolume,
    mutable_parameters: HashMap<String, String>,
) -> Result<(), tonic::Status> {
    let Some(csi) = facts::source(volume) else {
        return Err(tonic::Status::invalid_argument("the volume is no CSI volume"));
    };
    let secrets = secret::read(ctx, csi.controller_expand_secret_ref.as_ref()).await;
    let secrets = secrets.map_err(|error| tonic::Status::unavailable(error.message()))?;
    let request =
        csi::ControllerModifyVolumeRequest { volume_id: csi.volume_handle.clone(), secrets, mutable_parameters };
    driver.client.clone().controller_modify_volume(request).await.map(drop)
}

/// Writes how far the modification is, unless the status says so already.
async fn note(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    (how_far, target): (&str, &str),
    condition: &str,
    message: &str,
) -> Result<()> {
    let known = claim.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let said = known.iter().any(|c| c.type_ == condition && c.message.as_deref() == Some(message));
    // The time of a refusal is that of the last try, from which the next is counted.
    if said && plan::state(claim) == (how_far, target) && how_far != INFEASIBLE {
        return Ok(());
    }
    let news = json!({"type": condition, "status": "True", "message": message, "lastTransitionTime": clock::time()});
    let status = json!({
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": target, "status": how_far},
        "conditions": conditions(claim, &[MODIFYING, FAILED], Some(news))});
    write_status(ctx, claim, status).await
}

/// Writes down whose attributes the volume has now.
async fn finish(ctx: &Context, key: &Key, volume: &PersistentVolume, class: &str) -> Result<()> {
    if facts::attributes_class_of_volume(volume) != class {
        let change = json!({"spec": {"volumeAttributesClassName": class}});
        write::merge::<PersistentVolume>(ctx, "write attributes of persistentvolume", &volume.name_any(), &change)
            .await?;
    }
    let Some(claim) = ctx.store::<PersistentVolumeClaim>().get(key) else { return Ok(()) };
    let status = json!({"currentVolumeAttributesClassName": class, "modifyVolumeStatus": null,
        "conditions": conditions(&claim, &[MODIFYING, FAILED], None)});
    write_status(ctx, &claim, status).await?;
    let text = format!("external resizer modified volume {} with vac {class} successfully", volume.name_any());
    ctx.events.record(COMPONENT, claim.as_ref(), Severity::Normal, "VolumeModifySuccessful", text);
    Ok(())
}

async fn write_status(ctx: &Context, claim: &PersistentVolumeClaim, status: Value) -> Result<()> {
    let change = json!({"metadata": {"resourceVersion": claim.resource_version()}, "status": status});
    let operation = "write modification of persistentvolumeclaim";
    ctx.merge_status::<PersistentVolumeClaim>(operation, &Key::of(claim), &change).await
}
