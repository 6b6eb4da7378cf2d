//! What a registry's image is now, asked by a pod in the cron's namespace.
//!
//! ```text
//!  cron is due ─▶ its turn? ─▶ pod "poll-CRON-…" (cdi-poller) ─▶ termination message: a digest, or one of few reasons ─▶ the pod goes
//! ```
//!
//! A registry is its tenant's choice: so it is asked from the tenant's network, with the tenant's credentials and within the tenant's quota,
//! as an import asks it, and no component of CDI's speaks to it. A poll has [`LIMIT`]; of each namespace few go on at once, and one that
//! failed is repeated later and later. A pod is believed when this controller has made it, and only what is an answer.

mod outcome;
pub mod pod;

use std::time::Duration;

use api::cdi::constants::label;
use api::cdi::v1beta1::{DataImportCron, DataVolumeSourceRegistry};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kit::clock;
use kit::queue::Next;
use kit::store::Key;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use sha2::{Digest as _, Sha256};

use super::answer::{Asked, Found, unknown};
use crate::Error;
use crate::controller::context::{self, Context, owner_index, reference};
use crate::controller::insecure::is_insecure;
use crate::controller::polls::{Asker, Turn};
use crate::controller::worker::Environment;
use crate::controller::{import, names, write};
use outcome::Outcome;

/// How long a poll may take: a node may have to fetch the poller's image first, which asks for half a minute at the most.
const LIMIT: Duration = Duration::from_secs(300);
/// Until a cron is looked at again whose namespace has others ask.
const IN_TURN: Duration = Duration::from_secs(1);

/// Asks `registry` for `cron`, and once there is an answer, gives it.
pub(super) async fn ask(
    context: &Context,
    cron: &DataImportCron,
    registry: &DataVolumeSourceRegistry,
) -> Result<Asked, Error> {
    let Some(url) = registry.url.as_deref().filter(|url| !url.is_empty()) else {
        return Ok(Asked::Unknown(unknown("spec.template.spec.source.registry has neither url nor imageStream")));
    };
    let (key, uid, now) = (Key::of(cron), cron.uid().unwrap_or_default(), clock::now());
    if let Some(asker) = context.polls.asker(&key, &uid) {
        return follow(context, &key, &asker, url, now).await;
    }
    // Before anything is read for it: of one namespace there may be any number that wait.
    if context.polls.is_queued(&key) {
        return Ok(Asked::Later(Next::After(IN_TURN)));
    }
    let settings = context.settings();
    let placement = context.placement();
    let environment = Environment {
        image: &context.image,
        pull_policy: &context.pull_policy,
        settings: &settings,
        placement: &placement,
    };
    let proxy_certs = import::proxy_certificates(context, cron, "cdi-cron-proxy-ca", &settings).await?;
    let extras = pod::Extras { proxy_certs: proxy_certs.as_deref(), insecure: is_insecure(context, url).await? };
    let pod = pod::render(cron, registry, url, &extras, &environment).map_err(Error::setup("render a poller"))?;
    let question = serde_json::to_vec(&pod).map_err(Error::setup("render a poller"))?;
    match context.polls.turn(&key, &uid, &names::hex(&Sha256::digest(question)), now) {
        Turn::Rests(why) => Ok(Asked::Unknown(unknown(why))),
        Turn::Queued => Ok(Asked::Later(Next::After(IN_TURN))),
        Turn::Begins => begin(context, cron, &key, &pod, now).await,
    }
}

async fn begin(context: &Context, cron: &DataImportCron, key: &Key, pod: &Pod, now: Timestamp) -> Result<Asked, Error> {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    let mut made = match api.create(&PostParams::default(), pod).await {
        Ok(made) => made,
        Err(error) => {
            let Some(why) = refusal(&error) else {
                context.polls.forget(key);
                return Err(Error::api("create", "Pod", &format!("{}/poll-{}", key.namespace, key.name))(error));
            };
            context.recorder.warning(&reference(cron), write::quota_or(&error, "ErrStartingPod"), why.as_str());
            context.polls.refused(key, &why, now);
            return Ok(Asked::Unknown(unknown(why)));
        }
    };
    let asker = Asker { pod: Key::of(&made), uid: made.uid().unwrap_or_default(), since: now };
    context.polls.asked_by(key, asker);
    // Before the watch tells of it, it would be taken for deleted.
    context::trim_pod(&mut made);
    write::remember(&context.pods, made, context::pod_indexes);
    Ok(Asked::Later(Next::After(LIMIT)))
}

/// What is told of a pod that the namespace does not take: its quota, its Pod Security, somebody's webhook. None of other failures.
fn refusal(error: &kube::Error) -> Option<String> {
    let kube::Error::Api(status) = error else { return None };
    let why = without_name(&status.message);
    matches!(status.code, 400 | 403 | 422).then(|| format!("the pod that asks the registry is refused: {why}"))
}

/// The reason of a refusal without the pod's name, which is another each time: a condition that says it would change each time, too.
fn without_name(message: &str) -> &str {
    let parts = [" is forbidden: ", " is invalid: "];
    parts.iter().find_map(|part| message.split_once(part)).map_or(message, |(_, why)| why)
}

async fn follow(context: &Context, key: &Key, asker: &Asker, url: &str, now: Timestamp) -> Result<Asked, Error> {
    let pod = context.pods.get(&asker.pod).filter(|pod| pod.uid().as_ref() == Some(&asker.uid));
    let spent = Duration::try_from(now.duration_since(asker.since)).unwrap_or_default();
    let ended = match outcome::of(pod.as_ref(), spent) {
        Outcome::Asking => return Ok(Asked::Later(Next::After(LIMIT.saturating_sub(spent).max(IN_TURN)))),
        Outcome::Answered(answer) => answer.map_err(|reason| reason.to_string()),
        Outcome::Lost(why) => Err(why),
    };
    if let Some(pod) = &pod {
        write::delete(context, pod).await?;
    }
    match ended {
        Ok(digest) => {
            context.polls.forget(key);
            Ok(Asked::Found(Found { digest: digest.to_string(), reference: None }))
        }
        Err(why) => {
            let why = format!("the registry of {url} does not say what it is: {why}");
            context.polls.failed(key, &why, now);
            Ok(Asked::Unknown(unknown(why)))
        }
    }
}

/// The pods of `cron` that nobody waits for go: those of a controller before this one, and all of them when nothing is `wanted`.
pub(super) async fn tidy(context: &Context, cron: &DataImportCron, wanted: bool) -> Result<(), Error> {
    let (key, uid) = (Key::of(cron), cron.uid().unwrap_or_default());
    if !wanted {
        context.polls.forget(&key);
    }
    let asker = context.polls.asker(&key, &uid);
    for pod in context.pods.by_index(&owner_index(&uid)) {
        let asks = asker.as_ref().is_some_and(|asker| pod.uid().as_ref() == Some(&asker.uid));
        let polls = pod.labels().contains_key(label::POLLER) && pod.metadata.deletion_timestamp.is_none();
        if polls && !asks {
            write::delete(context, &pod).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_same_words_each_time() {
        let check = |message: &str, expect: &str| assert_eq!(without_name(message), expect);
        check(r#"pods "poll-a-x7" is forbidden: exceeded quota: q"#, "exceeded quota: q");
        check(r#"Pod "poll-a-x7" is invalid: spec: no"#, "spec: no");
        check("admission webhook denied the request", "admission webhook denied the request");
    }
}
