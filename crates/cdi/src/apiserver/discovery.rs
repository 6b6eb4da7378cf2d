//! What the aggregated API says of itself.

use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::upload_token::{GROUP, VERSIONS};

fn group() -> Value {
    let version = |version: &str| json!({ "groupVersion": format!("{GROUP}/{version}"), "version": version });
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP,
        "versions": VERSIONS.map(version), "preferredVersion": version(VERSIONS[0]),
    })
}

fn resources(version: &str) -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{version}"),
        "resources": [{
            "name": "uploadtokenrequests", "singularName": "uploadtokenrequest", "namespaced": true,
            "group": GROUP, "version": version, "kind": "UploadTokenRequest", "verbs": ["create"],
            "shortNames": ["utr", "utrs"],
        }],
    })
}

/// `/apis` and below, but for the resources.
pub(crate) fn router() -> Router {
    let groups = || async { Json(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()] })) };
    let router =
        Router::new().route("/apis", get(groups)).route(&format!("/apis/{GROUP}"), get(|| async { Json(group()) }));
    VERSIONS.into_iter().fold(router, |router, version| {
        router.route(&format!("/apis/{GROUP}/{version}"), get(move || async move { Json(resources(version)) }))
    })
}
