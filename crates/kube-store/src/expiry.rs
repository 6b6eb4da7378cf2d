//! Objects that end by themselves: events, after an hour.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Store;

const EVENTS: &str = "events";
const LIFETIME: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);
const ROUND: Duration = Duration::from_secs(60);

/// Removes old events by the clock `now`, for as long as the store is used by anybody else.
pub async fn run(store: Weak<Store>, now: fn() -> jiff::Timestamp) {
    loop {
        tokio::time::sleep(ROUND).await;
        let Some(store) = store.upgrade() else { return };
        sweep(&store, now()).await;
    }
}

async fn sweep(store: &Arc<Store>, now: jiff::Timestamp) {
    let oldest = now.saturating_sub(LIFETIME).unwrap_or(jiff::Timestamp::MIN);
    for object in store.list(EVENTS, None).objects {
        let event = object.value();
        // An event that repeats is as old as its last repetition.
        let times =
            [&event["series"]["lastObservedTime"], &event["lastTimestamp"], &event["metadata"]["creationTimestamp"]];
        let time = times.iter().filter_map(|time| time.as_str()?.parse::<jiff::Timestamp>().ok()).max();
        if time.is_none_or(|time| time < oldest) {
            // One that changed meanwhile is looked at again in the next round.
            let _ = store.delete(object.key.clone(), object.revision).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Key;

    #[tokio::test]
    async fn old_events_go() {
        let store = Store::open(None, 64).unwrap();
        let now: jiff::Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        for (name, created, last) in
            [("old", "10:00:00", "10:30:00"), ("repeated", "10:00:00", "11:30:00"), ("new", "11:30:00", "11:30:00")]
        {
            let event = json!({"metadata": {"creationTimestamp": format!("2026-01-01T{created}Z")}, "lastTimestamp": format!("2026-01-01T{last}Z")});
            store.create(Key::new(EVENTS, "default", name), event).await.unwrap();
        }
        sweep(&store, now).await;
        let left: Vec<String> = store.list(EVENTS, None).objects.iter().map(|o| o.key.name.to_string()).collect();
        assert_eq!(left, ["new", "repeated"]);
    }
}
