//! The fields of a message as bytes: reading them one after the other, and writing one.

use prost::encoding::{WireType, encode_key, encode_varint};

use apimachinery::error::ApiError;

/// What a field holds.
pub(super) enum Item<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed(u64),
}

/// The fields of a message in order.
pub(super) struct Wire<'a>(pub(super) &'a [u8]);

impl<'a> Wire<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
    fn field(&mut self) -> Option<(u64, Item<'a>)> {
        let key = self.varint()?;
        let item = match key & 7 {
            0 => Item::Number(self.varint()?),
            1 => Item::Fixed(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Item::Bytes(self.take(length)?)
            }
            5 => Item::Fixed(u64::from(u32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            _ => return None,
        };
        Some((key >> 3, item))
    }
}

impl<'a> Iterator for Wire<'a> {
    type Item = Result<(u64, Item<'a>), ApiError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(super::malformed))
    }
}

/// A field of bytes: a text, a message.
pub(super) fn bytes(number: u32, payload: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(payload.len() as u64, out);
    out.extend_from_slice(payload);
}

/// A field of an integer or a flag.
pub(super) fn number(number: u32, value: i64, out: &mut Vec<u8>) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value.cast_unsigned(), out);
}

/// A field of a floating point number.
pub(super) fn double(number: u32, value: f64, out: &mut Vec<u8>) {
    encode_key(number, WireType::SixtyFourBit, out);
    out.extend_from_slice(&value.to_le_bytes());
}
