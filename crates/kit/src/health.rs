//! `/healthz`, `/livez` and `/readyz`.

mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
pub use report::Report;

/// Whether the component is ready to serve; cheap to clone.
#[derive(Clone, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// Says whether the component is ready from now on.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// True when ready.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// `/healthz` and `/livez` always answer 200 while the process serves; `/readyz` answers 200 once `ready` is set, 503 before.
pub fn router(ready: Ready) -> Router {
    Router::new().route("/healthz", get(|| async { "ok" })).merge(readiness(ready))
}

/// The same with a `/healthz` that says what `report` does. Who asks whether the process lives is told so by `/livez`, whatever
/// becomes of the API server: to restart every component in an outage helps nobody.
pub fn reporting(ready: Ready, report: Report) -> Router {
    let answer = move || {
        let report = report.clone();
        async move { report.answer().await }
    };
    Router::new().route("/healthz", get(answer)).merge(readiness(ready))
}

/// The same for a process that does several things: `/readyz` answers 200 once all of them are ready.
pub fn of_all(all: Vec<Ready>) -> Router {
    Router::new().route("/healthz", get(|| async { "ok" })).merge(asked(move || all.iter().all(Ready::get)))
}

fn readiness(ready: Ready) -> Router {
    asked(move || ready.get())
}

fn asked(ready: impl Fn() -> bool + Clone + Send + Sync + 'static) -> Router {
    Router::new().route("/livez", get(|| async { "ok" })).route(
        "/readyz",
        get(move || {
            let ready = ready();
            async move { if ready { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready") } }
        }),
    )
}
