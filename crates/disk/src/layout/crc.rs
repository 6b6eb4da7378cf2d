//! CRC-32C, which guards VHDX's tables.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0x82f6_3b78 } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// The sum of `bytes` with the four at `hole` taken for zero, where the sum itself stands.
pub(crate) fn crc32c(bytes: &[u8], hole: usize) -> u32 {
    let sum = bytes.iter().enumerate().fold(!0_u32, |sum, (at, byte)| {
        let byte = if (hole..hole + 4).contains(&at) { 0 } else { *byte };
        sum >> 8 ^ TABLE[((sum ^ u32::from(byte)) & 0xff) as usize]
    });
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_value() {
        assert_eq!(crc32c(b"123456789", 100), 0xe306_9283);
    }
}
