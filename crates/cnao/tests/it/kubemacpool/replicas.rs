//! Two replicas: at once, one after the other, and in the middle of what they do.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::cluster::{Cluster, addresses, create, machine, until};

async fn all_addresses(cluster: &Cluster) -> Vec<String> {
    let machines = cluster.machines().list(&Default::default()).await.unwrap();
    machines.iter().flat_map(addresses).collect()
}

#[track_caller]
fn all_differ(macs: &[String]) {
    let distinct: BTreeSet<&String> = macs.iter().collect();
    assert!(distinct.len() == macs.len() && !macs.iter().any(String::is_empty), "{macs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_at_once_give_two_hundred_machines_addresses_of_their_own() {
    let cluster = Cluster::new([0, 1, 0xff]).await;
    let replicas = [cluster.replica().await, cluster.replica().await];
    let machines = cluster.machines();
    let made = join_all((0..200).map(|at| {
        let machines = machines.clone();
        async move { create(&machines, &machine(&format!("vm-{at}"), &["p", "m"])).await }
    }));
    let macs: Vec<String> = made.await.iter().flat_map(addresses).collect();
    all_differ(&macs);
    assert!(replicas.iter().all(|replica| replica.asked() > 20), "one of them had little to do");
    assert_eq!(cluster.reserved().await, macs.into_iter().collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_are_made_while_replicas_are_exchanged() {
    let cluster = Cluster::new([0, 1, 0xff]).await;
    let mut replicas = [cluster.replica().await, cluster.replica().await];
    let machines = cluster.machines();
    let making = async {
        for at in 0..60 {
            // What a client does whose request met the end of a replica.
            until("made", async || {
                let made = machines.create(&PostParams::default(), &machine(&format!("vm-{at}"), &["p"])).await;
                made.is_ok().then_some(())
            })
            .await;
        }
    };
    let exchanging = async {
        for (at, made) in [(0, 5), (1, 20), (0, 35)] {
            until("some made", async || (all_addresses(&cluster).await.len() >= made).then_some(())).await;
            let new = cluster.replica().await;
            cluster.kill(std::mem::replace(&mut replicas[at], new)).await;
        }
    };
    tokio::join!(making, exchanging);
    let macs = all_addresses(&cluster).await;
    assert_eq!(macs.len(), 60);
    all_differ(&macs);
}

#[tokio::test]
async fn a_new_replica_knows_what_was_given_before() {
    let cluster = Cluster::new([0, 0, 4]).await;
    let replica = cluster.replica().await;
    for name in ["a", "b"] {
        create(&cluster.machines(), &machine(name, &["p"])).await;
    }
    // Made while nobody answers: it has an address that nobody has reserved.
    cluster.kill(replica).await;
    cluster.namespace("closed", json!({ "mutatevirtualmachines.kubemacpool.io": "ignore" })).await;
    create(&cluster.of("closed"), &machine("c", &["p=02:00:00:00:00:02"])).await;
    let replica = cluster.replica().await;
    let made = create(&cluster.machines(), &machine("d", &["p", "m"])).await;
    let mut macs = addresses(&made);
    macs.sort();
    assert_eq!(macs, ["02:00:00:00:00:03", "02:00:00:00:00:04"]);
    // That a machine went while nobody was there is noticed.
    cluster.kill(replica).await;
    cluster.machines().delete("d", &DeleteParams::default()).await.unwrap();
    let _replica = cluster.replica_waiting(Duration::from_millis(1)).await;
    cluster.until_reserved(&["02:00:00:00:00:00", "02:00:00:00:00:01"]).await;
}

#[tokio::test]
async fn leadership_is_handed_over() {
    let cluster = Cluster::new([0, 0, 0]).await;
    let (first, _second) = (cluster.replica().await, cluster.replica().await);
    for replica in [Some(first), None] {
        let made = until("made", async || {
            cluster.machines().create(&PostParams::default(), &machine("vm", &["p"])).await.ok()
        });
        assert_eq!(addresses(&made.await), ["02:00:00:00:00:00"]);
        cluster.machines().delete("vm", &DeleteParams::default()).await.unwrap();
        cluster.until_reserved(&[]).await;
        if let Some(replica) = replica {
            replica.end().await;
        }
    }
}

#[tokio::test]
async fn addresses_of_requests_that_were_not_stored_are_given_back() {
    let cluster = Cluster::new([0, 0, 1]).await;
    let replica = cluster.replica_waiting(Duration::from_secs(2)).await;
    let object = serde_json::to_value(machine("vm", &["p"])).unwrap();
    let request = json!({ "operation": "CREATE", "namespace": "ns", "object": object });
    let mac = |answer: &serde_json::Value| {
        assert_eq!(answer["allowed"], true, "{answer}");
        answer["patch"].clone()
    };
    let path = "/mutate-virtualmachines";
    let given = mac(&replica.ask(path, &request).await);
    assert_eq!(cluster.reserved().await.len(), 1);
    // The same request again gets the same.
    let again = replica.ask(path, &request).await;
    assert_eq!(cluster.reserved().await.len(), 1);
    assert_eq!(macs(&given), macs(&mac(&again)));
    cluster.until_reserved(&[]).await;
}

/// The addresses in a patch.
fn macs(patch: &serde_json::Value) -> Vec<String> {
    use base64::Engine;
    let bytes = base64::prelude::BASE64_STANDARD.decode(patch.as_str().unwrap()).unwrap();
    let operations: Vec<serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
    let macs = operations.iter().filter(|one| one["path"].as_str().unwrap().ends_with("macAddress"));
    macs.map(|one| one["value"].as_str().unwrap().to_owned()).collect()
}
