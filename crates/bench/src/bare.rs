//! What a launcher runs, outside of any cluster: a libvirt daemon of an ordinary user's, with the launcher's own domain.
//!
//! The domain's description, its disks and the daemon's settings are taken from the running launcher; only paths and the
//! name of the network device change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Nobody: libvirt insists on a user with a name, and the launcher's has one only in its image.
const USER: u32 = 65534;
const RUN: &str = "/var/run";
/// Beneath the launcher's `/run`.
const SETTINGS: &str = "kubevirt-private/libvirt/libvirtd.conf";
/// And disks on claims.
const CLAIMS: &str = "kubevirt-private/vmi-disks";
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with everything the launcher's domain needs, which is not yet defined.
pub(crate) struct Bare {
    work: tempfile::TempDir,
    daemon: Child,
    tap: String,
    /// The domain's name.
    pub(crate) domain: String,
    description: String,
}

impl Bare {
    /// Takes over what the launcher with process id `pid` runs. The launcher may go afterwards. `number` tells it from others
    /// of this machine.
    pub(crate) fn copy(pid: u32, number: u8) -> Result<Self> {
        let work = tempfile::Builder::new().prefix("floor-").tempdir().context("cannot make a directory")?;
        let run = work.path().to_owned();
        let pod = PathBuf::from(format!("/proc/{pid}/root/run"));
        for part in ["kubevirt-private", "kubevirt-ephemeral-disks", "kubevirt/container-disks"] {
            copy(&pod.join(part), &run.join(part), pid)
                .with_context(|| format!("cannot copy {part} of the launcher"))?;
        }
        fs::create_dir_all(run.join("libvirt"))?;
        // Two daemons with one number are one host, and no domain moves from a host to itself.
        let settings = run.join(SETTINGS);
        let text = fs::read_to_string(&settings).context("the launcher has no settings of its daemon")?;
        let mut lines: Vec<_> = text.lines().filter(|line| !line.starts_with("host_uuid")).collect();
        let host = format!("host_uuid = \"6a0b5f6e-0d0a-4c6b-9f64-{number:012}\"");
        lines.push(&host);
        fs::write(&settings, lines.join("\n") + "\n")?;
        for overlay in files(&run.join("kubevirt-ephemeral-disks"))? {
            rebase(&overlay, &run)?;
        }
        give(&run)?;
        let launcher = Domain::of_launcher(pid)?;
        let text = launcher.virsh(&["dumpxml", "--inactive", &launcher.name])?;
        let tap = format!("floor{number}");
        let (description, has_tap) = moved(&text, &run, &tap);
        if has_tap {
            ip(&["tuntap", "add", "dev", &tap, "mode", "tap", "vnet_hdr", "user", &USER.to_string()])?;
            ip(&["link", "set", &tap, "up"])?;
        }
        let bare = Self { daemon: start(&run)?, work, tap, domain: launcher.name, description };
        let deadline = Instant::now() + PATIENCE;
        while bare.domain().virsh(&["list"]).is_err() {
            if Instant::now() > deadline {
                bail!("libvirtd does not answer");
            }
        }
        Ok(bare)
    }

    pub(crate) fn define(&self) -> Result<()> {
        let file = self.work.path().join("domain.xml");
        fs::write(&file, &self.description)?;
        self.domain().virsh(&["define", &file.to_string_lossy()]).map(drop)
    }

    /// Takes disks on claims to be those of `other`, in place of its own copies.
    pub(crate) fn share_claims(&self, other: &Self) -> Result<()> {
        let own = self.path(CLAIMS);
        fs::remove_dir_all(&own).context("the launcher has no disk on a claim")?;
        std::os::unix::fs::symlink(other.path(CLAIMS), own).context("cannot share a disk")
    }

    /// Makes a file the daemon's.
    pub(crate) fn give(&self, path: &Path) -> Result<()> {
        give(path)
    }

    /// The domain, wherever it is in its life.
    pub(crate) fn domain(&self) -> Domain {
        Domain { socket: self.work.path().join("libvirt/libvirt-sock"), name: self.domain.clone() }
    }

    /// A path among what the daemon may write.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// A description of a domain on `other` as it is to be here.
    pub(crate) fn adapted(&self, text: &str, other: &Self) -> String {
        let here = |path: &Path| path.display().to_string();
        text.replace(&here(other.work.path()), &here(self.work.path()))
            .replace(&format!("dev='{}'", other.tap), &format!("dev='{}'", self.tap))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let domain = self.domain();
        let _ = domain.virsh(&["destroy", &domain.name]);
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = ip(&["link", "delete", &self.tap]);
    }
}

/// A bridge that the guests of several daemons share with this host.
pub(crate) struct Bridge;

const BRIDGE: &str = "floorbr";

impl Bridge {
    /// With the host's address `host`, in a network of 256.
    pub(crate) fn between(host: &str, bares: &[&Bare]) -> Result<Self> {
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        let bridge = Self;
        ip(&["address", "add", &format!("{host}/24"), "dev", BRIDGE])?;
        for bare in bares {
            ip(&["link", "set", &bare.tap, "master", BRIDGE])?;
        }
        ip(&["link", "set", BRIDGE, "up"])?;
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = ip(&["link", "delete", BRIDGE]);
    }
}

/// A domain and the daemon it is asked of.
pub(crate) struct Domain {
    socket: PathBuf,
    pub(crate) name: String,
}

impl Domain {
    /// What the launcher with process id `pid` runs.
    pub(crate) fn of_launcher(pid: u32) -> Result<Self> {
        let mut domain =
            Self { socket: PathBuf::from(format!("/proc/{pid}/root/run/libvirt/libvirt-sock")), name: String::new() };
        domain.name = domain.virsh(&["list", "--name"])?.trim().to_owned();
        Ok(domain)
    }

    /// The daemon's address.
    pub(crate) fn address(&self) -> String {
        format!("qemu+unix:///session?socket={}", self.socket.display())
    }

    /// As root, who may use every daemon.
    pub(crate) fn virsh(&self, words: &[&str]) -> Result<String> {
        success(Command::new("virsh").args(["-q", "-c", &self.address()]).args(words))
    }
}

fn start(run: &Path) -> Result<Child> {
    let home = run.join("kubevirt-private");
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    // In a pod, a device plugin hands out /dev/net/tun; on a host it may be root's alone.
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]);
    command.arg("libvirtd").arg("-f").arg(run.join(SETTINGS)).current_dir(run);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("XDG_RUNTIME_DIR", run);
    for name in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"] {
        command.env(name, &home);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start libvirtd")
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
fn moved(text: &str, run: &Path, tap: &str) -> (String, bool) {
    let mut text = text.replace(&format!("{RUN}/"), &format!("{}/", run.display()));
    let device = text.find("managed='no'").and_then(|end| {
        let start = text[..end].rfind("dev='")? + "dev='".len();
        let length = text[start..].find('\'')?;
        Some(start..start + length)
    });
    let found = device.is_some();
    if let Some(range) = device {
        text.replace_range(range, tap);
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
        let (text, tap) = moved(text, Path::new("/tmp/f"), "floor0");
        assert!(tap);
        assert_eq!(
            text,
            "<source file='/tmp/f/kubevirt/x.img'/><target dev='vda'/><target dev='floor0' managed='no'/>"
        );
        assert!(!moved("<domain/>", Path::new("/tmp/f"), "floor0").1);
    }
}
