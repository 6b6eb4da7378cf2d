//! What must be known of a machine's disks before it may run elsewhere while its node does not answer. Pure.
//!
//! A node that does not answer may have lost its power, or only its network: its guest may still write. So the guest's
//! disks decide, each by itself:
//!
//! | a disk | may be written elsewhere |
//! |---|---|
//! | made for the pod (containerDisk, emptyDisk, a layer over a claim), or read only | at once: nobody else has it |
//! | on a claim that only the lost node can reach | never; elsewhere nothing could start |
//! | on a claim whose driver attaches volumes to nodes | once it is attached to the lost node no more |
//! | on a claim with a file system whose locks hold between nodes | at once: QEMU does not start without the image's
//! lock |
//! | on any other claim | when the administrator says that the node is down |
//!
//! The administrator says so with the taint `node.kubernetes.io/out-of-service`, as for any pod.

use crate::facts::nodes::OUT_OF_SERVICE;
use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeSpec,
};

/// On a PersistentVolume, `shared`: all its nodes see one file system, and who keeps its locks keeps them for all of
/// them.
pub const LOCKS: &str = "ferrovirt.io/locks";
/// CSI drivers of file systems whose server keeps the locks. The hostpath provisioner's volumes that all nodes reach
/// lie in a
/// directory that all share; its own processes on the nodes keep out of one another's way by locks in it.
const LOCKING_DRIVERS: [&str; 5] = [
    "nfs.csi.k8s.io",
    "cephfs.csi.ceph.com",
    "efs.csi.aws.com",
    "filestore.csi.storage.gke.io",
    "kubevirt.io.hostpath-provisioner",
];

/// What a volume of a machine on a lost node lies on, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Backing {
    /// The volume's name in the machine.
    pub volume: String,
    /// The PersistentVolume; none when it could not be read.
    pub persistent: Option<PersistentVolume>,
    /// The claim is a block device.
    pub block: bool,
    /// The driver attaches volumes to nodes, one after the other.
    pub attachable: bool,
    /// It is attached to the lost node.
    pub attached: bool,
}

/// Why a disk must not be written elsewhere yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody else can reach it.
    Local,
    /// It is still attached.
    Attached,
    /// Nothing would keep two guests from writing it.
    Unguarded,
}

/// What holds the disk of `backing`, written on the lost node `node`, given the nodes of the cluster.
pub fn hold(backing: &Backing, node: &str, nodes: &[Node]) -> Option<Hold> {
    let Some(persistent) = &backing.persistent else { return Some(Hold::Unguarded) };
    let spec = persistent.spec.clone().unwrap_or_default();
    // A machine that has ended may have been on its way to that node without this disk.
    if !reaches(&spec, node, nodes) {
        return None;
    }
    let vouched =
        persistent.metadata.annotations.as_ref().and_then(|all| all.get(LOCKS)).is_some_and(|w| w == "shared");
    if !reachable(&spec, node, nodes, vouched) {
        return Some(Hold::Local);
    }
    if backing.attachable {
        return backing.attached.then_some(Hold::Attached);
    }
    let locks = !backing.block && (vouched || keeps_locks(&spec));
    (!locks).then_some(Hold::Unguarded)
}

/// What keeps a guest from going on where it came from, on the disk of `backing`, while the node `target` that it was
/// being
/// moved to does not answer: it may run there.
pub fn hold_at_target(backing: &Backing, target: &str, nodes: &[Node]) -> Option<Hold> {
    hold(backing, target, nodes).filter(|hold| *hold != Hold::Local)
}

/// The volume is the same one on the node `name` as on others.
fn reaches(spec: &PersistentVolumeSpec, name: &str, nodes: &[Node]) -> bool {
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let Some(required) = required else { return true };
    let node = nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name));
    // Of a node that is gone nothing is known.
    node.is_none_or(|node| required.node_selector_terms.iter().any(|term| selects(term, node)))
}

fn keeps_locks(spec: &PersistentVolumeSpec) -> bool {
    let driver = spec.csi.as_ref().map(|csi| csi.driver.as_str()).unwrap_or_default();
    // Rook puts its name before the driver's.
    let known = |name: &&str| driver == *name || driver.ends_with(&format!(".{name}"));
    spec.nfs.is_some() || spec.cephfs.is_some() || LOCKING_DRIVERS.iter().any(known)
}

/// Some other node can use the volume.
fn reachable(spec: &PersistentVolumeSpec, lost: &str, nodes: &[Node], vouched: bool) -> bool {
    // A directory of a node's own is another one on every node, unless somebody vouches for the contrary.
    if spec.host_path.is_some() || spec.local.is_some() {
        let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
        if required.is_none() {
            return vouched;
        }
    }
    let Some(required) = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref()) else {
        return true;
    };
    let others = nodes.iter().filter(|node| node.metadata.name.as_deref() != Some(lost));
    others.into_iter().any(|node| required.node_selector_terms.iter().any(|term| selects(term, node)))
}

fn selects(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let name = node.metadata.name.clone();
    let by_label = term.match_expressions.iter().flatten().all(|need| met(need, labels.get(&need.key)));
    let by_field = term.match_fields.iter().flatten().all(|need| met(need, name.as_ref()));
    let empty = term.match_expressions.as_ref().is_none_or(Vec::is_empty)
        && term.match_fields.as_ref().is_none_or(Vec::is_empty);
    !empty && by_label && by_field
}

fn met(need: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    let values = need.values.as_deref().unwrap_or_default();
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    match need.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value).zip(number(values.first())).is_some_and(|(is, than)| is > than),
        "Lt" => number(value).zip(number(values.first())).is_some_and(|(is, than)| is < than),
        _ => false,
    }
}

/// What a guest waits for that stands still because the node it was being moved to may run it, in a sentence for
/// people.
pub fn sentence_at_target(node: &str, volume: &str, hold: Hold) -> String {
    let word = format!("kubectl taint node {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute");
    let attached = if hold == Hold::Attached { " once it is detached from it, or" } else { "" };
    format!(
        "node {node} does not answer since the guest was handed over to it, and may be writing volume {volume}: the guest goes \
         on when {node} answers,{attached} when you have made sure that {node} is down and say so with `{word}`"
    )
}

/// What a machine on a lost node waits for, in a sentence for its status.
pub fn sentence(node: &str, volume: &str, hold: Hold) -> String {
    let word = format!("kubectl taint node {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute");
    match hold {
        Hold::Local => format!(
            "node {node} does not answer, and volume {volume} is on a disk that only {node} can reach: the guest runs \
             again when {node} is back"
        ),
        Hold::Attached => format!(
            "node {node} does not answer, and volume {volume} is still attached to it: the guest runs elsewhere once it is \
             detached; if {node} is down for good, say so with `{word}`"
        ),
        Hold::Unguarded => format!(
            "node {node} does not answer, and its guest may still be writing volume {volume}: make sure that {node} is down, \
             then say so with `{word}`, and the guest runs elsewhere"
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn nodes() -> Vec<Node> {
        let node = |name: &str| json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } });
        ["node1", "node2"].map(|name| serde_json::from_value(node(name)).unwrap()).to_vec()
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn volume(spec: Value) -> Backing {
        let persistent = json!({ "metadata": { "name": "pv" }, "spec": spec });
        Backing { persistent: Some(serde_json::from_value(persistent).unwrap()), ..Default::default() }
    }

    fn only(name: &str) -> Value {
        json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": [name] },
        ] }] } })
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(backing: Backing, expect: Option<Hold>) {
        assert_eq!(hold(&backing, "node1", &nodes()), expect);
    }

    #[test]
    fn volumes_local_to_the_lost_node_keep_the_vmi_there() {
        check(
            volume(json!({ "csi": { "driver": "hpp", "volumeHandle": "v" }, "nodeAffinity": only("node1") })),
            Some(Hold::Local),
        );
        check(volume(json!({ "local": { "path": "/x" }, "nodeAffinity": only("node1") })), Some(Hold::Local));
        check(volume(json!({ "hostPath": { "path": "/x" } })), Some(Hold::Local));
        let elsewhere = json!({ "nfs": { "path": "/", "server": "s" }, "nodeAffinity": only("node2") });
        check(volume(elsewhere), None);
    }

    #[test]
    fn an_attachment_is_the_proof() {
        let csi = volume(json!({ "csi": { "driver": "ebs", "volumeHandle": "v" } }));
        check(Backing { attachable: true, attached: true, ..csi.clone() }, Some(Hold::Attached));
        check(Backing { attachable: true, block: true, ..csi.clone() }, None);
        check(csi, Some(Hold::Unguarded));
    }

    #[test]
    fn locks_that_hold_between_nodes_are_enough() {
        let nfs = volume(json!({ "nfs": { "path": "/", "server": "s" } }));
        check(nfs.clone(), None);
        check(Backing { block: true, ..nfs }, Some(Hold::Unguarded));
        check(volume(json!({ "csi": { "driver": "rook-ceph.cephfs.csi.ceph.com", "volumeHandle": "v" } })), None);
        check(volume(json!({ "csi": { "driver": "s3fs", "volumeHandle": "v" } })), Some(Hold::Unguarded));
        let shared = json!({ "csi": { "driver": "kubevirt.io.hostpath-provisioner", "volumeHandle": "v" } });
        check(volume(shared.clone()), None);
        check(Backing { block: true, ..volume(shared.clone()) }, Some(Hold::Unguarded));
        let mut own = shared;
        own["nodeAffinity"] = only("node1");
        check(volume(own), Some(Hold::Local));
        let mut vouched = volume(json!({ "csi": { "driver": "s3fs", "volumeHandle": "v" } }));
        let annotations = [(LOCKS.to_owned(), "shared".to_owned())].into();
        vouched.persistent.as_mut().unwrap().metadata.annotations = Some(annotations);
        check(vouched.clone(), None);
        let spec = |spec: Value| Some(serde_json::from_value(spec).unwrap());
        let mut directory = vouched;
        directory.persistent.as_mut().unwrap().spec = spec(json!({ "hostPath": { "path": "/mnt/nfs" } }));
        check(directory.clone(), None);
        let only_here = json!({ "hostPath": { "path": "/mnt/nfs" }, "nodeAffinity": only("node1") });
        directory.persistent.as_mut().unwrap().spec = spec(only_here);
        check(directory, Some(Hold::Local));
        check(Backing::default(), Some(Hold::Unguarded));
    }

    #[test]
    fn volumes_a_lost_target_cannot_write_do_not_hold_the_source() {
        let check = |backing: Backing, expect| assert_eq!(hold_at_target(&backing, "node2", &nodes()), expect);
        // The target has a disk of its own, which was being copied to.
        check(volume(json!({ "csi": { "driver": "hpp", "volumeHandle": "v" }, "nodeAffinity": only("node1") })), None);
        check(volume(json!({ "hostPath": { "path": "/x" } })), None);
        check(volume(json!({ "nfs": { "path": "/", "server": "s" } })), None);
        let csi = volume(json!({ "csi": { "driver": "ebs", "volumeHandle": "v" } }));
        check(Backing { attachable: true, attached: true, ..csi.clone() }, Some(Hold::Attached));
        check(Backing { attachable: true, ..csi.clone() }, None);
        check(csi, Some(Hold::Unguarded));
        check(Backing::default(), Some(Hold::Unguarded));
    }
}
