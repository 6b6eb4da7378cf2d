//! What of a process runs: each part says so while it does, and whoever asks sees it end, by a panic too.
//!
//! ```
//! use kit::vital::{State, Vitals};
//! let vitals = Vitals::default();
//! assert_eq!(vitals.state("scheduler"), State::NotStarted);
//! let running = vitals.begin("scheduler");
//! assert_eq!(vitals.state("scheduler"), State::Running);
//! drop(running);
//! assert_eq!(vitals.state("scheduler"), State::Ended);
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a part fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing has begun under this name.
    NotStarted,
    /// Everything that has begun runs.
    Running,
    /// Something that has begun runs no more.
    Ended,
}

/// The parts of one process; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Vitals(Arc<Mutex<BTreeMap<&'static str, State>>>);

/// Held by a part as long as it runs.
#[derive(Debug)]
#[must_use = "what is not held has ended"]
pub struct Vital {
    vitals: Vitals,
    name: &'static str,
}

impl Vitals {
    /// Something begins that belongs to the part `name`.
    pub fn begin(&self, name: &'static str) -> Vital {
        self.states().entry(name).or_insert(State::Running);
        Vital { vitals: self.clone(), name }
    }

    /// How the part fares: it runs as long as all of it does.
    pub fn state(&self, name: &str) -> State {
        self.states().get(name).copied().unwrap_or(State::NotStarted)
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<&'static str, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Vital {
    fn drop(&mut self) {
        self.vitals.states().insert(self.name, State::Ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_of_which_something_ended_does_not_run() {
        let vitals = Vitals::default();
        let (first, second) = (vitals.begin("controllers"), vitals.begin("controllers"));
        let panicked = crate::spawn("panics", async move {
            let _running = first;
            panic!("this is the end");
        });
        assert!(panicked.await.is_err());
        assert_eq!(vitals.state("controllers"), State::Ended);
        let _another = vitals.begin("controllers");
        assert_eq!(vitals.state("controllers"), State::Ended);
        drop(second);
    }
}
