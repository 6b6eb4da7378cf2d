//! A path and, after a NUL, the document it is followed in: values of the document, or none.
#![no_main]

use kube_apiserver::table::jsonpath;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let Some(Ok(path)) = parts.next().map(std::str::from_utf8) else { return };
    let document = parts.next().and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
    assert_eq!(jsonpath::first(path, &document), jsonpath::all(path, &document).first().copied());
});
