//! What a pool's machines were made from: a ControllerRevision for each template that it had and that one of them is of.

use std::collections::{BTreeMap, HashMap};
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

/// Which revision each pool is at; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revisions(Arc<Mutex<HashMap<Key, At>>>);

#[derive(Clone, Debug)]
struct At {
    uid: Option<String>,
    generation: Option<i64>,
    name: String,
    /// None but this is kept.
    alone: bool,
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
        let at = At { uid: pool.uid(), generation: pool.metadata.generation, name: name.clone(), alone: false };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, at);
        Ok(name)
    }

    fn at(&self, key: &Key) -> Option<At> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// True when older revisions may be left.
    pub(crate) fn has_more(&self, key: &Key) -> bool {
        self.at(key).is_none_or(|at| !at.alone)
    }

    /// Deletes those of `pool` that are none of `used`; the current one stays.
    pub(crate) async fn prune(&self, client: &Client, pool: &VirtualMachinePool, used: &[&str]) -> Result<(), Error> {
        let key = Key::of(pool);
        let Some(current) = self.at(&key) else { return Ok(()) };
        let mut left = false;
        for revision in list(client, pool).await? {
            let name = revision.name_any();
            if name == current.name {
                continue;
            }
            if used.contains(&name.as_str()) {
                left = true;
            } else {
                replicas::delete(client, (KIND, &revision), None).await?;
            }
        }
        if let Some(at) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&key) {
            at.alone = !left;
        }
        Ok(())
    }

    /// The pool is gone.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// What the pool's revisions say, by their names.
pub(crate) async fn specs(
    client: &Client,
    pool: &VirtualMachinePool,
) -> Result<BTreeMap<String, VirtualMachinePoolSpec>, Error> {
    let all = list(client, pool).await?;
    Ok(all.iter().filter_map(|revision| Some((revision.name_any(), spec(revision)?))).collect())
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

async fn make(client: &Client, pool: &VirtualMachinePool) -> Result<String, Error> {
    let Key { namespace, name: pool_name } = Key::of(pool);
    let uid = pool.uid().unwrap_or_default();
    let generation = pool.metadata.generation.unwrap_or(0);
    let name = format!("{pool_name}-{generation}");
    let wanted = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            labels: Some([(POOL_UID.to_owned(), uid.clone())].into()),
            owner_references: Some(vec![owner::controlled_by(pool)]),
            ..Default::default()
        },
        data: Some(RawExtension(json!(pool.spec))),
        revision: generation,
    };
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), &namespace);
    match api.create(&PostParams::default(), &wanted).await {
        Ok(_) => Ok(name),
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            let found = api.get(&name).await.map_err(Error::api("read", KIND, &namespace, &name))?;
            let ours = replicas::is_of(&found, &uid);
            if ours && spec(&found).is_some_and(|spec| makes_the_same(&spec, &pool.spec)) {
                return Ok(name);
            }
            Err(Error::Taken(format!("controllerrevision {namespace}/{name} is not of this pool: delete it")))
        }
        Err(error) => Err(Error::api("create", KIND, &namespace, &name)(error)),
    }
}
