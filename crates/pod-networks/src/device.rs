//! Devices of pods that are interfaces: a definition names a resource, a container of the pod asks for it, and the plugin is told which
//! device the pod was given.

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use net::cni::Network;
use serde_json::json;

use crate::records::{Device, Record};
use crate::{Error, Networks, Result};

/// On a NetworkAttachmentDefinition: the resource whose devices are interfaces of the network.
pub const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";

/// Who knows which devices a pod has: the kubelet.
pub trait Devices: Send + Sync {
    /// Those of the resource, in the order in which they were given; none where no container asks for it.
    fn of<'a>(&'a self, pod: &'a Pod, resource: &'a str) -> BoxFuture<'a, Result<Vec<String>>>;
}

impl Networks {
    /// A device of the pod's for another interface, of which its plugins are told as `deviceID`.
    ///
    /// # Errors
    /// When the pod has none that is free, or nobody can say.
    pub(crate) async fn device(
        &self,
        pod: &Pod,
        record: &Record,
        resource: &str,
        network: &mut Network,
    ) -> Result<Option<Device>> {
        let Some(devices) = &self.devices else { return Ok(None) };
        let given = devices.of(pod, resource).await?;
        let device = free(record, resource, given).map_err(Error::Invalid)?;
        tell(network, &device.id);
        Ok(Some(device))
    }
}

/// The first device that is no interface yet. The error is a sentence for the pod's owner. Pure.
fn free(record: &Record, resource: &str, given: Vec<String>) -> Result<Device, String> {
    let many = given.len();
    let is_taken = |id: &String| {
        let taken = record.entries.iter().filter_map(|entry| entry.device.as_ref());
        taken.into_iter().any(|device| device.resource == resource && device.id == *id)
    };
    let found = given.into_iter().find(|id| !is_taken(id));
    let id = found.ok_or_else(|| {
        format!("it has {many} devices of {resource}, and no more interfaces than that: a container asks for them in resources.limits")
    })?;
    Ok(Device { resource: resource.to_owned(), id })
}

/// As the meta plugin of the network plumbing group tells plugins of devices; `pciBusID` is what older ones read.
fn tell(network: &mut Network, id: &str) {
    for plugin in &mut network.plugins {
        plugin["deviceID"] = json!(id);
        plugin["pciBusID"] = json!(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Entry;

    const RED: &str = "example.com/red";

    fn made(resource: &str, id: &str) -> Entry {
        Entry { device: Some(Device { resource: resource.into(), id: id.into() }), ..Entry::default() }
    }

    #[track_caller]
    fn check(entries: &[Entry], given: &[&str], expect: Result<&str, &str>) {
        let record = Record { own: None, entries: entries.to_vec() };
        let found = free(&record, RED, given.iter().map(ToString::to_string).collect());
        match expect {
            Ok(id) => assert_eq!(found, Ok(Device { resource: RED.into(), id: id.into() })),
            Err(words) => assert!(found.clone().is_err_and(|why| why.contains(words)), "{found:?}"),
        }
    }

    #[test]
    fn each_interface_is_a_device_of_its_own() {
        check(&[], &["a", "b"], Ok("a"));
        check(&[made(RED, "a")], &["a", "b"], Ok("b"));
        check(&[made("example.com/blue", "a"), Entry::default()], &["a"], Ok("a"));
        check(&[made(RED, "a")], &["a"], Err("it has 1 devices of example.com/red"));
        check(&[], &[], Err("a container asks for them in resources.limits"));
    }

    #[test]
    fn every_plugin_of_a_chain_is_told() {
        let plugins = vec![json!({ "type": "macvtap" }), json!({ "type": "tuning" })];
        let mut network = Network { name: "red".into(), version: "1.0.0".into(), plugins };
        tell(&mut network, "tap7");
        assert_eq!(network.plugins[0], json!({ "type": "macvtap", "deviceID": "tap7", "pciBusID": "tap7" }));
        assert_eq!(network.plugins[1]["deviceID"], "tap7");
    }
}
