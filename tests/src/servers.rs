//! Servers that people have: a web server, a registry, an object store. They run beside the test, on an address of the host
//! that pods and nodes reach, and end with their owner.

pub mod registry;
pub mod s3;
pub mod web;

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::until;

/// The host, as pods and nodes see it.
pub const HOST: &str = "10.88.0.1";

/// A server's program.
pub(crate) struct Program(Child);

impl Program {
    /// Starts it and waits until it listens on these ports.
    pub(crate) fn start(command: &mut Command, host: &str, ports: &[u16]) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut program = Self(child.with_context(|| format!("cannot run {name}: `make deps` installs it"))?);
        for port in ports {
            until(&format!("{name} listens"), || {
                let ended = program.0.try_wait()?;
                ensure!(ended.is_none(), "it ended with {ended:?}");
                Ok(TcpStream::connect((host, *port)).is_ok().then_some(()))
            })?;
        }
        Ok(program)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that nobody listens on.
pub(crate) fn free_port(host: &str) -> Result<u16> {
    let listener = TcpListener::bind((host, 0)).with_context(|| format!("cannot listen on {host}"))?;
    Ok(listener.local_addr()?.port())
}

/// A certificate for the host that is its own authority, and its key: files in `dir`.
pub(crate) fn certificate(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let (certificate, key) = (dir.join("certificate.pem"), dir.join("key.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    command.args(["-subj", "/CN=e2e", "-addext", "basicConstraints=critical,CA:FALSE"]);
    command.args(["-addext", &format!("subjectAltName=IP:{HOST}")]);
    let output =
        command.arg("-keyout").arg(&key).arg("-out").arg(&certificate).output().context("cannot run openssl")?;
    ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    Ok((certificate, key))
}
