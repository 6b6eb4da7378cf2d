//! Working off the queue of a controller within one task: what it does may borrow from the controller.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kit::backoff::Backoff;
pub(crate) use kit::queue::{Next, Queue};

use crate::error::Error;

/// A queue that tries again at once and then less and less often.
pub(crate) fn eager<T: Clone + Eq + Hash + Ord + Debug + Send + 'static>() -> Queue<T> {
    Queue::new(Backoff { base: Duration::from_millis(10), max: Duration::from_secs(60) })
}

/// A queue of work done by others, who may be slow to recover: a storage driver.
pub(crate) fn patient<T: Clone + Eq + Hash + Ord + Debug + Send + 'static>() -> Queue<T> {
    Queue::new(Backoff { base: Duration::from_secs(1), max: Duration::from_secs(300) })
}

/// Works on keys for ever, `width` at a time.
pub(crate) async fn work<T, F, Fut>(queue: &Queue<T>, name: &'static str, width: usize, reconcile: F)
where
    T: Clone + Eq + Hash + Ord + Debug + Send + 'static,
    F: Fn(T) -> Fut,
    Fut: Future<Output = Result<Next, Error>>,
{
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            key = queue.next(), if running.len() < width => {
                let work = reconcile(key.clone());
                running.push(async move { (key, work.await) });
            }
            Some((key, outcome)) = running.next(), if !running.is_empty() => {
                if let Err(error) = &outcome {
                    // Somebody else wrote first: the watch brings the news and the retry finds it.
                    if error.code() == 409 {
                        tracing::debug!(controller = name, ?key, error = error.chain(), "conflict");
                    } else {
                        tracing::warn!(controller = name, ?key, error = error.chain(), "will retry");
                    }
                }
                queue.done(&key, outcome.unwrap_or(Next::Retry));
            }
        }
    }
}
