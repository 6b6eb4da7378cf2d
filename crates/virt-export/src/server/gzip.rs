//! A disk, compressed on the way: one gzip member, whose blocks are made at once by as many threads as there are.
//!
//! Each piece of the disk becomes blocks that refer to nothing before them and end at a byte's boundary, so that they can be
//! put behind one another. A piece of zeros is always the same, and is made once: a hole costs nothing but its few bytes.

use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use crc32fast::Hasher;
use flate2::{Compress, Compression, FlushCompress};
use futures::{Stream, StreamExt, future, stream};

use super::pieces::{self, PIECE, ZEROS};

const HEAD: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// The last block: empty, by fixed codes.
const LAST: [u8; 2] = [3, 0];

/// A compressed piece, and what the trailer has to know of it.
#[derive(Clone)]
struct Block {
    bytes: Bytes,
    checksum: Hasher,
}

/// `size` bytes of `file`.
pub(super) fn stream(file: File, size: u64) -> impl Stream<Item = io::Result<Bytes>> {
    let file = Arc::new(file);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let blocks = stream::iter(pieces::places(0, size))
        .map(move |place| {
            let file = file.clone();
            async move { tokio::task::spawn_blocking(move || block(&file, place)).await.map_err(io::Error::other)? }
        })
        .buffered(threads + 1)
        .map(Some)
        .chain(stream::once(future::ready(None)));
    let body = blocks.scan(Hasher::new(), move |checksum, block| {
        future::ready(Some(match block {
            Some(block) => block.map(|block| {
                checksum.combine(&block.checksum);
                block.bytes
            }),
            None => Ok(trailer(checksum.clone().finalize(), size)),
        }))
    });
    stream::once(future::ready(Ok(Bytes::from_static(HEAD)))).chain(body)
}

fn trailer(checksum: u32, size: u64) -> Bytes {
    let mut out = LAST.to_vec();
    out.extend_from_slice(&checksum.to_le_bytes());
    // The length counts from zero again after 4 GiB, as the format has it.
    out.extend_from_slice(&((size & u64::from(u32::MAX)) as u32).to_le_bytes());
    out.into()
}

fn block(file: &File, place: (u64, usize)) -> io::Result<Block> {
    static EMPTY: OnceLock<Block> = OnceLock::new();
    match pieces::read(file, place)? {
        Some(bytes) => compressed(&bytes, Compression::fast()),
        None if place.1 < PIECE => compressed(&ZEROS[..place.1], Compression::best()),
        None => match EMPTY.get() {
            Some(block) => Ok(block.clone()),
            None => {
                let block = compressed(&ZEROS, Compression::best())?;
                Ok(EMPTY.get_or_init(|| block).clone())
            }
        },
    }
}

fn compressed(bytes: &[u8], level: Compression) -> io::Result<Block> {
    let mut deflate = Compress::new(level, false);
    let mut out = Vec::with_capacity(bytes.len() / 2 + 64);
    loop {
        let taken = usize::try_from(deflate.total_in()).unwrap_or(usize::MAX).min(bytes.len());
        deflate.compress_vec(&bytes[taken..], &mut out, FlushCompress::Full).map_err(io::Error::other)?;
        // Room that is left over means that the flush is complete.
        if deflate.total_in() == bytes.len() as u64 && out.len() < out.capacity() {
            break;
        }
        out.reserve(out.capacity().max(64));
    }
    let mut checksum = Hasher::new();
    checksum.update(bytes);
    Ok(Block { bytes: out.into(), checksum })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// What comes out of the stream, and how long it was.
    async fn there_and_back(file: File, size: u64) -> (Vec<u8>, usize) {
        let pieces: Vec<_> = stream(file, size).map(Result::unwrap).collect().await;
        let all = pieces.concat();
        let mut out = Vec::new();
        // Not the decoder of many members: it is to be one.
        flate2::bufread::GzDecoder::new(&all[..]).read_to_end(&mut out).unwrap();
        (out, all.len())
    }

    #[tokio::test]
    async fn compressed_bytes_decompress_to_the_volume() {
        let file = tempfile::tempfile().unwrap();
        let (size, piece) = (4 * PIECE + 77, PIECE as u64);
        file.set_len(size as u64).unwrap();
        // What cannot be made smaller, beside what can.
        let noise: Vec<u8> =
            (0..PIECE as u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).take(PIECE).collect();
        file.write_all_at(&noise, piece / 2).unwrap();
        file.write_all_at(b"the end", size as u64 - 7).unwrap();
        let mut expect = vec![0; size];
        file.read_exact_at(&mut expect, 0).unwrap();
        let (found, _) = there_and_back(file, size as u64).await;
        assert!(found == expect);
    }

    #[tokio::test]
    async fn holes_cost_next_to_nothing() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        let (found, length) = there_and_back(file, 64 << 20).await;
        assert!(found.len() == 64 << 20 && found.iter().all(|byte| *byte == 0));
        assert!(length < 512 << 10, "{length}");
        let (found, _) = there_and_back(tempfile::tempfile().unwrap(), 0).await;
        assert!(found.is_empty());
    }
}
