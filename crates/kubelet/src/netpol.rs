//! NetworkPolicy: what pods of this node may receive and send, as one nftables table of the node.
//!
//! ```text
//!  policies, namespaces, pods ── View ──┐
//!  pods that are about to start ────────┴─ plan::plan ──▶ Plan ── rules::render ──▶ Ruleset ── transaction ──▶ nft
//! ```
//!
//! Guarantees: no container starts before the rules for its pod are in force ([`Guard`]); a change is loaded whole or not
//! at all; rules outlive this process; what the node itself sends, probes above all, always reaches its pods; a
//! connection that was admitted once goes on.
//!
//! A packet is judged where it is forwarded, after Services were translated, on the sender's node for what it may send and
//! on the receiver's for what that may receive. Cluster DNS is answered by each node itself, and judged as the pod it is
//! elsewhere: in kube-system, labelled `k8s-app: kube-dns`.

mod guard;
pub mod plan;
pub mod rules;
pub mod view;

use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::watch;

pub use guard::{Guard, Newcomers, guard};
use rules::Ruleset;

/// What the policies' rules must know of their node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// Addresses of cluster DNS, which the node answers on.
    pub dns: Vec<IpAddr>,
}

/// Changes come in bursts.
const SETTLE: Duration = Duration::from_millis(20);
/// Of the time, at most one part in this many goes into rules, however often they change.
const REST: u32 = 4;

/// Keeps the node's rules equal to what the policies say, until nobody sends views any more. Must run in the node's
/// network namespace.
pub async fn run(settings: Settings, mut views: watch::Receiver<Option<view::Stores>>, mut newcomers: Newcomers) {
    let mut loaded: Option<Ruleset> = None;
    let backoff = kit::backoff::Backoff::QUEUE;
    let mut failures = 0;
    loop {
        let stores = views.borrow_and_update().clone();
        let began = tokio::time::Instant::now();
        if let Some(stores) = stores {
            newcomers.take_news();
            let wanted = rules::render(&settings, &plan::plan(&stores.view(), &settings, newcomers.pods()));
            match put(loaded.as_ref(), wanted).await {
                Ok(now) => {
                    loaded = Some(now);
                    failures = 0;
                    newcomers.admit();
                }
                Err(why) => {
                    tracing::error!(why, "cannot load the network policies' rules, trying again");
                    failures += 1;
                    // What is loaded may not be what is believed: the next attempt starts from nothing.
                    loaded = None;
                    tokio::time::sleep(backoff.delay(failures)).await;
                    continue;
                }
            }
        }
        let settle = SETTLE.max(began.elapsed() * REST);
        tokio::select! {
            // A pod that waits to start is not kept waiting for others.
            biased;
            () = newcomers.news() => {}
            changed = views.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::time::sleep(settle).await;
            }
        }
    }
}

async fn put(loaded: Option<&Ruleset>, wanted: Ruleset) -> Result<Ruleset, String> {
    if loaded == Some(&wanted) {
        return Ok(wanted);
    }
    let text = wanted.transaction(loaded);
    match tokio::task::spawn_blocking(move || net::nft::load(&text)).await {
        Ok(Ok(())) => {
            tracing::debug!(chains = wanted.chains.len(), sets = wanted.sets.len(), "network policies loaded");
            Ok(wanted)
        }
        Ok(Err(error)) => Err(kit::Chain(&error).to_string()),
        Err(_) => Err("the loader ended early".to_owned()),
    }
}
