//! Running CNI plugins: a chain of programs that make, or take back, one interface of a network namespace.
//!
//! The protocol is that of the CNI specification 1.0: what to do is in the environment, the configuration on the standard
//! input, the result or the error on the standard output. Each plugin of a chain gets the result of the one before it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// A plugin that takes longer has lost its way.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of an answer that are read.
const LARGEST: u64 = 1 << 20;
/// Versions whose plugins are told, when an interface is taken back, what they made.
const FORGETFUL: [&str; 7] = ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.0.1", "0.0.2"];

/// Where plugins are, and from where they see the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plugins {
    /// Directories, the first with a program of the name counting.
    pub dirs: Vec<PathBuf>,
    /// The node's root, for a process that lives in a container: plugins run in it, and the directories are those below it.
    pub root: Option<PathBuf>,
}

impl Plugins {
    /// True when a plugin of this type is there.
    pub fn have(&self, kind: &str) -> bool {
        self.find(kind).is_some()
    }

    /// The program of a type, as a path that it can be started by.
    fn find(&self, kind: &str) -> Option<PathBuf> {
        // A type is a name; with a separator in it, it would be a path out of these directories.
        if kind.is_empty() || Path::new(kind).components().count() != 1 || kind.starts_with('.') || kind.contains('/') {
            return None;
        }
        let known_as = SAME.iter().find(|(name, _)| *name == kind).map(|(_, other)| *other);
        let names = [Some(kind), known_as];
        let mut all = names.iter().flatten().flat_map(|name| self.dirs.iter().map(move |dir| dir.join(name)));
        all.find(|path| match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)).is_file(),
            None => path.is_file(),
        })
    }

    fn start(&self, process: &mut Command) -> std::io::Result<tokio::process::Child> {
        let Some(root) = &self.root else { return process.spawn() };
        let runtime = tokio::runtime::Handle::current();
        let started = sys::namespace::in_root(root, || {
            let _runtime = runtime.enter();
            process.spawn()
        });
        started.map_err(std::io::Error::other)?
    }
}

/// A network: the plugins to run, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its name, by which plugins keep their own records.
    pub name: String,
    /// Of the specification, as the configuration has it.
    pub version: String,
    /// Their configurations.
    pub plugins: Vec<Value>,
}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Whose it is.
    pub container: String,
    /// Path of the network namespace.
    pub netns: String,
    /// Name of the interface in it.
    pub interface: String,
    /// Further facts for plugins, `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// What plugins get that say they have these capabilities, `runtimeConfig`.
    pub capabilities: Map<String, Value>,
}

/// A plugin that did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no program of that name.
    #[error("failed to find plugin {kind:?} in path [{}]", dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(" "))]
    Unknown {
        /// Its type.
        kind: String,
        /// Where it was looked for.
        dirs: Vec<PathBuf>,
    },
    /// It could not be run, or did not end.
    #[error("plugin type={kind:?} cannot be run")]
    Run {
        /// Its type.
        kind: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// It said why not.
    #[error("plugin type={kind:?} failed ({verb}): {words}")]
    Refused {
        /// Its type.
        kind: String,
        /// `add`, `delete` or `check`.
        verb: &'static str,
        /// Its own words.
        words: String,
    },
}

/// Makes the interface and returns the last plugin's result. When a plugin fails, [`del`] takes back what those before it did.
///
/// # Errors
/// The first plugin that fails.
pub async fn add(plugins: &Plugins, network: &Network, attachment: &Attachment) -> Result<Value, Error> {
    let mut result = Value::Null;
    for plugin in &network.plugins {
        let config = config(network, plugin, attachment, &result);
        result = run(plugins, "ADD", &config, attachment).await?;
    }
    Ok(result)
}

/// Takes the interface back. `result` is what [`add`] returned; null when it failed. The plugins go on whatever one of them says.
///
/// # Errors
/// The first that a plugin returned.
pub async fn del(plugins: &Plugins, network: &Network, attachment: &Attachment, result: &Value) -> Result<(), Error> {
    let mut failed = Ok(());
    let told = if FORGETFUL.contains(&network.version.as_str()) { &Value::Null } else { result };
    for plugin in network.plugins.iter().rev() {
        let config = config(network, plugin, attachment, told);
        failed = failed.and(run(plugins, "DEL", &config, attachment).await.map(drop));
    }
    failed
}

/// Asks the plugins whether the interface is as they made it. Versions that know no such question have nothing to say.
///
/// # Errors
/// The first plugin that finds something else.
pub async fn check(plugins: &Plugins, network: &Network, attachment: &Attachment, result: &Value) -> Result<(), Error> {
    if FORGETFUL.contains(&network.version.as_str()) {
        return Ok(());
    }
    for plugin in &network.plugins {
        run(plugins, "CHECK", &config(network, plugin, attachment, result), attachment).await?;
    }
    Ok(())
}

/// What one plugin reads.
fn config(network: &Network, plugin: &Value, attachment: &Attachment, result: &Value) -> Value {
    let mut config = plugin.clone();
    config["name"] = json!(network.name);
    config["cniVersion"] = json!(network.version);
    if !result.is_null() {
        config["prevResult"] = result.clone();
    }
    let has = |name: &String| plugin["capabilities"][name] == true;
    let known: Map<String, Value> =
        attachment.capabilities.iter().filter(|(name, _)| has(name)).map(|(n, v)| (n.clone(), v.clone())).collect();
    if !known.is_empty() {
        config["runtimeConfig"] = Value::Object(known);
    }
    config
}

async fn run(plugins: &Plugins, command: &str, config: &Value, attachment: &Attachment) -> Result<Value, Error> {
    let kind = config["type"].as_str().unwrap_or_default();
    let verb = match command {
        "ADD" => "add",
        "DEL" => "delete",
        _ => "check",
    };
    let unknown = || Error::Unknown { kind: kind.to_owned(), dirs: plugins.dirs.clone() };
    let program = plugins.find(kind).ok_or_else(unknown)?;
    let failed = |source| Error::Run { kind: kind.to_owned(), source };
    let path: Vec<String> = plugins.dirs.iter().map(|dir| dir.display().to_string()).collect();
    let args: Vec<String> = attachment.args.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut process = Command::new(program);
    process
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", &attachment.container)
        .env("CNI_NETNS", &attachment.netns)
        .env("CNI_IFNAME", &attachment.interface)
        .env("CNI_ARGS", args.join(";"))
        .env("CNI_PATH", path.join(":"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = plugins.start(&mut process).map_err(failed)?;
    let talk = async {
        if let Some(mut input) = child.stdin.take() {
            // One that ends without reading says why on its output.
            let _ = input.write_all(config.to_string().as_bytes()).await;
        }
        let (mut said, mut complained) = (Vec::new(), Vec::new());
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let listen = async {
            if let Some(out) = out {
                out.take(LARGEST).read_to_end(&mut said).await?;
            }
            std::io::Result::Ok(())
        };
        let hear = async {
            if let Some(err) = err {
                err.take(LARGEST).read_to_end(&mut complained).await?;
            }
            std::io::Result::Ok(())
        };
        tokio::try_join!(listen, hear)?;
        let status = child.wait().await?;
        std::io::Result::Ok((status.success(), said, complained))
    };
    let talked = tokio::time::timeout(PATIENCE, talk).await;
    let (good, said, complained) =
        talked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(failed)?;
    if !good {
        return Err(Error::Refused { kind: kind.to_owned(), verb, words: reason(&said, &complained) });
    }
    if said.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&said).map_err(|error| failed(error.into()))
}

/// Plugins that other distributions ship under a name of their own, and what they are.
const SAME: [(&str, &str); 2] = [("cnv-bridge", "bridge"), ("cnv-tuning", "tuning")];

/// Why a plugin failed, in its own words.
fn reason(said: &[u8], complained: &[u8]) -> String {
    let error: Value = serde_json::from_slice(said).unwrap_or_default();
    let text = |key: &str| error[key].as_str().filter(|text| !text.is_empty());
    match (text("msg"), text("details")) {
        (Some(message), Some(details)) => format!("{message}; {details}"),
        (Some(message), None) => message.to_owned(),
        _ => {
            let rest = [said, complained].map(String::from_utf8_lossy).concat();
            rest.trim().chars().take(512).collect()
        }
    }
}

/// What a result says of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Its hardware address.
    pub mac: Option<String>,
    /// Its addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// Its largest packet, where the plugin says.
    pub mtu: Option<u64>,
}

/// Reads the result for `interface`, of any version of the specification.
pub fn made(result: &Value, interface: &str) -> Made {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let interfaces = list(&result["interfaces"]);
    let inside = |one: &&Value| one["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty());
    let own = interfaces
        .iter()
        .filter(inside)
        .find(|one| one["name"] == interface)
        .or_else(|| interfaces.iter().find(inside));
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    // Version 0.2 has at most one of each family.
    let old = ["ip4", "ip6"].iter().filter_map(|family| text(&result[*family]["ip"]));
    let addresses = list(&result["ips"]).iter().filter_map(|ip| text(&ip["address"])).chain(old).collect();
    Made {
        mac: own.and_then(|one| text(&one["mac"])),
        mtu: own.and_then(|one| one["mtu"].as_u64()).filter(|mtu| *mtu > 0),
        addresses,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn plugins(scripts: &[(&str, &str)]) -> PathBuf {
        let unique = format!("{:?}", std::thread::current().id()).replace(|c: char| !c.is_ascii_digit(), "");
        let dir = std::env::temp_dir().join(format!("cni-{}-{unique}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (name, body) in scripts {
            let path = dir.join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        dir
    }

    fn within(dir: &Path) -> Plugins {
        Plugins { dirs: vec![dir.to_owned()], root: None }
    }

    fn network(kinds: &[&str]) -> Network {
        let plugins = kinds.iter().map(|kind| json!({"type": kind, "capabilities": {"mac": true}})).collect();
        Network { name: "n".into(), version: "1.0.0".into(), plugins }
    }

    fn attachment() -> Attachment {
        Attachment {
            container: "c".into(),
            netns: "/run/netns/x".into(),
            interface: "net1".into(),
            args: vec![("A".into(), "1".into()), ("B".into(), "2".into())],
            capabilities: serde_json::from_value(json!({"mac": "02:00:00:00:00:01", "ips": []})).unwrap(),
        }
    }

    /// Keeps what it read beside itself, and says what it was told and by whom.
    const TELLS: &str = r#"cat > $0.read; echo "{\"was\":\"$CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS\",\"by\":\"${0##*/}\"}""#;

    #[tokio::test]
    async fn a_chain_passes_results_on() {
        let dir = plugins(&[("one", TELLS), ("two", TELLS)]);
        let result = add(&within(&dir), &network(&["one", "two"]), &attachment()).await.unwrap();
        assert_eq!(result["was"], "ADD c /run/netns/x net1 A=1;B=2");
        let read = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(dir.join(name)).unwrap()).unwrap() };
        let (one, two) = (read("one.read"), read("two.read"));
        assert_eq!((&two["name"], &two["type"], &two["cniVersion"]), (&json!("n"), &json!("two"), &json!("1.0.0")));
        assert_eq!(two["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
        assert_eq!((&two["prevResult"]["by"], &one["prevResult"]), (&json!("one"), &Value::Null));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn all_are_taken_back_whatever_one_says() {
        let fails = "cat >/dev/null; echo '{\"code\":7,\"msg\":\"no\",\"details\":\"really\"}'; exit 1";
        let dir = plugins(&[("good", "cat >$(dirname $0)/seen"), ("bad", fails)]);
        let both = network(&["good", "bad"]);
        let error = del(&within(&dir), &both, &attachment(), &json!({"ips": []})).await.unwrap_err();
        assert_eq!(error.to_string(), "plugin type=\"bad\" failed (delete): no; really");
        let seen: Value = serde_json::from_slice(&std::fs::read(dir.join("seen")).unwrap()).unwrap();
        assert_eq!(seen["prevResult"], json!({"ips": []}));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn plugins_that_cannot_be_run_are_named() {
        let dir = plugins(&[("bridge", "cat >/dev/null")]);
        let dirs = within(&dir);
        for kind in ["ovs", "", "../bridge", "/bin/sh", ".", "a/bridge"] {
            let error = add(&dirs, &network(&[kind]), &attachment()).await.unwrap_err().to_string();
            assert_eq!(error, format!("failed to find plugin {kind:?} in path [{}]", dir.display()));
        }
        assert_eq!(add(&dirs, &network(&["cnv-bridge"]), &attachment()).await.unwrap(), Value::Null);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// As from a pod that has the node's root mounted.
    #[tokio::test]
    async fn plugins_run_in_the_root_of_the_node() {
        let dir = plugins(&[("one", TELLS)]);
        let slash = Plugins { dirs: vec![dir.clone()], root: Some("/".into()) };
        check(&slash, &network(&["one"]), &attachment(), &json!({})).await.unwrap();
        assert_eq!(add(&slash, &network(&["one"]), &attachment()).await.unwrap()["by"], "one");
        // Nothing of this machine is below that root, not even what could run the script.
        let inside = Plugins { dirs: vec!["/".into()], root: Some(dir.clone()) };
        assert!(inside.have("one") && !within(Path::new("/")).have("one"));
        let error = add(&inside, &network(&["one"]), &attachment()).await.unwrap_err().to_string();
        assert_eq!(error, "plugin type=\"one\" cannot be run");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn results_of_each_version() {
        let result = json!({"interfaces": [{"name": "br1", "mac": "00:01"}, {"name": "net1", "mac": "02:01", "sandbox": "/n"}],
            "ips": [{"address": "10.1.0.2/24", "interface": 1}, {"address": "fd00::2/64"}]});
        let expect =
            Made { mac: Some("02:01".into()), addresses: vec!["10.1.0.2/24".into(), "fd00::2/64".into()], mtu: None };
        assert_eq!(made(&result, "net1"), expect);
        let old = json!({"ip4": {"ip": "10.1.0.2/24"}});
        assert_eq!(made(&old, "net1").addresses, ["10.1.0.2/24"]);
        assert_eq!(made(&Value::Null, "net1"), Made::default());
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;
    use serde_json::Value;

    proptest! {
        /// What a plugin prints is a result or nothing, and why it failed is told in a few words.
        #[test]
        fn any_output_of_a_plugin_is_read_within_bounds(said in "[\\x00-\\x7f]{0,200}|.{0,600}", field in "ips|interfaces|ip4|msg|details") {
            prop_assert!(super::reason(said.as_bytes(), said.as_bytes()).len() <= 4 * 512 + 2 * said.len());
            for text in [said.clone(), format!("{{\"{field}\": {said}}}"), format!("{{\"{field}\": [{{\"sandbox\": {said:?}, \"mac\": {said:?}}}]}}")] {
                let result: Value = serde_json::from_str(&text).unwrap_or_default();
                let made = super::made(&result, "net1");
                prop_assert!(made.addresses.len() <= text.len());
            }
        }
    }
}
