//! What controllers of Kubernetes' own kinds share: a [`Context`] with one store per kind and the writes that are folded
//! into it, their errors, and facts read off pods, nodes and owners.
//!
//! ```text
//!  API server --watch--> store of a kind --listeners--> queues --work--> reconcile --writes--> API server
//!                           ^                                               |
//!                           +----------------- the answers of writes -------+
//! ```

mod context;
mod error;
pub mod owner;
pub mod placement;
pub mod pod;
pub mod quantity;
mod stores;
pub mod write;

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;

pub use self::context::Context;
pub use self::error::{During, Error, Result, gone_is_none};
pub use self::stores::{Cached, Kept, Kinds};
use crate::queue::{Next, Queue};

/// Works on the keys of a controller for ever, `width` at a time; what fails is told and tried again.
pub async fn work<T, F, Fut>(queue: &Queue<T>, name: &'static str, width: usize, reconcile: F)
where
    T: Clone + Eq + Hash + Ord + Debug + Send + 'static,
    F: Fn(T) -> Fut,
    Fut: Future<Output = Result<Next>>,
{
    let attempt = |key: T| {
        let work = reconcile(key.clone());
        async move {
            let outcome = work.await;
            if let Err(error) = &outcome {
                // Somebody else wrote first: the watch brings the news and the retry finds it.
                if error.code() == 409 {
                    tracing::debug!(controller = name, ?key, error = error.chain(), "conflict");
                } else {
                    tracing::warn!(controller = name, ?key, error = error.chain(), "will retry");
                }
            }
            outcome.unwrap_or(Next::Retry)
        }
    };
    queue.work(width, attempt).await;
}
