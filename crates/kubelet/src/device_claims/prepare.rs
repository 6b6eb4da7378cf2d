//! Has drivers prepare the claims of a pod before it starts, and take them back after it.

use k8s_openapi::api::core::v1::{Container, Pod};
use rpc::dra::Claim;

use super::claim::{self, Allocated};
use crate::context::Context;
use crate::device_drivers::record::{self, Prepared, Record};
use crate::error::{Error, Result};

/// Has every claim of the pod prepared. What is prepared already costs a look at its record.
///
/// # Errors
/// Which claim is not ready, and what it waits for.
pub(crate) async fn prepare(context: &Context, pod: &Pod) -> Result<()> {
    for entry in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
        let Some(name) = claim::name_of(pod, entry)? else { continue };
        let known = record::all(&context.device_claims.records);
        let own = pod.metadata.uid.as_deref().unwrap_or_default();
        let ready = known.iter().any(|record| {
            let named = record.name == name && Some(&record.namespace) == pod.metadata.namespace.as_ref();
            named && record.prepared && record.pods.contains(own)
        });
        if !ready {
            let allocated = claim::read(context, pod, entry, &name).await?;
            prepare_one(context, own, &allocated).await.map_err(|error| {
                Error::Invalid(format!("resourceclaim {}/{name}: {}", allocated.namespace, kit::Chain(&error)))
            })?;
        }
    }
    Ok(())
}

async fn prepare_one(context: &Context, pod: &str, allocated: &Allocated) -> Result<()> {
    let claims = &context.device_claims;
    let lock = claims.lock(&allocated.uid);
    let _turn = lock.lock().await;
    let mut record = record::of(&claims.records, &allocated.uid).unwrap_or_else(|| Record {
        namespace: allocated.namespace.clone(),
        name: allocated.name.clone(),
        uid: allocated.uid.clone(),
        drivers: allocated.drivers.clone(),
        ..Record::default()
    });
    record.pods.insert(pod.to_owned());
    // It may have got other devices since a driver failed to prepare it: each that was asked is told of its end.
    let fresh = allocated.drivers.iter().filter(|name| !record.drivers.contains(name)).cloned().collect::<Vec<_>>();
    record.drivers.extend(fresh);
    if record.prepared {
        return record::write(&claims.records, &record);
    }
    // All of them are there before the first is asked: a pod that waits for one does not keep another's devices.
    let plugins = allocated.drivers.iter().map(|name| claims.plugins.get(name)).collect::<Result<Vec<_>>>()?;
    record::write(&claims.records, &record)?;
    let asked = asked(&record);
    let mut devices = Vec::new();
    for plugin in plugins {
        for device in plugin.prepare(&asked).await? {
            devices.push(Prepared { requests: device.request_names, cdi: device.cdi_device_ids });
        }
    }
    record.devices = devices;
    record.prepared = true;
    record::write(&claims.records, &record)
}

fn asked(record: &Record) -> Claim {
    Claim { namespace: record.namespace.clone(), uid: record.uid.clone(), name: record.name.clone() }
}

/// Takes back what the pod had alone. It may be called again for a pod that has nothing any more.
///
/// # Errors
/// Which claim a driver has not taken back; the others are.
pub(crate) async fn release(context: &Context, pod: &str) -> Result<()> {
    let claims = &context.device_claims;
    let mut failed = None;
    for known in record::all(&claims.records).into_iter().filter(|record| record.pods.contains(pod)) {
        let lock = claims.lock(&known.uid);
        let _turn = lock.lock().await;
        // It may have changed while others had their turn.
        let Some(mut record) = record::of(&claims.records, &known.uid).filter(|r| r.pods.contains(pod)) else {
            continue;
        };
        let outcome = if record.pods.len() > 1 {
            record.pods.remove(pod);
            record::write(&claims.records, &record)
        } else {
            unprepare(context, &record).await
        };
        if let Err(error) = outcome {
            let why = format!("resourceclaim {}/{}: {}", record.namespace, record.name, kit::Chain(&error));
            failed = Some(Error::Invalid(why));
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn unprepare(context: &Context, record: &Record) -> Result<()> {
    let claims = &context.device_claims;
    for name in &record.drivers {
        claims.plugins.get(name)?.unprepare(&asked(record)).await?;
    }
    record::remove(&claims.records, &record.uid)
}

/// The CDI devices of a container, each once.
///
/// # Errors
/// When a claim that it names is not prepared.
pub(crate) fn for_container(context: &Context, pod: &Pod, container: &Container) -> Result<Vec<String>> {
    let entries = || pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let own = pod.metadata.uid.as_deref().unwrap_or_default();
    let mut ids: Vec<String> = Vec::new();
    for wanted in container.resources.iter().flat_map(|resources| resources.claims.iter().flatten()) {
        let Some(entry) = entries().find(|entry| entry.name == wanted.name) else {
            return Err(Error::Invalid(format!("the pod has no resource claim {:?}", wanted.name)));
        };
        let Some(name) = claim::name_of(pod, entry)? else { continue };
        let known = record::all(&context.device_claims.records);
        let record = known.into_iter().find(|record| {
            record.name == name
                && Some(&record.namespace) == pod.metadata.namespace.as_ref()
                && record.pods.contains(own)
        });
        let Some(record) = record.filter(|record| record.prepared) else {
            return Err(Error::Invalid(format!("resourceclaim {name:?} is not prepared")));
        };
        let devices = record.devices.iter().filter(|device| device.is_for(wanted.request.as_deref()));
        for id in devices.flat_map(|device| &device.cdi) {
            if !ids.contains(id) {
                ids.push(id.clone());
            }
        }
    }
    Ok(ids)
}
