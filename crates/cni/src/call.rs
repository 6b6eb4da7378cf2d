//! What the runtime asks for: the environment and the configuration, checked before anything is done.

use std::path::PathBuf;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::result;

/// The verbs of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

impl Command {
    /// The one that the runtime says.
    pub(crate) fn of_environment() -> Result<Self, Error> {
        Self::parse(&variable("CNI_COMMAND"))
    }

    fn parse(text: &str) -> Result<Self, Error> {
        Ok(match text {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "STATUS" => Command::Status,
            "GC" => Command::Gc,
            "VERSION" => Command::Version,
            "" => return Err(Error::Environment { variable: "CNI_COMMAND", why: "is not set".to_owned() }),
            other => {
                let why = format!("is {other:?}: set ADD, DEL, CHECK, STATUS, GC or VERSION");
                return Err(Error::Environment { variable: "CNI_COMMAND", why });
            }
        })
    }

    /// As the specification writes it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Status => "STATUS",
            Command::Gc => "GC",
            Command::Version => "VERSION",
        }
    }
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) command: Command,
    /// Whose interface it is.
    pub(crate) container: String,
    /// The network namespace; none when it is gone.
    pub(crate) netns: Option<PathBuf>,
    /// The interface's name in it.
    pub(crate) interface: String,
    /// Further facts, `CNI_ARGS`.
    pub(crate) args: Vec<(String, String)>,
    /// Where other plugins are.
    pub(crate) path: Vec<PathBuf>,
    /// The network's name.
    pub(crate) network: String,
    /// The version that the configuration names, as results are written.
    pub(crate) asked: String,
    pub(crate) config: Value,
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

impl Call {
    /// The call that the environment describes. An error comes with the version to answer in.
    pub(crate) fn new(command: Command, config: &Value) -> Result<Self, (String, Error)> {
        Self::from(command, config, &variable)
    }

    fn from(command: Command, config: &Value, variable: &dyn Fn(&str) -> String) -> Result<Self, (String, Error)> {
        let asked = config["cniVersion"].as_str().filter(|text| !text.is_empty()).unwrap_or("0.1.0").to_owned();
        let checked = || {
            if command != Command::Version && !result::SUPPORTED.contains(&asked.as_str()) {
                return Err(Error::Version { asked: asked.clone(), known: &result::SUPPORTED });
            }
            let network = config["name"].as_str().unwrap_or_default().to_owned();
            let about_one = matches!(command, Command::Add | Command::Del | Command::Check);
            if command != Command::Version && !is_identifier(&network) {
                return Err(Error::field(
                    "name",
                    &config["name"],
                    "set the network's name: letters, digits, _ . and -",
                ));
            }
            let wanted = |name: &'static str, needed: bool| match variable(name) {
                text if text.is_empty() && needed => {
                    Err(Error::Environment { variable: name, why: "is not set".to_owned() })
                }
                text => Ok(text),
            };
            let (container, interface) = (wanted("CNI_CONTAINERID", about_one)?, wanted("CNI_IFNAME", about_one)?);
            let netns = wanted("CNI_NETNS", about_one && command != Command::Del)?;
            if about_one && !is_identifier(&container) {
                let why = format!("is {container:?}: an id has letters, digits, _ . and -");
                return Err(Error::Environment { variable: "CNI_CONTAINERID", why });
            }
            if about_one && !is_interface(&interface) {
                let why = format!("is {interface:?}: a name of an interface has up to 15 characters, no / : or space");
                return Err(Error::Environment { variable: "CNI_IFNAME", why });
            }
            let path = wanted("CNI_PATH", false)?.split(':').filter(|dir| !dir.is_empty()).map(PathBuf::from).collect();
            Ok(Call {
                command,
                container,
                netns: Some(netns).filter(|netns| !netns.is_empty()).map(PathBuf::from),
                interface,
                args: arguments(&wanted("CNI_ARGS", false)?)?,
                path,
                network,
                asked: asked.clone(),
                config: config.clone(),
            })
        };
        checked().map_err(|error| (asked.clone(), error))
    }

    /// A name by which what was made on the node is found again: of an interface, a chain of rules.
    pub(crate) fn handle(&self) -> String {
        handle(&self.container, &self.interface)
    }

    /// A fact of `CNI_ARGS`.
    pub(crate) fn argument(&self, name: &str) -> Option<&str> {
        self.args.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str()).filter(|v| !v.is_empty())
    }

    /// The hardware address that is asked for, and by which field: the runtime counts before the configuration's arguments, they
    /// before `CNI_ARGS`.
    pub(crate) fn mac(&self) -> Result<Option<[u8; 6]>, Error> {
        let config = &self.config;
        let said = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let all = [
            ("runtimeConfig.mac", said(&config["runtimeConfig"]["mac"])),
            ("args.cni.mac", said(&config["args"]["cni"]["mac"])),
            ("CNI_ARGS MAC", self.argument("MAC").map(str::to_owned)),
        ];
        let Some((field, text)) = all.into_iter().find_map(|(field, text)| Some((field, text?))) else {
            return Ok(None);
        };
        hardware_address(field, &text).map(Some)
    }
}

/// Reads an address that one interface alone can have.
pub(crate) fn hardware_address(field: &str, text: &str) -> Result<[u8; 6], Error> {
    let refused = |remedy: &str| Error::field(field, &Value::from(text), remedy);
    let octets: Option<Vec<u8>> = text
        .split([':', '-'])
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2 && !part.starts_with('+')))
        .collect();
    let mac: Option<[u8; 6]> = octets.and_then(|octets| octets.try_into().ok());
    let mac = mac.ok_or_else(|| refused("write six octets, such as 02:00:00:00:00:01"))?;
    if mac[0] & 1 == 1 || mac == [0; 6] {
        return Err(refused("an interface has a unicast address: clear the lowest bit of the first octet"));
    }
    Ok(mac)
}

/// A hardware address as results have it.
pub(crate) fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|octet| format!("{octet:02x}")).collect::<Vec<_>>().join(":")
}

/// See [`Call::handle`]: as long as names of interfaces may be, and as good as unique.
pub(crate) fn handle(container: &str, interface: &str) -> String {
    format!("veth{}", &digest(&[container, interface])[..11])
}

/// A short name of these texts.
pub(crate) fn digest(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn arguments(text: &str) -> Result<Vec<(String, String)>, Error> {
    let refused = |why: String| Error::Environment { variable: "CNI_ARGS", why };
    let mut all = Vec::new();
    for pair in text.split(';').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(refused(format!("has {pair:?}: write NAME=VALUE")));
        };
        all.push((name.to_owned(), value.to_owned()));
    }
    let ignores = all.iter().any(|(name, value)| name == "IgnoreUnknown" && matches!(value.as_str(), "1" | "true"));
    match all.iter().find(|(name, _)| !["IgnoreUnknown", "MAC"].contains(&name.as_str())) {
        Some((name, _)) if !ignores => {
            Err(refused(format!("has the unknown {name}: add IgnoreUnknown=1, or leave it out")))
        }
        _ => Ok(all),
    }
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

/// Whether the kernel takes it, and no path or pattern is hidden in it.
pub(crate) fn is_interface(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && text != "."
        && text != ".."
        && !text.chars().any(|c| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]
    fn of(command: Command, config: Value, more: &[(&str, &str)]) -> Result<Call, String> {
        let usual = [("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "net1"), ("CNI_NETNS", "/run/netns/x")];
        let variable = |name: &str| {
            let all = more.iter().chain(&usual);
            all.into_iter().find(|(known, _)| *known == name).map_or(String::new(), |(_, value)| (*value).to_owned())
        };
        Call::from(command, &config, &variable).map_err(|(_, error)| error.to_string())
    }

    #[test]
    fn calls_are_read_or_refused_by_name() {
        let config = || json!({ "cniVersion": "1.0.0", "name": "red", "type": "bridge" });
        let call = of(Command::Add, config(), &[("CNI_PATH", "/a:/b"), ("CNI_ARGS", "MAC=02:00:00:00:00:01")]).unwrap();
        assert_eq!((call.path.len(), call.mac().unwrap()), (2, Some([2, 0, 0, 0, 0, 1])));
        assert_eq!((call.handle().len(), call.handle()), (15, handle("c1", "net1")));
        assert_ne!(handle("c1", "net1"), handle("c1n", "et1"));
        assert!(of(Command::Del, config(), &[("CNI_NETNS", "")]).unwrap().netns.is_none());
        assert_eq!(of(Command::Add, json!({ "name": "red" }), &[]).unwrap().asked, "0.1.0");
        let check = |config: Value, more: &[(&str, &str)], words: &str| {
            let why = of(Command::Add, config, more).unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        check(config(), &[("CNI_NETNS", "")], "CNI_NETNS is not set");
        check(config(), &[("CNI_CONTAINERID", "../x")], "CNI_CONTAINERID is \"../x\"");
        check(config(), &[("CNI_IFNAME", "a/b")], "CNI_IFNAME is \"a/b\"");
        check(config(), &[("CNI_IFNAME", "..")], "CNI_IFNAME");
        check(config(), &[("CNI_ARGS", "A=1")], "unknown A");
        check(config(), &[("CNI_ARGS", "A")], "write NAME=VALUE");
        check(json!({ "cniVersion": "2.0.0", "name": "red" }), &[], "\"2.0.0\" is not supported");
        check(json!({ "cniVersion": "1.0.0" }), &[], "name is null");
        check(json!({ "name": "../../etc" }), &[], "name is");
    }

    #[test]
    fn the_runtime_counts_before_the_network_and_it_before_the_arguments() {
        let arguments = [("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=p;MAC=02:00:00:00:00:03")];
        let mac = |more: Value| {
            let mut config = json!({ "name": "red" });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(Command::Add, config, &arguments).unwrap().mac().map_err(|error| error.to_string())
        };
        let (own, run) = (json!({ "cni": { "mac": "02:00:00:00:00:02" } }), json!({ "mac": "02-00-00-00-00-01" }));
        assert_eq!(mac(json!({ "args": own, "runtimeConfig": run })), Ok(Some([2, 0, 0, 0, 0, 1])));
        assert_eq!(mac(json!({ "args": own })), Ok(Some([2, 0, 0, 0, 0, 2])));
        assert_eq!(mac(json!({})), Ok(Some([2, 0, 0, 0, 0, 3])));
        for (bad, words) in
            [("03:00:00:00:00:01", "unicast"), ("02:00", "six octets"), ("+2:00:00:00:00:01", "six octets")]
        {
            let why = mac(json!({ "runtimeConfig": { "mac": bad } })).unwrap_err();
            assert!(why.starts_with("runtimeConfig.mac") && why.contains(words), "{why}");
        }
    }
}
