//! What can go wrong on a node, by operation.

use std::path::PathBuf;

/// An operation of the kubelet that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket could not be connected to.
    #[error("cannot connect to {what} at {}", socket.display())]
    Connect {
        /// Who should listen there.
        what: &'static str,
        /// The socket's path.
        socket: PathBuf,
        #[source]
        source: tonic::transport::Error,
    },
    /// A call to containerd failed.
    #[error("containerd: {call}")]
    Runtime {
        /// The call's name.
        call: &'static str,
        #[source]
        source: RuntimeStatus,
    },
    /// A CSI driver or another plugin refused a call.
    #[error(transparent)]
    Driver(Box<DriverStatus>),
    /// A request to the API server failed.
    #[error("API server: {what}")]
    Api {
        /// The request, in words.
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// A file operation failed.
    #[error("{what} {}", path.display())]
    File {
        /// The operation, in words.
        what: &'static str,
        /// On what.
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A volume of a pod could not be set up.
    #[error("volume {name:?}")]
    Volume {
        /// The volume's name in the pod.
        name: String,
        #[source]
        source: Box<Error>,
    },
    /// A step of bringing a volume to a pod, or of taking it back.
    #[error("{operation} failed for volume {name:?}")]
    Mount {
        /// The step, as upstream calls it.
        operation: &'static str,
        /// The PersistentVolume's name, or the volume's in the pod.
        name: String,
        #[source]
        source: Box<Error>,
    },
    /// The pod asks for something that cannot be done.
    #[error("{0}")]
    Invalid(String),
    /// A network beside the pod's own could not be joined or left.
    #[error(transparent)]
    Networks(#[from] pod_networks::Error),
    /// A listening socket could not be opened.
    #[error("cannot listen on {what}")]
    Listen {
        /// The address or path.
        what: String,
        #[source]
        source: std::io::Error,
    },
}

/// A gRPC status, shown as its message only.
#[derive(Debug)]
pub struct RuntimeStatus(pub tonic::Status);

impl std::fmt::Display for RuntimeStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.message())
    }
}

impl std::error::Error for RuntimeStatus {}

/// A gRPC status as users know it from events.
#[derive(Debug)]
pub struct DriverStatus(pub tonic::Status);

impl std::fmt::Display for DriverStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rpc error: code = {:?} desc = {}", self.0.code(), self.0.message())
    }
}

impl std::error::Error for DriverStatus {}

impl Error {
    pub(crate) fn runtime(call: &'static str) -> impl FnOnce(tonic::Status) -> Error {
        move |status| Error::Runtime { call, source: RuntimeStatus(status) }
    }

    pub(crate) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        move |source| Error::Api { what: what.into(), source: Box::new(source) }
    }

    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::File { what, path: path.into(), source }
    }

    /// For users, who do not care which call it was that the runtime refused.
    pub(crate) fn user_message(&self) -> String {
        match self {
            Error::Runtime { source, .. } => source.to_string(),
            other => kit::Chain(other).to_string(),
        }
    }

    /// True when the runtime said that the thing does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        match self {
            Error::Runtime { source, .. } => source.0.code() == tonic::Code::NotFound,
            Error::Api { source, .. } => matches!(source.as_ref(), kube::Error::Api(status) if status.code == 404),
            _ => false,
        }
    }

    /// True when the API server refused because the object is another one by now.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Error::Api { source, .. } if matches!(source.as_ref(), kube::Error::Api(status) if status.code == 409))
    }

    /// True when the runtime gave up waiting.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Error::Runtime { source, .. } if source.0.code() == tonic::Code::DeadlineExceeded)
    }
}

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
