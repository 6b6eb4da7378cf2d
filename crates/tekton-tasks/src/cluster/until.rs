//! Waiting for an object: a watch that fails ends no wait, its limit does.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use kit::backoff::Backoff;
use kube::api::DynamicObject;
use kube::runtime::wait::Condition;
use kube::runtime::watcher;

use super::{Cluster, Kind, what};
use crate::Error;

/// API servers are restarted, and connections lost: the wait goes on.
const RETRIES: Backoff = Backoff { base: Duration::from_millis(200), max: Duration::from_secs(15) };
/// How many refusals in a row are believed: the first may come of rights that have not arrived yet, but who has none is not left waiting.
const REFUSALS: u32 = 5;

impl Cluster {
    /// Waits until the object is so; `late` says what did not happen. What it was like then.
    ///
    /// # Errors
    /// When it is not so in time, or the cluster refuses that it is watched.
    pub(crate) async fn until(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        condition: impl Condition<DynamicObject>,
        patience: Duration,
        late: String,
    ) -> Result<Option<DynamicObject>, Error> {
        let mut trouble = None;
        let waiting = self.watched((kind, namespace, name), condition, &mut trouble);
        match tokio::time::timeout(patience, waiting).await {
            Ok(found) => found,
            Err(_) => Err(Error::too_late(late, patience, trouble)),
        }
    }

    /// Watches until the condition holds; `trouble` is why nothing is known of the object at the moment.
    async fn watched(
        &self,
        (kind, namespace, name): (Kind, &str, &str),
        condition: impl Condition<DynamicObject>,
        trouble: &mut Option<watcher::Error>,
    ) -> Result<Option<DynamicObject>, Error> {
        let mut objects = pin!(watcher::watch_object(self.api(kind, namespace), name));
        let mut failures = 0;
        while let Some(event) = objects.next().await {
            match event {
                Ok(object) if condition.matches_object(object.as_ref()) => return Ok(object),
                Ok(_) => (failures, *trouble) = (0, None),
                Err(error) => {
                    failures += 1;
                    if failures >= REFUSALS && is_refusal(&error) {
                        return Err(Error::Watch { what: what(kind, namespace, name), source: Box::new(error) });
                    }
                    tracing::warn!("watching {}: {}", what(kind, namespace, name), kit::Chain(&error));
                    *trouble = Some(error);
                    tokio::time::sleep(RETRIES.jittered(failures)).await;
                }
            }
        }
        Err(Error::Failed(format!("the watch of {} ended", what(kind, namespace, name))))
    }
}

/// Whether the same question gets the same answer again: it is forbidden, or there is no such kind.
fn is_refusal(error: &watcher::Error) -> bool {
    let code = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code,
        watcher::Error::WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 400 | 401 | 403 | 404 | 405)
}
