//! The size of the pod: what its spec wants, what the node has set aside, and how far its containers have it.
//!
//! The worker's pod has the sizes that are set aside in its spec: whatever is made for it is made so. What the API wants
//! beyond that waits in [`Size`].

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::Worker;
use crate::allocation::fit::Refusal;
use crate::allocation::record::{Record, Sizes};
use crate::allocation::{self, Verdict, sized};
use crate::context::about;
use crate::pod::{plan, resize};

/// What the worker knows of it.
#[derive(Default)]
pub(super) struct Size {
    /// What the newest object of the API wants.
    wanted: Sizes,
    /// Why it has not got that, and in which generation it was told.
    pub(super) refused: Option<(Refusal, i64)>,
    /// What went wrong with the size that it has been given.
    pub(super) error: Option<String>,
    /// What is on record.
    pub(super) record: Record,
}

impl Size {
    /// It waits for other pods to become fewer or smaller.
    pub(super) fn is_waiting(&self) -> bool {
        self.wanted != self.record.allocated
    }
}

impl Worker {
    /// The pod as the node runs it: the API's, with the sizes that are set aside.
    pub(super) fn given(&mut self, pod: Arc<Pod>) -> Arc<Pod> {
        self.size.wanted = allocation::sizes(&pod);
        self.size.record = self.context.allocations.record(pod.metadata.uid.as_deref().unwrap_or_default());
        if self.size.wanted == self.size.record.allocated {
            pod
        } else {
            Arc::new(sized(&pod, &self.size.record.allocated))
        }
    }

    /// Asks for what is wanted, and finds out what is to be done for what was given.
    pub(super) fn tend_size(&mut self) {
        let uid = self.uid().to_owned();
        let over = self.facts.stopping.is_some()
            || self.facts.was_terminal
            || plan::is_terminal(self.spec(), &self.observed, &self.facts);
        if over {
            // What it waited for is left to others.
            if self.size.refused.take().is_some() {
                self.context.allocations.withdraw(&uid);
            }
            self.facts.resize = resize::Needs::default();
            return;
        }
        self.size.record = self.context.allocations.record(&uid);
        if self.size.wanted != self.size.record.allocated {
            self.ask();
        } else if self.size.refused.take().is_some() {
            self.context.allocations.withdraw(&uid);
        }
        self.facts.resize = resize::needs(&self.pod, &self.size.record, &self.observed);
        if !self.facts.resize.restart.is_empty() {
            let ids = self.facts.resize.restart.iter().map(|(_, id)| id.clone());
            if let Err(error) = self.context.allocations.restarts(&uid, ids) {
                // What would be forgotten by the next life is not begun.
                self.failed_to_size(&error.user_message());
                self.facts.resize.restart.clear();
            }
        }
        self.finish_size(&uid);
    }

    fn ask(&mut self) {
        let generation = self.generation();
        let wanted = Arc::new(sized(&self.pod, &self.size.wanted));
        match self.context.allocations.grant(&wanted) {
            Ok(Verdict::Granted) => {
                self.size.refused = None;
                self.size.error = None;
                self.facts.hold.remove(plan::RESIZE);
                self.failures.remove(plan::RESIZE);
                if self.facts.volumes_due.is_some() {
                    // Files may tell of sizes.
                    self.facts.volumes_due = Some(kit::clock::now());
                }
                let told = resize::told("started", &wanted, generation, None);
                self.context.events.normal(&about(&wanted), "ResizeStarted", told);
                self.pod = wanted;
                self.size.record = self.context.allocations.record(self.uid());
            }
            Ok(Verdict::Refused(refusal)) => {
                let known =
                    self.size.refused.as_ref().is_some_and(|(known, at)| *known == refusal && *at == generation);
                if !known {
                    let reason = format!("Resize{}", refusal.reason);
                    let told = resize::told(refusal.reason, &wanted, generation, Some(&refusal.message));
                    self.context.events.warning(&about(&self.pod), &reason, told);
                    self.size.refused = Some((refusal, generation));
                }
            }
            Ok(Verdict::Unknown) => {}
            Err(error) => tracing::warn!(pod = self.uid(), error = %kit::Chain(&error), "a pod was not resized"),
        }
    }

    /// What was given is there, as far as the runtime could be asked.
    fn finish_size(&mut self, uid: &str) {
        let Some(generation) = self.size.record.under_way else { return };
        // A start under way may have begun with the size of before.
        let busy = |key: &String| key == plan::RESIZE || key.starts_with("start:");
        let met = self.facts.resize.is_met() && !self.facts.busy.iter().any(busy);
        if !met || !self.lagging.is_empty() {
            return;
        }
        match self.context.allocations.finished(uid) {
            Ok(()) => {
                self.size.error = None;
                self.size.record = self.context.allocations.record(uid);
                let told = resize::told("completed", &self.pod, generation, None);
                self.context.events.normal(&about(&self.pod), "ResizeCompleted", told);
            }
            Err(error) => self.failed_to_size(&error.user_message()),
        }
    }

    /// What was given could not be brought to the containers, and will be tried again.
    pub(super) fn failed_to_size(&mut self, why: &str) {
        if self.size.error.as_deref() == Some(why) {
            return;
        }
        let generation = self.size.record.under_way.unwrap_or_default();
        let told = resize::told("error", &self.pod, generation, Some(why));
        self.context.events.warning(&about(&self.pod), "ResizeError", told);
        self.size.error = Some(why.to_owned());
    }

    fn generation(&self) -> i64 {
        self.pod.metadata.generation.unwrap_or_default()
    }
}
