//! What every controller is given: the frame that controllers share, how this control plane is set up, and news of removals.

use std::ops::Deref;
use std::sync::Arc;

use kit::controller;
use kube::Client;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::{Options, kinds};

/// Shared by all controllers; cheap to clone.
#[derive(Clone)]
pub struct Context {
    frame: controller::Context,
    /// How the control plane is set up.
    pub options: Arc<Options>,
    /// Namespaces out of which an object vanished.
    removals: broadcast::Sender<Arc<str>>,
}

impl Deref for Context {
    type Target = controller::Context;

    fn deref(&self) -> &controller::Context {
        &self.frame
    }
}

impl Context {
    /// A context whose tasks end when `shutdown` is cancelled.
    pub fn new(client: Client, options: Options, shutdown: CancellationToken) -> Self {
        let frame = controller::Context::new(client, kinds::kept(), shutdown);
        Self { frame, options: Arc::new(options), removals: broadcast::Sender::new(256) }
    }

    /// What controllers beside those of this crate are given.
    pub(crate) fn frame(&self) -> controller::Context {
        self.frame.clone()
    }

    /// Tells that an object in `namespace` is gone for good.
    pub(crate) fn announce_removal(&self, namespace: &str) {
        let _ = self.removals.send(namespace.into());
    }
    /// What [`Self::announce_removal`] tells from now on.
    pub(crate) fn removals(&self) -> broadcast::Receiver<Arc<str>> {
        self.removals.subscribe()
    }
}
