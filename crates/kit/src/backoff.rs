//! Exponential delays between attempts.

use std::time::Duration;

/// Doubling delays from `base` to `max`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The delay after the first failure.
    pub base: Duration,
    /// The largest delay.
    pub max: Duration,
}

impl Backoff {
    /// For work queues: 50 ms up to 1 min.
    pub const QUEUE: Backoff = Backoff { base: Duration::from_millis(50), max: Duration::from_secs(60) };

    /// For work that is worth another try at once: 10 ms up to 1 min.
    pub const EAGER: Backoff = Backoff { base: Duration::from_millis(10), max: Duration::from_secs(60) };
    /// For work done by others, who may be slow to recover, as a storage driver: 1 s up to 5 min.
    pub const PATIENT: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(300) };

    /// The delay after `failures` failures in a row (1 = the first).
    pub fn delay(&self, failures: u32) -> Duration {
        let factor = 2u32.saturating_pow(failures.saturating_sub(1).min(30));
        self.base.saturating_mul(factor).min(self.max)
    }

    /// The same delay, spread by up to a quarter so that many waiters do not return at once.
    pub fn jittered(&self, failures: u32) -> Duration {
        let delay = self.delay(failures);
        delay + delay.mul_f64(fastrand::f64() / 4.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_and_stops_at_the_maximum() {
        let backoff = Backoff { base: Duration::from_secs(10), max: Duration::from_secs(300) };
        let delays: Vec<u64> = (1..=7).map(|n| backoff.delay(n).as_secs()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.delay(4_000_000).as_secs(), 300);
    }
}
