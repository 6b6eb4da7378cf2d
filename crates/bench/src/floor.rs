//! The floor of a machine's start: `virsh start` of the very domain that a launcher made, outside of any cluster.

use std::time::Instant;

use anyhow::Result;

use crate::bare::Bare;
use crate::table::Times;

/// Starts and destroys the domain of the launcher with process id `pid`, `rounds` times; the times of the starts.
pub(crate) fn starts(bare: &Bare, rounds: usize) -> Result<Times> {
    bare.define()?;
    let domain = bare.domain();
    let mut times = Times::default();
    for _ in 0..rounds {
        let begin = Instant::now();
        domain.virsh(&["start", &domain.name])?;
        times.extend([begin.elapsed()]);
        domain.virsh(&["destroy", &domain.name])?;
    }
    Ok(times)
}
