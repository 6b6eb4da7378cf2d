//! What a user says the bytes at the source add up to: `sha256:` and its digits.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::{Sha256, Sha512};

/// A function that tells whether bytes arrived unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

impl Algorithm {
    const ALL: [Self; 4] = [Self::Md5, Self::Sha1, Self::Sha256, Self::Sha512];

    fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn digits(self) -> usize {
        match self {
            Self::Md5 => 32,
            Self::Sha1 => 40,
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

/// The sum of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    algorithm: Algorithm,
    /// In lower case.
    digits: String,
}

/// Why a text is no checksum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    #[error(
        "the checksum {0:?} names no algorithm: write it as sha256:DIGITS (md5, sha1, sha256 and sha512 are known)"
    )]
    NoAlgorithm(String),
    #[error("the checksum's algorithm {0:?} is not known: md5, sha1, sha256 and sha512 are")]
    Unknown(String),
    #[error("a checksum of {algorithm} has {expected} hexadecimal digits, this one has {found} characters")]
    Length { algorithm: &'static str, expected: usize, found: usize },
    #[error("the checksum has the character {0:?}, which is no hexadecimal digit")]
    Digit(char),
}

impl FromStr for Checksum {
    type Err = ChecksumError;

    fn from_str(text: &str) -> Result<Self, ChecksumError> {
        let (name, digits) = text.trim().split_once(':').ok_or_else(|| ChecksumError::NoAlgorithm(text.to_owned()))?;
        let algorithm = Algorithm::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(name));
        let algorithm = algorithm.ok_or_else(|| ChecksumError::Unknown(name.to_owned()))?;
        if let Some(other) = digits.chars().find(|digit| !digit.is_ascii_hexdigit()) {
            return Err(ChecksumError::Digit(other));
        }
        if digits.len() != algorithm.digits() {
            let (expected, found) = (algorithm.digits(), digits.len());
            return Err(ChecksumError::Length { algorithm: algorithm.name(), expected, found });
        }
        Ok(Self { algorithm, digits: digits.to_ascii_lowercase() })
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.algorithm.name(), self.digits)
    }
}

impl Checksum {
    /// Which function it is a value of.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// A sum in the making.
#[derive(Debug)]
pub(crate) enum Hasher {
    Md5(Md5),
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Md5 => Self::Md5(Md5::new()),
            Algorithm::Sha1 => Self::Sha1(Sha1::new()),
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(hasher) => hasher.update(bytes),
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Checksum {
        match self {
            Self::Md5(hasher) => sum(Algorithm::Md5, &hasher.finalize()),
            Self::Sha1(hasher) => sum(Algorithm::Sha1, &hasher.finalize()),
            Self::Sha256(hasher) => sum(Algorithm::Sha256, &hasher.finalize()),
            Self::Sha512(hasher) => sum(Algorithm::Sha512, &hasher.finalize()),
        }
    }
}

fn sum(algorithm: Algorithm, bytes: &[u8]) -> Checksum {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    Checksum { algorithm, digits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<&str, &str>) {
        let found = text.parse::<Checksum>().map(|sum| sum.to_string()).map_err(|error| error.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expect);
    }

    #[test]
    fn sums_are_read() {
        let digits = "D41D8CD98F00B204E9800998ECF8427E";
        check(&format!("MD5:{digits}"), Ok("md5:d41d8cd98f00b204e9800998ecf8427e"));
        check(
            digits,
            Err("the checksum \"D41D8CD98F00B204E9800998ECF8427E\" names no algorithm: \
                 write it as sha256:DIGITS (md5, sha1, sha256 and sha512 are known)"),
        );
        check("crc32:00", Err("the checksum's algorithm \"crc32\" is not known: md5, sha1, sha256 and sha512 are"));
        check("md5:d41d", Err("a checksum of md5 has 32 hexadecimal digits, this one has 4 characters"));
        check("sha256:xyz", Err("the checksum has the character 'x', which is no hexadecimal digit"));
    }

    #[test]
    fn sums_are_made() {
        let known = [
            (Algorithm::Md5, "md5:900150983cd24fb0d6963f7d28e17f72"),
            (Algorithm::Sha1, "sha1:a9993e364706816aba3e25717850c26c9cd0d89d"),
            (Algorithm::Sha256, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                Algorithm::Sha512,
                "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                 2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
        ];
        for (algorithm, expect) in known {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(b"a");
            hasher.update(b"bc");
            assert_eq!(hasher.finish().to_string(), expect);
        }
    }
}
