//! SPDY/3.1 frames: the codec, without I/O.
//!
//! Guarantees: arbitrary bytes never panic and never make the decoder hold more than one control frame (64 KiB) or one
//! chunk of data; headers decompress to at most 64 KiB. Data frames are handed on in pieces as they arrive.

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub mod headers;
pub mod session;

use headers::{Deflater, Inflater};

/// Largest accepted control frame.
const CONTROL: usize = 64 * 1024;

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    /// Not version 3.
    #[error("unsupported SPDY version {0}")]
    Version(u16),
    /// A control frame beyond the limit.
    #[error("control frame of {0} bytes")]
    TooLarge(usize),
    /// A frame that is shorter than its fields.
    #[error("truncated control frame of type {0}")]
    Truncated(u16),
    /// Headers do not decompress or decode.
    #[error("malformed header block")]
    Headers,
}

/// Names and values of a stream.
pub type Headers = Vec<(String, String)>;

/// A frame, or a piece of a data frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream {
        /// Stream.
        id: u32,
        /// The opener sends nothing more.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// Accepts a stream.
    SynReply {
        /// Stream.
        id: u32,
        /// The accepter sends nothing.
        fin: bool,
        /// Headers.
        headers: Headers,
    },
    /// Ends a stream at once.
    Reset {
        /// Stream.
        id: u32,
        /// Why.
        status: u32,
    },
    /// To be echoed.
    Ping(u32),
    /// No more streams.
    GoAway,
    /// More headers.
    Headers {
        /// Stream.
        id: u32,
        /// Last frame of the sender.
        fin: bool,
    },
    /// Payload.
    Data {
        /// Stream.
        id: u32,
        /// Last piece of the sender.
        fin: bool,
        /// Bytes.
        data: Bytes,
    },
    /// SETTINGS, WINDOW_UPDATE and types unknown to us: nothing to do.
    Ignored,
}

#[derive(Clone, Copy, Debug)]
struct Partial {
    id: u32,
    fin: bool,
    left: usize,
}

/// Bytes to frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
    partial: Option<Partial>,
    inflater: Inflater,
}

impl Decoder {
    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame; None when more bytes are needed.
    ///
    /// # Errors
    /// When the peer does not speak SPDY/3.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, SpdyError> {
        if let Some(partial) = self.partial {
            return Ok(self.piece(partial));
        }
        if self.buffer.len() < 8 {
            return Ok(None);
        }
        let word = u32::from_be_bytes([self.buffer[0], self.buffer[1], self.buffer[2], self.buffer[3]]);
        let flags = self.buffer[4];
        let length = usize::from(self.buffer[5]) << 16 | usize::from(self.buffer[6]) << 8 | usize::from(self.buffer[7]);
        let fin = flags & 1 == 1;
        if word >> 31 == 0 {
            self.buffer.advance(8);
            let partial = Partial { id: word, fin, left: length };
            if length == 0 {
                return Ok(Some(Frame::Data { id: word, fin, data: Bytes::new() }));
            }
            self.partial = Some(partial);
            return Ok(self.piece(partial));
        }
        let version = u16::try_from(word >> 16 & 0x7fff).unwrap_or_default();
        if version != 3 {
            return Err(SpdyError::Version(version));
        }
        if length > CONTROL {
            return Err(SpdyError::TooLarge(length));
        }
        if self.buffer.len() < 8 + length {
            return Ok(None);
        }
        self.buffer.advance(8);
        let payload = self.buffer.split_to(length).freeze();
        self.control(u16::try_from(word & 0xffff).unwrap_or_default(), fin, payload).map(Some)
    }

    fn piece(&mut self, partial: Partial) -> Option<Frame> {
        let take = partial.left.min(self.buffer.len());
        if take == 0 {
            return None;
        }
        let data = self.buffer.split_to(take).freeze();
        let left = partial.left - take;
        self.partial = (left > 0).then_some(Partial { left, ..partial });
        Some(Frame::Data { id: partial.id, fin: partial.fin && left == 0, data })
    }

    fn control(&mut self, kind: u16, fin: bool, mut payload: Bytes) -> Result<Frame, SpdyError> {
        let need = |payload: &Bytes, count: usize| {
            if payload.len() < count { Err(SpdyError::Truncated(kind)) } else { Ok(()) }
        };
        match kind {
            1 => {
                need(&payload, 10)?;
                let id = payload.get_u32() & 0x7fff_ffff;
                payload.advance(6);
                Ok(Frame::SynStream { id, fin, headers: self.inflater.headers(&payload)? })
            }
            2 => {
                need(&payload, 4)?;
                let id = payload.get_u32() & 0x7fff_ffff;
                Ok(Frame::SynReply { id, fin, headers: self.inflater.headers(&payload)? })
            }
            3 => {
                need(&payload, 8)?;
                Ok(Frame::Reset { id: payload.get_u32() & 0x7fff_ffff, status: payload.get_u32() })
            }
            6 => {
                need(&payload, 4)?;
                Ok(Frame::Ping(payload.get_u32()))
            }
            7 => Ok(Frame::GoAway),
            8 => {
                need(&payload, 4)?;
                let id = payload.get_u32() & 0x7fff_ffff;
                // Read and dropped: the compression state must follow.
                self.inflater.headers(&payload)?;
                Ok(Frame::Headers { id, fin })
            }
            _ => Ok(Frame::Ignored),
        }
    }
}

/// Frames to bytes.
#[derive(Debug, Default)]
pub struct Encoder {
    deflater: Deflater,
}

impl Encoder {
    /// The bytes of a frame.
    ///
    /// # Errors
    /// When headers cannot be compressed.
    pub fn encode(&mut self, frame: &Frame) -> Result<Bytes, SpdyError> {
        let mut payload = BytesMut::new();
        let (kind, fin) = match frame {
            Frame::SynStream { id, fin, headers } => {
                payload.put_u32(*id);
                payload.put_u32(0);
                payload.put_u16(0);
                payload.extend_from_slice(&self.deflater.headers(headers)?);
                (1, *fin)
            }
            Frame::SynReply { id, fin, headers } => {
                payload.put_u32(*id);
                payload.extend_from_slice(&self.deflater.headers(headers)?);
                (2, *fin)
            }
            Frame::Reset { id, status } => {
                payload.put_u32(*id);
                payload.put_u32(*status);
                (3, false)
            }
            Frame::Ping(id) => {
                payload.put_u32(*id);
                (6, false)
            }
            Frame::GoAway => {
                payload.put_u64(0);
                (7, false)
            }
            Frame::Headers { id, fin } => {
                payload.put_u32(*id);
                payload.extend_from_slice(&self.deflater.headers(&Vec::new())?);
                (8, *fin)
            }
            Frame::Data { id, fin, data } => {
                let mut out = BytesMut::with_capacity(8 + data.len());
                out.put_u32(*id);
                out.put_u32(u32::from(*fin) << 24 | u32::try_from(data.len()).unwrap_or_default() & 0x00ff_ffff);
                out.extend_from_slice(data);
                return Ok(out.freeze());
            }
            Frame::Ignored => return Ok(Bytes::new()),
        };
        let mut out = BytesMut::with_capacity(8 + payload.len());
        out.put_u16(0x8003);
        out.put_u16(kind);
        out.put_u32(u32::from(fin) << 24 | u32::try_from(payload.len()).unwrap_or_default());
        out.extend_from_slice(&payload);
        Ok(out.freeze())
    }
}

#[cfg(test)]
mod tests;
