//! Credentials that the guest's agent is given: SSH keys and passwords out of Secrets that the pod has.
//!
//! ```text
//!  agent comes (boot, reboot, arrival) --\
//!  a Secret has changed ------------------+--> guest-info, then user by user: keys, passwords --> outcome --> driver
//!  five minutes, or a failure's pause ---/
//! ```
//! What the Secrets have takes the place of what the guest has: a key that is gone from them is gone from the user's file. Neither
//! keys nor passwords are in what is logged or told.

mod authorized_keys;
mod handing;
mod secrets;
mod wanted;

use std::path::PathBuf;
use std::time::Duration;

use domain::CredentialsOutcome;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::exec::Agent;
use handing::{Outcome, hand_over};
pub(crate) use wanted::Asked;
use wanted::{Wanted, wanted};

/// Between two looks at the Secrets.
const LOOK: Duration = Duration::from_secs(5);
/// After so long the guest is given all of it again: it may have lost it.
const AGAIN: Duration = Duration::from_secs(300);
/// After a failure, which may pass by itself while the guest boots; each one after it waits twice as long.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_AT_MOST: Duration = Duration::from_secs(60);
/// How long one pass may take, however many users there are.
const PASS: Duration = Duration::from_secs(120);
/// How long a guest may boot, or its agent be busy, before people are told.
const PATIENCE: Duration = Duration::from_secs(120);
/// What they are told then, as clients know it.
const OFFLINE: &str = "Guest agent is offline";

/// Gives the guest what is `asked` for as long as it runs. The Secrets are below `directory`; `there` tells whether the agent is
/// connected, and that it was connected anew.
pub(crate) async fn keep(
    agent: impl Agent,
    asked: Asked,
    directory: PathBuf,
    mut there: watch::Receiver<bool>,
    told: mpsc::Sender<CredentialsOutcome>,
) {
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = Turn::new(Instant::now());
    loop {
        tokio::select! {
            changed = there.changed() => {
                if changed.is_err() {
                    return;
                }
                turn.agent_changed(Instant::now());
            }
            _ = look.tick() => {}
        }
        let outcome = if *there.borrow_and_update() {
            let Ok(now) = read(&asked, &directory).await else { return };
            if !turn.is_due(&now, Instant::now()) {
                continue;
            }
            let outcome = timeout(PASS, hand_over(&agent, &now)).await.unwrap_or(Outcome::Silent);
            turn.taken(now, outcome, Instant::now())
        } else {
            turn.alone(Instant::now())
        };
        if let Some(outcome) = outcome
            && told.send(outcome).await.is_err()
        {
            return;
        }
    }
}

async fn read(asked: &Asked, directory: &std::path::Path) -> Result<Wanted, tokio::task::JoinError> {
    let (asked, directory) = (asked.clone(), directory.to_owned());
    tokio::task::spawn_blocking(move || wanted(&asked, &secrets::read(&directory, &asked.secrets()))).await
}

/// When the guest is given everything again, and when people are told. Pure.
struct Turn {
    /// What the guest was given last, with or without success.
    given: Option<Wanted>,
    next: Instant,
    pause: Duration,
    /// Since when nobody has answered.
    silent: Option<Instant>,
    /// People were told of that.
    offline: bool,
}

impl Turn {
    fn new(now: Instant) -> Self {
        Self { given: None, next: now, pause: RETRY, silent: None, offline: false }
    }

    /// The agent has come, or gone.
    fn agent_changed(&mut self, now: Instant) {
        (self.next, self.pause) = (now, RETRY);
        self.answered();
    }

    fn is_due(&self, wanted: &Wanted, now: Instant) -> bool {
        now >= self.next || self.given.as_ref().is_some_and(|given| given != wanted)
    }

    /// What is told of this outcome.
    fn taken(&mut self, wanted: Wanted, outcome: Outcome, now: Instant) -> Option<CredentialsOutcome> {
        let told = match outcome {
            Outcome::Done => {
                tracing::debug!("the guest has its credentials");
                (self.next, self.pause) = (now + AGAIN, RETRY);
                self.answered();
                Some(CredentialsOutcome { succeeded: true, message: String::new() })
            }
            Outcome::Failed(message) => {
                tracing::warn!(why = message, "the guest has not all of its credentials");
                self.answered();
                self.later(now);
                Some(CredentialsOutcome { succeeded: false, message })
            }
            Outcome::Halted => {
                self.answered();
                self.next = now + RETRY;
                return None;
            }
            Outcome::Silent => {
                self.later(now);
                return self.alone(now);
            }
        };
        self.given = Some(wanted);
        told
    }

    /// Somebody is there, or has just come or gone: the time without an answer begins anew.
    fn answered(&mut self) {
        (self.silent, self.offline) = (None, false);
    }

    fn later(&mut self, now: Instant) {
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(RETRY_AT_MOST);
    }

    /// What is told when nobody answers, once.
    fn alone(&mut self, now: Instant) -> Option<CredentialsOutcome> {
        let since = *self.silent.get_or_insert(now);
        if self.offline || now.duration_since(since) < PATIENCE {
            return None;
        }
        self.offline = true;
        Some(CredentialsOutcome { succeeded: false, message: OFFLINE.to_owned() })
    }
}

#[cfg(test)]
mod tests;
