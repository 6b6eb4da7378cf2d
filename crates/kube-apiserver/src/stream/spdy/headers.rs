//! Header blocks: name-value pairs, compressed with zlib and the dictionary of SPDY/3; one compression state for each
//! direction of a connection.

use std::sync::OnceLock;

use bytes::{Buf, BufMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use super::{Headers, SpdyError};

/// Largest block after decompression.
const LIMIT: usize = 64 * 1024;
const PAIRS: u32 = 256;

/// The words of the dictionary of SPDY/3, each preceded by its length in four bytes.
const WORDS: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// What follows the words, without lengths.
const TAIL: &str = concat!(
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Au",
    "thoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidd",
    "en404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr Ma",
    "y Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,imag",
    "e/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicpri",
    "vatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.",
);

fn dictionary() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let mut bytes = Vec::with_capacity(1423);
        for word in WORDS {
            bytes.put_u32(u32::try_from(word.len()).unwrap_or_default());
            bytes.extend_from_slice(word.as_bytes());
        }
        bytes.extend_from_slice(TAIL.as_bytes());
        bytes
    })
}

/// The receiving direction.
#[derive(Debug)]
pub struct Inflater {
    state: Decompress,
}

impl Default for Inflater {
    fn default() -> Self {
        Self { state: Decompress::new(true) }
    }
}

impl Inflater {
    /// Headers of a compressed block.
    pub(super) fn headers(&mut self, block: &[u8]) -> Result<Headers, SpdyError> {
        parse(&self.inflate(block)?)
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut plain = Vec::with_capacity(1024);
        let mut chunk = [0_u8; 4096];
        loop {
            let (read, written) = (self.state.total_in(), self.state.total_out());
            let outcome = self.state.decompress(block, &mut chunk, FlushDecompress::Sync);
            let consumed = usize::try_from(self.state.total_in() - read).unwrap_or(block.len()).min(block.len());
            let produced = usize::try_from(self.state.total_out() - written).unwrap_or_default().min(chunk.len());
            block = &block[consumed..];
            plain.extend_from_slice(&chunk[..produced]);
            if plain.len() > LIMIT {
                return Err(SpdyError::Headers);
            }
            match outcome {
                Ok(flate2::Status::StreamEnd) => return Ok(plain),
                Ok(_) if consumed == 0 && produced == 0 => return Ok(plain),
                Ok(_) if block.is_empty() && produced < chunk.len() => return Ok(plain),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.state.set_dictionary(dictionary()).map_err(|_| SpdyError::Headers)?;
                }
                Err(_) => return Err(SpdyError::Headers),
            }
        }
    }
}

fn parse(mut plain: &[u8]) -> Result<Headers, SpdyError> {
    fn number(plain: &mut &[u8]) -> Result<u32, SpdyError> {
        if plain.len() < 4 { Err(SpdyError::Headers) } else { Ok(plain.get_u32()) }
    }
    fn word(plain: &mut &[u8]) -> Result<String, SpdyError> {
        let length = usize::try_from(number(plain)?).map_err(|_| SpdyError::Headers)?;
        if plain.len() < length {
            return Err(SpdyError::Headers);
        }
        let (text, rest) = plain.split_at(length);
        *plain = rest;
        String::from_utf8(text.to_vec()).map_err(|_| SpdyError::Headers)
    }
    let count = number(&mut plain)?;
    if count > PAIRS {
        return Err(SpdyError::Headers);
    }
    (0..count).map(|_| Ok((word(&mut plain)?.to_ascii_lowercase(), word(&mut plain)?))).collect()
}

/// The sending direction.
#[derive(Debug)]
pub struct Deflater {
    state: Compress,
    ready: bool,
}

impl Default for Deflater {
    fn default() -> Self {
        let mut state = Compress::new(Compression::default(), true);
        let ready = state.set_dictionary(dictionary()).is_ok();
        Self { state, ready }
    }
}

impl Deflater {
    /// The compressed block of some headers.
    pub(super) fn headers(&mut self, headers: &Headers) -> Result<Vec<u8>, SpdyError> {
        if !self.ready {
            return Err(SpdyError::Headers);
        }
        let mut plain = Vec::new();
        plain.put_u32(u32::try_from(headers.len()).map_err(|_| SpdyError::Headers)?);
        for (name, value) in headers {
            for text in [name, value] {
                plain.put_u32(u32::try_from(text.len()).map_err(|_| SpdyError::Headers)?);
                plain.extend_from_slice(text.as_bytes());
            }
        }
        let mut block = Vec::new();
        let mut rest = plain.as_slice();
        let mut chunk = [0_u8; 4096];
        loop {
            let (read, written) = (self.state.total_in(), self.state.total_out());
            self.state.compress(rest, &mut chunk, FlushCompress::Sync).map_err(|_| SpdyError::Headers)?;
            let consumed = usize::try_from(self.state.total_in() - read).unwrap_or(rest.len()).min(rest.len());
            let produced = usize::try_from(self.state.total_out() - written).unwrap_or_default().min(chunk.len());
            rest = &rest[consumed..];
            block.extend_from_slice(&chunk[..produced]);
            // A flush is complete when it leaves room in the output.
            if rest.is_empty() && produced < chunk.len() {
                return Ok(block);
            }
        }
    }
}

/// The value of a header, empty when absent.
#[must_use]
pub fn value<'a>(headers: &'a Headers, name: &str) -> &'a str {
    headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_that_of_the_protocol() {
        // Peers name the dictionary by this checksum.
        let (mut a, mut b) = (1_u32, 0_u32);
        for byte in dictionary() {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!((b << 16 | a, dictionary().len()), (0xe3c6_a7c2, 1423));
    }
}
