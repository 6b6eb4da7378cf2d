//! `cdi-poller`: asks a registry what an image is now, says so, and ends.
//!
//! A registry is its tenant's choice. So it is asked in the tenant's namespace, by the way and with the credentials that an import of the
//! image has, and never by a component of CDI's. It may be slow, large or hostile: it is given [`LONGEST`], and of what it answers nothing
//! goes on but a digest or one of few reasons.

use std::path::PathBuf;
use std::time::Duration;

use disk::source::{Connection, ContainerImage, Error as Failure, Patience, image_digest};
use kit::Chain;

use crate::answer::{self, Answer, Digest, Reason};
use crate::importer;

/// How long a registry is given, its token service included.
const LONGEST: Duration = Duration::from_secs(30);

/// What the controller says in the environment, in the words of an import.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// The image: `docker://host/name:tag`.
    #[arg(long, env = "IMPORTER_ENDPOINT", default_value = "")]
    pub endpoint: String,
    /// User name.
    #[arg(long, env = "IMPORTER_ACCESS_KEY_ID", default_value = "", hide_env_values = true)]
    pub access_key: String,
    /// Password.
    #[arg(long, env = "IMPORTER_SECRET_KEY", default_value = "", hide_env_values = true)]
    pub secret_key: String,
    /// A directory of certificates to trust.
    #[arg(long, env = "IMPORTER_CERT_DIR", default_value = "")]
    pub cert_dir: String,
    /// A directory of certificates to trust of a proxy.
    #[arg(long, env = "IMPORTER_PROXY_CERT_DIR", default_value = "")]
    pub proxy_cert_dir: String,
    /// `true`: do not check certificates, and go without where there are none.
    #[arg(long, env = "INSECURE_TLS", default_value = "false")]
    pub insecure_tls: String,
    /// The least version of TLS to speak: `VersionTLS12`, `VersionTLS13`.
    #[arg(long, env = "TLS_MIN_VERSION", default_value = "")]
    pub tls_min_version: String,
    /// Proxy for http addresses.
    #[arg(long, env = "HTTP_PROXY", default_value = "", hide_env_values = true)]
    pub http_proxy: String,
    /// Proxy for https addresses.
    #[arg(long, env = "HTTPS_PROXY", default_value = "", hide_env_values = true)]
    pub https_proxy: String,
    /// Hosts without a proxy.
    #[arg(long, env = "NO_PROXY", default_value = "")]
    pub no_proxy: String,
    /// Where the last words go.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

/// The registry did not say what the image is.
#[derive(Debug, thiserror::Error)]
#[error("the registry of {url} does not say what it is: {reason}")]
pub struct Error {
    url: String,
    reason: Reason,
}

/// Asks, and leaves the answer as the last words of the pod.
///
/// # Errors
/// When there is no digest; the last words say why.
pub async fn run(args: Args) -> Result<(), Error> {
    let answer = ask(&args).await;
    // A pod without such a file is one that somebody runs by hand: they read the log.
    if let Err(error) = std::fs::write(&args.termination_log, answer::write(&answer)) {
        tracing::warn!(path = %args.termination_log.display(), %error, "the termination message was not written");
    }
    match answer {
        Ok(digest) => {
            tracing::info!(image = args.endpoint, %digest, "asked");
            Ok(())
        }
        Err(reason) => Err(Error { url: args.endpoint, reason }),
    }
}

async fn ask(args: &Args) -> Answer {
    let connection = connection(args).map_err(|why| {
        tracing::warn!(why, "the registry cannot be asked so");
        Reason::Setup
    })?;
    let login = (!args.access_key.is_empty() || !args.secret_key.is_empty())
        .then(|| (args.access_key.clone(), args.secret_key.clone()));
    // Archives of images are imports', and no file of this pod is one.
    let name = args.endpoint.strip_prefix("docker://").unwrap_or(&args.endpoint);
    let image = ContainerImage { url: format!("docker://{name}"), login, ..ContainerImage::default() };
    match tokio::time::timeout(LONGEST, image_digest(&image, &connection)).await {
        Ok(Ok(digest)) => Digest::of(&digest).ok_or(Reason::Manifest),
        Ok(Err(error)) => {
            // The log of this pod is its namespace's own.
            tracing::warn!(image = args.endpoint, error = %Chain(&error), "the registry does not answer as it should");
            Err(reason(&error))
        }
        Err(_) => Err(Reason::Late),
    }
}

/// The way of an import, with less patience: whoever wants to know asks again by and by.
fn connection(args: &Args) -> Result<Connection, String> {
    let way = importer::Args {
        cert_dir: args.cert_dir.clone(),
        proxy_cert_dir: args.proxy_cert_dir.clone(),
        insecure_tls: args.insecure_tls.clone(),
        tls_min_version: args.tls_min_version.clone(),
        http_proxy: args.http_proxy.clone(),
        https_proxy: args.https_proxy.clone(),
        no_proxy: args.no_proxy.clone(),
        ..importer::Args::default()
    };
    let second = Duration::from_secs(1);
    let patience = Patience {
        connect: 10 * second,
        answer: 10 * second,
        idle: 10 * second,
        first: second,
        longest: second,
        attempts: 1,
    };
    Ok(Connection { patience, ..importer::connection(&way)? })
}

fn reason(error: &Failure) -> Reason {
    match error {
        Failure::Address { .. } => Reason::Address,
        _ if error.is_untrusted() => Reason::Certificate,
        Failure::Request { source, .. } if source.is_connect() => Reason::Connect,
        Failure::Request { .. } | Failure::Short { .. } => Reason::Protocol,
        Failure::Silent { .. } => Reason::Silent,
        Failure::Status { status, .. } => Reason::Status(*status),
        Failure::Credentials { .. } => Reason::Credentials,
        Failure::Redirects { .. } | Failure::Redirect { .. } => Reason::Redirects,
        Failure::Large { .. } => Reason::Large,
        Failure::Setup { .. } | Failure::File { .. } | Failure::Content { .. } => Reason::Setup,
        _ => Reason::Manifest,
    }
}
