//! Addresses are another plugin's: it is run as the specification says, with the whole configuration of the network.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command as Process;

use crate::call::{Call, Command};
use crate::error::Error;

/// One that takes longer has lost its way; runtimes wait a little longer for the whole.
const PATIENCE: Duration = Duration::from_secs(50);
/// Bytes of an answer that are read.
const LARGEST: u64 = 1 << 20;

/// The plugin that the network names; none when its interfaces have no addresses.
pub(crate) fn kind(config: &Value) -> Result<Option<&str>, Error> {
    match config.get("ipam").filter(|ipam| !ipam.is_null()) {
        None => Ok(None),
        Some(Value::Object(ipam)) => match ipam.get("type") {
            None => Ok(None),
            Some(kind) => {
                let text = kind.as_str().ok_or_else(|| Error::field("ipam.type", kind, "name a plugin"))?;
                Ok(Some(text).filter(|text| !text.is_empty()))
            }
        },
        Some(other) => Err(Error::field("ipam", other, "write an object with a type, or leave it out")),
    }
}

/// Runs the plugin of `kind` with the call's own verb, or another.
pub(crate) async fn delegate(call: &Call, kind: &str, command: Command) -> Result<Value, Error> {
    // With a separator in it, it would be a path out of these directories.
    if kind.contains('/') || kind.starts_with('.') {
        return Err(Error::field("ipam.type", &json!(kind), "name a plugin, not a path"));
    }
    let found = call.path.iter().map(|dir| dir.join(kind)).find(|path| path.is_file());
    let dirs = call.path.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":");
    let Some(program) = found else {
        return Err(Error::Node(format!(
            "failed to find plugin {kind:?} in path [{dirs}]: install it, or name another"
        )));
    };
    let args: Vec<String> = call.args.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut process = Process::new(&program);
    process
        .env("CNI_COMMAND", command.text())
        .env("CNI_CONTAINERID", &call.container)
        .env("CNI_NETNS", call.netns.as_deref().unwrap_or(Path::new("")))
        .env("CNI_IFNAME", &call.interface)
        .env("CNI_ARGS", args.join(";"))
        .env("CNI_PATH", dirs)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    let what = || format!("run the plugin {kind:?} for addresses");
    let mut child = process.spawn().map_err(Error::io(what()))?;
    let talk = async {
        if let Some(mut input) = child.stdin.take() {
            // One that ends without reading says why on its output.
            let _ = input.write_all(call.config.to_string().as_bytes()).await;
        }
        let mut said = Vec::new();
        if let Some(out) = child.stdout.take() {
            out.take(LARGEST).read_to_end(&mut said).await?;
        }
        std::io::Result::Ok((child.wait().await?.success(), said))
    };
    let talked = tokio::time::timeout(PATIENCE, talk).await;
    let talked = talked.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    let (good, said) = talked.map_err(Error::io(what()))?;
    if good && said.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    let answer = serde_json::from_slice(&said);
    match (good, answer) {
        (true, answer) => answer.map_err(Error::Decode),
        (false, Ok(answer)) => Err(Error::Delegate { kind: kind.to_owned(), answer }),
        (false, Err(_)) => {
            let words: String = String::from_utf8_lossy(&said).trim().chars().take(512).collect();
            Err(Error::Delegate { kind: kind.to_owned(), answer: json!({ "code": 999, "msg": words }) })
        }
    }
}
