//! A server that says anything: the client ends, with an error or with what was asked for.

use nbd::{ALLOCATION, Client};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// A piece of what a server says: noise, or something that looks like an answer.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let noise = proptest::collection::vec(any::<u8>(), 0..64);
    let data = || proptest::collection::vec(any::<u8>(), 0..32);
    let option = (
        prop::sample::select(vec![7u32, 8, 10]),
        prop::sample::select(vec![1u32, 3, 4, 1 << 31]),
        any::<Option<u32>>(),
        data(),
    );
    let option = option.prop_map(|(option, kind, length, data)| {
        let length = length.unwrap_or(u32::try_from(data.len()).unwrap_or_default());
        [&OPTION_REPLY.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length.to_be_bytes(), &data]
            .concat()
    });
    let part =
        (any::<bool>(), prop::sample::select(vec![0u16, 1, 2, 5, 1 << 15]), 1u64..4, any::<Option<u32>>(), data());
    let part = part.prop_map(|(last, kind, cookie, length, data)| {
        let length = length.unwrap_or(u32::try_from(data.len()).unwrap_or_default());
        let head = [&0x668e_33ef_u32.to_be_bytes()[..], &u16::from(last).to_be_bytes(), &kind.to_be_bytes()].concat();
        [&head[..], &cookie.to_be_bytes(), &length.to_be_bytes(), &data].concat()
    });
    prop_oneof![1 => noise, 4 => option, 4 => part]
}

/// The answers of a server that plays along until it serves an export of 64 KiB, so that what follows is answers to requests.
fn opened() -> Vec<u8> {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let length = u32::try_from(data.len()).unwrap();
        [&OPTION_REPLY.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length.to_be_bytes(), data]
            .concat()
    };
    let context = [&1u32.to_be_bytes()[..], ALLOCATION.as_bytes()].concat();
    let export = [&0u16.to_be_bytes()[..], &65536u64.to_be_bytes(), &1u16.to_be_bytes()].concat();
    let said = [reply(8, 1, &[]), reply(10, 4, &context), reply(10, 1, &[]), reply(7, 3, &export), reply(7, 1, &[])];
    said.concat()
}

async fn talk(said: &[u8]) {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let server = async {
        far.write_all(b"NBDMAGICIHAVEOPT\0\x03").await.unwrap();
        // Who is left while it speaks has heard enough.
        let _ = far.write_all(said).await;
        let _ = far.shutdown().await;
        let _ = far.read_to_end(&mut Vec::new()).await;
    };
    let client = async {
        let Ok(mut client) = Client::connect(near, "root", &[ALLOCATION]).await else { return };
        if let Ok(bytes) = client.read(0, 512).await {
            assert_eq!(bytes.len(), 512);
        }
        if let Ok(lists) = client.status(0, 4096).await {
            for extent in lists.iter().flatten() {
                assert!(extent.length > 0 && extent.offset + extent.length <= 4096, "{extent:?}");
            }
        }
    };
    let both = async { tokio::join!(server, client) };
    tokio::time::timeout(std::time::Duration::from_secs(20), both).await.expect("the client ends when the server does");
}

proptest! {
    #[test]
    fn the_client_ends_whatever_a_server_sends(pieces in proptest::collection::vec(piece(), 0..12), open in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let begin = if open { opened() } else { Vec::new() };
        runtime.block_on(talk(&[begin, pieces.concat()].concat()));
    }
}
