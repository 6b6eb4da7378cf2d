//! From the first start of a machine to its end.

use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use cnao::ipam::claim::IPAMClaim;
use cnao::ipam::names::{DEFAULT_NETWORK, FINALIZER, MACHINE, PRIMARY_CLAIM};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster::{Cluster, launcher, make, networks};
use crate::cluster::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_keeps_its_claim_over_restarts_and_migrations_until_it_is_gone() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let all = [("default", ""), ("Blue", "kept"), ("red", "other/kept"), ("plain", "plain")];
    let (machine, instance) = cluster.machine("vm", &all).await;
    let claim = cluster.claimed("vm.blue").await;
    cluster.claimed("vm.red").await;
    assert_eq!(claim.spec.network, "kept-net");
    assert_eq!(claim.spec.interface, api::kubevirt::identity::pod_interface("Blue"));
    assert_eq!((claim.labels()[MACHINE].as_str(), claim.finalizers()), ("vm", &[FINALIZER.to_owned()][..]));
    let owner = &claim.owner_references()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("VirtualMachine", machine.uid().as_ref()));
    assert!(cluster.claim("vm.plain").await.is_none() && cluster.claim("vm.default").await.is_none());

    let virt = cluster.user("virt-controller");
    let references = |pod: &Pod| -> Vec<Value> {
        let of = |one: &Value| json!([one["ipam-claim-reference"], one["ipam-claim-uid"]]);
        networks(pod).as_array().unwrap().iter().map(of).collect()
    };
    let source = make(&virt, &launcher("source", &instance)).await.unwrap();
    let expect = references(&source);
    assert_eq!(expect[0], json!(["vm.blue", claim.uid()]));
    assert_eq!((&expect[1][0], &expect[2]), (&json!("vm.red"), &json!([null, null])));
    let target = make(&virt, &launcher("target", &instance)).await.unwrap();
    assert_eq!(references(&target), expect);

    // A restart: another instance of the same machine.
    cluster.delete::<VirtualMachineInstance>("vm").await;
    let again = cluster.instance("vm", machine.uid().as_deref(), &all).await;
    let restarted = make(&virt, &launcher("restarted", &again)).await.unwrap();
    assert_eq!(references(&restarted), expect);

    // The machine is deleted while its instance still runs: one that waits for its first pod would not hold the claim.
    let running = json!({ "status": { "phase": "Running" } });
    let vmis = cluster.of::<VirtualMachineInstance>();
    vmis.patch("vm", &PatchParams::default(), &Patch::Merge(running)).await.unwrap();
    cluster.delete::<VirtualMachine>("vm").await;
    cluster.of::<IPAMClaim>().delete("vm.blue", &DeleteParams::default()).await.unwrap();
    until("its end was seen", async || cluster.claim("vm.blue").await?.metadata.deletion_timestamp).await;
    assert!(cluster.claim("vm.blue").await.is_some(), "its pods have the addresses");
    cluster.delete::<VirtualMachineInstance>("vm").await;
    cluster.let_go("vm.blue").await;
    cluster.let_go("vm.red").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_keeps_no_addresses_has_no_claims_until_it_does() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let (_, instance) = cluster.machine("vm", &[("default", ""), ("plain", "plain"), ("late", "late")]).await;
    let virt = cluster.user("virt-controller");
    let pod = launcher("p", &instance);
    let made = make(&virt, &pod).await.unwrap();
    assert_eq!(made.annotations(), pod.annotations());
    // A machine beside it, for the controller to have come by.
    cluster.machine("other", &[("blue", "kept")]).await;
    cluster.claimed("other.blue").await;
    assert!(cluster.claim("vm.plain").await.is_none());
    let config = json!({ "name": "late", "allowPersistentIPs": true });
    cluster.network("ns", "late", &config).await;
    cluster.claimed("vm.late").await;
}

/// Whatever ends when, whoever comes next finds what is there and does the rest.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_end_anywhere_and_others_go_on() {
    let cluster = Cluster::new().await;
    // Nobody leads: the webhook makes the claim, and its pod is not stored.
    let asked = cluster.replica(false).await;
    let (machine, instance) = cluster.machine("vm", &[("blue", "kept")]).await;
    let virt = cluster.user("virt-controller");
    let mut bad = launcher("bad", &instance);
    bad.spec.as_mut().unwrap().containers[0].image = None;
    bad.spec.as_mut().unwrap().containers.clear();
    make(&virt, &bad).await.unwrap_err();
    make(&virt, &launcher("p", &instance)).await.unwrap();
    let first = cluster.claimed("vm.blue").await;
    cluster.kill(asked).await;
    // Somebody takes the finalizer off meanwhile; who leads next puts it back and makes no other.
    let bare = Patch::Merge(json!({ "metadata": { "finalizers": null, "labels": null } }));
    cluster.of::<IPAMClaim>().patch("vm.blue", &PatchParams::default(), &bare).await.unwrap();
    let leader = cluster.replica(true).await;
    let held = until("it is held again", async || {
        cluster
            .claim("vm.blue")
            .await
            .filter(|claim| claim.finalizers() == [FINALIZER] && claim.labels().contains_key(MACHINE))
    })
    .await;
    assert_eq!(held.uid(), first.uid());
    cluster.kill(leader).await;
    // Everything ends while nobody looks.
    cluster.delete::<VirtualMachine>("vm").await;
    cluster.delete::<VirtualMachineInstance>("vm").await;
    assert_eq!(machine.uid(), first.owner_references().first().map(|owner| owner.uid.clone()));
    let (one, two) = (cluster.replica(true).await, cluster.replica(true).await);
    cluster.let_go("vm.blue").await;
    one.end().await;
    two.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_of_a_name_that_was_used_gets_a_claim_of_its_own() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    cluster.machine("vm", &[("blue", "kept")]).await;
    let first = cluster.claimed("vm.blue").await;
    cluster.delete::<VirtualMachine>("vm").await;
    cluster.delete::<VirtualMachineInstance>("vm").await;
    let (_, instance) = cluster.machine("vm", &[("blue", "kept")]).await;
    cluster.let_go("vm.blue").await;
    // As the garbage collector does.
    cluster.delete::<IPAMClaim>("vm.blue").await;
    let virt = cluster.user("virt-controller");
    let pod = until("there is a pod", async || make(&virt, &launcher("p", &instance)).await.ok()).await;
    let second = cluster.claimed("vm.blue").await;
    assert_ne!(first.uid(), second.uid());
    assert_eq!(networks(&pod)[0]["ipam-claim-uid"], json!(second.uid()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_a_user_deletes_is_made_anew_with_the_next_start() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let (machine, _) = cluster.machine("vm", &[("blue", "kept")]).await;
    let first = cluster.claimed("vm.blue").await;
    let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
    let vmis = cluster.of::<VirtualMachineInstance>();
    vmis.patch("vm", &PatchParams::default(), &running).await.unwrap();
    cluster.of::<IPAMClaim>().delete("vm.blue", &DeleteParams::default()).await.unwrap();
    cluster.delete::<VirtualMachineInstance>("vm").await;
    cluster.instance("vm", machine.uid().as_deref(), &[("blue", "kept")]).await;
    let second =
        until("there is another", async || cluster.claim("vm.blue").await.filter(|claim| claim.uid() != first.uid()))
            .await;
    assert!(second.metadata.deletion_timestamp.is_none());
}

/// virt-controller has made the pod, and its status does not say so yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_not_let_go_under_a_pod_that_its_instance_does_not_tell_of() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let (_, instance) = cluster.machine("vm", &[("blue", "kept")]).await;
    let first = cluster.claimed("vm.blue").await;
    make(&cluster.user("virt-controller"), &launcher("p", &instance)).await.unwrap();
    cluster.of::<IPAMClaim>().delete("vm.blue", &DeleteParams::default()).await.unwrap();
    // Longer than pods may come up that were let in before.
    tokio::time::sleep(Duration::from_secs(14)).await;
    let held = cluster.claim("vm.blue").await.expect("its pod has the addresses");
    assert_eq!((held.uid(), held.finalizers()), (first.uid(), &[FINALIZER.to_owned()][..]));
    cluster.delete::<Pod>("p").await;
    until("the machine gets another", async || {
        cluster.claim("vm.blue").await.filter(|claim| claim.uid() != first.uid())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_on_a_primary_network_names_its_claim_in_both_annotations() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let config = json!({ "name": "udn", "role": "primary", "allowPersistentIPs": true, "subnets": "10.1.0.0/16" });
    cluster.network("ns", "udn", &config).await;
    let (machine, instance) = cluster.machine("vm", &[("net", "")]).await;
    let virt = cluster.user("virt-controller");
    let plain = make(&virt, &launcher("plain", &instance)).await.unwrap();
    assert_eq!(plain.annotations()[PRIMARY_CLAIM], "vm.net");
    assert!(!plain.annotations().contains_key(DEFAULT_NETWORK));
    assert_eq!(cluster.claimed("vm.net").await.spec.network, "udn");
    let addresses = Patch::Merge(
        json!({ "metadata": { "annotations": { "network.kubevirt.io/addresses": r#"{"net": ["10.1.0.7"]}"# } } }),
    );
    cluster.of::<VirtualMachineInstance>().patch("vm", &PatchParams::default(), &addresses).await.unwrap();
    let asked = make(&virt, &launcher("asked", &instance)).await.unwrap();
    let element: Value = serde_json::from_str(&asked.annotations()[DEFAULT_NETWORK]).unwrap();
    assert_eq!(
        element,
        json!([{ "name": "default", "namespace": "ovn-kubernetes", "ips": ["10.1.0.7/16"], "ipam-claim-reference": "vm.net" }])
    );
    assert!(machine.uid().is_some());
}
