//! Takes everything away again: templates and networks first, then the machines, then their disks.

use std::time::Duration;

use api::hco::HyperConverged;
use kit::queue::Next;
use kit::{Chain, clock};
use kube::{Resource, ResourceExt};

use super::context::Context;
use crate::Error;
use crate::child::Child;
use crate::status;

/// The children that go together, in order.
const ORDER: [&[Child]; 3] = [&[Child::Ssp, Child::NetworkAddons], &[Child::KubeVirt], &[Child::Cdi]];
/// How often what is going is looked at; a watch tells of it as well.
const LOOK: Duration = Duration::from_secs(30);

/// One step of removal.
///
/// # Errors
/// When the API server refuses.
pub(super) async fn sync(context: &Context, hco: &HyperConverged) -> Result<Next, Error> {
    if !context.requests.is_held(hco) {
        return Ok(Next::Wait);
    }
    let (namespace, now) = (&context.input.namespace, clock::seconds(clock::now()));
    for children in ORDER {
        let mut left = false;
        for child in children {
            let seen = context.children.seen(*child, namespace);
            let Some(held) = seen.held.filter(|_| seen.served) else { continue };
            left = true;
            if held.pointer("/metadata/deletionTimestamp").is_some() {
                continue;
            }
            let (object, kind) = (hco.object_ref(&()), child.kind());
            match context.children.delete(&context.client, *child, namespace).await {
                Ok(()) => context.events.normal(&object, "Killing", format!("Removed {} {}", kind.kind, kind.name)),
                Err(error) => {
                    let why = Chain(&error).to_string();
                    context.events.warning(&object, reason(*child), &*why);
                    context.write(hco, &status::removing(hco, Some(&why), now)).await?;
                    return Err(error);
                }
            }
        }
        if left {
            context.write(hco, &status::removing(hco, None, now)).await?;
            return Ok(Next::After(LOOK));
        }
    }
    context.requests.release(hco).await.map_err(Error::api("patch", "HyperConverged", &hco.name_any()))?;
    Ok(Next::Wait)
}

/// The event that tells why a child stays.
fn reason(child: Child) -> &'static str {
    match child {
        Child::KubeVirt => "ErrVirtUninstall",
        Child::Cdi => "ErrCDIUninstall",
        Child::NetworkAddons | Child::Ssp => "ErrHCOUninstall",
    }
}
