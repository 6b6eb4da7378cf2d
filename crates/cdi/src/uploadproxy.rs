//! `cdi-uploadproxy`: lets clients from outside of the cluster upload, if they have a token for it.
//!
//! ```text
//!  client ─POST, token─▶ routes ─▶ token ─▶ claim: ready? ─▶ mTLS ─▶ upload server of that claim
//! ```
//!
//! Nothing is kept: bodies flow through, in both directions.

mod place;
mod routes;
mod wait;

use std::path::PathBuf;

use kit::shutdown::CancellationToken;
use kit::tls::{self, Files, Material, Trust};
use kube::Client;
use tokio::net::TcpListener;

pub use self::routes::{Keys, router};
use crate::{Error, security};

/// Where the proxy's certificates are.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The directory of the certificate that clients see.
    #[arg(long, env = "SERVER_CERT_DIR", default_value = "/var/run/certs/cdi-uploadproxy-server-cert")]
    pub server_cert_dir: PathBuf,
    /// The directory of the certificate that upload servers see.
    #[arg(long, env = "CLIENT_CERT_DIR", default_value = "/var/run/certs/cdi-uploadserver-client-cert")]
    pub client_cert_dir: PathBuf,
    /// The authorities of upload servers.
    #[arg(
        long,
        env = "UPLOAD_SERVER_CA",
        default_value = "/var/run/ca-bundle/cdi-uploadserver-signer-bundle/ca-bundle.crt"
    )]
    pub upload_server_ca: PathBuf,
    /// The public key that tokens are verified with, PEM; in place of the file.
    #[arg(long, env = "APISERVER_PUBLIC_KEY", default_value = "")]
    pub public_key: String,
    /// The file with the public key.
    #[arg(long, env = "SIGNING_KEY_FILE", default_value = "/var/run/cdi/token/keys/id_rsa.pub")]
    pub signing_key_file: PathBuf,
    /// Port of upload servers.
    #[arg(long, default_value_t = 443)]
    pub upload_server_port: u16,
    /// Port to listen on.
    #[arg(long, env = "SERVICE_PORT", default_value_t = 8443)]
    pub port: u16,
}

/// Serves until it is told to stop.
///
/// # Errors
/// When a certificate or key cannot be read, or the port is taken.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = kit::shutdown::on_signals().map_err(Error::setup("listen for signals"))?;
    let client = kit::client::connect("cdi-uploadproxy").await.map_err(Error::setup("reach the API server"))?;
    serve(args, client, stop).await
}

/// As [`run`], with a client and an end of the caller's.
///
/// # Errors
/// As [`run`].
pub async fn serve(args: Args, client: Client, stop: CancellationToken) -> Result<(), Error> {
    let material = Material::new();
    // Clients show tokens, no certificates: the bundle of this pair is not used.
    let files = Files { pair: args.server_cert_dir.clone(), bundle: args.upload_server_ca.clone() };
    let _certificates =
        tls::load(files, material.clone(), Trust::new()).await.map_err(Error::setup("load the certificates"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("set up TLS"))?;
    let _following = security::follow(&client, config.clone());
    let listener = match TcpListener::bind(("::", args.port)).await {
        Ok(listener) => listener,
        // A node without IPv6 has no such address.
        Err(_) => TcpListener::bind(("0.0.0.0", args.port)).await.map_err(Error::setup("listen for uploads"))?,
    };
    let keys = Keys {
        client: args.client_cert_dir,
        authorities: args.upload_server_ca,
        public_key: Some(args.public_key).filter(|key| !key.is_empty()),
        public_key_file: args.signing_key_file,
        port: args.upload_server_port,
        dial: None,
    };
    kit::server::serve_tls(listener, config, router(client, keys), stop).await;
    Ok(())
}
