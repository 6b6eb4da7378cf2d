//! `exec` and `attach`, over each protocol that a kubectl may speak: exit codes, errors apart, a large input, a
//! terminal and its size.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::Namespace;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use serde_json::json;

use crate::Test;
use crate::pods::{apply, idle, ready, special, text};

pub(crate) const TESTS: &[Test] = &[
    ("exit_codes_and_errors_arrive", exit_codes_and_errors_arrive),
    ("a_large_input_goes_through", a_large_input_goes_through),
    ("a_terminal_follows_its_size", a_terminal_follows_its_size),
    ("attach_talks_to_the_first_process", attach_talks_to_the_first_process),
    ("run_attaches_and_cleans_up", run_attaches_and_cleans_up),
];

/// What makes a kubectl that knows both protocols take the one or the other; an old one knows only the second.
pub(crate) const LEGS: &[&[(&str, &str)]] = &[
    &[("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "true"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "true")],
    &[("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")],
];

fn exit_codes_and_errors_arrive() -> Result<()> {
    let space = Namespace::new("exec")?;
    idle(&space, "p")?;
    for leg in LEGS {
        let run = |words: &[&str]| -> Result<_> {
            Ok(space.command("kubectl").args(["exec", "p", "--"]).args(words).envs(leg.iter().copied()).output()?)
        };
        let output = run(&["sh", "-c", "echo out; echo err >&2; exit 7"])?;
        ensure!(output.status.code() == Some(7), "{leg:?}: {output:?}");
        ensure!(output.stdout == b"out\n", "{leg:?}: {output:?}");
        let errors = text(&output.stderr);
        ensure!(errors == "err\ncommand terminated with exit code 7\n", "{leg:?}: {errors:?}");
        let killed = run(&["sh", "-c", "kill -9 $$"])?;
        ensure!(killed.status.code() == Some(137), "{leg:?}: {killed:?}");
        let missing = run(&["no-such-program"])?;
        ensure!(!missing.status.success() && text(&missing.stderr).contains("no-such-program"), "{leg:?}: {missing:?}");
        // Without -i the input is empty, and ends.
        let empty = run(&["cat"])?;
        ensure!(empty.status.success() && empty.stdout.is_empty(), "{leg:?}: {empty:?}");
    }
    let nobody = space.output(&["exec", "nobody", "--", "true"])?;
    ensure!(text(&nobody.stderr).contains("pods \"nobody\" not found"), "{nobody:?}");
    let container = space.output(&["exec", "p", "-c", "other", "--", "true"])?;
    ensure!(
        text(&container.stderr).contains("container other is not valid for pod p")
            || text(&container.stderr).contains("container not found"),
        "{container:?}"
    );
    Ok(())
}

fn a_large_input_goes_through() -> Result<()> {
    let space = Namespace::new("input")?;
    idle(&space, "p")?;
    let bytes: Vec<u8> = (0..10_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    for leg in LEGS {
        let mut command = space.command("kubectl");
        let command = command.args(["exec", "-i", "p", "--", "cat"]).envs(leg.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().context("no pipe")?;
        let back = std::thread::scope(|scope| -> Result<Vec<u8>> {
            let writer = scope.spawn(|| input.write_all(&bytes).map(|()| drop(input)));
            let mut back = Vec::new();
            child.stdout.take().context("no pipe")?.read_to_end(&mut back)?;
            writer.join().map_err(|_| anyhow::anyhow!("the writer failed"))??;
            Ok(back)
        })?;
        ensure!(child.wait()?.success() && back == bytes, "{leg:?}: {} bytes came back", back.len());
    }
    Ok(())
}

/// kubectl on a pseudo terminal of its own.
struct Terminal {
    kubectl: std::process::Child,
    keyboard: File,
    screen: File,
    shown: String,
}

impl Terminal {
    fn start(space: &Namespace, words: &[&str], leg: &[(&str, &str)], size: (u16, u16)) -> Result<Self> {
        let controller = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        rustix::pty::grantpt(&controller)?;
        rustix::pty::unlockpt(&controller)?;
        let name = rustix::pty::ptsname(&controller, Vec::new())?;
        let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
        let mut started = Self {
            kubectl: space
                .command("kubectl")
                .args(words)
                .envs(leg.iter().copied())
                .stdin({
                    set_size(&controller, size)?;
                    Stdio::from(terminal.try_clone()?)
                })
                .stdout(terminal.try_clone()?)
                .stderr(terminal)
                .spawn()?,
            keyboard: File::from(controller.try_clone()?),
            screen: File::from(controller),
            shown: String::new(),
        };
        started.keyboard.flush()?;
        Ok(started)
    }

    fn write(&mut self, keys: &str) -> Result<()> {
        self.keyboard.write_all(keys.as_bytes()).context("cannot type")
    }

    /// Reads the screen until words appear on it.
    fn read_until(&mut self, words: &str) -> Result<()> {
        let mut piece = [0; 4096];
        loop {
            if let Some(at) = self.shown.find(words) {
                self.shown.drain(..at + words.len());
                return Ok(());
            }
            let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            let mut screen = [PollFd::new(&self.screen, PollFlags::IN)];
            ensure!(rustix::event::poll(&mut screen, Some(&limit))? > 0, "no {words:?} in {:?}", self.shown);
            let count = self.screen.read(&mut piece).with_context(|| format!("no {words:?} in {:?}", self.shown))?;
            self.shown += &text(piece.get(..count).unwrap_or_default());
        }
    }

    fn resize(&self, size: (u16, u16)) -> Result<()> {
        set_size(&self.keyboard, size)?;
        let pid = Pid::from_raw(i32::try_from(self.kubectl.id())?).context("no pid")?;
        Ok(rustix::process::kill_process(pid, Signal::WINCH)?)
    }
}

fn set_size(terminal: impl std::os::fd::AsFd, (rows, columns): (u16, u16)) -> Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}

fn a_terminal_follows_its_size() -> Result<()> {
    let space = Namespace::new("terminal")?;
    idle(&space, "p")?;
    for leg in LEGS {
        let mut terminal = Terminal::start(&space, &["exec", "-it", "p", "--", "sh"], leg, (31, 97))?;
        // Words in two parts, so that the echo of what was typed is not taken for the answer.
        terminal.write("busybox test -t 0 && echo is' 'one; until busybox stty size | grep -q '31 97'; do :; done; echo first' 'size\n")?;
        terminal.read_until("is one")?;
        terminal.read_until("first size")?;
        terminal.resize((44, 133))?;
        terminal.write("until busybox stty size | grep -q '44 133'; do :; done; echo second' 'size\n")?;
        terminal.read_until("second size")?;
        terminal.write("exit 5\n")?;
        ensure!(terminal.kubectl.wait()?.code() == Some(5), "{leg:?}: the exit code");
    }
    Ok(())
}

fn attach_talks_to_the_first_process() -> Result<()> {
    let space = Namespace::new("attach")?;
    let script = "while read line; do echo heard $line; [ \"$line\" = end ] && exit 0; done";
    for (n, leg) in LEGS.iter().enumerate() {
        let name = format!("p{n}");
        apply(&space, &[special(&name, script, &json!({"stdin": true}), &json!({"restartPolicy": "Never"}))])?;
        ready(&space, &name)?;
        let mut command = space.command("kubectl");
        let command = command.args(["attach", "-i", &name]).envs(leg.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().context("no pipe")?.write_all(b"one\nend\n")?;
        let output = child.wait_with_output()?;
        let heard = text(&output.stdout);
        ensure!(heard.contains("heard one") && heard.contains("heard end"), "{leg:?}: {output:?}");
        space.wait("pod", &name, "ended", |pod| pod["status"]["phase"] == "Succeeded")?;
    }
    Ok(())
}

fn run_attaches_and_cleans_up() -> Result<()> {
    let space = Namespace::new("run")?;
    let image = format!("--image={}", crate::pods::IMAGE);
    let words = [
        "run",
        "once",
        "-i",
        "--rm",
        "--restart=Never",
        "--quiet",
        &image,
        "--command",
        "--",
        "sh",
        "-c",
        "read x; echo got $x; exit 3",
    ];
    let output = space.feed(&words, b"this\n")?;
    // Once: a kubectl that takes the session for broken prints the log as well.
    ensure!(text(&output.stdout).matches("got this").count() == 1, "{output:?}");
    ensure!(!text(&output.stderr).contains("couldn't attach"), "{output:?}");
    ensure!(output.status.code() == Some(3), "{output:?}");
    space.wait("pod", "once", "was removed", serde_json::Value::is_null)?;
    // A command that has said everything before its client is there is heard nevertheless.
    for round in 0..5 {
        let name = format!("quick{round}");
        let said = ["--command", "--", "sh", "-c", "echo heard"];
        let words = [&["run", &name, "-i", "--rm", "--restart=Never", "--quiet", &image][..], &said].concat();
        let output = space.output(&words)?;
        ensure!(text(&output.stdout).contains("heard"), "{output:?}");
    }
    Ok(())
}
