//! A cluster of the benchmark's own, driven as a user drives one: by the programs, and by the API.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use kube::api::{DeleteParams, DynamicObject, PostParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

/// How long anything may take before the run is given up.
const PATIENCE: Duration = Duration::from_secs(300);

/// A checkout with everything built, and the state directory of its cluster.
pub(crate) struct Cluster {
    root: PathBuf,
    state: PathBuf,
}

impl Cluster {
    /// Clears away what an interrupted run left.
    pub(crate) fn new(state: PathBuf) -> Result<Self> {
        let cluster = Self { root: root(), state };
        cluster.ferrovirt(&["down", "--purge"])?;
        Ok(cluster)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    pub(crate) fn ferrovirt(&self, words: &[&str]) -> Result<String> {
        self.run(&self.root.join("bin/ferrovirt").to_string_lossy(), words)
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.run("kubectl", words)
    }

    /// Applies a manifest.
    pub(crate) fn apply(&self, manifest: &Value) -> Result<String> {
        let file = tempfile::NamedTempFile::new().context("cannot make a file")?;
        std::fs::write(file.path(), manifest.to_string()).context("cannot write a manifest")?;
        self.kubectl(&["apply", "-f", &file.path().to_string_lossy()])
    }

    pub(crate) fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let output = Command::new(program)
            .args(words)
            .env("FERROVIRT_STATE", &self.state)
            .env("KUBECONFIG", self.state.join("kubeconfig"))
            // What the script sets for the server in this process; `ferrovirt up` knows what its own needs.
            .env_remove("GLIBC_TUNABLES")
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {program}"))?;
        if !output.status.success() {
            bail!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        let read =
            kube::config::Kubeconfig::read_from(self.state.join("kubeconfig")).context("cannot read kubeconfig")?;
        let config = kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }
}

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What could be measured is printed all the same; `make down` with this state says what stays.
        let _ = self.ferrovirt(&["down", "--purge"]);
    }
}

/// Objects of a kind of the KubeVirt API.
pub(crate) fn kind(client: &Client, namespace: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kubevirt.io", "v1", kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Creates an object and returns the time until `reached` holds of it, or an error when `lost` does.
pub(crate) async fn create(
    api: &Api<DynamicObject>,
    object: &Value,
    reached: impl Fn(&Value) -> bool,
    lost: impl Fn(&Value) -> bool,
) -> Result<Duration> {
    let object: DynamicObject = serde_json::from_value(object.clone()).context("not an object")?;
    let name = object.metadata.name.clone().unwrap_or_default();
    let begin = Instant::now();
    let created = api.create(&PostParams::default(), &object).await.with_context(|| format!("cannot create {name}"))?;
    let version = created.metadata.resource_version.unwrap_or_default();
    let mut seen = Value::Null;
    let wait = watch(api, &name, &version, |event| {
        let (WatchEvent::Modified(object) | WatchEvent::Added(object)) = event else { return Ok(None) };
        seen = serde_json::to_value(object)?;
        if lost(&seen) {
            bail!("{name} failed: {}", seen["status"]);
        }
        Ok(reached(&seen).then(|| begin.elapsed()))
    });
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(outcome) => outcome,
        Err(_) => bail!("{name} was not there in {} s: {}", PATIENCE.as_secs(), seen["status"]),
    }
}

/// Deletes an object and returns the time until it is gone.
pub(crate) async fn delete(api: &Api<DynamicObject>, name: &str) -> Result<Duration> {
    let begin = Instant::now();
    let current = api.get_metadata(name).await.with_context(|| format!("cannot find {name}"))?;
    api.delete(name, &DeleteParams::default()).await.with_context(|| format!("cannot delete {name}"))?;
    let version = current.metadata.resource_version.unwrap_or_default();
    let wait = watch(api, name, &version, |event| Ok(matches!(event, WatchEvent::Deleted(_)).then(|| begin.elapsed())));
    tokio::time::timeout(PATIENCE, wait).await.with_context(|| format!("{name} does not go away"))?
}

async fn watch<T>(
    api: &Api<DynamicObject>,
    name: &str,
    version: &str,
    mut found: impl FnMut(&WatchEvent<DynamicObject>) -> Result<Option<T>>,
) -> Result<T> {
    let narrow = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = api.watch(&narrow, version).await?.boxed();
    while let Some(event) = events.next().await {
        if let Some(outcome) = found(&event?)? {
            return Ok(outcome);
        }
    }
    bail!("the watch of {name} ended")
}

/// Whether a condition of an object is true.
pub(crate) fn condition(object: &Value, kind: &str) -> bool {
    let list = object["status"]["conditions"].as_array();
    list.into_iter().flatten().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// The demo's machine as an instance called `name`, from the manifest that users apply.
pub(crate) fn instance(root: &Path, name: &str) -> Result<Value> {
    let text = std::fs::read_to_string(root.join("deploy/demo/vm.yaml")).context("cannot read the demo's manifest")?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).context("cannot read the demo's manifest")?;
    let machine = documents.into_iter().find(|document| document["kind"] == "VirtualMachine");
    let mut spec = machine.context("the demo has no machine")?["spec"]["template"]["spec"].take();
    // Deleting is not what is measured, so the guest is given no time to shut down.
    spec["terminationGracePeriodSeconds"] = 0.into();
    Ok(
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}, "spec": spec}),
    )
}
