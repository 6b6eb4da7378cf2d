//! Pods that are about to start: their containers wait until the rules for them are in force.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, oneshot};

use super::view::Member;

/// Holds containers back until their pod is protected. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard {
    notices: mpsc::UnboundedSender<Notice>,
}

#[derive(Debug)]
enum Notice {
    Starts { pod: Member, admitted: oneshot::Sender<()> },
    IsGone { uid: String },
}

/// The other end: the pods of this node, whose addresses the API may not know yet.
#[derive(Debug)]
pub struct Newcomers {
    notices: mpsc::UnboundedReceiver<Notice>,
    waiting: Vec<oneshot::Sender<()>>,
    /// With their turn: where two pods claim one address, the later has it.
    pods: BTreeMap<String, (u64, Member)>,
    turns: u64,
}

/// A guard and what it guards.
pub fn guard() -> (Guard, Newcomers) {
    let (send, notices) = mpsc::unbounded_channel();
    (Guard { notices: send }, Newcomers { notices, waiting: Vec::new(), pods: BTreeMap::new(), turns: 0 })
}

impl Guard {
    /// Returns when the rules that are in force know `pod` by `addresses`. Never returns without them: a pod would run
    /// unprotected.
    pub async fn protect(&self, pod: &Pod, addresses: &[IpAddr]) {
        let mut member = Member::of(pod);
        member.addresses = addresses.to_vec();
        let (admitted, wait) = oneshot::channel();
        // Without a receiver the agent is ending, and this task with it.
        let sent = self.notices.send(Notice::Starts { pod: member, admitted }).is_ok();
        if !sent || wait.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Says that nothing of a pod is left on the node.
    pub fn forget(&self, uid: &str) {
        // Without a receiver there is nobody to remember.
        let _ = self.notices.send(Notice::IsGone { uid: uid.to_owned() });
    }
}

impl Newcomers {
    /// Returns when there is news.
    pub(super) async fn news(&mut self) {
        match self.notices.recv().await {
            Some(notice) => self.note(notice),
            None => std::future::pending().await,
        }
    }

    /// Takes in all news there are.
    pub(super) fn take_news(&mut self) {
        while let Ok(notice) = self.notices.try_recv() {
            self.note(notice);
        }
    }

    fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Starts { pod, admitted } => {
                self.turns += 1;
                self.pods.insert(pod.uid.clone(), (self.turns, pod));
                self.waiting.push(admitted);
            }
            Notice::IsGone { uid } => drop(self.pods.remove(&uid)),
        }
    }

    /// Lets those start who were known when the rules were made.
    pub(super) fn admit(&mut self) {
        for admitted in self.waiting.drain(..) {
            // Who gave up waiting needs no answer.
            let _ = admitted.send(());
        }
    }

    /// The pods that started, in that order.
    pub(super) fn pods(&self) -> Vec<&Member> {
        let mut all: Vec<_> = self.pods.values().collect();
        all.sort_by_key(|(turn, _)| *turn);
        all.into_iter().map(|(_, pod)| pod).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pod_waits_for_the_rules_and_stays_known_until_it_is_gone() {
        let (guard, mut newcomers) = guard();
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"uid": "u", "name": "p"}})).unwrap();
        let addresses = ["10.0.0.1".parse().unwrap()];
        let mut protecting = Box::pin(guard.protect(&pod, &addresses));
        assert!(futures::poll!(&mut protecting).is_pending());
        newcomers.news().await;
        assert!(futures::poll!(&mut protecting).is_pending());
        newcomers.admit();
        protecting.await;
        assert_eq!(newcomers.pods()[0].addresses, addresses);
        guard.forget("u");
        newcomers.take_news();
        assert!(newcomers.pods().is_empty());
    }

    #[tokio::test]
    async fn pods_do_not_start_without_their_policies_when_the_agent_ends() {
        let (guard, newcomers) = guard();
        drop(newcomers);
        assert!(futures::poll!(Box::pin(guard.protect(&Pod::default(), &[]))).is_pending());
    }
}
