//! The checksum over a batch's payload. It says nothing of header and table, which have their own.

/// CRC32C of a payload whose bytes come piece by piece, in order: begin with 0 and pass on what is returned.
#[must_use]
pub fn payload_checksum(so_far: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(so_far, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_sum_to_the_whole_and_the_number_is_frozen() {
        let whole = b"123456789";
        assert_eq!(payload_checksum(0, whole), 0xE306_9283, "the check value of CRC32C");
        for at in 0..=whole.len() {
            let (head, tail) = whole.split_at(at);
            assert_eq!(payload_checksum(payload_checksum(0, head), tail), 0xE306_9283);
        }
    }
}
