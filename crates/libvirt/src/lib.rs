//! libvirt, opened at run time: nothing to link, nothing to install where it is not used.
//!
//! ```text
//!   Connection::open -- calls (blocking) --> libvirtd
//!        |                                      |
//!        +-- events() <-- one OS thread <-------+     virEventRunDefaultImpl
//! ```
//!
//! Calls block: an async caller wraps them in `spawn_blocking`. Events arrive on a bounded channel; one that does not
//! fit is dropped, since the receiver has others to wake for and reads the state afresh.

mod connection;
mod domain;
mod error;
mod events;
mod library;
mod raw;
mod state;
mod stats;

pub use connection::{Capability, Connection};
pub use domain::{AddressSource, BlockInfo, Domain, Info, InterfaceAddresses};
pub use error::{Error, code};
pub use events::{Event, Lifecycle};
pub use state::{PausedReason, ShutoffReason, State};
pub use stats::{Parameter, Value};

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;
