//! One pass over all that the guest is to have: what its agent was told, and how it took that.

use std::collections::BTreeSet;

use libvirt::code::OPERATION_INVALID;
use meta::text::{STATUS, brief};
use serde_json::json;

use super::authorized_keys;
use super::wanted::{Step, Wanted, steps};
use crate::agent;
use crate::exec::{self, Agent};

/// Seconds for a command that runs a program in the guest: one that is emulated takes its time.
const STEP: i32 = 30;
const NO_WAY_FOR_KEYS: &str =
    "the guest agent offers neither guest-ssh-add-authorized-keys nor guest-exec with the commands for files";
const NO_WAY_FOR_PASSWORDS: &str = "the guest agent does not offer guest-set-user-password";

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The guest has all of it.
    Done,
    /// It has not, and why.
    Failed(String),
    /// Nobody answered.
    Silent,
    /// The guest is paused, or its file systems are frozen, for a backup say: the agent does nothing until that is over.
    Halted,
}

/// Why one step was not done.
enum Trouble {
    Silent,
    Said(String),
}

impl From<exec::Error> for Trouble {
    fn from(error: exec::Error) -> Self {
        match &error {
            exec::Error::Agent(answer) => match answer.refused_by_agent() {
                Some(why) => Self::Said(why.to_owned()),
                None if matches!(answer, libvirt::Error::TooLarge { .. }) => Self::Said(answer.to_string()),
                None => Self::Silent,
            },
            exec::Error::Answer | exec::Error::Timeout(_) | exec::Error::Output => Self::Said(error.to_string()),
        }
    }
}

impl From<authorized_keys::Error> for Trouble {
    fn from(error: authorized_keys::Error) -> Self {
        match error {
            authorized_keys::Error::Agent(error) => error.into(),
            error => Self::Said(error.to_string()),
        }
    }
}

/// Gives the guest what is `wanted`, user by user: one whom the guest does not know keeps nothing from the others.
pub(super) async fn hand_over(agent: &impl Agent, wanted: &Wanted) -> Outcome {
    let plain = |command: &str| agent.ask(json!({ "execute": command }));
    let info = match plain("guest-info").await {
        Ok(info) => info,
        Err(exec::Error::Agent(error)) if error.code() == OPERATION_INVALID => return Outcome::Halted,
        Err(_) => return Outcome::Silent,
    };
    // What a frozen agent does not do, it does not offer either.
    if plain("guest-fsfreeze-status").await.is_ok_and(|status| status.as_str() == Some("frozen")) {
        return Outcome::Halted;
    }
    let commands = agent::commands(&info);
    let offered: BTreeSet<&str> =
        commands.iter().filter(|command| command.enabled == Some(true)).map(|command| command.name.as_str()).collect();
    let mut failures = wanted.missing.clone();
    for step in steps(wanted, |command| offered.contains(command)) {
        match take(agent, &step).await {
            Ok(()) => {}
            Err(Trouble::Silent) => return Outcome::Silent,
            Err(Trouble::Said(why)) => failures.push(step.failed(&why, wanted)),
        }
    }
    if failures.is_empty() {
        return Outcome::Done;
    }
    Outcome::Failed(brief(&failures.join("; "), STATUS).into_owned())
}

async fn take(agent: &impl Agent, step: &Step<'_>) -> Result<(), Trouble> {
    if let Some(command) = step.command() {
        return agent.ask_within(STEP, command).await.map(drop).map_err(Trouble::from);
    }
    match step {
        Step::File { user, keys } => authorized_keys::write(agent, user, keys).await.map_err(Trouble::from),
        Step::Impossible { keys: true, .. } => Err(Trouble::Said(NO_WAY_FOR_KEYS.to_owned())),
        _ => Err(Trouble::Said(NO_WAY_FOR_PASSWORDS.to_owned())),
    }
}
