//! Takes everything away again: who is asked first, then crons while CDI still finishes them, then the rest. Images stay.

use std::time::Duration;

use kit::queue::Next;
use kit::{apply, clock, operator};
use kube::ResourceExt;

use super::context::Context;
use super::manifests::{Input, admission, tokens};
use super::{MANAGER, certificates, manifests, status, templates};
use crate::Error;
use crate::object::SSP;
use crate::words::IMAGES;

/// How long CDI is given to finish crons.
const PATIENCE: i64 = 300;

/// One step of removal.
///
/// # Errors
/// When the API server refuses.
pub(super) async fn sync(context: &Context, ssp: &SSP) -> Result<Next, Error> {
    if !context.requests.is_held(ssp) {
        return Ok(Next::Wait);
    }
    let now = clock::seconds(clock::now());
    context.write(ssp, status::deleting(ssp, false, now)).await?;
    // What is deleted is not put back, whoever deletes it.
    context.applied.forget();
    context.templates.forget();
    let namespace = &context.release.namespace;
    // Nobody may be asked about what is going away, or a webhook that is gone already refuses its end.
    let input = Input { namespace: namespace.clone(), ..Input::default() };
    let mut hooks = admission::addresses(&input);
    hooks.push(apply::address(&tokens::api_service(&input)));
    operator::delete(&context.client, &hooks).await?;
    let crons = context.crons.list();
    let since = ssp.metadata.deletion_timestamp.as_ref().map_or(0, |time| now.as_second() - time.0.as_second());
    if !crons.is_empty() && since < PATIENCE {
        let left = crons.iter().filter(|cron| cron.metadata.deletion_timestamp.is_none());
        let addresses: Vec<String> = left
            .map(|cron| address("dataimportcrons", &cron.namespace().unwrap_or_default(), &cron.name_any()))
            .collect();
        operator::delete(&context.client, &addresses).await?;
        return Ok(Next::After(Duration::from_millis(500)));
    }
    let ours = |labels: &std::collections::BTreeMap<String, String>| {
        labels.get("app.kubernetes.io/managed-by").is_some_and(|by| by == MANAGER)
    };
    let sources = context.sources.list().into_iter().filter(|source| ours(source.labels()));
    let mut all: Vec<String> = sources.map(|source| address("datasources", IMAGES, &source.name_any())).collect();
    all.extend(templates::addresses(&context.client).await?);
    all.extend(manifests::every(namespace).iter().map(apply::address));
    let ring = certificates::keyring(namespace, true, certificates::USUAL);
    let mut own = vec![("configmaps", ring.bundle), ("secrets", ring.authority)];
    own.extend(ring.leaves.into_iter().map(|(name, _)| ("secrets", name)));
    all.extend(own.into_iter().map(|(kind, name)| format!("/api/v1/namespaces/{namespace}/{kind}/{name}")));
    operator::delete(&context.client, &all).await?;
    context.write(ssp, status::deleting(ssp, true, now)).await?;
    context.requests.release(ssp).await.map_err(Error::api("patch", "SSP", &ssp.name_any()))?;
    Ok(Next::Wait)
}

fn address(kind: &str, namespace: &str, name: &str) -> String {
    format!("/apis/cdi.kubevirt.io/v1beta1/namespaces/{namespace}/{kind}/{name}")
}
