//! What a controller is set up with: it subscribes to changes, and puts workers at its queue.

use std::future::Future;

use kit::Task;
use kit::queue::{Next, Queue};
use kit::shutdown::CancellationToken;
use kit::store::Key;

use crate::context::Context;
use crate::stores::Changes;

/// Lent to each controller while it registers; the stores are watched once all of them have.
pub(crate) struct Setup {
    pub(crate) context: Context,
    pub(crate) changes: Changes,
    stop: CancellationToken,
    tasks: Vec<Task<()>>,
}

impl Setup {
    pub(crate) fn new(context: Context, changes: Changes, stop: &CancellationToken) -> Self {
        Self { context, changes, stop: stop.clone(), tasks: Vec::new() }
    }

    /// Has `workers` tasks call `reconcile` with the keys in `queue`, from when `known` is over: it waits for the stores that
    /// are read, since nothing is decided on half a picture. A kind that the cluster lacks holds up who waits for it alone.
    pub(crate) fn work<F, Fut>(
        &mut self,
        queue: Queue<Key>,
        workers: usize,
        known: impl Future<Output = ()> + Send + 'static,
        reconcile: F,
    ) where
        F: Fn(Key) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Next> + Send + 'static,
    {
        let stop = self.stop.clone();
        self.keep(kit::spawn("controller", async move {
            known.await;
            // A worker ends with the program; one that panicked must not be missed silently.
            for worker in queue.run(workers, &stop, reconcile) {
                if let Err(error) = worker.await {
                    tracing::error!(%error, "a worker ended");
                }
            }
        }));
    }

    /// Keeps a task of the controller's own going: the watch of a kind that no other reads.
    pub(crate) fn keep(&mut self, task: Task<()>) {
        self.tasks.push(task);
    }

    /// Watches the stores. Everything stops when the tasks are dropped.
    pub(crate) fn start(self) -> Vec<Task<()>> {
        let Self { context, changes, stop: _, mut tasks } = self;
        tasks.extend(context.stores.watch(&context.client, &context.namespace, changes));
        tasks
    }
}
