//! An object store that speaks S3 and checks each request's signature, over a directory.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::{S3ServiceBuilder, SharedS3Service};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::HOST;

/// The access key that it knows.
pub const KEY: &str = "e2e-access-key";
/// And its secret.
pub const SECRET: &str = "e2e-secret-key";
const BUCKET: &str = "images";

/// An object store.
pub struct Store {
    runtime: Option<Runtime>,
    dir: TempDir,
    address: SocketAddr,
}

impl Store {
    /// Starts it, with one bucket that is empty.
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::create_dir(dir.path().join(BUCKET))?;
        let files = FileSystem::new(dir.path()).map_err(|error| anyhow::anyhow!("cannot serve objects: {error:?}"))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build().into_shared();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind((HOST, 0))).context("cannot listen")?;
        let address = listener.local_addr()?;
        runtime.spawn(serve(listener, service));
        Ok(Self { runtime: Some(runtime), dir, address })
    }

    /// Gives it an object.
    pub fn put(&self, key: &str, content: &[u8]) -> Result<()> {
        std::fs::write(self.dir.path().join(BUCKET).join(key), content).with_context(|| format!("cannot write {key}"))
    }

    /// An object's address.
    pub fn url(&self, key: &str) -> String {
        format!("http://{}/{BUCKET}/{key}", self.address)
    }
}

/// Serves whoever connects; ends with the runtime.
async fn serve(listener: TcpListener, service: SharedS3Service) {
    while let Ok((stream, _)) = listener.accept().await {
        let service = service.clone();
        tokio::spawn(async move {
            // A client that goes away in the middle is none of its concern.
            let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
