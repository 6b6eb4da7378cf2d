//! Pure: the annotation that names a pod's secondary networks, in both of its forms.
//!
//! `net-a, other/net-b@eth1` or `[{"name": "net-a"}, {"name": "net-b", "namespace": "other", "interface": "eth1"}]`

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value};

/// The annotation.
pub const ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";

/// One network that a pod asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selected {
    /// Of the definition.
    pub namespace: String,
    /// Of the definition.
    pub name: String,
    /// What the interface is called in the pod.
    pub interface: String,
    /// The annotation says so; else it follows from the place in the list.
    pub is_named: bool,
    /// Its hardware address.
    pub mac: Option<String>,
    /// Addresses with prefix lengths.
    pub ips: Vec<String>,
    /// Further arguments for plugins.
    pub arguments: Map<String, Value>,
    /// What has the addresses, where they outlive the pod.
    pub claim: Option<ClaimReference>,
}

/// An IPAMClaim of the pod's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimReference {
    /// Its name.
    pub name: String,
    /// One that is made later under the same name is another one.
    pub uid: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Element {
    name: String,
    namespace: String,
    interface: String,
    mac: String,
    ips: Vec<String>,
    #[serde(rename = "cni-args")]
    arguments: Option<Map<String, Value>>,
    #[serde(rename = "default-route")]
    default_route: Vec<String>,
    #[serde(rename = "ipam-claim-reference")]
    claim: String,
    #[serde(rename = "ipam-claim-uid")]
    claim_uid: String,
}

/// Reads the annotation of a pod in `namespace`. The error is a sentence for the pod's owner.
pub fn parse(text: &str, namespace: &str) -> Result<Vec<Selected>, String> {
    let text = text.trim();
    let elements = if text.starts_with('[') {
        serde_json::from_str::<Vec<Element>>(text)
            .map_err(|error| format!("annotation {ANNOTATION}: not a JSON list of networks: {error}"))?
    } else {
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(short).collect::<Result<_, _>>()?
    };
    let mut names = BTreeSet::from(["lo".to_owned(), "eth0".to_owned()]);
    let mut claims = BTreeSet::new();
    let mut out = Vec::new();
    for (index, element) in elements.into_iter().enumerate() {
        let selected = select(element, index, namespace)?;
        if !names.insert(selected.interface.clone()) {
            let interface = &selected.interface;
            return Err(format!("annotation {ANNOTATION}: the pod has an interface {interface} already"));
        }
        if let Some(claim) = selected.claim.as_ref().filter(|claim| !claims.insert(claim.name.clone())) {
            return Err(format!(
                "annotation {ANNOTATION}: two networks have the IPAMClaim {}: each has its own",
                claim.name
            ));
        }
        out.push(selected);
    }
    Ok(out)
}

fn short(item: &str) -> Result<Element, String> {
    let (path, interface) = item.split_once('@').unwrap_or((item, ""));
    let (namespace, name) = path.split_once('/').unwrap_or(("", path));
    if name.contains('/') || interface.contains('@') || (item.contains('@') && interface.is_empty()) {
        return Err(format!("annotation {ANNOTATION}: {item:?} is not of the form [NAMESPACE/]NAME[@INTERFACE]"));
    }
    let (namespace, name, interface) = (namespace.to_owned(), name.to_owned(), interface.to_owned());
    Ok(Element { namespace, name, interface, ..Element::default() })
}

fn select(element: Element, index: usize, namespace: &str) -> Result<Selected, String> {
    let refuse = |what: String| Err(format!("annotation {ANNOTATION}: {what}"));
    let Element { name, interface, mac, ips, arguments, default_route, claim, claim_uid, .. } = element;
    let namespace = if element.namespace.is_empty() { namespace.to_owned() } else { element.namespace };
    for (what, value) in [("name", &name), ("namespace", &namespace)] {
        if !is_name(value) {
            return refuse(format!("{value:?} is not the {what} of a network-attachment-definition"));
        }
    }
    let is_named = !interface.is_empty();
    let interface = if interface.is_empty() { format!("net{}", index + 1) } else { interface };
    if interface.len() > 15 || !interface.chars().all(|c| c.is_ascii_graphic() && c != '/' && c != ':') {
        return refuse(format!("{interface:?} is not a name for a network interface: it has 1 to 15 characters"));
    }
    if !default_route.is_empty() {
        return refuse(format!("default-route of {name} is not served: the pod's own network has the default route"));
    }
    for address in &ips {
        if address.parse::<ipnet::IpNet>().is_err() && address.parse::<std::net::IpAddr>().is_err() {
            return refuse(format!("ips of {name}: {address:?} is not an address such as 10.0.0.2/24"));
        }
    }
    let mac = Some(mac).filter(|mac| !mac.is_empty());
    if let Some(mac) = mac.as_deref().filter(|mac| !is_mac(mac)) {
        return refuse(format!("mac of {name}: {mac:?} is not a hardware address such as 02:00:00:00:00:01"));
    }
    if !claim.is_empty() && !is_name(&claim) {
        return refuse(format!("ipam-claim-reference of {name}: {claim:?} is not the name of an IPAMClaim"));
    }
    if !claim.is_empty() && !ips.is_empty() {
        return refuse(format!("{name} has ips and an ipam-claim-reference: the addresses are those of one of them"));
    }
    let claim =
        (!claim.is_empty()).then(|| ClaimReference { name: claim, uid: Some(claim_uid).filter(|uid| !uid.is_empty()) });
    Ok(Selected { namespace, name, interface, is_named, mac, ips, arguments: arguments.unwrap_or_default(), claim })
}

fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !text.is_empty() && text.len() <= 253 && text.chars().all(good) && !text.starts_with(['-', '.'])
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    parts.len() == 6 && parts.iter().all(|part| part.len() == 2 && u8::from_str_radix(part, 16).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        let all = parse(text, "own").unwrap();
        let shown: Vec<String> = all
            .iter()
            .map(|s| format!("{}/{}@{} {:?} {:?}", s.namespace, s.name, s.interface, s.mac.as_deref(), s.ips))
            .collect();
        assert_eq!(shown, expect);
    }

    #[test]
    fn both_forms() {
        check("", &[]);
        check("a", &["own/a@net1 None []"]);
        check("a, x/b@eth7,c", &["own/a@net1 None []", "x/b@eth7 None []", "own/c@net3 None []"]);
        check("[]", &[]);
        check(
            r#" [{"name": "a"}, {"name": "b", "namespace": "x", "interface": "pod16477688c0e",
                "mac": "02:00:00:00:00:01", "ips": ["10.0.0.2/24", "fd00::2"], "cni-args": {"k": 1}}]"#,
            &["own/a@net1 None []", r#"x/b@pod16477688c0e Some("02:00:00:00:00:01") ["10.0.0.2/24", "fd00::2"]"#],
        );
    }

    #[test]
    fn a_network_may_have_a_claim() {
        let all =
            parse(r#"[{"name": "a", "ipam-claim-reference": "vm.a", "ipam-claim-uid": "u"}, {"name": "b"}]"#, "own")
                .unwrap();
        let claim = ClaimReference { name: "vm.a".into(), uid: Some("u".into()) };
        assert_eq!((all[0].claim.as_ref(), all[1].claim.as_ref()), (Some(&claim), None));
    }

    #[track_caller]
    fn refused(text: &str, words: &str) {
        let why = parse(text, "own").unwrap_err();
        assert!(why.starts_with("annotation k8s.v1.cni.cncf.io/networks: ") && why.contains(words), "{why}");
    }

    #[test]
    fn invalid_selections_are_refused() {
        refused("a/b/c", "is not of the form [NAMESPACE/]NAME[@INTERFACE]");
        refused("a@", "is not of the form");
        refused("A", "\"A\" is not the name");
        refused("a@eth0", "the pod has an interface eth0 already");
        refused("a@x,b@x", "the pod has an interface x already");
        refused("a@sixteencharacters", "1 to 15 characters");
        refused("[{]", "not a JSON list of networks");
        refused(r#"[{"namespace": "x"}]"#, "\"\" is not the name");
        refused(r#"[{"name": "a", "mac": "nope"}]"#, "is not a hardware address");
        refused(r#"[{"name": "a", "ips": ["nope"]}]"#, "is not an address");
        refused(r#"[{"name": "a", "ipam-claim-reference": "../x"}]"#, "is not the name of an IPAMClaim");
        refused(r#"[{"name": "a", "ipam-claim-reference": "x", "ips": ["10.0.0.2"]}]"#, "those of one of them");
        let twice = r#"[{"name": "a", "ipam-claim-reference": "x"}, {"name": "b", "ipam-claim-reference": "x"}]"#;
        refused(twice, "two networks have the IPAMClaim x");
        refused(r#"[{"name": "a", "default-route": ["10.0.0.1"]}]"#, "is not served");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is accepted names interfaces that the kernel takes, each once, and none that the pod has already.
        #[test]
        fn any_accepted_annotation_names_valid_unique_interfaces(text in ".{0,80}|[a-z0-9/@,. -]{0,60}|\\[\\{\"name\": \"[a-z]{1,5}\", \"(interface|mac|ips|cni-args)\": .{0,20}\\}\\]") {
            let Ok(all) = parse(&text, "own") else { return Ok(()) };
            let mut seen = BTreeSet::new();
            for one in all {
                prop_assert!((1..=15).contains(&one.interface.len()) && !one.interface.contains('/'), "{:?}", one);
                prop_assert!(one.interface != "lo" && one.interface != "eth0" && seen.insert(one.interface));
                prop_assert!(is_name(&one.namespace) && is_name(&one.name));
            }
        }

        #[test]
        fn any_configuration_is_parsed_or_refused_by_name(text in ".{0,80}|\\{\"(type|plugins|name|cniVersion)\": .{0,40}\\}") {
            match crate::definition::parse(&text, "ns", "red") {
                Ok(network) => prop_assert!(!network.plugins.is_empty()),
                Err(why) => prop_assert!(why.starts_with("network-attachment-definition ns/red: ")),
            }
        }
    }
}
