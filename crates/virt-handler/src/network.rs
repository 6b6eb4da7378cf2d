//! A guest's network: what the pod was given, handed on to the guest.
//!
//! ```text
//! masquerade:  eth0 (pod's address) --nft nat--> k6t-eth0 (bridge, 10.0.2.1) -- tap0 -- guest 10.0.2.2
//! bridge:      eth0 (no address) -- k6t-eth0 (bridge) -- tap0 -- guest with the pod's address and MAC
//! secondary:   pod1a2b… (no address) -- k6t-1a2b… (bridge) -- tap1 -- guest on that network
//! ```
//! [`plan`] is pure: interfaces of the VMI and links of the pod -> what to make. [`apply`] makes it, idempotently, in the
//! pod's network namespace. Address servers run in this process on sockets of that namespace, so they come back with it.

mod apply;
mod observe;
mod plan;

pub(crate) use apply::{Plugged, announce, forget_gone, forget_now, plug};
pub(crate) use plan::is_secondary;
