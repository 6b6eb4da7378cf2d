//! cdi-apiserver: admission of CDI's kinds, and tokens for uploads.
//!
//! ```text
//! API server --webhook--> look (what is there) -> validate (pure)
//!            --webhook--> clone (may the user?) -> token on the DataVolume
//!            --aggregation, front-proxy certificate--> gate -> token for an upload
//! ```

pub(crate) mod clone;
mod discovery;
mod look;
mod openapi;
mod render;
mod review;
mod upload_token;
mod validate;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use kit::gate::Gate;
use kit::health::{self, Ready};
use kit::shutdown::{self, CancellationToken};
use kit::{Task, metrics, server, tls};
use kube::Client;
use prometheus_client::registry::Registry;

use crate::{Error, security, token};

/// Largest AdmissionReview: two objects of the API server's own limit.
const REVIEW: usize = 4 << 20;
/// How long this replica goes on serving after it was told to end: until then a request may still be sent to it.
const LINGER: Duration = Duration::from_secs(3);

/// Command line of cdi-apiserver.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port to serve on.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/var/run/certs/cdi-apiserver-server-cert")]
    pub cert_dir: PathBuf,
    /// File with the authorities of that certificate.
    #[arg(long, default_value = "/var/run/certs/cdi-apiserver-signer-bundle/ca-bundle.crt")]
    pub ca_bundle: PathBuf,
    /// Directory with the key that tokens are signed with.
    #[arg(long, default_value = "/var/run/cdi/token/keys")]
    pub key_dir: PathBuf,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect("cdi-apiserver").await.map_err(Error::setup("reach the API server"))?;
    let material = tls::Material::new();
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let trust = tls::Trust::new();
    let reload = tls::load(files, material.clone(), trust).await;
    let _reload = reload.map_err(Error::setup("load the certificate"))?;
    let signer = signer(&args.key_dir).await?;
    let front = tls::Trust::new();
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let server = Server::start(client, signer, front.clone()).await?;
    let clients = Some(tls::Clients::Optional(front));
    let config = tls::Changing::new(material, clients).map_err(Error::setup("configure TLS"))?;
    let _following = security::follow(&server.context.client, config.clone());
    let gone = CancellationToken::new();
    let _leaving = kit::spawn("leaving", leave(server.ready.clone(), stop, gone.clone()));
    let router = server.router().merge(metrics::router(Registry::default()));
    server::serve_tls(listener, config, router, gone).await;
    Ok(())
}

async fn leave(ready: Ready, stop: CancellationToken, gone: CancellationToken) {
    stop.cancelled().await;
    ready.set(false);
    tokio::time::sleep(LINGER).await;
    gone.cancel();
}

async fn signer(directory: &Path) -> Result<token::Signer, Error> {
    let path = directory.join(token::PRIVATE);
    let pem = tokio::fs::read_to_string(path).await.map_err(Error::setup("read the key of tokens"))?;
    token::Signer::new(&pem).map_err(Error::setup("use the key of tokens"))
}

/// What the handlers share.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) gate: Gate,
    pub(crate) signer: token::Signer,
}

/// Everything behind the listener.
pub struct Server {
    context: Arc<Context>,
    ready: Ready,
    _vouching: Task<()>,
}

impl Server {
    /// Reads how the API server vouches for users, and keeps it current; `front` is filled with the front proxy's authority.
    ///
    /// # Errors
    /// When the cluster cannot be read.
    pub async fn start(client: Client, signer: token::Signer, front: Arc<tls::Trust>) -> Result<Self, Error> {
        let opened = Gate::open(client.clone(), front).await;
        let (gate, vouching) = opened.map_err(Error::setup("read how the API server vouches"))?;
        let ready = Ready::default();
        ready.set(true);
        Ok(Server { context: Arc::new(Context { client, gate, signer }), ready, _vouching: vouching })
    }

    /// Webhooks, discovery, tokens and health.
    pub fn router(&self) -> Router {
        review::router(&self.context)
            .merge(upload_token::router(&self.context))
            .merge(discovery::router())
            .merge(openapi::router())
            .layer(DefaultBodyLimit::max(REVIEW))
            .merge(health::router(self.ready.clone()))
    }
}
