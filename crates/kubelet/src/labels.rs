//! The label that tells simulated nodes from others.

/// The label by which simulated nodes are known, with the value [`SIMULATED`].
pub const LABEL: &str = "node.kubernetes.io/instance-type";
/// See [`LABEL`].
pub const SIMULATED: &str = "simulated";
