//! Arbitrary text as a domain's live XML, and as a definition whose disk is to lie elsewhere.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = domain::LiveDomain::read(text);
    let place = domain::Place { path: "/dev/root".into(), block: true, slice: Some(512), layered: false };
    let _ = domain::relocated(text, &[("root".to_owned(), place)].into());
});
