//! One user's requests do not starve another's.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::StatusCode;
use tower::ServiceExt;

use super::*;

fn request(user: &str, path: &str, network: bool) -> Request {
    let mut request = Request::builder().uri(path).body(Body::empty()).unwrap();
    request.extensions_mut().insert(User { name: user.into(), ..User::default() });
    if network {
        request.extensions_mut().insert(Connection { peer: ([127, 0, 0, 1], 1).into() });
    }
    request
}

fn router() -> Router {
    let limits = Limits { per_user: 2, total: 10, queue: Duration::from_millis(50), request: Duration::from_secs(5) };
    Router::new()
        .route("/stuck", get(std::future::pending::<()>))
        .route("/quick", get(async || "done"))
        .layer(axum::middleware::from_fn_with_state(Fairness::new(limits), layer))
}

#[tokio::test(start_paused = true)]
async fn a_greedy_user_waits_for_himself() {
    let router = router();
    let mut stuck = tokio::task::JoinSet::new();
    for _ in 0..2 {
        stuck.spawn(router.clone().oneshot(request("greedy", "/stuck", true)));
    }
    tokio::task::yield_now().await;
    let status = async |user: &str, path: &str, network: bool| {
        router.clone().oneshot(request(user, path, network)).await.unwrap().status()
    };
    assert_eq!(status("greedy", "/quick", true).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status("other", "/quick", true).await, StatusCode::OK);
    assert_eq!(status("greedy", "/quick?watch=true", true).await, StatusCode::OK);
    assert_eq!(status("greedy", "/quick", false).await, StatusCode::OK);
    for outcome in stuck.join_all().await {
        assert_eq!(outcome.unwrap().status(), StatusCode::GATEWAY_TIMEOUT);
    }
    assert_eq!(status("greedy", "/quick", true).await, StatusCode::OK);
}
