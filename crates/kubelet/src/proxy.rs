//! The service proxy: Services and their endpoints become one nftables ruleset of the node.
//!
//! ```text
//!  Services, EndpointSlices ── ports::collect ──▶ [Port] ── rules::render ──▶ Ruleset ── transaction ──▶ nft
//! ```
//!
//! Guarantees: a ruleset is loaded whole or not at all, and only when it differs from the loaded one; client affinity
//! survives a change; a Service without endpoints refuses at once instead of timing out.

mod health;
pub mod ports;
pub mod rules;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::watch;

use crate::service_view::View;
use rules::Ruleset;

/// What the proxy must know of its node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// Ranges of the node's pods: what comes from elsewhere is masqueraded on its way to a Service.
    pub pod_cidrs: Vec<IpNet>,
    /// Ranges of cluster IPs.
    pub service_cidrs: Vec<IpNet>,
    /// Addresses in the ranges of cluster IPs that the node itself answers on: cluster DNS.
    pub own_addresses: Vec<std::net::IpAddr>,
}

/// Changes come in bursts, and a ruleset is loaded as a whole.
const SETTLE: Duration = Duration::from_millis(30);

/// Keeps the node's ruleset equal to what `services` says, until the sender is gone. Must run in the node's network
/// namespace.
pub async fn run(settings: Settings, mut services: watch::Receiver<Option<Arc<View>>>) {
    let _health = kit::spawn("health-checks", health::run(settings.clone(), services.clone()));
    let mut loaded: Option<Ruleset> = None;
    let mut there = BTreeSet::new();
    let backoff = kit::backoff::Backoff::QUEUE;
    let mut failures = 0;
    loop {
        let Some(view) = services.borrow_and_update().clone() else {
            if services.changed().await.is_err() {
                return;
            }
            continue;
        };
        let wanted = rules::render(&settings, &ports::collect(&view, &settings));
        if loaded.as_ref() != Some(&wanted) {
            let text = wanted.transaction(loaded.as_ref());
            let outcome = tokio::task::spawn_blocking(move || net::nft::load(&text)).await;
            match outcome {
                Ok(Ok(())) => {
                    let gone = loaded.iter().flat_map(|before| before.udp_endpoints.difference(&wanted.udp_endpoints));
                    forget_flows(net::conntrack::UDP, gone.copied().collect()).await;
                    tracing::debug!(chains = wanted.chains.len(), "service rules loaded");
                    loaded = Some(wanted);
                    failures = 0;
                }
                refused => {
                    let why = match refused {
                        Ok(Err(error)) => error.to_string(),
                        _ => "the loader ended early".to_owned(),
                    };
                    tracing::error!(why, "cannot load the service rules, trying again");
                    failures += 1;
                    // What is loaded may not be what is believed: the next attempt starts from nothing.
                    loaded = None;
                    tokio::time::sleep(backoff.delay(failures)).await;
                    continue;
                }
            }
        }
        let now = ports::existing(&view);
        forget_flows(net::conntrack::TCP, there.difference(&now).copied().collect()).await;
        there = now;
        if services.changed().await.is_err() {
            return;
        }
        tokio::time::sleep(SETTLE).await;
    }
}

/// Has the next packet of a flow to one of these endpoints choose anew.
///
/// UDP has no end of connection: a flow to an endpoint that serves no more would stay translated to it as long as its client
/// talks. A TCP connection is its pod's until that is gone; then nobody would answer, and its client would try for a quarter of
/// an hour. Who is chosen instead refuses what it does not know, so that the client connects again at once, or does know it:
/// a guest that has moved from one pod to another keeps its connections.
async fn forget_flows(protocol: u8, gone: BTreeSet<SocketAddr>) {
    if gone.is_empty() {
        return;
    }
    let forgetting = tokio::task::spawn_blocking(move || {
        net::conntrack::forget(|flow| {
            flow.protocol == protocol && flow.addressed != flow.answering && gone.contains(&flow.answering)
        })
    });
    match forgetting.await {
        Ok(Ok(flows)) => tracing::debug!(flows, "flows to endpoints that are gone are forgotten"),
        Ok(Err(error)) => {
            tracing::warn!(error = %kit::Chain(&error), "flows to endpoints that are gone were not forgotten");
        }
        Err(_) => {}
    }
}
