//! The driver's part in credentials that the guest's agent is given: who gives them, and for how long.

use api::kubevirt::v1::VirtualMachineInstance;
use domain::CredentialsOutcome;
use kit::Task;
use tokio::sync::{mpsc, watch};

use super::Driver;
use crate::credentials::{Asked, keep};

/// What is given, by a task of its own once there is a guest.
pub(super) struct Credentials {
    asked: Option<Asked>,
    /// Whether the agent is connected; sent anew each time that it is.
    agent: watch::Sender<bool>,
    outcomes: (mpsc::Sender<CredentialsOutcome>, mpsc::Receiver<CredentialsOutcome>),
    task: Option<Task<()>>,
}

impl Default for Credentials {
    fn default() -> Self {
        Self { asked: None, agent: watch::channel(false).0, outcomes: mpsc::channel(1), task: None }
    }
}

impl Credentials {
    /// What the VMI asks for.
    pub(super) fn ask(&mut self, vmi: &VirtualMachineInstance) {
        self.asked = Asked::of(vmi);
    }

    /// The agent has come, or gone.
    pub(super) fn agent(&self, connected: bool) {
        self.agent.send_replace(connected);
    }

    /// What became of them. Where there are none, never.
    pub(super) async fn outcome(&mut self) -> CredentialsOutcome {
        match self.outcomes.1.recv().await {
            Some(outcome) => outcome,
            None => std::future::pending().await,
        }
    }

    /// The guest has gone.
    pub(super) fn end(&mut self) {
        self.task = None;
    }
}

impl Driver {
    /// Begins to give them to the guest, which is there now.
    pub(super) fn give_credentials(&mut self) {
        let (Some(asked), Some(domain)) = (self.credentials.asked.clone(), self.current()) else { return };
        let (agent, told) = (self.credentials.agent.subscribe(), self.credentials.outcomes.0.clone());
        // What was sent before there was somebody to hear it counts.
        let keeping = keep(domain, asked, self.dirs.secrets(), agent, told);
        self.credentials.task = Some(kit::spawn("credentials", keeping));
    }

    /// Publishes what became of them.
    pub(super) fn told_of_credentials(&self, outcome: &CredentialsOutcome) {
        let text = serde_json::to_string(outcome).unwrap_or_default();
        self.publisher.update(|state| state.credentials = text);
    }
}
