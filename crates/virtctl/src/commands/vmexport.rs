//! `virtctl vmexport`: what a machine, a snapshot or a claim holds, as files of this machine.
//!
//! ```text
//! create (export, token) -> wait (served) -> links (which of them) -> way (how to get there) -> download (resumed) -> delete
//! ```

mod create;
mod download;
mod flags;
mod links;
mod sink;
mod wait;
mod way;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use api::export::v1::VirtualMachineExport;
use download::Transfer;
use flags::Function;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use links::Side;
use meta::text::printable;
use sink::Sink;

use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};

const PAUSE: Duration = Duration::from_secs(2);

/// Export volumes and manifests.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl vmexport create vm1-export --vm vm1                                      of a virtual machine
  virtctl vmexport create snap1-export --snapshot snap1                            of a snapshot
  virtctl vmexport create pvc1-export --pvc pvc1                                   of a claim
  virtctl vmexport delete snap1-export
  virtctl vmexport download vm1-export --volume disk1 --output disk.img.gz         out of an export that is there
  virtctl vmexport download pvc1-export --pvc pvc1 --format raw --output disk.img  and make the export, and delete it
  virtctl vmexport download vm1-export --vm vm1 --manifest --include-secret        what to apply elsewhere")]
pub(crate) struct Args {
    /// create, delete or download.
    #[arg(value_name = "FUNCTION")]
    function: String,
    /// Name of the export.
    #[arg(value_name = "NAME")]
    name: String,
    /// Export this virtual machine.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["snapshot", "pvc", "vmtemplate"])]
    vm: Option<String>,
    /// Export this snapshot of a virtual machine.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pvc", "vmtemplate"])]
    snapshot: Option<String>,
    /// Export this claim.
    #[arg(long, value_name = "NAME", conflicts_with = "vmtemplate")]
    pvc: Option<String>,
    /// Export this template of virtual machines.
    #[arg(long, value_name = "NAME")]
    vmtemplate: Option<String>,
    /// Write to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<String>,
    /// Download this volume; it need not be named when there is only one.
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// What the file is to be: gzip, which is the default, or raw.
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// Accept any certificate of the server. Insecure.
    #[arg(long)]
    insecure: bool,
    /// Keep the export after the download.
    #[arg(long, conflicts_with = "delete_vme")]
    keep_vme: bool,
    /// Delete the export after the download, though it was there before.
    #[arg(long)]
    delete_vme: bool,
    /// How long the export is good for, such as 30m; by default two hours.
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Write the manifests of the virtual machine instead of a volume.
    #[arg(long)]
    manifest: bool,
    /// yaml, which is the default, or json.
    #[arg(long, value_name = "FORMAT")]
    manifest_output_format: Option<String>,
    /// With the manifests, write the Secret with which disks are fetched.
    #[arg(long)]
    include_secret: bool,
    /// Address of the export's Service, such as a node's with a port of the Service there.
    #[arg(long, value_name = "HOST:PORT")]
    service_url: Option<String>,
    /// Go through the API server, which needs neither an Ingress nor a Route.
    #[arg(long)]
    port_forward: bool,
    /// Local port for that; 0 is any that is free.
    #[arg(long, value_name = "PORT")]
    local_port: Option<String>,
    /// How often a download that failed is tried again.
    #[arg(long, value_name = "N")]
    retry: Option<i64>,
    /// Labels of the export and its pod: KEY=VALUE, several separated by commas.
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    labels: Vec<String>,
    /// Annotations of the export and its pod: KEY=VALUE, several separated by commas.
    #[arg(long, value_name = "ANNOTATIONS", value_delimiter = ',')]
    annotations: Vec<String>,
    /// How long to wait for the export to be served, such as 5m; by default two minutes.
    #[arg(long, value_name = "DURATION")]
    readiness_timeout: Option<String>,
}

impl Args {
    /// The file, if it is one.
    fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| !path.is_empty() && *path != "-").map(Path::new)
    }

    /// Tells people, and not whoever reads what is exported.
    fn say(&self, text: &str) {
        let text = printable(text);
        if self.file().is_some() {
            println!("{text}");
        } else {
            eprintln!("{text}");
        }
    }
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let function = flags::check(&args)?;
    for sentence in flags::idle(&args) {
        eprintln!("warning: {sentence}");
    }
    let cluster = globals.cluster().await?;
    match function {
        Function::Create => create::create(&cluster, &args).await?,
        Function::Delete => create::delete(&cluster, &args).await?,
        Function::Download => fetch(&cluster, args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A download of what is on a claim, by an export that is there for this alone.
pub(crate) struct OfClaim {
    /// Name of the export.
    pub(crate) name: String,
    pub(crate) claim: String,
    /// The file.
    pub(crate) output: String,
    /// Not compressed.
    pub(crate) raw: bool,
    /// Through the API server, with this local port.
    pub(crate) port_forward: Option<String>,
    /// How often a download that failed is tried again.
    pub(crate) retries: i64,
}

/// Downloads what is on a claim.
pub(crate) async fn download(cluster: &Cluster, wanted: OfClaim) -> Result<(), Fault> {
    let args = Args {
        function: "download".to_owned(),
        name: wanted.name,
        pvc: Some(wanted.claim),
        output: Some(wanted.output),
        format: wanted.raw.then(|| flags::RAW.to_owned()),
        port_forward: wanted.port_forward.is_some(),
        local_port: wanted.port_forward,
        retry: Some(wanted.retries),
        ..Args::default()
    };
    flags::check(&args)?;
    fetch(cluster, args).await
}

/// Makes the export if it is to be made, downloads, and deletes it if it is to be deleted.
async fn fetch(cluster: &Cluster, mut args: Args) -> Result<(), Fault> {
    let create = flags::has_source(&args);
    if create {
        match create::create(cluster, &args).await {
            // What was there before is not deleted unless somebody says so.
            Err(fault) if fault.status == Some(409) => args.keep_vme = true,
            other => other?,
        }
    }
    let delete = !args.manifest && (args.delete_vme || create && !args.keep_vme);
    let fetched = attempts(cluster, &args).await;
    let deleted = if delete { create::delete(cluster, &args).await } else { Ok(()) };
    fetched.and(deleted)
}

async fn attempts(cluster: &Cluster, args: &Args) -> Result<(), Fault> {
    let mut left = args.retry.unwrap_or(0);
    let mut transfer = None;
    loop {
        match attempt(cluster, args, &mut transfer).await {
            // What cannot be chosen or written will not be next time.
            Err(failed) if failed.again && left > 0 => {
                args.say(&format!("{}\nRetrying...", failed.fault));
                left -= 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(failed) => return Err(failed.fault),
            Ok(()) => return Ok(()),
        }
    }
}

/// A download that came to nothing.
struct Failed {
    fault: Fault,
    /// It may go better another time.
    again: bool,
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Failed { fault, again: false }
    }
}

async fn attempt(cluster: &Cluster, args: &Args, held: &mut Option<Transfer>) -> Result<(), Failed> {
    let timeout = flags::readiness(args)?;
    let export = wait::ready(cluster, args, timeout).await?;
    let side = Side::of(args, &export);
    let way = way::find(cluster, args, &export, side).await?;
    let token = token(cluster, &export).await?;
    if args.manifest {
        return manifests(args, &export, side, &way, &token).await;
    }
    let chosen = links::choose(&export, side, args.volume.as_deref(), args.format.as_deref() == Some(flags::RAW))?;
    let transfer = match held {
        Some(begun) => begun,
        None => held.insert(Transfer::into(sink(args)?)),
    };
    download::volume(&way, &chosen, &token, transfer).await?;
    args.say("Download finished succesfully");
    Ok(())
}

fn sink(args: &Args) -> Result<Sink, Fault> {
    let Some(path) = args.file() else { return Ok(Sink::stdout()) };
    Sink::file(path).map_err(|error| Fault::new(format!("cannot write {}", path.display())).because(error))
}

async fn manifests(
    args: &Args,
    export: &VirtualMachineExport,
    side: Side,
    way: &way::Way,
    token: &str,
) -> Result<(), Failed> {
    let urls = links::manifests(export, side)?;
    let wanted = [Some(urls.machine), args.include_secret.then_some(urls.secret)];
    let accept = match args.manifest_output_format.as_deref().map(str::to_lowercase).as_deref() {
        Some("json") => "application/json",
        _ => "application/yaml",
    };
    let mut text = Vec::new();
    for url in wanted.into_iter().flatten() {
        text.extend(download::text(way, &url, token, accept).await?);
    }
    let written = match args.file() {
        Some(path) => std::fs::write(path, &text),
        None => std::io::stdout().write_all(&text).and_then(|()| std::io::stdout().flush()),
    };
    Ok(written.map_err(|error| Fault::new("cannot write the manifests").because(error))?)
}

async fn token(cluster: &Cluster, export: &VirtualMachineExport) -> Result<String, Fault> {
    let status = export.status.as_deref();
    let name = status.and_then(|status| status.token_secret_ref.clone()).unwrap_or_default();
    let what = format!("cannot read the token of the export in Secret {}/{name}", cluster.namespace);
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let secret = api.get(&name).await.map_err(|error| Fault::api(&what, &error))?;
    let bytes = secret.data.and_then(|mut data| data.remove(api::export::constants::TOKEN_KEY));
    let text = bytes.and_then(|bytes| String::from_utf8(bytes.0).ok());
    let token = text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned()).filter(|token| !token.is_empty());
    token.ok_or_else(|| Fault::new(what).because("it has no key \"token\" with a text"))
}
