//! A pod as the API server tells it, with what it says beyond the fields of [`Pod`].
//!
//! `spec.hostnameOverride` is the pod's host name in place of `spec.hostname`, and has nothing to do with its place in DNS: on
//! the node it stands in `spec.hostname`, and there is no subdomain. What the node writes back is the pod's status alone.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Told(pub(super) Pod);

impl<'de> Deserialize<'de> for Told {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let name = value["spec"]["hostnameOverride"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let mut pod: Pod = serde_json::from_value(value).map_err(D::Error::custom)?;
        if let (Some(name), Some(spec)) = (name, &mut pod.spec) {
            spec.hostname = Some(name);
            spec.subdomain = None;
        }
        Ok(Self(pod))
    }
}

impl Resource for Told {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields::hostname;

    #[test]
    fn a_host_name_that_overrides_stands_in_place_of_the_others() {
        let told = |names: Value| {
            let mut spec = json!({"containers": []});
            spec.as_object_mut().unwrap().extend(names.as_object().unwrap().clone());
            let Told(pod) = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
            (hostname(&pod), pod.spec.unwrap().subdomain)
        };
        assert_eq!(told(json!({})), ("p".to_owned(), None));
        let (host, domain) = (json!({"hostname": "h", "subdomain": "s"}), Some("s".to_owned()));
        assert_eq!(told(host), ("h".to_owned(), domain));
        let long = format!("{}.{}", "a".repeat(31), "b".repeat(32));
        assert_eq!(told(json!({"hostname": "h", "subdomain": "s", "hostnameOverride": long})), (long, None));
    }
}
