//! The object that asks for a product: others write it as well, and there may be a second one.

use http::Method;
use serde_json::{Value, json};

use super::{PRODUCTS, Scene, call, get};
use crate::cluster::{available, items, until};

const OTHERS: usize = 12;

/// Changes the finalizers of the object as careful writers do: what they have read must still hold.
async fn change(scene: &Scene, change: impl Fn(&mut Vec<Value>)) {
    until("a finalizer is written", async || {
        let found = get(&scene.client, &scene.address()).await?;
        let mut finalizers = found["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        change(&mut finalizers);
        let patch = json!({ "metadata": {
            "finalizers": finalizers, "resourceVersion": found["metadata"]["resourceVersion"],
        } });
        call(&scene.client, Method::PATCH, &scene.address(), &patch).await.ok().map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finalizers_of_others_outlive_those_of_the_operator() {
    for product in PRODUCTS {
        let scene = Scene::new(product).await;
        let _running = scene.start("v1");
        scene.create(&scene.object()).await;
        for number in 0..OTHERS {
            change(&scene, |all| all.push(json!(format!("example.com/f{number}")))).await;
        }
        available(&scene.client, product.path).await;
        let held = get(&scene.client, &scene.address()).await.unwrap();
        let held: Vec<&Value> = items(&held, "/metadata/finalizers").collect();
        let theirs = held.iter().filter(|name| name.as_str().unwrap().starts_with("example.com/")).count();
        assert_eq!((held.len(), theirs), (OTHERS + 1, OTHERS), "{}: {held:?}", product.manager);

        call(&scene.client, Method::DELETE, &scene.address(), &Value::Null).await.unwrap();
        for number in 0..OTHERS {
            change(&scene, |all| all.retain(|name| *name != json!(format!("example.com/f{number}")))).await;
            // None comes again because the operator wrote a list that it had read before.
            let held = get(&scene.client, &scene.address()).await;
            let left = held.iter().flat_map(|held| items(held, "/metadata/finalizers"));
            assert!(left.into_iter().all(|name| name != &json!(format!("example.com/f{number}"))), "{held:#?}");
        }
        scene.gone().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_object_waits_until_the_first_is_taken_away() {
    for product in PRODUCTS {
        let (scene, _running) = Scene::deployed(product).await;
        let mut second = scene.object();
        second["metadata"]["name"] = json!("second");
        scene.create(&second).await;
        let address = format!("{}/second", product.path);
        let says = |object: &Value, kind: &str, status: &str| {
            items(object, "/status/conditions").any(|one| one["type"] == kind && one["status"] == status)
        };
        let waits = until("the second waits", async || {
            let found = get(&scene.client, &address).await?;
            let told = items(&found, "/status/conditions").next().is_some();
            told.then_some(found)
        })
        .await;
        assert!(!says(&waits, "Available", "True"), "{waits:#}");
        assert_eq!(items(&waits, "/metadata/finalizers").count(), 0, "nothing was deployed for it");
        assert!(!says(&get(&scene.client, &scene.address()).await.unwrap(), "Degraded", "True"));
        if product.has_one_name {
            continue;
        }

        // Somebody's finalizer keeps the first one long after everything that was deployed for it is gone.
        change(&scene, |all| all.push(json!("example.com/keep"))).await;
        call(&scene.client, Method::DELETE, &scene.address(), &Value::Null).await.unwrap();
        until("the second counts", async || {
            let found = get(&scene.client, &address).await?;
            let counts = says(&found, "Available", "True") && !says(&found, "Degraded", "True");
            (counts && !says(&found, "Synchronized", "False")).then_some(())
        })
        .await;
        change(&scene, Vec::clear).await;
        scene.gone().await;
    }
}
