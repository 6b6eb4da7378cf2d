//! What the node has set aside for each of its pods: the one place that decides whether a pod may become larger.
//!
//! ```text
//!   a pod is seen --> its record, or one made of its spec     wanted != set aside --> grant --> set aside, written down
//!                                                                              \--> Infeasible, or Deferred until
//!                                                                                   another pod goes or shrinks
//! ```
//!
//! Invariants: what was granted is on disk before anybody hears of it; while it is not known which pods there are, nothing
//! is granted; of pods that wait, the one of the higher priority is served first, then the one of the better class, then
//! the one that waits longer.

pub(crate) mod fit;
pub(crate) mod record;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};
use tokio::sync::watch;

use crate::error::Result;
use crate::fields::NodeAmounts;
use crate::resources::{is_sidecar, qos_class};
use fit::{Amounts, Refusal};
use record::{Record, Sizes};

/// What became of a wish.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Granted,
    Refused(Refusal),
    /// The pods of the node are not known yet.
    Unknown,
}

/// The allocations of all pods of the node.
pub(crate) struct Allocations {
    /// The directories of pods lie below it.
    pods: PathBuf,
    node: Amounts,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    settled: bool,
    pods: BTreeMap<String, Entry>,
    /// Counts those that began to wait.
    waited: u64,
}

struct Entry {
    pod: Arc<Pod>,
    record: Record,
    /// It has ended and holds nothing.
    over: bool,
    /// What it waits for, and since when compared with others.
    waits: Option<(Amounts, u64)>,
}

fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// What the containers of a pod that can be resized have in its spec.
pub(crate) fn sizes(pod: &Pod) -> Sizes {
    let spec = spec(pod);
    let resizable = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)));
    resizable.map(|c| (c.name.clone(), c.resources.clone().unwrap_or_default())).collect()
}

/// The pod with these sizes in place of those in its spec.
pub(crate) fn sized(pod: &Pod, sizes: &Sizes) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            if let Some(size) = sizes.get(&container.name) {
                container.resources = Some(size.clone());
            }
        }
    }
    pod
}

impl Entry {
    fn held(&self) -> Amounts {
        if self.over { Amounts::default() } else { fit::held(spec(&self.pod), &self.record) }
    }

    /// Those with the smaller rank come first.
    fn rank(&self, since: u64) -> (i64, u8, u64) {
        let spec = spec(&self.pod);
        (-i64::from(spec.priority.unwrap_or(0)), u8::from(qos_class(spec) != "Guaranteed"), since)
    }
}

impl Allocations {
    /// `pods` is the directory of the directories of pods.
    pub(crate) fn new(pods: PathBuf, amounts: &NodeAmounts) -> Self {
        // What the node says that it has: whole cpus, and kibibytes.
        let node = Amounts { cpu: amounts.cpu_milli / 1000 * 1000, memory: amounts.memory / 1024 * 1024 };
        Self { pods, node, state: Mutex::default(), changes: watch::channel(()).0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells when somebody who waits may have better luck.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Takes in a pod of this node. One that is seen for the first time is given what its spec says.
    pub(crate) fn admit(&self, pod: &Arc<Pod>) {
        let known = record::read(&self.pods.join(uid(pod)));
        let record = known.unwrap_or_else(|| {
            let allocated = sizes(pod);
            let status = pod.status.as_ref();
            // What has begun already did so under a kubelet that kept no record and resized nothing.
            let begun = status.is_some_and(|status| status.start_time.is_some());
            let applied = if begun { allocated.clone() } else { Sizes::new() };
            Record { grouped: begun.then(|| allocated.clone()), allocated, applied, ..Record::default() }
        });
        if let Err(error) = record::write(&self.pods.join(uid(pod)), &record) {
            tracing::warn!(pod = uid(pod), error = %kit::Chain(&error), "what a pod is given was not written down");
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let over = matches!(phase, Some("Succeeded" | "Failed"));
        let entry = Entry { pod: pod.clone(), record, over, waits: None };
        self.state().pods.insert(uid(pod).to_owned(), entry);
    }

    /// All pods of the node have been taken in.
    pub(crate) fn settle(&self) {
        self.state().settled = true;
        self.changes.send_replace(());
    }

    /// The pod holds nothing any more.
    pub(crate) fn over(&self, uid: &str) {
        if let Some(entry) = self.state().pods.get_mut(uid) {
            (entry.over, entry.waits) = (true, None);
        }
        self.changes.send_replace(());
    }

    /// The pod is gone from the node, or nobody looks after it any more.
    pub(crate) fn forget(&self, uid: &str) {
        self.state().pods.remove(uid);
        self.changes.send_replace(());
    }

    /// The record of a pod; an empty one for a pod that is not known.
    pub(crate) fn record(&self, uid: &str) -> Record {
        self.state().pods.get(uid).map(|entry| entry.record.clone()).unwrap_or_default()
    }

    /// Gives a pod the sizes of its spec, if the node has as much left.
    ///
    /// # Errors
    /// When it could not be written down; then nothing was granted.
    pub(crate) fn grant(&self, wanted: &Arc<Pod>) -> Result<Verdict> {
        let mut state = self.state();
        if !state.settled {
            return Ok(Verdict::Unknown);
        }
        let own = uid(wanted);
        let asked = fit::requested(spec(wanted));
        state.waited += 1;
        let turn = state.waited;
        let Some(entry) = state.pods.get_mut(own) else { return Ok(Verdict::Unknown) };
        entry.pod = wanted.clone();
        let given = fit::requested(spec(&sized(wanted, &entry.record.allocated)));
        let since = entry.waits.map_or(turn, |(_, since)| since);
        let rank = entry.rank(since);
        let used = state.used_before(own, rank, self.node);
        let Some(entry) = state.pods.get_mut(own) else { return Ok(Verdict::Unknown) };
        if let Some(refusal) = fit::refusal(given, asked, used, self.node) {
            entry.waits = (refusal.reason == "Deferred").then_some((asked, since));
            return Ok(Verdict::Refused(refusal));
        }
        let mut record = entry.record.clone();
        record.allocated = sizes(wanted);
        record.under_way = Some(wanted.metadata.generation.unwrap_or(0));
        record::write(&self.pods.join(own), &record)?;
        (entry.record, entry.waits) = (record, None);
        drop(state);
        // What has not begun gives back at once what it does not want any more.
        self.changes.send_replace(());
        Ok(Verdict::Granted)
    }

    /// The pod wants nothing any more that it has not been given.
    pub(crate) fn withdraw(&self, uid: &str) {
        if let Some(entry) = self.state().pods.get_mut(uid) {
            entry.waits = None;
        }
        self.changes.send_replace(());
    }

    /// Changes a record, and writes it down when it has become another one.
    fn change(&self, uid: &str, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut state = self.state();
        let Some(entry) = state.pods.get_mut(uid) else { return Ok(()) };
        let mut record = entry.record.clone();
        change(&mut record);
        if record == entry.record {
            return Ok(());
        }
        record::write(&self.pods.join(uid), &record)?;
        entry.record = record;
        drop(state);
        self.changes.send_replace(());
        Ok(())
    }

    /// A container has this, or is about to be started with it.
    ///
    /// # Errors
    /// When it could not be written down.
    pub(crate) fn applied(&self, uid: &str, container: &str, size: &ResourceRequirements) -> Result<()> {
        self.change(uid, |record| {
            if record.allocated.contains_key(container) {
                record.applied.insert(container.to_owned(), size.clone());
            }
        })
    }

    /// The pod's own group is as large as these sizes want.
    ///
    /// # Errors
    /// When it could not be written down.
    pub(crate) fn grouped(&self, uid: &str, sizes: Sizes) -> Result<()> {
        self.change(uid, |record| record.grouped = Some(sizes))
    }

    /// These containers are about to be stopped to be started with another size.
    ///
    /// # Errors
    /// When it could not be written down.
    pub(crate) fn restarts(&self, uid: &str, ids: impl Iterator<Item = String>) -> Result<()> {
        self.change(uid, |record| record.restarts.extend(ids))
    }

    /// Everything is as the node has granted it.
    ///
    /// # Errors
    /// When it could not be written down.
    pub(crate) fn finished(&self, uid: &str) -> Result<()> {
        self.change(uid, |record| {
            record.under_way = None;
            record.restarts.clear();
            // What does not run holds nothing of its old size.
            for (name, size) in &mut record.applied {
                if let Some(allocated) = record.allocated.get(name) {
                    size.clone_from(allocated);
                }
            }
        })
    }
}

impl State {
    /// What all others hold, and what those that wait and come first will take of what is left.
    fn used_before(&self, own: &str, rank: (i64, u8, u64), node: Amounts) -> Amounts {
        let others = || self.pods.iter().filter(|(uid, _)| *uid != own).map(|(_, entry)| entry);
        let mut used = others().map(Entry::held).fold(Amounts::default(), Amounts::plus);
        let own = self.pods.get(own).map(Entry::held).unwrap_or_default();
        let mut before: Vec<_> = others()
            .filter_map(|entry| entry.waits.map(|(asked, since)| (entry.rank(since), asked, entry.held())))
            .collect();
        before.retain(|(other, ..)| *other < rank);
        before.sort_by_key(|(rank, ..)| *rank);
        for (_, asked, held) in before {
            let rest = used.less(held);
            if fit::refusal(held, asked, rest.plus(own), node).is_none() {
                used = rest.plus(asked.most(held));
            }
        }
        used
    }
}

#[cfg(test)]
mod tests;
