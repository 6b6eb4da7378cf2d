//! Running a command in the guest through its agent.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use libvirt::Domain;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Seconds for the agent to take a command or report on one.
const AGENT_TIMEOUT: i32 = 5;
const OUTPUT_LIMIT: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("asking the guest agent")]
    Agent(#[source] libvirt::Error),
    #[error("the guest agent's answer is not what it should be")]
    Answer,
    #[error("the command did not end within {0} seconds")]
    Timeout(u64),
    #[error("the command's output is longer than {OUTPUT_LIMIT} bytes")]
    Output,
}

pub(crate) struct Outcome {
    pub(crate) exit_code: i32,
    pub(crate) output: String,
}

/// What answers commands: the agent of a guest, or one that a test plays.
pub(crate) trait Agent: Sync {
    /// The answer to `command`, which takes so many seconds at most, and is bounded in size.
    fn ask_within(&self, seconds: i32, command: Value) -> impl Future<Output = Result<Value, Error>> + Send;

    /// The answer to a command that takes no time.
    fn ask(&self, command: Value) -> impl Future<Output = Result<Value, Error>> + Send {
        self.ask_within(AGENT_TIMEOUT, command)
    }
}

impl Agent for Arc<Domain> {
    async fn ask_within(&self, seconds: i32, command: Value) -> Result<Value, Error> {
        let domain = self.clone();
        let answer = tokio::task::spawn_blocking(move || domain.agent_command(&command.to_string(), seconds)).await;
        let text = answer.map_err(|_| Error::Answer)?.map_err(Error::Agent)?;
        if text.len() > 2 * OUTPUT_LIMIT {
            return Err(Error::Output);
        }
        let mut answer: Value = serde_json::from_str(&text).map_err(|_| Error::Answer)?;
        answer.get_mut("return").map(Value::take).ok_or(Error::Answer)
    }
}

pub(crate) async fn run(agent: &impl Agent, command: &str, args: &[String], seconds: u64) -> Result<Outcome, Error> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let arguments = json!({"path": command, "arg": args, "capture-output": true});
    let started = agent.ask(json!({"execute": "guest-exec", "arguments": arguments})).await?;
    let pid = started["pid"].as_i64().ok_or(Error::Answer)?;
    let mut pause = Duration::from_millis(20);
    loop {
        let status = agent.ask(json!({"execute": "guest-exec-status", "arguments": {"pid": pid}})).await?;
        if status["exited"] == true {
            let encoded = status["out-data"].as_str().unwrap_or_default();
            let output = base64::engine::general_purpose::STANDARD.decode(encoded).map_err(|_| Error::Answer)?;
            if output.len() > OUTPUT_LIMIT {
                return Err(Error::Output);
            }
            // A command ended by a signal has no exit code; shells report 128 and the signal.
            let signal = status["signal"].as_i64().map(|signal| 128 + signal);
            let code = status["exitcode"].as_i64().or(signal).unwrap_or(-1);
            return Ok(Outcome {
                exit_code: i32::try_from(code).unwrap_or(-1),
                output: String::from_utf8_lossy(&output).into_owned(),
            });
        }
        if Instant::now() >= deadline {
            return Err(Error::Timeout(seconds));
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

pub(crate) async fn ping(agent: &impl Agent) -> Result<(), Error> {
    agent.ask(json!({"execute": "guest-ping"})).await.map(drop)
}
