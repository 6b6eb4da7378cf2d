//! `/metrics` in the OpenMetrics text format.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Serves `registry` under `/metrics`.
pub fn router(registry: Registry) -> Router {
    let registry = Arc::new(registry);
    Router::new().route("/metrics", get(move || render(registry.clone())))
}

async fn render(registry: Arc<Registry>) -> impl IntoResponse {
    let mut text = String::new();
    // Writing to a String cannot fail; an empty page would be the honest answer if it did.
    let _ = encode(&mut text, &registry);
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}
