//! What an HTTP/2 client sends, with every `:authority` replaced by one that our server takes. Pure.
//!
//! On a unix socket the authority says nothing, and gRPC for Go sends the path that it dialled: `/var/lib/…`, or
//! `%2Fvar%2Flib%2F…`. Neither is an authority of a URI, and h2 resets such a stream. Therefore each byte of the value is
//! overwritten with the letter X, in the coding that the value has. No length changes, so frames and blocks stay as they
//! are; and no entry of the compression table grows, so the client's and the server's numbers go on meaning the same.
//!
//! ```text
//! preface, then frames: head -> payload; of HEADERS and CONTINUATION: fields, one after the other (RFC 9113, 6.2 and 6.10)
//! field: number [-> name] -> value (RFC 7541, 6)
//! ```

/// `PRI * HTTP/2.0…`
const PREFACE: usize = 24;
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The name as it is, and in Huffman's code. Usually neither is sent, because it is entry 1 of the static table.
const NAME: &[u8] = b":authority";
const NAME_CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
const STATIC: usize = 1;
/// X, and X in Huffman's code, of which it takes exactly eight bits.
const X: u8 = b'X';
const X_CODED: u8 = 0xfc;

/// Where in a connection's bytes we are.
#[derive(Debug, Default)]
pub(super) struct Frames {
    at: At,
    field: Field,
}

#[derive(Debug)]
enum At {
    Preface(usize),
    Head([u8; HEAD], usize),
    Payload(Payload),
}

impl Default for At {
    fn default() -> Self {
        At::Preface(PREFACE)
    }
}

#[derive(Debug)]
struct Payload {
    /// Bytes that are still to come.
    left: usize,
    /// The next byte says how many of them are padding.
    padded: bool,
    padding: usize,
    /// Bytes before the fields: a priority.
    skip: usize,
    fields: bool,
}

impl Frames {
    /// Takes in the next bytes, however the stream is cut.
    pub(super) fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let taken = self.some(bytes);
            bytes = &mut bytes[taken..];
        }
    }

    /// Returns how many bytes were taken; at least one.
    fn some(&mut self, bytes: &mut [u8]) -> usize {
        let (taken, ended) = match &mut self.at {
            At::Preface(left) => {
                let taken = bytes.len().min(*left);
                *left -= taken;
                (taken, *left == 0)
            }
            At::Head(held, len) => {
                held[*len] = bytes[0];
                *len += 1;
                if *len == HEAD {
                    let payload = payload(*held);
                    // What goes on where the frame before ended is the same field.
                    if held[3] == HEADERS {
                        self.field = Field::default();
                    }
                    self.at = At::Payload(payload);
                }
                (1, matches!(&self.at, At::Payload(payload) if payload.left == 0))
            }
            At::Payload(payload) if !payload.fields => {
                let taken = bytes.len().min(payload.left);
                payload.left -= taken;
                (taken, payload.left == 0)
            }
            At::Payload(payload) => {
                payload.left -= 1;
                if std::mem::take(&mut payload.padded) {
                    payload.padding = usize::from(bytes[0]);
                } else if payload.skip > 0 {
                    payload.skip -= 1;
                } else if payload.left >= payload.padding {
                    self.field.pass(&mut bytes[0]);
                }
                (1, payload.left == 0)
            }
        };
        if ended {
            self.at = At::Head([0; HEAD], 0);
        }
        taken
    }
}

fn payload(head: [u8; HEAD]) -> Payload {
    let left = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let (kind, flags) = (head[3], head[4]);
    let first = kind == HEADERS;
    Payload {
        left,
        padded: first && flags & PADDED != 0,
        padding: 0,
        skip: if first && flags & PRIORITY != 0 { 5 } else { 0 },
        fields: first || kind == CONTINUATION,
    }
}

/// Where in a field we are.
#[derive(Debug, Default)]
enum Field {
    #[default]
    Begin,
    /// The bytes of a number that did not fit into the first.
    Number {
        of: Number,
        value: usize,
        shift: u32,
    },
    /// The first byte of a text's length.
    Length(Text),
    Text {
        of: Text,
        coded: bool,
        left: usize,
    },
    /// A number no header has; the server says what it thinks of it.
    Broken,
}

#[derive(Clone, Copy, Debug)]
enum Number {
    /// Says all of a field.
    Whole,
    /// Says which name the value belongs to.
    Name,
    Length {
        of: Text,
        coded: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Text {
    /// So many of its bytes were those of [`NAME`].
    Name {
        matched: Option<usize>,
    },
    Value {
        authority: bool,
    },
}

impl Field {
    fn pass(&mut self, byte: &mut u8) {
        match self {
            Field::Begin => {
                let (of, mask) = match *byte {
                    0x80.. => (Number::Whole, 0x7f),
                    0x40.. => (Number::Name, 0x3f),
                    0x20.. => (Number::Whole, 0x1f),
                    _ => (Number::Name, 0x0f),
                };
                *self = begun(of, *byte, mask);
            }
            Field::Length(of) => *self = begun(Number::Length { of: *of, coded: *byte & 0x80 != 0 }, *byte, 0x7f),
            Field::Number { of, value, shift } => {
                *value += usize::from(*byte & 0x7f) << *shift;
                *shift += 7;
                if *byte & 0x80 == 0 {
                    *self = known(*of, *value);
                } else if *shift > 21 {
                    *self = Field::Broken;
                }
            }
            Field::Text { of, coded, left } => {
                *left -= 1;
                match of {
                    Text::Value { authority: true } => *byte = if *coded { X_CODED } else { X },
                    Text::Value { authority: false } => {}
                    Text::Name { matched } => {
                        let name = if *coded { NAME_CODED } else { NAME };
                        *matched = matched.filter(|at| name.get(*at) == Some(byte)).map(|at| at + 1);
                    }
                }
                if *left == 0 {
                    *self = ended(*of, *coded);
                }
            }
            Field::Broken => {}
        }
    }
}

/// After the first byte of a number.
fn begun(of: Number, byte: u8, mask: u8) -> Field {
    let value = usize::from(byte & mask);
    if byte & mask == mask { Field::Number { of, value, shift: 0 } } else { known(of, value) }
}

/// After a number.
fn known(of: Number, value: usize) -> Field {
    match of {
        Number::Whole => Field::Begin,
        Number::Name if value == 0 => Field::Length(Text::Name { matched: Some(0) }),
        Number::Name => Field::Length(Text::Value { authority: value == STATIC }),
        Number::Length { of, coded } if value == 0 => ended(of, coded),
        Number::Length { of, coded } => Field::Text { of, coded, left: value },
    }
}

/// After a text.
fn ended(of: Text, coded: bool) -> Field {
    match of {
        Text::Name { matched } => {
            let name = if coded { NAME_CODED } else { NAME };
            Field::Length(Text::Value { authority: matched == Some(name.len()) })
        }
        Text::Value { .. } => Field::Begin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut out = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        out.extend_from_slice(payload);
        out
    }

    /// `frames` after a preface, cut in every way, are passed as `expect`.
    #[track_caller]
    fn check(frames: &[Vec<u8>], expect: &[Vec<u8>]) {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let sent = [std::slice::from_ref(&preface), frames].concat().concat();
        let expect = [std::slice::from_ref(&preface), expect].concat().concat();
        for step in 1..=sent.len() {
            let (mut frames, mut passed) = (Frames::default(), sent.clone());
            passed.chunks_mut(step).for_each(|chunk| frames.pass(chunk));
            assert_eq!(passed, expect, "in steps of {step}");
        }
    }

    fn settings() -> Vec<u8> {
        frame(4, 0, &[])
    }

    #[test]
    fn a_path_becomes_a_name_and_nothing_else_changes() {
        // POST, http, :path in plain text, :authority, content-type of entry 31, what is indexed.
        let block = |authority: &[u8]| [b"\x83\x86\x44\x02/a\x41\x07", authority, b"\x5f\x03a/b\xbe"].concat();
        let sent = [settings(), frame(1, 4, &block(b"/x.sock")), frame(0, 1, b"\x41\x07/x.sock")];
        check(&sent, &[settings(), frame(1, 4, &block(b"XXXXXXX")), frame(0, 1, b"\x41\x07/x.sock")]);
    }

    #[test]
    fn in_every_representation() {
        // In the table, not in the table, never in the table; the name spelled out, plain and coded.
        let plain = |name: &[u8]| [name, &[NAME.len() as u8], NAME, b"\x02"].concat();
        let coded = [b"\x40\x88".as_slice(), NAME_CODED, b"\x02"].concat();
        let starts =
            [b"\x41\x02".to_vec(), b"\x01\x02".into(), b"\x11\x02".into(), plain(b"\x40"), plain(b"\x00"), coded];
        for start in &starts {
            let block = |value: &[u8]| frame(1, 4, &[start, value, b"\x3f\xe1\x1f\x86"].concat());
            check(&[block(b"/s")], &[block(b"XX")]);
        }
        // `/%` in Huffman's code, padded with ones.
        let block = |value: &[u8]| frame(1, 4, &[b"\x41\x82", value].concat());
        check(&[block(&[0b0110_0001, 0b0101_1111])], &[block(&[X_CODED, X_CODED])]);
        // Another name of the same length, and one that begins alike.
        let others = frame(1, 4, b"\x40\x0a:authorits\x02/s\x40\x05:auth\x02/s");
        check(std::slice::from_ref(&others), std::slice::from_ref(&others));
    }

    #[test]
    fn in_pieces_with_padding_and_priority() {
        let long = |byte: u8| [b"\x41\x7f\xf9\x01".as_slice(), &[byte; 376]].concat();
        let pieces = |block: &[u8]| {
            let first = [b"\x03\0\0\0\0\x10".as_slice(), &block[..2], b"///"].concat();
            [frame(1, PADDED | PRIORITY, &first), frame(9, 0, &block[2..50]), frame(9, 4, &block[50..])]
        };
        check(&pieces(&long(b'/')), &pieces(&long(X)));
    }

    #[test]
    fn unusual_frames_are_passed_on_unchanged() {
        let odd = [
            frame(1, 4, b"\x7f\xff\xff\xff\xff\xff\xff\xff\xff/"),
            frame(1, PADDED, b"\xff\x41\x01/"),
            frame(9, 0, b""),
        ];
        check(&odd, &odd);
    }
}
