//! `installer`: what the hooks of the Helm chart do in a pod, because Helm does not: definitions of another version, and the order of an
//! end.

use clap::{Parser, Subcommand};
use hco::render::NAME;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

use super::client;
use super::uninstall::gone;
use crate::failure::parse;
use crate::{cluster, deploy, terminal};

/// Do what a package manager leaves to its packages
#[derive(Debug, Parser)]
#[command(name = "installer")]
struct Installer {
    #[command(subcommand)]
    action: Action,
    /// Where the HyperConverged object is
    #[arg(long, global = true, env = "POD_NAMESPACE", default_value = deploy::NAMESPACE)]
    namespace: String,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Action {
    /// Apply the definitions of this version
    ApplyDefinitions,
    /// Delete the HyperConverged and the HostPathProvisioner object, and wait until they are gone
    DeleteObjects,
    /// Delete the definitions, and with them every object of their kinds
    DeleteDefinitions,
}

/// `installer`
pub(crate) fn main(words: Vec<std::ffi::OsString>) -> anyhow::Result<()> {
    let Some(asked) = parse::<Installer>(words)? else { return Ok(()) };
    terminal::log("error,kube_client=off");
    cluster::runtime()?.block_on(async {
        let client = client(None).await?;
        match asked.action {
            Action::ApplyDefinitions => {
                for definition in deploy::documents(deploy::OPERATORS)?.iter().filter(|one| is_definition(one)) {
                    deploy::apply_document(&client, definition).await?;
                }
                Ok(())
            }
            Action::DeleteObjects => delete_objects(&client, &asked.namespace).await,
            Action::DeleteDefinitions => deploy::delete_manifest(&client, deploy::OPERATORS, is_definition).await,
        }
    })
}

async fn delete_objects(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let kind = GroupVersionKind::gvk("hco.kubevirt.io", "v1", "HyperConverged");
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind));
    gone(&objects, NAME).await?;
    let kind = GroupVersionKind::gvk("hostpathprovisioner.kubevirt.io", "v1beta1", "HostPathProvisioner");
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    gone(&objects, hpp::operator::install::NAMESPACE).await
}

fn is_definition(object: &DynamicObject) -> bool {
    object.types.as_ref().is_some_and(|types| types.kind == "CustomResourceDefinition")
}
