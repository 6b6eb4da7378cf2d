//! The host's way to Services: through a node that works, because it is the nodes that translate their addresses.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, ResourceExt};
use kubelet::node::host_network;

use crate::nodes::{self, Number};
use crate::state::State;

/// How soon the loss of a node's power or cable is seen, which the cluster takes much longer to believe.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps the host's routes to Services leading through a node that is Ready.
pub(crate) async fn keep(client: kube::Client, state: State) {
    let (nodes, writer) = reflector::store::<Node>();
    let changes = watcher(Api::<Node>::all(client), watcher::Config::default()).default_backoff().reflect(writer);
    let mut changes = std::pin::pin!(changes);
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut current = None;
    loop {
        tokio::select! {
            change = changes.next() => if change.is_none() { return },
            _ = looks.tick() => {}
        }
        let ready: BTreeSet<Number> = nodes
            .state()
            .iter()
            .filter(|node| nodes::is_ready(node, None))
            .filter_map(|node| node.name_any().parse().ok())
            .collect();
        if current.is_some_and(|number| ready.contains(&number)) && works(&state, current).await {
            continue;
        }
        let mut usable = BTreeSet::new();
        for number in ready {
            if works(&state, Some(number)).await {
                usable.insert(number);
            }
        }
        let wanted = choose(current, &usable);
        if wanted == current {
            continue;
        }
        match lead(&state, wanted).await {
            Ok(()) => current = wanted,
            Err(error) => tracing::warn!(error = format!("{error:#}"), "the host cannot be led to Services"),
        }
    }
}

/// The node that is used, as long as it can be; else the first that can. Without any, nothing is gained by a change.
fn choose(current: Option<Number>, usable: &BTreeSet<Number>) -> Option<Number> {
    current.filter(|number| usable.contains(number)).or_else(|| usable.first().copied()).or(current)
}

/// Whether the node has power and is connected.
async fn works(state: &State, number: Option<Number>) -> bool {
    let Some(number) = number else { return false };
    let Ok(config) = state.node(number) else { return false };
    state.node_pid(number).is_ok_and(|pid| pid.is_some()) && host_network::is_plugged(&config).await.unwrap_or(false)
}

async fn lead(state: &State, number: Option<Number>) -> anyhow::Result<()> {
    let Some(number) = number else { return Ok(()) };
    host_network::lead_to_services(&state.node(number)?).await?;
    tracing::info!(node = %number, "the host reaches Services through this node");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::first;

    #[test]
    fn a_node_is_kept_as_long_as_it_works() {
        let numbers = first(3);
        let check = |current: Option<usize>, usable: &[usize], expect: Option<usize>| {
            let usable = usable.iter().map(|n| numbers[n - 1]).collect();
            assert_eq!(choose(current.map(|n| numbers[n - 1]), &usable), expect.map(|n| numbers[n - 1]));
        };
        check(None, &[], None);
        check(None, &[1, 2], Some(1));
        check(Some(2), &[1, 2], Some(2));
        check(Some(1), &[2, 3], Some(2));
        check(Some(1), &[], Some(1));
    }
}
