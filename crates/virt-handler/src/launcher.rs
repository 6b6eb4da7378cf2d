//! Reaching the process in a launcher pod: by a path that cannot lead elsewhere (rule R3), to a peer that the kernel says
//! belongs to the pod (rule R5).

use std::collections::BTreeSet;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rpc::launcher::launcher_client::LauncherClient;
use sys::beneath::Dir;
use sys::peer::Process;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::Error;

/// Names of the launcher pod's emptyDir volumes that sockets lie in.
pub(crate) const SOCKETS: &str = "sockets";
/// Volume of the console sockets.
pub(crate) const PRIVATE: &str = "private";
/// Bytes of the largest answer that is read from a launcher (rule R7), a screenshot aside.
const LARGEST_ANSWER: usize = 4 << 20;
/// Bytes of the largest state that is read from a launcher: what does not fit into a status is of no use.
const LARGEST_STATE: usize = 1 << 20;
/// Bytes of a screenshot.
const LARGEST_SCREENSHOT: usize = 32 << 20;
/// A call that the launcher answers from memory.
pub(crate) const CALL: Duration = Duration::from_secs(10);
/// How long a launcher may take to greet.
const GREETING: Duration = Duration::from_secs(10);
/// How long a place among those who wait for a listener is waited for, and how often it is looked for.
const PLACE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(50);

/// The process behind a socket of the pod with this UID.
type Peer = dyn Fn(&str, &StdUnixStream) -> Result<Process, sys::Error> + Send + Sync;

/// The pods of this node, and how the processes in them are recognised.
#[derive(Clone)]
pub(crate) struct Pods {
    /// The kubelet's directory of them.
    dir: PathBuf,
    /// Whether a control group is one of a pod's.
    is_of: fn(&str, &str) -> bool,
    /// The process at the other end.
    peer: Arc<Peer>,
}

impl std::fmt::Debug for Pods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pods").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Pods {
    pub(crate) fn at(dir: PathBuf) -> Self {
        Self { dir, is_of: belongs, peer: Arc::new(|_, stream| Process::of_peer(stream)) }
    }

    /// UIDs of the pods that the kubelet has directories of.
    pub(crate) fn uids(&self) -> std::io::Result<BTreeSet<String>> {
        let entries = std::fs::read_dir(&self.dir)?;
        entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
    }

    /// Pods whose launchers are played by this very process.
    #[cfg(test)]
    pub(crate) fn played(dir: PathBuf) -> Self {
        Self { is_of: |_, _| true, ..Self::at(dir) }
    }

    /// The same pods, whose launchers' processes are the ones that `peer` names.
    #[cfg(test)]
    pub(crate) fn with_peer(
        self,
        peer: impl Fn(&str, &StdUnixStream) -> Result<Process, sys::Error> + Send + Sync + 'static,
    ) -> Self {
        Self { peer: Arc::new(peer), ..self }
    }
}

/// A launcher that answers.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    /// Its pod.
    pub pod: String,
    /// Its process, the one that was found to be of the pod.
    process: Arc<Process>,
    /// Calls.
    pub client: LauncherClient<Channel>,
}

impl Launcher {
    /// Whether the process still exists. When the first process of a container is gone, the kernel has ended all of it,
    /// QEMU included.
    pub(crate) fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Whether it is on its way to be gone.
    pub(crate) fn is_ending(&self) -> bool {
        self.process.is_ending().unwrap_or(false)
    }

    /// Its network namespace.
    pub(crate) fn netns(&self) -> Result<OwnedFd, Error> {
        self.process.netns().map_err(Error::no_launcher(&self.pod))
    }

    /// Its file system, for reading what the pod was given.
    pub(crate) fn root(&self) -> Result<Dir, Error> {
        self.process.root().map_err(Error::no_launcher(&self.pod))
    }

    /// The process, held.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// For the states that it streams.
    pub(crate) fn for_states(&self) -> LauncherClient<Channel> {
        self.client.clone().max_decoding_message_size(LARGEST_STATE)
    }

    /// For pictures of the guest's screen.
    pub(crate) fn for_screenshots(&self) -> LauncherClient<Channel> {
        self.client.clone().max_decoding_message_size(LARGEST_SCREENSHOT)
    }
}

/// A message to a launcher with a time limit.
pub(crate) fn timed<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// What a launcher answers to `call`, all of it: one that begins an answer and does not go on is not waited for either.
pub(crate) async fn answer<T>(
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("the launcher did not answer within {} s", limit.as_secs()));
    timeout(limit, call).await.map_err(late)?.map(Response::into_inner)
}

/// Connects to the launcher of `pod`.
pub(crate) async fn connect(pods: &Pods, pod: &str) -> Result<Launcher, Error> {
    let (stream, process) = open(pods, pod, SOCKETS, "launcher-sock").await?;
    // One connection, the checked one: a second would have to be looked up and checked again.
    let once = Mutex::new(Some(stream));
    let connector = tower::service_fn(move |_| {
        let stream = once.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        async move { stream.map(TokioIo::new).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected)) }
    });
    let endpoint = Endpoint::from_static("http://launcher");
    let connected =
        timeout(GREETING, endpoint.connect_with_connector(connector)).await.map_err(Error::no_launcher(pod))?;
    let channel = connected.map_err(Error::no_launcher(pod))?;
    let client = LauncherClient::new(channel).max_decoding_message_size(LARGEST_ANSWER);
    Ok(Launcher { pod: pod.to_owned(), process: Arc::new(process), client })
}

/// Connects to a socket in one of the pod's emptyDir volumes and returns it with the process behind it. Whoever listens
/// there decides how many may wait to be accepted: a place is waited for, but not for long, and by this task alone.
pub(crate) async fn open(pods: &Pods, pod: &str, volume: &str, socket: &str) -> Result<(UnixStream, Process), Error> {
    let deadline = Instant::now() + PLACE;
    loop {
        match open_now(pods, pod, volume, socket) {
            Err(Error::Crowded { .. }) if Instant::now() < deadline => sleep(LOOK).await,
            other => {
                let (stream, process) = other?;
                return UnixStream::from_std(stream).map_err(Error::no_launcher(pod)).map(|stream| (stream, process));
            }
        }
    }
}

/// Like [`open`], at once or not at all. The connection does not block.
pub(crate) fn open_now(pods: &Pods, pod: &str, volume: &str, socket: &str) -> Result<(StdUnixStream, Process), Error> {
    if !is_uid(pod) {
        return Err(Error::PodUid(pod.to_owned()));
    }
    let path = format!("{pod}/volumes/kubernetes.io~empty-dir/{volume}/{socket}");
    let stream = Dir::open(&pods.dir).and_then(|dir| dir.connect(&path)).map_err(|error| match error.io_kind() {
        Some(std::io::ErrorKind::WouldBlock) => Error::Crowded { pod: pod.to_owned(), socket: socket.to_owned() },
        _ => Error::no_launcher(pod)(error),
    })?;
    let process = (pods.peer)(pod, &stream).map_err(Error::no_launcher(pod))?;
    check(pods, pod, &process)?;
    Ok((stream, process))
}

/// Refuses a process that is not one of the pod's, by the kernel's word.
pub(crate) fn check(pods: &Pods, pod: &str, process: &Process) -> Result<(), Error> {
    let groups = process.cgroups().map_err(Error::no_launcher(pod))?;
    if groups.iter().any(|group| (pods.is_of)(&group.path, pod)) {
        return Ok(());
    }
    Err(Error::Impostor { pod: pod.to_owned(), pid: process.pid() })
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
            assert!(matches!(open_now(&Pods::at("/".into()), bad, SOCKETS, "s"), Err(Error::PodUid(_))), "{bad:?}");
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
        let found = open_now(&Pods::at(dir.clone()), pod, SOCKETS, "launcher-sock");
        assert!(matches!(found, Err(Error::Impostor { .. })));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
