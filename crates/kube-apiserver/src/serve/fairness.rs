//! Bounds on what one client may hold: requests in flight for each user and in total, and time for each request.
//!
//! ```text
//!             queue of the user          of all
//! request ──> [ waiting ] ──> own turn ──> turn ──> handler ──> answer read, or its time is up
//!    └── watch, log, exec: one of the user's streams, for as long as it lasts
//! ```
//!
//! Guarantees: a user over his share waits, then gets 429 with Retry-After, and others notice nothing; a turn lasts until a
//! long answer is read, so answers nobody reads are bounded too; watches, logs and streams have no deadline and are bounded
//! in number; leases have turns of their own; the in-process client is not limited.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use kit::connections::Introduction;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use apimachinery::error::ApiError;
use apimachinery::request::User;

use super::Connection;
use super::held::hold;

/// How much is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in flight of one user.
    pub per_user: usize,
    /// Requests in flight of all users.
    pub total: usize,
    /// Requests of one user that wait for their turn.
    pub waiting: usize,
    /// Watches, logs and other streams of one user.
    pub streams: usize,
    /// How long a request may wait for its turn.
    pub queue: Duration,
    /// How long a request may take, its body included, and how long reading its answer may.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_user: 64,
            total: 400,
            waiting: 1024,
            streams: 8192,
            queue: Duration::from_secs(10),
            request: Duration::from_secs(60),
        }
    }
}

/// What one user has a share of.
#[derive(Debug)]
struct Share {
    turns: Arc<Semaphore>,
    waiting: Semaphore,
    streams: Arc<Semaphore>,
    /// Work that keeps a processor busy for long.
    labour: Arc<Semaphore>,
}

/// Shared by all connections; cheap to clone.
#[derive(Clone, Debug)]
pub struct Fairness {
    limits: Limits,
    total: Arc<Semaphore>,
    users: Arc<Mutex<HashMap<String, Arc<Share>>>>,
}

/// The right to be served, until its last holder drops it: the connection, or a write that outlasts it.
#[derive(Clone)]
pub(crate) struct Turn(
    #[allow(dead_code, reason = "held, not read")] Arc<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
);

impl Fairness {
    /// Fairness within limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, total: Arc::new(Semaphore::new(limits.total)), users: Arc::default() }
    }

    fn of_user(&self, name: &str) -> Arc<Share> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = users.get(name) {
            return share.clone();
        }
        if users.len() > 1024 {
            // Forget users of whom nothing is left: whoever waits or streams holds his share.
            users.retain(|_, share| Arc::strong_count(share) > 1 || !share.is_whole(&self.limits));
        }
        let share = Arc::new(Share {
            turns: Arc::new(Semaphore::new(self.limits.per_user)),
            waiting: Semaphore::new(self.limits.waiting),
            streams: Arc::new(Semaphore::new(self.limits.streams)),
            labour: Arc::new(Semaphore::new(1)),
        });
        users.insert(name.to_owned(), share.clone());
        share
    }

    /// Waits until no other long computation is made for this user. It is then for the computation to yield now and then.
    pub(crate) async fn labour(&self, user: &str) -> Option<OwnedSemaphorePermit> {
        self.of_user(user).labour.clone().acquire_owned().await.ok()
    }

    /// Waits for the user's turn; None when there are too many before it.
    async fn turn(&self, share: &Share) -> Option<Turn> {
        let turn = async {
            let own = match share.turns.clone().try_acquire_owned() {
                Ok(own) => own,
                Err(_) => {
                    let _place = share.waiting.try_acquire().ok()?;
                    share.turns.clone().acquire_owned().await.ok()?
                }
            };
            Some(Turn(Arc::new((own, self.total.clone().acquire_owned().await.ok()?))))
        };
        tokio::time::timeout(self.limits.queue, turn).await.ok().flatten()
    }
}

impl Share {
    fn is_whole(&self, limits: &Limits) -> bool {
        self.turns.available_permits() == limits.per_user
            && self.streams.available_permits() == limits.streams
            && self.labour.available_permits() == 1
    }
}

/// Whether a request may last as long as it likes.
fn long_running(request: &Request) -> bool {
    const STREAMS: [&str; 6] = ["exec", "attach", "portforward", "log", "proxy", "watch"];
    let query = request.uri().query().unwrap_or_default();
    let watch = query.split('&').any(|p| matches!(p, "watch" | "watch=true" | "watch=1"));
    watch
        || request.headers().contains_key(http::header::UPGRADE)
        || request.uri().path().split('/').skip(2).any(|part| STREAMS.contains(&part))
}

/// Whether a request is about a lease: whoever is busy is not deposed for it.
fn renews(request: &Request) -> bool {
    request.uri().path().starts_with("/apis/coordination.k8s.io/") && !long_running(request)
}

/// The layer; runs after authentication.
pub async fn layer(State(fairness): State<Fairness>, mut request: Request, next: Next) -> Response {
    if request.extensions().get::<Connection>().is_none() {
        return next.run(request).await;
    }
    let user = request.extensions().get::<User>().map(|u| u.name.clone()).unwrap_or_default();
    if user != "system:anonymous"
        && let Some(introduction) = request.extensions().get::<Introduction>()
    {
        introduction.introduce(&user);
    }
    let share = if renews(&request) { fairness.of_user(&format!("{user} leases")) } else { fairness.of_user(&user) };
    if long_running(&request) {
        let Ok(stream) = share.streams.clone().try_acquire_owned() else { return too_many() };
        let connection = request.extensions().get::<Introduction>().cloned();
        let response = next.run(request).await;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(connection) = connection
        {
            connection.keep(stream);
            return response;
        }
        return hold(response, stream, None);
    }
    let Some(turn) = fairness.turn(&share).await else { return too_many() };
    request.extensions_mut().insert(turn.clone());
    let limit = fairness.limits.request;
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => hold(response, turn, Some(limit)),
        Err(_) => ApiError::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
            .into_response(),
    }
}

fn too_many() -> Response {
    let mut error = ApiError::new(429, "TooManyRequests", "Too many requests, please try again later.");
    error.details = Some(serde_json::json!({"retryAfterSeconds": 1}));
    let mut response = error.into_response();
    response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests;
