//! The one place that reads the wall clock, and arithmetic with what it read.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

/// The wall clock. Under tokio's paused time it advances with the virtual clock, so that tests may skip hours.
pub fn now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "this is what everything else is to call")]
    let wall = Timestamp::now();
    let real = Instant::now();
    let virtual_now = tokio::time::Instant::now().into_std();
    if let Some(ahead) = virtual_now.checked_duration_since(real) {
        return wall.checked_add(ahead).unwrap_or(wall);
    }
    wall
}

/// Now, with the precision of `metav1.Time` (whole seconds), so that a written value reads back equal.
pub fn time() -> Time {
    Time(seconds(now()))
}

/// Now as `metav1.MicroTime`.
pub fn micro_time() -> MicroTime {
    MicroTime(now())
}

/// `at` cut to whole seconds.
pub fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Seconds from `earlier` to `later`, negative when the order is reversed.
pub fn seconds_between(earlier: &Time, later: &Time) -> i64 {
    later.0.as_second() - earlier.0.as_second()
}

/// `time` moved by some seconds.
pub fn plus_seconds(time: &Time, seconds: i64) -> Time {
    Time(Timestamp::from_second(time.0.as_second().saturating_add(seconds)).unwrap_or(time.0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn follows_paused_time() {
        let before = super::now();
        tokio::time::advance(Duration::from_secs(3600)).await;
        let passed = super::now().duration_since(before).as_secs();
        assert!((3598..=3602).contains(&passed), "{passed}");
    }
}
