//! `ovirt-populator` and `openstack-populator`: fill one volume with a disk that a populator of Forklift's names.
//!
//! Arguments and the keys of the secret, which are environment variables here, are those that Forklift's own programs know;
//! the work is an importer's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use disk::Progress;
use disk::source::{CloudImage, Connection, EngineDisk, Proxies};

use super::job::{Content, From, Job, truth};
use super::{Error, Failure, Outcome, attend, carry_out, conclude, failed};
use crate::progress::Work;
use crate::volume::Volume;

/// What both are told.
#[derive(Clone, Debug, clap::Args)]
pub struct Volumed {
    /// `/mnt/disk.img`, or a block device.
    #[arg(long)]
    pub volume_path: PathBuf,
    /// The secret whose keys are in the environment.
    #[arg(long, default_value = "")]
    pub secret_name: String,
    /// The claim's UID; a label of the metrics.
    #[arg(long, default_value = "")]
    pub owner_uid: String,
    /// The claim's size in bytes; 0 when it is not known.
    #[arg(long, default_value_t = 0)]
    pub pvc_size: u64,
    /// Where the last words go.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
    /// Port of the metrics; 0 serves none.
    #[arg(long, default_value_t = 8443)]
    pub metrics_port: u16,
}

/// A disk of an oVirt engine.
#[derive(Clone, Debug, clap::Args)]
pub struct OvirtArgs {
    /// The engine: `https://engine`.
    #[arg(long)]
    pub engine_url: String,
    /// The disk's identity.
    #[arg(long)]
    pub disk_id: String,
    /// Where it goes.
    #[command(flatten)]
    pub volume: Volumed,
}

/// An image of an OpenStack cloud.
#[derive(Clone, Debug, clap::Args)]
pub struct OpenStackArgs {
    /// The cloud's identity service: `https://cloud:5000/v3`.
    #[arg(long)]
    pub endpoint: String,
    /// The image's identity.
    #[arg(long)]
    pub image_id: String,
    /// Where it goes.
    #[command(flatten)]
    pub volume: Volumed,
}

/// Brings the disk of an engine.
///
/// # Errors
/// When it failed and may be tried again.
pub async fn ovirt(args: OvirtArgs) -> Result<(), Error> {
    let secret = secret(std::env::vars());
    ovirt_with(args, &secret).await
}

/// As [`ovirt`], with the keys of a secret that are not those of the environment.
///
/// # Errors
/// As [`ovirt`].
pub async fn ovirt_with(args: OvirtArgs, secret: &Secret) -> Result<(), Error> {
    let get = |key: &str| secret.get(key).cloned().unwrap_or_default();
    let from = From::Engine(EngineDisk {
        url: engine(&args.engine_url),
        disk: args.disk_id,
        snapshot: None,
        login: Some((get("user"), get("password"))).filter(|(user, _)| !user.is_empty()),
    });
    fill(Work::Ovirt, from, &args.volume, secret).await
}

/// Brings the image of a cloud.
///
/// # Errors
/// When it failed and may be tried again.
pub async fn openstack(args: OpenStackArgs) -> Result<(), Error> {
    let secret = secret(std::env::vars());
    openstack_with(args, secret).await
}

/// As [`openstack`], with the keys of a secret that are not those of the environment.
///
/// # Errors
/// As [`openstack`].
pub async fn openstack_with(args: OpenStackArgs, secret: Secret) -> Result<(), Error> {
    let from = From::Cloud(CloudImage { identity: args.endpoint, image: args.image_id, login: secret.clone() });
    fill(Work::OpenStack, from, &args.volume, &secret).await
}

/// The keys of a secret.
pub type Secret = BTreeMap<String, String>;

/// Everything that is in the environment; a secret's keys are names of variables.
fn secret(variables: impl Iterator<Item = (String, String)>) -> Secret {
    variables.filter(|(_, value)| !value.is_empty()).collect()
}

/// An engine is named by its host; its API is always at the same place there.
fn engine(url: &str) -> String {
    let url = url.trim_end_matches('/');
    let named = url.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if named { url.to_owned() } else { format!("{url}/ovirt-engine/api") }
}

async fn fill(work: Work, from: From, volume: &Volumed, secret: &Secret) -> Result<(), Error> {
    let progress = Arc::new(Progress::default());
    conclude(import(work, from, volume, secret, &progress).await, &volume.termination_log)
}

async fn import(
    work: Work,
    from: From,
    volume: &Volumed,
    secret: &Secret,
    progress: &Arc<Progress>,
) -> Result<Outcome, Failure> {
    let _attended = attend(work, &volume.owner_uid, volume.metrics_port, progress).await?;
    let job = Job {
        from,
        connection: connection(secret).map_err(failed)?,
        content: Content::Disk,
        checksum: None,
        size: Some(volume.pvc_size).filter(|size| *size > 0),
        // Whoever made the claim for this disk has thought of its file system.
        overhead: 0.0,
        preallocate: false,
        uncached: false,
        owner: volume.owner_uid.clone(),
        ready: None,
        done: None,
    };
    carry_out(job, Volume::at(&volume.volume_path), false, progress).await
}

fn connection(secret: &Secret) -> Result<Connection, String> {
    let get = |key: &str| secret.get(key).cloned();
    Ok(Connection {
        certificates: get("cacert").into_iter().collect(),
        insecure: truth("insecureSkipVerify", &get("insecureSkipVerify").unwrap_or_default())?,
        proxies: Proxies { http: get("HTTP_PROXY"), https: get("HTTPS_PROXY"), none: get("NO_PROXY") },
        ..Connection::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_named_by_their_host() {
        assert_eq!(engine("https://engine.example"), "https://engine.example/ovirt-engine/api");
        assert_eq!(engine("https://engine.example/"), "https://engine.example/ovirt-engine/api");
        assert_eq!(engine("https://engine.example/ovirt-engine/api"), "https://engine.example/ovirt-engine/api");
    }

    #[test]
    fn a_secret_says_whom_to_trust() {
        let secret = |key: &str, value: &str| Secret::from([(key.to_owned(), value.to_owned())]);
        assert!(connection(&secret("insecureSkipVerify", "true")).unwrap().insecure);
        assert_eq!(connection(&secret("cacert", "PEM")).unwrap().certificates, ["PEM"]);
        let why = connection(&secret("insecureSkipVerify", "perhaps")).unwrap_err();
        assert!(why.contains("insecureSkipVerify is \"perhaps\""), "{why}");
    }
}
