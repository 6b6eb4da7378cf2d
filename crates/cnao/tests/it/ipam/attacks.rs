//! Who wants the addresses of somebody else's machine.

use api::kubevirt::v1::VirtualMachineInstance;
use cnao::ipam::names::{NETWORKS, PRIMARY_CLAIM};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::cluster::{Cluster, launcher, make, networks, refusal};
use crate::cluster::until;

fn pod(name: &str, annotations: &Value) -> Pod {
    let spec = json!({ "containers": [{ "name": "c", "image": "i" }] });
    serde_json::from_value(json!({ "metadata": { "name": name, "annotations": annotations }, "spec": spec })).unwrap()
}

const THEIRS: &str = r#"[{"name": "kept", "interface": "net1", "ipam-claim-reference": "victim.blue"}]"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_names_a_claim_only_if_its_writer_may_write_claims() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    cluster.machine("victim", &[("blue", "kept")]).await;
    cluster.claimed("victim.blue").await;
    let tenant = cluster.user("tenant");
    let escaped = r#"[{"name": "kept", "interface": "net1", "ipam\u002dclaim-reference": "victim.blue"}]"#;
    let shouted = r#"[{"name": "kept", "interface": "net1", "IPAM-CLAIM-REFERENCE": "victim.blue"}]"#;
    for annotations in [
        json!({ NETWORKS: THEIRS }),
        json!({ NETWORKS: escaped }),
        json!({ NETWORKS: shouted }),
        json!({ PRIMARY_CLAIM: "victim.blue" }),
        json!({ "v1.multus-cni.io/default-network": THEIRS }),
    ] {
        let refused = refusal(
            until("the policy holds", async || {
                let made = make(&tenant, &pod("evil", &annotations)).await;
                // A policy is heard of a moment after it is there.
                if made.is_ok() {
                    cluster.delete::<Pod>("evil").await;
                }
                made.is_err().then_some(made)
            })
            .await,
        );
        assert!(refused.contains("User \"tenant\" cannot update resource \"ipamclaims\""), "{annotations}: {refused}");
    }
    // Nor later.
    make(&tenant, &pod("evil", &json!({ NETWORKS: "kept" }))).await.unwrap();
    let change = Patch::Merge(json!({ "metadata": { "annotations": { NETWORKS: THEIRS } } }));
    let pods: Api<Pod> = Api::namespaced(tenant.clone(), "ns");
    let refused = refusal(pods.patch("evil", &PatchParams::default(), &change).await);
    assert!(refused.contains("cannot update resource \"ipamclaims\""), "{refused}");
    // Who may write claims could write the addresses anyhow.
    let made = make(&cluster.user("owner"), &pod("fine", &json!({ NETWORKS: THEIRS }))).await.unwrap();
    // And whoever changes something else of that pod is not asked.
    let note = Patch::Merge(json!({ "metadata": { "annotations": { "note": "x" } } }));
    pods.patch(&made.name_any(), &PatchParams::default(), &note).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_poses_as_a_launcher_is_refused() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let (_, victim) = cluster.machine("victim", &[("blue", "kept")]).await;
    cluster.claimed("victim.blue").await;
    let tenant = cluster.user("tenant");
    let refused = refusal(make(&tenant, &launcher("evil", &victim)).await);
    assert!(refused.contains("User \"tenant\" cannot update resource \"virtualmachineinstances\""), "{refused}");
    // The label alone, which the policy leaves to the webhook.
    let mut labelled = pod("evil", &json!({ NETWORKS: THEIRS }));
    labelled.labels_mut().insert("kubevirt.io".into(), "virt-launcher".into());
    let refused = refusal(make(&tenant, &labelled).await);
    assert!(refused.contains("names the IPAMClaim \"victim.blue\", and runs no virtual machine"), "{refused}");
    // The name of the machine, without being its pod.
    let mut named = launcher("evil", &victim);
    named.metadata.owner_references = None;
    let refused = refusal(make(&cluster.user("virt-controller"), &named).await);
    assert!(refused.contains("which does not control it"), "{refused}");
    // A pod without networks that gets some later.
    labelled.annotations_mut().clear();
    make(&tenant, &labelled).await.unwrap();
    let annotations = json!(launcher("evil", &victim).annotations());
    let change = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let pods: Api<Pod> = Api::namespaced(tenant, "ns");
    let refused = refusal(pods.patch("evil", &PatchParams::default(), &change).await);
    assert!(refused.contains("which does not control it"), "{refused}");
}

/// A user may write machines of the namespace, and annotations on them, which their pods get.
#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_on_a_machine_names_no_claim_of_another() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    cluster.machine("victim", &[("blue", "kept")]).await;
    cluster.claimed("victim.blue").await;
    let (_, evil) = cluster.machine("evil", &[("default", "")]).await;
    let virt = cluster.user("virt-controller");
    for (key, value) in
        [(NETWORKS, THEIRS), (PRIMARY_CLAIM, "victim.blue"), ("v1.multus-cni.io/default-network", THEIRS)]
    {
        let mut pod = launcher("evil", &evil);
        pod.annotations_mut().insert(key.into(), value.into());
        let refused = refusal(make(&virt, &pod).await);
        assert!(
            refused.contains("names the IPAMClaim \"victim.blue\", which is not that of this machine's network"),
            "{refused}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_of_the_same_name_does_not_get_the_machines_claim() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let (machine, _) = cluster.machine("vm", &[("blue", "kept")]).await;
    let claim = cluster.claimed("vm.blue").await;
    // The machine is stopped, and somebody makes an instance of its name.
    cluster.delete::<VirtualMachineInstance>("vm").await;
    let evil = cluster.instance("vm", None, &[("blue", "kept")]).await;
    let virt = cluster.user("virt-controller");
    let refused = refusal(make(&virt, &launcher("evil", &evil)).await);
    let sentence = "IPAMClaim ns/vm.blue is of VirtualMachine vm with the UID";
    assert!(refused.contains(sentence), "{refused}");
    until("its owner is told", async || {
        cluster.told("vm").await.iter().any(|message| message.contains(sentence)).then_some(())
    })
    .await;
    // The machine has it still.
    cluster.delete::<VirtualMachineInstance>("vm").await;
    let own = cluster.instance("vm", machine.uid().as_deref(), &[("blue", "kept")]).await;
    let pod = make(&virt, &launcher("p", &own)).await.unwrap();
    assert_eq!(networks(&pod)[0]["ipam-claim-uid"], json!(claim.uid()));
}

/// A claim that lies ready under the name that a machine will have.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_somebody_laid_ready_is_not_used() {
    let cluster = Cluster::new().await;
    let _replica = cluster.replica(true).await;
    let metadata = json!({ "name": "vm.blue", "labels": { "kubevirt.io/vm": "vm" } });
    let spec = json!({ "network": "kept-net", "interface": "" });
    let _: cnao::ipam::claim::IPAMClaim = cluster
        .create(&json!({
            "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim", "metadata": metadata, "spec": spec,
        }))
        .await;
    let (_, instance) = cluster.machine("vm", &[("blue", "kept")]).await;
    let refused = refusal(make(&cluster.user("virt-controller"), &launcher("p", &instance)).await);
    assert!(refused.contains("IPAMClaim ns/vm.blue is not of a machine"), "{refused}");
    until("its owner is told", async || {
        cluster.told("vm").await.iter().any(|message| message.contains("is not of a machine")).then_some(())
    })
    .await;
}
