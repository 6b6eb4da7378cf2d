//! modify-data-object: a DataVolume or a DataSource is created, replaced or deleted.

use std::time::Duration;

use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::create_vm::owner;
use crate::cluster::{CLAIM, DATA_SOURCE, DATA_VOLUME, Kind, is_true, what};
use crate::words::{Results, given, truth};
use crate::{Cluster, Error};

/// Params of modify-data-object.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// The manifest
    #[arg(long, default_value = "")]
    manifest: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    namespace: String,
    /// Whether to wait until it is ready
    #[arg(long, default_value = "false")]
    wait_for_success: String,
    /// Whether one that is there may be replaced
    #[arg(long, default_value = "false")]
    allow_replace: String,
    /// Whether to delete one
    #[arg(long, default_value = "false")]
    delete_object: String,
    /// Of which kind
    #[arg(long, default_value = "")]
    delete_object_kind: String,
    /// Of which name
    #[arg(long, default_value = "")]
    delete_object_name: String,
    /// How long to wait, such as 1h30m
    #[arg(long, default_value = "1h")]
    timeout: String,
    /// Whether it goes with the step's pod
    #[arg(long, default_value = "false")]
    set_owner_reference: String,
    #[command(flatten)]
    results: Results,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Delete(Kind, String),
    Create(Kind, Value),
}

/// Does what is asked for.
///
/// # Errors
/// When params contradict each other, the cluster refuses, or what is waited for fails.
pub async fn run(cluster: &Cluster, args: &Args) -> Result<(), Error> {
    let patience = match given(&args.timeout) {
        None => Duration::from_secs(3600),
        Some(text) => kit::duration::parse(text)
            .ok_or_else(|| Error::param("timeout", format!("{text:?} is no duration: write it as 1h30m")))?,
    };
    match wanted(args)? {
        Wanted::Delete(kind, name) => {
            let namespace = given(&args.namespace).unwrap_or(&cluster.namespace);
            if !cluster.delete(kind, namespace, &name, patience).await? {
                return Err(Error::Failed(format!("there is no {}", what(kind, namespace, &name))));
            }
            args.results.write(&name, namespace)
        }
        Wanted::Create(kind, manifest) => create(cluster, args, kind, manifest, patience).await,
    }
}

async fn create(
    cluster: &Cluster,
    args: &Args,
    kind: Kind,
    mut manifest: Value,
    patience: Duration,
) -> Result<(), Error> {
    let namespace = given(&args.namespace).or(manifest["metadata"]["namespace"].as_str());
    let namespace = namespace.unwrap_or(&cluster.namespace).to_owned();
    manifest["metadata"]["namespace"] = json!(namespace);
    if truth("setOwnerReference", &args.set_owner_reference)? {
        manifest["metadata"]["ownerReferences"] = json!([owner(cluster)?]);
    }
    if truth("allowReplace", &args.allow_replace)?
        && let Some(name) = manifest["metadata"]["name"].as_str()
    {
        let held = cluster.get(kind, &namespace, name).await?;
        cluster.delete(kind, &namespace, name, patience).await?;
        if let Some(uid) = held.filter(|_| kind == DATA_VOLUME).and_then(|held| held.metadata.uid) {
            its_claim_goes(cluster, &namespace, name, &uid, patience).await?;
        }
    }
    let name = cluster.create(kind, &namespace, &manifest).await?;
    args.results.write(&name, &namespace)?;
    tracing::info!("{} was created", what(kind, &namespace, &name));
    if !truth("waitForSuccess", &args.wait_for_success)? {
        return Ok(());
    }
    let late = format!("{} was not ready", what(kind, &namespace, &name));
    let ended = cluster.until(kind, &namespace, &name, has_ended, patience, late).await?;
    match ended {
        Some(object) if is_true(&object, "Ready") => Ok(()),
        Some(_) => Err(Error::Failed(format!("{} failed", what(kind, &namespace, &name)))),
        None => Err(Error::Failed(format!("{} was deleted by somebody else", what(kind, &namespace, &name)))),
    }
}

/// Waits until the claim of a DataVolume is gone, which goes after it: the next one would find a claim that is not its own.
async fn its_claim_goes(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    uid: &str,
    patience: Duration,
) -> Result<(), Error> {
    let of = |claim: &DynamicObject| claim.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid);
    let gone = |claim: Option<&DynamicObject>| !claim.is_some_and(of);
    let late = format!("{} of the DataVolume that is replaced was not gone", what(CLAIM, namespace, name));
    cluster.until(CLAIM, namespace, name, gone, patience, late).await.map(drop)
}

/// It is ready, has failed, or is gone.
fn has_ended(object: Option<&DynamicObject>) -> bool {
    object.is_none_or(|object| is_true(object, "Ready") || object.data["status"]["phase"] == "Failed")
}

fn wanted(args: &Args) -> Result<Wanted, Error> {
    let (kind, name) = (given(&args.delete_object_kind), given(&args.delete_object_name));
    if truth("deleteObject", &args.delete_object)? {
        if given(&args.manifest).is_some() {
            return Err(Error::param("manifest", "leave it empty where deleteObject is true"));
        }
        let name = name.ok_or_else(|| Error::param("deleteObjectName", "name what is to be deleted"))?;
        let kind = match kind {
            Some("DataVolume") => DATA_VOLUME,
            Some("DataSource") => DATA_SOURCE,
            Some("PersistentVolumeClaim") => CLAIM,
            other => {
                let message = format!("{other:?} is none of DataVolume, DataSource and PersistentVolumeClaim");
                return Err(Error::param("deleteObjectKind", message));
            }
        };
        return Ok(Wanted::Delete(kind, name.to_owned()));
    }
    let text = given(&args.manifest).ok_or_else(|| Error::param("manifest", "it has to be given"))?;
    let manifest: Value =
        serde_saphyr::from_str(text).map_err(|error| Error::param("manifest", format!("it is no YAML: {error}")))?;
    let kind = match manifest["kind"].as_str() {
        Some("DataVolume") => DATA_VOLUME,
        Some("DataSource") => DATA_SOURCE,
        _ => {
            let message = format!("its kind is {}, and neither DataVolume nor DataSource", manifest["kind"]);
            return Err(Error::param("manifest", message));
        }
    };
    let text = |field: &str| manifest["metadata"][field].as_str().is_some_and(|text| !text.is_empty());
    if !text("name") && !text("generateName") {
        return Err(Error::param("manifest", "it has neither a name nor a generateName"));
    }
    Ok(Wanted::Create(kind, manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut Args), expect: Result<&str, &str>) {
        let mut args = Args::default();
        change(&mut args);
        match (wanted(&args), expect) {
            (Ok(Wanted::Delete(kind, name)), Ok(expect)) => assert_eq!(format!("delete {} {name}", kind.2), expect),
            (Ok(Wanted::Create(kind, _)), Ok(expect)) => assert_eq!(format!("create {}", kind.2), expect),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn one_thing_is_done() {
        let volume = "kind: DataVolume\nmetadata: { name: a }";
        check(|args| args.manifest = volume.to_owned(), Ok("create DataVolume"));
        check(
            |args| args.manifest = "kind: DataSource\nmetadata: { generateName: a- }".to_owned(),
            Ok("create DataSource"),
        );
        check(|_| {}, Err("it has to be given"));
        check(|args| args.manifest = "kind: Pod\nmetadata: { name: a }".to_owned(), Err("neither DataVolume nor"));
        check(|args| args.manifest = "kind: DataVolume".to_owned(), Err("neither a name"));
        let delete = |args: &mut Args, kind: &str, name: &str| {
            args.delete_object = "true".to_owned();
            (args.delete_object_kind, args.delete_object_name) = (kind.to_owned(), name.to_owned());
        };
        check(|args| delete(args, "PersistentVolumeClaim", "a"), Ok("delete PersistentVolumeClaim a"));
        check(|args| delete(args, "Pod", "a"), Err("is none of"));
        check(|args| delete(args, "DataVolume", ""), Err("deleteObjectName"));
        let both = |args: &mut Args| {
            delete(args, "DataVolume", "a");
            args.manifest = volume.to_owned();
        };
        check(both, Err("leave it empty"));
    }
}
