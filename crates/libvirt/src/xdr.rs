//! XDR (RFC 4506), as far as libvirt's protocol uses it: big-endian words, strings and arrays padded to four bytes.

/// What cannot be decoded, and what was to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it ends within {0}")]
    Short(&'static str),
    #[error("a value has the unknown type {0}")]
    UnknownType(i32),
}

type Result<T> = std::result::Result<T, Malformed>;

/// Arguments of a call, in order.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn i32(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn i64(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Bytes of a length that both sides know.
    pub(crate) fn fixed(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn text(self, text: &str) -> Self {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.u32(length).fixed(text.as_bytes())
    }

    /// A pointer in XDR's sense: a flag, then the value when there is one.
    pub(crate) fn optional(self, text: Option<&str>) -> Self {
        match text {
            None => self.u32(0),
            Some(text) => self.u32(1).text(text),
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// An answer and how far it was read.
pub(crate) struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    pub(crate) fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), at: 0 }
    }

    fn slice(&mut self, length: usize, what: &'static str) -> Result<&[u8]> {
        let end = self.at.checked_add(length).ok_or(Malformed::Short(what))?;
        let slice = self.bytes.get(self.at..end).ok_or(Malformed::Short(what))?;
        self.at = end;
        Ok(slice)
    }

    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        self.slice(N, what)?.try_into().map_err(|_| Malformed::Short(what))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take("a number")?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.take("a number")?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take("a large number")?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.take("a large number")?))
    }

    pub(crate) fn f64(&mut self) -> Result<f64> {
        Ok(f64::from_be_bytes(self.take("a fraction")?))
    }

    pub(crate) fn uuid(&mut self) -> Result<[u8; 16]> {
        self.take("a UUID")
    }

    /// Bytes that are not UTF-8 become U+FFFD: some of what libvirt passes on was written by a guest.
    pub(crate) fn text(&mut self) -> Result<String> {
        const WHAT: &str = "a text";
        let length = usize::try_from(self.u32()?).map_err(|_| Malformed::Short(WHAT))?;
        let padded = length.checked_next_multiple_of(4).ok_or(Malformed::Short(WHAT))?;
        let field = self.slice(padded, WHAT)?;
        Ok(String::from_utf8_lossy(&field[..length]).into_owned())
    }

    pub(crate) fn optional<T>(&mut self, value: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        (self.u32()? != 0).then(|| value(self)).transpose()
    }

    /// A counted array. The count alone reserves nothing: items that are not there are an error.
    pub(crate) fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()?;
        (0..count).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_big_endian_and_texts_are_padded() {
        let bytes = Writer::default().u32(7).i32(-1).text("abcde").optional(None).optional(Some("x")).into_bytes();
        let expected = b"\0\0\0\x07\xff\xff\xff\xff\0\0\0\x05abcde\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01x\0\0\0";
        assert_eq!(bytes, expected);
        let mut reader = Reader::new(bytes);
        assert_eq!(reader.u32(), Ok(7));
        assert_eq!(reader.i32(), Ok(-1));
        assert_eq!(reader.text().as_deref(), Ok("abcde"));
        assert_eq!(reader.optional(Reader::text), Ok(None));
        assert_eq!(reader.optional(Reader::text), Ok(Some("x".to_owned())));
        assert_eq!(reader.u32(), Err(Malformed::Short("a number")));
    }

    #[test]
    fn malformed_values_are_named() {
        let check = |bytes: &[u8], expected| assert_eq!(Reader::new(bytes).text(), Err(expected));
        check(b"\0\0", Malformed::Short("a number"));
        check(b"\0\0\0\x05abcd", Malformed::Short("a text"));
        check(b"\xff\xff\xff\xff", Malformed::Short("a text"));
        assert_eq!(Reader::new(*b"\0\0\0\x01\xff\0\0\0").text().as_deref(), Ok("\u{fffd}"));
        assert!(Reader::new(*b"\xff\xff\xff\xff\0\0\0\0").list(Reader::u32).is_err());
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(text in ".{0,40}", number: u32, large: i64) {
            let bytes = Writer::default().text(&text).u32(number).i64(large).into_bytes();
            prop_assert_eq!(bytes.len() % 4, 0);
            let mut reader = Reader::new(bytes);
            prop_assert_eq!(reader.text(), Ok(text));
            prop_assert_eq!(reader.u32(), Ok(number));
            prop_assert_eq!(reader.i64(), Ok(large));
        }
    }
}
