//! Compressed streams: members and frames one after the other, with a bound on the memory that one may ask for.

use std::io::{self, BufReader, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use crate::Refusal;
use crate::detect::Kind;

mod demand;

pub(crate) use demand::demand;

/// What liblzma needs besides a dictionary, generously.
const XZ_BESIDES: u64 = 1 << 20;

/// Whether files of this kind are unpacked on the way.
pub(crate) fn is_packed(kind: Kind) -> bool {
    matches!(kind, Kind::Gzip | Kind::Xz | Kind::Zstd | Kind::Bzip2)
}

/// What is in the stream `packed`. Its memory is bounded: a stream that wants more fails, and [`refusal`] knows why.
pub(crate) fn unpack<'a>(kind: Kind, packed: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
    let packed = BufReader::with_capacity(128 << 10, packed);
    Ok(match kind {
        Kind::Gzip => Box::new(MultiGzDecoder::new(packed)),
        Kind::Bzip2 => Box::new(MultiBzDecoder::new(packed)),
        Kind::Xz => {
            let stream =
                Stream::new_stream_decoder(demand::limit(kind) + XZ_BESIDES, CONCATENATED).map_err(io::Error::from)?;
            Box::new(XzDecoder::new_stream(packed, stream))
        }
        Kind::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
            decoder.window_log_max(demand::limit(kind).ilog2())?;
            Box::new(decoder)
        }
        _ => Box::new(packed),
    })
}

/// What a failed read of an unpacked stream says about the stream.
pub(crate) fn refusal(kind: Kind, error: &io::Error) -> Refusal {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Refusal::PackedShort(kind);
    }
    let said = error.to_string();
    if said.contains("memory") || error.kind() == io::ErrorKind::OutOfMemory {
        return Refusal::PackedMemory { kind, limit: demand::limit(kind) };
    }
    Refusal::PackedDamaged { kind, said }
}
