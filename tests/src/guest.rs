//! A guest that several scenarios use, one after the other: booting one for each would take most of the time.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machine::{self, holds, phase};
use crate::wait::{self, until};
use crate::{Console, Namespace};

/// The guest, its namespace and the key that opens it.
pub struct Guest {
    /// Where it lives.
    pub space: Namespace,
    keys: TempDir,
}

/// Its name.
pub const NAME: &str = "web";

impl Guest {
    /// Boots it: a web server behind a Service, an SSH key, and a readiness probe by HTTP.
    pub fn boot() -> Result<Self> {
        let keys = tempfile::tempdir().context("cannot make a directory for keys")?;
        let key = keys.path().join("id");
        let words = ["-q", "-t", "ed25519", "-N", "", "-C", "scenario", "-f"];
        let made = Command::new("ssh-keygen").args(words).arg(&key).status().context("cannot run ssh-keygen")?;
        ensure!(made.success(), "ssh-keygen failed");
        let public = std::fs::read_to_string(key.with_extension("pub")).context("cannot read the public key")?;
        let space = Namespace::new("guest")?;
        let mut vm = machine::on_disk(NAME, "Always");
        machine::cloud_init(&mut vm, &format!("hostname: {NAME}\nssh_authorized_keys:\n  - {}", public.trim()));
        let get = json!({ "path": "/cgi-bin/hello", "port": 80 });
        machine::spec(&mut vm)["readinessProbe"] = json!({ "httpGet": get, "periodSeconds": 2, "timeoutSeconds": 20 });
        space.apply(&vm)?;
        space.apply(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME },
            "spec": { "type": "NodePort", "selector": { "vm.kubevirt.io/name": NAME }, "ports": [{ "port": 80 }] },
        }))?;
        let guest = Self { space, keys };
        guest.wait_until_usable()?;
        Ok(guest)
    }

    /// Waits until the guest runs, its agent answers and its web server is ready.
    pub fn wait_until_usable(&self) -> Result<Value> {
        self.space.wait("vmi", NAME, "ran with its agent and its web server", |vmi| {
            phase(vmi) == "Running" && holds(vmi, "AgentConnected") && holds(vmi, "Ready")
        })
    }

    /// The VMI.
    pub fn vmi(&self) -> Result<Value> {
        self.space.get("vmi", NAME)
    }

    /// A console, logged in as root.
    pub fn console(&self) -> Result<Console> {
        let mut console = Console::open(&self.space, NAME)?;
        console.log_in("root", "guest")?;
        Ok(console)
    }

    /// The private key that opens it.
    pub fn key(&self) -> Result<String> {
        std::fs::read_to_string(self.keys.path().join("id")).context("cannot read the key")
    }

    fn options(&self) -> Vec<String> {
        let path = |name: &str| -> PathBuf { self.keys.path().join(name) };
        let mut words = vec![
            format!("--identity-file={}", path("id").display()),
            format!("--known-hosts={}", path("known_hosts").display()),
        ];
        let patience = ["-o ConnectTimeout=30", "-o ServerAliveInterval=10", "-o ServerAliveCountMax=3"];
        for option in ["-o StrictHostKeyChecking=no", "-o BatchMode=yes", "-o LogLevel=ERROR"].iter().chain(&patience) {
            words.push(format!("--local-ssh-opts={option}"));
        }
        words
    }

    /// Runs `virtctl ssh` or `virtctl scp` with the guest's key.
    pub fn virtctl_with_key(&self, verb: &str, words: &[&str]) -> Result<Output> {
        let options = self.options();
        let mut all = vec![verb];
        all.extend(options.iter().map(String::as_str));
        all.extend(words);
        self.space.virtctl_command(&all).output().context("cannot run virtctl")
    }

    /// Runs a command in the guest over SSH and returns what it printed.
    pub fn ssh(&self, command: &str) -> Result<String> {
        let target = format!("guest@vm/{NAME}");
        until(&format!("{command:?} over SSH"), wait::SOON, || {
            let output = self.virtctl_with_key("ssh", &[&target, "--command", command])?;
            // 255 is ssh's own: the guest's server may just be starting.
            if output.status.code() == Some(255) {
                return Ok(None);
            }
            let complaint = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{command:?} ended with {}: {complaint}", output.status);
            Ok(Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
        })
    }

    /// What tells one boot of the guest from another.
    pub fn boot_id(&self) -> Result<String> {
        self.ssh("cat /proc/sys/kernel/random/boot_id")
    }

    /// The page that the guest serves, fetched through its Service.
    pub fn page(&self) -> Result<String> {
        let path = "jsonpath={.spec.ports[0].nodePort}";
        let port = self.space.kubectl(&["get", "service", NAME, "-o", path])?;
        self.space.fetch(&format!("http://10.88.0.11:{port}/cgi-bin/hello"))
    }
}
