//! Whether somebody may have the data of another namespace: a token says so, given out when the user was asked for.
//!
//! cdi-apiserver puts a short-lived token on a DataVolume whose maker may clone the source. The controller exchanges it for a
//! long-lived one on the claim, so that a clone that has to wait is not refused for having waited.

use std::{collections::BTreeMap, time::Duration};

use api::cdi::words::annotation;
use k8s_openapi::{
    ByteString,
    api::core::v1::{PersistentVolumeClaim, Secret},
};
use kit::{Chain, clock, store::Key};
use kube::{Api, ResourceExt};

use crate::{
    controller::{
        clone::plan::Source,
        context::{Context, noted},
    },
    token::{self, Payload, Resource, Signer, Verifier},
};

/// How long a claim's own token is good for.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Whether `target` may have the data of `source`; if not, why.
pub async fn check(context: &Context, target: &PersistentVolumeClaim, source: &Source) -> Result<(), String> {
    let wanted = payload(target, source);
    let keys = Keys::read(context).await?;
    let now = clock::now();
    let long =
        noted(target, annotation::EXTENDED_CLONE_TOKEN).map(|token| (token::ISSUER_CONTROLLER, token.to_owned()));
    let volume = context.volumes.get(&Key::of(target));
    let short = noted(target, annotation::CLONE_TOKEN).map(ToOwned::to_owned);
    let short =
        short.or_else(|| volume.and_then(|volume| noted(&volume, annotation::CLONE_TOKEN).map(ToOwned::to_owned)));
    let (issuer, token) = long.or_else(|| short.map(|token| (token::ISSUER_APISERVER, token))).ok_or_else(|| {
        format!(
            "{}/{} is of another namespace and no token allows to clone it: make the DataVolume as a user who may create datavolumes/source there",
            source.namespace(),
            source.name()
        )
    })?;
    let found = keys.verifier.verify(issuer, &token, now).map_err(|error| Chain(&error).to_string())?;
    if found != wanted {
        return Err(format!(
            "the clone token allows something else: {} of {}/{}",
            found.operation, found.namespace, found.name
        ));
    }
    Ok(())
}

/// The long-lived token for what the short-lived one on a DataVolume allows; none when it is not good.
pub async fn exchange(context: &Context, short: &str) -> Option<String> {
    let keys = Keys::read(context).await.ok()?;
    let now = clock::now();
    let payload = keys.verifier.verify(token::ISSUER_APISERVER, short, now).ok()?;
    keys.signer.sign(token::ISSUER_CONTROLLER, payload, now, LIFETIME).ok()
}

/// What a token must say.
fn payload(target: &PersistentVolumeClaim, source: &Source) -> Payload {
    let resource = match source {
        Source::Claim(_) => Resource::claims(),
        Source::Snapshot(_) => Resource::new("snapshot.storage.k8s.io", "v1", "volumesnapshots"),
    };
    let params = [
        ("targetName".to_owned(), target.name_any()),
        ("targetNamespace".to_owned(), target.namespace().unwrap_or_default()),
    ];
    Payload {
        operation: token::operation::CLONE.to_owned(),
        name: source.name(),
        namespace: source.namespace(),
        resource,
        params: BTreeMap::from(params),
    }
}

struct Keys {
    signer: Signer,
    verifier: Verifier,
}

impl Keys {
    async fn read(context: &Context) -> Result<Self, String> {
        let api: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace);
        let secret = api
            .get(token::SECRET)
            .await
            .map_err(|error| format!("the signing key cannot be read: {}", Chain(&error)))?;
        let text = |key: &str| {
            let found = secret.data.as_ref().and_then(|data| data.get(key));
            found.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
        };
        let signer = Signer::new(&text(token::PRIVATE)).map_err(|error| Chain(&error).to_string())?;
        let verifier = Verifier::new(&text(token::PUBLIC)).map_err(|error| Chain(&error).to_string())?;
        Ok(Self { signer, verifier })
    }
}
