//! Watches: from a version on, by selection, and the list that arrives as a watch.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::apply;

pub(crate) const TESTS: &[Test] = &[("a_watch_goes_on_from_a_version", a_watch_goes_on_from_a_version)];

fn events(space: &Namespace, query: &str) -> Result<Vec<Value>> {
    let path = format!("/api/v1/namespaces/{}/configmaps?watch=true&timeoutSeconds=1&{query}", space.name());
    let printed = space.kubectl(&["get", "--raw", &path])?;
    printed.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn names(events: &[Value]) -> Vec<String> {
    let words = |event: &Value| format!("{} {}", event["type"], event["object"]["metadata"]["name"]).replace('"', "");
    events.iter().map(words).collect()
}

fn a_watch_goes_on_from_a_version() -> Result<()> {
    let space = Namespace::new("versions-of-a-watch")?;
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    apply(&space, &[map("before")])?;
    let version = space.get("cm", "before")?["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap_or_default();
    apply(&space, &[map("after")])?;
    space.kubectl(&["label", "cm", "after", "a=b"])?;
    space.kubectl(&["delete", "cm", "after"])?;
    let seen = names(&events(&space, &format!("resourceVersion={version}"))?);
    let seen: Vec<_> = seen.iter().filter(|name| !name.contains("kube-root-ca")).map(String::as_str).collect();
    ensure!(seen == ["ADDED after", "MODIFIED after", "DELETED after"], "{seen:?}");
    // What leaves a selection is deleted from its view.
    let selected = names(&events(&space, &format!("resourceVersion={version}&labelSelector=a%3Db"))?);
    ensure!(selected == ["ADDED after", "DELETED after"], "{selected:?}");
    let streamed = events(&space, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")?;
    let end = streamed.iter().find(|event| event["type"] == "BOOKMARK");
    ensure!(
        end.is_some_and(|end| end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"),
        "{streamed:?}"
    );
    ensure!(names(&streamed).contains(&"ADDED before".to_owned()), "{streamed:?}");
    Ok(())
}
