//! Pods that are about to start: their containers wait until the rules for them are in force.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::sync::{mpsc, oneshot};

use super::view::{Member, View};

/// Holds containers back until their pod is protected. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard {
    requests: mpsc::UnboundedSender<Request>,
}

#[derive(Debug)]
struct Request {
    pod: Member,
    admitted: oneshot::Sender<()>,
}

/// The other end: pods of this node whose addresses the API may not know yet.
#[derive(Debug)]
pub struct Newcomers {
    requests: mpsc::UnboundedReceiver<Request>,
    waiting: Vec<Request>,
    pods: BTreeMap<String, Newcomer>,
}

#[derive(Debug)]
struct Newcomer {
    pod: Member,
    /// Later entries win where two pods claim one address.
    turn: u64,
    /// The API server's view has shown it: once it is missing there, it is gone.
    seen: bool,
}

/// A guard and what it guards.
pub fn guard() -> (Guard, Newcomers) {
    let (send, requests) = mpsc::unbounded_channel();
    (Guard { requests: send }, Newcomers { requests, waiting: Vec::new(), pods: BTreeMap::new() })
}

impl Guard {
    /// Returns when the rules that are in force know `pod` by `addresses`. Never returns without them: a pod would run
    /// unprotected.
    pub async fn protect(&self, pod: &k8s_openapi::api::core::v1::Pod, addresses: &[IpAddr]) {
        let mut member = Member::of(pod);
        member.addresses = addresses.to_vec();
        let (admitted, wait) = oneshot::channel();
        // Without a receiver the agent is ending, and this task with it.
        let sent = self.requests.send(Request { pod: member, admitted }).is_ok();
        if !sent || wait.await.is_err() {
            std::future::pending().await
        }
    }
}

impl Newcomers {
    /// Returns when somebody waits.
    pub(super) async fn wait(&mut self) {
        match self.requests.recv().await {
            Some(request) => self.waiting.push(request),
            None => std::future::pending().await,
        }
    }

    /// Takes everybody in who waits.
    pub(super) fn take_waiting(&mut self) {
        while let Ok(request) = self.requests.try_recv() {
            self.waiting.push(request);
        }
        for request in &self.waiting {
            let turn = self.pods.values().map(|pod| pod.turn + 1).max().unwrap_or(0);
            let seen = self.pods.get(&request.pod.uid).is_some_and(|pod| pod.seen);
            self.pods.insert(request.pod.uid.clone(), Newcomer { pod: request.pod.clone(), turn, seen });
        }
    }

    /// Lets those start who were waiting when the rules were made.
    pub(super) fn admit(&mut self) {
        for request in self.waiting.drain(..) {
            // Who gave up waiting needs no answer.
            let _ = request.admitted.send(());
        }
    }

    /// Drops pods that the API server has shown and shows no more.
    pub(super) fn forget_the_gone(&mut self, view: &View) {
        self.pods.retain(|uid, newcomer| {
            let shown = view.pods.iter().any(|pod| &pod.uid == uid);
            let gone = newcomer.seen && !shown;
            newcomer.seen |= shown;
            !gone
        });
    }

    /// The pods taken in, oldest first.
    pub(super) fn pods(&self) -> Vec<&Member> {
        let mut all: Vec<_> = self.pods.values().collect();
        all.sort_by_key(|newcomer| newcomer.turn);
        all.into_iter().map(|newcomer| &newcomer.pod).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(uid: &str) -> Member {
        Member { uid: uid.into(), ..Member::default() }
    }

    #[tokio::test]
    async fn a_pod_waits_for_the_rules_and_stays_known_until_it_is_gone() {
        let (guard, mut newcomers) = guard();
        let pod: k8s_openapi::api::core::v1::Pod =
            serde_json::from_value(serde_json::json!({"metadata": {"uid": "u", "name": "p", "namespace": "n"}}))
                .unwrap();
        let addresses = ["10.0.0.1".parse().unwrap()];
        let mut protecting = Box::pin(guard.protect(&pod, &addresses));
        assert!(futures::poll!(&mut protecting).is_pending());
        newcomers.wait().await;
        newcomers.take_waiting();
        assert!(futures::poll!(&mut protecting).is_pending());
        newcomers.admit();
        protecting.await;
        let known = |newcomers: &Newcomers| newcomers.pods().iter().map(|pod| pod.uid.clone()).collect::<Vec<_>>();
        // Not shown yet, shown, gone.
        let view = |pods: Vec<Member>| View { pods, ..View::default() };
        newcomers.forget_the_gone(&view(vec![]));
        assert_eq!(known(&newcomers), ["u"]);
        newcomers.forget_the_gone(&view(vec![member("u")]));
        assert_eq!(known(&newcomers), ["u"]);
        newcomers.forget_the_gone(&view(vec![]));
        assert!(known(&newcomers).is_empty());
    }

    #[tokio::test]
    async fn nobody_starts_unprotected_when_the_agent_ends() {
        let (guard, newcomers) = guard();
        drop(newcomers);
        let pod = k8s_openapi::api::core::v1::Pod::default();
        assert!(futures::poll!(Box::pin(guard.protect(&pod, &[]))).is_pending());
    }
}
