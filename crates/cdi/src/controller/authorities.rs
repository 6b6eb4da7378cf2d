//! The authorities of upload servers and of those who upload, which are the same for all servers.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kit::certs::{Authority, Pair};
use kit::tls;
use kube::{Api, Client};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::Error;

/// The authority that signs servers.
const SIGNER: &str = "cdi-uploadserver-signer";
/// The certificates of the authority that signs clients.
const CLIENTS: &str = "cdi-uploadserver-client-signer-bundle";

/// What the secret of a server is made of.
pub struct Authorities {
    /// Signs servers.
    pub signer: Authority,
    /// Certificates of those that sign clients.
    pub clients: String,
}

impl Authorities {
    /// Until others may be there: the shorter they live, the sooner.
    pub fn look(&self) -> Duration {
        tls::look_again(&self.signer.pair().certificate).max(Duration::from_secs(5))
    }
}

/// What was read last: a hundred servers ask the API server no more than one.
#[derive(Default)]
pub struct Known(Mutex<Option<(Instant, Arc<Authorities>)>>);

impl Known {
    /// The authorities in `namespace`, as they are or were a moment ago.
    ///
    /// # Errors
    /// When they are not there, or cannot be read.
    pub async fn read(&self, client: &Client, namespace: &str) -> Result<Arc<Authorities>, Error> {
        let mut known = self.0.lock().await;
        if let Some((_, known)) = known.as_ref().filter(|(at, known)| at.elapsed() < known.look()) {
            return Ok(known.clone());
        }
        let fresh = Arc::new(look_up(client, namespace).await?);
        *known = Some((Instant::now(), fresh.clone()));
        Ok(fresh)
    }
}

async fn look_up(client: &Client, namespace: &str) -> Result<Authorities, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let signer = secrets.get(SIGNER).await.map_err(Error::api("read", "Secret", SIGNER))?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let clients = maps.get(CLIENTS).await.map_err(Error::api("read", "ConfigMap", CLIENTS))?;
    let clients = clients.data.and_then(|mut data| data.remove("ca-bundle.crt")).unwrap_or_default();
    let signer = Authority::from_pair(pair(&signer)).map_err(Error::Certificates)?;
    Ok(Authorities { signer, clients })
}

/// The certificate and the key of a TLS secret.
pub fn pair(secret: &Secret) -> Pair {
    Pair { certificate: text(secret, "tls.crt"), key: text(secret, "tls.key") }
}

/// What a secret holds under a key; empty where it does not.
pub fn text(secret: &Secret, key: &str) -> String {
    let found = secret.data.as_ref().and_then(|data| data.get(key));
    found.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}
