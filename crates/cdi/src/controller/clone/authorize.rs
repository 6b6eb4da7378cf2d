//! Whether somebody may have the data of another namespace: a token says so, given out when the user was asked for.
//!
//! cdi-apiserver puts a short-lived token on a DataVolume whose maker may clone the source. The controller exchanges it for a
//! long-lived one on the claim, so that a clone that has to wait is not refused for having waited.

use std::time::Duration;

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kit::store::Key;
use kit::{Chain, clock};
use kube::{Api, ResourceExt};
use origin::Source;

use crate::controller::context::{Context, annotation_of};
use crate::token::{self, Payload, Resource, Signer, Verifier};

/// How long a claim's own token is good for.
const LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Whether `target` may have the data of `source`, of another namespace; if not, why. Nothing of the source is looked at before, so that
/// nobody learns whether it is there.
pub async fn check(context: &Context, target: &PersistentVolumeClaim, source: &Source) -> Result<(), String> {
    let volume = context.volumes.get(&Key::of(target));
    let held = Tokens::of(target).or(volume.as_ref().map(Tokens::of).unwrap_or_default());
    permit(context, held, &Key::of(target), source).await
}

/// The same of a DataVolume, for which nothing is made in the namespace of the source before.
pub async fn check_volume(context: &Context, volume: &DataVolume, source: &Source) -> Result<(), String> {
    permit(context, Tokens::of(volume), &Key::of(volume), source).await
}

/// What somebody holds.
#[derive(Default, Clone, Copy)]
struct Tokens<'a> {
    long: Option<&'a str>,
    short: Option<&'a str>,
}

impl<'a> Tokens<'a> {
    fn of<K: ResourceExt>(object: &'a K) -> Self {
        let (long, short) = (annotation::EXTENDED_CLONE_TOKEN, annotation::CLONE_TOKEN);
        Self { long: annotation_of(object, long), short: annotation_of(object, short) }
    }

    fn or(self, other: Self) -> Self {
        Self { long: self.long, short: self.short.or(other.short) }
    }
}

async fn permit(context: &Context, held: Tokens<'_>, target: &Key, source: &Source) -> Result<(), String> {
    let long = held.long.map(|token| (token::ISSUER_CONTROLLER, token));
    let held = long.or_else(|| held.short.map(|token| (token::ISSUER_APISERVER, token)));
    let (issuer, token) = held.ok_or_else(|| {
        format!(
            "{}/{} is of another namespace and no token allows to clone it: make the DataVolume as a user who may create datavolumes/source there",
            source.namespace, source.name
        )
    })?;
    let keys = Keys::read(context).await?;
    let found = keys.verifier.verify(issuer, token, clock::now()).map_err(|error| Chain(&error).to_string())?;
    if found != payload(target, source) {
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
fn payload(target: &Key, source: &Source) -> Payload {
    let snapshots = || Resource::new("snapshot.storage.k8s.io", "v1", "volumesnapshots");
    let params = [("targetName", &target.name), ("targetNamespace", &target.namespace)];
    Payload {
        operation: token::operation::CLONE.to_owned(),
        name: source.name.clone(),
        namespace: source.namespace.clone(),
        resource: if source.snapshot { snapshots() } else { Resource::claims() },
        params: params.map(|(key, value)| (key.to_owned(), value.clone())).into(),
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
