//! hyperconverged-cluster-cli-download: virtctl of the cluster's own version, for who has none, with its checksum.
//!
//! The files are those of its image, beneath one directory: `/amd64/linux/virtctl.tar.gz` and the like, and `/SHA256SUMS`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, Uri, header};
use kit::health::{self, Ready};
use kit::{server, shutdown, tls};
use tokio::fs::File;
use tokio_util::io::ReaderStream;

use crate::Error;

/// Its command.
pub const PROGRAM: &str = "hyperconverged-cluster-cli-download";
/// Where it listens.
pub const PORT: u16 = 8443;
/// How deep files lie: architecture, system, file.
const DEEPEST: usize = 3;

/// Command line of the server.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port to serve on.
    #[arg(long, default_value_t = PORT)]
    pub port: u16,
    /// Directory of what is offered.
    #[arg(long, default_value = "/usr/share/virtctl")]
    pub directory: PathBuf,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/etc/tls")]
    pub cert_dir: PathBuf,
}

/// Runs until SIGTERM.
///
/// # Errors
/// When there is nothing to offer, or the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let router = router(&args.directory).map_err(Error::setup("read what is offered"))?;
    let material = tls::Material::new();
    // Nobody shows a certificate here, so no authority is ever asked about.
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.cert_dir.join("tls.crt") };
    let reload = tls::load(files, material.clone(), tls::Trust::new()).await;
    let _reload = reload.map_err(Error::setup("load the certificate"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("configure TLS"))?;
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    server::serve_tls(listener, config, router, stop).await;
    Ok(())
}

/// What is offered, by path. It is read once: no path of a request is ever looked up in a directory.
type Offered = BTreeMap<String, PathBuf>;

/// Everything beneath `directory`, a list of it, and health.
///
/// # Errors
/// When it cannot be read, or holds nothing.
pub fn router(directory: &Path) -> std::io::Result<Router> {
    let mut offered = Offered::new();
    collect(directory, "", 0, &mut offered)?;
    if offered.is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, format!("{} is empty", directory.display())));
    }
    let list: String = offered.keys().map(|path| format!("<li><a href=\"{path}\">{path}</a></li>\n")).collect();
    let page = format!("<!DOCTYPE html>\n<title>virtctl</title>\n<h1>virtctl</h1>\n<ul>\n{list}</ul>\n");
    let ready = Ready::default();
    ready.set(true);
    Ok(Router::new()
        .route("/", get(move || async move { Html(page) }))
        .route("/health", get(|| async { "ok" }))
        .merge(health::router(ready))
        .fallback_service(get(serve).with_state(Arc::new(offered))))
}

fn collect(directory: &Path, at: &str, depth: usize, into: &mut Offered) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = format!("{at}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() && depth + 1 < DEEPEST {
            collect(&entry.path(), &path, depth + 1, into)?;
        } else if kind.is_file() {
            into.insert(path, entry.path());
        }
    }
    Ok(())
}

async fn serve(State(offered): State<Arc<Offered>>, uri: Uri) -> Response {
    let Some(path) = offered.get(uri.path()) else {
        return (StatusCode::NOT_FOUND, "nothing is offered there: / lists what is\n").into_response();
    };
    let opened = async {
        let file = File::open(path).await?;
        let length = file.metadata().await?.len();
        Ok::<_, std::io::Error>((file, length))
    };
    match opened.await {
        Ok((file, length)) => {
            let archive = path.extension().is_some_and(|end| end == "gz");
            let kind = if archive { "application/gzip" } else { "text/plain; charset=utf-8" };
            let headers = [(header::CONTENT_TYPE, kind.to_owned()), (header::CONTENT_LENGTH, length.to_string())];
            (headers, Body::from_stream(ReaderStream::new(file))).into_response()
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a file cannot be read");
            (StatusCode::INTERNAL_SERVER_ERROR, "it cannot be read\n").into_response()
        }
    }
}
