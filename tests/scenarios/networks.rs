//! Networks beside the pod's own: guests of different nodes are neighbours on them, also after one has moved; and guests that
//! move over a network of their own.

use anyhow::{Result, ensure};
use e2e::machine::{self, condition, holds, phase};
use e2e::wait::{BOOT, SOON, until};
use e2e::{Console, Namespace, product};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::mover::{self, Mover};
use crate::two_nodes::{self, FIRST, SECOND};
use crate::{long, trial};

pub(crate) fn trials_beside() -> Vec<Trial> {
    vec![trial("networks_and_disks_move_with_their_guest", networks_and_disks_move_with_their_guest)]
}

/// What exchanges the agents of all nodes.
pub(crate) fn trials() -> Vec<Trial> {
    vec![long("migration_takes_the_network_that_is_named", migration_takes_the_network_that_is_named)]
}

/// As the guest sees them, beside the three that it has anyhow; the last one is a seed.
const DISKS: [&str; 5] = ["vdd", "vde", "vdf", "vdg", "vdh"];
const LANS: [&str; 3] = ["lan1", "lan2", "lan3"];
const PEER: &str = "peer";

fn network(name: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": { "name": name },
        "spec": { "config": config.to_string() },
    })
}

/// Gives a machine interfaces on these networks.
fn join(vm: &mut Value, networks: &[String]) {
    for (lan, of) in LANS.iter().zip(networks) {
        let add = |list: &mut Value, item: Value| list.as_array_mut().map(|list| list.push(item));
        add(&mut machine::spec(vm)["networks"], json!({ "name": lan, "multus": { "networkName": of } }));
        add(&mut machine::domain(vm)["devices"]["interfaces"], json!({ "name": lan, "bridge": {} }));
    }
}

/// Gives the guest's interfaces of these networks addresses that end in `host`.
fn address(console: &mut Console, host: u8) -> Result<()> {
    for number in 1..=LANS.len() {
        run(console, &format!("ip link set eth{number} up && ip addr add 10.77.{number}.{host}/24 dev eth{number}"))?;
    }
    Ok(())
}

fn run(console: &mut Console, command: &str) -> Result<String> {
    let (shown, code) = console.run(command)?;
    ensure!(code == 0, "{command:?} ended with {code}: {shown}");
    Ok(shown)
}

/// The hardware addresses that the guest sees, and what is at the beginning of its disks.
fn possessions(console: &mut Console) -> Result<String> {
    let disks = DISKS.join(" ");
    let sums = format!("for d in {disks}; do dd if=/dev/$d bs=512k count=1 2>/dev/null | sha256sum; done");
    run(console, &format!("cat /sys/class/net/eth*/address; echo 3 > /proc/sys/vm/drop_caches; {sums}"))
}

fn neighbours(console: &mut Console, host: u8) -> Result<()> {
    for number in 1..=LANS.len() {
        until(&format!("10.77.{number}.{host} answered"), SOON, || {
            // The largest packet that the guest may send in one piece.
            let ping = format!("ping -c 1 -W 3 -s 1472 10.77.{number}.{host}");
            Ok((console.run(&ping)?.1 == 0).then_some(()))
        })?;
    }
    Ok(())
}

/// What the VMI says of its networks: name, hardware address and where it is known from.
fn told(vmi: &Value) -> Vec<(String, String, String)> {
    let word = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let all = vmi["status"]["interfaces"].as_array().into_iter().flatten();
    all.map(|entry| (word(entry, "name"), word(entry, "mac"), word(entry, "infoSource"))).collect()
}

/// The VMI, once it tells what the guest's agent knows of every interface.
fn known(mover: &Mover) -> Result<Value> {
    until("all interfaces in the VMI", SOON, || {
        let now = mover.vmi()?;
        Ok(told(&now).iter().all(|(_, _, source)| source.contains("guest-agent")).then_some(now))
    })
}

fn networks_and_disks_move_with_their_guest() -> Result<()> {
    two_nodes::ready()?;
    let others = Namespace::new("neighbours")?;
    for lan in LANS {
        others.apply(&network(
            lan,
            &json!({ "cniVersion": "0.3.1", "type": "bridge", "bridge": format!("e2e-{lan}") }),
        ))?;
    }
    let far: Vec<String> = LANS.iter().map(|lan| format!("{}/{lan}", others.name())).collect();
    let mut vm = machine::on_kernel(PEER, "Always");
    join(&mut vm, &LANS.map(str::to_owned));
    machine::spec(&mut vm)["nodeSelector"] = json!({ "kubernetes.io/hostname": FIRST });
    others.apply(&vm)?;
    let mut mover = Mover::boot("nics", |vm| {
        join(vm, &far);
        for number in 1..DISKS.len() {
            machine::add_disk(vm, &format!("more{number}"), json!({ "emptyDisk": { "capacity": "16Mi" } }));
        }
        machine::add_disk(vm, "facts", json!({ "cloudInitConfigDrive": { "userData": "#cloud-config\n" } }));
    })?;
    let vmi = known(&mover)?;
    let disks = vmi["spec"]["domain"]["devices"]["disks"].as_array().map(Vec::len);
    ensure!(disks == Some(8) && told(&vmi).len() == 4, "{} and {:?}", vmi["spec"]["domain"], told(&vmi));
    ensure!(condition(&vmi, "LiveMigratable")["status"] == "True", "{}", vmi["status"]["conditions"]);
    ensure!(
        told(&vmi)[1..].iter().all(|(_, _, source)| source == "domain, guest-agent, multus-status"),
        "{:?}",
        told(&vmi)
    );
    others.wait("vmi", PEER, "ran", |vmi| phase(vmi) == "Running")?;
    let mut console = mover.console()?;
    let mut peer = Console::open(&others, PEER)?;
    peer.log_in("root", "guest")?;
    address(&mut console, 1)?;
    address(&mut peer, 2)?;
    let filled: Vec<String> = DISKS[..4]
        .iter()
        .map(|disk| format!("dd if=/dev/urandom of=/dev/{disk} bs=512k count=1 2>/dev/null"))
        .collect();
    run(&mut console, &format!("{}; sync", filled.join("; ")))?;
    let before = possessions(&mut console)?;
    neighbours(&mut console, 2)?;
    // Before or after, the two are on different nodes.
    run(
        &mut peer,
        "(while :; do ping -c 1 -W 1 10.77.1.1 >/dev/null && echo >> /tmp/seen; sleep 0.2; done) & echo $! > /tmp/asks",
    )?;
    mover.move_with(&mut console)?;
    let seen = run(&mut peer, "wc -l < /tmp/seen")?;
    until("the neighbour to be answered again", SOON, || {
        Ok((run(&mut peer, "wc -l < /tmp/seen")? != seen).then_some(()))
    })?;
    neighbours(&mut peer, 1)?;
    let after = possessions(&mut console)?;
    ensure!(after == before, "before: {before}\nafter: {after}");
    let now = known(&mover)?;
    ensure!(told(&now) == told(&vmi), "before: {:?}\nafter: {:?}", told(&vmi), told(&now));
    console.leave()?;
    peer.leave()
}

/// The network that guests move over, for as long as this is held.
struct Dedicated;

impl Dedicated {
    fn new() -> Result<Self> {
        let ipam = json!({ "type": "whereabouts", "range": "10.200.5.0/24" });
        let bridge = json!({ "cniVersion": "0.3.1", "type": "bridge", "bridge": "e2e-moves", "ipam": ipam });
        Namespace::apply_in(product::NAMESPACE, &network("moves", &bridge))?;
        let dedicated = Self;
        dedicated.name(&json!("moves"))?;
        Ok(dedicated)
    }

    fn name(&self, network: &Value) -> Result<()> {
        product::merge(&json!({ "virtualization": { "liveMigrationConfig": { "network": network } } }))?;
        let wanted = network.as_str().map(|name| format!("{name}@migration0"));
        until("virt-handler has that network on every node", BOOT, || {
            let list = product::get(&["pods", "-l", "kubevirt.io=virt-handler"])?;
            let pods = list["items"].as_array().cloned().unwrap_or_default();
            let asks =
                |pod: &Value| pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].as_str().map(str::to_owned);
            let good = |pod: &&Value| {
                asks(pod) == wanted && holds(pod, "Ready") && pod["metadata"]["deletionTimestamp"].is_null()
            };
            Ok((pods.len() == 2 && pods.iter().filter(good).count() == 2).then_some(()))
        })
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        let _ = self.name(&Value::Null);
        let _ = product::kubectl(&["delete", "net-attach-def", "moves", "--ignore-not-found"]);
    }
}

fn migration_takes_the_network_that_is_named() -> Result<()> {
    mover::with_mover(|mover| {
        let _dedicated = Dedicated::new()?;
        let to = if mover.node()? == FIRST { SECOND } else { FIRST };
        mover.go_to(to)?;
        let state = mover.vmi()?["status"]["migrationState"].clone();
        let address = state["targetNodeAddress"].as_str().unwrap_or_default();
        ensure!(address.starts_with("10.200.5."), "{state}");
        mover.unharmed()
    })
}
