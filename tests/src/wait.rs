//! Waiting for what only a look can tell, always with a limit.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Long enough for an emulated guest to boot while other guests boot beside it.
pub const BOOT: Duration = Duration::from_secs(400);
/// Long enough for anything that boots nothing.
pub const SOON: Duration = Duration::from_secs(60);

/// Looks until there is something, and returns it. A look that fails is repeated too: its complaint is the reason when
/// the limit is reached.
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let last = match look() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => String::new(),
            Err(error) => format!(": {error:#}"),
        };
        if Instant::now() > deadline {
            bail!("{what}: not within {} s{last}", limit.as_secs());
        }
        pause(Duration::from_millis(200));
    }
}

/// The same with a limit that is enough for anything but guests.
pub fn happens<T>(what: &str, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    until(&format!("it never happened that {what}"), 2 * SOON, look)
}

/// Looks again and again for as long as `period` lasts; whatever the look complains of is an error.
pub fn throughout(period: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
    let deadline = Instant::now() + period;
    while Instant::now() < deadline {
        look()?;
        pause(Duration::from_millis(500));
    }
    Ok(())
}

/// Between two looks.
fn pause(length: Duration) {
    let (_sender, receiver) = std::sync::mpsc::channel::<()>();
    // Nobody sends: this only lets time pass.
    let _ = receiver.recv_timeout(length);
}
