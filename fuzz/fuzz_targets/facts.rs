//! Arbitrary text as what a launcher tells of its guest: facts that are the same when they are told again, or none.
#![no_main]

use domain::GuestFacts;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let facts = GuestFacts::told(text);
    let again = serde_json::to_string(&facts).expect("facts can be written");
    assert_eq!(GuestFacts::told(&again), facts);
});
