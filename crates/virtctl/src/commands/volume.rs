//! `virtctl addvolume` and `virtctl removevolume`: disks that come to a running guest and leave it.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::request::{self, DryRun};
use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::output;
use crate::target::Kind;

/// The volume, and what the guest sees of it.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// Name of the machine.
    #[arg(value_name = "VMI")]
    name: String,
    /// DataVolume or PersistentVolumeClaim to add.
    #[arg(long, value_name = "NAME")]
    volume_name: String,
    /// Name of the volume and its disk in the machine; the claim's when it is left out.
    #[arg(long, value_name = "NAME", default_value = "")]
    disk_name: String,
    /// Serial number that the guest sees; the volume's name when it is left out.
    #[arg(long, default_value = "")]
    serial: String,
    /// Cache of the disk: none, writethrough or writeback.
    #[arg(long, default_value = "")]
    cache: String,
    /// disk or lun.
    #[arg(long, default_value = "disk")]
    disk_type: String,
    /// scsi or virtio.
    #[arg(long, default_value = "scsi")]
    bus: String,
    /// Keep the volume in the VM, for its next starts too.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    persist: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

/// The volume.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Name of the machine.
    #[arg(value_name = "VMI")]
    name: String,
    /// Volume to remove, as the machine calls it.
    #[arg(long, value_name = "NAME")]
    volume_name: String,
    /// Remove the volume from the VM, too.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    persist: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

fn kind(persist: bool) -> Kind {
    if persist { Kind::Vm } else { Kind::Vmi }
}

/// What is asked of the server; `source` is the volume's.
fn options(args: &AddArgs, source: &Value) -> Result<Value, Fault> {
    let name = if args.disk_name.is_empty() { &args.volume_name } else { &args.disk_name };
    let serial = if args.serial.is_empty() { name } else { &args.serial };
    if !matches!(args.disk_type.as_str(), "disk" | "lun") {
        return Err(Fault::usage(format!("invalid disk type {:?}: it is disk or lun", args.disk_type)));
    }
    if !matches!(args.bus.as_str(), "scsi" | "virtio") {
        return Err(Fault::usage(format!("invalid bus {:?}: disks can be added on scsi and virtio", args.bus)));
    }
    if args.disk_type == "lun" && args.bus != "scsi" {
        return Err(Fault::usage("a lun needs the bus scsi"));
    }
    let mut disk = json!({ "name": name, "serial": serial, (args.disk_type.as_str()): { "bus": args.bus } });
    match args.cache.as_str() {
        "" => {}
        cache @ ("none" | "writethrough" | "writeback") => disk["cache"] = json!(cache),
        other => {
            return Err(Fault::usage(format!("error adding volume, invalid cache value {other}"))
                .hint("it is none, writethrough or writeback"));
        }
    }
    Ok(json!({ "name": name, "disk": disk, "volumeSource": source }))
}

/// The source of the volume called so: a DataVolume if there is one, else a claim.
async fn source(cluster: &Cluster, namespace: &str, name: &str) -> Result<Value, Fault> {
    let kind = GroupVersionKind::gvk("cdi.kubevirt.io", "v1beta1", "DataVolume");
    let resource = ApiResource::from_gvk_with_plural(&kind, "datavolumes");
    let data: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), namespace, &resource);
    // Where there is no such kind, there is none called so.
    match data.get_opt(name).await {
        Ok(Some(_)) => return Ok(json!({ "dataVolume": { "name": name } })),
        Ok(None) => {}
        Err(error) => return Err(Fault::api(format!("cannot read DataVolume {namespace}/{name}"), &error)),
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
    match claims.get_opt(name).await {
        Ok(Some(_)) => Ok(json!({ "persistentVolumeClaim": { "claimName": name } })),
        Ok(None) => Err(Fault::usage(format!(
            "error adding volume, Volume {name} is not a DataVolume or PersistentVolumeClaim of namespace {namespace}"
        ))),
        Err(error) => Err(Fault::api(format!("cannot read PersistentVolumeClaim {namespace}/{name}"), &error)),
    }
}

/// `virtctl addvolume`.
pub(crate) async fn add(globals: &Globals, args: AddArgs) -> Outcome {
    options(&args, &Value::Null)?;
    let cluster = globals.cluster().await?;
    let kind = kind(args.persist);
    let (namespace, name) = request::named(&cluster, kind, &args.name)?;
    let source = source(&cluster, &namespace, &args.volume_name).await?;
    let options = args.dry_run.add(options(&args, &source)?);
    request::put(&cluster, kind, (&namespace, &name), "addvolume", &options).await?;
    said(&args.dry_run, "add", &name, &args.volume_name)
}

/// `virtctl removevolume`.
pub(crate) async fn remove(globals: &Globals, args: RemoveArgs) -> Outcome {
    let cluster = globals.cluster().await?;
    let kind = kind(args.persist);
    let (namespace, name) = request::named(&cluster, kind, &args.name)?;
    let options = args.dry_run.add(json!({ "name": args.volume_name }));
    request::put(&cluster, kind, (&namespace, &name), "removevolume", &options).await?;
    said(&args.dry_run, "remove", &name, &args.volume_name)
}

fn said(dry_run: &DryRun, verb: &str, name: &str, volume: &str) -> Outcome {
    if dry_run.dry_run {
        output::say("Dry Run execution")?;
    }
    output::say(&format!("Successfully submitted {verb} volume request to VM {name} for volume {volume}"))?;
    Ok(std::process::ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: AddArgs,
    }

    #[track_caller]
    fn check(flags: &str, expect: Result<Value, &str>) {
        let words = ["virtctl", "vm", "--volume-name=data"].into_iter().chain(flags.split_whitespace());
        let line = <Line as clap::Parser>::parse_from(words);
        match (options(&line.args, &json!({})), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found["disk"], expect),
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_become_the_disk_of_the_volume() {
        check("", Ok(json!({ "name": "data", "serial": "data", "disk": { "bus": "scsi" } })));
        check(
            "--bus=virtio --serial=x --cache=none",
            Ok(json!({ "name": "data", "serial": "x", "disk": { "bus": "virtio" }, "cache": "none" })),
        );
        check("--disk-name=d", Ok(json!({ "name": "d", "serial": "d", "disk": { "bus": "scsi" } })));
        check("--disk-type=lun", Ok(json!({ "name": "data", "serial": "data", "lun": { "bus": "scsi" } })));
        check("--disk-type=lun --bus=virtio", Err("a lun needs the bus scsi"));
        check("--disk-type=floppy", Err("it is disk or lun"));
        check("--bus=sata", Err("disks can be added on scsi and virtio"));
        check("--cache=all", Err("error adding volume, invalid cache value all"));
    }
}
