//! Events as they are written: the same sentence about the same object is one, with a count.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, ServiceAccount};
use kit::events::Severity;
use kube::ResourceExt;
use kube::api::DeleteParams;

use crate::cluster::Cluster;

/// Message -> count of what was said.
fn said(events: &[Event]) -> BTreeMap<&str, i32> {
    let said = events.iter().filter(|event| event.reason.as_deref() == Some("Said"));
    said.filter_map(|event| Some((event.message.as_deref()?, event.count?))).collect()
}

#[tokio::test(start_paused = true)]
async fn a_repeated_event_is_one_with_a_count() {
    let cluster = Cluster::new().await;
    let account = cluster.api::<ServiceAccount>().get("default").await.unwrap();
    let say = |component, message: &str| {
        cluster.ctx.events.record(component, &account, Severity::Normal, "Said", message);
    };
    for _ in 0..3 {
        say("one", "again");
    }
    say("one", "once");
    let written = cluster.until_all::<Event>(|events| said(events).len() == 2).await;
    assert_eq!(said(&written), BTreeMap::from([("again", 1), ("once", 1)]));
    // Counts are written once a minute.
    tokio::time::sleep(Duration::from_secs(61)).await;
    let counted = BTreeMap::from([("again", 3), ("once", 1)]);
    let written = cluster.until_all::<Event>(|events| said(events) == counted).await;
    assert_eq!(written.iter().filter(|event| event.message.as_deref() == Some("again")).count(), 1);

    // Events are deleted after a while; what is repeated then is written anew, with what was counted.
    let event = written.iter().find(|event| event.message.as_deref() == Some("again")).unwrap();
    cluster.api::<Event>().delete(&event.name_any(), &DeleteParams::default()).await.unwrap();
    say("one", "again");
    tokio::time::sleep(Duration::from_secs(61)).await;
    cluster.until_all::<Event>(|events| said(events).get("again") == Some(&4)).await;

    // Another component says it on its own account.
    say("two", "again");
    let of_two = |event: &Event| event.reporting_component.as_deref() == Some("two") && event.count == Some(1);
    cluster.until_all::<Event>(|events| events.iter().any(of_two)).await;
}
