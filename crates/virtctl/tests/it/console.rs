//! The console on a pseudo terminal: raw while connected, restored on every way out.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use futures::SinkExt;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::cluster::{Cluster, Opened, bytes};

/// The program on its terminal.
struct Running {
    child: Child,
    keyboard: File,
    terminal: OwnedFd,
    screen: UnboundedReceiver<Vec<u8>>,
    shown: String,
}

impl Running {
    fn start(cluster: &Cluster) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let side = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = cluster.virtctl(&["console", "demo"]);
        let child = command.stdin(side()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut child = child;
        let mut output = child.stdout.take().unwrap();
        let (shown, screen) = unbounded_channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 256];
            loop {
                match output.read(&mut buffer).unwrap() {
                    0 => return,
                    got => shown.send(buffer[..got].to_vec()).unwrap(),
                }
            }
        });
        Self { child, keyboard: File::from(controller), terminal, screen, shown: String::new() }
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.intersects(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits until the screen holds `text`.
    async fn shows(&mut self, text: &str) {
        while !self.shown.contains(text) {
            let more = self.screen.recv().await.expect("the console ended before it showed this");
            self.shown += std::str::from_utf8(&more).unwrap();
        }
    }

    fn type_in(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Waits for the end: exit code and what was shown, with the terminal as it was found.
    async fn end(mut self) -> (Option<i32>, String) {
        let (status, mut child) = tokio::task::spawn_blocking(move || {
            let status = self.child.wait().unwrap();
            (status, self)
        })
        .await
        .unwrap();
        assert!(!child.is_raw(), "the terminal is restored");
        while let Some(more) = child.screen.recv().await {
            child.shown += std::str::from_utf8(&more).unwrap();
        }
        (status.code(), child.shown)
    }
}

async fn connected(cluster: &mut Cluster, running: &mut Running) -> Opened {
    let mut opened = cluster.opened.recv().await.unwrap();
    assert_eq!(opened.path, "/apis/subresources.kubevirt.io/v1/namespaces/here/virtualmachineinstances/demo/console");
    // What comes back proves that the pump runs, and so that the terminal is raw.
    running.type_in(b"a");
    let mut got = bytes(&mut opened.socket).await;
    // A key typed before the terminal was raw waits for the end of its line.
    if got != b"a" {
        got.retain(|byte| *byte == b'a');
        assert_eq!(got, b"a");
    }
    assert!(running.is_raw());
    opened
}

#[tokio::test(flavor = "multi_thread")]
async fn the_escape_leaves() {
    let mut cluster = Cluster::start().await;
    let mut running = Running::start(&cluster);
    let mut opened = connected(&mut cluster, &mut running).await;
    opened.socket.send(Message::Binary("login: ".into())).await.unwrap();
    running.shows("login: ").await;
    // Ctrl-C is the guest's.
    running.type_in(b"\x03");
    assert_eq!(bytes(&mut opened.socket).await, b"\x03");
    running.type_in(b"\x1d");
    let (code, shown) = running.end().await;
    assert_eq!((code, shown.as_str()), (Some(0), "login: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_leave() {
    for (signal, expect) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let mut cluster = Cluster::start().await;
        let mut running = Running::start(&cluster);
        let _opened = connected(&mut cluster, &mut running).await;
        kill_process(Pid::from_child(&running.child), signal).unwrap();
        assert_eq!(running.end().await.0, Some(expect));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guest_leaves() {
    let mut cluster = Cluster::start().await;
    let mut running = Running::start(&cluster);
    let mut opened = connected(&mut cluster, &mut running).await;
    let frame = CloseFrame { code: CloseCode::Normal, reason: "the guest's console closed".into() };
    opened.socket.close(Some(frame)).await.unwrap();
    assert_eq!(running.end().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_console_taken_over_is_taken_back_on_enter() {
    let mut cluster = Cluster::start().await;
    let mut running = Running::start(&cluster);
    let mut opened = connected(&mut cluster, &mut running).await;
    let frame = CloseFrame { code: CloseCode::Normal, reason: "another user took the console over".into() };
    opened.socket.close(Some(frame)).await.unwrap();
    while running.is_raw() {
        tokio::task::yield_now().await;
    }
    running.type_in(b"\n");
    let _again = connected(&mut cluster, &mut running).await;
    running.type_in(b"\x1d");
    assert_eq!(running.end().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_opened_again() {
    let mut cluster = Cluster::start().await;
    let mut running = Running::start(&cluster);
    drop(connected(&mut cluster, &mut running).await);
    let _again = connected(&mut cluster, &mut running).await;
    running.type_in(b"\x1d");
    assert_eq!(running.end().await.0, Some(0));
}
