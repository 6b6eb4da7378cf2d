//! A pod on this node: one worker task owns it from its first sight to its last trace.
//!
//! ```text
//!             +-- volumes --+
//!  [ seen ] --+-- sandbox --+--> init containers --> containers --> all ended --+
//!             +-- images  --+    one by one,         together,      for good    |
//!                                sidecars stay       restarted                  v
//!      |              |               |                  |            sandbox stopped,
//!      +--------------+------ deletion, deadline --------+-------->  volumes given back
//!                                     |                                         |
//!                           stop containers, then sidecars                      | deletion
//!                                     v                                         v
//!                              sandbox stopped ---------------> containers, sandboxes, logs removed,
//!                                                               the API object let go
//! ```
//!
//! The worker ([`worker`]) observes the runtime ([`observed`]), asks [`plan`] what may start now, starts those steps side
//! by side ([`steps`]) and publishes [`status`]. It is woken by the API, by containerd's events, by the end of a step,
//! by a probe, or by the moment the plan named; it never polls.
//!
//! Invariants: only the worker changes its pod's containers, files and status. `plan`, `status` and everything they use
//! are pure. Nothing is remembered that a restart would need: containers, labels and annotations
//! say it all, but for how large containers are, which the record of [`crate::allocation`] says.

pub(crate) mod admission;
pub(crate) mod container;
pub(crate) mod env;
pub(crate) mod environment;
pub(crate) mod hooks;
pub(crate) mod local_storage;
pub(crate) mod mounts;
pub(crate) mod observed;
pub(crate) mod plan;
pub(crate) mod probes;
pub(crate) mod resize;
pub(crate) mod resizing;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod steps;
pub(crate) mod termination;
pub(crate) mod worker;
