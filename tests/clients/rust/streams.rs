//! exec, attach, port-forward and logs of kube-rs, and eviction.

use anyhow::{Context, Result, ensure};
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, EvictParams, LogParams};
use kube::runtime::wait::conditions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Space, Test, wait};

pub(crate) const TESTS: &[Test] = &[
    ("commands_answer", |space| Box::pin(commands(space))),
    ("ports_are_forwarded", |space| Box::pin(ports(space))),
    ("logs_are_followed", |space| Box::pin(logs(space))),
    ("pods_are_evicted", |space| Box::pin(evicted(space))),
];

const IDLE: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

async fn commands(space: Space) -> Result<()> {
    space.pod("p", IDLE).await?;
    let pods: Api<Pod> = space.api();
    let script = "read line; echo got $line; echo oops >&2; exit 3";
    let mut process = pods.exec("p", ["sh", "-c", script], &AttachParams::default().stdin(true)).await?;
    let (mut out, mut err) = (String::new(), String::new());
    process.stdin().context("no stdin")?.write_all(b"a line\n").await?;
    process.stdout().context("no stdout")?.read_to_string(&mut out).await?;
    process.stderr().context("no stderr")?.read_to_string(&mut err).await?;
    let status = process.take_status().context("no status")?.await.context("the status did not come")?;
    ensure!((out.as_str(), err.as_str()) == ("got a line\n", "oops\n"), "{out:?} {err:?}");
    ensure!(status.reason.as_deref() == Some("NonZeroExitCode"), "{status:?}");
    let causes = status.details.and_then(|d| d.causes).unwrap_or_default();
    ensure!(
        causes.iter().any(|c| c.reason.as_deref() == Some("ExitCode") && c.message.as_deref() == Some("3")),
        "{causes:?}"
    );
    let mut good = pods.exec("p", ["sh", "-c", "true"], &AttachParams::default()).await?;
    let status = good.take_status().context("no status")?.await.context("the status did not come")?;
    ensure!(status.status.as_deref() == Some("Success"), "{status:?}");
    let mut terminal = pods.exec("p", ["sh"], &AttachParams::interactive_tty()).await?;
    let mut size = terminal.terminal_size().context("no size")?;
    futures::SinkExt::send(&mut size, kube::api::TerminalSize { height: 33, width: 77 }).await?;
    terminal
        .stdin()
        .context("no stdin")?
        .write_all(b"until stty size | grep -q '33 77'; do :; done; echo size-$((40 + 2))\nexit\n")
        .await?;
    let mut shown = String::new();
    terminal.stdout().context("no stdout")?.read_to_string(&mut shown).await?;
    ensure!(shown.contains("size-42"), "{shown:?}");
    Ok(())
}

async fn ports(space: Space) -> Result<()> {
    let serve = "mkdir /tmp/w; echo hello > /tmp/w/index.html; busybox httpd -f -p 8080 -h /tmp/w & echo up; trap 'exit 0' TERM; wait";
    space.pod("p", serve).await?;
    let pods: Api<Pod> = space.api();
    e2e_until(|| async {
        let mut forwarded = pods.portforward("p", &[8080]).await?;
        let mut stream = forwarded.take_stream(8080).context("no stream")?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        drop(stream);
        forwarded.abort();
        Ok(answer.ends_with("hello\n"))
    })
    .await?;
    let mut nobody = pods.portforward("p", &[9]).await?;
    let error = nobody.take_error(9).context("no error channel")?;
    let mut stream = nobody.take_stream(9).context("no stream")?;
    // Nobody listens, so the writing may fail as well.
    let _ = stream.write_all(b"x").await;
    let said = error.await.context("nothing was said")?;
    ensure!(said.contains("refused") || said.contains("9"), "{said}");
    Ok(())
}

/// Tries until it holds; the pod's server needs a moment.
async fn e2e_until<F: Future<Output = Result<bool>>>(look: impl Fn() -> F) -> Result<()> {
    let mut tries = tokio::time::interval(std::time::Duration::from_millis(200));
    for _ in 0..150 {
        tries.tick().await;
        if look().await.unwrap_or(false) {
            return Ok(());
        }
    }
    look().await.and_then(|held| if held { Ok(()) } else { anyhow::bail!("another answer") })
}

async fn logs(space: Space) -> Result<()> {
    space.pod("p", "echo one; echo two; trap 'echo bye; exit 0' TERM; sleep 100000 & wait").await?;
    let pods: Api<Pod> = space.api();
    let mut lines = pods.log_stream("p", &LogParams { follow: true, ..LogParams::default() }).await?.lines();
    ensure!(lines.try_next().await?.as_deref() == Some("one"));
    ensure!(lines.try_next().await?.as_deref() == Some("two"));
    let last = LogParams { tail_lines: Some(1), timestamps: true, ..LogParams::default() };
    let last = pods.logs("p", &last).await?;
    let (time, text) = last.split_once(' ').context("no timestamp")?;
    ensure!(text == "two\n" && time.parse::<jiff::Timestamp>().is_ok(), "{last}");
    pods.delete("p", &kube::api::DeleteParams::default()).await?;
    ensure!(lines.try_next().await?.as_deref() == Some("bye"));
    Ok(())
}

async fn evicted(space: Space) -> Result<()> {
    let pod = space.pod("p", IDLE).await?;
    let pods: Api<Pod> = space.api();
    pods.evict("p", &EvictParams::default()).await?;
    let uid = pod.metadata.uid.unwrap_or_default();
    wait(pods.clone(), "p", conditions::is_deleted(&uid)).await?;
    match pods.evict("p", &EvictParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => anyhow::bail!("{other:?}"),
    }
}
