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
    let limits = Limits {
        per_user: 2,
        total: 10,
        waiting: 1,
        streams: 2,
        queue: Duration::from_millis(50),
        request: Duration::from_secs(5),
    };
    Router::new()
        .route("/long", get(async || vec![b'x'; 1 << 20]))
        .route(
            "/follow",
            get(async || Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, axum::Error>>())),
        )
        .route("/stuck", get(std::future::pending::<()>))
        .route("/quick", get(async || "done"))
        .route("/apis/coordination.k8s.io/v1/namespaces/n/leases/a", get(async || "renewed"))
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

#[tokio::test(start_paused = true)]
async fn an_answer_nobody_reads_is_held_against_its_asker() {
    let router = router();
    let ask = async |path: &str| router.clone().oneshot(request("greedy", path, true)).await.unwrap();
    let (first, second) = (ask("/long").await, ask("/long").await);
    assert_eq!(ask("/quick").await.status(), StatusCode::TOO_MANY_REQUESTS);
    // Read to its end, it costs nothing any more.
    assert_eq!(axum::body::to_bytes(first.into_body(), usize::MAX).await.unwrap().len(), 1 << 20);
    assert_eq!(ask("/quick").await.status(), StatusCode::OK);
    // Who takes too long loses the rest.
    let third = ask("/long").await;
    assert_eq!(ask("/quick").await.status(), StatusCode::TOO_MANY_REQUESTS);
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(ask("/quick").await.status(), StatusCode::OK);
    for late in [second, third] {
        assert!(axum::body::to_bytes(late.into_body(), usize::MAX).await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn streams_of_one_user_are_counted() {
    let router = router();
    let ask = async |user: &str| router.clone().oneshot(request(user, "/follow?watch=1", true)).await.unwrap();
    let (first, _second) = (ask("greedy").await, ask("greedy").await);
    let refused = ask("greedy").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()[http::header::RETRY_AFTER], "1");
    assert_eq!(ask("other").await.status(), StatusCode::OK);
    drop(first);
    assert_eq!(ask("greedy").await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_queue_has_an_end() {
    let router = router();
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..8 {
        asked.spawn(router.clone().oneshot(request("greedy", "/stuck", true)));
    }
    tokio::task::yield_now().await;
    let begun = tokio::time::Instant::now();
    let first = asked.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!((first.status(), begun.elapsed()), (StatusCode::TOO_MANY_REQUESTS, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn leases_are_renewed_while_the_level_is_full() {
    let router = router();
    let mut stuck = tokio::task::JoinSet::new();
    for _ in 0..3 {
        stuck.spawn(router.clone().oneshot(request("busy", "/stuck", true)));
    }
    tokio::task::yield_now().await;
    let status = async |path: &str| router.clone().oneshot(request("busy", path, true)).await.unwrap().status();
    assert_eq!(status("/quick").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status("/apis/coordination.k8s.io/v1/namespaces/n/leases/a").await, StatusCode::OK);
}

#[test]
fn neither_a_name_nor_a_header_makes_a_request_last() {
    let check = |method: http::Method, path: &str, upgrade: bool, body: &'static str, expect: bool| {
        let mut request = Request::builder().method(&method).uri(path);
        if upgrade {
            request = request.header(http::header::UPGRADE, "websocket");
        }
        let request = request.body(Body::from(body)).unwrap();
        let info = RequestInfo::parse(&method, request.uri().path(), request.uri().query()).unwrap_or_default();
        assert_eq!(long_running(&request, &info), expect, "{method} {path}");
    };
    let (get, post, put) = (http::Method::GET, http::Method::POST, http::Method::PUT);
    let pod = "/api/v1/namespaces/n/pods/p";
    check(get.clone(), "/api/v1/pods?watch=true", false, "", true);
    check(get.clone(), &format!("{pod}/log?follow=true"), false, "", true);
    check(post.clone(), &format!("{pod}/exec?command=a"), true, "", true);
    check(post.clone(), &format!("{pod}/proxy/upload"), false, "data", true);
    check(
        get.clone(),
        "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/v/console",
        true,
        "",
        true,
    );
    // What holds a body in memory is of no kind that lasts.
    check(put, "/api/v1/namespaces/n/configmaps/log", false, "{}", false);
    check(post.clone(), "/api/v1/namespaces/n/configmaps", true, "{}", false);
    check(post, &format!("{pod}/exec"), true, "{}", false);
    check(get.clone(), "/api/v1/pods", true, "", false);
    check(get, "/api/v1/namespaces/watch/pods", false, "", false);
}
