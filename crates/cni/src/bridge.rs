//! The plugin `bridge`: a pair of interfaces, one in the container, the other a port of a bridge of the node.
//!
//! ```text
//!  container: net1 --pair-- vethXXXXXXXXXXX --port--> bridge: VLANs, isolation, hairpin; nftables: who may be the sender; masquerading
//! ```
//! The node's end is named after container and interface, and so are its rules: DEL needs no record of what ADD made.

mod add;
mod check;
mod config;
mod del;
mod gateway;
mod network;
mod port;
mod rules;

use serde_json::Value;

use crate::call::{Call, Command};
use crate::error::Error;
use crate::ipam;

/// Does what is asked.
pub(crate) async fn run(call: &Call) -> Result<Value, Error> {
    match call.command {
        Command::Add => add::add(call).await,
        Command::Del => del::del(call).await,
        Command::Check => check::check(call).await,
        Command::Gc => del::collect(call).await,
        Command::Status => {
            config::Config::parse(call)?;
            if let Some(kind) = ipam::kind(&call.config)? {
                ipam::delegate(call, kind, Command::Status).await?;
            }
            Ok(Value::Null)
        }
        Command::Version => Ok(Value::Null),
    }
}
