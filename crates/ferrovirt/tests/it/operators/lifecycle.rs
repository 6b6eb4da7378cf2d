//! From one version to the next and back, and the order in which everything goes.

use http::Method;
use serde_json::{Value, json};

use super::{PRODUCTS, Scene, call, get};
use crate::cluster::{available, items, text, until};

/// The images of the operator's workloads.
async fn images(scene: &Scene) -> Vec<String> {
    let made = scene.made().await;
    let workloads = made.values().filter(|object| matches!(text(object, "/kind"), "Deployment" | "DaemonSet"));
    workloads
        .flat_map(|workload| items(workload, "/spec/template/spec/containers"))
        .map(|one| text(one, "/image").to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_workload_follows_an_update_and_the_way_back() {
    for product in PRODUCTS {
        let (scene, mut running) = Scene::deployed(product).await;
        for version in ["v2", "v1"] {
            drop(running);
            running = scene.start(version);
            let wanted = format!("r/component:{version}");
            until(&wanted, async || {
                let images = images(&scene).await;
                (!images.is_empty() && images.iter().all(|image| *image == wanted)).then_some(())
            })
            .await;
            until("it is available and at rest", async || {
                let found = get(&scene.client, &scene.address()).await?;
                let says = |kind: &str, status: &str| {
                    items(&found, "/status/conditions").any(|one| one["type"] == kind && one["status"] == status)
                };
                (says("Available", "True") && says("Progressing", "False") && says("Degraded", "False")).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_run_until_the_last_object_of_their_kinds_is_gone() {
    for product in PRODUCTS {
        let (scene, _running) = Scene::deployed(product).await;
        let made = scene.made().await;
        let definition = made.iter().find(|(_, object)| text(object, "/kind") == "CustomResourceDefinition");
        let workloads = made.iter().filter(|(_, object)| matches!(text(object, "/kind"), "Deployment" | "DaemonSet"));
        let workloads: Vec<&String> = workloads.map(|(address, _)| address).collect();
        // Somebody's finalizer stands for objects that are not finished yet.
        if let Some((address, _)) = definition {
            let hold = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
            call(&scene.client, Method::PATCH, address, &hold).await.unwrap();
        }
        call(&scene.client, Method::DELETE, &scene.address(), &Value::Null).await.unwrap();
        if let Some((address, _)) = definition {
            let others = made.iter().filter(|(_, object)| text(object, "/kind") == "CustomResourceDefinition").skip(1);
            for (other, _) in others {
                until("the other definitions go", async || get(&scene.client, other).await.is_none().then_some(()))
                    .await;
            }
            for workload in &workloads {
                assert!(get(&scene.client, workload).await.is_some(), "{workload} is needed to finish what is left");
            }
            let release = json!({ "metadata": { "finalizers": [] } });
            call(&scene.client, Method::PATCH, address, &release).await.unwrap();
        }
        scene.gone().await;
        let left: Vec<String> = scene.made().await.into_keys().collect();
        assert!(left.is_empty(), "{}: {left:#?}", product.manager);
        // And again, as if nothing had been.
        scene.create(&scene.object()).await;
        available(&scene.client, product.path).await;
    }
}
