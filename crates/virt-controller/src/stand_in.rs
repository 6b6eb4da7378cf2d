//! Disks that only one node can reach move with their guests: each is copied into another claim, which stands in for the
//! one the guest was made with, until nobody uses it and its volume is put back under the name everybody knows.
//!
//! A VirtualMachine goes on naming its claim, and what is applied again changes nothing. The claim says where its disk is
//! (`ferrovirt.io/moved-to`), a stand-in says for whom it stands in (`ferrovirt.io/stands-in-for`) and belongs to that
//! claim: who deletes the claim deletes the disk. What is done when is in [`plan`].

pub(crate) mod obstacle;
pub mod plan;
pub(crate) mod prepare;
mod steps;
mod wake;

use std::collections::BTreeSet;

use api::kubevirt::constants::label;
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kit::queue::{Next, Queue};
use kit::store::Key;
use kube::ResourceExt;
use plan::View;

use crate::context::Context;
use crate::error::{self, Error};
use crate::facts::claims::{self, Claims};
use crate::facts::index::{UNFINISHED, claim_index, owner_index, put_back_index, stand_in_index};
use crate::facts::stand_ins;
use crate::setup::Setup;

/// Has claims looked after whose disks are elsewhere, or may be.
pub(crate) fn register(setup: &mut Setup) {
    let (context, queue) = (setup.context.clone(), Queue::default());
    wake::wakes(&mut setup.changes, &queue);
    let stores = context.stores.clone();
    let known = async move {
        tokio::join!(
            stores.vmis.synced(),
            stores.claims.synced(),
            stores.put_backs.synced(),
            stores.migrations.synced()
        );
    };
    setup.work(queue, 2, known, move |key| reconcile(context.clone(), key));
}

/// Brings the disk of one claim a step nearer to its name.
async fn reconcile(context: Context, key: Key) -> Next {
    error::settled("claim", &key, Box::pin(sync(&context, &key)).await)
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let found = Found::of(context, key);
    let step = plan::plan(&found.view());
    steps::execute(context, key, &found, &step).await
}

/// The objects around one claim.
struct Found {
    claim: Option<PersistentVolumeClaim>,
    stand_ins: Vec<PersistentVolumeClaim>,
    guests: Vec<VirtualMachineInstance>,
    unfinished: Vec<String>,
    volume: Option<PersistentVolume>,
}

impl Found {
    fn of(context: &Context, key: &Key) -> Self {
        let stand_ins = context.stores.claims.by_index(&stand_in_index(&key.namespace, &key.name));
        let mut words = vec![claim_index(&key.namespace, &key.name)];
        for one in &stand_ins {
            words.push(claim_index(&key.namespace, &one.name_any()));
            words.extend(one.labels().get(label::CREATED_BY).map(|uid| owner_index(uid)));
        }
        let keys: BTreeSet<Key> = words.iter().flat_map(|word| context.stores.vmis.keys_by_index(word)).collect();
        Self {
            claim: context.stores.claims.get(key),
            stand_ins,
            guests: keys.iter().filter_map(|key| context.stores.vmis.get(key)).collect(),
            unfinished: context.stores.migrations.by_index(UNFINISHED).iter().filter_map(ResourceExt::uid).collect(),
            volume: context.stores.put_backs.by_index(&put_back_index(&key.namespace, &key.name)).into_iter().next(),
        }
    }

    fn view(&self) -> View<'_> {
        View {
            claim: self.claim.as_ref(),
            stand_ins: &self.stand_ins,
            guests: &self.guests,
            unfinished: &self.unfinished,
            volume: self.volume.as_ref(),
        }
    }
}

/// The guest was moved, and not all of its claims say yet where their disks are: without the guest nobody would know.
pub(crate) fn is_owed(context: &Context, vmi: &VirtualMachineInstance) -> bool {
    let namespace = vmi.namespace().unwrap_or_default();
    stand_ins::arrived(vmi).any(|(_, name)| {
        let Some(stand_in) = context.stores.claims.get(&Key::new(namespace.as_str(), name)) else { return false };
        let root = Key::new(namespace.as_str(), stand_ins::root(&stand_in));
        matches!(plan::plan(&Found::of(context, &root).view()), plan::Step::Point { .. })
    })
}

/// Why a guest cannot be started on its claims yet: the disk of one of them is elsewhere.
pub(crate) fn away(context: &Context, vmi: &VirtualMachineInstance, known: &Claims) -> Option<String> {
    let namespace = vmi.namespace().unwrap_or_default();
    claims::of(vmi).find_map(|used| {
        let name = used.claim;
        let moved_to = known.get(name).and_then(stand_ins::moved_to);
        if let Some(stand_in) = moved_to
            && !context.stores.claims.contains(&Key::new(namespace.as_str(), stand_in))
            && context.stores.put_backs.keys_by_index(&put_back_index(&namespace, name)).is_empty()
        {
            return Some(format!("PVC {namespace}/{name}: {}", plan::gone(stand_in)));
        }
        if moved_to.is_none() && !context.stores.claims.keys_by_index(&stand_in_index(&namespace, name)).is_empty() {
            // Whoever starts now would find an outdated disk as soon as the other has gone with it.
            return Some(format!("PVC {namespace}/{name}: its disk is being moved with a guest to another node"));
        }
        if let Some(stand_in) = moved_to {
            return Some(format!(
                "PVC {namespace}/{name}: its disk moved with a guest and is on PVC {namespace}/{stand_in}; it is put back \
                 when nobody uses that any more"
            ));
        }
        let returning = !context.stores.put_backs.keys_by_index(&put_back_index(&namespace, name)).is_empty();
        (returning && !known.contains_key(name))
            .then(|| format!("PVC {namespace}/{name}: its disk moved with a guest and is being put back"))
    })
}
