//! Devices of pods that are interfaces: a definition names a resource, a container of the pod asks for it, and the plugin is told which
//! device the pod was given.

use std::collections::BTreeSet;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use net::cni::Network;
use serde_json::{Value, json};

use crate::records::{Device, Record};
use crate::{Error, Networks, Result, Wanted};

/// On a NetworkAttachmentDefinition: the resource whose devices are interfaces of the network.
pub(crate) const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";

/// Who knows which devices a pod has: the kubelet.
pub trait Devices: Send + Sync {
    /// Those of the resource, in the order in which they were given; none where no container asks for it, or where it is an amount
    /// without devices.
    fn of<'a>(&'a self, pod: &'a Pod, resource: &'a str) -> BoxFuture<'a, Result<Vec<String>>>;

    /// The pod has another sandbox: links that were made of its devices went with the one before.
    fn went_with_their_sandbox(&self, _pod: &Pod, _resource: &str) {}
}

impl Networks {
    /// A device of the pod's for another interface, of which its plugins are told as `deviceID`. None where the resource is an amount
    /// without devices, or the pod does not ask for it: a plugin that takes a device says so itself.
    ///
    /// # Errors
    /// When all that the pod has are interfaces already, or nobody can say.
    pub(crate) async fn device(
        &self,
        pod: &Pod,
        record: &Record,
        resource: Option<&str>,
        network: &mut Network,
    ) -> Result<Option<Device>> {
        // Whoever writes a definition does not choose among the devices of the node.
        tell(network, None);
        let (Some(devices), Some(resource)) = (&self.devices, resource) else { return Ok(None) };
        let given = devices.of(pod, resource).await?;
        let device = free(record, resource, given).map_err(Error::Invalid)?;
        tell(network, device.as_ref().map(|device| device.id.as_str()));
        Ok(device)
    }

    /// Before the interfaces of a new sandbox are made.
    pub(crate) fn anew(&self, pod: &Pod, all: &[Wanted]) {
        let resources: BTreeSet<&String> = all.iter().filter_map(|wanted| wanted.resource.as_ref()).collect();
        for (devices, resource) in
            self.devices.iter().flat_map(|devices| resources.iter().map(move |one| (devices, one)))
        {
            devices.went_with_their_sandbox(pod, resource);
        }
    }

    /// Refuses a network of devices for a pod that runs: containers have their devices from their start.
    ///
    /// # Errors
    /// When it is one, or nobody can say.
    pub(crate) async fn must_come_with_the_sandbox(&self, pod: &Pod, wanted: &Wanted) -> Result<()> {
        let (Some(devices), Some(resource)) = (&self.devices, &wanted.resource) else { return Ok(()) };
        if devices.of(pod, resource).await?.is_empty() {
            return Ok(());
        }
        let title = format!("{}/{}", wanted.selected.namespace, wanted.selected.name);
        Err(Error::Invalid(format!(
            "{title}: its interfaces are devices of {resource}, which a pod has from its start: name the network when it is made"
        )))
    }
}

/// The first device that is no interface yet, of those that there are. The error is a sentence for the pod's owner. Pure.
fn free(record: &Record, resource: &str, given: Vec<String>) -> Result<Option<Device>, String> {
    if given.is_empty() {
        return Ok(None);
    }
    let many = given.len();
    let is_taken = |id: &String| {
        let taken = record.entries.iter().filter_map(|entry| entry.device.as_ref());
        taken.into_iter().any(|device| device.resource == resource && device.id == *id)
    };
    let found = given.into_iter().find(|id| !is_taken(id));
    let id = found.ok_or_else(|| {
        format!("each of its {many} devices of {resource} is an interface already: containers ask for as many as there are networks")
    })?;
    Ok(Some(Device { resource: resource.to_owned(), id }))
}

/// As the meta plugin of the network plumbing group tells plugins of devices; `pciBusID` is what older ones read.
fn tell(network: &mut Network, id: Option<&str>) {
    for plugin in network.plugins.iter_mut().filter_map(Value::as_object_mut) {
        for key in ["deviceID", "pciBusID"] {
            match id {
                Some(id) => plugin.insert(key.to_owned(), json!(id)),
                None => plugin.remove(key),
            };
        }
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
            Ok(id) => assert_eq!(found, Ok(Some(Device { resource: RED.into(), id: id.into() }))),
            Err(words) => assert!(found.clone().is_err_and(|why| why.contains(words)), "{found:?}"),
        }
    }

    #[test]
    fn each_interface_is_a_device_of_its_own() {
        check(&[], &["a", "b"], Ok("a"));
        check(&[made(RED, "a")], &["a", "b"], Ok("b"));
        check(&[made("example.com/blue", "a"), Entry::default()], &["a"], Ok("a"));
        check(&[made(RED, "a")], &["a"], Err("each of its 1 devices of example.com/red"));
        // An amount, as of a bridge, has no devices.
        assert_eq!(free(&Record::default(), RED, Vec::new()), Ok(None));
    }

    #[test]
    fn every_plugin_of_a_chain_is_told() {
        let plugins = vec![json!({ "type": "macvtap" }), json!({ "type": "tuning" })];
        let mut network = Network { name: "red".into(), version: "1.0.0".into(), plugins };
        tell(&mut network, Some("tap7"));
        assert_eq!(network.plugins[0], json!({ "type": "macvtap", "deviceID": "tap7", "pciBusID": "tap7" }));
        assert_eq!(network.plugins[1]["deviceID"], "tap7");
        tell(&mut network, None);
        assert_eq!(network.plugins[0], json!({ "type": "macvtap" }));
    }
}
