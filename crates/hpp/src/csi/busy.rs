//! What is being worked on: copies take their time, and a call that comes again meanwhile is told so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

/// Of one thing, who works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// One call changes it.
    Changed,
    /// So many calls read it.
    Read(usize),
}

/// Volumes and snapshots that are being worked on.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<Mutex<BTreeMap<String, Use>>>);

/// Keeps what it was given for until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    busy: Busy,
    what: String,
}

impl Busy {
    /// For the one call that makes, fills or removes it.
    pub(super) fn change(&self, what: String) -> Result<Held, Status> {
        self.take(what, |known| known.is_none().then_some(Use::Changed))
    }

    /// For a call that reads it, as others may at the same time.
    pub(super) fn read(&self, what: String) -> Result<Held, Status> {
        self.take(what, |known| match known {
            None => Some(Use::Read(1)),
            Some(Use::Read(readers)) => Some(Use::Read(readers + 1)),
            Some(Use::Changed) => None,
        })
    }

    fn take(&self, what: String, how: impl FnOnce(Option<Use>) -> Option<Use>) -> Result<Held, Status> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(new) = how(all.get(&what).copied()) else {
            return Err(Status::aborted(format!("an operation on {what} is still under way")));
        };
        all.insert(what.clone(), new);
        Ok(Held { busy: self.clone(), what })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = self.busy.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&self.what) {
            Some(Use::Read(readers)) if *readers > 1 => *readers -= 1,
            _ => {
                all.remove(&self.what);
            }
        }
    }
}

/// How a volume is named here.
pub(super) fn volume(id: &str) -> String {
    format!("volume {id:?}")
}

/// How a snapshot is named here.
pub(super) fn snapshot(id: &str) -> String {
    format!("snapshot {id:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changes_or_many_read() {
        let busy = Busy::default();
        let (one, two) = (busy.read(volume("v")).unwrap(), busy.read(volume("v")).unwrap());
        let refused = busy.change(volume("v")).unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (tonic::Code::Aborted, "an operation on volume \"v\" is still under way")
        );
        drop(one);
        assert!(busy.change(volume("v")).is_err() && busy.change(snapshot("v")).is_ok());
        drop(two);
        let changing = busy.change(volume("v")).unwrap();
        assert!(busy.read(volume("v")).is_err());
        drop(changing);
        assert!(busy.read(volume("v")).is_ok());
    }
}
