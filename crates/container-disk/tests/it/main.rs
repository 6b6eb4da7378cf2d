//! The program as it runs in a container: it lends a file, names what is missing, and goes when asked.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

struct Lender {
    child: Child,
    directory: PathBuf,
}

impl Lender {
    fn start(name: &str, paths: &[&str]) -> Self {
        let directory = std::env::temp_dir().join(format!("container-disk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_container-disk"));
        command.arg("--socket").arg(directory.join("s"));
        for path in paths {
            command.arg("--path").arg(directory.join(path));
        }
        Self { child: command.spawn().unwrap(), directory }
    }

    fn ask(&self, lines: usize) -> Vec<(String, Option<std::fs::File>)> {
        let stream = connect(&self.directory.join("s"));
        (0..lines)
            .map(|_| {
                let (line, mut fds) = sys::fdpass::receive_line(&stream, 4096).unwrap();
                (line, fds.pop().map(std::fs::File::from))
            })
            .collect()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn connect(socket: &Path) -> UnixStream {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_file_arrives_open() {
    let lender = Lender::start("file", &["disk.img"]);
    std::fs::write(lender.directory.join("disk.img"), b"sectors").unwrap();
    let answers = lender.ask(1);
    assert!(answers[0].0.ends_with("\"size\":7}"), "{}", answers[0].0);
    let mut text = String::new();
    answers[0].1.as_ref().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "sectors");
}

#[test]
fn several_files_arrive_in_order() {
    let lender = Lender::start("several", &["vmlinuz", "initrd"]);
    std::fs::write(lender.directory.join("vmlinuz"), b"k").unwrap();
    std::fs::write(lender.directory.join("initrd"), b"in").unwrap();
    let answers = lender.ask(2);
    assert!(answers[0].0.contains("vmlinuz") && answers[1].0.contains("initrd"));
    assert!(answers.iter().all(|(_, file)| file.is_some()));
}

#[test]
fn a_missing_file_is_named() {
    let lender = Lender::start("missing", &["nothing"]);
    let answers = lender.ask(1);
    assert!(answers[0].0.starts_with("{\"error\":") && answers[0].0.contains("nothing"), "{}", answers[0].0);
    assert!(answers[0].1.is_none());
}

#[test]
fn sigterm_ends_it() {
    let mut lender = Lender::start("term", &["x"]);
    lender.ask(1);
    let pid = rustix::process::Pid::from_child(&lender.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(lender.child.wait().unwrap().success());
}

#[test]
fn a_disk_is_served_to_the_importer_of_its_pod() {
    let directory = std::env::temp_dir().join(format!("container-disk-http-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("disk")).unwrap();
    std::fs::write(directory.join("disk/vm.qcow2"), b"0123456789").unwrap();
    let (ready, done) = (directory.join("ready"), directory.join("done"));
    let images = directory.join("disk");
    let serve = || {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(env!("CARGO_BIN_EXE_container-disk"));
        command.arg("-p").arg(port.to_string()).arg("-image-dir").arg(&images);
        command.arg("-ready-file").arg(&ready).arg("-done-file").arg(&done).env("X_KUBEVIRT_IO_Y", "z");
        (port, command.spawn().unwrap())
    };
    let (mut port, child) = serve();
    let lender = Lender { child, directory };
    let mut lender = std::mem::ManuallyDrop::new(lender);
    let start = Instant::now();
    while std::fs::read_to_string(&ready).unwrap_or_default() != "vm.qcow2" {
        assert!(start.elapsed() < Duration::from_secs(10), "never ready");
        // Somebody else may have taken the port, which was free a moment ago.
        if lender.child.try_wait().unwrap().is_some() {
            (port, lender.child) = serve();
        }
        std::thread::yield_now();
    }
    let ask = |request: &str| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        std::io::Write::write_all(&mut stream, format!("{request}\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    assert!(ask("GET /vm.qcow2 HTTP/1.1").ends_with("\r\n\r\n0123456789"));
    assert!(
        ask("GET /disk.img HTTP/1.1\r\nRange: bytes=7-")
            .ends_with("Content-Range: bytes 7-9/10\r\nAccept-Ranges: bytes\r\nConnection: close\r\n\r\n789")
    );
    assert!(ask("GET /../secret HTTP/1.1").starts_with("HTTP/1.1 404"));
    assert!(ask("GET /info HTTP/1.1").contains("\"X_KUBEVIRT_IO_Y=z\""));
    std::fs::write(&done, "").unwrap();
    assert!(lender.child.wait().unwrap().success());
    std::fs::remove_dir_all(&lender.directory).unwrap();
}
