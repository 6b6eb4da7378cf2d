//! `kubectl port-forward`: to a pod, a Service and a Deployment, many connections at once, and a pod that goes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, until};
use serde_json::json;

use crate::Test;
use crate::exec::LEGS;
use crate::pods::{apply, pod, ready};

pub(crate) const TESTS: &[Test] = &[
    ("connections_are_forwarded_side_by_side", connections_are_forwarded_side_by_side),
    ("a_closed_port_and_a_gone_pod_are_noticed", a_closed_port_and_a_gone_pod_are_noticed),
];

/// What is sent comes back, each connection by a process of its own. As many may wait as there are letters `l`.
const ECHO: &str = "trap 'exit 0' TERM; busybox nc -llllllllllllllllllllllllllllllll -p 8080 -e busybox cat & wait";

/// A port-forward that ends with its owner.
struct Forward {
    process: Child,
    port: u16,
}

impl Forward {
    fn start(space: &Namespace, target: &str, port: u16, leg: &[(&str, &str)]) -> Result<Self> {
        let mut process = space
            .command("kubectl")
            .args(["port-forward", target, &format!(":{port}")])
            .envs(leg.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("no pipe")?).lines();
        let line = lines.next().transpose()?.context("port-forward ended")?;
        // Forwarding from 127.0.0.1:40000 -> 8080
        let port = line.split(':').nth(1).and_then(|rest| rest.split(' ').next()).and_then(|port| port.parse().ok());
        let port = port.with_context(|| format!("no port in {line:?}"))?;
        // What it prints of each connection must be read, or it stops.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(Self { process, port })
    }

    fn ask(&self, request: &[u8]) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(30)))?;
        stream.write_all(request)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connections_are_forwarded_side_by_side() -> Result<()> {
    let space = Namespace::new("forward")?;
    apply(
        &space,
        &[
            pod("echo", ECHO),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "echo"},
               "spec": {"selector": {"app": "echo"}, "ports": [{"port": 80, "targetPort": 8080}]}}),
        ],
    )?;
    ready(&space, "echo")?;
    for leg in LEGS {
        let forward = Forward::start(&space, "pod/echo", 8080, leg)?;
        until("the server listened", || Ok((forward.ask(b"hello")? == b"hello").then_some(())))?;
        let block: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        std::thread::scope(|scope| {
            let asks: Vec<_> = (0..20).map(|_| scope.spawn(|| forward.ask(&block))).collect();
            for ask in asks {
                let answer = ask.join().map_err(|_| anyhow::anyhow!("a connection's thread failed"))??;
                ensure!(answer == block, "{leg:?}: {} bytes came back of {}", answer.len(), block.len());
            }
            Ok(())
        })?;
        let service = Forward::start(&space, "service/echo", 80, leg)?;
        ensure!(service.ask(b"by the service")? == b"by the service", "{leg:?}: the service");
    }
    Ok(())
}

fn a_closed_port_and_a_gone_pod_are_noticed() -> Result<()> {
    let space = Namespace::new("gone")?;
    apply(&space, &[pod("p", ECHO)])?;
    ready(&space, "p")?;
    for leg in LEGS {
        let closed = Forward::start(&space, "pod/p", 9, leg)?;
        ensure!(closed.ask(b"hello").map_or(true, |answer| answer.is_empty()), "a closed port answered");
    }
    let forward = Forward::start(&space, "pod/p", 8080, &[])?;
    until("the server listened", || Ok((forward.ask(b"hello")? == b"hello").then_some(())))?;
    space.kubectl(&["delete", "pod", "p", "--timeout=60s"])?;
    until("the forward told of the pod's end", || {
        Ok(forward.ask(b"hello").map_or(true, |answer| answer.is_empty()).then_some(()))
    })
}
