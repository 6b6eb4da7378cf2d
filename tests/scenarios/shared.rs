//! The guest that scenarios share. Whoever fails with it takes it down, so that the next gets one that nobody spoilt.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use e2e::Guest;

static GUEST: Mutex<Option<Guest>> = Mutex::new(None);

/// Runs a scenario with the guest, which is usable before it.
pub(crate) fn with_guest(scenario: impl FnOnce(&Guest) -> Result<()>) -> Result<()> {
    let mut held = GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    let guest = match held.take() {
        Some(guest) => guest,
        None => Guest::boot()?,
    };
    guest.wait_until_usable()?;
    scenario(&guest)?;
    *held = Some(guest);
    Ok(())
}

/// Takes the guest down, if any scenario has booted it.
pub(crate) fn shut_down() {
    drop(GUEST.lock().unwrap_or_else(PoisonError::into_inner).take());
}
