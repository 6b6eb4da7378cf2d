//! When a migration takes too long, and what is done about it. Pure: time is an argument.
//!
//! ```text
//!   no progress for progressTimeout ------------------------------------------> abort
//!   completionTimeoutPerGiB x size is over --> post-copy | pause the guest | --> abort
//!                                                              twice that ----> abort
//! ```
//! Both ways to help need `allowWorkloadDisruption`. Where stalls are to be found by passes, [`super::stall`] judges.

use std::time::Duration;

use domain::MigrationOptions;
use libvirt::Job;

const GIB: u64 = 1 << 30;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Go,
    PostCopy,
    Pause,
    /// QEMU may pause the guest for so many milliseconds.
    Downtime(u64),
    Abort(String),
}

/// Seconds that a migration may take; 0 is no limit.
pub(super) fn completion_limit(options: &MigrationOptions, job: &Job) -> u64 {
    let size = job.memory_total.saturating_add(job.disk_total).div_ceil(GIB).max(1);
    options.completion_timeout_per_gib.saturating_mul(size)
}

pub(super) fn not_completed(elapsed: Duration) -> Verdict {
    Verdict::Abort(format!("Live migration is not completed after {} sec and has been aborted", elapsed.as_secs()))
}

/// Remembers what was best so far.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    least_remaining: Option<u64>,
    progress_at: Duration,
    /// Whether disks and memory are known to be copied: disks come first, and memory joins them.
    known: (bool, bool),
    /// The guest runs on the target, or stands still: what remains can only get less.
    pub(super) assisted: bool,
}

impl Watchdog {
    /// What to do `elapsed` after the start.
    pub(super) fn judge(&mut self, options: &MigrationOptions, job: &Job, elapsed: Duration) -> Verdict {
        let remaining = job.memory_remaining.saturating_add(job.disk_remaining);
        let known = (job.disk_total > 0, job.memory_total > 0);
        // While the target is prepared there is nothing to be copied yet, and nothing that could be stuck.
        let grown = known != self.known || known == (false, false);
        self.known = known;
        if grown || self.least_remaining.is_none_or(|least| remaining < least) {
            self.least_remaining = Some(remaining);
            self.progress_at = elapsed;
        }
        let stuck = elapsed.saturating_sub(self.progress_at).as_secs();
        if options.progress_timeout > 0 && stuck >= options.progress_timeout && !self.runs_on_target(options) {
            return Verdict::Abort(format!("Live migration stuck for {stuck} sec and has been aborted"));
        }
        let limit = completion_limit(options, job);
        if limit == 0 || elapsed.as_secs() < limit || self.runs_on_target(options) {
            return Verdict::Go;
        }
        if !self.assisted && options.workload_disruption {
            return if options.post_copy { Verdict::PostCopy } else { Verdict::Pause };
        }
        if self.assisted && elapsed.as_secs() < limit.saturating_mul(2) {
            return Verdict::Go;
        }
        not_completed(elapsed)
    }

    /// There is no way back from post-copy.
    fn runs_on_target(&self, options: &MigrationOptions) -> bool {
        self.assisted && options.post_copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> MigrationOptions {
        MigrationOptions { completion_timeout_per_gib: 10, progress_timeout: 5, ..MigrationOptions::default() }
    }

    fn job(remaining: u64) -> Job {
        Job { memory_total: 2 * GIB, memory_remaining: remaining, ..Job::default() }
    }

    #[track_caller]
    fn check(options: &MigrationOptions, seen: &[(u64, u64)], expect: &Verdict) {
        let mut watchdog = Watchdog::default();
        let mut last = Verdict::Go;
        for (second, remaining) in seen {
            last = watchdog.judge(options, &job(*remaining), Duration::from_secs(*second));
            watchdog.assisted |= matches!(last, Verdict::PostCopy | Verdict::Pause);
        }
        assert_eq!(&last, expect);
    }

    #[test]
    fn without_progress_it_ends() {
        check(&options(), &[(0, 9), (4, 9)], &Verdict::Go);
        check(&options(), &[(0, 9), (4, 8), (8, 8)], &Verdict::Go);
        let stuck = Verdict::Abort("Live migration stuck for 5 sec and has been aborted".into());
        check(&options(), &[(0, 9), (3, 12), (5, 10)], &stuck);
        check(&MigrationOptions { progress_timeout: 0, ..options() }, &[(0, 9), (19, 9)], &Verdict::Go);
    }

    #[test]
    fn a_migration_without_statistics_is_not_stuck() {
        let mut watchdog = Watchdog::default();
        let options = MigrationOptions { completion_timeout_per_gib: 0, ..options() };
        let mut judge = |second: u64, job: &Job| watchdog.judge(&options, job, Duration::from_secs(second));
        let disks = |disk_remaining: u64| Job { disk_total: 9, disk_remaining, ..Job::default() };
        let both = |disk_remaining: u64, remaining: u64| Job { disk_total: 9, disk_remaining, ..job(remaining) };
        let going = [(0, Job::default()), (6, Job::default()), (7, disks(9)), (9, disks(0)), (13, both(0, 50))];
        for (second, job) in &going {
            assert_eq!(judge(*second, job), Verdict::Go, "after {second} s");
        }
        assert_eq!(judge(17, &both(0, 50)), Verdict::Go);
        let stuck = Verdict::Abort("Live migration stuck for 5 sec and has been aborted".into());
        assert_eq!(judge(18, &both(1, 60)), stuck);
    }

    #[test]
    fn when_time_is_up_the_guest_is_helped_over_if_that_is_allowed() {
        let creeping = [(0, 100), (4, 99), (8, 98), (12, 97), (16, 96), (20, 95)];
        let late = "Live migration is not completed after 20 sec and has been aborted";
        check(&options(), &creeping[..5], &Verdict::Go);
        check(&options(), &creeping, &Verdict::Abort(late.into()));
        let post_copy = MigrationOptions { post_copy: true, workload_disruption: true, ..options() };
        check(&post_copy, &creeping, &Verdict::PostCopy);
        let pause = MigrationOptions { workload_disruption: true, ..options() };
        check(&pause, &creeping, &Verdict::Pause);
        check(&MigrationOptions { post_copy: true, ..options() }, &creeping, &Verdict::Abort(late.into()));
        let more: Vec<_> = creeping.into_iter().chain([(24, 94), (28, 93), (32, 92), (36, 91)]).collect();
        check(&pause, &more, &Verdict::Go);
        let longer: Vec<_> = more.into_iter().chain([(40, 90)]).collect();
        let late = "Live migration is not completed after 40 sec and has been aborted";
        check(&pause, &longer, &Verdict::Abort(late.into()));
        let long_after: Vec<_> = longer.into_iter().chain([(90, 90)]).collect();
        check(&post_copy, &long_after, &Verdict::Go);
    }
}
