//! Migrations under everything that may happen at once: users who migrate and cancel, pods that die, virt-handlers that
//! act late and on old news. Time is virtual and every run follows its seed.
//!
//! The played libvirt keeps its promise, that a guest runs on one side; what is tested is that this controller never takes
//! the side that runs away, and that whatever happened, one pod with one running guest is left and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, in_phase, machine, start, wait};

/// A generator of decisions (splitmix64): the same seed decides the same.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

/// What the nodes know and the API does not.
#[derive(Default)]
struct Nodes {
    /// Pods whose launcher lives, and whether the guest runs in it.
    launchers: BTreeMap<String, bool>,
    /// The target pod into which the guest is being copied, by migration.
    copying: BTreeMap<String, String>,
    /// How a copy ended, until the source's virt-handler has written it: whether the guest moved.
    ended: BTreeMap<String, bool>,
}

impl Nodes {
    fn running(&self) -> Vec<&String> {
        self.launchers.iter().filter(|(_, runs)| **runs).map(|(pod, _)| pod).collect()
    }
}

struct World {
    cluster: Cluster,
    nodes: Nodes,
    dice: Dice,
    made: u32,
    /// The guest's VMI as a virt-handler saw it last; it need not be the latest.
    news: Option<VirtualMachineInstance>,
    log: Vec<String>,
}

impl World {
    async fn new(seed: u64) -> Self {
        let cluster = Box::pin(start()).await;
        let vmi = json!({
            "metadata": { "name": "vm", "finalizers": ["kubevirt.io/foregroundDeleteVirtualMachine"] },
            "spec": machine("Always").spec.template.spec, "status": { "phase": "Pending" },
        });
        cluster.vmis.create(&PostParams::default(), &serde_json::from_value(vmi).unwrap()).await.unwrap();
        let vmi = wait(&cluster.vmis, "vm", "scheduling", in_phase("Scheduling")).await.unwrap();
        let pod = cluster.pods.get(&virt_controller::vmi::pod::name(&vmi)).await.unwrap();
        cluster.run(&pod, json!({ "running": {} })).await;
        wait(&cluster.vmis, "vm", "scheduled", in_phase("Scheduled")).await;
        cluster.guest("Running").await;
        let mut nodes = Nodes::default();
        nodes.launchers.insert(pod.name_any(), true);
        World { cluster, nodes, dice: Dice(seed), made: 0, news: None, log: Vec::new() }
    }

    fn note(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    async fn vmi(&self) -> VirtualMachineInstance {
        self.cluster.vmis.get("vm").await.unwrap()
    }

    async fn pods(&self) -> Vec<Pod> {
        self.cluster.pods.list(&ListParams::default()).await.unwrap().items
    }

    async fn migrations(&self) -> Vec<Migration> {
        self.cluster.migrations.list(&ListParams::default()).await.unwrap().items
    }

    /// What a virt-handler writes of what it saw: refused when the VMI has changed since.
    async fn write(&mut self, seen: &VirtualMachineInstance, mut patch: Value) -> bool {
        patch["metadata"]["resourceVersion"] = json!(seen.metadata.resource_version);
        let written = self.cluster.vmis.patch("vm", &PatchParams::default(), &Patch::Merge(patch)).await;
        written.is_ok()
    }

    /// Lets the controllers do all they can do now.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    /// A user starts or cancels, when it is possible.
    async fn user(&mut self) {
        let open: Vec<_> = self.migrations().await.into_iter().filter(|migration| !is_over(migration)).collect();
        if let Some(migration) = open.first() {
            if self.dice.one_in(3) {
                let name = migration.name_any();
                self.note(format!("cancel {name}"));
                self.cluster.migrations.delete(&name, &DeleteParams::default()).await.ok();
            }
            return;
        }
        self.made += 1;
        let name = format!("m{}", self.made);
        self.note(format!("migrate {name}"));
        let migration = json!({ "metadata": { "name": name }, "spec": { "vmiName": "vm" } });
        let migration = serde_json::from_value(migration).unwrap();
        self.cluster.migrations.create(&PostParams::default(), &migration).await.unwrap();
    }

    /// Binds and starts a pod, and ends what was told to end.
    async fn kubelet(&mut self) {
        let pods = self.pods().await;
        if pods.is_empty() {
            return;
        }
        let pod = pods[self.dice.roll(pods.len() as u64) as usize].clone();
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_some() {
            let ran = self.nodes.launchers.remove(&name);
            self.note(format!("{name} ends"));
            assert_ne!(ran, Some(true), "the pod with the running guest was deleted: {:#?}", self.log);
            self.cluster.end(&name).await;
        } else if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
            let taken: Vec<_> = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
            let free = ["node1", "node2", "node3"].into_iter().find(|node| !taken.iter().any(|one| one == node));
            if let Some(node) = free {
                self.note(format!("{name} starts on {node}"));
                self.cluster.run_on(node, &pod, json!({ "running": {} })).await;
                self.nodes.launchers.insert(name, false);
            }
        }
    }

    /// A launcher without a guest dies.
    async fn accident(&mut self) {
        let idle: Vec<_> =
            self.nodes.launchers.iter().filter(|(_, runs)| !**runs).map(|(pod, _)| pod.clone()).collect();
        if idle.is_empty() || !self.dice.one_in(4) {
            return;
        }
        let name = idle[self.dice.roll(idle.len() as u64) as usize].clone();
        self.note(format!("{name} dies"));
        self.nodes.launchers.remove(&name);
        if self.cluster.pods.get_opt(&name).await.unwrap().is_some() {
            let ended = json!({ "exitCode": 1, "finishedAt": kit::clock::time() });
            self.cluster.report(&name, json!({ "terminated": ended })).await;
        }
    }

    /// The copy goes on, on the nodes, whatever the API says.
    fn libvirt(&mut self) {
        let Some((job, target)) = self.nodes.copying.iter().next().map(|(a, b)| (a.clone(), b.clone())) else { return };
        let lives = self.nodes.launchers.get(&target) == Some(&false);
        let moves = lives && self.dice.one_in(2);
        if lives && !moves && !self.dice.one_in(4) {
            return;
        }
        self.note(format!("copy of {job} into {target} ends, moved: {moves}"));
        self.nodes.copying.remove(&job);
        if moves {
            for (pod, runs) in &mut self.nodes.launchers {
                *runs = *pod == target;
            }
        }
        self.nodes.ended.insert(job, moves);
    }

    /// The virt-handler of the node the guest is on, on what it saw.
    async fn source(&mut self, seen: &VirtualMachineInstance) {
        let status = seen.status.clone().unwrap_or_default();
        let Some(state) = status.migration_state.clone() else { return };
        let job = state.migration_uid.clone().unwrap_or_default();
        let over = state.completed == Some(true) || state.failed == Some(true);
        if over || status.node_name != state.source_node {
            return;
        }
        let now = "2026-01-01T00:00:00Z";
        if let Some(moved) = self.nodes.ended.get(&job).copied() {
            let mut end = json!({ "completed": true, "endTimestamp": now });
            if !moved {
                end["failed"] = json!(true);
                end["failureReason"] = json!("the copy failed");
            }
            self.note(format!("source says of {job}: moved {moved}"));
            self.write(seen, json!({ "status": { "migrationState": end } })).await;
        } else if state.start_timestamp.is_none() {
            let ready = state.target_node_address.is_some() && state.abort_requested != Some(true);
            let begin = json!({ "status": { "migrationState": { "startTimestamp": now } } });
            // It begins only once it has been written that it does.
            if ready && self.write(seen, begin).await {
                self.note(format!("source begins {job}"));
                self.nodes.copying.insert(job, state.target_pod.unwrap_or_default());
            }
        } else if state.abort_requested == Some(true) && self.nodes.copying.remove(&job).is_some() {
            self.note(format!("source aborts {job}"));
            self.nodes.ended.insert(job, false);
        }
    }

    /// The virt-handler of the node the guest is moved to, on what it saw.
    async fn target(&mut self, seen: &VirtualMachineInstance) {
        let status = seen.status.clone().unwrap_or_default();
        let (Some(state), called) = (status.migration_state, seen.labels().get("kubevirt.io/migrationTargetNodeName"))
        else {
            return;
        };
        if called.is_none() || called != state.target_node.as_ref() {
            return;
        }
        let (pod, node) = (state.target_pod.clone().unwrap_or_default(), state.target_node.clone().unwrap_or_default());
        let Some(runs) = self.nodes.launchers.get(&pod).copied() else { return };
        if state.target_node_address.is_none() {
            self.write(seen, json!({ "status": { "migrationState": { "targetNodeAddress": "10.0.0.2" } } })).await;
        } else if runs && state.target_node_domain_ready_timestamp.is_none() {
            let ready = json!({ "targetNodeDomainReadyTimestamp": "2026-01-01T00:00:00Z" });
            self.write(seen, json!({ "status": { "migrationState": ready } })).await;
        } else if runs
            && state.completed == Some(true)
            && state.failed != Some(true)
            && status.node_name.as_ref() != Some(&node)
        {
            self.note(format!("{node} takes over"));
            let labels = json!({ "kubevirt.io/nodeName": node });
            self.write(seen, json!({ "metadata": { "labels": labels }, "status": { "nodeName": node } })).await;
        }
    }

    /// One thing happens.
    async fn step(&mut self, chaos: bool) {
        // Half of the time a virt-handler acts on what it saw before.
        if self.news.is_none() || self.dice.one_in(2) {
            self.news = Some(self.vmi().await);
        }
        let seen = self.news.clone().unwrap();
        match self.dice.roll(10) {
            0 if chaos => self.user().await,
            1 if chaos => self.accident().await,
            2..=4 => self.kubelet().await,
            5 => self.libvirt(),
            6 | 7 => self.source(&seen).await,
            _ => self.target(&seen).await,
        }
        if self.dice.one_in(3) {
            self.settle().await;
        }
        assert!(self.nodes.running().len() == 1, "{:?} run: {:#?}", self.nodes.running(), self.log);
    }
}

fn is_over(migration: &Migration) -> bool {
    let phase = migration.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

async fn check(seed: u64) -> u32 {
    let mut world = Box::pin(World::new(seed)).await;
    for _ in 0..150 {
        world.step(true).await;
    }
    // Then the world calms down.
    for _ in 0..200 {
        world.step(false).await;
    }
    world.settle().await;
    let (vmi, pods, log) = (world.vmi().await, world.pods().await, &world.log);
    let status = vmi.status.clone().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"), "seed {seed}: {status:#?} {log:#?}");
    assert_eq!(pods.len(), 1, "seed {seed}: {log:#?}");
    let node = pods[0].spec.as_ref().and_then(|spec| spec.node_name.clone());
    assert_eq!(status.node_name, node, "seed {seed}: {log:#?}");
    assert_eq!(world.nodes.running(), [&pods[0].name_any()], "seed {seed}: {log:#?}");
    assert_eq!(status.active_pods, [(pods[0].uid().unwrap(), node.unwrap())].into(), "seed {seed}: {log:#?}");
    assert!(!vmi.labels().contains_key("kubevirt.io/migrationTargetNodeName"), "seed {seed}: {log:#?}");
    for migration in world.migrations().await {
        assert!(is_over(&migration) && migration.finalizers().is_empty(), "seed {seed}: {migration:#?} {log:#?}");
    }
    world.log.iter().filter(|line| line.ends_with("takes over")).count() as u32
}

#[tokio::test(start_paused = true)]
async fn one_guest_runs_under_any_interleaving() {
    let mut moved = 0;
    for seed in 0..12 {
        moved += Box::pin(check(seed)).await;
    }
    // Otherwise nothing was tested.
    assert!(moved > 12, "{moved}");
}
