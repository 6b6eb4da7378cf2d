//! What the kinds of every API group have in common: quantities, conditions, text that is fit for a status, and what `kube` has to
//! know of a kind; and the kinds of volume snapshots, which the cluster and the components both know.
//!
//! Pure, and below everything: the API server, its controllers and the components read a quantity alike.

pub mod conditions;
pub mod kind;
pub mod quantity;
pub mod text;
pub mod volume_snapshot;
