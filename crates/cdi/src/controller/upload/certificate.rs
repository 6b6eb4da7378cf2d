//! The certificate of one upload server: by CDI's own authority, for its one name.

use std::time::Duration;

use api::cdi::constants::label;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kit::certs::{self, Leaf, Rotation};
use kit::clock;
use kube::Api;
use serde_json::{Value, json};

use crate::Error;
use crate::controller::authorities::{Authorities, pair, text};
use crate::controller::context::Context;
use crate::controller::labels::labels;
use crate::controller::upload::pod;
use crate::controller::{worker, write};

/// A server waits a day for its upload; the certificate outlives it, unless its authority does not.
const LIFETIME: Duration = Duration::from_secs(48 * 60 * 60);
/// Until a server's secret is looked for again.
const LOOK: Duration = Duration::from_secs(60);

/// Makes the secret that the server of `claim` mounts.
pub async fn provide(context: &Context, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let authorities = context.authorities.read(&context.client, &context.namespace).await?;
    let secret = json!({
        "metadata": {
            "name": pod::name(claim), "namespace": claim.metadata.namespace, "labels": labels(label::UPLOAD_SERVER),
            "ownerReferences": worker::owned_by(claim),
        },
        "type": "Opaque",
        "stringData": data(&authorities, claim, clock::now())?,
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
    // Another's is no business of ours, whatever it is called.
    let is_ours = |secret: &Secret| {
        let owners = secret.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| Some(&owner.uid) == claim.metadata.uid.as_ref())
    };
    let Some(held) = held.filter(is_ours) else { return Ok(LOOK) };
    let (authorities, now) = (context.authorities.read(&context.client, &context.namespace).await?, clock::now());
    let trusted = text(&held, "clients.crt");
    if !is_worn(&pair(&held).certificate, now) && trusted == authorities.clients {
        return Ok(authorities.look());
    }
    let renewed = json!({ "metadata": { "uid": held.metadata.uid }, "stringData": data(&authorities, claim, now)? });
    write::patch(context, &held, &renewed).await?;
    Ok(authorities.look())
}

/// Whether a third of its time is over: until the server has read another, time passes.
fn is_worn(certificate: &str, now: Timestamp) -> bool {
    let life = certs::life(certificate).map(|(made, until)| until.duration_since(made));
    let life = life.and_then(|life| Duration::try_from(life).ok()).unwrap_or_default();
    certs::rotation(certificate, now, life * 2 / 3) == Rotation::Renew
}

/// What the secret of the server of `claim` holds.
fn data(authorities: &Authorities, claim: &PersistentVolumeClaim, now: Timestamp) -> Result<Value, Error> {
    let leaf = Leaf {
        name: pod::dns(claim).first().cloned().unwrap_or_default(),
        role: label::UPLOAD_SERVER.to_owned(),
        node: None,
        dns: pod::dns(claim),
    };
    let issued = authorities.signer.issue(&leaf, now, LIFETIME).map_err(Error::Certificates)?;
    Ok(json!({ "tls.crt": issued.certificate, "tls.key": issued.key, "clients.crt": authorities.clients }))
}
