//! Namespaces whose quotas count limits: what a guest needs has some.

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceQuota};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::cluster::{in_phase, machine, start, wait};
use crate::hotplug::{attachments, template};
use crate::migration::{migrate, target_pod};
use crate::storage::claim_with;

/// The limits of each container.
fn limits(pod: &Pod) -> Vec<(String, Value)> {
    let spec = pod.spec.as_ref().unwrap();
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.map(|Container { name, resources, .. }| {
        let limits = resources.as_ref().and_then(|resources| resources.limits.as_ref());
        (name.clone(), json!(limits.map(|limits| [&limits["cpu"], &limits["memory"]])))
    })
    .collect()
}

#[tokio::test]
async fn guests_start_and_move_and_get_volumes_where_a_quota_counts_limits() {
    let cluster = start().await;
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), "default");
    let hard = json!({ "limits.cpu": "8", "limits.memory": "8Gi" });
    let quota = json!({ "metadata": { "name": "limits" }, "spec": { "hard": hard } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).unwrap()).await.unwrap();
    cluster.vms.create(&PostParams::default(), &machine("Always")).await.unwrap();
    let pod = cluster.pod().await;
    let compute = pod.spec.as_ref().unwrap().containers[0].resources.clone().unwrap();
    let asked = meta::quantity::Amount::try_from(&compute.requests.unwrap()["memory"]).unwrap();
    let twice = asked.saturating_mul(2).to_binary().0;
    let expect = |name: &str, cpu: &str, memory: &str| (name.to_owned(), json!([cpu, memory]));
    let beside = [expect("volumeroot", "100m", "40M"), expect("container-disk-binary", "100m", "40M")];
    let whole = [&[expect("compute", "1", &twice)][..], &beside].concat();
    assert_eq!(limits(&pod), whole);

    cluster.run(&pod, json!({ "running": {} })).await;
    wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
    cluster.guest("Running").await;
    let running = |vmi: Option<&VirtualMachineInstance>| {
        vmi.and_then(|vmi| vmi.status.as_ref()).is_some_and(|status| status.phase.as_deref() == Some("Running"))
    };
    wait(&cluster.vmis, "vm", "running", running).await;
    claim_with(&cluster, "data", "pv", "Block", "ReadWriteMany").await;
    template(&cluster, &["data"]).await;
    let pods = attachments(&cluster, "attached", |pods| pods.len() == 1).await;
    assert_eq!(limits(&pods[0])[0].1, json!(["100m", "40M"]));
    let migration = migrate(&cluster, "move", "vm").await;
    assert_eq!(limits(&target_pod(&cluster, &migration, "vm").await), whole);
}
