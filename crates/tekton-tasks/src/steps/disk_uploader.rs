//! disk-uploader: a disk becomes a containerDisk in a registry. An export carries it out of its claim; what is known of it goes into the
//! image's variables, from which the importer takes it again.

mod facts;
mod layer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use sha2::{Digest, Sha256};
use tokio_util::io::ReaderStream;

use self::facts::Facts;
use self::layer::{describe, hex, pack};
use super::program;
use crate::cluster::EXPORT;
use crate::words::{given, truth, write};
use crate::{Cluster, Error};

/// Params of disk-uploader.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// vm, vmsnapshot or pvc
    #[arg(long)]
    export_source_kind: String,
    /// Its name
    #[arg(long)]
    export_source_name: String,
    /// The volume
    #[arg(long)]
    volume_name: String,
    /// The image: registry/path:tag
    #[arg(long)]
    image_destination: String,
    /// Minutes
    #[arg(long, default_value = "120")]
    push_timeout: String,
    /// Where there is room for the disk
    #[arg(long, default_value = "/tmp")]
    directory: PathBuf,
    /// Whether to speak HTTP to the registry, without TLS
    #[arg(long, default_value = "false")]
    plain_http: String,
    /// File for the image's digest
    #[arg(long, value_name = "FILE")]
    digest_result: Option<PathBuf>,
}

/// Exports, packs and pushes.
///
/// # Errors
/// When a param makes no sense, the export fails, or the registry refuses.
pub async fn run(cluster: &Cluster, args: &Args) -> Result<(), Error> {
    let flag = match args.export_source_kind.as_str() {
        "vm" => "--vm",
        "vmsnapshot" => "--snapshot",
        "pvc" => "--pvc",
        other => {
            return Err(Error::param("EXPORT_SOURCE_KIND", format!("{other:?} is none of vm, vmsnapshot and pvc")));
        }
    };
    for (name, text) in [("EXPORT_SOURCE_NAME", &args.export_source_name), ("VOLUME_NAME", &args.volume_name)] {
        given(text).ok_or_else(|| Error::param(name, "it is empty: name the claim, or what has it"))?;
    }
    let reference: Reference = args.image_destination.parse().map_err(|error| {
        Error::param("IMAGE_DESTINATION", format!("{:?} is no name of an image: {error}", args.image_destination))
    })?;
    let minutes: u64 = args
        .push_timeout
        .trim()
        .parse()
        .ok()
        .filter(|minutes| *minutes > 0)
        .ok_or_else(|| Error::param("PUSH_TIMEOUT", format!("{:?} is no number of minutes", args.push_timeout)))?;
    let patience = Duration::from_secs(minutes.saturating_mul(60));
    let protocol = if truth("PLAIN_HTTP", &args.plain_http)? { ClientProtocol::Http } else { ClientProtocol::Https };
    // It is asked first what is there at all: an export takes its time.
    let facts = facts::of(cluster, &args.export_source_kind, &args.export_source_name, &args.volume_name).await?;
    let dir = tempfile::tempdir_in(&args.directory).map_err(Error::file("make a directory in", &args.directory))?;
    let disk = dir.path().join("disk.img.gz");
    let export = format!("disk-uploader-{:08x}", fastrand::u32(..));
    let words =
        ["vmexport", "download", &export, flag, &args.export_source_name, "--volume", &args.volume_name, "--output"];
    let mut words: Vec<String> = words.map(str::to_owned).to_vec();
    words.push(disk.to_string_lossy().into_owned());
    let namespace = &cluster.namespace;
    words.extend(["--namespace".to_owned(), namespace.clone()]);
    // Within the cluster the server is where its Service is.
    words.extend(["--service-url".to_owned(), format!("virt-export-{export}.{namespace}.svc:443")]);
    if let Err(error) = program::output("virtctl", words, patience).await {
        // An export that is not taken down serves the disk until its time is over.
        return Err(match cluster.remove(EXPORT, namespace, &export).await {
            Ok(_) => error,
            Err(more) => Error::Together { told: format!("{}; {}", kit::Chain(&error), kit::Chain(&more)), code: 1 },
        });
    }
    let auth = auth(|name| std::env::var(name).ok());
    let pushing = push(&reference, protocol, &auth, &disk, &facts);
    let Ok(pushed) = tokio::time::timeout(patience, pushing).await else {
        return Err(Error::late(format!("{} was not pushed", args.image_destination), patience));
    };
    let digest = pushed?;
    tracing::info!("{} was pushed: {digest}", args.image_destination);
    args.digest_result.as_deref().map_or(Ok(()), |path| write(path, &digest))
}

/// Who the registry is told that pushes: the Secret's user, or nobody.
fn auth(variable: impl Fn(&str) -> Option<String>) -> RegistryAuth {
    let secret = |name: &str| variable(name).filter(|text| given(text).is_some());
    match secret("ACCESS_KEY_ID").zip(secret("SECRET_KEY")) {
        Some((user, password)) => RegistryAuth::Basic(user, password),
        None => RegistryAuth::Anonymous,
    }
}

/// Packs the disk, which is beside nothing else, and pushes it; the image's digest.
async fn push(
    reference: &Reference,
    protocol: ClientProtocol,
    auth: &RegistryAuth,
    disk: &Path,
    facts: &Facts,
) -> Result<String, Error> {
    let (disk, target) = (disk.to_owned(), disk.with_file_name("layer.tar.gz"));
    let layer = target.clone();
    let packing = tokio::task::spawn_blocking(move || pack(&disk, &target));
    let packed = packing.await.map_err(|error| Error::Failed(format!("the disk was not packed: {error}")))??;
    let client = Client::new(ClientConfig { protocol, ..ClientConfig::default() });
    let failed = |source| Error::Push { reference: reference.to_string(), source: Box::new(source) };
    client.auth(reference, auth, RegistryOperation::Push).await.map_err(failed)?;
    let file = tokio::fs::File::open(&layer).await.map_err(Error::file("read", &layer))?;
    let stream = ReaderStream::with_capacity(file, 1 << 20).map_err(|error| error.into()).boxed();
    client.push_blob_stream(reference, stream, &packed.digest, Some(packed.size)).await.map_err(failed)?;
    let (config, manifest) = describe(&packed, facts);
    let config_digest = format!("sha256:{}", hex(&Sha256::digest(&config)));
    client.push_blob(reference, config, &config_digest).await.map_err(failed)?;
    let bytes = manifest.to_string();
    let kind = "application/vnd.oci.image.manifest.v1+json".parse();
    let kind = kind.map_err(|_| Error::Failed("the manifest has no type".to_owned()))?;
    client.push_manifest_raw(reference, bytes.clone().into_bytes(), kind).await.map_err(failed)?;
    Ok(format!("sha256:{}", hex(&Sha256::digest(bytes))))
}

#[cfg(test)]
mod tests;
