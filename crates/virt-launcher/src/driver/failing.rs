//! Disks that failed while the guest wrote: which of them it stands still for, and when it may try again.
//!
//! QEMU keeps what it could not write and stops the guest. Let run, it writes that again: nothing is lost, and a guest
//! whose storage was full for a while never learns of it. Where the kernel tells how much room there is, that is waited
//! for; elsewhere the guest is let run now and then, more seldom each time that this does not help.

use std::time::Duration;

use domain::FailedDisk;
use libvirt::{Domain, Event, PausedReason, State};
use tokio::time::Instant;

use super::Driver;

/// Between two looks for room, and before the first try.
const FIRST: Duration = Duration::from_secs(5);
/// Before a try after many that did not help.
const LAST: Duration = Duration::from_secs(60);
/// What a file system must have before a guest goes on: with less it would stop again at once.
const ROOM: u64 = 1 << 20;
/// `VIR_DOMAIN_EVENT_IO_ERROR_PAUSE`: the guest was not told of the failure, it was stopped.
const STOPPED: i32 = 1;

/// The failures of the guest's disks that it stands still for.
#[derive(Debug, Default)]
pub(super) struct Failing {
    /// Each with the path of what is behind it.
    disks: Vec<(FailedDisk, String)>,
    pause: Duration,
    /// When the guest was last let run.
    tried: Option<Instant>,
    again: Option<Instant>,
}

impl Failing {
    /// Takes a failure down, if it is one that stops the guest.
    pub(super) fn note(&mut self, event: &Event, now: Instant) {
        let Event::IoError { alias, path, action: STOPPED, reason, .. } = event else { return };
        let name = alias.strip_prefix("ua-").unwrap_or(alias).to_owned();
        // libvirt may say more behind the word.
        let disk = FailedDisk { name, full: reason.starts_with("enospc") };
        match self.disks.iter_mut().find(|(known, _)| known.name == disk.name) {
            Some((known, _)) => *known = disk,
            None => self.disks.push((disk, path.clone())),
        }
        if self.again.is_none() {
            let in_vain = self.tried.is_some_and(|tried| now.duration_since(tried) < self.pause * 2);
            self.pause = if in_vain { (self.pause * 2).min(LAST) } else { FIRST };
            self.again = Some(now + self.pause);
        }
    }

    /// The guest runs, or stands still for another reason.
    pub(super) fn over(&mut self) {
        self.disks.clear();
        self.again = None;
    }

    pub(super) fn disks(&self) -> Vec<FailedDisk> {
        self.disks.iter().map(|(disk, _)| disk.clone()).collect()
    }

    /// When to try again.
    pub(super) fn again(&self) -> Option<Instant> {
        self.again
    }

    /// Whether there is room now, as far as anybody can tell; if not, when to look again.
    fn may_run(&mut self, now: Instant, room: impl Fn(&str) -> Option<u64>) -> bool {
        let crowded = self.disks.iter().any(|(disk, path)| disk.full && room(path).is_some_and(|room| room < ROOM));
        self.again = crowded.then(|| now + FIRST);
        if !crowded {
            self.tried = Some(now);
        }
        !crowded
    }
}

/// The room in the file system of an image; what a device has nobody can tell.
fn room(path: &str) -> Option<u64> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let found = rustix::fs::statvfs(path).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

impl Driver {
    /// Lets a guest run that was stopped by a failure which may be over.
    pub(super) async fn try_again(&mut self) {
        let state = self.with_domain(Domain::state).await;
        // Who sends it away decides when it runs.
        if self.leaving.is_some() || !matches!(state, Ok(State::Paused(PausedReason::IoError))) {
            self.failing.over();
            return;
        }
        if !self.failing.may_run(Instant::now(), room) {
            return;
        }
        tracing::info!(disks = ?self.failing.disks(), "the guest tries again what its disks failed to do");
        self.failing.over();
        if let Err(error) = self.unpause().await {
            tracing::warn!(error = %kit::Chain(&error), "the guest cannot go on");
        }
        self.refresh().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(alias: &str, action: i32, reason: &str) -> Event {
        let (domain, path) = ("d".to_owned(), format!("/{alias}"));
        Event::IoError { domain, path, alias: alias.to_owned(), action, reason: reason.to_owned() }
    }

    fn names(failing: &Failing) -> Vec<(String, bool)> {
        failing.disks().into_iter().map(|disk| (disk.name, disk.full)).collect()
    }

    #[test]
    fn only_what_stops_the_guest_is_taken_down() {
        #[track_caller]
        fn check(action: i32, reason: &str, expect: &[(String, bool)]) {
            let mut failing = Failing::default();
            failing.note(&failure("ua-root", action, reason), Instant::now());
            failing.note(&failure("ua-root", action, reason), Instant::now());
            assert_eq!(names(&failing), expect);
            assert_eq!(failing.again().is_some(), !expect.is_empty());
        }
        check(1, "enospc", &[("root".to_owned(), true)]);
        check(1, "eio", &[("root".to_owned(), false)]);
        check(1, "", &[("root".to_owned(), false)]);
        check(2, "enospc", &[]);
        check(0, "", &[]);
    }

    #[test]
    fn room_is_waited_for_where_it_can_be_seen() {
        #[track_caller]
        fn check(reason: &str, room: Option<u64>, runs: bool) {
            let mut failing = Failing::default();
            let now = Instant::now();
            failing.note(&failure("ua-root", STOPPED, reason), now);
            assert_eq!(failing.may_run(now, |_| room), runs);
            assert_eq!(failing.again(), (!runs).then(|| now + FIRST));
        }
        check("enospc", Some(0), false);
        check("enospc", Some(ROOM), true);
        check("enospc", None, true);
        check("eio", Some(0), true);
    }

    #[test]
    fn a_failing_disk_is_retried_at_growing_intervals() {
        let mut failing = Failing::default();
        let mut now = Instant::now();
        let mut waits = Vec::new();
        let mut fail = |failing: &mut Failing, after: u64| {
            now += Duration::from_secs(after);
            failing.note(&failure("ua-root", STOPPED, "eio"), now);
            waits.push(failing.again().map(|again| again.duration_since(now).as_secs()));
            now = failing.again().unwrap();
            assert!(failing.may_run(now, |_| None));
            failing.over();
        };
        for _ in 0..6 {
            fail(&mut failing, 1);
        }
        // It ran for long.
        fail(&mut failing, 1000);
        assert_eq!(waits, [5, 10, 20, 40, 60, 60, 5].map(Some));
    }
}
