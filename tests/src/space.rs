//! A namespace of the cluster and the two programs a user works with.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::wait::{self, until};
use crate::{kubeconfig, machine, node, root};

/// A namespace of its own, deleted at the end whatever happens.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes the namespace. Refused while another test of this process has one of that name: the first that ends
    /// would delete the other's objects.
    pub fn new(name: &str) -> Result<Self> {
        ensure!(names().insert(format!("e2e-{name}")), "two tests have namespace e2e-{name} at the same time");
        let namespace = Self::existing(&format!("e2e-{name}"));
        let _ = namespace.kubectl(&["delete", "namespace", &namespace.name, "--ignore-not-found", "--timeout=120s"]);
        namespace.kubectl(&["create", "namespace", &namespace.name])?;
        Ok(namespace)
    }

    fn existing(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs kubectl in the namespace and returns what it printed.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        success("kubectl", words, &self.output(words)?)
    }

    /// Runs kubectl in another namespace.
    pub fn kubectl_in(namespace: &str, words: &[&str]) -> Result<String> {
        let other = std::mem::ManuallyDrop::new(Self::existing(namespace));
        other.kubectl(words)
    }

    /// Applies a manifest in another namespace.
    pub fn apply_in(namespace: &str, manifest: &(impl Display + ?Sized)) -> Result<()> {
        let other = std::mem::ManuallyDrop::new(Self::existing(namespace));
        other.apply(manifest)
    }

    /// Applies a manifest that is expected to be refused, and returns the complaint.
    pub fn refused(&self, manifest: &(impl Display + ?Sized)) -> Result<String> {
        let output = self.feed(&["apply", "-f", "-"], manifest.to_string().as_bytes())?;
        ensure!(!output.status.success(), "the manifest was accepted");
        Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &(impl Display + ?Sized)) -> Result<()> {
        let words = ["apply", "-f", "-"];
        success("kubectl", &words, &self.feed(&words, manifest.to_string().as_bytes())?).map(drop)
    }

    /// Changes an object by a merge patch.
    pub fn patch(&self, kind: &str, name: &str, patch: &Value) -> Result<()> {
        self.kubectl(&["patch", kind, name, "--type=merge", "-p", &patch.to_string()]).map(drop)
    }

    /// Runs the virtctl of the checkout.
    pub fn virtctl(&self, words: &[&str]) -> Result<String> {
        success("virtctl", words, &self.virtctl_command(words).output().context("cannot run bin/virtctl")?)
    }

    /// Runs virtctl, which is expected to fail, and returns its complaint.
    pub fn virtctl_refused(&self, words: &[&str]) -> Result<String> {
        let output = self.virtctl_command(words).output().context("cannot run bin/virtctl")?;
        ensure!(!output.status.success(), "virtctl {} succeeded", words.join(" "));
        Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// The virtctl of the checkout, not yet run.
    pub fn virtctl_command(&self, words: &[&str]) -> Command {
        let mut command = self.command(root().join("bin/virtctl"));
        command.args(words);
        command
    }

    /// An object as JSON; null when there is none.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self.kubectl(&["get", kind, name, "--ignore-not-found", "-o", "json"])?;
        if text.trim().is_empty() { Ok(Value::Null) } else { serde_json::from_str(&text).context("kubectl's JSON") }
    }

    /// Objects of a kind, as JSON.
    pub fn list(&self, kind: &str, selector: &str) -> Result<Vec<Value>> {
        let text = self.kubectl(&["get", kind, "-l", selector, "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).context("kubectl's JSON")?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until `check` holds of an object, and returns the object; `what` completes "never …".
    pub fn wait(&self, kind: &str, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
        self.wait_for(wait::BOOT, kind, name, what, check)
    }

    /// The same with a limit.
    pub fn wait_for(
        &self,
        limit: Duration,
        kind: &str,
        name: &str,
        what: &str,
        check: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut last = Value::Null;
        let found = until(&format!("{kind} {name} {what}"), limit, || {
            last = self.get(kind, name)?;
            Ok(check(&last).then(|| last.clone()))
        });
        found.with_context(|| {
            let events = self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]).unwrap_or_default();
            let screen = if kind == "vmi" { node::serial(machine::pod_uid(&last)) } else { String::new() };
            format!("{kind} {name} has status {}\nevents:\n{events}\n{screen}", last["status"])
        })
    }

    /// Events about an object: reason and message, in any order.
    pub fn events(&self, kind: &str, name: &str) -> Result<Vec<(String, String)>> {
        let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let text = self.kubectl(&["get", "events", "--field-selector", &selector, "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).context("kubectl's JSON")?;
        let word = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let all = list["items"].as_array().cloned().unwrap_or_default();
        Ok(all.iter().map(|event| (word(event, "reason"), word(event, "message"))).collect())
    }

    /// Waits for an event about an object and returns its message.
    pub fn event(&self, kind: &str, name: &str, reason: &str) -> Result<String> {
        self.event_with(kind, name, reason, "")
    }

    /// Waits for an event about an object whose message contains `words`, and returns the message. Events are written
    /// beside the status of their object: whoever has seen a status has not seen its event yet.
    pub fn event_with(&self, kind: &str, name: &str, reason: &str, words: &str) -> Result<String> {
        let mut seen = Vec::new();
        let found = until(&format!("event {reason} of {kind} {name} with {words:?}"), wait::SOON, || {
            seen = self.events(kind, name)?;
            Ok(seen.iter().find(|(found, message)| found == reason && message.contains(words)).cloned())
        });
        found.map(|(_, message)| message).with_context(|| format!("events: {seen:?}"))
    }

    /// Asks a web server until it answers.
    pub fn fetch(&self, url: &str) -> Result<String> {
        until(&format!("an answer of {url}"), wait::BOOT, || {
            let asked =
                Command::new("curl").args(["-sS", "--max-time", "5", url]).output().context("cannot run curl")?;
            let answered = asked.status.success() && !asked.stdout.is_empty();
            Ok(answered.then(|| String::from_utf8_lossy(&asked.stdout).into_owned()))
        })
    }

    /// Runs kubectl, whose failure may be what is wanted.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        self.command("kubectl").args(words).output().context("cannot run kubectl")
    }

    /// A program that takes kubectl's flags, on this cluster and in this namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.arg("--kubeconfig").arg(kubeconfig()).arg("--namespace").arg(&self.name);
        command
    }

    /// Runs kubectl with an input.
    pub fn feed(&self, words: &[&str], input: &[u8]) -> Result<Output> {
        let mut command = self.command("kubectl");
        let piped = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().context("cannot run kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input).context("cannot hand kubectl its manifest")?;
        }
        child.wait_with_output().context("kubectl did not end")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.kubectl(&["delete", "namespace", &self.name, "--timeout=120s"]);
        names().remove(&self.name);
    }
}

/// The names of the namespaces that tests of this process have now.
fn names() -> MutexGuard<'static, BTreeSet<String>> {
    static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn success(program: &str, words: &[&str], output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!("{program} {} failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
