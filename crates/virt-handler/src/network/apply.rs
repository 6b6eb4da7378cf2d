//! Making a planned interface in the pod's network namespace. Every step may be repeated.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use domain::PluggedInterface;
use ipnet::IpNet;
use kit::Task;
use net::link::{Netlink, Route};
use net::{dhcp4, dhcp6, nft, router};
use tokio::net::UdpSocket;

use super::observe::{self, Resolver};
use super::plan::{self, Binding, InterfacePlan};
use crate::Error;
use crate::launcher::{Launcher, Pods};

/// The user QEMU runs as.
const OWNER: u32 = 107;

/// How often a guest that has moved is announced, and how far apart: a frame may be lost.
const ANNOUNCEMENTS: u32 = 3;
const BETWEEN: Duration = Duration::from_millis(500);

/// Between two looks for pods that are gone.
const FORGET: Duration = Duration::from_secs(60);

/// Interfaces that exist, with the servers that keep them useful: dropping this stops the servers, not the links.
#[derive(Default)]
pub(crate) struct Plugged {
    /// For the domain.
    pub interfaces: Vec<PluggedInterface>,
    /// Pod-side facts for the VMI's status: interface name and the pod's addresses, which reach the guest.
    pub addresses: Vec<(String, String, Vec<String>)>,
    /// What the pod's network is told when the guest has come from another node: link, hardware address, addresses.
    announced: Vec<(String, [u8; 6], Vec<IpAddr>)>,
    _servers: Vec<Task<()>>,
}

/// Plugs every interface of the VMI into the launcher's pod. `records` keeps what a pod's links were before.
pub(crate) async fn plug(vmi: &VirtualMachineInstance, launcher: &Launcher, records: &Path) -> Result<Plugged, Error> {
    let mut plugged = Plugged::default();
    let wanted = plan::pod_links(vmi);
    if wanted.is_empty() {
        return Ok(plugged);
    }
    let netns = launcher.netns()?;
    let resolver = Resolver::of(&launcher.root()?);
    for (at, name) in wanted {
        let record = records.join(&launcher.pod).join(format!("{name}.json"));
        let link = observe::pod_link(netns.as_fd(), &name, &record).await?;
        let plan = plan::plan(vmi, at, &link, &resolver)?;
        make(&plan, &netns).await?;
        plugged._servers.extend(serve(&plan, &netns).await?);
        plugged.interfaces.push(PluggedInterface {
            name: plan.name.clone(),
            tap: plan.tap.clone(),
            mac: format_mac(plan.mac),
            mtu: link.mtu,
            queues: plan.queues,
        });
        plugged.announced.push(announced(vmi, &plan));
        let addresses = link.addresses.iter().map(|a| a.addr().to_string()).collect();
        plugged.addresses.push((plan.name, link.name, addresses));
    }
    Ok(plugged)
}

/// Tells the pod's network, more than once, where the guest's addresses are now.
pub(crate) async fn announce(plugged: &Plugged, launcher: &Launcher) -> Result<(), Error> {
    for turn in 0..ANNOUNCEMENTS {
        if turn > 0 {
            tokio::time::sleep(BETWEEN).await;
        }
        let netns = launcher.netns()?;
        for (link, mac, addresses) in &plugged.announced {
            let netlink = Netlink::open_in(netns.as_fd()).map_err(Error::plug(link, "enter the pod's network"))?;
            let index = netlink.get(link).await.map_err(Error::plug(link, "find the pod's link"))?.index;
            let send = || addresses.iter().try_for_each(|address| net::announce::send(index, *mac, *address));
            sys::namespace::in_netns(netns.as_fd(), send)
                .and_then(|sent| sent)
                .map_err(Error::plug(link, "announce its addresses"))?;
        }
    }
    Ok(())
}

/// Forgets what the links of pods were that the kubelet has removed, now and again.
pub(crate) async fn forget_gone(records: PathBuf, pods: Pods) {
    loop {
        forget_now(&records, &pods);
        tokio::time::sleep(FORGET).await;
    }
}

/// The same at once: nobody may come after this process who would.
pub(crate) fn forget_now(records: &Path, pods: &Pods) {
    if let Err(error) = forget(records, pods) {
        tracing::warn!(%error, "records of pods that are gone stay");
    }
}

fn forget(records: &Path, pods: &Pods) -> std::io::Result<()> {
    let recorded = match std::fs::read_dir(records) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    // Where no pod is seen at all, none is known to be gone.
    let there = pods.uids()?;
    for record in recorded {
        let record = record?;
        if !record.file_name().to_str().is_some_and(|pod| there.contains(pod)) {
            std::fs::remove_dir_all(record.path())?;
        }
    }
    Ok(())
}

/// The link itself answers for masqueraded guests, others answer themselves; on a secondary network with the addresses they
/// were seen to have, which need not be those that this pod was given.
fn announced(vmi: &VirtualMachineInstance, plan: &InterfacePlan) -> (String, [u8; 6], Vec<IpAddr>) {
    let link = &plan.pod_link;
    let own = || link.addresses.iter().map(IpNet::addr).collect();
    if !plan::is_secondary(vmi, &plan.name) {
        return (link.name.clone(), link.mac, own());
    }
    let known = vmi.status.iter().flat_map(|status| &status.interfaces);
    let known = known.filter(|known| known.name.as_deref() == Some(&plan.name));
    let seen = known.flat_map(|known| &known.ip_addresses).filter_map(|address| address.parse().ok()).collect();
    (link.name.clone(), plan.mac, seen)
}

async fn make(plan: &InterfacePlan, netns: &OwnedFd) -> Result<(), Error> {
    let failed = |what: &str| Error::plug::<net::link::Error>(&plan.name, what);
    let netlink = Netlink::open_in(netns.as_fd()).map_err(failed("enter the pod's network"))?;
    netlink.ensure_bridge(&plan.bridge).await.map_err(failed("make its bridge"))?;
    netlink.set_mac(&plan.bridge, plan.bridge_mac).await.map_err(failed("set its bridge's address"))?;
    // One that is there is in use by the guest: opening it once more would be refused, or take packets away from it.
    let there = netlink.has(&plan.tap).await.map_err(failed("look for its tap"))?;
    in_pod(plan, netns.as_fd(), "make its tap", |plan| {
        // Before the links are up, so that addresses are usable at once.
        for (path, value) in plan.sysctls.iter().filter(|(path, _)| path.contains("/accept_dad")) {
            set_sysctl(path, value);
        }
        if there {
            return Ok(());
        }
        sys::tap::ensure(Path::new("/dev/net/tun"), &plan.tap, OWNER, plan.queues > 1)
    })?;
    if plan.binding == Binding::Bridge {
        take_over(plan, &netlink).await.map_err(failed("take over the pod's link"))?;
    }
    for address in &plan.bridge_addresses {
        netlink.ensure_address(&plan.bridge, *address).await.map_err(failed("give its bridge an address"))?;
    }
    for link in [&plan.tap, &plan.bridge] {
        netlink.set_mtu(link, plan.pod_link.mtu).await.map_err(failed("set the MTU"))?;
    }
    netlink.set_bridge(&plan.tap, &plan.bridge).await.map_err(failed("put its tap on its bridge"))?;
    for link in [&plan.tap, &plan.bridge] {
        netlink.set_up(link).await.map_err(failed("set its links up"))?;
    }
    let index = netlink.get(&plan.bridge).await.map_err(failed("find its bridge"))?.index;
    for (to, via) in &plan.routes {
        let route = Route { to: *to, via: *via, link: Some(index) };
        netlink.ensure_route(&route).await.map_err(failed("route through its bridge"))?;
    }
    in_pod(plan, netns.as_fd(), "set its rules", |plan| {
        for (path, value) in &plan.sysctls {
            set_sysctl(path, value);
        }
        if plan.rules.is_empty() { Ok(()) } else { nft::load(&plan.rules) }
    })
}

/// The guest becomes the holder of the pod's addresses; the pod's link becomes a port of the bridge.
async fn take_over(plan: &InterfacePlan, netlink: &Netlink) -> net::link::Result<()> {
    let link = &plan.pod_link;
    for address in &link.addresses {
        netlink.remove_address(&link.name, *address).await?;
    }
    // The guest answers with the pod's hardware address, so the link itself needs another one.
    netlink.set_mac(&link.name, plan.bridge_mac).await?;
    netlink.set_bridge(&link.name, &plan.bridge).await?;
    // A network that returns a guest's own broadcasts (hairpin mode) would teach the bridge that the guest is outside.
    netlink.stop_learning(&link.name).await?;
    netlink.set_up(&link.name).await
}

/// Address servers on sockets of the pod's namespace.
async fn serve(plan: &InterfacePlan, netns: &OwnedFd) -> Result<Vec<Task<()>>, Error> {
    let failed = |what: &'static str| Error::plug::<std::io::Error>(&plan.name, what);
    let netlink = Netlink::open_in(netns.as_fd()).map_err(Error::plug(&plan.name, "enter the pod's network"))?;
    let index = netlink.get(&plan.bridge).await.map_err(Error::plug(&plan.name, "find its bridge"))?.index;
    let mut servers = Vec::new();
    if let Some(offer) = plan.dhcp4.clone() {
        let socket = in_pod(plan, netns.as_fd(), "open a DHCP socket", |plan| dhcp4::socket(&plan.bridge))?;
        let socket = UdpSocket::from_std(socket).map_err(failed("open a DHCP socket"))?;
        servers.push(kit::spawn("dhcp4", dhcp4::serve(socket, offer)));
    }
    if let Some(offer) = plan.dhcp6.clone() {
        let socket = in_pod(plan, netns.as_fd(), "open a DHCPv6 socket", |plan| dhcp6::socket(&plan.bridge, index))?;
        let socket = UdpSocket::from_std(socket).map_err(failed("open a DHCPv6 socket"))?;
        servers.push(kit::spawn("dhcp6", dhcp6::serve(socket, offer)));
    }
    if let Some(announcement) = plan.announcement.clone() {
        let socket = in_pod(plan, netns.as_fd(), "open an ICMPv6 socket", |plan| router::socket(&plan.bridge, index))?;
        let socket = UdpSocket::from_std(socket).map_err(failed("open an ICMPv6 socket"))?;
        servers.push(kit::spawn("router", router::serve(socket, index, announcement)));
    }
    Ok(servers)
}

fn in_pod<T: Send, E: std::error::Error + Send + Sync + 'static>(
    plan: &InterfacePlan,
    netns: BorrowedFd<'_>,
    what: &'static str,
    work: impl FnOnce(&InterfacePlan) -> Result<T, E> + Send,
) -> Result<T, Error> {
    sys::namespace::in_netns(netns, || work(plan))
        .map_err(Error::plug(&plan.name, what))?
        .map_err(Error::plug(&plan.name, what))
}

/// Network sysctls are those of the thread's namespace. One that the kernel lacks is no reason to refuse the guest.
fn set_sysctl(path: &str, value: &str) {
    if let Err(error) = std::fs::write(Path::new("/proc/sys").join(path), value) {
        tracing::warn!(path, value, %error, "a network setting was not made");
    }
}

fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::observe::PodLink;
    use super::*;

    #[test]
    fn a_guest_on_a_secondary_network_is_announced_as_it_was_seen() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "u"},
            "spec": {"domain": {"devices": {"interfaces": [{"name": "default", "bridge": {}}, {"name": "blue", "bridge": {}}]}},
                "networks": [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "n"}}]},
            "status": {"interfaces": [{"name": "blue", "mac": "02:00:00:00:00:07", "ipAddresses": ["10.9.0.2", "fe80::7"]}]},
        }))
        .unwrap();
        let check = |at: usize, name: &str, mac: [u8; 6], addresses: &[&str]| {
            let given = vec!["10.244.0.7/24".parse().unwrap()];
            let link = PodLink { name: name.into(), mac: [2, 0, 0, 0, 0, 1], addresses: given, ..PodLink::default() };
            let plan = plan::plan(&vmi, at, &link, &Resolver::default()).unwrap();
            let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(announced(&vmi, &plan), (name.to_owned(), mac, addresses));
        };
        check(0, "eth0", [2, 0, 0, 0, 0, 1], &["10.244.0.7"]);
        check(1, "pod16477688c0e", [2, 0, 0, 0, 0, 7], &["10.9.0.2", "fe80::7"]);
    }

    /// A directory with records of two pods, one of which there is.
    fn recorded(name: &str) -> (PathBuf, PathBuf, PathBuf) {
        let dir = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        for made in ["records/there", "records/gone", "pods/there"] {
            std::fs::create_dir_all(dir.join(made)).unwrap();
            std::fs::write(dir.join(made).join("eth0.json"), "{}").unwrap();
        }
        (dir.join("records"), dir.join("pods"), dir)
    }

    #[test]
    fn records_go_with_their_pods() {
        let (records, pods, dir) = recorded("records");
        assert!(forget(&records, &Pods::at(dir.join("nowhere"))).is_err());
        forget(&records, &Pods::at(pods.clone())).unwrap();
        assert!(records.join("there/eth0.json").exists() && !records.join("gone").exists());
        forget(&dir.join("none"), &Pods::at(pods)).unwrap();
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn of_an_instance_that_is_gone_nothing_stays_on_the_node() {
        let (records, pods, dir) = recorded("forgotten");
        let _forgetting = kit::spawn("records", forget_gone(records.clone(), Pods::at(pods.clone())));
        tokio::time::sleep(FORGET / 2).await;
        assert!(records.join("there").exists() && !records.join("gone").exists());
        std::fs::remove_dir_all(pods.join("there")).unwrap();
        tokio::time::sleep(FORGET).await;
        assert_eq!(std::fs::read_dir(&records).unwrap().count(), 0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
