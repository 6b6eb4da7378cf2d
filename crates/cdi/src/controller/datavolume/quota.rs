//! Whether a namespace's quota has room for a claim twice. Pure.
//!
//! A populator fills a second claim in the place of the first, and both count until the volume has changed hands. Where that is too much,
//! the claim is filled as it stands: an import needs no more quota than what it is an import of.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meta::quantity::Amount;

use crate::controller::storage::requested;

/// True when every quota has room for two claims of `spec`.
pub fn has_room_twice(quotas: &[ResourceQuota], spec: &PersistentVolumeClaimSpec) -> bool {
    let bytes = i64::try_from(requested(spec).unwrap_or_default()).unwrap_or(i64::MAX);
    let class = spec.storage_class_name.as_deref().unwrap_or_default();
    let of_class = |resource: &str| format!("{class}.storageclass.storage.k8s.io/{resource}");
    let needs = [
        ("requests.storage".to_owned(), bytes),
        (of_class("requests.storage"), bytes),
        ("persistentvolumeclaims".to_owned(), 1),
        ("count/persistentvolumeclaims".to_owned(), 1),
        (of_class("persistentvolumeclaims"), 1),
    ];
    quotas.iter().all(|quota| {
        let status = quota.status.clone().unwrap_or_default();
        // One that nobody has counted yet limits all the same.
        let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone()).or(status.hard).unwrap_or_default();
        let used = status.used.unwrap_or_default();
        needs.iter().all(|(resource, need)| {
            let value = |all: &BTreeMap<String, Quantity>| {
                all.get(resource).and_then(|found| Amount::try_from(found).ok()).map(Amount::value)
            };
            value(&hard).is_none_or(|hard| hard.saturating_sub(value(&used).unwrap_or(0)) >= need.saturating_mul(2))
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(hard: Value, used: Value, expect: bool) {
        let quota =
            serde_json::from_value(json!({ "spec": { "hard": hard }, "status": { "hard": hard, "used": used } }))
                .unwrap();
        let spec = json!({ "storageClassName": "fast", "resources": { "requests": { "storage": "1Gi" } } });
        assert_eq!(has_room_twice(&[quota], &serde_json::from_value(spec).unwrap()), expect);
    }

    #[test]
    fn both_claims_count() {
        check(json!({}), json!({}), true);
        check(json!({ "requests.storage": "2Gi" }), json!({ "requests.storage": "0" }), true);
        check(json!({ "requests.storage": "2Gi" }), json!({ "requests.storage": "1" }), false);
        check(json!({ "requests.storage": "1Gi" }), json!({}), false);
        check(json!({ "persistentvolumeclaims": "3" }), json!({ "persistentvolumeclaims": "2" }), false);
        check(json!({ "fast.storageclass.storage.k8s.io/requests.storage": "1500Mi" }), json!({}), false);
        check(json!({ "slow.storageclass.storage.k8s.io/requests.storage": "1Mi" }), json!({}), true);
    }
}
