//! `virtctl create vm`: the manifest of a VM from options. No cluster is asked.

mod access;
mod import;

use std::collections::BTreeMap;
use std::path::PathBuf;

use access::CloudInit;
use api::kubevirt::constants::{API_VERSION, run_strategy};
use meta::quantity::Amount;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::document;
use super::params::{self, Params, wrong};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};

/// Print the manifest of a virtual machine.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Without boot orders, volumes boot in this order: containerdisk, pvc, datasource, clone pvc, blank, imported.

Examples:
  virtctl create vm --volume-containerdisk=src:my.registry/my-image:my-tag | kubectl create -f -
  virtctl create vm --name=my-vm --instancetype=u1.small --volume-import=type:ds,src:my-ns/my-ds,size:50Gi
  virtctl create vm --user=cloud-user --ssh-key='ssh-ed25519 AAAA...' --volume-pvc=src:my-pvc")]
pub(crate) struct Args {
    /// Name of the VM [default: random].
    #[arg(long)]
    name: Option<String>,
    /// Run strategy: Always, Manual, Halted, Once or RerunOnFailure.
    #[arg(long, default_value = run_strategy::ALWAYS)]
    run_strategy: String,
    /// Seconds the guest has to shut down.
    #[arg(long, default_value_t = 180, value_name = "SECONDS")]
    termination_grace_period: i64,
    /// Memory of the guest [default: 512Mi].
    #[arg(long, conflicts_with_all = ["instancetype", "infer_instancetype", "infer_instancetype_from"])]
    memory: Option<String>,
    /// Instance type: [virtualmachineinstancetype/|virtualmachineclusterinstancetype/]NAME.
    #[arg(long, conflicts_with_all = ["infer_instancetype", "infer_instancetype_from"])]
    instancetype: Option<String>,
    /// Infer the instance type from the boot volume.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, conflicts_with = "infer_instancetype_from")]
    infer_instancetype: Option<bool>,
    /// Infer the instance type from this volume.
    #[arg(long, value_name = "VOLUME")]
    infer_instancetype_from: Option<String>,
    /// Preference: [virtualmachinepreference/|virtualmachineclusterpreference/]NAME.
    #[arg(long, conflicts_with_all = ["infer_preference", "infer_preference_from"])]
    preference: Option<String>,
    /// Infer the preference from the boot volume.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, conflicts_with = "infer_preference_from")]
    infer_preference: Option<bool>,
    /// Infer the preference from this volume.
    #[arg(long, value_name = "VOLUME")]
    infer_preference_from: Option<String>,
    /// A containerDisk: src:IMAGE[,name:NAME][,bootorder:N]; may be repeated.
    #[arg(long, value_name = "PARAMS")]
    volume_containerdisk: Vec<String>,
    /// A DataSource to clone: src:[NAMESPACE/]NAME[,name:,size:,bootorder:]. Use --volume-import=type:ds instead.
    #[arg(long, value_name = "PARAMS")]
    volume_datasource: Vec<String>,
    /// A PVC to clone: src:NAMESPACE/NAME[,name:,size:,bootorder:]. Use --volume-import=type:pvc instead.
    #[arg(long, value_name = "PARAMS")]
    volume_clone_pvc: Vec<String>,
    /// An empty volume: size:SIZE[,name:]. Use --volume-import=type:blank instead.
    #[arg(long, value_name = "PARAMS")]
    volume_blank: Vec<String>,
    /// A PVC to use: src:NAME[,name:,bootorder:]; may be repeated.
    #[arg(long, value_name = "PARAMS")]
    volume_pvc: Vec<String>,
    /// A volume to import: type:KIND,…; KIND is blank, gcs, http, imageio, pvc, registry, s3, vddk, snapshot or ds; may be repeated.
    #[arg(long, value_name = "PARAMS")]
    volume_import: Vec<String>,
    /// Answers for Windows setup: src:NAME[,type:configmap|secret].
    #[arg(long, value_name = "PARAMS")]
    volume_sysprep: Option<String>,
    /// User cloud-init creates.
    #[arg(long)]
    user: Option<String>,
    /// File with the password of that user, which is then readable in the manifest.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Public key of that user; may be repeated.
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    ssh_key: Vec<String>,
    /// Let the guest's agent manage SSH keys, where SELinux forbids it.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    ga_manage_ssh: Option<bool>,
    /// A credential from a Secret: src:NAME[,type:ssh|password][,method:ga|nocloud|configdrive][,user:NAME]; may be repeated.
    #[arg(long, value_name = "PARAMS")]
    access_cred: Vec<String>,
    /// Kind of the cloud-init volume: nocloud, configdrive or none [default: nocloud].
    #[arg(long, value_name = "KIND")]
    cloud_init: Option<String>,
    /// User data for cloud-init, in base64.
    #[arg(long, value_name = "BASE64", conflicts_with_all = ["user", "password_file", "ssh_key", "ga_manage_ssh"])]
    cloud_init_user_data: Option<String>,
    /// Network data for cloud-init, in base64.
    #[arg(long, value_name = "BASE64")]
    cloud_init_network_data: Option<String>,
}

pub(crate) fn run(globals: &Globals, args: &Args) -> Outcome {
    for (flag, values) in [
        ("volume-datasource", &args.volume_datasource),
        ("volume-clone-pvc", &args.volume_clone_pvc),
        ("volume-blank", &args.volume_blank),
    ] {
        if !values.is_empty() {
            eprintln!("Flag --{flag} has been deprecated, use flag --volume-import instead");
        }
    }
    if args.password_file.is_some() {
        eprintln!("warning: the password can be read in the VM's manifest");
    }
    let manifest = manifest(args, globals.namespace.as_deref(), &mut suffix)?;
    document::print(&manifest, "yaml")
}

/// Five characters that make no words.
pub(super) fn suffix() -> String {
    let mut random = rand::rng();
    (0..5).filter_map(|_| b"bcdfghjklmnpqrstvwxz2456789".choose(&mut random)).map(|byte| char::from(*byte)).collect()
}

/// What is collected of the volumes.
#[derive(Default)]
struct Volumes {
    templates: Vec<Value>,
    disks: Vec<Value>,
    volumes: Vec<Value>,
    boot: BTreeMap<u64, String>,
}

impl Volumes {
    fn add(&mut self, flag: &str, name: &str, mut source: Value, boot_order: Option<u64>) -> Result<(), Fault> {
        if !params::label(name) {
            return Err(wrong(
                flag,
                format!(
                    "invalid name \"{name}\": lower case letters, digits and '-', a letter or digit at both ends, at most 63"
                ),
            ));
        }
        if self.find(name).is_some() {
            return Err(wrong(flag, format!("there is already a volume with name \"{name}\"")));
        }
        source["name"] = json!(name);
        self.volumes.push(source);
        if let Some(order) = boot_order {
            if self.boot.insert(order, name.to_owned()).is_some() {
                return Err(wrong(flag, format!("bootorder {order} was specified multiple times")));
            }
            self.disks.push(json!({ "name": name, "bootOrder": order }));
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<&Value> {
        self.volumes.iter().find(|volume| volume["name"] == name)
    }

    fn import(&mut self, text: &str, suffix: &mut dyn FnMut() -> String) -> Result<(), Fault> {
        let flag = "volume-import";
        let params = Params::parse(flag, text)?;
        let source = import::source(&params)?;
        let size = params.size()?;
        if size.is_none() && source.sized {
            return Err(params.wrong("size must be specified"));
        }
        let name = params.get("name").map_or_else(|| format!("imported-volume-{}", suffix()), str::to_owned);
        self.add(flag, &name, json!({ "dataVolume": { "name": name } }), params.boot_order()?)?;
        let mut spec = source.spec;
        spec["storage"] = match size {
            Some(size) => json!({ "resources": { "requests": { "storage": size } } }),
            None => json!({}),
        };
        self.templates.push(json!({ "metadata": { "name": name }, "spec": spec }));
        Ok(())
    }

    /// The volume to infer from: the one named, else the one that boots first.
    fn inferred(&self, named: Option<&str>) -> Result<String, String> {
        let first =
            || self.boot.values().next().cloned().or_else(|| self.volumes.first()?["name"].as_str().map(str::to_owned));
        let name = named
            .map(str::to_owned)
            .or_else(first)
            .ok_or("at least one volume is needed to infer an instance type or preference")?;
        let volume = self.find(&name).ok_or_else(|| format!("there is no volume with name \"{name}\""))?;
        if volume.get("persistentVolumeClaim").is_some() {
            return Ok(name);
        }
        if volume.get("dataVolume").is_none() {
            return Err(
                "inference of instancetype or preference works only with datasources, datavolumes or pvcs".to_owned()
            );
        }
        let template = self.templates.iter().find(|template| template["metadata"]["name"] == *name);
        if template.is_none_or(|template| import::tells_its_type(&template["spec"])) {
            return Ok(name);
        }
        Err("this datavolume is not valid to infer an instancetype or preference from \
             (source needs to be PVC, Registry or Snapshot, sourceRef needs to be DataSource)"
            .to_owned())
    }
}

fn strategy(text: &str) -> Result<&'static str, Fault> {
    let known = [
        run_strategy::ALWAYS,
        run_strategy::MANUAL,
        run_strategy::HALTED,
        run_strategy::ONCE,
        run_strategy::RERUN_ON_FAILURE,
    ];
    known.into_iter().find(|word| word.eq_ignore_ascii_case(text)).ok_or_else(|| {
        wrong("run-strategy", format!("invalid run strategy \"{text}\", supported values are: {}", known.join(", ")))
    })
}

/// `[kind/]name` of an instance type or preference.
fn matcher(flag: &str, what: &str, text: &str, kinds: [&str; 2]) -> Result<Value, Fault> {
    let (kind, name) = params::prefixed(text).map_err(|why| wrong(flag, why))?;
    let Some(kind) = kind.map(str::to_lowercase) else { return Ok(json!({ "name": name })) };
    if !kinds.contains(&kind.as_str()) {
        return Err(wrong(flag, format!("invalid {what} kind \"{kind}\", supported values are: {}", kinds.join(", "))));
    }
    Ok(json!({ "kind": kind, "name": name }))
}

/// The manifest `args` describe.
fn manifest(args: &Args, namespace: Option<&str>, suffix: &mut dyn FnMut() -> String) -> Result<Value, Fault> {
    let name = args.name.clone().unwrap_or_else(|| format!("vm-{}", suffix()));
    let memory = args.memory.as_deref().unwrap_or("512Mi");
    memory.parse::<Amount>().map_err(|error| wrong("memory", format!("{memory:?}: {error}")))?;

    let mut volumes = Volumes::default();
    for (index, text) in args.volume_containerdisk.iter().enumerate() {
        let flag = "volume-containerdisk";
        let params = Params::parse(flag, text)?;
        params.only(&["name", "src", "bootorder"])?;
        let image = params.need("src", "src must be specified")?;
        let volume = params.get("name").map_or_else(|| format!("{name}-containerdisk-{index}"), str::to_owned);
        volumes.add(flag, &volume, json!({ "containerDisk": { "image": image } }), params.boot_order()?)?;
    }
    for text in &args.volume_pvc {
        let flag = "volume-pvc";
        let params = Params::parse(flag, text)?;
        params.only(&["name", "src", "bootorder"])?;
        let claim = params.own_source("pvc")?;
        let source = json!({ "persistentVolumeClaim": { "claimName": claim } });
        volumes.add(flag, params.get("name").unwrap_or(claim), source, params.boot_order()?)?;
    }
    let older = [("ds", &args.volume_datasource), ("pvc", &args.volume_clone_pvc), ("blank", &args.volume_blank)];
    for (kind, text) in older.iter().flat_map(|(kind, texts)| texts.iter().map(move |text| (kind, text))) {
        volumes.import(&format!("type:{kind},{text}"), suffix)?;
    }
    for text in &args.volume_import {
        volumes.import(text, suffix)?;
    }
    if let Some(text) = &args.volume_sysprep {
        volumes.add("volume-sysprep", "sysprepdisk", sysprep(text)?, None)?;
    }

    let mut cloud_init = CloudInit::of(args);
    let credentials = args.access_cred.iter().map(|text| cloud_init.credential(text)).collect::<Result<Vec<_>, _>>()?;
    if let Some(source) = cloud_init.volume()? {
        volumes.add("cloud-init", "cloudinitdisk", source, None)?;
    }

    let mut spec = json!({ "runStrategy": strategy(&args.run_strategy)? });
    let mut guest = Some(memory);
    match &args.instancetype {
        Some(text) => {
            let kinds = ["virtualmachineinstancetype", "virtualmachineclusterinstancetype"];
            spec["instancetype"] = matcher("instancetype", "instancetype", text, kinds)?;
            guest = None;
        }
        None if args.memory.is_none() && args.infer_instancetype != Some(false) => {
            let explicit = args.infer_instancetype.is_some() || args.infer_instancetype_from.is_some();
            if let Some(found) =
                infer(&volumes, "infer-instancetype", args.infer_instancetype_from.as_deref(), explicit)?
            {
                spec["instancetype"] = found;
                // What is asked for must be found; what is only tried keeps a memory to fall back on.
                guest = guest.filter(|_| !explicit);
            }
        }
        None => {}
    }
    match &args.preference {
        Some(text) => {
            let kinds = ["virtualmachinepreference", "virtualmachineclusterpreference"];
            spec["preference"] = matcher("preference", "preference", text, kinds)?;
        }
        None if args.infer_preference != Some(false) => {
            let explicit = args.infer_preference.is_some() || args.infer_preference_from.is_some();
            if let Some(found) = infer(&volumes, "infer-preference", args.infer_preference_from.as_deref(), explicit)? {
                spec["preference"] = found;
            }
        }
        None => {}
    }

    let mut domain = json!({ "devices": {}, "resources": {} });
    if let Some(memory) = guest {
        domain["memory"] = json!({ "guest": memory });
    }
    if !volumes.disks.is_empty() {
        domain["devices"]["disks"] = json!(volumes.disks);
    }
    let mut instance = json!({ "domain": domain, "terminationGracePeriodSeconds": args.termination_grace_period });
    if !volumes.volumes.is_empty() {
        instance["volumes"] = json!(volumes.volumes);
    }
    if !credentials.is_empty() {
        instance["accessCredentials"] = json!(credentials);
    }
    if !volumes.templates.is_empty() {
        spec["dataVolumeTemplates"] = json!(volumes.templates);
    }
    spec["template"] = json!({ "metadata": {}, "spec": instance });
    let mut metadata = json!({ "name": name });
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    Ok(json!({ "apiVersion": API_VERSION, "kind": "VirtualMachine", "metadata": metadata, "spec": spec }))
}

fn infer(volumes: &Volumes, flag: &str, named: Option<&str>, explicit: bool) -> Result<Option<Value>, Fault> {
    match (volumes.inferred(named), explicit) {
        (Ok(volume), true) => Ok(Some(json!({ "inferFromVolume": volume }))),
        (Ok(volume), false) => Ok(Some(json!({ "inferFromVolume": volume, "inferFromVolumeFailurePolicy": "Ignore" }))),
        (Err(why), true) => Err(wrong(flag, why)),
        (Err(_), false) => Ok(None),
    }
}

fn sysprep(text: &str) -> Result<Value, Fault> {
    let params = Params::parse("volume-sysprep", text)?;
    params.only(&["src", "type"])?;
    let name = params.own_source("configmap or secret")?;
    match params.get("type").unwrap_or("configmap").to_lowercase().as_str() {
        "configmap" => Ok(json!({ "sysprep": { "configMap": { "name": name } } })),
        "secret" => Ok(json!({ "sysprep": { "secret": { "name": name } } })),
        other => {
            Err(params
                .wrong(format!("invalid sysprep source type \"{other}\", supported values are: configmap, secret")))
        }
    }
}

#[cfg(test)]
mod tests;
