//! Compressed streams that are read forward. What one is compressed with, its first bytes tell better than a name or type.

use std::io::{self, Cursor, Read};

use crate::detect::{HEADER, detect};
use crate::unpack::{is_packed, unpack};

/// The bytes of `stream` without their compression; those that are not compressed stay as they are.
pub(super) fn plain(mut stream: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let mut head = Vec::new();
    (&mut stream).take(HEADER as u64).read_to_end(&mut head)?;
    let kind = detect(&head);
    let whole = Cursor::new(head).chain(stream);
    if is_packed(kind) { unpack(kind, whole) } else { Ok(Box::new(whole)) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[track_caller]
    fn check(stream: Vec<u8>, expect: &[u8]) {
        let mut found = Vec::new();
        plain(Box::new(Cursor::new(stream))).unwrap().read_to_end(&mut found).unwrap();
        assert_eq!(found, expect);
    }

    #[test]
    fn streams_are_known_by_their_beginning() {
        let text = b"the same text, again and again and again and again";
        check(Vec::new(), b"");
        check(b"abc".to_vec(), b"abc");
        check(text.to_vec(), text);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text).unwrap();
        let gz = gz.finish().unwrap();
        check([gz.clone(), gz].concat(), &[&text[..], text].concat());
        check(zstd::encode_all(&text[..], 3).unwrap(), text);
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(text).unwrap();
        check(xz.finish().unwrap(), text);
        let mut bz = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bz.write_all(text).unwrap();
        check(bz.finish().unwrap(), text);
    }
}
