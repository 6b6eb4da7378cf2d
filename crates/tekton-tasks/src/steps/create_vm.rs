//! create-vm-from-manifest and create-vm-from-template.

use std::collections::BTreeMap;
use std::time::Duration;

use api::template::{self, Spec};
use serde_json::{Value, json};

use super::{power, program, templates};
use crate::cluster::VM;
use crate::words::{Results, given, pairs, truth};
use crate::{Cluster, Error};

/// How long `virtctl create vm` may take, which asks nobody, and how long a start is asked for.
const PATIENCE: Duration = Duration::from_secs(60);
const STRATEGIES: [&str; 5] = ["Always", "RerunOnFailure", "Manual", "Halted", "Once"];

/// What is done with the machine once it is made.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Then {
    /// Whether to start it
    #[arg(long, default_value = "")]
    start_vm: String,
    /// Its run strategy, in place of the manifest's
    #[arg(long, default_value = "")]
    run_strategy: String,
    /// Whether it goes with the step's pod
    #[arg(long, default_value = "false")]
    set_owner_reference: String,
}

/// Params of create-vm-from-manifest.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FromManifest {
    /// The manifest
    #[arg(long, default_value = "")]
    manifest: String,
    /// Options of `virtctl create vm`
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    virtctl: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    namespace: String,
    #[command(flatten)]
    then: Then,
    #[command(flatten)]
    results: Results,
}

/// Params of create-vm-from-template.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FromTemplate {
    /// The template
    #[arg(long)]
    template_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    template_namespace: String,
    /// KEY:VALUE of its parameters
    #[arg(long = "template-param")]
    template_params: Vec<String>,
    /// The machine's namespace
    #[arg(long, default_value = "")]
    vm_namespace: String,
    #[command(flatten)]
    then: Then,
    #[command(flatten)]
    results: Results,
}

/// Creates the machine of a manifest.
///
/// # Errors
/// When params contradict each other, the manifest is none, or the cluster refuses.
pub async fn from_manifest(cluster: &Cluster, args: &FromManifest) -> Result<(), Error> {
    let text = match (given(&args.manifest), given(&args.virtctl)) {
        (Some(manifest), None) => manifest.to_owned(),
        (None, Some(options)) => {
            let words =
                shlex::split(options).ok_or_else(|| Error::param("virtctl", "a quotation mark is not closed"))?;
            let words = ["create", "vm"].into_iter().map(str::to_owned).chain(words);
            program::output("virtctl", words.collect(), PATIENCE).await?
        }
        (Some(_), Some(_)) => return Err(Error::param("manifest", "only one of manifest and virtctl may be given")),
        (None, None) => return Err(Error::param("manifest", "one of manifest and virtctl has to be given")),
    };
    let manifest = read(&text)?;
    let namespace = given(&args.namespace).or(manifest["metadata"]["namespace"].as_str());
    let namespace = namespace.unwrap_or(&cluster.namespace).to_owned();
    make(cluster, manifest, &namespace, &args.then, &args.results).await
}

/// Creates the machine of a template.
///
/// # Errors
/// When there is no such template, a parameter is wrong, or the cluster refuses.
pub async fn from_template(cluster: &Cluster, args: &FromTemplate) -> Result<(), Error> {
    let namespace = given(&args.template_namespace).unwrap_or(&cluster.namespace);
    let found = templates::find(cluster, namespace, &args.template_name).await?;
    let given_params: BTreeMap<String, String> = pairs("templateParams", &args.template_params)?.into_iter().collect();
    let spec: Spec = serde_json::from_value(found.native()?["spec"].clone()).map_err(|error| {
        Error::Failed(format!("the template {namespace}/{} cannot be read: {error}", args.template_name))
    })?;
    let made = template::process(&spec, &given_params, &mut |below| fastrand::usize(..below));
    let made = made.map_err(|refusal| Error::param("templateParams", refusal.to_string()))?;
    let namespace = given(&args.vm_namespace).unwrap_or(&cluster.namespace).to_owned();
    make(cluster, made.machine, &namespace, &args.then, &args.results).await
}

fn read(text: &str) -> Result<Value, Error> {
    let manifest: Value =
        serde_saphyr::from_str(text).map_err(|error| Error::param("manifest", format!("it is no YAML: {error}")))?;
    if manifest["kind"] != "VirtualMachine" {
        return Err(Error::param("manifest", format!("its kind is {}, and not VirtualMachine", manifest["kind"])));
    }
    Ok(manifest)
}

async fn make(
    cluster: &Cluster,
    mut manifest: Value,
    namespace: &str,
    then: &Then,
    results: &Results,
) -> Result<(), Error> {
    let starts = change(&mut manifest, then)?;
    manifest["metadata"]["namespace"] = json!(namespace);
    own(cluster, &mut manifest, then)?;
    let name = cluster.create(VM, namespace, &manifest).await?;
    results.write(&name, namespace)?;
    tracing::info!("VirtualMachine {namespace}/{name} was created");
    if starts {
        power::start(cluster, namespace, &name, PATIENCE).await?;
    }
    Ok(())
}

/// Gives the machine the run strategy that is asked for; whether it has to be started afterwards.
fn change(manifest: &mut Value, then: &Then) -> Result<bool, Error> {
    let starts = truth("startVM", &then.start_vm)?;
    if let Some(strategy) = given(&then.run_strategy) {
        if !STRATEGIES.contains(&strategy) {
            return Err(Error::param("runStrategy", format!("{strategy:?} is none of {}", STRATEGIES.join(", "))));
        }
        if !manifest["spec"].is_object() {
            return Err(Error::param("manifest", "it has no spec"));
        }
        manifest["spec"]["runStrategy"] = json!(strategy);
        // Both at once are refused.
        manifest["spec"].as_object_mut().map(|spec| spec.remove("running"));
    }
    if !starts {
        return Ok(false);
    }
    power::new_is_asked(&manifest["spec"]).map_err(|why| Error::param("startVM", why))
}

/// Has the machine go with the step's pod, where that is asked for.
fn own(cluster: &Cluster, manifest: &mut Value, then: &Then) -> Result<(), Error> {
    if !truth("setOwnerReference", &then.set_owner_reference)? {
        return Ok(());
    }
    manifest["metadata"]["ownerReferences"] = json!([owner(cluster)?]);
    Ok(())
}

/// The step's pod, as an owner.
///
/// # Errors
/// When it is not known.
pub(super) fn owner(cluster: &Cluster) -> Result<Value, Error> {
    let (name, uid) = cluster.pod.as_ref().ok_or_else(|| {
        Error::param("setOwnerReference", "the step does not know its pod: POD_NAME and POD_UID are not set")
    })?;
    Ok(json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(spec: Value, start: &str, strategy: &str, expect: Result<(Value, bool), &str>) {
        let mut manifest = json!({ "spec": spec });
        let then = Then { start_vm: start.to_owned(), run_strategy: strategy.to_owned(), ..Then::default() };
        match (change(&mut manifest, &then), expect) {
            (Ok(starts), Ok(expect)) => assert_eq!((manifest["spec"].clone(), starts), expect),
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn a_strategy_takes_the_place_of_running_and_what_runs_is_not_started() {
        check(json!({ "running": false }), "true", "", Ok((json!({ "running": false }), true)));
        check(json!({ "running": false }), "true", "Manual", Ok((json!({ "runStrategy": "Manual" }), true)));
        check(json!({ "running": true }), "", "Halted", Ok((json!({ "runStrategy": "Halted" }), false)));
        check(json!({}), "true", "Always", Ok((json!({ "runStrategy": "Always" }), false)));
        check(json!({ "running": true }), "true", "", Ok((json!({ "running": true }), false)));
        for strategy in ["Once", "RerunOnFailure"] {
            check(json!({}), "true", strategy, Ok((json!({ "runStrategy": strategy }), false)));
        }
        let receiver = json!({ "runStrategy": "WaitAsReceiver" });
        check(receiver.clone(), "", "", Ok((receiver.clone(), false)));
        check(receiver, "true", "", Err("startVM: its run strategy is WaitAsReceiver"));
        check(json!({}), "yes", "", Err("startVM"));
        check(json!({}), "", "Sometimes", Err("runStrategy: \"Sometimes\""));
    }

    #[test]
    fn only_manifests_of_machines_are_taken() {
        assert!(read("kind: Pod").is_err() && read(": [").is_err());
        assert!(read("kind: VirtualMachine").is_ok());
    }
}
