//! kube-rs: its client, its discovery, its watchers and controllers.

mod access;
mod controllers;
mod machines;
mod objects;
mod streams;
mod watching;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{Condition, await_condition, conditions};
use kube::{Api, Client, Config};
use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};

/// Long enough for anything here.
const LIMIT: Duration = Duration::from_secs(120);

/// What a test does in a namespace of its own.
type Run = fn(Space) -> Pin<Box<dyn Future<Output = Result<()>>>>;

/// A test and its name.
type Test = (&'static str, Run);

/// A namespace and a client.
#[derive(Clone)]
struct Space {
    client: Client,
    name: String,
}

impl Space {
    /// Objects of a kind in the namespace.
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Makes a pod that runs a script, and waits until it runs.
    async fn pod(&self, name: &str, script: &str) -> Result<Pod> {
        let container =
            json!({"name": "main", "image": "ferrovirt.local/component:v0.1.0", "command": ["sh", "-c", script]});
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": {"securityContext": {"runAsUser": 0}, "terminationGracePeriodSeconds": 1, "containers": [container]}});
        let api: Api<Pod> = self.api();
        api.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let running = wait(api, name, conditions::is_pod_running()).await?;
        running.context("the pod went before it ran")
    }
}

/// Waits for a condition, with a limit.
async fn wait<K>(api: Api<K>, name: &str, condition: impl Condition<K>) -> Result<Option<K>>
where
    K: Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + kube::Resource + 'static,
{
    let waiting = tokio::time::timeout(LIMIT, await_condition(api, name, condition));
    Ok(waiting.await.with_context(|| format!("{name} did not become what was waited for"))??)
}

/// Reads `value` as an object.
fn object<K: serde::de::DeserializeOwned>(value: Value) -> Result<K> {
    serde_json::from_value(value).context("an object of the test is not one")
}

/// The tests of all parts.
pub(crate) fn trials() -> Vec<Trial> {
    let groups = [
        ("access", access::TESTS),
        ("controllers", controllers::TESTS),
        ("machines", machines::TESTS),
        ("objects", objects::TESTS),
        ("streams", streams::TESTS),
        ("watching", watching::TESTS),
    ];
    let named = groups.into_iter().flat_map(|(group, tests)| tests.iter().map(move |test| (group, test)));
    let trial = |(group, (name, test)): (&str, &Test)| {
        let (name, test) = (*name, *test);
        Trial::test(format!("rust::{group}::{name}"), move || {
            run(name, test).map_err(|e| Failed::from(format!("{e:#}")))
        })
    };
    named.map(trial).collect()
}

fn run(name: &str, test: Run) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let read = kube::config::Kubeconfig::read_from(e2e::kubeconfig()).context("cannot read the kubeconfig")?;
        let client = Client::try_from(Config::from_custom_kubeconfig(read, &Default::default()).await?)?;
        let spaces: Api<Namespace> = Api::all(client.clone());
        let space = object(json!({"metadata": {"generateName": format!("rust-{}-", name.replace('_', "-"))}}))?;
        let space = spaces.create(&PostParams::default(), &space).await?.metadata.name.unwrap_or_default();
        let outcome = tokio::time::timeout(2 * LIMIT, test(Space { client, name: space.clone() })).await;
        let _ = spaces.delete(&space, &DeleteParams::default()).await;
        outcome.context("the test did not end")?
    })
}
