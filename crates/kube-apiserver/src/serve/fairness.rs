//! Bounds on what one client may hold: requests in flight for each user and in total, and time for each request.
//!
//! Guarantees: a user over his share waits, then gets 429 with Retry-After, and others notice nothing; watches, logs and
//! streams are not counted and have no deadline; the in-process client is not limited.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::Connection;
use crate::error::ApiError;
use crate::request::User;

/// How much is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in flight of one user.
    pub per_user: usize,
    /// Requests in flight of all users.
    pub total: usize,
    /// How long a request may wait for its turn.
    pub queue: Duration,
    /// How long a request may take, its body included.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_user: 64, total: 400, queue: Duration::from_secs(10), request: Duration::from_secs(60) }
    }
}

/// Shared by all connections; cheap to clone.
#[derive(Clone, Debug)]
pub struct Fairness {
    limits: Limits,
    total: Arc<Semaphore>,
    users: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

impl Fairness {
    /// Fairness within limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, total: Arc::new(Semaphore::new(limits.total)), users: Arc::default() }
    }

    fn of_user(&self, name: &str) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if users.len() > 1024 {
            // Forget users without a request: their share is whole.
            users.retain(|_, share| share.available_permits() < self.limits.per_user);
        }
        users.entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.limits.per_user))).clone()
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

/// The layer; runs after authentication.
pub async fn layer(State(fairness): State<Fairness>, request: Request, next: Next) -> Response {
    let from_network = request.extensions().get::<Connection>().is_some();
    if !from_network || long_running(&request) {
        return next.run(request).await;
    }
    let user = request.extensions().get::<User>().map(|u| u.name.clone()).unwrap_or_default();
    let share = fairness.of_user(&user);
    let turn = async {
        let own = share.acquire().await.ok()?;
        Some((own, fairness.total.acquire().await.ok()?))
    };
    let Ok(Some(_turn)) = tokio::time::timeout(fairness.limits.queue, turn).await else {
        let error = ApiError::new(429, "TooManyRequests", "Too many requests, please try again later.");
        let mut response = error.into_response();
        response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
        return response;
    };
    match tokio::time::timeout(fairness.limits.request, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiError::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout")
            .into_response(),
    }
}

#[cfg(test)]
mod tests;
