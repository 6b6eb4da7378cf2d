//! A disk in memory whose power goes at a chosen moment: what was synchronised stays; of what was written since, any
//! part may have reached the plates, in any order, sector by sector.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use rand::Rng;
use rand::rngs::StdRng;
use redb::{Database, DatabaseError, StorageBackend};

use super::super::medium::{self, Medium};

const SECTOR: usize = 512;

#[derive(Clone, Debug)]
enum Change {
    Length(usize),
    Write(usize, Vec<u8>),
}

/// How the disk misbehaves next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fault {
    #[default]
    None,
    /// The power goes after so many operations.
    Power(usize),
    /// No byte beyond this length can be written.
    Full(usize),
    /// Synchronisation fails, and what was written is lost.
    Synchronise,
}

#[derive(Debug, Default)]
struct State {
    kept: Vec<u8>,
    seen: Vec<u8>,
    since: Vec<Change>,
    fault: Fault,
    distrusted: bool,
    promised: u64,
}

/// See the module. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<State>>);

impl Disk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// One with these bytes on it, and this promise beside them.
    pub(super) fn holding(bytes: Vec<u8>, promised: u64) -> Self {
        let state = State { kept: bytes.clone(), seen: bytes, promised, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.state().seen.clone()
    }

    pub(super) fn fails(&self, fault: Fault) {
        self.state().fault = fault;
    }

    pub(super) fn dead(&self) -> bool {
        self.state().fault == Fault::Power(0)
    }

    /// The power is back: what has survived is decided.
    pub(super) fn restart(&self, rng: &mut StdRng) {
        let mut state = self.state();
        let share = [0.0, 0.1, 0.5, 0.9, 1.0][rng.random_range(0..5)];
        let ordered = rng.random_bool(0.3);
        let whole = if ordered { rng.random_range(0..=state.since.len()) } else { 0 };
        for (at, change) in std::mem::take(&mut state.since).into_iter().enumerate() {
            if ordered && at > whole {
                break;
            }
            let mut survives = || (ordered && at < whole) || rng.random_bool(share);
            match change {
                Change::Length(length) if survives() => state.kept.resize(length, 0),
                Change::Length(_) => {}
                Change::Write(start, bytes) => {
                    for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                        if survives() {
                            put(&mut state.kept, start + n * SECTOR, sector);
                        }
                    }
                }
            }
        }
        state.seen = state.kept.clone();
        (state.fault, state.distrusted) = (Fault::None, false);
    }

    fn change(&self, change: Change) -> io::Result<()> {
        let mut state = self.state();
        state.power()?;
        let end = match &change {
            Change::Length(length) => *length,
            Change::Write(start, bytes) => start + bytes.len(),
        };
        if matches!(state.fault, Fault::Full(most) if end > most.max(state.kept.len())) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match &change {
            Change::Length(length) => state.seen.resize(*length, 0),
            Change::Write(start, bytes) => put(&mut state.seen, *start, bytes),
        }
        state.since.push(change);
        Ok(())
    }
}

impl State {
    fn power(&mut self) -> io::Result<()> {
        match &mut self.fault {
            Fault::Power(0) => Err(io::Error::other("no power")),
            Fault::Power(left) => {
                *left -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn put(bytes: &mut Vec<u8>, start: usize, piece: &[u8]) {
    let end = start + piece.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(piece);
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (state, start) = (self.state(), usize::try_from(offset).unwrap());
        let piece = state.seen.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(piece);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Length(usize::try_from(len).unwrap()))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state();
        state.power()?;
        if state.fault == Fault::Synchronise {
            state.distrusted = true;
            state.since.clear();
            return Err(io::Error::other("the disk did not answer"));
        }
        state.kept = state.seen.clone();
        state.since.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write(usize::try_from(offset).unwrap(), data.to_vec()))
    }
}

impl Medium for Disk {
    fn name(&self) -> String {
        "a disk in memory".to_owned()
    }

    fn attach(&self) -> Result<Database, DatabaseError> {
        medium::database(self.clone(), false)
    }

    fn trusted(&self) -> bool {
        !self.state().distrusted
    }

    /// The worst case for who has to keep it: no promise is ever lost.
    fn promise(&self, revision: u64) {
        self.state().promised = revision;
    }

    fn promised(&self) -> u64 {
        self.state().promised
    }
}
