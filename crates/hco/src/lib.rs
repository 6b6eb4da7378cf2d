//! The HyperConverged operator: one object from which everything else follows.
//!
//! ```text
//! HyperConverged --> operator --> KubeVirt, CDI, NetworkAddonsConfig, SSP --> their operators
//!       ^                `<------------- what these say of themselves --------------'
//!       `-- webhook: what cannot be done is refused before it is stored; versions v1 and v1beta1
//! ```

pub mod child;
pub mod conversion;
pub mod downloads;
mod error;
mod feature_gates;
mod golden_images;
pub mod injector;
pub mod operator;
mod patches;
pub mod refusal;
pub mod release;
pub mod render;
pub mod status;
pub mod topology;
mod tree;
pub mod webhook;

pub use error::Error;
