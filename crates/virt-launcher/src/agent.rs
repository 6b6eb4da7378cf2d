//! Facts from the guest's agent. A guest says what it likes: answers are bounded in size, number and time.

use std::collections::{BTreeMap, BTreeSet};

use api::kubevirt::v1::{
    GuestAgentCommandInfo, VirtualMachineInstanceFileSystem, VirtualMachineInstanceFileSystemDisk,
    VirtualMachineInstanceGuestOSInfo, VirtualMachineInstanceGuestOSUser,
};
use domain::{GuestFacts, GuestInterface};
use libvirt::Domain;
use serde_json::Value;

/// Seconds for one answer.
const TIMEOUT: i32 = 5;
/// Bytes of one answer.
const ANSWER_LIMIT: usize = 1 << 20;
/// Entries of a list.
const LIST_LIMIT: usize = 256;
/// Characters of a word.
const WORD_LIMIT: usize = 256;

/// Asks for everything; None when nobody answers at all. What the agent does not offer stays as it is `known`, and so does what
/// it answers badly or late: a busy guest, or one whose file systems are frozen, is still the guest that it was.
pub(crate) fn collect(domain: &Domain, known: GuestFacts) -> Option<GuestFacts> {
    read(|command| ask(domain, command), known)
}

/// Whether the guest says that its file systems are frozen.
pub(crate) fn is_frozen(domain: &Domain) -> bool {
    is_frozen_by(|command| ask(domain, command))
}

fn is_frozen_by(ask: impl Fn(&str) -> Option<Value>) -> bool {
    ask("guest-fsfreeze-status").is_some_and(|answer| answer.as_str() == Some("frozen"))
}

fn ask(domain: &Domain, command: &str) -> Option<Value> {
    let answer = domain.agent_command(&format!("{{\"execute\":\"{command}\"}}"), TIMEOUT);
    match answer {
        Ok(text) if text.len() <= ANSWER_LIMIT => {
            serde_json::from_str::<Value>(&text).ok().and_then(|mut answer| answer.get_mut("return").map(Value::take))
        }
        Ok(text) => {
            tracing::warn!(command, bytes = text.len(), "the guest agent's answer is too long");
            None
        }
        Err(error) => {
            tracing::debug!(command, %error, "the guest agent did not answer");
            None
        }
    }
}

fn read(ask: impl Fn(&str) -> Option<Value>, known: GuestFacts) -> Option<GuestFacts> {
    let info = ask("guest-info")?;
    let mut facts = known;
    facts.agent_version = word(&info["version"]);
    facts.supported_commands = commands(&info);
    let offered = facts.supported_commands.iter().filter(|command| command.enabled == Some(true));
    let offered: BTreeSet<String> = offered.map(|command| command.name.clone()).collect();
    let ask = |name: &str| if offered.contains(name) { ask(name) } else { None };

    if let Some(answer) = ask("guest-get-osinfo") {
        facts.os = Some(operating_system(&answer));
    }
    if let Some(answer) = ask("guest-get-host-name") {
        facts.hostname = word(&answer["host-name"]);
    }
    if let Some(answer) = ask("guest-get-timezone") {
        facts.timezone = time_zone(&answer);
    }
    if let Some(answer) = ask("guest-network-get-interfaces") {
        facts.interfaces = network(&answer);
    }
    if let Some(answer) = ask("guest-get-users") {
        facts.users = user_list(&answer);
    }
    if let Some(answer) = ask("guest-get-fsinfo") {
        facts.filesystems = filesystem_list(&answer);
    }
    if let Some(answer) = ask("guest-fsfreeze-status") {
        facts.fs_freeze_status = word(&answer);
    }
    Some(facts)
}

fn word(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    text.chars().filter(|c| !c.is_control()).take(WORD_LIMIT).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten().take(LIST_LIMIT)
}

/// The commands that an agent's `guest-info` lists.
pub(crate) fn commands(info: &Value) -> Vec<GuestAgentCommandInfo> {
    let commands: BTreeMap<String, bool> = list(&info["supported_commands"])
        .map(|command| (word(&command["name"]), command["enabled"].as_bool().unwrap_or(false)))
        .collect();
    commands.into_iter().map(|(name, enabled)| GuestAgentCommandInfo { name, enabled: Some(enabled) }).collect()
}

fn operating_system(os: &Value) -> VirtualMachineInstanceGuestOSInfo {
    let some = |key: &str| Some(word(&os[key])).filter(|text| !text.is_empty());
    VirtualMachineInstanceGuestOSInfo {
        id: some("id"),
        name: some("name"),
        pretty_name: some("pretty-name"),
        version: some("version"),
        version_id: some("version-id"),
        machine: some("machine"),
        kernel_release: some("kernel-release"),
        kernel_version: some("kernel-version"),
    }
}

/// `CET, 3600` as users of the API know it.
fn time_zone(answer: &Value) -> String {
    let offset = answer["offset"].as_i64().unwrap_or(0);
    let zone = word(&answer["zone"]);
    if zone.is_empty() { offset.to_string() } else { format!("{zone}, {offset}") }
}

/// Without loopback, addresses as plain text; link-local ones come last, so that the first is one to connect to.
fn network(answer: &Value) -> Vec<GuestInterface> {
    list(answer)
        .map(|interface| {
            let mut addresses: Vec<String> =
                list(&interface["ip-addresses"]).map(|address| word(&address["ip-address"])).collect();
            addresses.retain(|address| address.parse::<std::net::IpAddr>().is_ok());
            addresses.sort_by_key(|address| address.starts_with("fe80"));
            GuestInterface {
                name: word(&interface["name"]),
                mac: word(&interface["hardware-address"]).to_ascii_lowercase(),
                addresses,
            }
        })
        .filter(|interface| interface.name != "lo" && !interface.name.is_empty())
        .collect()
}

fn user_list(answer: &Value) -> Vec<VirtualMachineInstanceGuestOSUser> {
    list(answer)
        .map(|user| VirtualMachineInstanceGuestOSUser {
            user_name: word(&user["user"]),
            domain: Some(word(&user["domain"])).filter(|domain| !domain.is_empty()),
            login_time: user["login-time"].as_f64(),
        })
        .collect()
}

fn filesystem_list(answer: &Value) -> Vec<VirtualMachineInstanceFileSystem> {
    list(answer)
        .map(|filesystem| VirtualMachineInstanceFileSystem {
            disk_name: word(&filesystem["name"]),
            mount_point: word(&filesystem["mountpoint"]),
            file_system_type: word(&filesystem["type"]),
            total_bytes: filesystem["total-bytes"].as_i64().unwrap_or(0),
            used_bytes: filesystem["used-bytes"].as_i64().unwrap_or(0),
            disk: list(&filesystem["disk"])
                .map(|disk| VirtualMachineInstanceFileSystemDisk {
                    bus_type: word(&disk["bus-type"]),
                    serial: Some(word(&disk["serial"])).filter(|serial| !serial.is_empty()),
                })
                .collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn guest(command: &str) -> Option<Value> {
        Some(match command {
            "guest-info" => json!({"version": "10.0.2", "supported_commands": [
                {"name": "guest-network-get-interfaces", "enabled": true},
                {"name": "guest-get-users", "enabled": false},
                {"name": "guest-get-host-name", "enabled": true},
                {"name": "guest-get-fsinfo", "enabled": true},
            ]}),
            "guest-network-get-interfaces" => json!([
                {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1"}]},
                {"name": "eth0", "hardware-address": "02:AA:00:00:00:01", "ip-addresses": [
                    {"ip-address": "fe80::1"}, {"ip-address": "10.0.2.2"}, {"ip-address": "<script>"},
                ]},
            ]),
            "guest-get-host-name" => json!({"host-name": "a".repeat(1000)}),
            "guest-get-fsinfo" => json!(vec![json!({"name": "vda1", "total-bytes": 9_000_000_000_i64}); 1000]),
            other => panic!("asked {other}, which the agent does not offer"),
        })
    }

    #[test]
    fn facts_are_bounded_and_only_what_is_offered_is_asked() {
        let facts = read(guest, GuestFacts::default()).unwrap();
        assert_eq!(facts.agent_version, "10.0.2");
        assert_eq!(facts.hostname.len(), WORD_LIMIT);
        assert_eq!(facts.filesystems.len(), LIST_LIMIT);
        assert_eq!(facts.filesystems[0].total_bytes, 9_000_000_000);
        assert_eq!(facts.interfaces.len(), 1);
        assert_eq!(facts.interfaces[0].mac, "02:aa:00:00:00:01");
        assert_eq!(facts.interfaces[0].addresses, ["10.0.2.2", "fe80::1"]);
        assert!(facts.users.is_empty());
    }

    #[test]
    fn no_agent_no_facts() {
        assert_eq!(read(|_| None, GuestFacts::default()), None);
    }

    #[test]
    fn facts_stay_when_the_guest_agent_answers_late() {
        let known = read(guest, GuestFacts::default()).unwrap();
        let slow = |command: &str| if command == "guest-get-fsinfo" { None } else { guest(command) };
        assert_eq!(read(slow, known.clone()), Some(known.clone()));
        let frozen = |command: &str| (command == "guest-info").then(|| json!({"version": "10.0.2"}));
        assert_eq!(read(frozen, known.clone()).unwrap().hostname, known.hostname);
    }
    #[test]
    fn only_a_guest_that_says_so_is_frozen() {
        let said = |word: &'static str| move |_: &str| Some(json!(word));
        assert!(is_frozen_by(said("frozen")));
        assert!(!is_frozen_by(said("thawed")));
        assert!(!is_frozen_by(|_| None));
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Any document, whose members have the names that are looked for.
    fn document() -> impl Strategy<Value = Value> {
        let name = prop::sample::select(vec![
            "version",
            "host-name",
            "zone",
            "offset",
            "name",
            "hardware-address",
            "ip-addresses",
            "ip-address",
            "user",
            "domain",
            "login-time",
            "mountpoint",
            "type",
            "total-bytes",
            "used-bytes",
            "disk",
            "bus-type",
            "serial",
            "pretty-name",
            "id",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,400}".prop_map(Value::from),
            "[0-9a-f:.]{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 8, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                proptest::collection::vec((name.clone(), inner), 0..8).prop_map(|members| Value::Object(
                    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
                )),
            ]
        })
    }

    fn bounded(value: &Value) -> bool {
        match value {
            Value::String(text) => text.chars().count() <= 2 * WORD_LIMIT && !text.chars().any(char::is_control),
            Value::Array(list) => list.len() <= LIST_LIMIT && list.iter().all(bounded),
            Value::Object(members) => members.values().all(bounded),
            _ => true,
        }
    }

    proptest! {
        #[test]
        fn answers_of_the_guest_agent_are_bounded(answers in proptest::collection::vec(document(), 7)) {
            const ASKED: [&str; 7] = [
                "guest-get-osinfo", "guest-get-host-name", "guest-get-timezone", "guest-network-get-interfaces", "guest-get-users",
                "guest-get-fsinfo", "guest-fsfreeze-status",
            ];
            let offered: Vec<Value> = ASKED.iter().map(|name| json!({"name": name, "enabled": true})).collect();
            let ask = |command: &str| match ASKED.iter().position(|name| *name == command) {
                Some(at) => Some(answers[at].clone()),
                None => Some(json!({"version": answers[0], "supported_commands": offered})),
            };
            let facts = read(ask, GuestFacts::default()).unwrap();
            prop_assert!(bounded(&serde_json::to_value(&facts).unwrap()), "{:?}", facts);
            let whole = read(|command| (command == "guest-info").then(|| answers[1].clone()), GuestFacts::default()).unwrap();
            prop_assert!(bounded(&serde_json::to_value(&whole).unwrap()), "{:?}", whole);
        }
    }
}
