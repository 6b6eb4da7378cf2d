//! A model of nodes that are cut off, slow, frozen or without power, with the real decisions of this controller in it: at no
//! moment do two guests write one disk, whatever happens, in whatever order.
//!
//! What is the cluster's own part is played here as Kubernetes documents it: a kubelet ends what has no pod before it starts
//! anything; a volume is detached when its node agrees, after six minutes, or on the administrator's word; a lock is the
//! file server's, and whoever loses it cannot write any more.

use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::time::Instant;
use virt_controller::facts::nodes::Lost;
use virt_controller::node::plan::lost;
use virt_controller::node::renewals::{Renewals, Sound};
use virt_controller::vmi::lost::fate::{Fate, fate};
use virt_controller::vmi::lost::fence::Backing;

const NODES: usize = 3;
const NAMES: [&str; NODES] = ["node0", "node1", "node2"];
/// After this long the cluster says that a silent node's state is unknown.
const GRACE: u64 = 40;
/// After this long without its client a file server gives the client's locks away, and refuses its writes from then on.
const LOCK_LEASE: u64 = 90;
const FORCED_DETACH: u64 = 360;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// Made for the pod.
    Own,
    /// A file on a server that keeps locks.
    Locked,
    /// Attached to one node at a time.
    Attached,
    /// A directory of node 0.
    Local,
    /// Nothing keeps anybody from writing it.
    Unguarded,
}

const DISKS: [Disk; 5] = [Disk::Own, Disk::Locked, Disk::Attached, Disk::Local, Disk::Unguarded];

#[derive(Clone, Debug, Default)]
struct Machine {
    off: bool,
    cut: bool,
    frozen: bool,
    /// Its way to the storage is cut as well; guests can neither write nor keep a lock for long.
    apart: bool,
    silent_storage_since: Option<u64>,
    beats: u64,
    /// When the API server last heard of it.
    heard: u64,
    word: bool,
}

impl Machine {
    /// Its processes run.
    fn lives(&self) -> bool {
        !self.off && !self.frozen
    }

    /// Its agents reach the API server.
    fn answers(&self) -> bool {
        self.lives() && !self.cut
    }
}

/// A process on a node.
#[derive(Clone, Debug)]
struct Qemu {
    node: usize,
    instance: u64,
    /// The file server refuses what it writes.
    fenced: bool,
}

struct World {
    seed: u64,
    now: u64,
    start: Instant,
    disk: Disk,
    machines: Vec<Machine>,
    qemus: Vec<Qemu>,
    /// The instance in the API, and the node its pod is bound to.
    instance: u64,
    pod: Option<usize>,
    runs: bool,
    attachment: Option<usize>,
    unused_since: Option<u64>,
    lock: Option<u64>,
    messages: Vec<(u64, usize, u64)>,
    renewals: Renewals,
    decide: fn(&[Backing]) -> Vec<Backing>,
}

impl World {
    fn new(seed: u64, disk: Disk) -> Self {
        Self {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: 0,
            start: Instant::now(),
            disk,
            machines: vec![Machine::default(); NODES],
            qemus: Vec::new(),
            instance: 1,
            pod: None,
            runs: false,
            attachment: None,
            unused_since: None,
            lock: None,
            messages: Vec::new(),
            renewals: Renewals::default(),
            decide: <[Backing]>::to_vec,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        // xorshift64
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_secs(self.now)
    }

    /// Something happens to a node.
    fn trouble(&mut self) {
        let node = usize::try_from(self.random(NODES as u64)).unwrap();
        let what = self.random(9);
        let machine = &mut self.machines[node];
        match what {
            0 => machine.cut = true,
            1 | 2 => machine.cut = false,
            3 => machine.frozen = true,
            4 | 5 => machine.frozen = false,
            6 => self.lose_power(node),
            7 => {
                machine.off = false;
                machine.word = false;
            }
            _ => machine.apart = !machine.apart,
        }
        // An administrator who looks before he speaks.
        let machine = &mut self.machines[node];
        machine.word |= machine.off && what == 8;
    }

    fn lose_power(&mut self, node: usize) {
        self.machines[node] = Machine { off: true, ..self.machines[node].clone() };
        self.qemus.retain(|qemu| qemu.node != node);
    }

    /// Kubelets renew their leases; the network delays, repeats and reorders.
    fn renew(&mut self) {
        for node in 0..NODES {
            if self.now.is_multiple_of(10) && self.machines[node].answers() {
                self.machines[node].beats += 1;
                let beat = self.machines[node].beats;
                for _ in 0..=self.random(2) {
                    let delay = if self.random(20) == 0 { self.random(30) } else { self.random(3) };
                    self.messages.push((self.now + delay, node, beat));
                }
            }
        }
        let (due, later): (Vec<_>, Vec<_>) = self.messages.iter().copied().partition(|(at, ..)| *at <= self.now);
        self.messages = later;
        for (_, node, beat) in due {
            self.machines[node].heard = self.now;
            let now = self.instant();
            self.renewals.hear(NAMES[node], &beat.to_string(), now);
        }
    }

    fn ready(&self, node: usize) -> &'static str {
        if self.now.saturating_sub(self.machines[node].heard) > GRACE { "Unknown" } else { "True" }
    }

    fn object(&self, node: usize) -> Node {
        let taints = self.machines[node]
            .word
            .then(|| json!([{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }]));
        serde_json::from_value(json!({
            "metadata": { "name": NAMES[node], "labels": { "name": NAMES[node] } },
            "spec": { "taints": taints }, "status": { "conditions": [{ "type": "Ready", "status": self.ready(node) }] },
        }))
        .unwrap()
    }

    fn is_lost(&self, node: usize) -> Option<Lost> {
        let now = self.instant();
        let well = |other: usize| {
            let heard = matches!(self.renewals.sound(NAMES[other], now), Sound::Heard(_));
            other != node && heard && self.ready(other) == "True"
        };
        let (sound, renews) = (self.renewals.sound(NAMES[node], now), self.renewals.renews(NAMES[node], now));
        lost(&self.object(node), sound, renews).filter(|lost| lost.word || (0..NODES).any(well))
    }

    fn backing(&self, node: usize) -> Vec<Backing> {
        let spec = match self.disk {
            Disk::Own => return Vec::new(),
            Disk::Locked => json!({ "nfs": { "server": "s", "path": "/" } }),
            Disk::Attached => json!({ "csi": { "driver": "disks", "volumeHandle": "v" } }),
            Disk::Unguarded => json!({ "iscsi": { "iqn": "i", "lun": 0, "targetPortal": "p" } }),
            Disk::Local => json!({ "local": { "path": "/x" }, "nodeAffinity": { "required": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "name", "operator": "In", "values": ["node0"] }] },
            ] } } }),
        };
        let persistent = serde_json::from_value(json!({ "metadata": { "name": "pv" }, "spec": spec })).unwrap();
        vec![Backing {
            volume: "root".to_owned(),
            persistent: Some(persistent),
            block: self.disk == Disk::Unguarded,
            attachable: self.disk == Disk::Attached,
            attached: self.attachment == Some(node),
        }]
    }

    /// This controller, and the scheduler after it.
    fn control(&mut self) {
        if let Some(node) = self.pod
            && let Some(lost) = self.is_lost(node)
        {
            let phase = if self.runs { "Running" } else { "Scheduled" };
            let vmi: VirtualMachineInstance = serde_json::from_value(json!({ "status": { "phase": phase } })).unwrap();
            let vm: VirtualMachine =
                serde_json::from_value(json!({ "spec": { "runStrategy": "Always", "template": {} } })).unwrap();
            let objects: Vec<Node> = (0..NODES).map(|node| self.object(node)).collect();
            let backings = (self.decide)(&self.backing(node));
            if fate(&vmi, Some(&vm), NAMES[node], &lost, &backings, &objects) == Fate::GiveUp {
                self.instance += 1;
                (self.pod, self.runs) = (None, false);
            }
        }
        if self.pod.is_none() {
            let fits = |node: &usize| self.disk != Disk::Local || *node == 0;
            let free: Vec<usize> = (0..NODES).filter(fits).filter(|node| self.is_lost(*node).is_none()).collect();
            if !free.is_empty() {
                let pick = usize::try_from(self.random(free.len() as u64)).unwrap();
                self.pod = Some(free[pick]);
            }
        }
    }

    /// The attach-detach controller and the file server.
    fn store(&mut self) {
        if let Some(node) = self.attachment {
            let used = self.pod == Some(node);
            self.unused_since = if used { None } else { self.unused_since.or(Some(self.now)) };
            let agrees = self.machines[node].answers() && self.qemus.iter().all(|qemu| qemu.node != node);
            let forced = self.unused_since.is_some_and(|since| self.now - since >= FORCED_DETACH);
            if !used && (agrees || forced || self.machines[node].word) {
                self.attachment = None;
            }
        } else if self.disk == Disk::Attached {
            self.attachment = self.pod;
        }
        for node in 0..NODES {
            let reaches = self.machines[node].lives() && !self.machines[node].apart;
            let since = if reaches { None } else { self.machines[node].silent_storage_since.or(Some(self.now)) };
            self.machines[node].silent_storage_since = since;
            if since.is_some_and(|since| self.now - since >= LOCK_LEASE) {
                for qemu in self.qemus.iter_mut().filter(|qemu| qemu.node == node) {
                    qemu.fenced = true;
                    self.lock = self.lock.filter(|held| *held != qemu.instance);
                }
            }
        }
        // The lock of one that has ended is free once the server knows, or its kernel said so.
        let held = self.lock;
        if !self.qemus.iter().any(|qemu| Some(qemu.instance) == held) && self.random(5) == 0 {
            self.lock = None;
        }
    }

    /// Kubelet, virt-handler and launcher of each node.
    fn act(&mut self) {
        for node in 0..NODES {
            // What they are told may be late; what they do is done here and now.
            if !self.machines[node].answers() || self.random(4) == 0 {
                continue;
            }
            let wanted = (self.pod == Some(node)).then_some(self.instance);
            if self.qemus.iter().any(|qemu| qemu.node == node && Some(qemu.instance) != wanted) {
                self.qemus.retain(|qemu| qemu.node != node || Some(qemu.instance) == wanted);
                continue;
            }
            let Some(instance) = wanted else { continue };
            if self.qemus.iter().any(|qemu| qemu.instance == instance) {
                self.runs = true;
                continue;
            }
            let apart = self.machines[node].apart;
            let starts = match self.disk {
                Disk::Own | Disk::Unguarded | Disk::Local => true,
                Disk::Attached => self.attachment == Some(node),
                Disk::Locked => !apart && self.lock.is_none(),
            };
            if starts {
                self.lock = (self.disk == Disk::Locked).then_some(instance).or(self.lock);
                self.qemus.push(Qemu { node, instance, fenced: false });
            }
        }
    }

    fn step(&mut self) {
        self.now += 1;
        self.renew();
        self.control();
        self.store();
        self.act();
    }

    /// Guests that write the disk now, or may as soon as they are let.
    fn writers(&self) -> Vec<&Qemu> {
        let can = |qemu: &&Qemu| match self.disk {
            // Each has a disk of its own.
            Disk::Own => false,
            Disk::Locked => !qemu.fenced,
            Disk::Attached => self.attachment == Some(qemu.node),
            Disk::Local | Disk::Unguarded => true,
        };
        self.qemus.iter().filter(can).collect()
    }
}

/// The first moment at which two write, in a random life of `world`.
fn two_writers(mut world: World) -> Option<u64> {
    for _ in 0..1_200 {
        if world.random(12) == 0 {
            world.trouble();
        }
        world.step();
        if world.writers().len() > 1 {
            return Some(world.now);
        }
    }
    None
}

#[test]
fn at_no_time_do_two_guests_write_one_disk() {
    let (mut moved, mut lives) = (0, 0);
    for seed in 0..150 {
        for disk in DISKS {
            let mut world = World::new(seed, disk);
            for _ in 0..1_200 {
                if world.random(12) == 0 {
                    world.trouble();
                }
                world.step();
                let writers = world.writers();
                assert!(writers.len() <= 1, "seed {seed}, {disk:?}, second {}: {writers:?}", world.now);
            }
            lives += 1;
            moved += u64::from(world.instance > 1);
        }
    }
    // The model would prove nothing if nothing ever moved.
    assert!(moved > lives / 4, "{moved} of {lives}");
}

#[test]
fn the_model_finds_two_writers_where_nothing_is_asked_of_the_disks() {
    let believes_anything = |_: &[Backing]| Vec::new();
    let found =
        |disk| (0..50).find_map(|seed| two_writers(World { decide: believes_anything, ..World::new(seed, disk) }));
    assert!(found(Disk::Unguarded).is_some());
    // What is proven by the storage itself needs nobody's belief.
    assert!(found(Disk::Attached).is_none() && found(Disk::Locked).is_none());
}

/// Seconds until the guest runs on another node, after its node loses its power, or is cut off.
fn moves_within(disk: Disk, happens: fn(&mut World, usize)) -> Option<u64> {
    let mut world = World::new(7, disk);
    while world.now < 60 || !world.runs {
        world.step();
    }
    let node = world.pod.unwrap();
    happens(&mut world, node);
    let since = world.now;
    while world.now < since + 600 {
        world.step();
        if world.runs && world.pod != Some(node) {
            return Some(world.now - since);
        }
    }
    None
}

#[test]
fn a_guest_runs_elsewhere_within_a_minute_when_its_disks_allow() {
    let dies: fn(&mut World, usize) = World::lose_power;
    let is_cut: fn(&mut World, usize) = |world, node| world.machines[node].cut = true;
    for happens in [dies, is_cut] {
        let took = moves_within(Disk::Own, happens).unwrap();
        assert!(took <= 60, "{took}");
    }
    // The lock of a dead guest is given away; that of one that lives is not.
    assert!(moves_within(Disk::Locked, dies).is_some_and(|took| took <= 60 + LOCK_LEASE));
    assert_eq!(moves_within(Disk::Locked, is_cut), None);
    assert_eq!(moves_within(Disk::Unguarded, dies), None);
    assert_eq!(moves_within(Disk::Local, dies), None);
    let told: fn(&mut World, usize) = |world, node| {
        world.lose_power(node);
        world.machines[node].word = true;
    };
    for disk in [Disk::Unguarded, Disk::Attached] {
        let took = moves_within(disk, told).unwrap();
        assert!(took <= 60, "{disk:?}: {took}");
    }
}
