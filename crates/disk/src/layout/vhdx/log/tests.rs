//! Rings of entries: whole, torn, of another time, around the end.

use super::*;

const GUID: [u8; 16] = [7; 16];

/// An entry that fills the sectors at these offsets with these bytes.
fn entry(number: u64, tail: usize, sectors: &[(u64, u8)]) -> Vec<u8> {
    let mut bytes = vec![0; (1 + sectors.len()) * SECTOR];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, b"loge");
    put(8, &((1 + sectors.len()) * SECTOR).to_le_bytes()[..4]);
    put(12, &tail.to_le_bytes()[..4]);
    put(16, &number.to_le_bytes());
    put(24, &sectors.len().to_le_bytes()[..4]);
    put(32, &GUID);
    put(48, &(9_u64 << 20).to_le_bytes());
    for (index, (host, fill)) in sectors.iter().enumerate() {
        let at = HEAD + index * DESCRIPTOR;
        put(at, b"desc");
        put(at + 4, &[*fill; 12]);
        put(at + 16, &host.to_le_bytes());
        put(at + 24, &number.to_le_bytes());
        let at = (1 + index) * SECTOR;
        put(at, &[*fill; SECTOR]);
        put(at, b"data");
        put(at + 4, &((number >> 32) as u32).to_le_bytes());
        put(at + SECTOR - 4, &(number as u32).to_le_bytes());
    }
    let sum = crc32c(&bytes, 4);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn ring(length: usize, entries: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut log = vec![0; length];
    for (at, entry) in entries {
        for (offset, byte) in entry.iter().enumerate() {
            log[(at + offset) % length] = *byte;
        }
    }
    log
}

/// What the sectors at 0 and 4096 hold, of which there were ones.
#[track_caller]
fn check(log: &[u8], expect: Option<[u8; 2]>) {
    let found = replay(log, &GUID).map(|changes| {
        let bytes = changes.over(0, &[1; 2 * SECTOR]).into_owned();
        assert!(bytes.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        [bytes[0], bytes[SECTOR]]
    });
    assert_eq!(found, expect);
}

#[test]
fn the_newest_whole_sequence_counts() {
    const RING: usize = 8 * SECTOR;
    let one = entry(5, 0, &[(0, 0xa)]);
    check(&ring(RING, &[]), None);
    check(&ring(RING, &[(0, one.clone())]), Some([0xa, 1]));
    // The second one goes on, and needs the first.
    let two = entry(6, 0, &[(4096, 0xb)]);
    check(&ring(RING, &[(0, one.clone()), (2 * SECTOR, two.clone())]), Some([0xa, 0xb]));
    // It does not need the first any more.
    let alone = entry(6, 2 * SECTOR, &[(4096, 0xb)]);
    check(&ring(RING, &[(0, one.clone()), (2 * SECTOR, alone)]), Some([1, 0xb]));
    // It was torn, or is one of another time.
    let mut torn = two.clone();
    torn[SECTOR + 100] ^= 1;
    check(&ring(RING, &[(0, one.clone()), (2 * SECTOR, torn)]), Some([0xa, 1]));
    let newer = entry(9, 2 * SECTOR, &[(0, 0xc)]);
    check(&ring(RING, &[(0, one.clone()), (2 * SECTOR, newer)]), Some([0xc, 1]));
    // What it needs is gone.
    check(&ring(RING, &[(2 * SECTOR, two)]), None);
    // Around the end.
    let around = entry(5, 7 * SECTOR, &[(0, 0xd)]);
    check(&ring(RING, &[(7 * SECTOR, around)]), Some([0xd, 1]));
    let mut foreign = one;
    foreign[32] ^= 1;
    check(&ring(RING, &[(0, foreign)]), None);
}

#[test]
fn changes_are_found_where_they_are() {
    let log = ring(8 * SECTOR, &[(0, entry(1, 0, &[(8192, 2), (12288, 3), (1 << 20, 4)]))]);
    let changes = replay(&log, &GUID).unwrap();
    for (at, length, expect) in [
        (0, 8192, false),
        (0, 8193, true),
        (16384, 4096, false),
        (16383, 1, true),
        (1 << 20, 1, true),
        ((1 << 20) + 4096, 1 << 20, false),
    ] {
        assert_eq!(changes.touch(at, length), expect, "{length} bytes at {at}");
    }
    assert_eq!(changes.file_size, 9 << 20);
    assert_eq!(&*changes.over(8190, &[1; 4]), [1, 1, 2, 2]);
}

/// Entries that are wrong at their end, one in each sector and each as long as the log, would be summed up for ever.
#[test]
fn a_log_that_costs_too_much_is_given_up() {
    let mut log = vec![0; 1 << 20];
    let length = log.len() as u32;
    for at in (0..log.len()).step_by(SECTOR) {
        log[at..at + 4].copy_from_slice(b"loge");
        log[at + 8..at + 12].copy_from_slice(&length.to_le_bytes());
        log[at + 16] = 1;
        log[at + 32..at + 48].copy_from_slice(&GUID);
    }
    assert!(replay(&log, &GUID).is_none());
}
