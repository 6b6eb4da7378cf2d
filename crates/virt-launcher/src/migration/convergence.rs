//! Helping a migration to its end: each look at the job is judged, and what is judged is done.

use std::sync::Arc;
use std::time::Duration;

use domain::{MigrationMode, MigrationOptions, MigrationProgress};
use libvirt::{Domain, Job};

use super::call;
use super::ramp::Ramp;
use super::stall::Detector;
use super::watchdog::{Verdict, Watchdog};

/// What was seen and done so far.
#[derive(Default)]
pub(super) struct Convergence {
    watchdog: Watchdog,
    detector: Detector,
    ramp: Ramp,
}

impl Convergence {
    /// Says how long a pause the migration that is about to start may take.
    pub(super) async fn prepare(&mut self, domain: &Arc<Domain>, options: &MigrationOptions) {
        self.ramp(domain, options, &Job::default(), Duration::ZERO).await;
    }

    async fn ramp(&mut self, domain: &Arc<Domain>, options: &MigrationOptions, job: &Job, elapsed: Duration) {
        if let Some(pause) = self.ramp.next(options, job, elapsed)
            && allow(domain, pause).await
        {
            self.ramp.allowed(pause, job, elapsed);
        }
    }

    /// Judges the job as it is, `elapsed` after its start; why the migration is being ended, if it is.
    pub(super) async fn look(
        &mut self,
        domain: &Arc<Domain>,
        options: &MigrationOptions,
        job: &Job,
        elapsed: Duration,
        progress: &mut MigrationProgress,
    ) -> Option<String> {
        self.ramp(domain, options, job, elapsed).await;
        let verdict = match &options.stall {
            Some(stall) => self.detector.judge((options, stall), job, elapsed),
            None => self.watchdog.judge(options, job, elapsed),
        };
        let mode = match &verdict {
            Verdict::Go => return None,
            Verdict::Abort(why) => {
                let _ = call(domain, Domain::abort_job).await;
                return Some(why.clone());
            }
            Verdict::Downtime(pause) if !allow(domain, *pause).await => return None,
            Verdict::Downtime(_) => progress.mode,
            Verdict::PostCopy => MigrationMode::PostCopy,
            Verdict::Pause => MigrationMode::Paused,
        };
        let done = match mode {
            MigrationMode::PostCopy => call(domain, Domain::start_post_copy).await,
            MigrationMode::Paused => call(domain, Domain::suspend).await,
            MigrationMode::PreCopy => Ok(()),
        };
        match done {
            Ok(()) => {
                tracing::info!(?verdict, "the migration takes too long: the guest is helped over");
                self.watchdog.assisted = true;
                if let Some(stall) = &options.stall {
                    self.detector.done(stall, &verdict, elapsed);
                }
                progress.mode = mode;
            }
            // The next look tries again.
            Err(error) => tracing::warn!(error, ?verdict, "the guest cannot be helped over"),
        }
        None
    }
}

/// Has QEMU take a pause of up to so many milliseconds.
async fn allow(domain: &Arc<Domain>, pause: u64) -> bool {
    let told = call(domain, move |domain| domain.set_max_downtime(pause)).await;
    match &told {
        Ok(()) => tracing::info!(pause, "the longest pause, in milliseconds"),
        // The next look tries again.
        Err(error) => tracing::debug!(error, pause, "the pause was not limited"),
    }
    told.is_ok()
}
