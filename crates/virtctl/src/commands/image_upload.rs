//! `virtctl image-upload`: a local image becomes the content of a volume.
//!
//! ```text
//! target (what to create) -> wait (until an upload is taken) -> token -> route (where) -> send (resumed) -> wait (until stored)
//! ```

mod route;
mod send;
mod target;
mod wait;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::cdi::v1beta1::{DataSource, DataVolume, UploadTokenRequest};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use target::Kind;

use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};

/// Upload a disk image, or an archive of files, into a new or an existing volume.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl image-upload dv disk --size 10Gi --image-path disk.qcow2              a new DataVolume
  virtctl image-upload pvc disk --no-create --image-path disk.raw.gz            a claim that is there
  virtctl image-upload dv disk --size 10Gi --image-path disk.img --force-bind   before a machine asks for it
  virtctl image-upload dv golden --size 10Gi --image-path f.qcow2 --datasource  and a DataSource of its name")]
pub(crate) struct Args {
    /// What holds the volume: dv or pvc.
    #[arg(value_name = "TYPE")]
    kind: Kind,
    /// Its name.
    #[arg(value_name = "NAME")]
    name: String,
    /// The image.
    #[arg(long, value_name = "FILE", required_unless_present = "archive_path", conflicts_with = "archive_path")]
    image_path: Option<PathBuf>,
    /// A tar archive, whose files are put into the volume.
    #[arg(long, value_name = "FILE")]
    archive_path: Option<PathBuf>,
    /// Size of the volume, such as 10Gi.
    #[arg(long)]
    size: Option<String>,
    /// Storage class of the volume.
    #[arg(long, value_name = "NAME")]
    storage_class: Option<String>,
    /// How the volume is accessed, such as ReadWriteOnce; by default as the storage class does best.
    #[arg(long, value_name = "MODE")]
    access_mode: Option<String>,
    /// block or filesystem; by default as the storage class does best.
    #[arg(long, value_name = "MODE", value_parser = ["block", "filesystem", "default"])]
    volume_mode: Option<String>,
    /// Upload into a volume that is there already, and create none.
    #[arg(long)]
    no_create: bool,
    /// Bind the volume now, though its class waits for the first machine that uses it.
    #[arg(long)]
    force_bind: bool,
    /// Create a DataSource of the same name that points to the volume.
    #[arg(long)]
    datasource: bool,
    /// Instance type that machines of this volume get by default.
    #[arg(long, value_name = "NAME")]
    default_instancetype: Option<String>,
    /// Kind of that instance type.
    #[arg(long, value_name = "KIND", requires = "default_instancetype")]
    default_instancetype_kind: Option<String>,
    /// Preference that machines of this volume get by default.
    #[arg(long, value_name = "NAME")]
    default_preference: Option<String>,
    /// Kind of that preference.
    #[arg(long, value_name = "KIND", requires = "default_preference")]
    default_preference_kind: Option<String>,
    /// Address of the upload proxy; by default what the cluster says, or else a way through the API server.
    #[arg(long, value_name = "URL")]
    uploadproxy_url: Option<String>,
    /// Accept any certificate of the upload proxy. Insecure.
    #[arg(long)]
    insecure: bool,
    /// How often an upload that was interrupted is continued.
    #[arg(long, value_name = "N", default_value_t = 5)]
    retry: u32,
    /// How long to wait for the volume to be ready for the upload.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    wait_secs: u64,
}

impl Args {
    fn file(&self) -> &Path {
        let either = self.image_path.as_deref().or(self.archive_path.as_deref());
        either.unwrap_or_else(|| Path::new(""))
    }
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    if !args.no_create && args.size.is_none() {
        return Err(Fault::usage("the size of the volume is not given")
            .hint("add --size, such as --size 10Gi; or --no-create when the volume is there already"));
    }
    let path = args.file();
    let cannot = || format!("cannot read {}", path.display());
    let metadata = tokio::fs::metadata(path).await.map_err(|error| Fault::new(cannot()).because(error))?;
    if !metadata.is_file() {
        return Err(Fault::new(cannot()).because("it is not a file"));
    }
    let cluster = globals.cluster().await?;
    create(&cluster, &args).await?;
    let patience = Duration::from_secs(args.wait_secs);
    println!("Waiting for {} {} upload pod to be ready...", args.kind, args.name);
    wait::ready(&cluster, &args.name, patience).await?;
    println!("Pod now ready");
    let proxy = route::find(&cluster, args.uploadproxy_url.as_deref(), args.insecure).await?;
    println!("Uploading data to {proxy}");
    let upload = send::Upload { path, size: metadata.len(), archive: args.archive_path.is_some(), retries: args.retry };
    send::send(&upload, &proxy, || token(&cluster, &args.name)).await?;
    println!(
        "Uploading data completed successfully, waiting for processing to complete, you can hit ctrl-c without \
         interrupting the progress"
    );
    wait::done(&cluster, &args.name).await?;
    println!("Processing completed successfully");
    if args.datasource {
        point(&cluster, &args).await?;
    }
    println!("Uploading {} completed successfully", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Creates what is uploaded into, unless it is there.
async fn create(cluster: &Cluster, args: &Args) -> Result<(), Fault> {
    let (namespace, name) = (&cluster.namespace, &args.name);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
    let volumes: Api<DataVolume> = Api::namespaced(cluster.client.clone(), namespace);
    let asked = |error: kube::Error| Fault::api(format!("cannot look for {} {namespace}/{name}", args.kind), &error);
    let claim = claims.get_opt(name).await.map_err(asked)?;
    let volume = volumes.get_opt(name).await.map_err(asked)?;
    if claim.is_some() || volume.is_some() {
        target::takes_uploads(claim.as_ref(), volume.as_ref())
            .map_err(|why| Fault::new(format!("cannot upload into {} {namespace}/{name}", args.kind)).because(why))?;
        println!("Using existing {} {namespace}/{name}", args.kind);
        return Ok(());
    }
    if args.no_create {
        return Err(Fault::new(format!("cannot upload into {} {namespace}/{name}", args.kind))
            .because("it is not there")
            .hint("leave --no-create out, and give a --size"));
    }
    println!("PVC {namespace}/{name} not found");
    let failed = |error: kube::Error| Fault::api(format!("cannot create {} {namespace}/{name}", args.kind), &error);
    match args.kind {
        Kind::Dv => volumes.create(&PostParams::default(), &made(target::volume(args))?).await.map(drop),
        Kind::Pvc => claims.create(&PostParams::default(), &made(target::claim(args))?).await.map(drop),
    }
    .map_err(failed)?;
    println!("{} {namespace}/{name} created", args.kind);
    Ok(())
}

fn made<T: serde::de::DeserializeOwned>(manifest: serde_json::Value) -> Result<T, Fault> {
    serde_json::from_value(manifest).map_err(|error| Fault::new("cannot make the volume's manifest").because(error))
}

/// Leave to upload, good for five minutes.
async fn token(cluster: &Cluster, name: &str) -> Result<String, Fault> {
    let failed = "cannot get a token for the upload";
    let request = made(json!({
        "apiVersion": "upload.cdi.kubevirt.io/v1beta1", "kind": "UploadTokenRequest",
        "metadata": { "name": name, "namespace": cluster.namespace }, "spec": { "pvcName": name },
    }))?;
    let api: Api<UploadTokenRequest> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let answer = api.create(&PostParams::default(), &request).await.map_err(|error| Fault::api(failed, &error))?;
    answer.status.and_then(|status| status.token).ok_or_else(|| Fault::new(failed).because("the answer holds none"))
}

/// Points the DataSource of the volume's name to the volume.
async fn point(cluster: &Cluster, args: &Args) -> Result<(), Fault> {
    let (namespace, name) = (&cluster.namespace, &args.name);
    let api: Api<DataSource> = Api::namespaced(cluster.client.clone(), namespace);
    let wanted: DataSource = made(target::data_source(args, namespace))?;
    let failed = |error: kube::Error| Fault::api(format!("cannot create DataSource {namespace}/{name}"), &error);
    match api.create(&PostParams::default(), &wanted).await {
        Ok(_) => println!("DataSource {namespace}/{name} created"),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let patch = kube::api::Patch::Merge(json!({ "spec": wanted.spec }));
            api.patch(name, &kube::api::PatchParams::default(), &patch).await.map_err(failed)?;
            println!("DataSource {namespace}/{name} updated");
        }
        Err(error) => return Err(failed(error)),
    }
    Ok(())
}
