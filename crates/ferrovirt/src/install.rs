//! `ferrovirt install`: the operators and their objects on the cluster of the current kubeconfig, from the manifests under `deploy/`.

mod from_bundle;
pub(crate) mod hook;
mod lacking;
mod settings;
pub(crate) mod uninstall;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config};
use lacking::DEFAULT_CLASS;
use serde_json::{Value, json};

use crate::available::{Starts, Told, wait_until_available};
use crate::deploy::NAMESPACE;
use crate::failure::{advise, parse};
use crate::images::Credentials;
use crate::operators::Arrangement;
use crate::state::StateArgs;
use crate::{cluster, deploy, importer, terminal};

/// The name before the slash that images have in the manifests.
const OWN: &str = "ferrovirt.local";
/// Since then a cluster serves all that is applied: validating admission policies came last.
const LEAST: (u32, u32) = (1, 30);
/// What asks for volumes.
pub(crate) const STORAGE: &str = include_str!("../../../deploy/hostpath-cr.yaml");
/// Nodes fetch the images first.
const PATIENCE: Duration = Duration::from_secs(900);
const SILENCE: Duration = Duration::from_secs(10);

/// Install virtual machine support on the Kubernetes cluster of the current kubeconfig
#[derive(Debug, Parser)]
#[command(name = "install")]
struct Install {
    /// Where the images are: host[:port][/path], as they were pushed by `ferrovirt images push`
    #[arg(long)]
    registry: Option<String>,
    /// A bundle, whose images go to the registry, or to this machine's containerd where it is the cluster's only node
    #[arg(long, value_name = "BUNDLE")]
    images_from: Option<PathBuf>,
    #[command(flatten)]
    credentials: Credentials,
    #[command(flatten)]
    state: StateArgs,
    /// Path of the kubeconfig
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// A field of the HyperConverged object, such as virtualization.evictionStrategy=None; may be repeated
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// Do without the hostpath provisioner, where the cluster has storage of its own
    #[arg(long)]
    without_storage: bool,
    /// Print what would be applied, and apply nothing
    #[arg(long)]
    dry_run: bool,
}

/// What is applied, one after the other.
struct Manifests {
    operators: String,
    object: String,
    storage: String,
}

pub(crate) fn main(words: Vec<std::ffi::OsString>) -> anyhow::Result<()> {
    let Some(asked) = parse::<Install>(words)? else { return Ok(()) };
    let manifests = manifests(asked.registry.as_deref())?;
    let spec = settings::read(&asked.set)?;
    if asked.dry_run {
        let storage = (!asked.without_storage).then_some(&manifests.storage);
        for text in [&manifests.operators, &manifests.object].into_iter().chain(storage) {
            terminal::say(text.trim_end());
        }
        return Ok(());
    }
    terminal::log("warn");
    if asked.images_from.is_none() && asked.credentials.are_given() {
        let error = anyhow::anyhow!("--username, --password-file and --plain-http are for images that are pushed");
        return Err(advise(error, "add --images-from BUNDLE; nodes have credentials of their own for the registry"));
    }
    let bundle = asked.images_from.as_deref().map(from_bundle::open).transpose()?;
    cluster::runtime()?.block_on(async {
        let client = client(asked.kubeconfig.as_deref()).await?;
        match (&bundle, &asked.registry) {
            (Some(bundle), Some(registry)) => bundle.push(registry, &asked.credentials).await?,
            (Some(bundle), None) => bundle.load(&client, &asked.state.state()?).await?,
            (None, _) => {}
        }
        install(&client, &manifests, spec, !asked.without_storage).await
    })
}

fn manifests(registry: Option<&str>) -> anyhow::Result<Manifests> {
    let registry = registry.unwrap_or(OWN).trim_end_matches('/');
    if registry.is_empty() || registry.contains("://") || registry.contains(|c: char| c.is_whitespace() || c == '"') {
        let error = anyhow::anyhow!("--registry is {registry:?}, which is not host[:port][/path]");
        return Err(advise(error, "write it as for `ferrovirt images push`, without https://"));
    }
    let of = |text: &str| text.replace(&format!("{OWN}/"), &format!("{registry}/"));
    Ok(Manifests { operators: of(deploy::OPERATORS), object: of(deploy::OBJECT), storage: of(STORAGE) })
}

/// A client of the cluster that this kubeconfig, or the current one, leads to.
async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let failed = |error: anyhow::Error, what: String| {
        advise(error.context(what), "name the cluster's with --kubeconfig; `kubectl version` shows whether it answers")
    };
    let config = match kubeconfig {
        None => Config::infer()
            .await
            .map_err(|error| failed(error.into(), "cannot use the current kubeconfig".to_owned()))?,
        Some(path) => {
            let what = || format!("cannot use {}", path.display());
            let read = Kubeconfig::read_from(path).map_err(|error| failed(error.into(), what()))?;
            let chosen = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
            chosen.map_err(|error| failed(error.into(), what()))?
        }
    };
    Client::try_from(config).context("cannot make a client of the kubeconfig")
}

async fn install(client: &Client, manifests: &Manifests, spec: Value, storage: bool) -> anyhow::Result<()> {
    check_version(client).await?;
    terminal::say("1 of 3    the operators, and the HyperConverged object");
    // The cluster may be one of `ferrovirt up`.
    Arrangement::Apart.alone(client).await?;
    deploy::apply(client, &Arrangement::Apart.of(&manifests.operators)?, spec.clone()).await?;
    deploy::merge(client, &spec).await?;
    if storage {
        terminal::say("2 of 3    volumes: the hostpath provisioner");
        let object = if has_default_class(client).await? {
            terminal::say("          the cluster has a default StorageClass; hostpath-csi is made beside it");
            manifests.storage.replace(&format!("{DEFAULT_CLASS}: \"true\""), &format!("{DEFAULT_CLASS}: \"false\""))
        } else {
            manifests.storage.clone()
        };
        deploy::apply_manifest(client, &object).await?;
        wait_for_storage(client).await?;
    } else {
        terminal::say("2 of 3    volumes: left to the cluster");
    }
    wait_until_available(client, Told::HyperConverged, &Starts::new(), PATIENCE).await?;
    terminal::say("3 of 3    disks are taken");
    importer::wait_until_it_judges(client).await?;
    for sentence in lacking::look(client).await? {
        terminal::say(&format!("          {sentence}"));
    }
    terminal::say("done      virtual machines can be created now:");
    terminal::say(
        "            virtctl create vm --name first --volume-containerdisk src:quay.io/containerdisks/fedora | kubectl apply -f -",
    );
    terminal::say("            kubectl get vm,vmi                  what runs");
    terminal::say(&format!("            kubectl -n {NAMESPACE} edit hyperconverged   what the product does"));
    terminal::say("            ferrovirt uninstall                 take it all away");
    Ok(())
}

async fn check_version(client: &Client) -> anyhow::Result<()> {
    let version = client.apiserver_version().await.map_err(|error| {
        let error = anyhow::Error::new(error).context("the API server does not answer");
        advise(error, "`kubectl version` shows whether the cluster can be reached")
    })?;
    if is_too_old(&version.major, &version.minor) {
        let (major, minor) = LEAST;
        let error = anyhow::anyhow!(
            "the cluster is Kubernetes {}, and {major}.{minor} is the least that will do",
            version.git_version
        );
        return Err(advise(error, "upgrade the cluster, or choose another with KUBECONFIG"));
    }
    Ok(())
}

/// Some providers write `30+`.
fn is_too_old(major: &str, minor: &str) -> bool {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(u32::MAX);
    (number(major), number(minor)) < LEAST
}

/// Of another provisioner than ours.
async fn has_default_class(client: &Client) -> anyhow::Result<bool> {
    let classes: Api<StorageClass> = Api::all(client.clone());
    let classes = classes.list(&ListParams::default()).await.context("cannot list the StorageClasses")?;
    Ok(classes.iter().any(|class| class.provisioner != hpp::csi::NAME && lacking::is_default(class)))
}

/// Waits until the HostPathProvisioner is available, and says what it waits for.
async fn wait_for_storage(client: &Client) -> anyhow::Result<()> {
    let kind = GroupVersionKind::gvk("hostpathprovisioner.kubevirt.io", "v1beta1", "HostPathProvisioner");
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let started = tokio::time::Instant::now();
    let (mut said, mut spoken) = (String::new(), started);
    loop {
        let not_ready = match objects.get(hpp::operator::install::NAMESPACE).await {
            Ok(object) => match not_ready(&object.data["status"]) {
                None => return Ok(()),
                Some(not_ready) => not_ready,
            },
            Err(error) => format!("{error:#}"),
        };
        if started.elapsed() >= PATIENCE {
            let error = anyhow::anyhow!(
                "the hostpath provisioner was not available after {} s: {not_ready}",
                PATIENCE.as_secs()
            );
            return Err(advise(
                error,
                "`kubectl -n kubevirt-hyperconverged get hostpathprovisioners,pods,events` says more",
            ));
        }
        if not_ready != said && spoken.elapsed() >= SILENCE {
            terminal::say(&format!("          waiting: {not_ready}"));
            (said, spoken) = (not_ready, tokio::time::Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Why it is not available, when it is not.
fn not_ready(status: &Value) -> Option<String> {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let of = |kind: &str| conditions.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or(json!({}));
    if of("Available")["status"] == "True" && of("Degraded")["status"] != "True" {
        return None;
    }
    let told = ["Degraded", "Available"].into_iter().find_map(|kind| of(kind)["message"].as_str().map(str::to_owned));
    Some(told.unwrap_or_else(|| "its operator is being started".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_taken_from_the_registry() {
        let named = manifests(Some("registry.example:5000/team/")).unwrap();
        let all = [named.operators, named.object, named.storage].concat();
        assert!(!all.contains(OWN));
        assert!(all.contains("image: registry.example:5000/team/component:v"), "{all}");
        let usual = manifests(None).unwrap();
        assert_eq!(usual.operators, deploy::OPERATORS);
        for bad in ["https://registry.example", "", "a b"] {
            assert!(manifests(Some(bad)).is_err(), "{bad:?}");
        }
        // What makes the class one beside a default one is a text of the manifest.
        assert!(usual.storage.contains(&format!("{DEFAULT_CLASS}: \"true\"")));
    }

    #[test]
    fn a_cluster_that_lacks_a_kind_is_refused_before_anything_is_applied() {
        assert!(is_too_old("1", "29") && is_too_old("1", "29+"));
        assert!(!is_too_old("1", "30") && !is_too_old("1", "36+") && !is_too_old("2", "0"));
    }

    #[test]
    fn the_condition_storage_waits_for_is_named() {
        let condition =
            |kind: &str, status: &str, message: &str| json!({ "type": kind, "status": status, "message": message });
        let check = |conditions: Value, expect: Option<&str>| {
            assert_eq!(not_ready(&json!({ "conditions": conditions })).as_deref(), expect);
        };
        check(json!([]), Some("its operator is being started"));
        check(
            json!([condition("Available", "False", "the driver runs on 0 of 2 nodes")]),
            Some("the driver runs on 0 of 2 nodes"),
        );
        check(json!([condition("Available", "True", "Application Available")]), None);
        let degraded = [
            condition("Available", "True", "Application Available"),
            condition("Degraded", "True", "n2 does not know it"),
        ];
        check(json!(degraded), Some("n2 does not know it"));
    }
}
