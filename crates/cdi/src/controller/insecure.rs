//! Registries whose certificate is not checked, and that need not have one: those that the CDIConfig lists, and those of the
//! ConfigMaps in which they were listed before it could.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

use crate::Error;
use crate::controller::context::Context;

/// ConfigMaps beside the controller whose values are registries.
const MAPS: [&str; 2] = ["cdi-insecure-registries", "cdi-insecure-registry"];

/// Whether the registry of the image `url` is one of them.
///
/// # Errors
/// When a ConfigMap cannot be read: an import that was begun would then fail for the wrong reason.
pub async fn is_insecure(context: &Context, url: &str) -> Result<bool, Error> {
    let host = host(url);
    if host.is_empty() || context.settings().insecure_registries.iter().any(|one| one == host) {
        return Ok(!host.is_empty());
    }
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    for name in MAPS {
        let map = api.get_opt(name).await.map_err(Error::api("read", "ConfigMap", name))?;
        if map.is_some_and(|map| lists(&map, host)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Values are registries; a key without a value is one.
fn lists(map: &ConfigMap, host: &str) -> bool {
    map.data
        .iter()
        .flatten()
        .any(|(key, value)| if value.trim().is_empty() { key == host } else { value.trim() == host })
}

/// `host:port` of `docker://host:port/name:tag`.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").filter(|(scheme, _)| *scheme == "docker").map_or("", |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn registries_are_named_by_host_and_port() {
        assert_eq!(host("docker://r.example:5000/a/b:1"), "r.example:5000");
        assert_eq!(host("docker://r.example"), "r.example");
        assert_eq!(host("https://r.example/disk"), "");
        assert_eq!(host("oci-archive:disk.tar"), "");
    }

    #[test]
    fn maps_list_registries_as_values_or_as_keys() {
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(data: Value, expect: bool) {
            let map = serde_json::from_value(json!({ "data": data })).unwrap();
            assert_eq!(lists(&map, "r:5000"), expect);
        }
        check(json!(null), false);
        check(json!({ "mine": "r:5000" }), true);
        check(json!({ "r:5000": "" }), true);
        check(json!({ "r:5000": "other:5000", "a": "r" }), false);
    }
}
