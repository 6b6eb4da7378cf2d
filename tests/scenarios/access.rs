//! Reaching a guest: over a Service, by SSH, by forwarded ports, its screen, and what its agent tells.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::guest::NAME;
use e2e::machine::{holds, word};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::shared::with_guest;
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("access_by_a_service", by_a_service),
        trial("access_by_ssh_and_scp", by_ssh_and_scp),
        trial("access_by_a_forwarded_port", by_a_forwarded_port),
        trial("access_to_the_screen", to_the_screen),
        trial("the_agent_tells_of_the_guest", the_agent_tells_of_the_guest),
    ]
}

fn by_a_service() -> Result<()> {
    with_guest(|guest| {
        let page = guest.page()?;
        ensure!(page.contains(&format!("virtual machine “{NAME}”")), "{page}");
        let vm = guest.space.wait("vm", NAME, "was Ready", |vm| holds(vm, "Ready"))?;
        ensure!(word(&vm) == "Running" && vm["status"]["ready"] == true && vm["status"]["created"] == true, "{vm}");
        Ok(())
    })
}

fn by_ssh_and_scp() -> Result<()> {
    with_guest(|guest| {
        ensure!(guest.ssh("hostname")? == NAME);
        // The exit code is the command's.
        let output = guest.virtctl_with_key("ssh", &["guest@vmi/web", "--command", "exit 3"])?;
        ensure!(output.status.code() == Some(3), "{output:?}");
        let files = tempfile::tempdir().context("cannot make a directory")?;
        let (there, back) = (files.path().join("there"), files.path().join("back"));
        let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&there, &content).context("cannot write a file")?;
        let copy = |from: &str, to: &str| -> Result<()> {
            let output = guest.virtctl_with_key("scp", &[from, to])?;
            ensure!(output.status.success(), "scp {from} {to}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(())
        };
        copy(&there.to_string_lossy(), "guest@vm/web:/tmp/copied")?;
        copy("guest@vm/web:/tmp/copied", &back.to_string_lossy())?;
        ensure!(std::fs::read(&back).context("nothing came back")? == content, "another file came back");
        Ok(())
    })
}

/// A program that is ended when it is not needed any more.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn by_a_forwarded_port() -> Result<()> {
    with_guest(|guest| {
        let mut command = guest.space.virtctl_command(&["port-forward", "vm/web", "18080:80"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot run virtctl")?;
        let _forward = Running(child);
        // Twice: a forwarded port serves more than one connection.
        for _ in 0..2 {
            let page = guest.space.fetch("http://127.0.0.1:18080/cgi-bin/hello")?;
            ensure!(page.contains("virtual machine"), "{page}");
        }

        let mut command = guest.space.virtctl_command(&["port-forward", "--stdio=true", "vmi/web", "80"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = Running(piped.spawn().context("cannot run virtctl")?);
        let mut stdin = child.0.stdin.take().context("no input")?;
        stdin.write_all(b"GET /cgi-bin/hello HTTP/1.0\r\n\r\n").context("cannot ask")?;
        let mut answer = String::new();
        let mut stdout = BufReader::new(child.0.stdout.take().context("no output")?);
        stdout.read_line(&mut answer).context("no answer")?;
        ensure!(answer.starts_with("HTTP/1."), "{answer}");
        stdout.read_to_string(&mut answer).context("no end of the answer")?;
        ensure!(answer.contains("virtual machine"), "{answer}");
        drop(stdin);
        let ended = child.0.wait().context("no end")?;
        ensure!(ended.success(), "{ended}");
        Ok(())
    })
}

fn to_the_screen() -> Result<()> {
    with_guest(|guest| {
        let file = tempfile::NamedTempFile::new().context("cannot make a file")?;
        guest.space.virtctl(&["vnc", "screenshot", NAME, "--file", &file.path().to_string_lossy()])?;
        let picture = std::fs::read(file.path()).context("no picture")?;
        ensure!(picture.starts_with(b"\x89PNG\r\n\x1a\n") && picture.ends_with(b"IEND\xaeB`\x82"), "not a PNG file");
        let side = |at: usize| {
            picture.get(at..at + 4).map(|bytes| bytes.iter().fold(0, |all, byte| all << 8 | u32::from(*byte)))
        };
        ensure!(side(16) >= Some(640) && side(20) >= Some(400), "{:?} x {:?}", side(16), side(20));
        Ok(())
    })
}

fn the_agent_tells_of_the_guest() -> Result<()> {
    with_guest(|guest| {
        let json = |verb: &str| -> Result<Value> {
            serde_json::from_str(&guest.space.virtctl(&[verb, NAME])?).with_context(|| format!("{verb} is not JSON"))
        };
        let facts = json("guestosinfo")?;
        ensure!(facts["hostname"] == NAME && facts["os"]["id"] == "ferrovirt-guest", "{facts}");
        ensure!(facts["guestAgentVersion"].is_string() && facts["timezone"] == "UTC, 0", "{facts}");
        let list = json("fslist")?;
        let systems = list["items"].as_array().context("no file systems")?;
        ensure!(systems.iter().any(|fs| fs["mountPoint"] == "/" && fs["fileSystemType"] == "ext4"), "{list}");
        ensure!(json("userlist")?["items"].is_array(), "no list of users");

        let vmi = guest.space.wait("vmi", NAME, "knew the guest's interface", |vmi| {
            vmi["status"]["interfaces"][0]["infoSource"] == "domain, guest-agent"
        })?;
        let interface = &vmi["status"]["interfaces"][0];
        ensure!(interface["name"] == "default" && interface["interfaceName"] == "eth0", "{interface}");
        // Behind masquerade the guest is reached at the pod's address.
        let address = guest.space.kubectl(&[
            "get",
            "pod",
            "-l",
            "vm.kubevirt.io/name=web",
            "-o",
            "jsonpath={.items[0].status.podIP}",
        ])?;
        ensure!(interface["ipAddress"] == address.as_str(), "{interface} and not {address}");
        let system = &vmi["status"]["guestOSInfo"];
        ensure!(system["id"] == "ferrovirt-guest" && system["kernelRelease"].is_string(), "{system}");
        ensure!(vmi["status"]["nodeName"] == "node1" && vmi["status"]["machine"]["type"] == "pc-q35-10.0", "{vmi}");
        Ok(())
    })
}
