//! What a pool's machines were made from: a ControllerRevision for each template that it had and that one of them is of.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use api::pool::v1beta1::{VirtualMachinePool, VirtualMachinePoolSpec};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kit::controller::owner;
use kit::store::Key;
use kube::api::{ListParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::error::Error;
use crate::replicas;

const KIND: &str = "controllerrevision";

/// The label by which a pool's revisions are found: the pool's UID.
const POOL_UID: &str = "kubevirt.io/vm-pool-uid";

/// The most characters that the value of a label has.
const LABEL_VALUE: usize = 63;

/// What revisions were, by their names; none where there is none.
type Specs = BTreeMap<String, Option<VirtualMachinePoolSpec>>;

/// Which revision each pool is at; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revisions(Arc<Mutex<HashMap<Key, At>>>);

#[derive(Clone, Debug)]
struct At {
    uid: Option<String>,
    generation: Option<i64>,
    name: String,
    /// Those that were asked for: a revision never changes.
    specs: Specs,
    /// What was used when all others were deleted.
    kept: Option<BTreeSet<String>>,
}

impl Revisions {
    /// The name of the revision that `pool` is at, made where there is none. A spec that makes the same machines is the same revision.
    pub(crate) async fn current(&self, client: &Client, pool: &VirtualMachinePool) -> Result<String, Error> {
        let key = Key::of(pool);
        let known = self.at(&key).filter(|at| at.uid == pool.metadata.uid && at.generation == pool.metadata.generation);
        if let Some(at) = known {
            return Ok(at.name);
        }
        let all = list(client, pool).await?;
        let newest = all.iter().max_by_key(|revision| revision.revision);
        let name = match newest.filter(|newest| spec(newest).is_some_and(|spec| makes_the_same(&spec, &pool.spec))) {
            Some(newest) => newest.name_any(),
            None => make(client, pool).await?,
        };
        let (generation, specs) = (pool.metadata.generation, Specs::new());
        let at = At { uid: pool.uid(), generation, name: name.clone(), specs, kept: None };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, at);
        Ok(name)
    }

    /// What the revisions `needed` of `pool` say, by their names, as far as there are such. The cluster is asked once for each.
    pub(crate) async fn specs(
        &self,
        client: &Client,
        pool: &VirtualMachinePool,
        needed: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, VirtualMachinePoolSpec>, Error> {
        let key = Key::of(pool);
        let mut known = self.at(&key).map(|at| at.specs).unwrap_or_default();
        if needed.iter().any(|name| !known.contains_key(name)) {
            let all = list(client, pool).await?;
            known = all.iter().map(|revision| (revision.name_any(), spec(revision))).collect();
            for name in needed {
                known.entry(name.clone()).or_default();
            }
        }
        known.retain(|name, _| needed.contains(name));
        if let Some(at) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&key) {
            at.specs.clone_from(&known);
        }
        Ok(known.into_iter().filter_map(|(name, spec)| Some((name, spec?))).collect())
    }

    fn at(&self, key: &Key) -> Option<At> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Deletes those of `pool` that are none of `used`, unless that was done already; the current one stays.
    pub(crate) async fn prune(
        &self,
        client: &Client,
        pool: &VirtualMachinePool,
        used: BTreeSet<String>,
    ) -> Result<(), Error> {
        let key = Key::of(pool);
        let Some(current) = self.at(&key).filter(|at| at.kept.as_ref() != Some(&used)) else { return Ok(()) };
        for revision in list(client, pool).await? {
            let name = revision.name_any();
            if name != current.name && !used.contains(&name) {
                replicas::delete(client, (KIND, &revision), None).await?;
            }
        }
        if let Some(at) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&key) {
            at.kept = Some(used);
        }
        Ok(())
    }

    /// The pool is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

async fn list(client: &Client, pool: &VirtualMachinePool) -> Result<Vec<ControllerRevision>, Error> {
    let (Key { namespace, name }, uid) = (Key::of(pool), pool.uid().unwrap_or_default());
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), &namespace);
    let found = api.list(&ListParams::default().labels(&format!("{POOL_UID}={uid}"))).await;
    let mut all = found.map_err(Error::api("list revisions of", "virtualmachinepool", &namespace, &name))?.items;
    // A label is written by anybody.
    all.retain(|revision| replicas::is_of(revision, &uid));
    Ok(all)
}

fn spec(revision: &ControllerRevision) -> Option<VirtualMachinePoolSpec> {
    serde_json::from_value(revision.data.as_ref()?.0.clone()).ok()
}

fn makes_the_same(one: &VirtualMachinePoolSpec, other: &VirtualMachinePoolSpec) -> bool {
    one.virtual_machine_template == other.virtual_machine_template && one.name_generation == other.name_generation
}

/// The names that the revision of `pool` may have: the second is not anybody's by chance. Each is the value of a label, too.
fn names(pool: &VirtualMachinePool) -> Vec<String> {
    let (name, generation) = (pool.name_any(), pool.metadata.generation.unwrap_or(0));
    let uid: String = pool.uid().unwrap_or_default().chars().take(8).collect();
    let end = format!("-{uid}-{generation}");
    let begin: String = name.chars().take(LABEL_VALUE.saturating_sub(end.len())).collect();
    let plain = Some(format!("{name}-{generation}")).filter(|plain| plain.len() <= LABEL_VALUE);
    plain.into_iter().chain([format!("{}{end}", begin.trim_end_matches(['-', '.']))]).collect()
}

async fn make(client: &Client, pool: &VirtualMachinePool) -> Result<String, Error> {
    let Key { namespace, name } = Key::of(pool);
    for name in names(pool) {
        if make_called(client, pool, &name).await? {
            return Ok(name);
        }
    }
    Err(Error::Taken(format!(
        "what controllerrevisions of pool {namespace}/{name} may be called is taken: delete them"
    )))
}

/// Makes the revision of `pool` with this name. False when the name is another's.
async fn make_called(client: &Client, pool: &VirtualMachinePool, name: &str) -> Result<bool, Error> {
    let (namespace, uid) = (pool.namespace().unwrap_or_default(), pool.uid().unwrap_or_default());
    let wanted = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.clone()),
            labels: Some([(POOL_UID.to_owned(), uid.clone())].into()),
            owner_references: Some(vec![owner::controlled_by(pool)]),
            ..Default::default()
        },
        data: Some(RawExtension(json!(pool.spec))),
        revision: pool.metadata.generation.unwrap_or(0),
    };
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), &namespace);
    match api.create(&PostParams::default(), &wanted).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            let found = api.get_opt(name).await.map_err(Error::api("read", KIND, &namespace, name))?;
            let same = |found: &ControllerRevision| spec(found).is_some_and(|spec| makes_the_same(&spec, &pool.spec));
            Ok(found.is_some_and(|found| replicas::is_of(&found, &uid) && same(&found)))
        }
        Err(error) => Err(Error::api("create", KIND, &namespace, name)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_are_called_after_their_pool_and_its_generation() {
        let check = |name: &str, generation: i64, expect: &[&str]| {
            let metadata = json!({ "name": name, "uid": "01234567-89ab", "generation": generation });
            let pool = json!({ "metadata": metadata, "spec": { "selector": {}, "virtualMachineTemplate": {} } });
            let found = names(&serde_json::from_value(pool).unwrap());
            assert_eq!(found, expect);
            assert!(found.iter().all(|name| name.len() <= LABEL_VALUE));
        };
        check("pool", 2, &["pool-2", "pool-01234567-2"]);
        let long = "a".repeat(61);
        check(&long, 2, &[&format!("{long}-2"), &format!("{}-01234567-2", "a".repeat(52))]);
        check(&long, 12, &[&format!("{}-01234567-12", "a".repeat(51))]);
        let dotted = format!("{}.b{}", "a".repeat(50), "c".repeat(20));
        check(&dotted, 12, &[&format!("{}-01234567-12", "a".repeat(50))]);
    }
}
