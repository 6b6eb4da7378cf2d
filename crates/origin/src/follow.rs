//! Where a DataVolume's reference leads in the end.

use std::collections::BTreeMap;

use api::cdi::v1beta1::{DataSource, DataSourceSource, DataVolumeSpec};
use kube::{Api, Client, ResourceExt};

use crate::Source;

/// What a reference leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What is copied.
    pub source: Source,
    /// The labels of the DataSource that was named, if one was.
    pub labels: BTreeMap<String, String>,
}

/// Why a reference leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dead {
    /// There is no such DataSource.
    #[error("SourceRef DataSource/{0} not found")]
    Missing(String),
    /// It names nothing.
    #[error("Empty source field in '{0}'. DataSource may not be ready yet")]
    Empty(String),
    /// It points out of its namespace.
    #[error("DataSource {0} cannot reference a DataSource in another namespace: {1}")]
    Elsewhere(String, String),
    /// It points to one that points on.
    #[error("DataSource {0} points to DataSource {1}, which points on: name what that points to")]
    TooLong(String, String),
}

/// Follows the reference of `spec`, a DataVolume's of `namespace`, by asking the cluster.
///
/// # Errors
/// When the cluster cannot be asked.
pub async fn live(client: &Client, spec: &DataVolumeSpec, namespace: &str) -> kube::Result<Option<Result<End, Dead>>> {
    let find = |namespace: String, name: String| async move {
        Api::<DataSource>::namespaced(client.clone(), &namespace).get_opt(&name).await
    };
    follow(spec, namespace, find).await
}

/// Follows the reference of `spec`, a DataVolume's of `namespace`; `find` has the DataSources by namespace and name. None when nothing is
/// copied. What a DataSource's status says is not believed: whoever may change it may write that, too.
///
/// # Errors
/// What `find` fails with.
pub async fn follow<F, Found, E>(
    spec: &DataVolumeSpec,
    namespace: &str,
    find: F,
) -> Result<Option<Result<End, Dead>>, E>
where
    F: Fn(String, String) -> Found,
    Found: Future<Output = Result<Option<DataSource>, E>>,
{
    if let Some(source) = &spec.source {
        let named = DataSourceSource { data_source: None, pvc: source.pvc.clone(), snapshot: source.snapshot.clone() };
        return Ok(end(&named, namespace).map(|source| Ok(End { source, labels: BTreeMap::new() })));
    }
    let Some(reference) = spec.source_ref.as_ref().filter(|reference| reference.kind == "DataSource") else {
        return Ok(None);
    };
    let at = reference.namespace.as_deref().filter(|at| !at.is_empty()).unwrap_or(namespace);
    let first = format!("{at}/{}", reference.name);
    let Some(named) = find(at.to_owned(), reference.name.clone()).await? else {
        return Ok(Some(Err(Dead::Missing(first))));
    };
    let mut last = named.spec.source.clone();
    if let Some(pointer) = &named.spec.source.data_source {
        let second = format!("{}/{}", pointer.namespace, pointer.name);
        if pointer.namespace != at {
            return Ok(Some(Err(Dead::Elsewhere(first, second))));
        }
        let Some(found) = find(at.to_owned(), pointer.name.clone()).await? else {
            return Ok(Some(Err(Dead::Missing(second))));
        };
        if found.spec.source.data_source.is_some() {
            return Ok(Some(Err(Dead::TooLong(first, second))));
        }
        last = found.spec.source;
    }
    let labels = named.labels().clone();
    let found = end(&last, namespace).map(|source| End { source, labels });
    Ok(Some(found.ok_or(Dead::Empty(reference.name.clone()))))
}

/// What is named outright.
fn end(named: &DataSourceSource, namespace: &str) -> Option<Source> {
    let of = |snapshot: bool, at: &str, name: &str| {
        let namespace = if at.is_empty() { namespace } else { at }.to_owned();
        Source { snapshot, namespace, name: name.to_owned() }
    };
    match (&named.pvc, &named.snapshot) {
        (Some(pvc), _) => Some(of(false, &pvc.namespace, &pvc.name)),
        (None, Some(snapshot)) => Some(of(true, &snapshot.namespace, &snapshot.name)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::FutureExt;
    use serde_json::{Value, json};

    use super::*;

    fn sources() -> Vec<DataSource> {
        let source = |name: &str, source: Value, status: Value| {
            let object = json!({
                "metadata": { "namespace": "here", "name": name, "labels": { "of": name } },
                "spec": { "source": source }, "status": { "source": status },
            });
            serde_json::from_value(object).unwrap()
        };
        let to = |namespace: &str, name: &str| json!({ "dataSource": { "namespace": namespace, "name": name } });
        let own = json!({ "pvc": { "namespace": "here", "name": "own" } });
        vec![
            source("d", json!({ "pvc": { "namespace": "g", "name": "v1" } }), json!(null)),
            source("s", json!({ "snapshot": { "namespace": "g", "name": "s1" } }), json!(null)),
            source("pointer", to("here", "s"), own.clone()),
            source("liar", json!({ "pvc": { "namespace": "g", "name": "v1" } }), own),
            source("far", to("g", "d"), json!(null)),
            source("long", to("here", "pointer"), json!(null)),
            source("self", to("here", "self"), json!(null)),
            source("broken", to("here", "gone"), json!(null)),
            source("empty", json!({}), json!(null)),
        ]
    }

    #[track_caller]
    fn check(spec: Value, expect: &str) {
        let (spec, all) = (serde_json::from_value(spec).unwrap(), sources());
        let find = |namespace: String, name: String| {
            let found = all.iter().find(|one| one.namespace() == Some(namespace.clone()) && one.name_any() == name);
            std::future::ready(Ok::<_, Infallible>(found.cloned()))
        };
        let found = follow(&spec, "here", find).now_or_never().unwrap().unwrap();
        let said = found.map_or(String::new(), |found| {
            found.map_or_else(|dead| dead.to_string(), |end| format!("{} {:?}", end.source, end.labels.get("of")))
        });
        assert_eq!(said, expect);
    }

    #[test]
    fn a_reference_is_followed_to_its_end() {
        let named = |name: &str| json!({ "sourceRef": { "kind": "DataSource", "name": name } });
        check(json!({ "source": { "blank": {} } }), "");
        check(json!({}), "");
        check(json!({ "source": { "pvc": { "namespace": "a", "name": "x" } } }), "persistentvolumeclaims/a/x None");
        check(json!({ "source": { "snapshot": { "namespace": "", "name": "x" } } }), "volumesnapshots/here/x None");
        check(named("d"), "persistentvolumeclaims/g/v1 Some(\"d\")");
        check(named("pointer"), "volumesnapshots/g/s1 Some(\"pointer\")");
        check(named("liar"), "persistentvolumeclaims/g/v1 Some(\"liar\")");
        check(named("gone"), "SourceRef DataSource/here/gone not found");
        check(named("broken"), "SourceRef DataSource/here/gone not found");
        check(named("far"), "DataSource here/far cannot reference a DataSource in another namespace: g/d");
        let long = "points to DataSource here/pointer, which points on: name what that points to";
        check(named("long"), &format!("DataSource here/long {long}"));
        let itself = "points to DataSource here/self, which points on: name what that points to";
        check(named("self"), &format!("DataSource here/self {itself}"));
        check(named("empty"), "Empty source field in 'empty'. DataSource may not be ready yet");
    }
}
