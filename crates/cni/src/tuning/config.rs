//! The configuration of the plugin `tuning`.

use std::path::{Component, Path, PathBuf};

use regex::Regex;
use serde_json::Value;

use super::interface::Wanted;
use crate::call::{self, Call};
use crate::error::Error;
use crate::fields::Fields;

/// What administrators allow of sysctls, a regular expression a line; without the file everything below `net` is.
const ALLOWED: &str = "/etc/cni/tuning/allowlist.conf";
/// Where notes may be: whoever writes the configuration of a network must not write elsewhere on the node.
const DIRECTORIES: [&str; 3] = ["/run/cni", "/var/run/cni", "/var/lib/cni"];

/// What is to be set.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub(super) settings: Vec<Setting>,
    pub(super) wanted: Wanted,
    /// Where what was before is noted.
    pub(super) directory: PathBuf,
}

/// A setting of the kernel's network stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// As the configuration writes it.
    pub(super) key: String,
    parts: Vec<String>,
    pub(super) value: String,
}

impl Config {
    /// Reads the configuration of a call. What the pod's annotation has for it counts before it.
    pub(super) fn parse(call: &Call) -> Result<Self, Error> {
        let (network, pod) = (Fields(&call.config), Fields(&call.config["args"]["cni"]));
        let mut settings = Vec::new();
        for from in [network.0, pod.0] {
            for setting in read_settings(&from["sysctl"])? {
                settings.retain(|held: &Setting| held.parts != setting.parts);
                settings.push(setting);
            }
        }
        let own = network.text("mac")?.map(|text| call::hardware_address("mac", text)).transpose()?;
        let flag = |name: &str| Ok::<_, Error>(pod.optional_flag(name)?.or(network.optional_flag(name)?));
        let number = |name: &str| Ok::<_, Error>(pod.number(name, 0, 1 << 20)?.or(network.number(name, 0, 1 << 20)?));
        let wanted = Wanted {
            mac: call.mac()?.or(own),
            mtu: pod.mtu()?.or(network.mtu()?),
            // Not asking for it leaves it as it is.
            promiscuous: flag("promisc")?.filter(|on| *on),
            all_multicast: flag("allmulti")?,
            queue_length: number("txQLen")?,
        };
        let directory = PathBuf::from(network.text("dataDir")?.unwrap_or("/run/cni/tuning"));
        let plain = directory.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !plain || !DIRECTORIES.iter().any(|held| directory.starts_with(held)) {
            let remedy =
                format!("notes lie below {}: name a directory there, or leave the field out", DIRECTORIES.join(" or "));
            return Err(Error::field("dataDir", &call.config["dataDir"], remedy));
        }
        Ok(Config { settings, wanted, directory })
    }
}

fn read_settings(value: &Value) -> Result<Vec<Setting>, Error> {
    let all = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Object(all) => all,
        other => return Err(Error::field("sysctl", other, "write an object of keys and values")),
    };
    all.iter()
        .map(|(key, value)| {
            let text = value
                .as_str()
                .ok_or_else(|| Error::field(format!("sysctl {key:?}"), value, "write the value as a text"))?;
            Ok(Setting { key: key.clone(), parts: parts(key)?, value: text.to_owned() })
        })
        .collect()
}

/// The key as a path. Which of `.` and `/` comes first separates; the other is part of a name, as of an interface of a VLAN.
fn parts(key: &str) -> Result<Vec<String>, Error> {
    let separator = key.chars().find(|c| matches!(c, '.' | '/')).unwrap_or('.');
    let all: Vec<String> = match separator {
        '.' => key.split('.').map(|part| part.replace('/', ".")).collect(),
        _ => key.split('/').map(str::to_owned).collect(),
    };
    let is_name = |part: &String| !part.is_empty() && part != "." && part != ".." && !part.contains(['\0', '/']);
    if all.len() < 2 || all[0] != "net" || !all.iter().all(is_name) {
        let remedy = "only what is below net, and so of the container alone, can be set: such as net.ipv4.conf.IFNAME.arp_filter";
        return Err(Error::field("sysctl", &Value::from(key), remedy));
    }
    Ok(all)
}

impl Setting {
    /// The path below `/proc/sys`. `IFNAME` stands for the interface.
    pub(super) fn path<'a>(&'a self, interface: &'a str) -> Vec<&'a str> {
        self.parts.iter().map(|part| if part == "IFNAME" { interface } else { part.as_str() }).collect()
    }
}

/// What administrators allow.
pub(super) struct Allowed(Option<Vec<Regex>>);

impl Allowed {
    /// Reads the list.
    pub(super) fn read() -> Result<Self, Error> {
        match std::fs::read_to_string(Path::new(ALLOWED)) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Allowed(None)),
            Err(error) => Err(Error::io(format!("read {ALLOWED}"))(error)),
        }
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let read = |line: &str| {
            Regex::new(line).map_err(|_| Error::Node(format!("{ALLOWED} has {line:?}, which is no regular expression")))
        };
        Ok(Allowed(Some(lines.map(read).collect::<Result<_, _>>()?)))
    }

    /// Refuses what is not on the list.
    pub(super) fn check(&self, setting: &Setting) -> Result<(), Error> {
        let key = setting.parts.join(".");
        match &self.0 {
            Some(all) if !all.iter().any(|one| one.is_match(&key)) => {
                let remedy = format!("the administrator of this node does not allow it: see {ALLOWED} there");
                Err(Error::field("sysctl", &Value::from(setting.key.as_str()), remedy))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::Command;

    fn of(config: Value) -> Result<Config, String> {
        let call = Call {
            command: Command::Add,
            container: "c".into(),
            netns: None,
            interface: "net1".into(),
            args: Vec::new(),
            path: Vec::new(),
            network: "red".into(),
            asked: "1.0.0".into(),
            config,
        };
        Config::parse(&call).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_name_their_file() {
        let check = |key: &str, expect: &[&str]| {
            let config = of(json!({ "sysctl": { key: "1" } })).unwrap();
            assert_eq!(config.settings[0].path("net1"), expect, "{key}");
        };
        check("net.ipv4.conf.IFNAME.arp_filter", &["net", "ipv4", "conf", "net1", "arp_filter"]);
        check("net/ipv4/conf/eth0.100/forwarding", &["net", "ipv4", "conf", "eth0.100", "forwarding"]);
        check("net.ipv4.conf.eth0/100.forwarding", &["net", "ipv4", "conf", "eth0.100", "forwarding"]);
        let pod = of(
            json!({ "sysctl": { "net.core.somaxconn": "1" }, "args": { "cni": { "sysctl": { "net/core/somaxconn": "2" }, "mtu": 1400 } }, "mtu": 9000 }),
        );
        let pod = pod.unwrap();
        assert_eq!((pod.settings.len(), pod.settings[0].value.as_str(), pod.wanted.mtu), (1, "2", Some(1400)));
    }

    /// Who writes the definition of a network is no administrator of the node.
    #[test]
    fn nothing_of_the_node_itself_can_be_written() {
        for key in [
            "kernel.core_pattern",
            "net.../kernel/core_pattern",
            "net/../kernel/core_pattern",
            "net..core_pattern",
            "/net/x",
            "net",
            "",
            "net/./x",
            "vm.overcommit_memory",
            "net./..//..//kernel.panic",
        ] {
            let why = of(json!({ "sysctl": { key: "1" } })).unwrap_err();
            assert!(why.starts_with("sysctl is ") && why.contains("below net"), "{key}: {why}");
        }
        for directory in ["/etc", "/run/cni/../../etc", "/run/cnix", "run/cni", "/run"] {
            let why = of(json!({ "dataDir": directory })).unwrap_err();
            assert!(why.starts_with("dataDir is ") && why.contains("/run/cni"), "{directory}: {why}");
        }
        assert!(of(json!({ "dataDir": "/var/lib/cni/tuning" })).is_ok());
        assert!(of(json!({ "sysctl": { "net.core.somaxconn": 5 } })).unwrap_err().contains("as a text"));
        assert!(of(json!({ "mac": "01:00:00:00:00:00" })).unwrap_err().contains("unicast"));
        assert!(of(json!({ "allmulti": 1 })).unwrap_err().contains("allmulti"));
    }

    #[test]
    fn an_administrators_list_counts() {
        let allowed = Allowed::parse("# comment\n^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$\n").unwrap();
        let setting = |key: &str| of(json!({ "sysctl": { key: "1" } })).unwrap().settings.remove(0);
        assert!(allowed.check(&setting("net/ipv4/conf/IFNAME/arp_filter")).is_ok());
        let why = allowed.check(&setting("net.ipv4.ip_forward")).unwrap_err().to_string();
        assert!(why.contains("does not allow it"), "{why}");
        assert!(Allowed::parse("(").is_err());
        assert!(Allowed(None).check(&setting("net.ipv4.ip_forward")).is_ok());
    }
}
