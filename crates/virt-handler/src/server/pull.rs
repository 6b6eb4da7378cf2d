//! Backups that are pulled: this agent lends the server of a backup's export connections to the guest's NBD server.
//!
//! ```text
//! virt-controller -- Export, the server's pod --> [ here ] -- a socket in that pod --> virt-exportserver: one more, please
//!                                                 [ here ] <- a socket in the launcher's pod -> QEMU
//!                                                     connected descriptor ----------> virt-exportserver
//! ```
//! Both pods are on this node, and the guest's data pass through neither a network nor this process. The server is told whose
//! backup it is lent, by this agent's own knowledge of the instance, and refuses all but its own. When this process ends, the
//! server is not ready any more, and virt-controller asks again.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use api::backup::v1alpha1::BackupOptions;
use api::export::lending::{self, Answer, Hello};
use axum::http::StatusCode;
use kit::store::Key;
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::{Refusal, Shared};
use crate::launcher::{self, Pods, SOCKETS};
use crate::pace::Pace;

/// The command of a backup that is for this agent, and not for the launcher.
const EXPORT: &str = "Export";
/// For the server's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server opens one for each reader, and another when one breaks.
const CONNECTIONS: Pace = Pace::new(64, 8);

/// What is lent to whom.
#[derive(Clone, Debug)]
struct Loan {
    pods: Pods,
    launcher: String,
    /// QEMU's socket in the launcher's pod.
    socket: String,
    server: String,
    identity: String,
}

/// The options, when they are for this agent.
pub(super) fn asked(options: &str) -> Option<BackupOptions> {
    let options: BackupOptions = serde_json::from_str(options).ok()?;
    (options.cmd.as_deref() == Some(EXPORT)).then_some(options)
}

/// Begins to lend. Whoever lent before is let go of by the server.
pub(super) async fn lend(shared: &Shared, vmi: &(String, String), options: &BackupOptions) -> Result<(), Refusal> {
    let launcher = shared.launcher(vmi)?;
    let known = shared.context.vmis.get(&Key::new(vmi.0.as_str(), vmi.1.as_str()));
    let instance = known.and_then(|vmi| vmi.metadata.uid).unwrap_or_default();
    let bad = |why: &str| Refusal(StatusCode::BAD_REQUEST, why.to_owned());
    let server = options.export_server_addr.clone().ok_or_else(|| bad("exportServerAddr names no pod"))?;
    let backup = options.backup_name.as_deref().ok_or_else(|| bad("backupName is missing"))?;
    let started = options.backup_start_time.as_ref().ok_or_else(|| bad("backupStartTime is missing"))?.0.to_string();
    let loan = Loan {
        pods: shared.context.pods.clone(),
        launcher: launcher.pod.clone(),
        socket: lending::served_at(backup, &started),
        server,
        identity: lending::identity(&instance, backup, &started),
    };
    let unavailable = |error: &dyn std::fmt::Display| {
        Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("the server of backup {backup} does not answer: {error}"))
    };
    let opened = launcher::open(&loan.pods, &loan.server, lending::VOLUME, lending::SOCKET).await;
    let (mut stream, _) = opened.map_err(|e| unavailable(&e))?;
    let answer = timeout(PATIENCE, greet(&mut stream, &loan.identity)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|e| unavailable(&e))?;
    if let Some(why) = answer.refused {
        return Err(Refusal(StatusCode::CONFLICT, format!("the server of backup {backup} refused: {why}")));
    }
    tracing::info!(backup, server = loan.server, "a backup is served");
    kit::spawn("backup", async move {
        let ended = serve(stream, &loan).await;
        tracing::info!(identity = loan.identity, ended = ?ended.err(), "a backup is not served any more");
    })
    .detach();
    Ok(())
}

async fn greet(stream: &mut UnixStream, identity: &str) -> io::Result<Answer> {
    stream.write_all(&line(&Hello { identity: identity.to_owned() })?).await?;
    let mut answer = Vec::new();
    loop {
        match stream.read_u8().await? {
            b'\n' => return Ok(serde_json::from_slice(&answer)?),
            _ if answer.len() >= lending::LONGEST_LINE => return Err(io::ErrorKind::InvalidData.into()),
            byte => answer.push(byte),
        }
    }
}

/// Lends a connection for each byte that the server sends, until it goes.
async fn serve(mut stream: UnixStream, loan: &Loan) -> io::Result<()> {
    let mut pace = CONNECTIONS;
    while stream.read_u8().await? == lending::ASK {
        sleep(pace.spend(1.0, Instant::now())).await;
        let sent = match launcher::open(&loan.pods, &loan.launcher, SOCKETS, &loan.socket).await {
            Ok((connection, _)) => {
                let connection = connection.into_std()?;
                connection.set_nonblocking(false)?;
                sys::fdpass::send(&stream, &line(&Answer::default())?, &[connection.as_fd()])
            }
            Err(error) => {
                let why = kit::Chain(&error).to_string();
                sys::fdpass::send(&stream, &line(&Answer { refused: Some(why) })?, &[])
            }
        };
        sent.map_err(io::Error::other)?;
    }
    Ok(())
}

fn line(words: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(words)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_export_is_for_this_agent() {
        let check = |options: serde_json::Value, expect: bool| {
            assert_eq!(asked(&options.to_string()).is_some(), expect, "{options}");
        };
        check(json!({ "cmd": "Export", "backupName": "b" }), true);
        check(json!({ "cmd": "Start", "backupName": "b" }), false);
        check(json!({}), false);
        check(json!("Export"), false);
    }
}
