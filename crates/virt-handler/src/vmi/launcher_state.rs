//! What a launcher told last, read once when it arrives. Bytes of a launcher are a guest's: what cannot be read says nothing.

use api::kubevirt::v1::VirtualMachineInstanceBackupStatus;
use domain::{CredentialsOutcome, DomainReason, DomainStatus, GuestFacts, MemoryDump, MigrationProgress};
use rpc::launcher::DomainState;
use serde::de::DeserializeOwned;

/// Characters of a launcher's reason why a guest does not start: a condition is no longer.
const LONGEST_SENTENCE: usize = 4096;

/// The newest state of a domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LauncherState {
    /// What the domain does; unset before there is one.
    pub(crate) status: DomainStatus,
    /// Why.
    pub(crate) reason: DomainReason,
    /// The guest's agent is there.
    pub(crate) agent_connected: bool,
    /// What the agent and the domain say.
    pub(crate) facts: GuestFacts,
    /// Why the VMI could not be brought about; empty when it was.
    pub(crate) sync_error: String,
    /// It never will be.
    pub(crate) terminal: bool,
    /// The migration away from here that runs or that ended last.
    pub(crate) migration: Option<MigrationProgress>,
    /// The backup that runs or that ended last.
    pub(crate) backup: Option<VirtualMachineInstanceBackupStatus>,
    /// The memory dump that is written or that ended last.
    pub(crate) memory_dump: Option<MemoryDump>,
    /// What became of the credentials that the guest's agent is given.
    pub(crate) credentials: Option<CredentialsOutcome>,
}

impl From<DomainState> for LauncherState {
    fn from(told: DomainState) -> Self {
        let mut sync_error = told.sync_error;
        if let Some((end, _)) = sync_error.char_indices().nth(LONGEST_SENTENCE) {
            sync_error.truncate(end);
        }
        Self {
            status: DomainStatus::from(told.status.as_str()),
            reason: DomainReason::from(told.reason.as_str()),
            agent_connected: told.agent_connected,
            facts: read(&told.guest).unwrap_or_default(),
            sync_error,
            terminal: told.terminal,
            migration: read(&told.migration),
            backup: read(&told.backup),
            memory_dump: read(&told.memory_dump),
            credentials: read(&told.credentials),
        }
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    // Unset fields are empty; asking the parser would make an error of each.
    if text.is_empty() { None } else { serde_json::from_str(text).ok() }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// A state as launchers of version 0.1.0 send it, field by field: those run on after an update of the node agent.
    const RECORDED: &str = "080712065061757365641a0d506175736564494f4572726f7220012a607b226d616368696e65223a202270632d7133352d31302e30222c20226d656d6f72794b6962223a203133313037322c20226661696c65644469736b73223a205b7b226e616d65223a2022726f6f74222c202266756c6c223a20747275657d5d7d322c3c646f6d61696e20747970653d226b766d223e3c6e616d653e6e5f613c2f6e616d653e3c2f646f6d61696e3e3a10746865206469736b2069732066756c6c4205302e312e30521c7b22756964223a226d222c226d6f6465223a22507265436f7079227d5a127b226261636b75704e616d65223a2262227d62297b22766f6c756d65223a2264756d70222c2266696c65223a22766d2d64756d702e6d656d6f7279227d";

    fn bytes(hex: &str) -> Vec<u8> {
        hex.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn a_launcher_of_an_earlier_version_is_understood() {
        let state = LauncherState::from(DomainState::decode(bytes(RECORDED).as_slice()).unwrap());
        assert_eq!((state.status, state.reason), (DomainStatus::Paused, DomainReason::PausedIoError));
        assert!(state.agent_connected && !state.terminal);
        assert_eq!((state.facts.machine.as_str(), state.facts.memory_kib), ("pc-q35-10.0", 131_072));
        assert_eq!(state.facts.failed_disks[0].name, "root");
        assert_eq!(state.sync_error, "the disk is full");
        assert_eq!(state.migration.unwrap().uid, "m");
        assert_eq!(state.backup.unwrap().backup_name.as_deref(), Some("b"));
        assert_eq!(state.memory_dump.unwrap().file, "vm-dump.memory");
        assert_eq!(state.credentials, None);
    }

    #[test]
    fn unreadable_facts_are_ignored() {
        let told = DomainState {
            status: "Dreaming".into(),
            guest: "{".into(),
            migration: "7".into(),
            credentials: "[".into(),
            sync_error: "é".repeat(LONGEST_SENTENCE + 1),
            ..DomainState::default()
        };
        let state = LauncherState::from(told);
        assert_eq!(state.sync_error.chars().count(), LONGEST_SENTENCE);
        assert_eq!(state, LauncherState { sync_error: state.sync_error.clone(), ..LauncherState::default() });
    }
}
