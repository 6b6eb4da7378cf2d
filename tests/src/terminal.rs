//! `virtctl console` on a pseudo terminal, as a person uses it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, tcgetattr};

use crate::Namespace;
use crate::wait::{BOOT, SOON, until};

/// A console in a terminal.
pub struct Console {
    child: Child,
    keyboard: File,
    terminal: OwnedFd,
    before: Termios,
    screen: Receiver<Vec<u8>>,
    shown: String,
}

impl Console {
    /// Runs `virtctl console` and waits until it is connected.
    pub fn open(space: &Namespace, vmi: &str) -> Result<Self> {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("cannot open a pseudo terminal")?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let name = ptsname(&controller, Vec::new())?;
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).context("cannot open the terminal")?;
        let before = tcgetattr(&terminal)?;
        let side = || terminal.try_clone().map(Stdio::from).context("cannot share the terminal");
        let mut command = space.virtctl_command(&["console", vmi]);
        let child = command.stdin(side()?).stdout(side()?).stderr(side()?).spawn().context("cannot run virtctl")?;
        let keyboard = File::from(controller);
        let mut screen = keyboard.try_clone().context("cannot share the terminal")?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut console = Self { child, keyboard, terminal, before, screen: receiver, shown: String::new() };
        console.expect(&[&format!("Successfully connected to {vmi} console.")], BOOT)?;
        // Typed before the terminal is raw, a key would be the terminal's and not the guest's.
        until("the terminal to be raw", SOON, || Ok(console.is_raw()?.then_some(())))?;
        Ok(console)
    }

    /// Types, for the guest.
    pub fn type_in(&mut self, text: &str) -> Result<()> {
        self.keyboard.write_all(text.as_bytes()).context("cannot type")
    }

    /// Reads until one of the texts was shown; says which, and what was shown before it. Both are then used up.
    pub fn expect(&mut self, texts: &[&str], limit: Duration) -> Result<(usize, String)> {
        self.look_for(texts, limit)?.with_context(|| format!("none of {texts:?} was shown but: {:?}", self.shown))
    }

    fn look_for(&mut self, texts: &[&str], limit: Duration) -> Result<Option<(usize, String)>> {
        let deadline = Instant::now() + limit;
        loop {
            let first = texts
                .iter()
                .enumerate()
                .filter_map(|(index, text)| self.shown.find(text).map(|at| (at, index, at + text.len())))
                .min();
            if let Some((at, index, end)) = first {
                let before = self.shown[..at].to_owned();
                self.shown.drain(..end);
                return Ok(Some((index, before)));
            }
            match self.screen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => bail!("the terminal closed after {:?}", self.shown),
            }
        }
    }

    /// Logs in, when the guest is far enough; a shell that somebody left open is used as it is.
    pub fn log_in(&mut self, user: &str, password: &str) -> Result<()> {
        let deadline = Instant::now() + BOOT;
        loop {
            // Somebody may have been shown the prompt already; Enter brings another.
            self.type_in("\r")?;
            match self.look_for(&["login: ", " # ", " $ "], Duration::from_secs(5))? {
                Some((0, _)) => break,
                Some(_) => return Ok(()),
                None => ensure!(Instant::now() < deadline, "no login prompt but: {:?}", self.shown),
            }
        }
        self.type_in(&format!("{user}\r"))?;
        self.expect(&["Password: "], SOON)?;
        self.type_in(&format!("{password}\r"))?;
        let (which, shown) = self.expect(&[" # ", " $ ", "Login incorrect"], SOON)?;
        ensure!(which < 2, "the password was not accepted: {shown:?}");
        Ok(())
    }

    /// Runs a command in the shell and returns what it printed and its exit code.
    pub fn run(&mut self, command: &str) -> Result<(String, i32)> {
        // The quotes keep the marks out of the echo of the command line.
        self.type_in(&format!("echo '[be''gin]'; {command}; echo '[en''d'$?]\r"))?;
        self.expect(&["[begin]"], SOON)?;
        let (_, printed) = self.expect(&["[end"], BOOT)?;
        let (_, code) = self.expect(&["]"], SOON)?;
        let code = code.parse().with_context(|| format!("{command:?} ended with {code:?}"))?;
        Ok((printed.replace('\r', "").trim().to_owned(), code))
    }

    /// Leaves the shell, so that the next one who connects is asked to log in.
    pub fn log_out(&mut self) -> Result<()> {
        self.type_in("exit\r")?;
        self.expect(&["login: "], SOON).map(drop)
    }

    /// Types Ctrl-] and waits for the end: it must be a good one, with the terminal as it was found.
    pub fn leave(mut self) -> Result<()> {
        self.type_in("\x1d")?;
        let (code, _) = self.end()?;
        ensure!(code == Some(0), "virtctl console ended with {code:?} after its escape");
        Ok(())
    }

    /// Sends virtctl a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("cannot signal virtctl")
    }

    /// Waits for the end; returns the exit code and what was shown last. The terminal must be as it was found.
    pub fn end(mut self) -> Result<(Option<i32>, String)> {
        let status = until("the end of virtctl console", SOON, || self.child.try_wait().context("cannot wait"))?;
        let after = tcgetattr(&self.terminal)?;
        ensure!(same(&self.before, &after), "the terminal was left as {after:?} and found as {:?}", self.before);
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(100)) {
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok((status.code(), std::mem::take(&mut self.shown)))
    }

    /// Whether the terminal passes every key on.
    pub fn is_raw(&self) -> Result<bool> {
        Ok(!tcgetattr(&self.terminal)?.local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG))
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn same(one: &Termios, other: &Termios) -> bool {
    let modes = |t: &Termios| (t.input_modes, t.output_modes, t.control_modes, t.local_modes);
    modes(one) == modes(other)
}
