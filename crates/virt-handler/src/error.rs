//! What can go wrong on a node, said so that a person knows where to look.

/// Errors of virt-handler.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be set up.
    #[error("cannot {what}")]
    Setup {
        /// What was tried.
        what: &'static str,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The launcher's socket is not there: the pod is not ready yet, or gone.
    #[error("the launcher of pod {pod} does not answer")]
    NoLauncher {
        /// Pod UID.
        pod: String,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Whoever listens on the socket accepts nobody.
    #[error("as many connections as can wait at the socket {socket} of pod {pod} are waiting, and none is accepted")]
    Crowded {
        /// Pod UID.
        pod: String,
        /// Name of the socket.
        socket: String,
    },
    /// Whoever listens on the socket is not a process of the pod (rule R5).
    #[error("process {pid} answers on a socket of pod {pod} but does not belong to it")]
    Impostor {
        /// Pod UID.
        pod: String,
        /// Process id.
        pid: u32,
    },
    /// A device of a pod could not be given to the pod's user.
    #[error("cannot give the pod's user its device")]
    Device(#[source] sys::Error),
    /// A migration that may need post-copy goes to a node that has none.
    #[error(
        "post-copy is not possible on node {node}: {why}. Set vm.unprivileged_userfaultfd = 1 there, or migrate without \
         allowPostCopy"
    )]
    PostCopy {
        /// This node.
        node: String,
        /// What is missing.
        why: String,
    },
    /// A pod UID that is not one.
    #[error("{0:?} is not a pod UID")]
    PodUid(String),
    /// The launcher refused or failed a request.
    #[error("{0}")]
    Launcher(String),
    /// The virt-handler of another node was not reached.
    #[error("the other node does not answer")]
    Way(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A network interface could not be plugged.
    #[error("cannot plug interface {interface}: {what}")]
    Plug {
        /// Name in the VMI.
        interface: String,
        /// What was tried.
        what: String,
        /// Cause.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// A disk on a claim cannot be used as it is.
    #[error("{0}")]
    Disk(String),
    /// A disk is not where it was said to be: its attachment pod has just started, or another takes its place.
    #[error("{0}")]
    NotThereYet(String),
    /// A disk that comes from another node does not fit here.
    #[error("volume {volume}: its disk of {size} B does not fit on this node's volume, which has room for {there} B")]
    NoRoom {
        /// The volume's name.
        volume: String,
        /// Bytes of the disk.
        size: u64,
        /// Bytes there are.
        there: u64,
    },
    /// A disk on a claim could not be made ready.
    #[error("volume {volume}: its disk cannot be made ready")]
    Volume {
        /// The volume's name.
        volume: String,
        /// Cause.
        #[source]
        source: sys::Error,
    },
    /// The API server refused a read.
    #[error("cannot read {what}")]
    Read {
        /// Which object.
        what: &'static str,
        /// Cause.
        #[source]
        source: kube::Error,
    },
    /// The API server refused a write.
    #[error("cannot write {what}")]
    Write {
        /// Which object.
        what: String,
        /// Cause.
        #[source]
        source: kube::Error,
    },
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        // The launcher speaks in sentences that are meant for users; a status without one is the transport's.
        Self::Launcher(match status.message() {
            "" => format!("the launcher does not answer: {}", status.code()),
            message => message.to_owned(),
        })
    }
}

impl Error {
    /// For `map_err` while the process is set up.
    pub fn setup<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Setup { what, source: Box::new(source) }
    }

    pub(crate) fn no_launcher<E: std::error::Error + Send + Sync + 'static>(
        pod: &str,
    ) -> impl FnOnce(E) -> Self + use<E> {
        let pod = pod.to_owned();
        move |source| Self::NoLauncher { pod, source: Box::new(source) }
    }

    pub(crate) fn disk(volume: &str) -> impl FnOnce(sys::Error) -> Self + use<> {
        let volume = volume.to_owned();
        move |source| Self::Volume { volume, source }
    }

    pub(crate) fn plug<E: std::error::Error + Send + Sync + 'static>(
        interface: &str,
        what: &str,
    ) -> impl FnOnce(E) -> Self + use<E> {
        let (interface, what) = (interface.to_owned(), what.to_owned());
        move |source| Self::Plug { interface, what, source: Some(Box::new(source)) }
    }
}
