//! ControllerRevisions: the template history of DaemonSets and StatefulSets, as `kubectl rollout` reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kit::controller::owner::controlled_by;
use kit::controller::{During, Error, Result, pod};
use kit::store::Key;
use kube::api::{DeleteParams, ObjectMeta};
use kube::core::Selector;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::claim;
use crate::context::Context;
use crate::deployment::template::hash;

/// The label that tells the pods of one revision from those of another.
pub(crate) const HASH_LABEL: &str = "controller-revision-hash";

/// The hash of a revision as its pods carry it.
pub(crate) fn hash_of(revision: &ControllerRevision) -> &str {
    pod::labels(&revision.metadata).get(HASH_LABEL).map_or("", String::as_str)
}

fn data(template: &PodTemplateSpec) -> Result<Value, serde_json::Error> {
    let mut template = serde_json::to_value(template)?;
    template["$patch"] = json!("replace");
    Ok(json!({"spec": {"template": template}}))
}

/// All revisions of `owner`, oldest first, and the one of its present template, created or brought forward if needed.
pub(crate) async fn sync<O>(
    ctx: &Context,
    owner: &O,
    selector: &Selector,
    template: &PodTemplateSpec,
) -> Result<(Arc<ControllerRevision>, Vec<Arc<ControllerRevision>>)>
where
    O: Resource<DynamicType = ()>,
{
    let key = Key::of(owner);
    let mut known: Vec<Arc<ControllerRevision>> = claim::children(ctx, owner, selector).await?;
    known.sort_by_key(|r| (r.revision, r.name_any()));
    let data = data(template).during("encode template", &key)?;
    let latest = known.last().map_or(0, |r| r.revision);
    let same = |r: &&Arc<ControllerRevision>| r.data.as_ref().is_some_and(|d| d.0 == data);
    if let Some(found) = known.iter().rev().find(same).cloned() {
        if found.revision == latest {
            return Ok((found, known));
        }
        let change = json!({"revision": latest + 1});
        let found_key = Key::of(found.as_ref());
        ctx.merge::<ControllerRevision>("renumber controllerrevision", &found_key, &change).await?;
        return Ok((found, known));
    }
    let labels = template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
    for collisions in 0..8 {
        let hash = hash(&data, (collisions > 0).then_some(collisions));
        match ctx.create("create controllerrevision", &new(owner, &labels, &hash, &data, latest + 1)).await {
            Ok(created) => {
                let created = Arc::new(created);
                known.push(created.clone());
                return Ok((created, known));
            }
            Err(error) if error.code() == 409 => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::Unfinished { object: key.to_string(), what: "no free name for its revision".into() })
}

fn new<O: Resource<DynamicType = ()>>(
    owner: &O,
    labels: &BTreeMap<String, String>,
    hash: &str,
    data: &Value,
    revision: i64,
) -> ControllerRevision {
    let mut labels = labels.clone();
    labels.insert(HASH_LABEL.into(), hash.into());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", owner.name_any())),
            namespace: owner.namespace(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![controlled_by(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data.clone())),
        revision,
    }
}

/// Deletes the oldest revisions beyond `limit` that no pod has and that are not the current one.
pub(crate) async fn cut_history(
    ctx: &Context,
    revisions: &[Arc<ControllerRevision>],
    current: &ControllerRevision,
    in_use: &BTreeSet<&str>,
    limit: i32,
) -> Result<()> {
    let unused = |r: &&Arc<ControllerRevision>| r.name_any() != current.name_any() && !in_use.contains(hash_of(r));
    let unused: Vec<_> = revisions.iter().filter(unused).collect();
    let surplus = unused.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
    for revision in unused.into_iter().take(surplus) {
        ctx.delete("delete controllerrevision", revision.as_ref(), DeleteParams::background()).await?;
    }
    Ok(())
}
