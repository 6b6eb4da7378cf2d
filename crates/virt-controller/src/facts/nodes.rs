//! Nodes that do not answer. Pure.

/// `status.reason` of a machine that was given up with its node, and the reason of events about it.
pub const NODE_UNRESPONSIVE: &str = "NodeUnresponsive";
/// The administrator's word that a node is down for good.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A node that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The administrator says that it is down.
    pub word: bool,
}
