//! Times as the API stores them; plans get the time as an argument.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// The time now, cut to whole seconds as the API stores it.
pub(crate) fn now() -> Time {
    kit::clock::time()
}

/// Seconds from `earlier` to `later`, negative when the order is reversed.
pub(crate) fn seconds_between(earlier: &Time, later: &Time) -> i64 {
    later.0.as_second() - earlier.0.as_second()
}

/// `time` moved by some seconds.
pub(crate) fn plus_seconds(time: &Time, seconds: i64) -> Time {
    Time(Timestamp::from_second(time.0.as_second().saturating_add(seconds)).unwrap_or(time.0))
}
