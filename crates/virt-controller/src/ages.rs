//! How long migrations took to enter their phases: counted where the status is written, shown with the other figures.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// Seconds from a migration's creation until it entered a phase, by phase.
pub(crate) type Ages = Family<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

/// Half a second to half an hour.
const BUCKETS: [f64; 13] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0];

/// No migration has been seen yet.
pub(crate) fn ages() -> Ages {
    Family::new_with_constructor(|| Histogram::new(BUCKETS))
}
