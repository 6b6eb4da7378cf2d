//! Machines through types of Rust: made with zeros, watched, frozen, paused, described.

use std::pin::pin;

use anyhow::{Context, Result, bail, ensure};
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceGuestAgentInfo};
use e2e::machine;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Event, Pod, ResourceQuota};
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::wait::conditions;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{LIMIT, Space, Test, object, wait};

pub(crate) const TESTS: &[Test] = &[
    ("a_guest_starts_under_a_quota_and_is_frozen_twice", |space| Box::pin(guest(space))),
    ("a_refused_instance_is_told_on_its_machine", |space| Box::pin(refused(space))),
];

async fn quota(space: &Space, hard: Value) -> Result<()> {
    let quotas: Api<ResourceQuota> = space.api();
    let quota = object(json!({"metadata": {"name": "quota"}, "spec": {"hard": hard}}))?;
    quotas.create(&PostParams::default(), &quota).await?;
    wait(quotas, "quota", |quota: Option<&ResourceQuota>| {
        quota.and_then(|quota| quota.status.as_ref()).is_some_and(|status| status.hard.is_some())
    })
    .await?;
    Ok(())
}

/// What a subresource of the instance `typed` answers.
async fn subresource(space: &Space, method: &str, name: &str) -> Result<String> {
    let path =
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/typed/{name}", space.name);
    let request = http::Request::builder().method(method).uri(path).body(b"{}".to_vec())?;
    space.client.request_text(request).await.with_context(|| format!("{method} {name}"))
}

fn holds(instance: &VirtualMachineInstance, condition: &str) -> bool {
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == condition && one.status == "True")
}

async fn guest(space: Space) -> Result<()> {
    quota(&space, json!({"limits.cpu": "8", "limits.memory": "4Gi"})).await?;
    let mut vm = machine::on_kernel("typed", "Always");
    let spec = machine::spec(&mut vm);
    spec["domain"]["devices"]["interfaces"][0]["model"] = json!("e1000");
    spec["domain"]["devices"]["interfaces"][0]["pciAddress"] = json!("0000:02:01.0");
    spec["domain"]["devices"]["autoattachInputDevice"] = json!(true);
    spec["domain"]["devices"]["disks"] =
        json!([{"name": "scratch", "serial": "a serial 1", "disk": {"bus": "virtio"}}]);
    spec["volumes"] = json!([{"name": "scratch", "emptyDisk": {"capacity": "3222222"}}]);
    let typed: VirtualMachineInstance = object(json!({
        "metadata": {"name": "typed", "annotations": {"kubevirt.io/test": "test"}},
        "spec": spec,
        "status": {"guestOSInfo": {}, "runtimeUser": 0},
    }))?;
    ensure!(typed.status.as_ref().is_some_and(|status| status.runtime_user == Some(0)), "{:?}", typed.status);
    let instances: Api<VirtualMachineInstance> = space.api();
    let made = instances.create(&PostParams::default(), &typed).await?;
    ensure!(!made.spec.domain.devices.inputs.is_empty(), "no input device was added");

    let runs = |instance: Option<&VirtualMachineInstance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
            && instance.is_some_and(|instance| holds(instance, "AgentConnected"))
    };
    let instance = wait(instances.clone(), "typed", runs).await?.context("the instance is gone")?;
    let pods: Api<Pod> = space.api();
    let launchers = pods.list(&ListParams::default().labels("kubevirt.io=virt-launcher")).await?;
    let launcher = launchers.items.first().context("no launcher pod")?;
    ensure!(launcher.annotations().get("kubevirt.io/test").map(String::as_str) == Some("test"));
    let limited = launcher.spec.iter().flat_map(|spec| &spec.containers).all(|container| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| limits.contains_key("memory") && limits.contains_key("cpu"))
    });
    ensure!(limited, "a container of {} has no limits", launcher.name_any());

    for word in ["freeze", "freeze", "unfreeze", "unfreeze", "pause"] {
        subresource(&space, "PUT", word).await?;
    }
    let paused = |instance: Option<&VirtualMachineInstance>| instance.is_some_and(|instance| holds(instance, "Paused"));
    wait(instances.clone(), "typed", paused).await?;
    subresource(&space, "PUT", "unpause").await?;
    let told: VirtualMachineInstanceGuestAgentInfo =
        serde_json::from_str(&subresource(&space, "GET", "guestosinfo").await?)?;
    ensure!(told.guest_agent_version.is_some_and(|version| !version.is_empty()), "the guest told nothing of itself");

    instances.delete("typed", &DeleteParams::default()).await?;
    wait(instances, "typed", conditions::is_deleted(&instance.uid().unwrap_or_default())).await?;
    Ok(())
}

async fn refused(space: Space) -> Result<()> {
    quota(&space, json!({"count/virtualmachineinstances.kubevirt.io": "0"})).await?;
    let vms: Api<VirtualMachine> = space.api();
    vms.create(&PostParams::default(), &object(machine::on_kernel("refused", "Always"))?).await?;
    let told = |vm: Option<&VirtualMachine>| {
        let status = vm.and_then(|vm| vm.status.as_ref());
        status.is_some_and(|status| {
            let failure =
                status.conditions.iter().any(|c| c.type_ == "Failure" && c.reason.as_deref() == Some("FailedCreate"));
            failure && status.printable_status.as_deref() == Some("ErrorUnschedulable")
        })
    };
    wait(vms.clone(), "refused", told).await?;
    // Its event is written beside the status: it may come after it.
    let events: Api<Event> = space.api();
    let about = WatchParams::default().fields("involvedObject.name=refused,reason=FailedCreate");
    let mut told = pin!(events.watch(&about, "0").await?);
    let said = async {
        while let Some(event) = told.try_next().await? {
            let (WatchEvent::Added(event) | WatchEvent::Modified(event)) = event else { continue };
            if event.message.is_some_and(|text| text.contains("exceeded quota")) {
                return Ok(());
            }
        }
        bail!("the watch of events ended without the event")
    };
    tokio::time::timeout(LIMIT, said).await.context("no event says that the quota is exceeded")??;

    // What kept it away goes, and the instance comes.
    let quotas: Api<ResourceQuota> = space.api();
    quotas.delete("quota", &DeleteParams::default()).await?;
    let begins = |instance: Option<&VirtualMachineInstance>| instance.is_some();
    wait::<VirtualMachineInstance>(space.api(), "refused", begins).await?;
    vms.delete("refused", &DeleteParams::default()).await?;
    Ok(())
}
