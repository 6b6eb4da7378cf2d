//! PID 1 of the node: prepares the root, keeps containerd and the agent running, reaps everybody else.
//!
//! It has one thread and no async runtime. It ignores every signal but the kill from outside, which is a power cut.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sys::namespace::{Namespace, unshare};

use super::{Config, Error, Result, containerd, file, rootfs, write};

/// The subcommand of this program that becomes the agent; the init starts it through /proc/self/exe.
pub const AGENT: &str = "node-agent";

/// Runs the node described by the file `config`; returns only when the node cannot be prepared. `env` says where the
/// agent's log level and such come from: it inherits this process' environment.
pub fn run(config: &Path) -> Result<std::convert::Infallible> {
    let config = Config::load(config)?;
    // Kept open until the end of this process: whoever can take the lock knows that the node is off.
    let _lock = sys::lock::acquire(&config.lock())?.ok_or_else(|| Error::Running(config.name.clone()))?;
    sys::process::raise_open_files()?;
    sys::process::set_hostname(&config.name)?;
    let hierarchies = sys::cgroup::hierarchies()?;
    for hierarchy in &hierarchies {
        // Left by a node that lost its power. A version 2 group that hands controllers down cannot be entered again.
        let _ = sys::cgroup::remove(&hierarchy.mount.join(config.cgroup()));
    }
    sys::cgroup::join(&hierarchies, &config.cgroup())?;
    unshare(&[Namespace::Cgroup])?;
    rootfs::enter(&config, &hierarchies)?;
    if let Some(unified) = hierarchies.iter().find(|hierarchy| hierarchy.options.is_none()) {
        // Processes live in leaves only; the node's root has to hand controllers down.
        let _ = sys::cgroup::join(std::slice::from_ref(unified), Path::new("init"));
        sys::cgroup::delegate(&unified.mount, Path::new("init"));
    }
    kernel_settings();
    Supervisor::default().run()
}

/// Settings of the node's network namespace. A kernel may lack some of them, and then what they govern as well.
const SYSCTLS: [(&str, &str); 14] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/ipv6/conf/default/forwarding", "1"),
    // These networks have one owner; duplicate address detection would only delay every pod.
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    // Pods on one bridge that talk through a Service must pass the translation both ways.
    ("net/bridge/bridge-nf-call-iptables", "1"),
    ("net/bridge/bridge-nf-call-ip6tables", "1"),
    // A node refuses on behalf of Services and routes back where packets came from: neither calls for advice to the
    // sender, and the limit on such advice would swallow refusals.
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/default/send_redirects", "0"),
    ("net/ipv4/conf/eth0/send_redirects", "0"),
    ("net/ipv4/icmp_ratelimit", "0"),
    ("net/ipv6/icmp/ratelimit", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
];

fn kernel_settings() {
    for (name, value) in SYSCTLS {
        let _ = write(&Path::new("/proc/sys").join(name), value);
    }
}

/// The two programs that must always run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Service {
    Containerd,
    Agent,
}

#[derive(Default)]
struct Supervisor {
    running: BTreeMap<u32, Service>,
}

impl Supervisor {
    fn run(mut self) -> Result<std::convert::Infallible> {
        for service in [Service::Containerd, Service::Agent] {
            self.start(service)?;
        }
        // From here on it waits, and most of what it needed until here is not needed again.
        sys::code::let_go();
        loop {
            // None cannot happen while both services run, and a service that ends is started again.
            let Some(exit) = sys::process::reap()? else { return Err(Error::Namespaces) };
            if let Some(service) = self.running.remove(&exit.pid) {
                tracing::warn!(?service, code = exit.code, "ended, starting it again");
                // Containers keep running meanwhile: their shims are nobody's children but this process'.
                sys::process::pause(Duration::from_millis(500));
                self.start(service)?;
            }
        }
    }

    fn start(&mut self, service: Service) -> Result<()> {
        let mut command = match service {
            Service::Containerd => {
                let mut command = Command::new("containerd");
                let log = Path::new("/var/log/containerd.log");
                let output = OpenOptions::new().create(true).append(true).open(log).map_err(file("open", log))?;
                let errors = output.try_clone().map_err(file("open", log))?;
                command.args(["--config", "/etc/containerd/config.toml"]).stdout(output).stderr(errors);
                // A socket left by a predecessor would be mistaken for a listening one.
                let _ = std::fs::remove_file(containerd::SOCKET);
                command
            }
            Service::Agent => {
                let mut command = Command::new("/proc/self/exe");
                command.arg(AGENT);
                command
            }
        };
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let spawned = command.stdin(Stdio::null()).env("PATH", path).env("HOME", "/root").spawn();
        let child =
            spawned.map_err(|source| Error::Start { program: format!("{service:?}").to_lowercase(), source })?;
        self.running.insert(child.id(), service);
        Ok(())
    }
}
