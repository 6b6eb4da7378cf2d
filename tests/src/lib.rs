//! The scenarios' hands: kubectl and virtctl as a user has them, a namespace for each scenario, and waiting for
//! conditions with a limit.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The kubeconfig of the cluster under test.
pub fn kubeconfig() -> PathBuf {
    let state = std::env::var_os("FERROVIRT_STATE").map_or_else(|| "/var/lib/ferrovirt".into(), PathBuf::from);
    state.join("kubeconfig")
}

/// A namespace of its own, deleted at the end whatever happens.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes the namespace.
    pub fn new(name: &str) -> Result<Self> {
        let namespace = Self { name: format!("e2e-{name}") };
        let _ = namespace.kubectl(&["delete", "namespace", &namespace.name, "--ignore-not-found", "--timeout=120s"]);
        namespace.kubectl(&["create", "namespace", &namespace.name])?;
        Ok(namespace)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs kubectl in the namespace and returns what it printed.
    pub fn kubectl(&self, words: &[&str]) -> Result<String> {
        success("kubectl", words, self.command("kubectl").args(words).output().context("cannot run kubectl")?)
    }

    /// Runs kubectl, which is expected to refuse, and returns its complaint.
    pub fn refused(&self, manifest: &str) -> Result<String> {
        let output = self.feed(&["apply", "-f", "-"], manifest.as_bytes())?;
        if output.status.success() {
            bail!("the manifest was accepted");
        }
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let words = ["apply", "-f", "-"];
        success("kubectl", &words, self.feed(&words, manifest.as_bytes())?).map(drop)
    }

    /// Runs the virtctl of the checkout.
    pub fn virtctl(&self, words: &[&str]) -> Result<String> {
        let program = root().join("bin/virtctl");
        let output = self.command(&program.to_string_lossy()).args(words).output().context("cannot run bin/virtctl")?;
        success("virtctl", words, output)
    }

    /// An object as JSON; null when there is none.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self.kubectl(&["get", kind, name, "--ignore-not-found", "-o", "json"])?;
        if text.trim().is_empty() {
            Ok(Value::Null)
        } else {
            serde_json::from_str(&text).context("kubectl printed no JSON")
        }
    }

    /// Waits until `check` holds of an object.
    pub fn wait(&self, kind: &str, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + Duration::from_secs(240);
        loop {
            let object = self.get(kind, name)?;
            if check(&object) {
                return Ok(object);
            }
            if Instant::now() > deadline {
                let events = self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]).unwrap_or_default();
                bail!("{kind} {name} never {what}\nstatus: {}\nevents:\n{events}", object["status"]);
            }
            pause();
        }
    }

    /// Asks a web server until it answers.
    pub fn fetch(&self, url: &str) -> Result<String> {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let output =
                Command::new("curl").args(["-sS", "--max-time", "5", url]).output().context("cannot run curl")?;
            if output.status.success() && !output.stdout.is_empty() {
                return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            if Instant::now() > deadline {
                bail!("{url} did not answer: {}", String::from_utf8_lossy(&output.stderr));
            }
            pause();
        }
    }

    /// Runs kubectl, whose failure may be what is wanted.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        self.command("kubectl").args(words).output().context("cannot run kubectl")
    }

    /// A program that takes kubectl's flags, on this cluster and in this namespace.
    pub fn command(&self, program: &str) -> Command {
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
    }
}

fn success(program: &str, words: &[&str], output: Output) -> Result<String> {
    if !output.status.success() {
        bail!("{program} {} failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Looks again and again until there is an answer.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let last = match look() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => String::new(),
            Err(error) => format!(": {error:#}"),
        };
        if Instant::now() > deadline {
            bail!("it never happened that {what}{last}");
        }
        pause();
    }
}

/// Between two looks at something that only a look can tell.
fn pause() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let _ = receiver.recv_timeout(Duration::from_millis(200));
    drop(sender);
}
