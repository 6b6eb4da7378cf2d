//! Arbitrary JSON as each of the four patches of a Deployment: the result, if there is one, stays within bounds.
#![no_main]

use apimachinery::patch::managed::Writer;
use apimachinery::patch::versions::Elsewhere;
use apimachinery::patch::{apply, json, managed, strategic};
use apimachinery::schema::builtin;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let Some(schema) = builtin::schema("apps", "v1", "Deployment") else { return };
    let mut documents = bytes.split(|byte| *byte == 0).map(serde_json::from_slice::<Value>);
    let (Some(Ok(current)), Some(Ok(patch))) = (documents.next(), documents.next()) else { return };
    if !current.is_object() || json::depth(&current) > json::DEPTH {
        return;
    }
    let now = jiff::Timestamp::UNIX_EPOCH;
    let writer = Writer { manager: "fuzz", api_version: "apps/v1", subresource: "", now };
    if let Ok(operations) = json::decode(patch.clone())
        && let Ok(new) = json::apply(&current, &operations)
    {
        assert!(json::depth(&new) <= json::DEPTH);
        let _ = managed::update(&schema, Some(&current), new, &writer, &Elsewhere::default());
    }
    let _ = strategic::merge(&schema, &current, &patch);
    if patch.is_object()
        && let Ok(once) = apply::apply(&schema, Some(&current), &patch, writer, true)
    {
        let _ = apply::apply(&schema, Some(&once), &patch, writer, false);
    }
});
