//! disk-uploader: a disk becomes a containerDisk in a registry. An export carries it out of its claim; what the claim says of instance
//! types goes into the image's variables, from which the importer takes it again.

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use futures::{StreamExt, TryStreamExt};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio_util::io::ReaderStream;

use super::program;
use crate::cluster::CLAIM;
use crate::words::{given, truth, write};
use crate::{Cluster, Error};

/// Who reads disks of images.
const QEMU: u64 = 107;
const DISK: &str = "disk/disk.img";

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
    program::output("virtctl", words, patience).await?;
    let variables = variables(cluster, args).await?;
    let pushing = push(&reference, args, &disk, dir.path(), variables);
    let digest = match tokio::time::timeout(patience, pushing).await {
        Ok(done) => done?,
        Err(_) => {
            let what = format!("{} was not pushed", args.image_destination);
            return Err(Error::TooLate { what, seconds: patience.as_secs() });
        }
    };
    tracing::info!("{} was pushed: {digest}", args.image_destination);
    args.digest_result.as_deref().map_or(Ok(()), |path| write(path, &digest))
}

/// What the claim says of instance types and preferences, as variables of the image.
async fn variables(cluster: &Cluster, args: &Args) -> Result<Vec<String>, Error> {
    if args.export_source_kind != "pvc" {
        return Ok(Vec::new());
    }
    let claim = cluster.need(CLAIM, &cluster.namespace, &args.export_source_name).await?;
    let labels = claim.metadata.labels.unwrap_or_default();
    let of = |(key, value): (&String, &String)| {
        let name = key.strip_prefix("instancetype.kubevirt.io/")?;
        let name = name.to_uppercase().replace(['-', '.'], "_");
        Some(format!("INSTANCETYPE_KUBEVIRT_IO_{name}={value}"))
    };
    Ok(labels.iter().filter_map(of).collect())
}

async fn push(
    reference: &Reference,
    args: &Args,
    disk: &Path,
    dir: &Path,
    variables: Vec<String>,
) -> Result<String, Error> {
    let (disk, target) = (disk.to_owned(), dir.join("layer.tar.gz"));
    let layer = target.clone();
    let packing = tokio::task::spawn_blocking(move || pack(&disk, &target));
    let packed = packing.await.map_err(|error| Error::Failed(format!("the disk was not packed: {error}")))??;
    let protocol = if truth("PLAIN_HTTP", &args.plain_http)? { ClientProtocol::Http } else { ClientProtocol::Https };
    let client = Client::new(ClientConfig { protocol, ..ClientConfig::default() });
    let secret = |name: &str| std::env::var(name).ok().filter(|text| given(text).is_some());
    let auth = match secret("ACCESS_KEY_ID").zip(secret("SECRET_KEY")) {
        Some((user, password)) => RegistryAuth::Basic(user, password),
        None => RegistryAuth::Anonymous,
    };
    let failed = |source| Error::Push { reference: args.image_destination.clone(), source: Box::new(source) };
    client.auth(reference, &auth, RegistryOperation::Push).await.map_err(failed)?;
    let file = tokio::fs::File::open(&layer).await.map_err(Error::file("read", &layer))?;
    let stream = ReaderStream::with_capacity(file, 1 << 20).map_err(|error| error.into()).boxed();
    client.push_blob_stream(reference, stream, &packed.digest, Some(packed.size)).await.map_err(failed)?;
    let (config, manifest) = describe(&packed, &variables);
    let config_digest = format!("sha256:{}", hex(&Sha256::digest(&config)));
    client.push_blob(reference, config, &config_digest).await.map_err(failed)?;
    let bytes = manifest.to_string();
    let kind = "application/vnd.oci.image.manifest.v1+json".parse();
    let kind = kind.map_err(|_| Error::Failed("the manifest has no type".to_owned()))?;
    client.push_manifest_raw(reference, bytes.clone().into_bytes(), kind).await.map_err(failed)?;
    Ok(format!("sha256:{}", hex(&Sha256::digest(bytes))))
}

/// A layer as it is pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packed {
    digest: String,
    /// Of what it is unpacked to.
    diff: String,
    size: u64,
}

/// The image's configuration, and its manifest.
fn describe(packed: &Packed, variables: &[String]) -> (Vec<u8>, Value) {
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": { "Env": variables },
        "rootfs": { "type": "layers", "diff_ids": [packed.diff] },
    });
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "size": config.len(),
            "digest": format!("sha256:{}", hex(&Sha256::digest(&config))),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "size": packed.size, "digest": packed.digest,
        }],
    });
    (config, manifest)
}

/// Packs the disk as a layer: it is read twice, because an archive says how long a file is before it holds it.
fn pack(disk: &Path, target: &Path) -> Result<Packed, Error> {
    let open = || {
        let file = std::fs::File::open(disk).map_err(Error::file("read", disk))?;
        Ok::<_, Error>(GzDecoder::new(BufReader::with_capacity(1 << 20, file)))
    };
    let length = std::io::copy(&mut open()?, &mut std::io::sink()).map_err(Error::file("read", disk))?;
    let file = std::fs::File::create(target).map_err(Error::file("write", target))?;
    let written = write_layer(BufWriter::with_capacity(1 << 20, file), open()?, length);
    written.map_err(Error::file("write", target))
}

fn write_layer(to: impl Write, disk: impl Read, length: u64) -> std::io::Result<Packed> {
    let pressed = GzEncoder::new(Counted::new(to), Compression::fast());
    let mut tar = tar::Builder::new(Counted::new(pressed));
    let mut entry = |path: &str, kind: tar::EntryType, mode: u32, size: u64, data: &mut dyn Read| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(QEMU);
        header.set_gid(QEMU);
        header.set_size(size);
        tar.append_data(&mut header, path, data)
    };
    entry("disk/", tar::EntryType::Directory, 0o755, 0, &mut std::io::empty())?;
    let mut disk = disk;
    entry(DISK, tar::EntryType::Regular, 0o440, length, &mut disk)?;
    let inner = tar.into_inner()?;
    let diff = format!("sha256:{}", hex(&inner.hash.finalize()));
    let mut outer = inner.to.finish()?;
    outer.flush()?;
    Ok(Packed { digest: format!("sha256:{}", hex(&outer.hash.finalize())), diff, size: outer.size })
}

/// What passes, with its length and its digest.
struct Counted<W> {
    to: W,
    hash: Sha256,
    size: u64,
}

impl<W> Counted<W> {
    fn new(to: W) -> Self {
        Self { to, hash: Sha256::new(), size: 0 }
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_holds_the_disk_for_who_reads_disks() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, layer) = (dir.path().join("disk.img.gz"), dir.path().join("layer"));
        let mut pressed = GzEncoder::new(std::fs::File::create(&disk).unwrap(), Compression::fast());
        pressed.write_all(&vec![7; 100_000]).unwrap();
        pressed.finish().unwrap();
        let packed = pack(&disk, &layer).unwrap();
        let bytes = std::fs::read(&layer).unwrap();
        assert_eq!(
            (packed.size, packed.digest.clone()),
            (bytes.len() as u64, format!("sha256:{}", hex(&Sha256::digest(&bytes))))
        );
        let mut unpacked = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).unwrap();
        assert_eq!(packed.diff, format!("sha256:{}", hex(&Sha256::digest(&unpacked))));
        let mut tar = tar::Archive::new(&unpacked[..]);
        let entries: Vec<(String, u64, u64)> = tar
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let header = entry.header();
                (entry.path().unwrap().display().to_string(), header.uid().unwrap(), header.size().unwrap())
            })
            .collect();
        assert_eq!(entries, [("disk/".to_owned(), QEMU, 0), (DISK.to_owned(), QEMU, 100_000)]);
        let (config, manifest) = describe(&packed, &["A=b".to_owned()]);
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(
            (&config["config"]["Env"][0], &manifest["layers"][0]["digest"]),
            (&json!("A=b"), &json!(packed.digest))
        );
    }
}
