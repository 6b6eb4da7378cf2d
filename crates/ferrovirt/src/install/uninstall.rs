//! `ferrovirt uninstall`: the HyperConverged object first, and what follows from it; then the operators. Refused while there are
//! machines, and nothing was taken away then.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use hco::render::NAME;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, DynamicObject, PropagationPolicy};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::Value;

use super::client;
use crate::deploy::{self, NAMESPACE};
use crate::failure::{advise, parse};
use crate::operators::{self, Arrangement};
use crate::{cluster, storage, terminal};

/// Machines have been refused before: this is about what their components wrote.
const PATIENCE: Duration = Duration::from_secs(300);
const SILENCE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(500);

/// Take virtual machine support away from the Kubernetes cluster of the current kubeconfig
#[derive(Debug, Parser)]
#[command(name = "uninstall")]
struct Uninstall {
    /// Path of the kubeconfig
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
    /// Leave the hostpath provisioner, and with it the volumes
    #[arg(long)]
    keep_storage: bool,
}

pub(crate) fn main(words: Vec<std::ffi::OsString>) -> anyhow::Result<()> {
    let Some(asked) = parse::<Uninstall>(words)? else { return Ok(()) };
    terminal::log("error,kube_client=off");
    cluster::runtime()?.block_on(async {
        let client = client(asked.kubeconfig.as_deref()).await?;
        uninstall(&client, !asked.keep_storage).await
    })
}

async fn uninstall(client: &Client, storage: bool) -> anyhow::Result<()> {
    terminal::say("1 of 3    the HyperConverged object, and what follows from it");
    let kind = GroupVersionKind::gvk("hco.kubevirt.io", "v1", "HyperConverged");
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind));
    gone(&objects, NAME).await?;
    if storage {
        terminal::say("2 of 3    the hostpath provisioner; volumes stay on the nodes' disks");
        let kind = GroupVersionKind::gvk("hostpathprovisioner.kubevirt.io", "v1beta1", "HostPathProvisioner");
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
        gone(&objects, hpp::operator::install::NAMESPACE).await?;
        storage::delete_classes(client).await?;
    } else {
        terminal::say("2 of 3    the hostpath provisioner is left");
    }
    terminal::say("3 of 3    the operators");
    if operators::are_together(client).await? {
        if !storage {
            // Whose operator goes on in a process of its own.
            for document in deploy::documents(&storage::operators())?.iter().filter(|one| is_of_storage(one)) {
                deploy::apply_document(client, document).await?;
            }
        }
        Arrangement::Apart.alone(client).await?;
    }
    deploy::delete_manifest(client, deploy::OPERATORS, |object| storage || !is_of_storage(object)).await?;
    if storage {
        emptied(client).await?;
    }
    terminal::say("done      virtual machine support is gone");
    Ok(())
}

/// Waits until the namespace is gone, with all that is in it.
async fn emptied(client: &Client) -> anyhow::Result<()> {
    let (namespaces, begun) = (Api::<Namespace>::all(client.clone()), Instant::now());
    loop {
        let held = namespaces.get_opt(NAMESPACE).await.context("cannot ask for the namespace")?;
        let Some(held) = held else { return Ok(()) };
        if begun.elapsed() >= PATIENCE {
            let conditions = held.status.and_then(|status| status.conditions).unwrap_or_default();
            let why: Vec<_> =
                conditions.into_iter().filter(|one| one.status == "True").filter_map(|one| one.message).collect();
            let error = anyhow::anyhow!(
                "namespace {NAMESPACE} was not gone after {} s: {}",
                PATIENCE.as_secs(),
                why.join("; ")
            );
            return Err(advise(error, format!("`kubectl get namespace {NAMESPACE} -o yaml` says what holds it")));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// What the hostpath provisioner's operator is made of, and the namespace that it is in.
fn is_of_storage(object: &DynamicObject) -> bool {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let is_namespace = object.types.as_ref().is_some_and(|types| types.kind == "Namespace") && name == NAMESPACE;
    is_namespace || name == hpp::operator::MANAGER || name.starts_with("hostpathprovisioners.")
}

/// Deletes an object and waits until its operator has let it go. One that is not there, or whose kind is not, is as good.
pub(super) async fn gone(objects: &Api<DynamicObject>, name: &str) -> anyhow::Result<()> {
    let how = DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    match objects.delete(name, &how).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => {
            let error =
                anyhow::Error::new(error).context(format!("{name} cannot be deleted, and nothing was taken away"));
            return Err(advise(
                error,
                "`kubectl get vm,vmi,dv -A` lists what is there: delete it, or keep the product",
            ));
        }
    }
    let begun = Instant::now();
    let (mut said, mut spoken) = (String::new(), begun);
    loop {
        let held = objects.get_opt(name).await.with_context(|| format!("cannot ask for {name}"))?;
        let Some(held) = held else { return Ok(()) };
        let why = why(&held.data["status"]);
        if begun.elapsed() >= PATIENCE {
            let error = anyhow::anyhow!("{name} was not gone after {} s: {why}", PATIENCE.as_secs());
            return Err(advise(
                error,
                format!("`kubectl -n {NAMESPACE} get events` says more; run this again to go on"),
            ));
        }
        if why != said && spoken.elapsed() >= SILENCE {
            terminal::say(&format!("          waiting: {why}"));
            (said, spoken) = (why, Instant::now());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// What an object that goes says of itself.
fn why(status: &Value) -> String {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |kind: &str| conditions.iter().find(|one| one["type"] == kind && one["status"] == "True");
    let told = of("Degraded").or_else(|| of("Progressing")).and_then(|one| one["message"].as_str());
    told.filter(|message| !message.is_empty()).unwrap_or("its operator takes away what it made").to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_storage_that_is_kept_keeps_its_operator() {
        let all = deploy::documents(deploy::OPERATORS).unwrap();
        let kept: Vec<String> = all
            .iter()
            .filter(|object| is_of_storage(object))
            .map(|object| object.types.as_ref().unwrap().kind.clone())
            .collect();
        let expect = [
            "Namespace",
            "CustomResourceDefinition",
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "Deployment",
        ];
        assert_eq!(kept, expect);
    }

    #[test]
    fn what_holds_an_object_is_told() {
        let said = |kind: &str, message: &str| json!({ "type": kind, "status": "True", "message": message });
        let check = |conditions: Value, expect: &str| assert_eq!(why(&json!({ "conditions": conditions })), expect);
        check(json!([]), "its operator takes away what it made");
        check(json!([said("Progressing", "going"), said("Available", "x")]), "going");
        check(json!([said("Progressing", "going"), said("Degraded", "machines are left")]), "machines are left");
    }
}
