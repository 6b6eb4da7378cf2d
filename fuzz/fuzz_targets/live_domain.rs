//! Arbitrary text as a domain's live XML.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = domain::LiveDomain::read(text);
});
