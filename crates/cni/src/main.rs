//! CNI plugins for networks of machines, in one program that is called by the name of the plugin, and what puts it on nodes.
//!
//! ```text
//!  runtime --environment, configuration--> call --config (pure)--> bridge | tuning | macvtap --netlink, nftables--> the node, the pod
//!          <--result or error, as JSON----
//! ```
//! Guarantees: an interface is found again by what the runtime says of it alone, so DEL takes back what an interrupted ADD made; what
//! a plugin cannot do is refused before anything is made; errors are those of the CNI specification.

mod addressing;
mod bridge;
mod call;
mod error;
mod fields;
mod install;
mod ipam;
mod links;
mod macvtap;
mod result;
mod shim;
mod sysctl;
mod tuning;

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use call::{Call, Command};
use error::Error;
use serde_json::Value;

/// Bytes of a configuration that are read.
const LARGEST: u64 = 4 << 20;
const USAGE: &str = "ferrovirt-cni: called as bridge, cnv-bridge, tuning, cnv-tuning, macvtap or multus-shim it is that CNI plugin; \
                     `ferrovirt-cni install DIRECTORY PLUGIN...` puts plugins there; `ferrovirt-cni wait` waits for SIGTERM\n";

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_default();
    let mut words: Vec<OsString> = words.collect();
    let name = |word: &OsString| Path::new(word).file_name().unwrap_or_default().to_string_lossy().into_owned();
    if let Some(code) = plugin(&name(&called)) {
        return code;
    }
    let first = if words.is_empty() { String::new() } else { name(&words.remove(0)) };
    if let Some(code) = plugin(&first) {
        return code;
    }
    let outcome = match (first.as_str(), words.as_slice()) {
        ("install", [directory, plugins @ ..]) if !plugins.is_empty() => {
            let plugins: Vec<String> = plugins.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            install::install(&PathBuf::from(directory), &plugins).map(|done| tell(&done))
        }
        ("wait", []) => install::wait(),
        _ => {
            complain(USAGE);
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("ferrovirt-cni: {}\n", error::chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Runs the plugin of that name; none when there is none.
fn plugin(name: &str) -> Option<ExitCode> {
    if name == shim::NAME {
        return Some(pass_on());
    }
    let run = match name {
        "bridge" | "cnv-bridge" => run_bridge,
        "tuning" | "cnv-tuning" => run_tuning,
        "macvtap" => run_macvtap,
        _ => return None,
    };
    let (version, outcome) = match read().and_then(|(command, config)| Call::new(command, &config)) {
        Ok(call) => (call.asked.clone(), run(&call)),
        Err((version, error)) => (version, Err(error)),
    };
    Some(match outcome {
        Ok(Value::Null) => ExitCode::SUCCESS,
        Ok(result) => {
            tell(&format!("{result}\n"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            tell(&format!("{}\n", error.answer(&version)));
            ExitCode::FAILURE
        }
    })
}

/// Passes the call on to the daemon of Multus, as it came.
fn pass_on() -> ExitCode {
    let answer = read().and_then(|(command, config)| {
        let version = config["cniVersion"].as_str().unwrap_or_default().to_owned();
        shim::run(command, &config).map_err(|error| (version, error))
    });
    match answer {
        Ok(answer) => {
            tell(&answer.text);
            if answer.good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err((version, error)) => {
            tell(&format!("{}\n", error.answer(&version)));
            ExitCode::FAILURE
        }
    }
}

fn run_bridge(call: &Call) -> Result<Value, Error> {
    run(call, |call| Box::pin(bridge::run(call)))
}

fn run_tuning(call: &Call) -> Result<Value, Error> {
    run(call, |call| Box::pin(tuning::run(call)))
}

fn run_macvtap(call: &Call) -> Result<Value, Error> {
    run(call, |call| Box::pin(macvtap::run(call)))
}

type Work<'a> = futures::future::LocalBoxFuture<'a, Result<Value, Error>>;

fn run<'a>(call: &'a Call, work: impl FnOnce(&'a Call) -> Work<'a>) -> Result<Value, Error> {
    if call.command == Command::Version {
        return Ok(result::versions(&call.asked));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::Io { what: "start the runtime".to_owned(), source })?;
    runtime.block_on(work(call))
}

/// What to do, and the configuration. An error comes with the version to answer in.
fn read() -> Result<(Command, Value), (String, Error)> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(LARGEST).read_to_string(&mut text);
    read.map_err(|error| (String::new(), Error::Read(error)))?;
    let config: Result<Value, Error> = serde_json::from_str(&text).map_err(Error::Decode);
    let version = config.as_ref().ok().and_then(|config| config["cniVersion"].as_str()).unwrap_or_default().to_owned();
    let command = Command::of_environment().map_err(|error| (version.clone(), error))?;
    if text.trim().is_empty() && command == Command::Version {
        return Ok((command, Value::Null));
    }
    config.map(|config| (command, config)).map_err(|error| (version, error))
}

/// Nobody is left to be told when this fails.
fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn complain(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
