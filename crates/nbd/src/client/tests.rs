//! A server that is a script, honest and otherwise.

use tokio::io::{DuplexStream, duplex};

use super::*;
use crate::extents::{DIRTY, HOLE, ZERO};
use crate::{ALLOCATION, dirty_bitmap};

const SIZE: u64 = 8192;

/// Numbers and bytes, as they are on the wire.
#[derive(Default)]
struct Wire(Vec<u8>);

impl Wire {
    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn option(self, option: u32, kind: u32, told: &[u8]) -> Self {
        self.u64(OPTION_REPLY).u32(option).u32(kind).u32(told.len() as u32).bytes(told)
    }

    /// A part of an answer to the first request.
    fn part(self, last: bool, kind: u16, told: Wire) -> Self {
        let head = self.u32(STRUCTURED).u16(u16::from(last)).u16(kind).u64(1);
        head.u32(told.0.len() as u32).bytes(&told.0)
    }
}

fn wire() -> Wire {
    Wire::default()
}

fn context(number: u32, name: &str) -> Vec<u8> {
    wire().u32(number).bytes(name.as_bytes()).0
}

fn greeting() -> Wire {
    wire().u64(GREETING).u64(OPTION).u16(FIXED_NEWSTYLE | NO_ZEROES).option(STRUCTURED_REPLY, said::ACK, &[])
}

/// What an honest server says until the first request.
fn opened() -> Wire {
    let about = wire().u16(0).u64(SIZE).u16(1).0;
    greeting()
        .option(SET_META_CONTEXT, said::CONTEXT, &context(7, "qemu:dirty-bitmap:c"))
        .option(SET_META_CONTEXT, said::CONTEXT, &context(3, ALLOCATION))
        .option(SET_META_CONTEXT, said::ACK, &[])
        .option(GO, said::INFO, &about)
        .option(GO, said::INFO, &wire().u16(3).u32(1).u32(4096).u32(1 << 25).0)
        .option(GO, said::ACK, &[])
}

/// A client of a server that says this, whatever it is told, and the server's end.
async fn client(script: Wire) -> Result<(Client<DuplexStream>, DuplexStream), Error> {
    let (near, mut far) = duplex(1 << 20);
    far.write_all(&script.0).await.unwrap();
    far.shutdown().await.unwrap();
    Ok((Client::connect(near, "root", &[ALLOCATION, &dirty_bitmap("c")]).await?, far))
}

#[tokio::test]
async fn an_export_is_opened_with_all_of_its_contexts_or_not() {
    let (found, _server) = client(opened()).await.unwrap();
    assert_eq!((found.size(), found.contexts), (SIZE, vec![3, 7]));
    let check = async |script: Wire, expect: &str| {
        assert_eq!(client(script).await.unwrap_err().to_string(), expect);
    };
    let keeps = "the NBD server does not keep to the protocol:";
    check(wire().u64(1).u64(2), &format!("{keeps} it greets in another way")).await;
    check(wire().u64(GREETING).u64(OPTION).u16(0), &format!("{keeps} it is older than the newstyle handshake")).await;
    check(wire().u64(GREETING), "the connection to the NBD server broke").await;
    let without = greeting().option(SET_META_CONTEXT, said::ACK, &[]);
    check(without, "the NBD server refuses a context: there is no base:allocation").await;
    let none = greeting().option(SET_META_CONTEXT, said::ERROR | 6, b"export 'root' not present");
    check(none, "the NBD server refuses the contexts: export 'root' not present").await;
    let mut endless = greeting();
    for _ in 0..=MOST_ANSWERS {
        endless = endless.option(SET_META_CONTEXT, said::CONTEXT, &context(1, "x"));
    }
    check(endless, &format!("{keeps} its answer to an option is too long")).await;
    let long = greeting().u64(OPTION_REPLY).u32(SET_META_CONTEXT).u32(said::CONTEXT).u32(u32::MAX);
    check(long, &format!("{keeps} its answer to an option is too long")).await;
}

#[tokio::test]
async fn bytes_are_those_that_were_asked_for() {
    let read = async |script: Wire, offset: u64, length: u32| {
        let (mut client, _server) = client(script).await.unwrap();
        client.read(offset, length).await
    };
    let two =
        opened().part(false, part::HOLE, wire().u64(102).u32(2)).part(true, part::DATA, wire().u64(100).bytes(b"ab"));
    assert_eq!(read(two, 100, 4).await.unwrap(), b"ab\0\0");
    let check = async |script: Wire, expect: &str| {
        let error = read(script, 100, 4).await.unwrap_err().to_string();
        assert!(error.ends_with(expect), "{error}");
    };
    let data = |at: u64| wire().u64(at).bytes(b"ab");
    check(opened().part(true, part::DATA, data(100)), "it sent something else than was asked for").await;
    check(opened().part(true, part::DATA, data(99)), "it sent bytes that were not asked for").await;
    check(opened().part(true, part::DATA, data(103)), "it sent bytes that were not asked for").await;
    check(opened().part(true, part::HOLE, wire().u64(u64::MAX).u32(9)), "it sent bytes that were not asked for").await;
    check(opened().part(true, part::STATUS, data(1)), "has a form that was not asked for").await;
    check(opened().u32(SIMPLE).u32(0).u64(1), "it answers without saying what").await;
    check(opened().u32(STRUCTURED).u16(1).u16(part::NONE).u64(2).u32(0), "it answers another request").await;
    check(opened().u32(0), "its answer is none").await;
    let failed = wire().u32(5).u16(3).bytes(b"I/O");
    check(opened().part(true, part::ERROR | 1, failed), "failed with error 5: I/O").await;
    for (offset, length) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (0, 0), (0, LARGEST_READ + 1)] {
        let error = read(opened(), offset, length).await.unwrap_err();
        assert!(matches!(error, Error::Beyond { .. }), "{error}");
    }
}

#[tokio::test]
async fn blocks_are_described_no_further_than_asked() {
    let status = async |script: Wire| {
        let (mut client, _server) = client(script).await.unwrap();
        client.status(4096, 2048).await
    };
    let allocation = wire().u32(3).u32(1024).u32(HOLE | ZERO).u32(4096).u32(0);
    let bitmap = wire().u32(7).u32(512).u32(0).u32(512).u32(0).u32(100).u32(DIRTY);
    let lists = status(opened().part(false, part::STATUS, bitmap).part(true, part::STATUS, allocation)).await.unwrap();
    let extent = |offset, length, flags| Extent { offset, length, flags };
    assert_eq!(lists[0], [extent(4096, 1024, HOLE | ZERO), extent(5120, 1024, 0)]);
    assert_eq!(lists[1], [extent(4096, 1024, 0), extent(5120, 100, DIRTY)]);
    let check = async |script: Wire, expect: &str| {
        let error = status(script).await.unwrap_err().to_string();
        assert!(error.ends_with(expect), "{error}");
    };
    let one = || wire().u32(3).u32(9).u32(0);
    check(opened().part(true, part::STATUS, one()), "it does not describe the blocks that it was asked for").await;
    check(opened().part(true, part::STATUS, wire().u32(9).u32(9).u32(0)), "by a context that nobody asked for").await;
    check(opened().part(true, part::STATUS, wire().u32(3).u32(0).u32(0)), "blocks without a length").await;
    check(opened().part(true, part::STATUS, wire().u32(3).u32(9)), "has a form that was not asked for").await;
}
