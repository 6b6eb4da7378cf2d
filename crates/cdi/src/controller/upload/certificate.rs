//! The certificate of one upload server: by CDI's own authority, for its one name.

use std::time::Duration;

use api::cdi::constants::label;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kit::certs::{self, Authority, Leaf, Pair, Rotation};
use kit::{clock, tls};
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
/// A server waits a day for its upload; the certificate outlives it, unless its authority does not.
const LIFETIME: Duration = Duration::from_secs(48 * 60 * 60);
/// Until a server's secret is looked for again.
const LOOK: Duration = Duration::from_secs(60);

/// What the secret of a server is made of.
struct Authorities {
    signer: Authority,
    clients: String,
}

/// Makes the secret that the server of `claim` mounts.
pub async fn provide(context: &Context, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let authorities = authorities(context).await?;
    let secret = json!({
        "metadata": {
            "name": pod::name(claim), "namespace": claim.metadata.namespace, "labels": labels(label::UPLOAD_SERVER),
            "ownerReferences": worker::owned_by(claim),
        },
        "type": "Opaque",
        "stringData": authorities.data(claim, clock::now())?,
    });
    let secret: Secret = serde_json::from_value(secret).map_err(Error::setup("render a certificate"))?;
    write::create(context, &secret).await?;
    Ok(())
}

/// Renews what the server of `claim` shows and trusts, which it reads again while it serves; says when to look again. It waits for
/// longer than authorities may live.
pub async fn refresh(context: &Context, claim: &PersistentVolumeClaim) -> Result<Duration, Error> {
    let (namespace, name) = (claim.metadata.namespace.clone().unwrap_or_default(), pod::name(claim));
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let held = secrets.get_opt(&name).await.map_err(Error::api("read", "Secret", &name))?;
    let Some(held) = held else { return Ok(LOOK) };
    let (authorities, now) = (authorities(context).await?, clock::now());
    let trusted = text(&held, "clients.crt");
    if !is_worn(&pair(&held).certificate, now) && trusted == authorities.clients {
        return Ok(authorities.look());
    }
    let renewed = json!({ "metadata": { "uid": held.metadata.uid }, "stringData": authorities.data(claim, now)? });
    write::patch(context, &held, &renewed).await?;
    Ok(authorities.look())
}

/// Whether a third of its time is over: until the server has read another, time passes.
fn is_worn(certificate: &str, now: Timestamp) -> bool {
    let life = certs::life(certificate).map(|(made, until)| until.duration_since(made));
    let life = life.and_then(|life| Duration::try_from(life).ok()).unwrap_or_default();
    certs::rotation(certificate, now, life * 2 / 3) == Rotation::Renew
}

async fn authorities(context: &Context) -> Result<Authorities, Error> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace);
    let signer = secrets.get(SIGNER).await.map_err(Error::api("read", "Secret", SIGNER))?;
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let clients = maps.get(CLIENTS).await.map_err(Error::api("read", "ConfigMap", CLIENTS))?;
    let clients = clients.data.and_then(|mut data| data.remove("ca-bundle.crt")).unwrap_or_default();
    let signer = Authority::from_pair(pair(&signer)).map_err(Error::Certificates)?;
    Ok(Authorities { signer, clients })
}

impl Authorities {
    fn data(&self, claim: &PersistentVolumeClaim, now: Timestamp) -> Result<Value, Error> {
        let leaf = Leaf {
            name: pod::dns(claim).first().cloned().unwrap_or_default(),
            role: label::UPLOAD_SERVER.to_owned(),
            node: None,
            dns: pod::dns(claim),
        };
        let issued = self.signer.issue(&leaf, now, within(&self.signer, now, LIFETIME)).map_err(Error::Certificates)?;
        Ok(json!({ "tls.crt": issued.certificate, "tls.key": issued.key, "clients.crt": self.clients }))
    }

    /// The shorter authorities live, the sooner another one is there.
    fn look(&self) -> Duration {
        tls::look_again(&self.signer.pair().certificate).max(Duration::from_secs(5))
    }
}

/// How long something lives that `signer` signs now: it does not outlive its authority, beyond whose end nobody trusts it.
pub fn within(signer: &Authority, now: Timestamp, lifetime: Duration) -> Duration {
    let end = certs::lifetime(&signer.pair().certificate).map_or(now, |(_, until)| until);
    lifetime.min(Duration::try_from(end.duration_since(now)).unwrap_or_default())
}

/// The certificate and the key of a TLS secret.
pub fn pair(secret: &Secret) -> Pair {
    Pair { certificate: text(secret, "tls.crt"), key: text(secret, "tls.key") }
}

fn text(secret: &Secret, key: &str) -> String {
    let found = secret.data.as_ref().and_then(|data| data.get(key));
    found.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}
