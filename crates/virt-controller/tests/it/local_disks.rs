//! Disks that one node reaches move with their guests, and come back under their names. Binder and nodes are played.

use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, in_phase, start, wait};
use crate::migration::{arrives, migrate, reaches, say, source_pod, target_pod, under_way};
use crate::storage::on;

struct Disks {
    cluster: Cluster,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
}

impl Disks {
    /// A guest that runs on the claim `data` of a class with this provisioner.
    async fn with_guest(provisioner: &str) -> Self {
        let cluster = Box::pin(start()).await;
        let disks = Self {
            claims: Api::namespaced(cluster.client.clone(), "default"),
            volumes: Api::all(cluster.client.clone()),
            cluster,
        };
        let classes: Api<StorageClass> = Api::all(disks.cluster.client.clone());
        let class = json!({ "metadata": { "name": "local" }, "provisioner": provisioner });
        classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
        let claim = serde_json::from_value(manifest()).unwrap();
        disks.claims.create(&PostParams::default(), &claim).await.unwrap();
        disks.bind("data", "pv-1").await;
        Box::pin(disks.boot()).await;
        disks
    }

    async fn boot(&self) {
        let vm = on(json!({ "persistentVolumeClaim": { "claimName": "data" } }));
        let vmi = json!({
            "metadata": { "name": "vm", "finalizers": ["kubevirt.io/foregroundDeleteVirtualMachine"] },
            "spec": vm.spec.template.spec, "status": { "phase": "Pending" },
        });
        self.cluster.vmis.create(&PostParams::default(), &serde_json::from_value(vmi).unwrap()).await.unwrap();
        let vmi = wait(&self.cluster.vmis, "vm", "scheduling", in_phase("Scheduling")).await.unwrap();
        let pod = self.cluster.pods.get(&virt_controller::vmi::pod::name(&vmi)).await.unwrap();
        self.cluster.run(&pod, json!({ "running": {} })).await;
        wait(&self.cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
        say(&self.cluster, "vm", json!({ "status": { "phase": "Running" } })).await;
    }

    /// What binder and provisioner do: the claim gets the volume, which is made if it is not there.
    async fn bind(&self, claim: &str, volume: &str) {
        let held = self.claims.get(claim).await.unwrap();
        let reference = json!({
            "kind": "PersistentVolumeClaim", "namespace": "default", "name": claim, "uid": held.uid(),
        });
        let made = json!({ "metadata": { "name": volume }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "capacity": { "storage": "2Gi" },
            "persistentVolumeReclaimPolicy": "Delete", "claimRef": reference,
            "csi": { "driver": "local", "volumeHandle": volume },
        } });
        match self.volumes.get_opt(volume).await.unwrap() {
            Some(_) => self.change(volume, json!({ "spec": { "claimRef": reference } })).await,
            None => {
                let made = serde_json::from_value(made).unwrap();
                self.volumes.create(&PostParams::default(), &made).await.unwrap();
            }
        }
        let params = PatchParams::default();
        let bound = json!({ "spec": { "volumeName": volume } });
        self.claims.patch(claim, &params, &Patch::Merge(bound)).await.unwrap();
        let bound = json!({ "status": { "phase": "Bound", "capacity": { "storage": "2Gi" } } });
        self.claims.patch_status(claim, &params, &Patch::Merge(bound)).await.unwrap();
    }

    async fn change(&self, volume: &str, patch: Value) {
        self.volumes.patch(volume, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn claim(&self, what: &'static str, is: fn(&PersistentVolumeClaim) -> bool) -> PersistentVolumeClaim {
        let there = move |claim: Option<&PersistentVolumeClaim>| claim.is_some_and(is);
        wait(&self.claims, "data", what, there).await.unwrap()
    }

    async fn names(&self) -> Vec<String> {
        let list = self.claims.list(&ListParams::default()).await.unwrap();
        list.items.iter().map(ResourceExt::name_any).collect()
    }

    /// The claim is deleted, and protected no more.
    async fn gone(&self, claim: &str) {
        let going = |claim: Option<&PersistentVolumeClaim>| {
            claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
        };
        let Some(held) = wait(&self.claims, claim, "deleted", going).await else { return };
        let free = json!({ "metadata": { "uid": held.uid(), "finalizers": null } });
        self.claims.patch(claim, &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
        let gone = move |found: Option<&PersistentVolumeClaim>| found.is_none_or(|found| found.uid() != held.uid());
        wait(&self.claims, claim, "gone", gone).await;
    }

    /// Its stand-in is gone, the claim with the outdated disk follows, and is made again.
    async fn made_again(&self, stand_in: &str) -> PersistentVolumeClaim {
        self.gone(stand_in).await;
        self.gone("data").await;
        self.claim("made again", |claim| says(claim).is_none()).await
    }

    /// The guest moves to node2, and its disk into the volume `into`.
    async fn moves(&self, name: &str, into: &str) -> String {
        let migration = migrate(&self.cluster, name, "vm").await;
        let target = target_pod(&self.cluster, &migration, "vm").await;
        let stand_in = claim_of(&target);
        self.bind(&stand_in, into).await;
        let source = source_pod(&self.cluster, "vm").await;
        under_way(&self.cluster, &migration, "vm", "node2").await;
        arrives(&self.cluster, "vm", "node2").await;
        reaches(&self.cluster, name, "Succeeded").await;
        self.cluster.end(&source.name_any()).await;
        stand_in
    }

    /// The guest is deleted, and its pod ends.
    async fn stop(&self) {
        self.cluster.vmis.delete("vm", &DeleteParams::default()).await.unwrap();
        for pod in self.cluster.pods.list(&ListParams::default()).await.unwrap().items {
            self.cluster.end(&pod.name_any()).await;
        }
        let gone = |vmi: Option<&VirtualMachineInstance>| vmi.is_none();
        wait(&self.cluster.vmis, "vm", "gone", gone).await;
    }
}

/// The claim as its owner wrote it.
fn manifest() -> Value {
    json!({ "metadata": { "name": "data", "labels": { "app": "x" } }, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
        "resources": { "requests": { "storage": "1Gi" } },
    } })
}

fn claim_of(pod: &Pod) -> String {
    let volumes = pod.spec.as_ref().unwrap().volumes.as_ref().unwrap();
    let mut claims = volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.next().unwrap().claim_name.clone()
}

fn says(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get("ferrovirt.io/moved-to").map(String::as_str)
}

#[tokio::test]
async fn a_disk_moves_and_comes_back_under_its_name() {
    let disks = Box::pin(Disks::with_guest("csi.example")).await;
    let stand_in = Box::pin(disks.moves("move", "pv-2")).await;
    assert_ne!(stand_in, "data");
    let vmi = wait(&disks.cluster.vmis, "vm", "on its new claim", {
        let stand_in = stand_in.clone();
        move |vmi: Option<&VirtualMachineInstance>| {
            let volume = vmi.and_then(|vmi| vmi.spec.volumes[0].persistent_volume_claim.as_ref());
            volume.is_some_and(|claim| claim.claim_name == stand_in)
        }
    })
    .await
    .unwrap();
    let status = vmi.status.as_ref().unwrap();
    let info = |found: &Option<Box<api::kubevirt::v1::PersistentVolumeClaimInfo>>| {
        found.as_ref().and_then(|info| info.claim_name.clone()).unwrap()
    };
    assert_eq!(info(&status.volume_status[0].persistent_volume_claim_info), stand_in);
    let moved = &status.migrated_volumes[0];
    assert_eq!(
        (moved.volume_name.as_str(), info(&moved.source_pvc_info), info(&moved.destination_pvc_info)),
        ("root", "data".to_owned(), stand_in.clone())
    );
    let old = disks.claim("pointing", |claim| says(claim).is_some()).await;
    assert_eq!(says(&old), Some(stand_in.as_str()));
    let made = disks.claims.get(&stand_in).await.unwrap();
    let owner = &made.owner_references()[0];
    assert_eq!((owner.name.as_str(), Some(owner.uid.as_str())), ("data", old.metadata.uid.as_deref()));
    let size = &made.spec.unwrap().resources.unwrap().requests.unwrap()["storage"];
    assert_eq!(size.0, "2Gi", "as large as what it has to hold");

    disks.stop().await;
    let again = disks.made_again(&stand_in).await;
    assert_ne!(again.uid(), old.uid());
    let spec = again.spec.as_ref().unwrap();
    assert_eq!((spec.volume_name.as_deref(), again.labels()["app"].as_str()), (Some("pv-2"), "x"));
    let kept = disks.volumes.get("pv-2").await.unwrap();
    let (spec, labels) = (kept.spec.as_ref().unwrap(), kept.labels());
    let reference = spec.claim_ref.as_ref().unwrap();
    assert_eq!((reference.name.as_deref(), reference.uid.as_deref()), (Some("data"), None));
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Retain"));
    assert!(labels.contains_key("ferrovirt.io/put-back"));
    disks.bind("data", "pv-2").await;
    let plain = |volume: Option<&PersistentVolume>| {
        volume.is_some_and(|volume| {
            let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
            policy == Some("Delete") && volume.labels().is_empty() && volume.annotations().is_empty()
        })
    };
    Box::pin(wait(&disks.volumes, "pv-2", "as any other volume", plain)).await;
    assert_eq!(disks.names().await, ["data"]);
    Box::pin(disks.boot()).await;
}

#[tokio::test]
async fn a_disk_that_moves_twice_leaves_one_stand_in() {
    let disks = Box::pin(Disks::with_guest("csi.example")).await;
    let first = Box::pin(disks.moves("move", "pv-2")).await;
    disks.claim("pointing", |claim| says(claim).is_some()).await;
    say(&disks.cluster, "vm", json!({ "metadata": { "labels": { "kubevirt.io/nodeName": "node2" } } })).await;
    let migration = migrate(&disks.cluster, "again", "vm").await;
    let target = target_pod(&disks.cluster, &migration, "vm").await;
    let second = claim_of(&target);
    assert_ne!(second, first);
    let made = disks.claims.get(&second).await.unwrap();
    assert_eq!(made.annotations()["ferrovirt.io/stands-in-for"], "data");
    disks.bind(&second, "pv-3").await;
    let before = disks.cluster.pods.list(&ListParams::default()).await.unwrap().items;
    under_way(&disks.cluster, &migration, "vm", "node3").await;
    arrives(&disks.cluster, "vm", "node3").await;
    reaches(&disks.cluster, "again", "Succeeded").await;
    for pod in before.iter().filter(|pod| pod.name_any() != target.name_any()) {
        disks.cluster.end(&pod.name_any()).await;
    }
    disks.gone(&first).await;
    let claim = disks.claims.get("data").await.unwrap();
    assert_eq!(says(&claim), Some(second.as_str()));
    disks.stop().await;
    let again = disks.made_again(&second).await;
    assert_eq!(again.spec.unwrap().volume_name.as_deref(), Some("pv-3"));
}

#[tokio::test]
async fn a_migration_that_is_cancelled_leaves_no_claim() {
    let disks = Box::pin(Disks::with_guest("csi.example")).await;
    let migration = migrate(&disks.cluster, "move", "vm").await;
    let target = target_pod(&disks.cluster, &migration, "vm").await;
    let stand_in = claim_of(&target);
    disks.cluster.migrations.delete("move", &DeleteParams::default()).await.unwrap();
    disks.gone(&stand_in).await;
    assert_eq!(disks.names().await, ["data"]);
    assert_eq!(says(&disks.claims.get("data").await.unwrap()), None);
}

#[tokio::test]
async fn a_disk_that_nothing_can_be_made_for_does_not_move_and_says_so() {
    let disks = Box::pin(Disks::with_guest("kubernetes.io/no-provisioner")).await;
    let vmi = disks.cluster.vmis.get("vm").await.unwrap();
    let said = vmi.status.unwrap().volume_status[0].message.clone().unwrap();
    assert!(said.starts_with("the disk on PVC default/data cannot be copied: StorageClass \"local\" has no"), "{said}");
    migrate(&disks.cluster, "move", "vm").await;
    reaches(&disks.cluster, "move", "Failed").await;
    let why = "Migration failed because the disk on PVC default/data cannot be copied: StorageClass \"local\" has no \
               provisioner, and no PersistentVolume of it with 2Gi is available";
    crate::migration::told(&disks.cluster, "move", why).await;
    assert_eq!(disks.names().await, ["data"]);
}

#[tokio::test]
async fn a_guest_waits_until_its_disk_is_back() {
    let disks = Box::pin(Disks::with_guest("csi.example")).await;
    let stand_in = Box::pin(disks.moves("move", "pv-2")).await;
    disks.claim("pointing", |claim| says(claim).is_some()).await;
    // Somebody's pod looks into the disk, and goes on when its guest has ended.
    let pod = json!({ "metadata": { "name": "looks" }, "spec": {
        "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": stand_in } }],
    } });
    disks.cluster.vmis.delete("vm", &DeleteParams::default()).await.unwrap();
    let running = disks.cluster.pods.list(&ListParams::default()).await.unwrap().items;
    disks.cluster.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    for pod in running {
        disks.cluster.end(&pod.name_any()).await;
    }
    wait(&disks.cluster.vmis, "vm", "gone", |vmi: Option<&VirtualMachineInstance>| vmi.is_none()).await;
    let vm = on(json!({ "dataVolume": { "name": "data" } }));
    let next = json!({ "metadata": { "name": "next" }, "spec": vm.spec.template.spec });
    disks.cluster.vmis.create(&PostParams::default(), &serde_json::from_value(next).unwrap()).await.unwrap();
    let waits = |vmi: Option<&VirtualMachineInstance>| {
        let conditions = vmi.and_then(|vmi| vmi.status.as_ref()).map(|status| status.conditions.as_slice());
        conditions
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "Synchronized" && c.reason.as_deref() == Some("DiskNotPutBack"))
    };
    let vmi = wait(&disks.cluster.vmis, "next", "waiting", waits).await.unwrap();
    let said = vmi.status.unwrap().conditions.into_iter().find(|c| c.type_ == "Synchronized").unwrap().message.unwrap();
    let expect = format!(
        "PVC default/data: its disk moved with a guest and is on PVC default/{stand_in}; it is put back when nobody uses \
         that any more"
    );
    assert_eq!(said, expect);
    assert_eq!(disks.names().await.len(), 2);
    disks.cluster.end("looks").await;
    disks.made_again(&stand_in).await;
    let scheduling = wait(&disks.cluster.vmis, "next", "scheduling", in_phase("Scheduling")).await.unwrap();
    let pod = disks.cluster.pods.get(&virt_controller::vmi::pod::name(&scheduling)).await.unwrap();
    assert_eq!(claim_of(&pod), "data");
}
