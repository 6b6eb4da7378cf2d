//! The objects with interfaces, and of them no more than their addresses.

use kube::core::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::mac::Mac;
use super::{machine, pod};

/// A VirtualMachine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VirtualMachine {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
}
meta::kind!(VirtualMachine, "kubevirt.io", "v1", "virtualmachines", NamespaceResourceScope);

/// A VirtualMachineInstance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VirtualMachineInstance {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) spec: Value,
    #[serde(default)]
    pub(super) status: Value,
}
meta::kind!(VirtualMachineInstance, "kubevirt.io", "v1", "virtualmachineinstances", NamespaceResourceScope);

/// A pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pod {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    pub(super) status: Value,
}
meta::kind!(Pod, "", "v1", "pods", NamespaceResourceScope);

/// Set to what was read: the addresses, as the index of a store.
pub(super) trait Addressed {
    /// The addresses of its interfaces.
    fn addresses(&self) -> Vec<Mac>;
    /// Drops all but what the addresses are read from.
    fn trim(&mut self);
    /// True while its interfaces may be on the wire.
    fn is_running(&self) -> bool;
}

/// Words by which a store finds who has an address.
pub(super) fn index(object: &impl Addressed) -> Vec<String> {
    object.addresses().into_iter().map(|mac| mac.to_string()).collect()
}

fn trim_metadata(metadata: &mut ObjectMeta, kept: &[&str]) {
    metadata.finalizers = None;
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| kept.contains(&key.as_str()));
    }
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| kept.contains(&key.as_str()));
    }
}

impl Addressed for VirtualMachine {
    fn addresses(&self) -> Vec<Mac> {
        machine::addresses(&json!({ "spec": self.spec }))
    }

    fn trim(&mut self) {
        trim_metadata(&mut self.metadata, &[]);
        let devices = self.spec.pointer("/template/spec/domain/devices/interfaces").cloned().unwrap_or_default();
        self.spec =
            json!({ "template": { "spec": { "domain": { "devices": { "interfaces": addresses_alone(&devices) } } } } });
    }

    fn is_running(&self) -> bool {
        false
    }
}

/// Names and addresses of a list of interfaces.
fn addresses_alone(interfaces: &Value) -> Value {
    let one = |interface: &Value| json!({ "name": interface["name"], "macAddress": interface["macAddress"] });
    interfaces.as_array().map(|list| list.iter().map(one).collect()).unwrap_or_default()
}

impl Addressed for VirtualMachineInstance {
    /// Those that its status tells, and where it tells none those that were asked for.
    fn addresses(&self) -> Vec<Mac> {
        let list = |value: &Value, field: &str| -> Vec<Mac> {
            let interfaces = value.as_array().map(Vec::as_slice).unwrap_or_default();
            interfaces.iter().filter_map(|one| Mac::parse(one[field].as_str()?)).collect()
        };
        let told = list(&self.status["interfaces"], "mac");
        let asked = list(self.spec.pointer("/domain/devices/interfaces").unwrap_or(&Value::Null), "macAddress");
        if told.is_empty() { asked } else { told }
    }

    fn trim(&mut self) {
        trim_metadata(&mut self.metadata, &[]);
        let asked = self.spec.pointer("/domain/devices/interfaces").cloned().unwrap_or_default();
        self.spec = json!({ "domain": { "devices": { "interfaces": addresses_alone(&asked) } } });
        let told = self.status["interfaces"].as_array().cloned().unwrap_or_default();
        let told: Vec<Value> = told.iter().map(|one| json!({ "mac": one["mac"] })).collect();
        let moving = self.status["moving"] == true || self.status.pointer("/migrationState/sourceState").is_some();
        self.status = json!({ "phase": self.status["phase"], "interfaces": told, "moving": moving });
    }

    fn is_running(&self) -> bool {
        // One that moves from another cluster, or namespace, has the address of the one that it will replace.
        self.status["phase"] == "Running" && self.status["moving"] != true
    }
}

/// Whose pods have the addresses of their machines.
const MACHINES: &str = "kubevirt.io";

impl Addressed for Pod {
    fn addresses(&self) -> Vec<Mac> {
        if self.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(MACHINES)) {
            return Vec::new();
        }
        pod::addresses(&json!({ "metadata": { "annotations": self.metadata.annotations } }))
    }

    fn trim(&mut self) {
        trim_metadata(&mut self.metadata, &[MACHINES, "k8s.v1.cni.cncf.io/networks"]);
        self.status = json!({ "phase": self.status["phase"] });
    }

    fn is_running(&self) -> bool {
        self.status["phase"] == "Running"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: Addressed + for<'a> Deserialize<'a>>(object: Value, expect: &[&str], running: bool) {
        let mut object: T = serde_json::from_value(object).unwrap();
        for _ in 0..2 {
            assert_eq!(index(&object), expect);
            object.trim();
        }
        assert_eq!(object.is_running(), running);
    }

    #[test]
    fn addresses_are_read_where_each_kind_has_them_and_outlive_trimming() {
        let one = "02:00:00:00:00:01";
        let interfaces = json!([{ "name": "a", "macAddress": "02-00-00-00-00-01", "bridge": {} }, { "name": "b" }]);
        let template = json!({ "spec": { "domain": { "devices": { "interfaces": interfaces }, "cpu": {} } } });
        check::<VirtualMachine>(json!({ "metadata": {}, "spec": { "template": template } }), &[one], false);
        let vmi = |status: Value| json!({ "metadata": {}, "spec": { "domain": { "devices": { "interfaces": interfaces } } }, "status": status });
        check::<VirtualMachineInstance>(vmi(json!({ "phase": "Running" })), &[one], true);
        let told =
            json!({ "phase": "Running", "interfaces": [{ "mac": "02:00:00:00:00:02", "ipAddress": "1.1.1.1" }] });
        check::<VirtualMachineInstance>(vmi(told), &["02:00:00:00:00:02"], true);
        let moving = json!({ "phase": "Running", "migrationState": { "sourceState": {} } });
        check::<VirtualMachineInstance>(vmi(moving), &[one], false);
        let pod = |labels: Value| {
            let networks = json!([{ "name": "n", "mac": one }]).to_string();
            json!({ "metadata": { "labels": labels, "annotations": { "k8s.v1.cni.cncf.io/networks": networks } }, "status": { "phase": "Running" } })
        };
        check::<Pod>(pod(json!({})), &[one], true);
        check::<Pod>(pod(json!({ "kubevirt.io": "virt-launcher" })), &[], true);
    }
}
