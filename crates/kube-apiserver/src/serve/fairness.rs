//! Bounds on what one client may hold: requests in flight for each user and in total, and time for each request.
//!
//! ```text
//!             queue of the user          of the level
//! request ──> [ waiting ] ──> own turn ──> seat ──> handler ──> answer read, or its time is up
//!    └── watch, log, exec: one of the user's streams, for as long as it lasts
//! ```
//!
//! Which level a request is of, FlowSchemas say; how many seats of the total it has, its PriorityLevelConfiguration.
//!
//! Guarantees: a user over his share waits, then gets 429 with Retry-After, and others notice nothing; a turn lasts until a
//! long answer is read, so answers nobody reads are bounded too; watches, logs and streams have no deadline and are bounded
//! in number; leases have turns of their own; the in-process client is not limited. The bounds of a user hold at every
//! level, the exempt one included: that knows no wait for seats.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use kit::connections::Introduction;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};

use super::Connection;
use super::held::hold;
use crate::flow::{Flow, Flows};
use seats::{Hall, Place, Seat};

mod seats;

/// The headers that tell of which schema and level a request was.
const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

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
    hall: Hall,
    flows: Arc<ArcSwap<Flows>>,
    /// Held while these are read and compiled.
    configuring: Arc<Mutex<()>>,
    users: Arc<Mutex<HashMap<String, Arc<Share>>>>,
}

/// The right to be served, until its last holder drops it: the connection, or a write that outlasts it.
#[derive(Clone)]
pub(crate) struct Turn(#[allow(dead_code, reason = "held, not read")] Arc<(OwnedSemaphorePermit, Seat)>);

impl Fairness {
    /// Fairness within limits. Until it is configured, all requests are of one level.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            hall: Hall::new(limits.total),
            flows: Arc::default(),
            configuring: Arc::default(),
            users: Arc::default(),
        }
    }

    /// Has the FlowSchemas and PriorityLevelConfigurations that `read` yields from now on. Of two at once the later one
    /// reads what the earlier one has read, or newer.
    pub(crate) fn configure(&self, read: impl FnOnce() -> (Vec<Arc<Value>>, Vec<Arc<Value>>)) {
        let _turn = self.configuring.lock().unwrap_or_else(PoisonError::into_inner);
        let (schemas, levels) = read();
        let flows = Flows::compile(schemas.iter().map(|o| &**o), levels.iter().map(|o| &**o), self.limits.total);
        self.hall.configure(flows.levels());
        self.flows.store(Arc::new(flows));
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

    /// Waits for the user's turn and for a seat of the flow's level; None when there are too many before it.
    async fn turn(&self, share: &Share, flow: &Flow<'_>) -> Option<Turn> {
        let turn = async {
            let own = match share.turns.clone().try_acquire_owned() {
                Ok(own) => own,
                Err(_) => {
                    let _place = share.waiting.try_acquire().ok()?;
                    share.turns.clone().acquire_owned().await.ok()?
                }
            };
            let seat = match self.hall.take(flow) {
                Place::Seat(seat) => seat,
                Place::Queue(waiter) => waiter.await.ok()?,
                Place::Refused => return None,
            };
            Some(Turn(Arc::new((own, seat))))
        };
        tokio::time::timeout(self.limits.queue, turn).await.ok().flatten()
    }

    /// Has a request served in its turn, or refuses it.
    async fn serve(&self, user: &str, flow: &Flow<'_>, mut request: Request, next: Next) -> Response {
        let share = if renews(&request) { self.of_user(&format!("{user} leases")) } else { self.of_user(user) };
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
        let Some(turn) = self.turn(&share, flow).await else { return too_many() };
        request.extensions_mut().insert(turn.clone());
        let limit = self.limits.request;
        match tokio::time::timeout(limit, next.run(request)).await {
            Ok(response) => hold(response, turn, Some(limit)),
            Err(_) => ApiError::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
                .into_response(),
        }
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
pub async fn layer(State(fairness): State<Fairness>, request: Request, next: Next) -> Response {
    if request.extensions().get::<Connection>().is_none() {
        return next.run(request).await;
    }
    if let Some(introduction) = request.extensions().get::<Introduction>()
        && let Some(user) = request.extensions().get::<User>()
        && user.name != "system:anonymous"
    {
        introduction.introduce(&user.name);
    }
    let user = request.extensions().get::<User>().cloned().unwrap_or_default();
    // What cannot be read is refused by the handler.
    let info = RequestInfo::parse(request.method(), request.uri().path(), request.uri().query()).unwrap_or_default();
    let flows = fairness.flows.load_full();
    let flow = flows.classify(&user, &info);
    // What lasts as it likes is of no level, though of a watch it is told.
    let told = !long_running(&request) || info.verb == "watch";
    let mut response = fairness.serve(&user.name, &flow, request, next).await;
    if let Some((schema, level)) = flow.uids
        && told
    {
        response.headers_mut().insert(SCHEMA_UID, schema.clone());
        response.headers_mut().insert(LEVEL_UID, level.clone());
    }
    response
}

fn too_many() -> Response {
    let mut error = ApiError::new(429, "TooManyRequests", "Too many requests, please try again later.");
    error.details = Some(serde_json::json!({"retryAfterSeconds": 1}));
    let mut response = error.into_response();
    response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests;
