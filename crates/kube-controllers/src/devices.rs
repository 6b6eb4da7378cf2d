//! Dynamic resource allocation: devices that drivers publish in slices, and the claims by which pods ask for them.
//!
//! ```text
//!  template --controller--> claim of the pod --scheduler--> allocation, reservedFor --kubelet, driver--> container
//!                                 ^                                 |
//!                                 +------- controller: the pods that had it are gone ------+
//! ```
//!
//! Invariants: a device is in at most one allocation, but for administrators' access, from the moment of the decision, which
//! the scheduler keeps until the store has it written; what is allocated is written before the pod is bound; what a selector
//! costs is bounded for all of a pod's claims together.

pub(crate) mod allocate;
pub(crate) mod claims;
mod controller;
pub(crate) mod inventory;
pub mod kinds;
pub(crate) mod order;
pub(crate) mod reserve;

pub use controller::run;

/// Keeps a claim while its devices are allocated.
pub(crate) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// On a claim that was made of a template: which of the pod's claims it is.
pub(crate) const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
