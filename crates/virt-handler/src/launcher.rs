//! Reaching the process in a launcher pod: by a path that cannot lead elsewhere (rule R3), to a peer that the kernel says
//! belongs to the pod (rule R5).

use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use hyper_util::rt::TokioIo;
use rpc::launcher::launcher_client::LauncherClient;
use sys::beneath::Dir;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// Names of the launcher pod's emptyDir volumes that sockets lie in.
pub(crate) const SOCKETS: &str = "sockets";
/// Volume of the console sockets.
pub(crate) const PRIVATE: &str = "private";
/// Bytes of the largest answer that is read from a launcher (rule R7): a screenshot.
const LARGEST_ANSWER: usize = 32 << 20;

/// A launcher that answers.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    /// Its pod.
    pub pod: String,
    /// Its process id as this process sees it.
    pub pid: u32,
    /// With the pid this names the process for good.
    started: u64,
    /// Calls.
    pub client: LauncherClient<Channel>,
}

impl Launcher {
    /// Whether the process still exists. When the first process of a container is gone, the kernel has ended all of it,
    /// QEMU included.
    pub(crate) fn is_alive(&self) -> bool {
        sys::peer::start_time(self.pid).is_ok_and(|started| started == self.started)
    }

    /// Whether it is on its way to be gone.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_alive() && sys::peer::is_ending(self.pid).unwrap_or(false)
    }

    /// Its network namespace.
    pub(crate) fn netns(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.pid).into()
    }

    /// Its file system, for reading what the pod was given.
    pub(crate) fn root(&self) -> Result<Dir, Error> {
        Dir::open(Path::new(&format!("/proc/{}/root", self.pid))).map_err(Error::no_launcher(&self.pod))
    }
}

/// Connects to the launcher of `pod` below the kubelet's directory of pods.
pub(crate) async fn connect(pods: &Path, pod: &str) -> Result<Launcher, Error> {
    let (stream, pid, started) = open(pods, pod, SOCKETS, "launcher-sock")?;
    stream.set_nonblocking(true).map_err(Error::no_launcher(pod))?;
    let stream = UnixStream::from_std(stream).map_err(Error::no_launcher(pod))?;
    // One connection, the checked one: a second would have to be looked up and checked again.
    let once = Mutex::new(Some(stream));
    let connector = tower::service_fn(move |_| {
        let stream = once.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        async move { stream.map(TokioIo::new).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected)) }
    });
    let channel = Endpoint::from_static("http://launcher")
        .connect_with_connector(connector)
        .await
        .map_err(Error::no_launcher(pod))?;
    let client = LauncherClient::new(channel).max_decoding_message_size(LARGEST_ANSWER);
    Ok(Launcher { pod: pod.to_owned(), pid, started, client })
}

/// Connects to a socket in one of the pod's emptyDir volumes and returns it with the process behind it.
pub(crate) fn open(pods: &Path, pod: &str, volume: &str, socket: &str) -> Result<(StdUnixStream, u32, u64), Error> {
    if !is_uid(pod) {
        return Err(Error::PodUid(pod.to_owned()));
    }
    let path = format!("{pod}/volumes/kubernetes.io~empty-dir/{volume}/{socket}");
    let stream = Dir::open(pods).and_then(|dir| dir.connect(&path)).map_err(Error::no_launcher(pod))?;
    let pid = sys::peer::peer(&stream).map_err(Error::no_launcher(pod))?.pid;
    let started = sys::peer::start_time(pid).map_err(Error::no_launcher(pod))?;
    let groups = sys::peer::cgroups_of(pid).map_err(Error::no_launcher(pod))?;
    let ours = groups.iter().any(|group| belongs(&group.path, pod));
    let unchanged = sys::peer::start_time(pid).is_ok_and(|again| again == started);
    if !ours || !unchanged {
        return Err(Error::Impostor { pod: pod.to_owned(), pid });
    }
    Ok((stream, pid, started))
}

/// Whether a cgroup path runs through the pod's group: `…/pod<uid>/…`, or the systemd driver's `…-pod<uid_>.slice/…`.
pub(crate) fn belongs(cgroup: &str, pod: &str) -> bool {
    let escaped = format!("pod{}.slice", pod.replace('-', "_"));
    let plain = format!("pod{pod}");
    cgroup.split('/').any(|part| part == plain || part.ends_with(&format!("-{escaped}")) || part == escaped)
}

/// Pod UIDs are UUIDs, or hashes for static pods: nothing that means anything in a path.
fn is_uid(pod: &str) -> bool {
    !pod.is_empty() && pod.len() <= 64 && pod.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership_is_by_whole_path_parts() {
        let uid = "e42de180-87c5-44dc-ae34-a458f5194e26";
        for (path, expect) in [
            ("/ferrovirt/node1/pode42de180-87c5-44dc-ae34-a458f5194e26/abc", true),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pode42de180_87c5_44dc_ae34_a458f5194e26.slice/cri.scope",
                true,
            ),
            ("/ferrovirt/node1/podother/pode42de180-87c5-44dc-ae34-a458f5194e26x", false),
            ("/user.slice", false),
            ("/", false),
        ] {
            assert_eq!(belongs(path, uid), expect, "{path}");
        }
    }

    #[test]
    fn uids_cannot_steer_a_path() {
        for bad in ["", "..", "a/b", "../../etc", "pod uid", "e42de180-87c5-44dc-ae34-a458f5194e26/.."] {
            assert!(matches!(open(Path::new("/"), bad, SOCKETS, "s"), Err(Error::PodUid(_))), "{bad:?}");
        }
    }

    #[test]
    fn a_process_outside_the_pod_is_an_impostor() {
        let dir = std::env::temp_dir().join(format!("launcher-{}", std::process::id()));
        let pod = "00000000-0000-4000-8000-000000000001";
        let volume = dir.join(pod).join("volumes/kubernetes.io~empty-dir/sockets");
        std::fs::create_dir_all(&volume).unwrap();
        // Bound under a short name: the path of a pod's volume is longer than a socket address may be.
        let _listener = std::os::unix::net::UnixListener::bind(dir.join("s")).unwrap();
        std::fs::rename(dir.join("s"), volume.join("launcher-sock")).unwrap();
        assert!(matches!(open(&dir, pod, SOCKETS, "launcher-sock"), Err(Error::Impostor { .. })));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
