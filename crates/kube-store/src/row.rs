//! One object as it lies on disk, and the tally of all of them by which lost or altered ones are noticed.
//!
//! ```text
//! key:  resource NUL namespace NUL name          value:  revision (8)  1  checksum (4)  JSON
//! ```
//! The checksum covers key, revision and JSON. Rows of the first format have neither the 1 nor the checksum.

use super::{Key, Object};

const REVISION: usize = 8;
const CHECKED: u8 = 1;
const HEAD: usize = REVISION + 1 + 4;

/// How many rows there are and the sum of their checksums; changed in the same transaction as the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) rows: u64,
    pub(super) sum: u64,
}

impl Tally {
    pub(super) fn add(&mut self, row: &[u8]) {
        self.rows = self.rows.wrapping_add(1);
        self.sum = self.sum.wrapping_add(stated(row));
    }

    pub(super) fn remove(&mut self, row: &[u8]) {
        self.rows = self.rows.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(stated(row));
    }
}

/// The checksum a row carries.
fn stated(row: &[u8]) -> u64 {
    let bytes = row.get(REVISION + 1..HEAD).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes).into()
}

fn checksum(key: &[u8], revision: &[u8], json: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(key);
    crc.update(revision);
    crc.update(json);
    crc.sum()
}

pub(super) fn key(key: &Key) -> Vec<u8> {
    [key.resource.as_bytes(), key.namespace.as_bytes(), key.name.as_bytes()].join(&0)
}

/// Writes an object's row into `out`.
pub(super) fn encode(key: &[u8], object: &Object, out: &mut Vec<u8>) {
    let revision = object.revision.to_be_bytes();
    out.clear();
    out.extend_from_slice(&revision);
    out.push(CHECKED);
    out.extend_from_slice(&checksum(key, &revision, &object.json).to_be_bytes());
    out.extend_from_slice(&object.json);
}

/// The object of a row; None when it is damaged.
pub(super) fn decode(key: &[u8], row: &[u8]) -> Option<Object> {
    let (revision, rest) = row.split_first_chunk::<REVISION>()?;
    let json = match rest.first()? {
        b'{' => rest,
        &CHECKED => {
            let json = row.get(HEAD..)?;
            (u64::from(checksum(key, revision, json)) == stated(row)).then_some(json)?
        }
        _ => return None,
    };
    let mut parts = std::str::from_utf8(key).ok()?.split('\0');
    let key = Key::new(parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(())?;
    Object::from_disk(key, u64::from_be_bytes(*revision), json)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Body, EventKind};
    use super::*;

    fn row() -> (Vec<u8>, Vec<u8>) {
        let at = Key::new("pods", "default", "a");
        let object =
            Body::new(json!({"metadata": {"labels": {"a": "b"}}, "x": "é"})).finish(at.clone(), 77, EventKind::Added);
        let mut out = Vec::new();
        encode(&key(&at), &object, &mut out);
        (key(&at), out)
    }

    #[test]
    fn a_row_comes_back_and_no_byte_of_it_changes_unnoticed() {
        let (key, row) = row();
        let object = decode(&key, &row).unwrap();
        assert_eq!((object.revision, object.value()["x"].as_str()), (77, Some("é")));
        assert_eq!(object.labels, [("a".into(), "b".into())]);
        for at in 0..row.len() {
            let mut damaged = row.clone();
            damaged[at] ^= 0x10;
            assert!(decode(&key, &damaged).is_none(), "byte {at}");
            assert!(decode(&key, &row[..at]).is_none(), "cut at {at}");
        }
        assert!(decode(b"pods\0default\0b", &row).is_none(), "another key");
    }

    #[test]
    fn rows_of_the_first_format_are_read() {
        let (key, row) = row();
        let plain = [&row[..REVISION], &row[HEAD..]].concat();
        assert_eq!(decode(&key, &plain).unwrap().revision, 77);
    }
}
