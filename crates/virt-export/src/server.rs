//! `virt-exportserver`: serves the volumes of one export until the export ends; its certificate is replaced meanwhile.
//!
//! ```text
//!  request ─▶ token ─▶ routes ─┬▶ disk.img      ranges, holes are not read
//!                              ├▶ disk.img.gz   compressed on the way, in parallel
//!                              ├▶ dir/          files and listings
//!                              ├▶ disk.tar.gz   an archive of the files
//!                              ├▶ manifests     the machine, ready to be applied elsewhere
//!                              └▶ data, map     the volumes of a backup that is pulled, out of a guest that runs
//! ```

mod archive;
mod backup;
mod certificate;
mod files;
mod gzip;
mod manifests;
mod pieces;
mod range;
mod raw;
mod routes;
mod volume;

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::export::{constants, lending};
use jiff::Timestamp;
use kit::shutdown::{self, CancellationToken};
use kit::tls::{self, Material, Policy};
use kit::{certs, clock, server};
use tokio::net::{TcpListener, UnixListener};

pub use self::backup::{Backup, Lender, Served};
pub use self::routes::{Export, router};
pub use self::volume::{Volume, of_environment};
use crate::Error;

/// What the controller says; the volumes are variables of the environment that [`of_environment`] reads.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The certificate.
    #[arg(long, env = "CERT_FILE", default_value = "/cert/tls.crt")]
    pub cert_file: PathBuf,
    /// Its key.
    #[arg(long, env = "KEY_FILE", default_value = "/cert/tls.key")]
    pub key_file: PathBuf,
    /// The file with the newest certificate for that key, which is looked at as long as this serves.
    #[arg(long, env = constants::CERTIFICATE_FILE, default_value = "")]
    pub renewed_cert_file: PathBuf,
    /// The file with the token.
    #[arg(long, env = "TOKEN_FILE", default_value = "/token/token")]
    pub token_file: PathBuf,
    /// When to end, in the form of RFC 3339; never when it is empty.
    #[arg(long, env = "DEADLINE", default_value = "")]
    pub deadline: String,
    /// The export's name.
    #[arg(long, env = "EXPORT_NAME", default_value = "")]
    pub export_name: String,
    /// Path of the machine's manifests; empty when there is no machine.
    #[arg(long, env = "EXPORT_VM_DEF_URI", default_value = "")]
    pub vm_def_uri: String,
    /// Path of the Secret with which disks are fetched.
    #[arg(long, env = "EXPORT_SECRET_DEF_URI", default_value = "")]
    pub secret_def_uri: String,
    /// Directory of what the manifests are made of.
    #[arg(long, default_value = "/manifest_data")]
    pub manifest_data: PathBuf,
    /// The least version of TLS, as the KubeVirt object names it.
    #[arg(long, env = constants::TLS_MIN_VERSION, default_value = "")]
    pub tls_min_version: String,
    /// The ciphers of TLS 1.2, separated by commas; none are all.
    #[arg(long, env = constants::TLS_CIPHERS, default_value = "")]
    pub tls_ciphers: String,
    /// Which backup is shown, as `api::export::lending` names it; empty when none is.
    #[arg(long, env = constants::BACKUP_IDENTITY, default_value = "")]
    pub backup_identity: String,
    /// The bitmap of what changed in the volumes of a backup; empty when all of them is shown.
    #[arg(long, env = constants::BACKUP_BITMAP, default_value = "")]
    pub backup_bitmap: String,
    /// Where the agent of the node that runs the guest connects.
    #[arg(long, default_value_os_t = Path::new(lending::DIRECTORY).join(lending::SOCKET))]
    pub backup_socket: PathBuf,
    /// Port to listen on.
    #[arg(long, default_value_t = constants::PORT)]
    pub port: u16,
}

/// Serves until the deadline, or until it is told to stop.
///
/// # Errors
/// When a variable, the certificate or a volume cannot be used, or the port is taken.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("listen for signals"))?;
    let volumes = of_environment(std::env::vars());
    for volume in &volumes {
        volume.check().map_err(|source| Error::Volume { path: volume.path.display().to_string(), source })?;
    }
    let material = Material::new();
    let pair = certs::Pair { certificate: read(&args.cert_file).await?, key: read(&args.key_file).await? };
    material.set(&pair).map_err(Error::setup("use the certificate"))?;
    let ends = CancellationToken::new();
    let _certificate = kit::spawn("certificate", {
        let (ends, material, renewed) = (ends.clone(), material.clone(), args.renewed_cert_file.clone());
        async move {
            certificate::renew(material, pair, &renewed).await;
            tracing::warn!("the certificate has ended, and another was not given");
            ends.cancel();
        }
    });
    let config = tls::Changing::new(material, None).map_err(Error::setup("set up TLS"))?;
    config.obey(&policy(&args)).map_err(Error::setup("set up TLS"))?;
    let listener = match TcpListener::bind(("::", args.port)).await {
        Ok(listener) => listener,
        // A node without IPv6 has no such address.
        Err(_) => TcpListener::bind(("0.0.0.0", args.port)).await.map_err(Error::setup("listen"))?,
    };
    let _clock = deadline(&args.deadline)?.map(|left| kit::spawn("deadline", end(left, ends.clone())));
    let _signals = kit::spawn("signals", {
        let ends = ends.clone();
        async move {
            stop.cancelled().await;
            ends.cancel();
        }
    });
    let lender = Lender::new(args.backup_identity.as_str());
    let served = backup::of_environment(std::env::vars());
    let backup = (!served.is_empty()).then(|| Backup {
        volumes: served,
        bitmap: Some(args.backup_bitmap).filter(|bitmap| !bitmap.is_empty()),
        lender: lender.clone(),
    });
    let _agents = match &backup {
        None => None,
        Some(_) => {
            // The container may have been started before.
            let _ = std::fs::remove_file(&args.backup_socket);
            let agents =
                UnixListener::bind(&args.backup_socket).map_err(Error::setup("listen for the node's agent"))?;
            Some(kit::spawn("agents", lender.take(agents)))
        }
    };
    let paths = |uri: String| Some(uri).filter(|uri| !uri.is_empty());
    let export = Export {
        volumes,
        token: args.token_file,
        name: args.export_name,
        machine: paths(args.vm_def_uri),
        secret: paths(args.secret_def_uri),
        manifests: args.manifest_data,
        backup,
    };
    server::serve_tls(listener, config, router(export), ends).await;
    Ok(())
}

/// What the KubeVirt object asked for when this pod was made.
fn policy(args: &Args) -> Policy {
    let ciphers = args.tls_ciphers.split(',').filter(|one| !one.is_empty()).map(str::to_owned);
    let (policy, problems) = Policy::new(&args.tls_min_version, &ciphers.collect::<Vec<_>>());
    for problem in problems {
        tracing::warn!(problem, "TLS is not all that is asked for");
    }
    policy
}

async fn read(path: &Path) -> Result<String, Error> {
    tokio::fs::read_to_string(path).await.map_err(Error::setup("read the certificate"))
}

/// How long until then.
fn deadline(text: &str) -> Result<Option<Duration>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong =
        |error: jiff::Error| Error::Variable { name: "DEADLINE", value: text.to_owned(), why: error.to_string() };
    let at: Timestamp = text.parse().map_err(wrong)?;
    Ok(Some(Duration::try_from(at.duration_since(clock::now())).unwrap_or_default()))
}

async fn end(left: Duration, ends: CancellationToken) {
    tokio::time::sleep(left).await;
    tracing::info!("the deadline has come");
    ends.cancel();
}
