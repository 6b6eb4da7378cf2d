//! Arbitrary bytes as the body of a request in each of its encodings: a document within bounds, or an error.
#![no_main]

use kube_apiserver::body;
use apimachinery::patch::json::{DEPTH, depth};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((document, _)) = body::json(bytes) {
        assert!(depth(&document) <= DEPTH);
        // What is JSON is the same in YAML.
        assert_eq!(body::yaml(bytes).ok().map(|(same, _)| same), Some(document));
    } else if let Ok((document, _)) = body::yaml(bytes) {
        assert!(depth(&document) <= DEPTH);
    }
    if let Ok(document) = body::protobuf(&[b"k8s\0", bytes].concat()) {
        assert!(document["kind"].is_string());
        assert!(depth(&document) <= DEPTH);
        // What was read can be told.
        assert!(body::protobuf(&body::to_protobuf(&document).expect("it has a protobuf form")).is_ok());
    }
});
