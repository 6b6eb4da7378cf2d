//! Sources as the world has them: without ranges, read once, with links that drop.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use disk::Source;
use disk::source::Memory;

/// Knows no ranges, and no size.
pub(crate) struct Stream(pub(crate) Memory);

impl Source for Stream {
    fn size(&self) -> Option<u64> {
        None
    }

    fn ranged(&self) -> bool {
        false
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        assert_eq!(offset, 0, "a range was asked of a source without ranges");
        self.0.open(0)
    }
}

/// A body that a client sends: there is no second one.
pub(crate) struct Once {
    bytes: Memory,
    opened: AtomicU32,
}

impl Once {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Memory::new(bytes), opened: AtomicU32::new(0) }
    }
}

impl Source for Once {
    fn size(&self) -> Option<u64> {
        self.bytes.size()
    }

    fn ranged(&self) -> bool {
        false
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        match self.opened.fetch_add(1, Ordering::Relaxed) {
            0 => self.bytes.open(offset),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "the body was read")),
        }
    }
}

/// A server whose connections carry so many bytes each, then end in one way or the other.
pub(crate) struct Drops {
    pub(crate) bytes: Memory,
    pub(crate) each: u64,
    pub(crate) silently: bool,
    pub(crate) ranged: bool,
    pub(crate) opened: AtomicU32,
}

impl Drops {
    pub(crate) fn new(bytes: Vec<u8>, each: u64) -> Self {
        Self { bytes: Memory::new(bytes), each, silently: false, ranged: true, opened: AtomicU32::new(0) }
    }
}

impl Source for Drops {
    fn size(&self) -> Option<u64> {
        self.bytes.size()
    }

    fn ranged(&self) -> bool {
        self.ranged
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let start = self.bytes.open(offset)?.take(self.each);
        if self.silently { Ok(Box::new(start)) } else { Ok(Box::new(start.chain(Reset))) }
    }
}

struct Reset;

impl Read for Reset {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

/// A server that counts what it sends and may be gone after so many bytes.
pub(crate) struct Ends {
    pub(crate) bytes: Memory,
    pub(crate) identity: Option<&'static str>,
    left: Arc<AtomicI64>,
}

impl Ends {
    pub(crate) fn after(bytes: &[u8], identity: Option<&'static str>, left: i64) -> Self {
        Self { bytes: Memory::new(bytes), identity, left: Arc::new(AtomicI64::new(left)) }
    }
}

impl Source for Ends {
    fn size(&self) -> Option<u64> {
        self.bytes.size()
    }

    fn ranged(&self) -> bool {
        true
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Counted { reader: self.bytes.open(offset)?, left: Arc::clone(&self.left) }))
    }

    fn identity(&self) -> Option<String> {
        self.identity.map(str::to_owned)
    }
}

struct Counted {
    reader: Box<dyn Read + Send>,
    left: Arc<AtomicI64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.reader.read(buffer)?;
        if self.left.fetch_sub(got as i64, Ordering::Relaxed) < got as i64 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the token expired"));
        }
        Ok(got)
    }
}
