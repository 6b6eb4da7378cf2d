//! Installing by phases, and keeping what was installed.

use kube::Client;
use kube::runtime::watcher;
use serde_json::Value;

use crate::Task;
use crate::apply::{self, Applied};
use crate::drift::{self, Kind};

/// What is installed, in its order.
#[derive(Clone, Copy, Debug)]
pub struct Phases<'a> {
    /// What the rest needs, or pods would wait for a retry: certificates, accounts; and what must be there before a kind is.
    pub first: &'a [Value],
    /// The definitions: name and YAML of each.
    pub definitions: &'a [(&'static str, &'static str)],
    /// Applied while the API server takes in the definitions.
    pub rest: &'a [Value],
}

/// Applies what has changed, or was changed by others.
///
/// # Errors
/// The first failure of a phase, after all of it was tried; a later phase is not begun.
pub async fn install(client: &Client, applied: &Applied, phases: Phases<'_>) -> Result<(), apply::Error> {
    apply::all(client, applied, phases.first).await?;
    let definitions = apply::crds(client, applied, phases.definitions);
    let (definitions, rest) = tokio::join!(definitions, apply::all(client, applied, phases.rest));
    definitions?;
    rest
}

/// Splits manifests into those that pods start from and others refer to (accounts and roles), for [`Phases::first`], and the rest.
pub fn accounts_first(manifests: Vec<Value>) -> (Vec<Value>, Vec<Value>) {
    let early = ["ServiceAccount", "ClusterRole", "Role"];
    manifests.into_iter().partition(|manifest| manifest["kind"].as_str().is_some_and(|kind| early.contains(&kind)))
}

/// Calls `wake` when somebody deletes or edits what was applied, so that it is applied again, for as long as the tasks are held.
/// `manifests` are of every kind that is ever rendered, and carry the label `selector`; those with all of their objects in one
/// namespace are watched there, so that rights in that namespace are enough.
pub fn repair<F>(client: &Client, manifests: &[Value], selector: &str, applied: &Applied, wake: F) -> Vec<Task<()>>
where
    F: Fn() + Clone + Send + 'static,
{
    let labelled = watcher::Config::default().labels(selector);
    let mut tasks = drift::watch(client, &drift::kinds(manifests), &labelled, applied, wake.clone());
    // Definitions carry the labels that their users know. Of each only the metadata are read.
    tasks.extend(drift::watch(client, &[Kind::definitions()], &watcher::Config::default(), applied, wake));
    tasks
}
