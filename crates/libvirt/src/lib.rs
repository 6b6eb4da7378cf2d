//! A client of libvirt that speaks its wire protocol: nothing to link, nothing to load, no `unsafe`.
//!
//! ```text
//!   Connection::open -- calls (blocking) --> libvirtd
//!        |                                      |
//!        +-- events() <-- one OS thread <-------+
//! ```
//!
//! Calls block: an async caller wraps them in `spawn_blocking`. Events arrive on a bounded channel; one that does not
//! fit is dropped, since the receiver has others to wake for and reads the state afresh.
//!
//! libvirt's own library does the same for a client, and with what it loads it costs each process that opens it
//! 15 MiB: too much for a launcher, of which every machine has one.
#![forbid(unsafe_code)]

mod backup;
mod client;
mod connection;
mod domain;
mod error;
mod events;
mod migration;
mod packet;
mod screenshot;
mod state;
mod stats;
mod wire;
mod xdr;

pub use backup::{Ended as BackupEnded, ended as backup_ended};
pub use connection::{Capability, Connection};
pub use domain::{AddressSource, BlockInfo, Domain, Info, InterfaceAddresses};
pub use error::{Error, code};
pub use events::{Event, Lifecycle};
pub use migration::{Job, Migration};
pub use state::{PausedReason, ShutoffReason, State};
pub use stats::{Parameter, Value};
pub use xdr::Malformed;

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;
