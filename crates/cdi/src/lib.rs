//! CDI, the containerized data importer: disks from elsewhere become volumes.
//!
//! ```text
//!  CDI object ──▶ operator ──deploys──▶ controller, apiserver, uploadproxy
//!  DataVolume, claim with a populator ──▶ controller ──pods──▶ importer, uploadserver, cloner ──▶ the volume
//!  DataImportCron ──▶ controller ──pod──▶ poller ──digest──▶ controller ──▶ DataVolume
//!  UploadTokenRequest ──▶ apiserver ──token──▶ client ──▶ uploadproxy ──▶ uploadserver
//! ```
//!
//! Each program is a module with `Args` and `run`. They share no memory and no module but this list's small ones and the
//! words of `api`: what one tells another stands in an object, an environment variable or a termination message.

mod answer;
pub mod apiserver;
pub mod cloner;
pub mod controller;
pub mod error;
pub mod importer;
mod mutual;
pub mod operator;
pub mod poller;
mod progress;
mod security;
mod termination;
pub mod token;
mod unread;
pub mod uploadproxy;
pub mod uploadserver;
mod volume;

pub use error::Error;
