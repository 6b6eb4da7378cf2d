//! Which claims a machine has. Pure.

use std::collections::{BTreeMap, BTreeSet};

use api::kubevirt::identity::pod_interface;
use api::kubevirt::v1::{Interface, Network as MachineNetwork, VirtualMachineInstance};
use kit::store::Key;
use kube::ResourceExt;
use serde_json::Value;

use super::claim::{ClaimSpec, Kind, Owner, Wanted, name};
use super::names::ADDRESSES;
use super::network::{Network, NetworkAttachmentDefinition};

/// What OVN-Kubernetes calls the interface of a pod on its primary network.
const PRIMARY_INTERFACE: &str = "ovn-udn1";

/// The claims of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whose they are.
    pub owner: Owner,
    /// Those on networks beside the pod's own, and where they are joined.
    pub secondary: Vec<(Key, Wanted)>,
    /// The one on the network that takes the place of the pod's own.
    pub primary: Option<Primary>,
    /// Why addresses that are asked for cannot be kept, a sentence each: no pod is made.
    pub problems: Vec<String>,
    /// What is asked for and has no effect, a sentence each.
    pub remarks: Vec<String>,
}

impl Plan {
    /// All claims.
    pub fn claims(&self) -> impl Iterator<Item = &Wanted> {
        self.secondary.iter().map(|(_, wanted)| wanted).chain(self.primary.iter().map(|primary| &primary.wanted))
    }
}

/// A machine's place on the primary network of its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// The claim.
    pub wanted: Wanted,
    /// The hardware address that the machine asks for.
    pub mac: Option<String>,
    /// The addresses that it asks for, with prefix lengths.
    pub ips: Vec<String>,
}

/// Whose the claims of `vmi` are: those of the machine that has made it, else its own.
pub fn owner(vmi: &VirtualMachineInstance) -> Owner {
    match Owner::read(vmi.owner_references()) {
        // A machine's instance has its name. Whatever else refers to a machine is not its instance.
        Some(owner) if owner.kind == Kind::VirtualMachine && owner.name == vmi.name_any() => owner,
        _ => Owner { kind: Kind::VirtualMachineInstance, name: vmi.name_any(), uid: vmi.uid().unwrap_or_default() },
    }
}

/// The definition that `network` names in a machine of `namespace`.
pub fn definition(network: &MachineNetwork, namespace: &str) -> Option<Key> {
    let multus = network.multus.as_ref()?;
    let (at, name) = multus.network_name.split_once('/').unwrap_or((namespace, &multus.network_name));
    Some(Key::new(at, name))
}

fn interface<'a>(vmi: &'a VirtualMachineInstance, network: &MachineNetwork) -> Option<&'a Interface> {
    let found = vmi.spec.domain.devices.interfaces.iter().find(|interface| interface.name == network.name);
    found.filter(|interface| interface.state.as_deref() != Some("absent"))
}

/// The claims of `vmi`. `definitions` are those that it names, as far as they are there; `own`, all of its namespace.
pub fn plan(
    vmi: &VirtualMachineInstance,
    definitions: &BTreeMap<Key, NetworkAttachmentDefinition>,
    own: &[NetworkAttachmentDefinition],
) -> Plan {
    let namespace = vmi.namespace().unwrap_or_default();
    let mut plan =
        Plan { owner: owner(vmi), secondary: Vec::new(), primary: None, problems: Vec::new(), remarks: Vec::new() };
    let mut names = BTreeSet::new();
    let mut want = |network: &str, interface: String, of: String| -> Result<Wanted, String> {
        let name = name(&vmi.name_any(), network)?;
        if !names.insert(name.clone()) {
            return Err(format!(
                "spec.networks: name {network:?}: the addresses of another network are kept under {name:?} as well: give one of \
                 them a name that differs by more than the case of letters"
            ));
        }
        Ok(Wanted { name, network: network.to_owned(), spec: ClaimSpec { interface, network: of } })
    };
    for network in &vmi.spec.networks {
        let joined = definition(network, &namespace).filter(|_| interface(vmi, network).is_some());
        let Some((key, found)) = joined.and_then(|key| definitions.get(&key).map(|found| (key, found))) else {
            continue;
        };
        match Network::of(found) {
            Ok(of) if of.persists => match want(&network.name, pod_interface(&network.name), of.name) {
                Ok(wanted) => plan.secondary.push((key, wanted)),
                Err(problem) => plan.problems.push(problem),
            },
            Ok(_) => {}
            Err(problem) => plan.problems.push(problem),
        }
    }
    let found = primary(vmi, own).and_then(|found| {
        let Some((network, interface, of)) = found else { return Ok(None) };
        let ips = addresses(vmi, &network.name, &of)?;
        let wanted = want(&network.name, PRIMARY_INTERFACE.to_owned(), of.name)?;
        let mac = interface.mac_address.clone().filter(|mac| !mac.is_empty());
        Ok(Some(Primary { wanted, mac: mac.map(|mac| mac.replace('-', ":")), ips }))
    });
    match found {
        Ok(found) => plan.primary = found,
        Err(problem) => plan.problems.push(problem),
    }
    plan.remarks = unserved(vmi, plan.primary.as_ref());
    plan
}

/// The machine's place on the primary network of its namespace, where that keeps addresses.
fn primary<'a>(
    vmi: &'a VirtualMachineInstance,
    own: &[NetworkAttachmentDefinition],
) -> Result<Option<(&'a MachineNetwork, &'a Interface, Network)>, String> {
    let Some(network) = vmi.spec.networks.iter().find(|network| network.pod.is_some()) else { return Ok(None) };
    let Some(interface) = interface(vmi, network) else { return Ok(None) };
    // One that cannot be read is nobody's primary network.
    let mut found: Vec<Network> = own.iter().filter_map(|one| Network::of(one).ok()).filter(|of| of.primary).collect();
    found.dedup_by(|a, b| a.name == b.name);
    match found.as_slice() {
        [] => Ok(None),
        [of] => Ok(of.persists.then(|| (network, interface, of.clone()))),
        all => {
            let names: Vec<&str> = all.iter().map(|of| of.name.as_str()).collect();
            let namespace = vmi.namespace().unwrap_or_default();
            let names = names.join(", ");
            Err(format!("namespace {namespace} has more than one primary network: {names}: leave one of them"))
        }
    }
}

/// The addresses that `vmi` asks for on `network`.
fn addresses(vmi: &VirtualMachineInstance, network: &str, of: &Network) -> Result<Vec<String>, String> {
    let mut all = asked(vmi).map_err(|what| format!("annotation {ADDRESSES}: {what}"))?;
    let asked = all.remove(network).unwrap_or_default();
    let one = |text: &String| of.prefixed(text).map_err(|what| format!("annotation {ADDRESSES}: {network}: {what}"));
    asked.iter().map(one).collect()
}

/// All addresses that `vmi` asks for, by network.
fn asked(vmi: &VirtualMachineInstance) -> Result<BTreeMap<String, Vec<String>>, String> {
    let Some(text) = vmi.annotations().get(ADDRESSES).filter(|text| !text.trim().is_empty()) else {
        return Ok(BTreeMap::new());
    };
    let remedy = "write {\"NETWORK\": [\"ADDRESS\"]}";
    let read: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}: {remedy}"))?;
    let object = read.as_object().ok_or_else(|| format!("it is no object: {remedy}"))?;
    let mut out = BTreeMap::new();
    for (network, addresses) in object {
        let list = addresses.as_array().into_iter().flatten().map(|one| one.as_str().map(str::to_owned));
        let list: Option<Vec<String>> = list.collect();
        let list = list.filter(|_| addresses.is_array());
        out.insert(network.clone(), list.ok_or_else(|| format!("{network:?} has no list of addresses: {remedy}"))?);
    }
    Ok(out)
}

/// Addresses that are asked for where nobody gives them.
fn unserved(vmi: &VirtualMachineInstance, primary: Option<&Primary>) -> Vec<String> {
    let served = primary.map(|primary| primary.wanted.network.as_str());
    let all = asked(vmi).unwrap_or_default();
    let rest = all.keys().filter(|network| Some(network.as_str()) != served);
    rest.map(|network| {
        let shown = meta::text::brief(network, 64);
        format!(
            "annotation {ADDRESSES}: addresses on {shown:?} cannot be asked for, since it is not on a primary network with \
             allowPersistentIPs: take it out of the annotation"
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nad(namespace: &str, name: &str, config: &Value) -> NetworkAttachmentDefinition {
        let metadata = json!({ "namespace": namespace, "name": name });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "config": config.to_string() } })).unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn vmi(networks: Value, more: Value) -> VirtualMachineInstance {
        let interfaces: Vec<Value> = networks
            .as_array()
            .unwrap()
            .iter()
            .map(|network| json!({ "name": network["name"], "bridge": {}, "macAddress": "02-00-00-00-00-01" }))
            .collect();
        let mut vmi = json!({
            "metadata": { "name": "vm", "namespace": "ns", "uid": "i" },
            "spec": { "domain": { "devices": { "interfaces": interfaces } }, "networks": networks },
        });
        for (key, value) in more.as_object().unwrap() {
            vmi["metadata"][key] = value.clone();
        }
        serde_json::from_value(vmi).unwrap()
    }

    fn of(vmi: &VirtualMachineInstance) -> Plan {
        let kept = json!({ "name": "kept-net", "allowPersistentIPs": true });
        let all = [
            nad("ns", "kept", &kept),
            nad("other", "kept", &json!({ "allowPersistentIPs": true })),
            nad("ns", "plain", &json!({ "type": "bridge" })),
        ];
        let all = all.into_iter().map(|one| (Key::of(&one), one)).collect();
        plan(vmi, &all, &[])
    }

    fn on(name: &str, of: &str) -> Value {
        json!({ "name": name, "multus": { "networkName": of } })
    }

    #[test]
    fn a_claim_for_each_network_that_keeps_addresses() {
        let networks = json!([
            { "name": "default", "pod": {} },
            on("Blue", "kept"),
            on("red", "other/kept"),
            on("plain", "plain"),
            on("later", "later"),
        ]);
        let found = of(&vmi(networks, json!({})));
        assert!(found.problems.is_empty() && found.primary.is_none(), "{found:?}");
        let shown: Vec<String> = found
            .secondary
            .iter()
            .map(|(key, wanted)| format!("{key} {} {} {}", wanted.name, wanted.spec.network, wanted.spec.interface))
            .collect();
        let expect = [
            format!("ns/kept vm.blue kept-net {}", pod_interface("Blue")),
            format!("other/kept vm.red kept {}", pod_interface("red")),
        ];
        assert_eq!(shown, expect);
    }

    #[test]
    fn names_that_differ_by_case_alone_are_refused() {
        let found = of(&vmi(json!([on("Blue", "kept"), on("blue", "kept"), on("b_c", "kept")]), json!({})));
        assert_eq!(found.secondary.len(), 1);
        assert!(found.problems[0].contains("another network are kept under \"vm.blue\""), "{found:?}");
        assert!(found.problems[1].contains("is no name of an object"), "{found:?}");
    }

    #[test]
    fn claims_are_the_machines_or_the_instances_own() {
        let reference = |kind: &str, name: &str, controller: bool| {
            json!({ "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": kind, "name": name, "uid": "m", "controller": controller,
            }] })
        };
        let check = |more: Value, kind: Kind, uid: &str| {
            let found = owner(&vmi(json!([]), more));
            assert_eq!((found.kind, found.uid.as_str()), (kind, uid));
        };
        check(reference("VirtualMachine", "vm", true), Kind::VirtualMachine, "m");
        check(json!({}), Kind::VirtualMachineInstance, "i");
        check(reference("VirtualMachine", "vm", false), Kind::VirtualMachineInstance, "i");
        check(reference("VirtualMachine", "another", true), Kind::VirtualMachineInstance, "i");
        check(reference("VirtualMachineInstanceReplicaSet", "vm", true), Kind::VirtualMachineInstance, "i");
    }

    #[test]
    fn the_primary_network_takes_the_place_of_the_pods() {
        let own = json!({ "name": "udn", "role": "primary", "allowPersistentIPs": true, "subnets": "10.1.0.0/16" });
        let own = [nad("ns", "udn", &own), nad("ns", "plain", &json!({ "type": "bridge" }))];
        let asked = |text: &str| json!({ "annotations": { ADDRESSES: text } });
        let networks = || json!([{ "name": "net", "pod": {} }]);
        let found = plan(&vmi(networks(), asked(r#"{"net": ["10.1.0.7"]}"#)), &BTreeMap::new(), &own);
        let primary = found.primary.unwrap();
        assert_eq!((primary.wanted.name.as_str(), primary.wanted.spec.network.as_str()), ("vm.net", "udn"));
        assert_eq!(
            (primary.mac.as_deref(), primary.ips.as_slice()),
            (Some("02:00:00:00:00:01"), &["10.1.0.7/16".to_owned()][..])
        );
        assert!(found.problems.is_empty());
        let check = |text: &str, words: &str| {
            let found = plan(&vmi(networks(), asked(text)), &BTreeMap::new(), &own);
            assert!(found.problems.iter().chain(&found.remarks).any(|problem| problem.contains(words)), "{found:?}");
        };
        check("[", "it is no JSON");
        check("[]", "it is no object");
        check(r#"{"net": "10.1.0.7"}"#, "\"net\" has no list of addresses");
        check(r#"{"net": ["192.0.2.1"]}"#, "in no range of the network udn");
        check(r#"{"other": ["10.1.0.7"]}"#, "addresses on \"other\" cannot be asked for");
        let two = nad("ns", "second", &json!({ "role": "primary" }));
        let found = plan(&vmi(networks(), json!({})), &BTreeMap::new(), &[own[0].clone(), two]);
        assert!(found.problems[0].contains("more than one primary network: udn, second"), "{found:?}");
        let fleeting = nad("ns", "udn", &json!({ "role": "primary" }));
        assert!(plan(&vmi(networks(), json!({})), &BTreeMap::new(), &[fleeting]).primary.is_none());
        let without = plan(&vmi(json!([]), json!({})), &BTreeMap::new(), &own);
        assert!(without.primary.is_none());
    }
}
