//! How fast something may go on that a pod decides about: so much at once, and then so much a second.

use std::time::Duration;

use tokio::time::Instant;

/// An allowance that fills up again with time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    most: f64,
    a_second: f64,
    left: f64,
    counted: Option<Instant>,
}

impl Pace {
    pub(crate) const fn new(most: u32, a_second: u32) -> Self {
        Self { most: most as f64, a_second: a_second as f64, left: most as f64, counted: None }
    }

    /// Spends `cost`, and returns how long to wait before anything more is spent.
    pub(crate) fn spend(&mut self, cost: f64, now: Instant) -> Duration {
        let passed = self.counted.map_or(Duration::ZERO, |counted| now.saturating_duration_since(counted));
        self.counted = Some(now);
        self.left = (self.left + passed.as_secs_f64() * self.a_second).min(self.most) - cost;
        Duration::from_secs_f64((-self.left / self.a_second).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_a_flood_is_held_to_its_rate() {
        let mut pace = Pace::new(10, 5);
        let began = Instant::now();
        for spent in 1..=60 {
            tokio::time::sleep(pace.spend(1.0, Instant::now())).await;
            assert!(spent > 10 || began.elapsed() == Duration::ZERO, "{spent}");
        }
        let took = began.elapsed();
        assert!((Duration::from_millis(9_900)..Duration::from_millis(10_300)).contains(&took), "{took:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(pace.spend(10.0, Instant::now()), Duration::ZERO, "no more is saved up than the most");
        assert_eq!(pace.spend(5.0, Instant::now()), Duration::from_secs(1));
    }
}
