//! `cdi-importer`: fills one volume with an image from elsewhere, says how it went, and ends.
//!
//! ```text
//!  environment ─▶ job ─▶ source (asked once: is it there?) ─▶ disk::import ─▶ volume ─▶ termination message
//!                                                                │
//!                                                    progress ───┴──▶ metrics, log
//! ```
//!
//! The pod has no scratch space and needs none. It may be killed at any moment: the next one goes on where that is possible,
//! and else begins again.

mod fetch;
mod fill;
mod headers;
mod job;
mod labels;
pub mod populators;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::Progress;
use kit::Task;

use self::fill::{fill, unusable};
use self::job::{From, Job};
pub(crate) use self::job::{bytes, connection, overhead, truth};
use crate::progress::{self, Work};
use crate::termination::Termination;
use crate::volume::Volume;

/// Between two lines of the log about how far the import is.
const REPORT: Duration = Duration::from_secs(10);

/// What the controller says in the environment. Everything is text here: an empty variable is one that is not set.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Where the image comes from: http, registry, s3, gcs, imageio or none.
    #[arg(long, env = "IMPORTER_SOURCE", default_value = "http")]
    pub source: String,
    /// The image's address.
    #[arg(long, env = "IMPORTER_ENDPOINT", default_value = "")]
    pub endpoint: String,
    /// `kubevirt` for a disk, `archive` for a tar archive whose files become the volume's.
    #[arg(long, env = "IMPORTER_CONTENTTYPE", default_value = "kubevirt")]
    pub content_type: String,
    /// The size that was requested of the volume, as a quantity.
    #[arg(long, env = "IMPORTER_IMAGE_SIZE", default_value = "")]
    pub image_size: String,
    /// User name or access key.
    #[arg(long, env = "IMPORTER_ACCESS_KEY_ID", default_value = "", hide_env_values = true)]
    pub access_key: String,
    /// Password or secret key.
    #[arg(long, env = "IMPORTER_SECRET_KEY", default_value = "", hide_env_values = true)]
    pub secret_key: String,
    /// A directory of certificates to trust.
    #[arg(long, env = "IMPORTER_CERT_DIR", default_value = "")]
    pub cert_dir: String,
    /// A directory of certificates to trust of a proxy.
    #[arg(long, env = "IMPORTER_PROXY_CERT_DIR", default_value = "/proxycerts/")]
    pub proxy_cert_dir: String,
    /// The disk at an oVirt engine.
    #[arg(long, env = "IMPORTER_DISK_ID", default_value = "")]
    pub disk_id: String,
    /// The snapshot of that disk that is a stage of the import; none for the disk as it is.
    #[arg(long, env = "IMPORTER_CURRENT_CHECKPOINT", default_value = "")]
    pub checkpoint: String,
    /// The key file of a Google service account.
    #[arg(long, env = "IMPORTER_GOOGLE_CREDENTIALS_FILE", default_value = "")]
    pub google_credentials: String,
    /// What the source's bytes add up to: `sha256:...`.
    #[arg(long, env = "IMPORTER_CHECKSUM", default_value = "")]
    pub checksum: String,
    /// Of a container image for several architectures, which to take.
    #[arg(long, env = "IMPORTER_REGISTRY_IMAGE_ARCHITECTURE", default_value = "")]
    pub architecture: String,
    /// Appears when the image can be fetched; holds the name to fetch, if it is not the endpoint's.
    #[arg(long, env = "IMPORTER_READY_FILE", default_value = "")]
    pub ready_file: String,
    /// To be made when the image is no longer needed.
    #[arg(long, env = "IMPORTER_DONE_FILE", default_value = "")]
    pub done_file: String,
    /// `node` when the endpoint serves a container image that the kubelet pulled.
    #[arg(long, env = "IMPORTER_PULL_METHOD", default_value = "")]
    pub pull_method: String,
    /// `true`: do not check certificates.
    #[arg(long, env = "INSECURE_TLS", default_value = "false")]
    pub insecure_tls: String,
    /// The least version of TLS to speak: `VersionTLS12`, `VersionTLS13`.
    #[arg(long, env = "TLS_MIN_VERSION", default_value = "")]
    pub tls_min_version: String,
    /// The part of a file system that it keeps for itself, from 0 to 1.
    #[arg(long, env = "FILESYSTEM_OVERHEAD", default_value = "0")]
    pub filesystem_overhead: String,
    /// `true`: claim the space of the whole disk.
    #[arg(long, env = "PREALLOCATION", default_value = "false")]
    pub preallocation: String,
    /// Proxy for http addresses.
    #[arg(long, env = "HTTP_PROXY", default_value = "", hide_env_values = true)]
    pub http_proxy: String,
    /// Proxy for https addresses.
    #[arg(long, env = "HTTPS_PROXY", default_value = "", hide_env_values = true)]
    pub https_proxy: String,
    /// Hosts without a proxy.
    #[arg(long, env = "NO_PROXY", default_value = "")]
    pub no_proxy: String,
    /// `TRYNONE`: write past the page cache where that is possible, because an earlier pod was killed for its memory.
    #[arg(long, env = "CACHE_MODE", default_value = "")]
    pub cache_mode: String,
    /// The UID of the object that wants the import; a label of the metrics.
    #[arg(long, env = "OWNER_UID", default_value = "")]
    pub owner_uid: String,
    /// `Name: value`, beside those in variables IMPORTER_EXTRA_HEADER_n.
    #[arg(long = "extra-header")]
    pub extra_headers: Vec<String>,
    /// A directory of secrets, each file of which is a header.
    #[arg(long, default_value = "/extraheaders")]
    pub secret_headers_dir: PathBuf,
    /// Where a volume that is a file system is mounted.
    #[arg(long, default_value = "/data")]
    pub data: PathBuf,
    /// Where a volume that is a block device appears.
    #[arg(long, default_value = "/dev/cdi-block-volume")]
    pub block_device: PathBuf,
    /// Where the last words go.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
    /// Port of the metrics; 0 serves none.
    #[arg(long, default_value_t = 8443)]
    pub metrics_port: u16,
}

/// The import failed; the termination message has said why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// What there is to say of an import that succeeded.
#[derive(Debug, Default)]
struct Outcome {
    preallocated: bool,
    labels: BTreeMap<String, String>,
}

/// Why there was none.
#[derive(Debug)]
enum Failure {
    /// The next pod may do better.
    Again(String),
    /// No pod will: the controller must not start another.
    Final(String),
}

/// Runs one import.
///
/// # Errors
/// When it failed and may be tried again. A checksum that is wrong is not an error of the program: it ends well, and its
/// last words say that nothing was kept.
pub async fn run(mut args: Args) -> Result<(), Error> {
    args.extra_headers.extend(headers::from_environment(std::env::vars()));
    let log = args.termination_log.clone();
    let progress = Arc::new(Progress::default());
    conclude(import(args, &progress).await, &log)
}

/// Says how it went.
fn conclude(outcome: Result<Outcome, Failure>, log: &Path) -> Result<(), Error> {
    match outcome {
        Ok(outcome) => {
            let preallocation_applied = Some(outcome.preallocated);
            let said = Termination {
                preallocation_applied,
                labels: outcome.labels,
                ..Termination::message("Import Complete")
            };
            said.write(log);
            Ok(())
        }
        Err(Failure::Final(message)) => {
            Termination::message(message).write(log);
            Ok(())
        }
        Err(Failure::Again(message)) => {
            Termination::message(message.clone()).write(log);
            Err(Error(message))
        }
    }
}

fn failed(message: impl Display) -> Failure {
    Failure::Again(format!("Unable to process data: {message}"))
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    kit::Chain(error).to_string()
}

/// Why the image is not to be had, in the words by which clients know it.
fn unopened(from: &From, error: &disk::source::Error) -> Failure {
    let why = chain(error);
    match (from, error) {
        // There is an image, and no disk for us in it.
        (From::Image(_), disk::source::Error::Image(_)) => {
            failed(format!("Unable to transfer source data to scratch space: Failed to read registry image: {why}"))
        }
        (From::Image(_), _) => {
            Failure::Again(format!("Unable to connect to registry data source: failed to pull image: {why}"))
        }
        _ => Failure::Again(format!("Unable to connect to {} data source: {why}", from.word())),
    }
}

/// Tells others how far the work is, and stops it when it is to stop, while both are held.
async fn attend(
    work: Work,
    owner: &str,
    port: u16,
    progress: &Arc<Progress>,
) -> Result<(Option<Task<()>>, Task<()>), Failure> {
    let metrics = match port {
        0 => None,
        port => match progress::serve(work, owner, progress.clone(), port).await {
            Ok(task) => Some(task),
            Err(error) => {
                // The import is what matters.
                tracing::warn!(error = %kit::Chain(&error), "no metrics");
                None
            }
        },
    };
    let stop = kit::shutdown::on_signals().map_err(|e| failed(chain(&e)))?;
    let watched = progress.clone();
    let stopping = kit::spawn("stop", async move {
        stop.cancelled().await;
        watched.cancel();
    });
    Ok((metrics, stopping))
}

async fn import(args: Args, progress: &Arc<Progress>) -> Result<Outcome, Failure> {
    let _attended = attend(Work::Import, &args.owner_uid, args.metrics_port, progress).await?;
    let secret_headers = headers::from_directory(&args.secret_headers_dir).map_err(failed)?;
    let checksum = job::checksum(&args.checksum).map_err(|e| Failure::Final(unusable(&e)))?;
    let job = Job { checksum, ..Job::new(&args, secret_headers).map_err(failed)? };
    let volume = Volume::find(&args.data, &args.block_device);
    carry_out(job, volume, args.pull_method == "node", progress).await
}

/// Does it. `served`: a server on this node serves a container image, and says of it what a registry would.
async fn carry_out(mut job: Job, volume: Volume, served: bool, progress: &Arc<Progress>) -> Result<Outcome, Failure> {
    if let Some(ready) = &job.ready {
        let name = fetch::ready(ready).await.map_err(Failure::Again)?;
        job.from.rename(&name);
    }
    let opened = fetch::open(&job).await.map_err(|error| unopened(&job.from, &error))?;
    let labels = match (&opened, served) {
        (Some(_), true) => labels::of(&fetch::information(&job).await.map_err(failed)?),
        (Some(opened), _) => labels::of(opened.environment()),
        (None, _) => BTreeMap::new(),
    };
    let reporting = report(progress.clone());
    let (done, sums) = (job.done.clone(), progress.clone());
    let filling = tokio::task::spawn_blocking(move || {
        let filled = fill(&job, opened.as_ref(), &volume, &sums);
        (filled, opened)
    });
    let filled = match filling.await {
        Ok((filled, opened)) => {
            if let Some(opened) = opened {
                opened.finish(filled.is_ok()).await;
            }
            Ok(filled)
        }
        Err(error) => Err(error),
    };
    drop(reporting);
    let imported = filled.map_err(|e| failed(chain(&e)))??;
    if let Some(done) = done
        && let Err(error) = std::fs::File::create_new(&done)
    {
        tracing::warn!(path = %done.display(), %error, "the end of the import was not marked");
    }
    Ok(Outcome { preallocated: imported.preallocated, labels })
}

/// Says in the log how far the import is, how fast, and how long it will take, while the task is held.
fn report(progress: Arc<Progress>) -> Task<()> {
    let begun = Instant::now();
    kit::spawn("report", async move {
        loop {
            tokio::time::sleep(REPORT).await;
            let seconds = begun.elapsed().as_secs_f64();
            let rate = progress.fetched() as f64 / seconds;
            let (fetched, written) = (progress.fetched(), progress.written());
            match progress.fraction().filter(|fraction| *fraction > 0.0) {
                Some(fraction) => {
                    let left = seconds / fraction - seconds;
                    tracing::info!(
                        fetched,
                        written,
                        "{:.2}%, {:.1} MB/s, {left:.0} s left",
                        fraction * 100.0,
                        rate / 1e6
                    );
                }
                None => tracing::info!(fetched, written, "{:.1} MB/s", rate / 1e6),
            }
        }
    })
}
