//! The plugin `tuning`: settings of the interface that the plugins before it in the network's list have made.
//!
//! What it changes of the interface is noted first, so that DEL puts it back where the container lives on.

mod config;
mod interface;
mod kept;

use std::os::fd::AsFd as _;

use config::Config;
use net::link::Netlink;
use serde_json::Value;

use crate::call::{Call, Command, mac_text};
use crate::error::Error;
use crate::result::Answer;
use crate::{links, sysctl};

/// Does what is asked.
pub(crate) async fn run(call: &Call) -> Result<Value, Error> {
    match call.command {
        Command::Add => add(call).await,
        Command::Del => del(call).await,
        Command::Check => check(call).await,
        Command::Gc => {
            let directory = Config::parse(call)?.directory;
            kept::collect(&directory, &call.network, &call.config["cni.dev/valid-attachments"])?;
            Ok(Value::Null)
        }
        Command::Status => Config::parse(call).map(|_| Value::Null),
        Command::Version => Ok(Value::Null),
    }
}

fn made_before(call: &Call) -> Result<Answer, Error> {
    let made = &call.config["prevResult"];
    if made.is_null() {
        return Err(Error::field(
            "prevResult",
            made,
            "tuning changes what another plugin made: put it behind that one in plugins",
        ));
    }
    Answer::read(made)
}

async fn add(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    let mut answer = made_before(call)?;
    let netns = links::open_netns(call.netns.as_deref().unwrap_or(std::path::Path::new("")))?;
    let allowed = config::Allowed::read()?;
    for setting in &config.settings {
        allowed.check(setting)?;
    }
    for setting in &config.settings {
        sysctl::write(netns.as_fd(), &setting.path(&call.interface), &setting.value)?;
    }
    let container = Netlink::open_in(netns.as_fd())?;
    if config.wanted.is_some() {
        let before = links::get(&container, &call.interface).await?;
        kept::keep(&config.directory, call, config.wanted.before(&before))?;
        interface::apply(&container, &call.interface, &config.wanted).await?;
        let now = links::get(&container, &call.interface).await?;
        let own = answer.interfaces.iter_mut().filter(|one| one.name == call.interface && !one.sandbox.is_empty());
        for one in own {
            one.mac = mac_text(&now.mac());
            one.mtu = Some(now.mtu());
        }
    }
    Ok(answer.write(&call.asked))
}

async fn del(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    let Some(before) = kept::kept(&config.directory, call)? else { return Ok(Value::Null) };
    if let Some(container) = links::container_if_there(call.netns.as_deref())? {
        // Without the interface there is nothing to put back.
        if container.has(&call.interface).await? {
            interface::apply(&container, &call.interface, &before).await?;
        }
    }
    kept::forget(&config.directory, call)?;
    Ok(Value::Null)
}

async fn check(call: &Call) -> Result<Value, Error> {
    let config = Config::parse(call)?;
    made_before(call)?;
    let netns = links::open_netns(call.netns.as_deref().unwrap_or(std::path::Path::new("")))?;
    for setting in &config.settings {
        let found = sysctl::read(netns.as_fd(), &setting.path(&call.interface))?;
        if found.split_whitespace().ne(setting.value.split_whitespace()) {
            return Err(Error::Changed(format!("sysctl {} is {found:?}, not {:?}", setting.key, setting.value)));
        }
    }
    let container = Netlink::open_in(netns.as_fd())?;
    let found = links::get(&container, &call.interface).await?;
    match config.wanted.differs(&found) {
        Some(what) => Err(Error::Changed(format!("{what} of {} is not as it was set", call.interface))),
        None => Ok(Value::Null),
    }
}
