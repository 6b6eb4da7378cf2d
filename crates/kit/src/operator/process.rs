//! What an operator has of the process that it runs in, which may run others beside it.

use std::path::PathBuf;

use kube::Client;

use crate::client;
use crate::health::Ready;

/// By default one of the operator's own, with the account of its pod.
#[derive(Clone, Default)]
pub struct Process {
    token: Option<PathBuf>,
    ready: Ready,
}

impl Process {
    /// One that others share: the operator is known by the token in this file, and the pod is ready when all of them are.
    pub fn shared(token: PathBuf, ready: Ready) -> Self {
        Process { token: Some(token), ready }
    }

    /// What the operator says it is ready by.
    pub fn ready(&self) -> Ready {
        self.ready.clone()
    }

    /// A client of the operator's, with connections of its own.
    ///
    /// # Errors
    /// When there is no API server to reach.
    pub async fn connect(&self, operator: &str) -> Result<Client, client::Error> {
        client::connect_with(operator, self.token.as_deref()).await
    }
}
