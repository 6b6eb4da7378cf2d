//! A node and its containers: network namespaces of their own, in which the program is run as a runtime runs it.

use std::future::Future;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use net::link::Netlink;
use serde_json::{Value, json};
use sys::namespace::{Namespace, current_netns, in_netns, unshare};

/// Where Debian has the plugins for addresses.
const PLUGINS: &str = "/usr/lib/cni";

/// A node.
pub(crate) struct Scene {
    node: OwnedFd,
    notes: tempfile::TempDir,
}

/// A container's network namespace.
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) netns: OwnedFd,
}

impl Container {
    pub(crate) fn path(&self) -> String {
        path_of(&self.netns)
    }
}

fn path_of(netns: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd())
}

fn fresh() -> OwnedFd {
    std::thread::spawn(|| unshare(&[Namespace::Net]).and_then(|()| current_netns())).join().unwrap().unwrap()
}

impl Scene {
    pub(crate) fn new() -> Self {
        let node = fresh();
        std::fs::create_dir_all("/run/cni").unwrap();
        let scene = Scene { node, notes: tempfile::tempdir_in("/run/cni").unwrap() };
        scene.with(async |node| node.set_up("lo").await.unwrap());
        scene
    }

    /// The path of the node's network namespace.
    pub(crate) fn path(&self) -> String {
        path_of(&self.node)
    }

    /// Where plugins may note something.
    pub(crate) fn notes(&self) -> &Path {
        self.notes.path()
    }

    pub(crate) fn container(&self, id: &str) -> Container {
        let container = Container { id: id.to_owned(), netns: fresh() };
        self.inside(&container, async |inside| inside.set_up("lo").await.unwrap());
        container
    }

    /// Does something in the node's namespace.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_netns(self.node.as_fd(), work).unwrap()
    }

    pub(crate) fn with<T: Send, F: Future<Output = T>>(&self, work: impl FnOnce(Netlink) -> F + Send) -> T {
        self.run(|| talk(work))
    }

    pub(crate) fn inside<T: Send, F: Future<Output = T>>(
        &self,
        container: &Container,
        work: impl FnOnce(Netlink) -> F + Send,
    ) -> T {
        in_netns(container.netns.as_fd(), || talk(work)).unwrap()
    }

    /// Calls a plugin about an interface of nobody.
    pub(crate) fn call(&self, name: &str, verb: &str, config: &Value, more: &[(&str, &str)]) -> Result<Value, Value> {
        let usual =
            [("CNI_CONTAINERID", "c0"), ("CNI_IFNAME", "net1"), ("CNI_NETNS", "/nonexistent"), ("CNI_PATH", PLUGINS)];
        let variables: Vec<(&str, &str)> = usual.iter().chain(more).copied().collect();
        self.run(|| plugin(Path::new(env!("CARGO_BIN_EXE_ferrovirt-cni")), &[name], verb, config, &variables))
    }

    /// Calls a plugin about the interface `net1` of a container.
    pub(crate) fn about(&self, name: &str, verb: &str, config: &Value, container: &Container) -> Result<Value, Value> {
        let path = container.path();
        self.call(name, verb, config, &[("CNI_CONTAINERID", &container.id), ("CNI_NETNS", &path)])
    }

    /// What a command says in the node's namespace.
    pub(crate) fn says(&self, words: &[&str]) -> String {
        let output = self.run(|| Command::new(words[0]).args(&words[1..]).output().unwrap());
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The names of the node's links.
    pub(crate) fn links(&self) -> Vec<String> {
        self.with(async |node| node.links().await.unwrap().into_iter().map(|link| link.name).collect())
    }

    /// What is left of the rules: chains and elements of ports.
    pub(crate) fn rules(&self) -> Vec<String> {
        let all = self.says(&["nft", "list", "ruleset"]);
        all.lines().filter(|line| line.contains("veth")).map(|line| line.trim().to_owned()).collect()
    }
}

fn talk<T, F: Future<Output = T>>(work: impl FnOnce(Netlink) -> F) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { work(Netlink::open().unwrap()).await })
}

/// Runs a plugin in the thread's namespace: its result, or its error.
pub(crate) fn plugin(
    program: &Path,
    words: &[&str],
    verb: &str,
    config: &Value,
    variables: &[(&str, &str)],
) -> Result<Value, Value> {
    let mut command = Command::new(program);
    command.args(words).env("CNI_COMMAND", verb).envs(variables.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let value = if said.trim().is_empty() { Value::Null } else { serde_json::from_str(&said).unwrap() };
    if output.status.success() { Ok(value) } else { Err(value) }
}

/// A network on `br1` with more fields.
pub(crate) fn network(more: Value) -> Value {
    let mut config = json!({ "cniVersion": "1.0.0", "name": "red", "type": "cnv-bridge", "bridge": "br1" });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// The same with the result of ADD, as CHECK and DEL have it.
pub(crate) fn after(config: &Value, result: &Value) -> Value {
    let mut config = config.clone();
    config["prevResult"] = result.clone();
    config
}

/// The plugin `static` with these addresses.
pub(crate) fn addresses(list: &[(&str, &str)]) -> Value {
    let all: Vec<_> = list
        .iter()
        .map(|(address, gateway)| match *gateway {
            "" => json!({ "address": address }),
            gateway => json!({ "address": address, "gateway": gateway }),
        })
        .collect();
    json!({ "type": "static", "addresses": all })
}

/// A directory of plugins with one script of this name beside Debian's.
pub(crate) fn script(name: &str, body: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    (dir, path)
}
