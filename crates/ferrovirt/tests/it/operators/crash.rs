//! An operator that ends at any moment: the next one goes on.

use std::sync::{Arc, Mutex};

use axum::extract::Request;
use http::Method;
use kube::Client;
use kube_apiserver::request::User;
use serde_json::Value;

use super::{PRODUCTS, Scene, call, get};
use crate::cluster::{items, text, until};

/// Who the operator is.
fn user(scene: &Scene) -> User {
    let deployment = scene.operator.iter().find(|document| document["kind"] == "Deployment").unwrap();
    User {
        name: format!(
            "system:serviceaccount:{}:{}",
            text(deployment, "/metadata/namespace"),
            text(deployment, "/spec/template/spec/serviceAccountName")
        ),
        groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
        ..User::default()
    }
}

/// The operator's client, and what it has written.
pub(super) fn counted(scene: &Scene) -> (Client, Arc<Mutex<Vec<String>>>) {
    dying(scene, usize::MAX)
}

/// A client whose owner is as good as dead after so many writes: none that follows is ever answered, or arrives.
fn dying(scene: &Scene, after: usize) -> (Client, Arc<Mutex<Vec<String>>>) {
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = written.clone();
    let count = axum::middleware::map_request(move |request: Request| {
        let ended = request.method() != Method::GET && {
            let mut seen = seen.lock().unwrap();
            seen.push(format!("{} {}", request.method(), request.uri().path()));
            seen.len() > after
        };
        async move {
            if ended {
                std::future::pending::<()>().await;
            }
            request
        }
    });
    let router = scene.server.router().layer(count).layer(axum::Extension(user(scene)));
    (Client::new(router, "default"), written)
}

/// Operators that end after one write, after two, and so on in ever larger steps, until one of them is done.
async fn crash_until(scene: &Scene, what: &str, done: impl AsyncFn() -> bool) {
    let mut after = 1;
    for _ in 0..64 {
        let (client, written) = dying(scene, after);
        let running = (scene.product.start)(client, "v1");
        let ended = until(what, async || {
            let ended = written.lock().unwrap().len() > after;
            (done().await || ended).then_some(ended)
        })
        .await;
        drop(running);
        if !ended {
            return;
        }
        after += 1 + after / 3;
    }
    panic!("{what}: never, however long an operator lived");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_ends_at_any_step_is_replaced_by_one_that_goes_on() {
    for product in PRODUCTS {
        let scene = Scene::new(product).await;
        scene.create(&scene.object()).await;
        crash_until(&scene, "it is installed", async || {
            let found = get(&scene.client, &scene.address()).await.unwrap();
            items(&found, "/status/conditions").any(|one| one["type"] == "Available" && one["status"] == "True")
        })
        .await;
        call(&scene.client, Method::DELETE, &scene.address(), &Value::Null).await.unwrap();
        crash_until(&scene, "it is removed", async || get(&scene.client, &scene.address()).await.is_none()).await;
        let left: Vec<String> = scene.made().await.into_keys().collect();
        assert!(left.is_empty(), "{}: {left:#?}", product.manager);
    }
}
