//! Arbitrary JSON as the OpenAPI documents of an extension server: a part of ours that replaces nothing, or an error.
#![no_main]

use std::sync::LazyLock;

use kube_apiserver::openapi::{self, extension};
use kube_apiserver::registry::Registry;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const GROUP: &str = "demo.example.com";

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);

fuzz_target!(|bytes: &[u8]| {
    let Ok(document) = serde_json::from_slice::<Value>(bytes) else { return };
    if let Ok(part) = extension::v3(document.clone(), GROUP, "v1") {
        assert!(serde_json::from_str::<Value>(&part.text).is_ok());
    }
    let Ok(part) = extension::v2(document, GROUP, "v1") else { return };
    let all = openapi::v2(&REGISTRY, &[part]);
    let paths = all["paths"].as_object().expect("there are paths");
    assert!(paths.keys().all(|path| path.starts_with("/apis/demo.example.com/v1")));
    // The protobuf form is written from whatever was let in.
    assert!(!openapi::encode_v2(&all).is_empty());
});
