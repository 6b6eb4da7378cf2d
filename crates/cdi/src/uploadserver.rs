//! `cdi-uploadserver`: takes one upload into one volume, and ends.
//!
//! ```text
//!          ┌────────── failed ───────────┐
//!          ▼                             │
//!  ┌─▶ Waiting ──POST──▶ Receiving ──────┴──▶ Done ──▶ answer, termination message, exit 0
//!  │      │                 │ dropped, and the client named its upload
//!  │   deadline             ▼
//!  │      ▼              Suspended ──POST with the same name──▶ Receiving
//!  │   exit 0               │ nobody came back
//!  └────────────────────────┘
//! ```
//!
//! A second upload meanwhile is told 503, one after the end 409. The clients are the upload proxy and pods of ours; who
//! else has a certificate of the same authority is told 401.

mod body;
mod clients;
#[cfg(test)]
mod properties;
mod routes;
mod state;
mod store;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use disk::Progress;
use jiff::Timestamp;
use kit::shutdown::CancellationToken;
use kit::tls::{self, Clients, Files, Material, Trust};
use tokio::net::TcpListener;

use self::state::{Ended, Server};
use self::store::Destination;
use crate::importer::{bytes, overhead, truth};
use crate::termination::Termination;
use crate::volume::Volume;
use crate::{Error, security};

/// What the controller says in the environment. An empty variable is one that is not set.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The server's certificate; a file named `tls.crt`.
    #[arg(long, env = "TLS_CERT_FILE")]
    pub tls_cert_file: PathBuf,
    /// Its key, beside it; a file named `tls.key`.
    #[arg(long, env = "TLS_KEY_FILE")]
    pub tls_key_file: PathBuf,
    /// The authorities of clients.
    #[arg(long, env = "CLIENT_CERT_FILE")]
    pub client_cert_file: PathBuf,
    /// The common name of the upload proxy.
    #[arg(long, env = "CLIENT_NAME")]
    pub client_name: String,
    /// The common name of the pod that copies into this volume.
    #[arg(long, env = "CLONER_NAME", default_value = "")]
    pub cloner_name: String,
    /// `/data/disk.img`, or a block device.
    #[arg(long, env = "DESTINATION", default_value = "/data/disk.img")]
    pub destination: PathBuf,
    /// The size that was requested of the volume, as a quantity.
    #[arg(long, env = "UPLOAD_IMAGE_SIZE", default_value = "")]
    pub image_size: String,
    /// The part of a file system that it keeps for itself, from 0 to 1.
    #[arg(long, env = "FILESYSTEM_OVERHEAD", default_value = "0")]
    pub filesystem_overhead: String,
    /// `true`: claim the space of the whole disk.
    #[arg(long, env = "PREALLOCATION", default_value = "false")]
    pub preallocation: String,
    /// Until when an upload may begin; RFC 3339.
    #[arg(long, env = "DEADLINE", default_value = "")]
    pub deadline: String,
    /// Address to listen on.
    #[arg(long, env = "LISTEN_ADDRESS", default_value = "::")]
    pub listen_address: String,
    /// Port to listen on.
    #[arg(long, env = "LISTEN_PORT", default_value_t = 8443)]
    pub listen_port: u16,
    /// Port of the health check, without TLS; 0 serves none.
    #[arg(long, default_value_t = 8080)]
    pub health_port: u16,
    /// Where the last words go.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
}

/// Serves until an upload is stored, the deadline passes or the pod is to end.
///
/// # Errors
/// When a variable cannot be used, a port is taken, or an upload failed that was already answered.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = kit::shutdown::on_signals().map_err(Error::setup("listen for signals"))?;
    let listener = listen(&args.listen_address, args.listen_port).await?;
    serve(args, listener, stop).await
}

/// As [`run`], on a listener of the caller's and until an end of the caller's.
///
/// # Errors
/// As [`run`].
pub async fn serve(args: Args, listener: TcpListener, stop: CancellationToken) -> Result<(), Error> {
    let log = args.termination_log.clone();
    let said = match take(args, listener, stop).await? {
        Some(Ended::Stored { cloned, preallocated }) => {
            let message = if cloned { "Clone Complete" } else { "Upload Complete" };
            Termination { preallocation_applied: Some(preallocated), ..Termination::message(message) }
        }
        Some(Ended::Late) => Termination { deadline_passed: Some(true), ..Termination::message("Deadline Passed") },
        Some(Ended::Failed(message)) => {
            Termination::message(message.clone()).write(&log);
            return Err(Error::Upload(message));
        }
        None => return Ok(()),
    };
    said.write(&log);
    Ok(())
}

async fn take(args: Args, listener: TcpListener, stop: CancellationToken) -> Result<Option<Ended>, Error> {
    let deadline = deadline(&args.deadline)?;
    let destination = Destination {
        volume: Volume::at(&args.destination),
        size: Some(args.image_size.as_str())
            .filter(|size| !size.is_empty())
            .map(bytes)
            .transpose()
            .map_err(Error::Variable)?,
        overhead: overhead(&args.filesystem_overhead).map_err(Error::Variable)?,
        preallocate: truth("PREALLOCATION", &args.preallocation).map_err(Error::Variable)?,
    };
    let (material, trust) = (Material::new(), Trust::new());
    let pair = args.tls_cert_file.parent().unwrap_or(&args.tls_cert_file).to_owned();
    if pair.join("tls.crt") != args.tls_cert_file || pair.join("tls.key") != args.tls_key_file {
        return Err(Error::Variable(
            "TLS_CERT_FILE and TLS_KEY_FILE have to be tls.crt and tls.key of one directory".into(),
        ));
    }
    let files = Files { pair, bundle: args.client_cert_file.clone() };
    let _certificates =
        tls::load(files, material.clone(), trust.clone()).await.map_err(Error::setup("load the certificates"))?;
    let config = security::of_environment(material, Some(Clients::Optional(trust)))
        .map_err(Error::setup("set up the server's TLS"))?;
    let _health = match args.health_port {
        0 => None,
        port => Some(health(port).await?),
    };
    let progress = Arc::new(Progress::default());
    let clients = clients::Clients { proxy: args.client_name, cloner: args.cloner_name };
    let server = Arc::new(Server::new(destination, clients, progress.clone()));
    let router = routes::router(&server);
    let ending = stop.child_token();
    let serving = kit::spawn("uploads", kit::server::serve_tls(listener, config, router, ending.clone()));
    let ended = tokio::select! {
        ended = server.ended() => Some(ended),
        () = late(deadline, &server) => Some(Ended::Late),
        () = stop.cancelled() => None,
    };
    progress.cancel();
    ending.cancel();
    // Whoever was answered gets the answer.
    let _ = serving.await;
    Ok(ended)
}

/// Returns when the deadline has passed and nobody is uploading.
async fn late(deadline: Option<Timestamp>, server: &Server) {
    const LOOK: Duration = Duration::from_secs(1);
    let Some(deadline) = deadline else { return std::future::pending().await };
    while kit::clock::now() < deadline || server.is_busy() {
        let left = Duration::try_from(deadline.duration_since(kit::clock::now())).unwrap_or_default();
        tokio::time::sleep(left.max(LOOK)).await;
    }
}

fn deadline(text: &str) -> Result<Option<Timestamp>, Error> {
    let refused =
        |_| Error::Variable(format!("DEADLINE is {text:?}, and it has to be a time as in 2030-01-31T12:00:00Z"));
    Some(text).filter(|text| !text.is_empty()).map(|text| text.parse().map_err(refused)).transpose()
}

async fn listen(address: &str, port: u16) -> Result<TcpListener, Error> {
    match TcpListener::bind((address, port)).await {
        // A node without IPv6 has no such address.
        Err(_) if address == "::" => TcpListener::bind(("0.0.0.0", port)).await,
        bound => bound,
    }
    .map_err(Error::setup("listen for uploads"))
}

async fn health(port: u16) -> Result<kit::Task<()>, Error> {
    let listener = listen("::", port).await?;
    let router = Router::new().route("/healthz", get(|| async { "OK" }));
    Ok(kit::spawn("health", async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::warn!(%error, "the health check is no longer served");
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_times() {
        assert!(deadline("").unwrap().is_none());
        assert_eq!(deadline("2030-01-31T12:00:00Z").unwrap().unwrap().to_string(), "2030-01-31T12:00:00Z");
        assert!(deadline("tomorrow").unwrap_err().to_string().contains("DEADLINE is \"tomorrow\""));
    }
}
