//! Fetching the OpenAPI documents of the extension servers that are available, in the background.
//!
//! Guarantees: a slow server delays no other. A server that is not available has no part. One that fails to answer anew is
//! believed what it said last, for as long as it is available.

use std::collections::HashMap;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use super::fetch;
use crate::ApiServer;
use crate::aggregation::specifications::GroupVersion;
use crate::openapi::extension::{self, Part};
use crate::registry::Aggregated;

/// How often a server is asked again.
const EVERY: Duration = Duration::from_secs(60);
/// How soon, when it failed. More than what it is given, so that it is asked once at a time.
const AGAIN: Duration = Duration::from_secs(15);
/// For one document.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of one document.
const LARGEST: usize = 4 << 20;

/// A document, or none where the server has none; or why that is not known.
type Answer = Result<Option<Part>, String>;

/// What a server answered.
pub(super) struct Fetched {
    key: GroupVersion,
    v2: Answer,
    v3: Answer,
}

/// The servers that are being asked, and when each is to be asked again.
#[derive(Default)]
pub(super) struct Fetching {
    due: HashMap<GroupVersion, Instant>,
    pub(super) running: JoinSet<Fetched>,
}

impl Fetching {
    /// Asks those of `available` whose time has come; what all others said is forgotten.
    pub(super) fn begin(&mut self, server: &ApiServer, available: &[Aggregated]) {
        let is_available = |key: &GroupVersion| available.iter().any(|target| key_of(target) == *key);
        self.due.retain(|key, _| is_available(key));
        server.edges().delegation.specifications.retain(is_available);
        let now = Instant::now();
        for target in available {
            let key = key_of(target);
            if self.due.get(&key).is_some_and(|due| *due > now) {
                continue;
            }
            self.due.insert(key.clone(), now + AGAIN);
            let (server, target) = (server.clone(), target.clone());
            self.running.spawn(async move {
                let (v2, v3) =
                    tokio::join!(timeout(PATIENCE, v2(&server, &target)), timeout(PATIENCE, v3(&server, &target)));
                let late = || Err("it did not answer in time".to_owned());
                Fetched { key, v2: v2.unwrap_or_else(|_| late()), v3: v3.unwrap_or_else(|_| late()) }
            });
        }
    }

    /// Keeps what one has answered, unless it is not available any more.
    pub(super) fn take(&mut self, server: &ApiServer, fetched: Result<Fetched, JoinError>) {
        let Ok(Fetched { key, v2, v3 }) = fetched else { return };
        let Some(due) = self.due.get_mut(&key) else { return };
        for (document, answer) in [("v2", &v2), ("v3", &v3)] {
            if let Err(error) = answer {
                let (group, version) = &key;
                tracing::warn!(%group, %version, %document, %error, "no OpenAPI from an extension server");
            }
        }
        if v2.is_ok() && v3.is_ok() {
            *due = Instant::now() + EVERY;
        }
        server.edges().delegation.specifications.keep(key, |known| {
            known.v2 = v2.unwrap_or(known.v2.take());
            known.v3 = v3.unwrap_or(known.v3.take());
        });
    }
}

fn key_of(target: &Aggregated) -> GroupVersion {
    (target.group.clone(), target.version.clone())
}

async fn v2(server: &ApiServer, target: &Aggregated) -> Answer {
    let Some(document) = read(server, target, "/openapi/v2").await? else { return Ok(None) };
    extension::v2(document, &target.group, &target.version).map(Some).map_err(|unsound| unsound.to_string())
}

async fn v3(server: &ApiServer, target: &Aggregated) -> Answer {
    let Some(index) = read(server, target, "/openapi/v3").await? else { return Ok(None) };
    let entry = &index["paths"][format!("apis/{}/{}", target.group, target.version)]["serverRelativeURL"];
    let Some(address) = entry.as_str() else { return Ok(None) };
    if !address.starts_with("/openapi/v3/") {
        return Err(format!("{address:?} is not an address of one"));
    }
    let Some(document) = read(server, target, address).await? else { return Ok(None) };
    extension::v3(document, &target.group, &target.version).map(Some).map_err(|unsound| unsound.to_string())
}

/// The document at `path`; none where there is no such thing.
async fn read(server: &ApiServer, target: &Aggregated, path: &str) -> Result<Option<Value>, String> {
    let answer = fetch::get(&server.edges().delegation, target, path, LARGEST).await;
    let (status, body) = answer.map_err(|error| error.to_string())?;
    match status {
        StatusCode::NOT_FOUND => Ok(None),
        StatusCode::OK => serde_json::from_slice(&body).map(Some).map_err(|error| error.to_string()),
        other => Err(format!("{path} is answered with {other}")),
    }
}
