//! How long a pause QEMU may take, as the migration goes on. Pure: time is an argument.
//!
//! QEMU hands the guest over once the rest would take no longer to send than the pause it may take, and takes it as soon as
//! it may: with the 300 ms that it grants itself, a guest at rest is stopped in the midst of the first pass, and with 30 ms it
//! stands still while everything is sent that it changed during that pass. With less there is another pass first, and nearly
//! nothing left to send. A guest that changes its memory too fast for that gets there with more, which is allowed in steps:
//!
//! ```text
//!   tuned:           initial --start_after passes, cooldown--> + step --cooldown--> + step ... --> the longest
//!   nobody says:     2 ms --a pass in vain--> 8 --a pass in vain--> 32 ... --> 300 ms
//! ```

use std::time::Duration;

use domain::{DowntimeRamp, MigrationOptions};
use libvirt::Job;

/// What QEMU takes when nobody says, in milliseconds.
const USUAL: u64 = 300;
/// What is tried first then, and by how much it grows.
const BRIEF: u64 = 2;
const GROWTH: u64 = 4;

/// The pause that was allowed last.
#[derive(Debug, Default)]
pub(super) struct Ramp {
    allowed: Option<Allowed>,
}

#[derive(Clone, Copy, Debug)]
struct Allowed {
    milliseconds: u64,
    /// When QEMU was told.
    at: Duration,
    /// In which pass.
    pass: u64,
}

impl Ramp {
    /// What to allow from now on, `elapsed` after the start; nothing when that is allowed already.
    pub(super) fn next(&self, options: &MigrationOptions, job: &Job, elapsed: Duration) -> Option<u64> {
        let longest = options.max_downtime;
        let Some(Allowed { milliseconds: allowed, at: since, pass }) = self.allowed else {
            return match (&options.ramp, &options.stall) {
                // What the detector finds later may take longer.
                (_, Some(_)) => Some(longest.min(USUAL)),
                (Some(ramp), None) => Some(ramp.initial.min(longest)),
                (None, None) => Some(if longest > 0 { longest } else { BRIEF }),
            };
        };
        if longest == 0 && options.ramp.is_none() && options.stall.is_none() {
            return (job.iteration > pass.max(1) && allowed < USUAL).then(|| USUAL.min(GROWTH * allowed));
        }
        let ramp = options.ramp.as_ref().filter(|_| options.stall.is_none())?;
        let ready = job.iteration >= ramp.start_after && elapsed.saturating_sub(since).as_secs() >= ramp.cooldown;
        (ready && allowed < longest).then(|| longest.min(allowed + step(ramp, longest)))
    }

    /// QEMU was told.
    pub(super) fn allowed(&mut self, milliseconds: u64, job: &Job, elapsed: Duration) {
        self.allowed = Some(Allowed { milliseconds, at: elapsed, pass: job.iteration });
    }
}

fn step(ramp: &DowntimeRamp, longest: u64) -> u64 {
    (longest.saturating_sub(ramp.initial) / ramp.steps.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use domain::StallDetector;

    use super::*;

    /// What is allowed, with the second it was, when looks at these seconds see these passes.
    #[track_caller]
    fn check(options: &MigrationOptions, seen: &[(u64, u64)], expect: &[(u64, u64)]) {
        let (mut ramp, mut told) = (Ramp::default(), Vec::new());
        for (second, iteration) in seen {
            let (job, elapsed) = (Job { iteration: *iteration, ..Job::default() }, Duration::from_secs(*second));
            if let Some(next) = ramp.next(options, &job, elapsed) {
                ramp.allowed(next, &job, elapsed);
                told.push((*second, next));
            }
        }
        assert_eq!(told, expect);
    }

    #[test]
    fn a_pause_that_is_chosen_is_told_once() {
        let seen = [(0, 1), (20, 9), (40, 19)];
        check(&MigrationOptions { max_downtime: 900, ..MigrationOptions::default() }, &seen, &[(0, 900)]);
    }

    #[test]
    fn when_nobody_says_it_is_brief_and_grows_with_each_pass_in_vain() {
        let seen = [(0, 0), (1, 1), (9, 1), (10, 2), (11, 2), (12, 3), (13, 5), (14, 6), (15, 7), (16, 8)];
        check(&MigrationOptions::default(), &seen, &[(0, 2), (10, 8), (12, 32), (13, 128), (14, 300)]);
    }

    #[test]
    fn it_grows_in_steps_after_some_passes() {
        let ramp = DowntimeRamp { initial: 100, steps: 3, start_after: 3, cooldown: 10 };
        let options = MigrationOptions { max_downtime: 400, ramp: Some(ramp), ..MigrationOptions::default() };
        let seen = [(0, 1), (20, 2), (21, 3), (25, 4), (31, 5), (41, 6), (51, 7), (90, 8)];
        check(&options, &seen, &[(0, 100), (21, 200), (31, 300), (41, 400)]);
        let low = MigrationOptions { max_downtime: 50, ..options };
        check(&low, &seen, &[(0, 50)]);
    }

    #[test]
    fn the_detector_begins_as_usual_or_below() {
        let stall = Some(StallDetector::default());
        let options =
            |max_downtime| MigrationOptions { max_downtime, stall: stall.clone(), ..MigrationOptions::default() };
        check(&options(900), &[(0, 1), (60, 9)], &[(0, 300)]);
        check(&options(40), &[(0, 1), (60, 9)], &[(0, 40)]);
    }
}
