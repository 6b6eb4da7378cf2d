//! One packet of libvirt's RPC protocol (libvirt.org, "RPC protocol & APIs"):
//!
//! ```text
//!   length | program  version  procedure  type  serial  status | payload
//!    4 B         six words of 4 B, all big-endian
//! ```
//!
//! The length counts itself.

use std::io::{self, Read};

use crate::xdr::{Reader, Writer};

/// Of everything virtualization drivers share.
pub(crate) const REMOTE: u32 = 0x2000_8086;
/// Of what only QEMU has.
pub(crate) const QEMU: u32 = 0x2000_8087;
const VERSION: u32 = 1;

const HEADER: usize = 28;
/// The longest packet that a daemon of libvirt sends or takes.
const LIMIT: usize = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Call = 0,
    Reply = 1,
    /// Something that happened, unasked.
    Message = 2,
    Stream = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    Error = 1,
    /// More of a stream; empty at its end.
    Continue = 2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) program: u32,
    pub(crate) procedure: u32,
    pub(crate) kind: Kind,
    pub(crate) serial: u32,
    pub(crate) status: Status,
    pub(crate) payload: Vec<u8>,
}

impl Packet {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let length = u32::try_from(HEADER + self.payload.len()).unwrap_or(u32::MAX);
        let mut bytes = Writer::default()
            .u32(length)
            .u32(self.program)
            .u32(VERSION)
            .u32(self.procedure)
            .u32(self.kind as u32)
            .u32(self.serial)
            .u32(self.status as u32)
            .into_bytes();
        bytes.extend(&self.payload);
        bytes
    }

    /// The next packet, `None` at the end of the connection. A packet of a kind that we never asked for is an error:
    /// what follows could not be trusted to be understood.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut length = Vec::new();
        let length = match from.take(4).read_to_end(&mut length)? {
            0 => return Ok(None),
            _ => Reader::new(length).u32().map_err(|_| io::ErrorKind::UnexpectedEof)? as usize,
        };
        if !(HEADER..=LIMIT).contains(&length) {
            return Err(io::Error::other(format!("a packet of {length} bytes")));
        }
        let mut bytes = Vec::new();
        from.take(length as u64 - 4).read_to_end(&mut bytes)?;
        if bytes.len() + 4 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let payload = bytes.split_off(HEADER - 4);
        let mut header = Reader::new(bytes);
        let mut word = || header.u32().map_err(io::Error::other);
        let (program, _version, procedure) = (word()?, word()?, word()?);
        let kind = match word()? {
            0 => Kind::Call,
            1 => Kind::Reply,
            2 => Kind::Message,
            3 => Kind::Stream,
            other => return Err(io::Error::other(format!("a packet of type {other}"))),
        };
        let serial = word()?;
        let status = match word()? {
            0 => Status::Ok,
            1 => Status::Error,
            2 => Status::Continue,
            other => return Err(io::Error::other(format!("a packet with status {other}"))),
        };
        Ok(Some(Self { program, procedure, kind, serial, status, payload }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply() -> Packet {
        Packet {
            program: REMOTE,
            procedure: 1,
            kind: Kind::Reply,
            serial: 9,
            status: Status::Continue,
            payload: b"data".to_vec(),
        }
    }

    #[test]
    fn a_packet_is_read_as_it_was_written() {
        let mut bytes = reply().to_bytes();
        assert_eq!(bytes[..8], [0, 0, 0, 32, 0x20, 0, 0x80, 0x86]);
        bytes.extend(reply().to_bytes());
        let mut from = bytes.as_slice();
        assert_eq!(Packet::read(&mut from).unwrap(), Some(reply()));
        assert_eq!(Packet::read(&mut from).unwrap(), Some(reply()));
        assert_eq!(Packet::read(&mut from).unwrap(), None);
    }

    #[test]
    fn truncated_or_oversized_packets_are_refused() {
        let check = |bytes: &[u8], expected: &str| {
            let error = Packet::read(&mut &*bytes).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(&[0, 0, 0, 27], "a packet of 27 bytes");
        check(&[0xff; 4], "a packet of 4294967295 bytes");
        let bytes = reply().to_bytes();
        check(&bytes[..20], "end of file");
        check(&bytes[..2], "end of file");
        let mut odd = bytes.clone();
        odd[19] = 9;
        check(&odd, "a packet of type 9");
        odd = bytes;
        odd[27] = 9;
        check(&odd, "a packet with status 9");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = Packet::read(&mut bytes.as_slice());
        }
    }
}
