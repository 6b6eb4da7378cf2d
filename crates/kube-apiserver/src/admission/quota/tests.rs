//! Quotas by data.

use std::sync::Arc;

use serde_json::{Value, json};

use apimachinery::request::{RequestInfo, User};

use super::*;
use crate::registry::Resource;
use crate::view::Fixed;

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"containers": [{"name": "c", "resources": resources}]}})
}

fn create(plural: &str, object: Value) -> Attributes {
    let resource = Resource { plural: plural.into(), version: "v1".into(), namespaced: true, ..Resource::default() };
    Attributes {
        info: RequestInfo::default(),
        user: User::admin(),
        resource: Arc::new(resource),
        operation: Operation::Create,
        namespace: "n".into(),
        name: text(&object, "/metadata/name").into(),
        object: Some(object),
        old: None,
        options: Value::Null,
        dry_run: false,
    }
}

async fn check(spec: Value, existing: Vec<(&str, Value)>, write: &Attributes, expect: &str) {
    let quota = json!({"metadata": {"name": "q", "namespace": "n"}, "spec": spec});
    let mut view = Fixed::default().with("", "resourcequotas", quota);
    for (plural, object) in existing {
        view = view.with("", plural, object);
    }
    let outcome = super::check(&view, &Turns::default(), write).await;
    let said = outcome.err().map(|error| error.message).unwrap_or_default();
    let (_, said) = said.split_once("is forbidden: ").unwrap_or(("", &said));
    assert_eq!(said, expect, "{spec}");
}

#[tokio::test]
async fn pods_are_summed() {
    let old = || vec![("pods", pod("old", json!({"requests": {"cpu": "600m", "memory": "1Gi"}})))];
    let new = create("pods", pod("p", json!({"requests": {"cpu": "500m", "memory": "1Gi"}})));
    check(json!({"hard": {"cpu": "2", "memory": "2Gi"}}), old(), &new, "").await;
    let expect =
        "exceeded quota: q, requested: cpu=500m,memory=1Gi, used: cpu=600m,memory=1Gi, limited: cpu=1,memory=1536Mi";
    check(json!({"hard": {"cpu": "1", "memory": "1.5Gi", "pods": "5"}}), old(), &new, expect).await;
    let expect = "failed quota: q: must specify limits.cpu for: c; limits.memory for: c";
    check(json!({"hard": {"limits.cpu": "1", "limits.memory": "1Gi", "requests.cpu": "9"}}), old(), &new, expect).await;
    let mut over = old();
    over[0].1["status"] = json!({"phase": "Succeeded"});
    check(json!({"hard": {"pods": "1", "cpu": "1"}}), over.clone(), &new, "").await;
    let expect = "exceeded quota: q, requested: count/pods=1, used: count/pods=1, limited: count/pods=1";
    check(json!({"hard": {"count/pods": "1"}}), over, &new, expect).await;
}

#[tokio::test]
async fn scopes_choose_pods() {
    let plain = create("pods", pod("p", json!({})));
    let asking = create("pods", pod("p", json!({"requests": {"cpu": "1m"}})));
    let full = "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0";
    let none = json!({"pods": "0"});
    check(json!({"hard": none, "scopes": ["BestEffort"]}), vec![], &plain, full).await;
    check(json!({"hard": none, "scopes": ["BestEffort"]}), vec![], &asking, "").await;
    check(json!({"hard": none, "scopes": ["NotBestEffort", "NotTerminating"]}), vec![], &asking, full).await;
    check(json!({"hard": none, "scopes": ["Terminating"]}), vec![], &asking, "").await;
    let class = |operator: &str, values: Value| {
        json!({"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": values}]}})
    };
    check(class("In", json!(["high"])), vec![], &plain, "").await;
    check(class("NotIn", json!(["high"])), vec![], &plain, full).await;
    let mut high = plain.clone();
    high.object.as_mut().unwrap()["spec"]["priorityClassName"] = "high".into();
    check(class("In", json!(["high"])), vec![], &high, full).await;
    check(class("DoesNotExist", json!([])), vec![], &high, "").await;
}

#[tokio::test]
async fn claims_are_counted_by_their_class_of_attributes() {
    let claim = |spec: Option<&str>, current: Option<&str>| {
        json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {"volumeAttributesClassName": spec,
            "resources": {"requests": {"storage": "2Gi"}}}, "status": {"currentVolumeAttributesClassName": current}})
    };
    let quota = |operator: &str, values: Value| {
        json!({"hard": {"requests.storage": "1Gi"}, "scopeSelector": {"matchExpressions": [
            {"scopeName": "VolumeAttributesClass", "operator": operator, "values": values}]}})
    };
    let gold = || quota("In", json!(["gold"]));
    let full =
        "exceeded quota: q, requested: requests.storage=2Gi, used: requests.storage=0, limited: requests.storage=1Gi";
    let kind = "persistentvolumeclaims";
    let new = |spec| create(kind, claim(spec, None));
    check(gold(), vec![], &new(Some("gold")), full).await;
    check(gold(), vec![], &new(Some("silver")), "").await;
    check(gold(), vec![], &new(None), "").await;
    check(quota("NotIn", json!(["gold"])), vec![], &new(None), full).await;
    check(quota("Exists", json!([])), vec![], &new(Some("silver")), full).await;
    check(quota("DoesNotExist", json!([])), vec![], &new(Some("silver")), "").await;
    let scoped = json!({"hard": {"requests.storage": "1Gi"}, "scopes": ["VolumeAttributesClass"]});
    check(scoped, vec![], &new(Some("silver")), full).await;
    // A claim that takes another class is new to the quota of that class.
    let old = claim(Some("silver"), Some("silver"));
    let mut taken = create(kind, claim(Some("gold"), Some("silver")));
    (taken.operation, taken.old) = (Operation::Update, Some(old.clone().into()));
    check(gold(), vec![(kind, old)], &taken, full).await;
}

#[tokio::test]
async fn claims_and_services_have_names_of_their_own() {
    let claim = |name: &str, size: &str| json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": size}}}});
    let old = vec![("persistentvolumeclaims", claim("old", "1Gi"))];
    let new = create("persistentvolumeclaims", claim("new", "2Gi"));
    let expect = "exceeded quota: q, requested: fast.storageclass.storage.k8s.io/requests.storage=2Gi, \
                  used: fast.storageclass.storage.k8s.io/requests.storage=1Gi, limited: fast.storageclass.storage.k8s.io/requests.storage=2Gi";
    check(
        json!({"hard": {"fast.storageclass.storage.k8s.io/requests.storage": "2Gi", "requests.storage": "9Gi"}}),
        old.clone(),
        &new,
        expect,
    )
    .await;
    check(json!({"hard": {"slow.storageclass.storage.k8s.io/persistentvolumeclaims": "0"}}), old, &new, "").await;
    let mut larger = create("persistentvolumeclaims", claim("old", "2Gi"));
    (larger.operation, larger.old) = (Operation::Update, Some(claim("old", "1Gi").into()));
    let expect =
        "exceeded quota: q, requested: requests.storage=1Gi, used: requests.storage=1Gi, limited: requests.storage=1Gi";
    let old = vec![("persistentvolumeclaims", claim("old", "1Gi"))];
    check(json!({"hard": {"requests.storage": "1Gi"}}), old, &larger, expect).await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]}});
    let expect =
        "exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=0, limited: services.nodeports=1";
    check(json!({"hard": {"services.nodeports": "1", "services": "1"}}), vec![], &create("services", service), expect)
        .await;
}
