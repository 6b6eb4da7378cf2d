//! prepare-windows: what a Pipeline of Windows is told is looked at before anything is made, and what follows from it goes into results.
//!
//! A failure here is the end of the Pipeline, which has done nothing then.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::create_vm::owner;
use crate::cluster::CONFIG_MAP;
use crate::manifests::config_maps;
use crate::words::{given, truth, write};
use crate::{Cluster, Error};

/// Params of both Pipelines.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Whether the licence is accepted; left out where nothing is installed
    #[arg(long)]
    accept_eula: Option<String>,
    /// Whether the machine starts by BIOS
    #[arg(long, default_value = "false")]
    use_bios_mode: String,
    /// The ConfigMap of answers
    #[arg(long)]
    answers: String,
    /// Name of the boot source
    #[arg(long)]
    base_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    base_namespace: String,
    #[command(flatten)]
    results: Results,
}

/// Files of results.
#[derive(Clone, Debug, Default, clap::Args)]
struct Results {
    /// For the ConfigMap that the machine names
    #[arg(long, value_name = "FILE")]
    answers_result: Option<PathBuf>,
    /// For the disk that the machine writes
    #[arg(long, value_name = "FILE")]
    root_disk_result: Option<PathBuf>,
    /// For its firmware
    #[arg(long, value_name = "FILE")]
    firmware_result: Option<PathBuf>,
    /// For its system management mode, which a secure boot takes
    #[arg(long, value_name = "FILE")]
    smm_result: Option<PathBuf>,
}

/// What follows from the params alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) root_disk: String,
    pub(crate) firmware: Value,
    pub(crate) smm: Value,
}

/// Looks at the params, and makes the answers where they are ours and not there.
///
/// # Errors
/// When the licence is not accepted, params contradict each other, or there are no answers.
pub async fn run(cluster: &Cluster, args: &Args) -> Result<(), Error> {
    let plan = plan(args, &cluster.namespace, fastrand::u32(..))?;
    let answers = answers(cluster, &args.answers).await?;
    for (file, text) in [
        (&args.results.answers_result, answers),
        (&args.results.root_disk_result, plan.root_disk),
        (&args.results.firmware_result, plan.firmware.to_string()),
        (&args.results.smm_result, plan.smm.to_string()),
    ] {
        if let Some(file) = file {
            write(file, &text)?;
        }
    }
    Ok(())
}

/// A machine's disk is in its own namespace. Where the boot source is to be in another one, it is a copy, and the disk has a name that
/// nobody has.
pub(crate) fn plan(args: &Args, namespace: &str, number: u32) -> Result<Plan, Error> {
    if let Some(accepted) = &args.accept_eula
        && !truth("acceptEula", accepted)?
    {
        let message = "the licence of Windows is not accepted, so nothing is done: read it, and set this to true";
        return Err(Error::param("acceptEula", message));
    }
    let by_bios = truth("useBiosMode", &args.use_bios_mode)?;
    if by_bios && args.accept_eula.is_some() && is_ours(&args.answers).is_some() {
        let message = format!(
            "the answers {:?} part the disk for UEFI: name answers for BIOS as autounattendConfigMapName",
            args.answers
        );
        return Err(Error::param("useBiosMode", message));
    }
    let base = given(&args.base_name).ok_or_else(|| Error::param("baseDvName", "name the boot source"))?;
    let is_here = given(&args.base_namespace).is_none_or(|other| other == namespace);
    let bootloader = if by_bios { json!({ "bios": {} }) } else { json!({ "efi": { "secureBoot": true } }) };
    Ok(Plan {
        root_disk: if is_here { base.to_owned() } else { format!("{base}-{number:08x}") },
        firmware: json!({ "bootloader": bootloader }),
        smm: json!({ "enabled": !by_bios }),
    })
}

fn is_ours(name: &str) -> Option<Value> {
    config_maps().into_iter().find(|map| map["metadata"]["name"] == name)
}

/// The name of the answers, which are where the machine is. Ours are made there if need be, and go with the step's pod.
async fn answers(cluster: &Cluster, name: &str) -> Result<String, Error> {
    if cluster.get(CONFIG_MAP, &cluster.namespace, name).await?.is_some() {
        return Ok(name.to_owned());
    }
    let Some(mut map) = is_ours(name) else {
        let namespace = &cluster.namespace;
        let message =
            format!("there is no ConfigMap {namespace}/{name}: make it, with the answers of the installation");
        return Err(Error::Failed(message));
    };
    map["metadata"] = json!({ "generateName": format!("{name}-"), "ownerReferences": [owner(cluster)?] });
    cluster.create(CONFIG_MAP, &cluster.namespace, &map).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(eula: Option<&str>, bios: &str, answers: &str, namespace: &str) -> Args {
        Args {
            accept_eula: eula.map(str::to_owned),
            use_bios_mode: bios.to_owned(),
            answers: answers.to_owned(),
            base_name: "win".to_owned(),
            base_namespace: namespace.to_owned(),
            ..Args::default()
        }
    }

    #[track_caller]
    fn check(args: &Args, expect: Result<(&str, &str, bool), &str>) {
        match (plan(args, "here", 7), expect) {
            (Ok(plan), Ok((disk, loader, smm))) => {
                assert_eq!((plan.root_disk.as_str(), &plan.smm), (disk, &json!({ "enabled": smm })));
                assert!(plan.firmware["bootloader"][loader].is_object(), "{plan:?}");
            }
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn what_follows_from_params() {
        check(&args(Some("true"), "", "mine", "here"), Ok(("win", "efi", true)));
        check(&args(None, "true", "windows-vs-code", ""), Ok(("win", "bios", false)));
        check(&args(Some("true"), "true", "mine", "images"), Ok(("win-00000007", "bios", false)));
        for eula in ["", "false"] {
            check(&args(Some(eula), "", "mine", "here"), Err("param acceptEula: the licence of Windows is not"));
        }
        check(&args(Some("yes"), "", "mine", "here"), Err("param acceptEula"));
        check(&args(Some("true"), "true", "windows11-autounattend", "here"), Err("param useBiosMode"));
        check(&Args { base_name: String::new(), ..args(None, "", "a", "here") }, Err("param baseDvName"));
    }
}
