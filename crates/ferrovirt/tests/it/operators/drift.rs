//! What others do to what an operator has made does not last, and an operator that has nothing to do writes nothing.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use super::{PRODUCTS, SOON, Scene, call, damage, get};
use crate::cluster::{text, until};

/// How many looks in a row show nothing new of what is at rest.
const LOOKS: u32 = 5;

/// One object of each kind.
async fn one_of_each(scene: &Scene) -> Vec<(String, Value)> {
    let mut each: BTreeMap<String, (String, Value)> = BTreeMap::new();
    for (address, object) in scene.made().await {
        each.entry(text(&object, "/kind").to_owned()).or_insert((address, object));
    }
    each.into_values().collect()
}

async fn repaired(scene: &Scene, address: &str, what: &str, was: &Value, holds: impl Fn(&Value) -> bool) {
    let back = async {
        loop {
            if get(&scene.client, address).await.is_some_and(|now| holds(&now) && damage::is_repaired(was, &now)) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(SOON, back).await.is_err() {
        panic!("{address} was {what}; it was {was:#}, and is {:#?}", get(&scene.client, address).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_that_others_delete_or_edit_is_put_back() {
    for product in PRODUCTS {
        let (scene, _running) = Scene::deployed(product).await;
        let each = one_of_each(&scene).await;
        assert!(each.len() >= 6, "{}: {} kinds", product.manager, each.len());
        for (address, was) in each {
            call(&scene.client, Method::PATCH, &address, &damage::of(&was)).await.unwrap();
            repaired(&scene, &address, "edited", &was, |_| true).await;
            let unlabelled = json!({ "metadata": { "labels": null } });
            call(&scene.client, Method::PATCH, &address, &unlabelled).await.unwrap();
            repaired(&scene, &address, "robbed of its labels", &was, |_| true).await;
            let uid = get(&scene.client, &address).await.unwrap()["metadata"]["uid"].clone();
            call(&scene.client, Method::DELETE, &address, &Value::Null).await.unwrap();
            repaired(&scene, &address, "deleted", &was, |now| now["metadata"]["uid"] != uid).await;
        }
    }
}

/// What is the same in several looks in a row.
async fn at_rest<T: PartialEq>(look: &impl AsyncFn() -> T) -> T {
    let mut last = (look().await, 0);
    until("nothing is written", async || {
        let now = look().await;
        let same = if now == last.0 { last.1 + 1 } else { 0 };
        last = (now, same);
        (same == LOOKS).then_some(())
    })
    .await;
    last.0
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_starts_again_writes_nothing() {
    for product in PRODUCTS {
        let (scene, running) = Scene::deployed(product).await;
        let versions = async || -> BTreeMap<String, Value> {
            let mut all = scene.made().await;
            all.insert(scene.address(), get(&scene.client, &scene.address()).await.unwrap());
            let version = |object: Value| object["metadata"]["resourceVersion"].clone();
            all.into_iter().map(|(address, object)| (address, version(object))).collect()
        };
        // The status may still follow what was applied last.
        let before = at_rest(&versions).await;
        drop(running);
        let (client, sent) = super::crash::counted(&scene);
        let _again = (product.start)(client, "v1");
        // It looks at everything once, all definitions among it.
        let all = before.len() - 1;
        until("everything is sent again", async || (sent.lock().unwrap().len() >= all).then_some(())).await;
        let after = at_rest(&versions).await;
        let changed: Vec<_> = before.iter().filter(|(address, version)| after.get(*address) != Some(version)).collect();
        assert!(changed.is_empty(), "{}: {changed:#?}", product.manager);
    }
}
