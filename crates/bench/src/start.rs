//! What a store with many objects costs: the time until a server on it answers, and memory for each object.
//!
//! Servers are processes of their own, which is this program called with [`SERVE`]: memory is theirs alone, and they can be
//! killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use kube_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

use crate::process;
use crate::table::Table;

/// The first argument of a server's process; the store's directory is the second.
pub(crate) const SERVE: &str = "serve-store";

/// Opens a store, says how long that took, and waits to be killed.
pub(crate) async fn serve(dir: &Path) -> Result<String> {
    let begin = Instant::now();
    let config = Config { data_dir: Some(dir.to_owned()), ..Config::default() };
    let server = ApiServer::open(config).await.context("cannot open the store")?;
    let ready = begin.elapsed().as_secs_f64();
    let pods = server.store().list("pods", None).objects;
    let bytes: usize = pods.iter().map(|pod| pod.json.len()).sum();
    drop(pods);
    let memory = process::memory(std::process::id()).rss;
    let count = server.store().count("pods");
    // Whoever reads this line kills this process; a server that closes is not what is measured next.
    std::mem::forget(server);
    Ok(json!({"ready": ready, "memory": memory, "pods": count, "bytes": bytes}).to_string())
}

/// Rows for the store in `dir`.
pub(crate) fn measure(dir: &Path) -> Result<Table> {
    let empty = tempfile::tempdir().context("cannot make a directory")?;
    let nothing = once(&empty.path().join("store"))?;
    let closed = once(dir)?;
    let killed = once(dir)?;
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or(f64::NAN);
    let pods = number(&closed, "pods");
    let mut table = Table::default();
    let ready = |of: &Value| number(of, "ready") * 1000.0;
    table.row(
        format!("API server, start with {pods} pods, after it was closed / killed (ms)"),
        format!("{:.0} / {:.0}", ready(&closed), ready(&killed)),
        format!("aim 1000 for 10000; without any {:.0}", ready(&nothing)),
    );
    let memory = (number(&closed, "memory") - number(&nothing, "memory")) * 1024.0 / pods;
    let size = number(&closed, "bytes") / 1024.0 / pods;
    table.row("API server, memory for each pod (KiB)", format!("{memory:.1}"), format!("its JSON {size:.1}"));
    Ok(table)
}

/// Starts a server, reads what it says, and kills it.
fn once(dir: &Path) -> Result<Value> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut server = Command::new(program).arg(SERVE).arg(dir).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let said = server.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    server.kill().and_then(|()| server.wait()).context("cannot end a server")?;
    said.context("a server says nothing")??;
    serde_json::from_str(&line).context("a server could not be started")
}
