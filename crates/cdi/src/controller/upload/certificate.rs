//! The certificate of one upload server: by CDI's own authority, for its one name.

use std::time::Duration;

use api::cdi::constants::label;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kit::certs::{Authority, Leaf, Pair};
use kit::clock;
use kube::Api;
use serde_json::{Value, json};

use crate::Error;
use crate::controller::context::Context;
use crate::controller::labels::labels;
use crate::controller::upload::pod;
use crate::controller::{worker, write};

/// The authority that signs servers.
const SIGNER: &str = "cdi-uploadserver-signer";
/// The certificates of the authority that signs clients.
const CLIENTS: &str = "cdi-uploadserver-client-signer-bundle";
/// A server waits a day for its upload; the certificate outlives it.
const LIFETIME: Duration = Duration::from_secs(48 * 60 * 60);

/// Makes the secret that the server of `claim` mounts.
pub async fn provide(context: &Context, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace);
    let signer = secrets.get(SIGNER).await.map_err(Error::api("read", "Secret", SIGNER))?;
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let clients = maps.get(CLIENTS).await.map_err(Error::api("read", "ConfigMap", CLIENTS))?;
    let clients = clients.data.and_then(|mut data| data.remove("ca-bundle.crt")).unwrap_or_default();
    let authority = Authority::from_pair(pair(&signer)).map_err(Error::Certificates)?;
    let leaf = Leaf {
        name: pod::dns(claim).first().cloned().unwrap_or_default(),
        role: label::UPLOAD_SERVER.to_owned(),
        node: None,
        dns: pod::dns(claim),
    };
    let issued = authority.issue(&leaf, clock::now(), LIFETIME).map_err(Error::Certificates)?;
    let secret: Value = json!({
        "metadata": {
            "name": pod::name(claim), "namespace": claim.metadata.namespace, "labels": labels(label::UPLOAD_SERVER),
            "ownerReferences": worker::owned_by(claim),
        },
        "type": "Opaque",
        "stringData": { "tls.crt": issued.certificate, "tls.key": issued.key, "clients.crt": clients },
    });
    let secret: Secret = serde_json::from_value(secret).map_err(Error::setup("render a certificate"))?;
    write::create(context, &secret).await?;
    Ok(())
}

/// The certificate and the key of a TLS secret.
pub fn pair(secret: &Secret) -> Pair {
    let text = |key: &str| {
        let found = secret.data.as_ref().and_then(|data| data.get(key));
        found.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
    };
    Pair { certificate: text("tls.crt"), key: text("tls.key") }
}
