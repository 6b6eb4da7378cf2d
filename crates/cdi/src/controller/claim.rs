//! One claim: whoever has something to do for it does it.

use api::cdi::constants::annotation;
use kit::queue::Next;
use kit::store::Key;
use kube::ResourceExt;

use crate::Error;
use crate::controller::context::{Context, annotation_of};
use crate::controller::populator::{self, forklift};
use crate::controller::{clone, import, relay, upload};

/// Brings what is made for one claim in line.
pub async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(claim) = context.claims.get(key) else { return Ok(Next::Wait) };
    relay::bound(context, &claim).await?;
    if let Some((kind, name)) = populator::plan::source(&claim) {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        return match kind.as_str() {
            "VolumeCloneSource" => Box::pin(clone::sync(context, &claim, &name)).await,
            _ => populator::sync(context, &claim, &kind, &name).await,
        };
    }
    if let Some((kind, name)) = forklift::named(&claim) {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        return populator::sync(context, &claim, &kind, &name).await;
    }
    if annotation_of(&claim, annotation::POPULATED_FOR).is_some()
        || claim.annotations().contains_key(annotation::EXTERNAL_POPULATION)
    {
        return Ok(Next::Wait);
    }
    // An address alone is one of HTTP.
    let imports = [annotation::SOURCE, annotation::ENDPOINT].iter().any(|key| claim.annotations().contains_key(*key));
    if imports || forklift::is_prime(&claim) {
        return import::sync(context, &claim).await;
    }
    if claim.annotations().contains_key(annotation::UPLOAD) {
        let served = upload::sync(context, &claim).await?;
        let Some(source) = annotation_of(&claim, annotation::CLONE_REQUEST) else { return Ok(served) };
        let source = source.to_owned();
        let copied = clone::copy::sync(context, &claim, &source).await?;
        return Ok(if served == Next::Wait { copied } else { served });
    }
    upload::withdraw(context, &claim).await
}
