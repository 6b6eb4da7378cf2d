//! The terminal in raw mode, and back: the guard restores it on every way out of its scope, unwinding included. Signals
//! are waited for by the program instead of ending it, so that they are such a way too.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{self, OptionalActions, Termios};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A terminal in raw mode while this lives.
#[derive(Debug)]
pub(crate) struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
    /// Puts `terminal` into raw mode; `None` when it is not a terminal.
    pub(crate) fn enter(terminal: impl AsFd) -> io::Result<Option<Self>> {
        let terminal = terminal.as_fd();
        if !termios::isatty(terminal) {
            return Ok(None);
        }
        let before = termios::tcgetattr(terminal)?;
        // Own descriptor: the one passed may be closed before the guard is dropped.
        let guard = Self { terminal: terminal.try_clone_to_owned()?, before };
        let mut raw = guard.before.clone();
        raw.make_raw();
        termios::tcsetattr(&guard.terminal, OptionalActions::Now, &raw)?;
        Ok(Some(guard))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nobody is left to tell when it fails: the terminal is gone.
        let _ = termios::tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// The signals that end a program.
#[derive(Debug)]
pub(crate) struct Ending {
    signals: [(u8, Signal); 4],
}

impl Ending {
    /// From now on these signals are waited for.
    pub(crate) fn watch() -> io::Result<Self> {
        let watch = |kind: SignalKind| -> io::Result<(u8, Signal)> {
            Ok((u8::try_from(kind.as_raw_value()).unwrap_or(0), signal(kind)?))
        };
        Ok(Self {
            signals: [
                watch(SignalKind::hangup())?,
                watch(SignalKind::interrupt())?,
                watch(SignalKind::quit())?,
                watch(SignalKind::terminate())?,
            ],
        })
    }

    /// The exit code that says by which signal the program ended.
    pub(crate) async fn code(&mut self) -> u8 {
        let [hangup, interrupt, quit, terminate] = &mut self.signals;
        let number = tokio::select! {
            _ = hangup.1.recv() => hangup.0,
            _ = interrupt.1.recv() => interrupt.0,
            _ = quit.1.recv() => quit.0,
            _ = terminate.1.recv() => terminate.0,
        };
        128 + number
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::LocalModes;

    use super::*;

    fn pty() -> (OwnedFd, OwnedFd) {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        (controller, terminal)
    }

    fn is_raw(terminal: &OwnedFd) -> bool {
        !termios::tcgetattr(terminal).unwrap().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    #[test]
    fn restored_when_the_guard_goes() {
        let (_controller, terminal) = pty();
        assert!(!is_raw(&terminal));
        let guard = Raw::enter(&terminal).unwrap();
        assert!(is_raw(&terminal));
        drop(guard);
        assert!(!is_raw(&terminal));
    }

    #[test]
    fn restored_when_the_program_panics() {
        let (_controller, terminal) = pty();
        let result = std::panic::catch_unwind(|| {
            let _guard = Raw::enter(&terminal).unwrap();
            assert!(is_raw(&terminal));
            panic!("on purpose");
        });
        assert!(result.is_err());
        assert!(!is_raw(&terminal));
    }

    #[test]
    fn a_file_is_no_terminal() {
        assert!(Raw::enter(std::fs::File::open("/dev/null").unwrap()).unwrap().is_none());
    }
}
