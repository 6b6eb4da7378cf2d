//! Has the claims of a machine be there. The controller does it, and the webhook before a pod names them: whoever comes first makes
//! them, and a name is made once.

use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::claim::{self, IPAMClaim, Owner, Unfit, Wanted};
use super::names::{FINALIZER, MACHINE};

/// How often it is looked again when others make and delete at the same moment.
const TRIES: u32 = 8;

/// Why a claim is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One is, and is not to be used.
    #[error("{}", .0.message())]
    Unfit(Unfit),
    /// The API server refuses it.
    #[error("cannot {verb} IPAMClaim {name}")]
    Api {
        /// What was asked.
        verb: &'static str,
        /// Namespace and name.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Looks for the claim that is `wanted` for `machine`, and makes it where it is not. None for a `dry` run of what is not there.
///
/// # Errors
/// When there is another one under its name, or the API server refuses.
pub async fn ensure(
    client: &Client,
    (namespace, machine): (&str, &str),
    owner: &Owner,
    wanted: &Wanted,
    dry: bool,
) -> Result<Option<IPAMClaim>, Error> {
    let api: Api<IPAMClaim> = Api::namespaced(client.clone(), namespace);
    let failed = |verb: &'static str| {
        let name = format!("{namespace}/{}", wanted.name);
        move |source| Error::Api { verb, name, source: Box::new(source) }
    };
    let claim = claim::render(namespace, machine, owner, wanted);
    for _ in 0..TRIES {
        if let Some(held) = api.get_opt(&wanted.name).await.map_err(failed("read"))? {
            claim::judge(&held, owner, wanted).map_err(Error::Unfit)?;
            return Ok(Some(held));
        }
        if dry {
            return Ok(None);
        }
        match api.create(&PostParams::default(), &claim).await {
            Ok(made) => return Ok(Some(made)),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed("create")(error)),
        }
    }
    let place = format!("IPAMClaim {namespace}/{}", wanted.name);
    Err(Error::Unfit(Unfit::Leaving(format!("{place} comes and goes: it is waited for"))))
}

/// Puts back what holds a claim, where somebody took it off.
///
/// # Errors
/// When the API server refuses.
pub async fn hold(client: &Client, held: &IPAMClaim, machine: &str) -> Result<(), Error> {
    let marked = held.labels().get(MACHINE).is_some_and(|name| name == machine) || machine.len() > 63;
    let is_held = held.finalizers().iter().any(|one| one == FINALIZER);
    if marked && is_held {
        return Ok(());
    }
    let (namespace, name) = (held.namespace().unwrap_or_default(), held.name_any());
    let mut finalizers = held.finalizers().to_vec();
    if !is_held {
        finalizers.push(FINALIZER.to_owned());
    }
    let version = &held.metadata.resource_version;
    let mut change = json!({ "metadata": { "finalizers": finalizers, "resourceVersion": version } });
    if !marked {
        change["metadata"]["labels"] = json!({ MACHINE: machine });
    }
    let api: Api<IPAMClaim> = Api::namespaced(client.clone(), &namespace);
    let written = api.patch(&name, &PatchParams::default(), &Patch::Merge(change)).await;
    let failed = |source| Error::Api { verb: "hold", name: format!("{namespace}/{name}"), source: Box::new(source) };
    written.map(drop).map_err(failed)
}
