//! Arbitrary bytes through the SPDY decoder, in pieces whose size is the first byte.
#![no_main]

use kube_apiserver::stream::spdy::Decoder;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let mut decoder = Decoder::default();
    for piece in bytes.chunks(usize::from(*step).max(1)) {
        decoder.feed(piece);
        while let Ok(Some(_)) = decoder.next_frame() {}
    }
});
