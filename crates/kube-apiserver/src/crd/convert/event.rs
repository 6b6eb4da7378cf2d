//! Events: core and events.k8s.io differ in the names of their fields, and share their objects.

use serde_json::Value;

/// Fields of events that differ only in name: core, then events.k8s.io.
const RENAMED: [(&str, &str); 6] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
];

fn rename(object: &mut Value, from: &str, to: &str) {
    if let Some(map) = object.as_object_mut()
        && let Some(value) = map.remove(from)
    {
        map.insert(to.to_owned(), value);
    }
}

pub(super) fn from_core(mut object: Value) -> Value {
    for (core, new) in RENAMED {
        rename(&mut object, core, new);
    }
    rename(&mut object, "count", "deprecatedCount");
    object["apiVersion"] = "events.k8s.io/v1".into();
    object["kind"] = "Event".into();
    object
}

pub(super) fn to_core(mut object: Value) -> Value {
    for (core, new) in RENAMED {
        rename(&mut object, new, core);
    }
    rename(&mut object, "deprecatedCount", "count");
    object["apiVersion"] = "v1".into();
    object["kind"] = "Event".into();
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_survive_both_ways() {
        let event = json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "a"}, "message": "m", "count": 2,
            "source": {"component": "c"}, "reason": "R", "series": {"count": 1, "lastObservedTime": "t"}});
        let new = from_core(event.clone());
        assert_eq!(new["regarding"]["name"], "a");
        assert_eq!(new["note"], "m");
        assert_eq!(to_core(new), event);
    }
}
