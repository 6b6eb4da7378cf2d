//! The floor of a machine's start: `virsh start` of the very domain that a launcher made, outside of any cluster.
//!
//! The domain's description, its disks and the daemon's settings are taken from the running launcher; only paths and the
//! name of the network device change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::table::Times;

/// Nobody: libvirt insists on a user with a name, and the launcher's has one only in its image.
const USER: u32 = 65534;
const RUN: &str = "/var/run";
const TAP: &str = "floor0";

/// A session daemon with the launcher's domain defined.
pub(crate) struct Floor {
    work: tempfile::TempDir,
    daemon: Child,
    domain: String,
}

impl Floor {
    /// Takes over what the launcher with process id `pid` runs. The launcher may go afterwards.
    pub(crate) fn copy(pid: u32) -> Result<Self> {
        let work = tempfile::Builder::new().prefix("floor-").tempdir().context("cannot make a directory")?;
        let run = work.path().to_owned();
        let pod = PathBuf::from(format!("/proc/{pid}/root/run"));
        for part in ["kubevirt-private", "kubevirt-ephemeral-disks", "kubevirt/container-disks"] {
            copy(&pod.join(part), &run.join(part), pid)
                .with_context(|| format!("cannot copy {part} of the launcher"))?;
        }
        fs::create_dir_all(run.join("libvirt"))?;
        for overlay in files(&run.join("kubevirt-ephemeral-disks"))? {
            rebase(&overlay, &run)?;
        }
        give(&run)?;
        let socket = pod.join("libvirt/libvirt-sock");
        let domain = virsh(&socket, &["list", "--name"])?.trim().to_owned();
        let text = virsh(&socket, &["dumpxml", "--inactive", &domain])?;
        let (text, tap) = moved(&text, &run);
        if tap {
            ip(&["tuntap", "add", "dev", TAP, "mode", "tap", "vnet_hdr", "user", &USER.to_string()])?;
            ip(&["link", "set", TAP, "up"])?;
        }
        let daemon = start(&run)?;
        let floor = Self { work, daemon, domain };
        let description = run.join("domain.xml");
        fs::write(&description, text)?;
        floor.wait()?;
        floor.virsh(&["define", &description.to_string_lossy()])?;
        Ok(floor)
    }

    /// Starts and destroys the domain `rounds` times; the times of the starts.
    pub(crate) fn starts(&self, rounds: usize) -> Result<Times> {
        let mut times = Times::default();
        for _ in 0..rounds {
            let begin = Instant::now();
            self.virsh(&["start", &self.domain])?;
            times.extend([begin.elapsed()]);
            self.virsh(&["destroy", &self.domain])?;
        }
        Ok(times)
    }

    fn wait(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.virsh(&["list"]).is_err() {
            if Instant::now() > deadline {
                bail!("libvirtd does not answer");
            }
        }
        Ok(())
    }

    fn virsh(&self, words: &[&str]) -> Result<String> {
        virsh(&self.work.path().join("libvirt/libvirt-sock"), words)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.virsh(&["destroy", &self.domain]);
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = ip(&["link", "delete", TAP]);
    }
}

fn start(run: &Path) -> Result<Child> {
    let home = run.join("kubevirt-private");
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    // In a pod, a device plugin hands out /dev/net/tun; on a host it may be root's alone.
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]);
    command.arg("libvirtd").arg("-f").arg(home.join("libvirt/libvirtd.conf")).current_dir(run);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("XDG_RUNTIME_DIR", run);
    for name in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
        command.env(name, &home);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start libvirtd")
}

/// As root, who may use every daemon.
fn virsh(socket: &Path, words: &[&str]) -> Result<String> {
    let address = format!("qemu+unix:///session?socket={}", socket.display());
    success(Command::new("virsh").args(["-q", "-c", &address]).args(words))
}

fn ip(words: &[&str]) -> Result<String> {
    success(Command::new("ip").args(words))
}

fn success(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The description with paths below `run` and our network device, and whether it has one.
fn moved(text: &str, run: &Path) -> (String, bool) {
    let mut text = text.replace(&format!("{RUN}/"), &format!("{}/", run.display()));
    let device = text.find("managed='no'").and_then(|end| {
        let start = text[..end].rfind("dev='")? + "dev='".len();
        let length = text[start..].find('\'')?;
        Some(start..start + length)
    });
    let found = device.is_some();
    if let Some(range) = device {
        text.replace_range(range, TAP);
    }
    (text, found)
}

/// Points an overlay at the copy of what it lies on; files of other formats are left alone.
fn rebase(path: &Path, run: &Path) -> Result<()> {
    let seen = success(Command::new("qemu-img").args(["info", "-U", "--output=json"]).arg(path))?;
    let seen: serde_json::Value = serde_json::from_str(&seen).context("qemu-img printed no JSON")?;
    let (Some(backing), Some(format)) = (seen["backing-filename"].as_str(), seen["backing-filename-format"].as_str())
    else {
        return Ok(());
    };
    let backing = run.join(backing.trim_start_matches(RUN).trim_start_matches('/'));
    success(Command::new("qemu-img").args(["rebase", "-u", "-F", format, "-b"]).arg(backing).arg(path)).map(drop)
}

/// Files and directories; a link to a descriptor of process `pid` becomes the file that it stands for.
fn copy(from: &Path, to: &Path, pid: u32) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target, pid)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), target)?;
        } else if kind.is_symlink() {
            let link = fs::read_link(entry.path())?;
            let number = link.file_name().context("a link to nothing")?;
            fs::copy(Path::new(&format!("/proc/{pid}/fd")).join(number), target)?;
        }
    }
    Ok(())
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            all.extend(files(&entry.path())?);
        } else {
            all.push(entry.path());
        }
    }
    Ok(all)
}

fn give(path: &Path) -> Result<()> {
    std::os::unix::fs::chown(path, Some(USER), Some(USER))?;
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            give(&entry?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_moves() {
        let text = "<source file='/var/run/kubevirt/x.img'/><target dev='vda'/><target dev='tap0' managed='no'/>";
        let (text, tap) = moved(text, Path::new("/tmp/f"));
        assert!(tap);
        assert_eq!(
            text,
            "<source file='/tmp/f/kubevirt/x.img'/><target dev='vda'/><target dev='floor0' managed='no'/>"
        );
        assert!(!moved("<domain/>", Path::new("/tmp/f")).1);
    }
}
