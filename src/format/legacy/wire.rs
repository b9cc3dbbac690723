//! The protobuf wire format, as much of it as a record needs: varints, tags, wire types.

/// Most bytes of a varint.
pub(super) const MAX_VARINT_BYTES: usize = 10;
/// Wire type: a varint.
pub(super) const VARINT: u8 = 0;
/// Wire type: eight bytes.
pub(super) const FIXED64: u8 = 1;
/// Wire type: a length, then as many bytes.
pub(super) const BYTES: u8 = 2;
/// Wire type: four bytes.
pub(super) const FIXED32: u8 = 5;

/// A varint, taken byte by byte.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Varint {
    value: u64,
    taken: u32,
}

/// What a further byte makes of a varint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More bytes follow.
    More,
    /// It was the last.
    Done(u64),
    /// More than ten bytes, or more than 64 bits.
    Overflow,
}

impl Varint {
    /// Takes a byte. Padding with zero groups is taken as protobuf takes it, up to ten bytes in all.
    pub(super) fn push(&mut self, byte: u8) -> Step {
        let group = u64::from(byte & 0x7f);
        let shift = 7 * self.taken;
        self.taken += 1;
        if shift == 63 && byte > 1 {
            return Step::Overflow;
        }
        self.value |= group << shift;
        if byte & 0x80 == 0 { Step::Done(self.value) } else { Step::More }
    }
}

/// Appends the shortest varint of `value`.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(bytes: &[u8]) -> (Step, usize) {
        let mut varint = Varint::default();
        for (n, byte) in bytes.iter().enumerate() {
            match varint.push(*byte) {
                Step::More => {}
                end => return (end, n + 1),
            }
        }
        (Step::More, bytes.len())
    }

    #[test]
    fn varints_come_back() {
        let edges = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit]).chain([u64::MAX]);
        for value in edges {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert!(bytes.len() <= MAX_VARINT_BYTES);
            assert_eq!(take(&bytes), (Step::Done(value), bytes.len()));
        }
    }

    #[test]
    fn padding_is_taken_and_overflow_is_not() {
        assert_eq!(take(&[0x85, 0x00]), (Step::Done(5), 2));
        assert_eq!(take(b"\x85\x80\x80\x80\x80\x80\x80\x80\x80\x00"), (Step::Done(5), 10));
        assert_eq!(take(b"\x85\x80\x80\x80\x80\x80\x80\x80\x80\x80"), (Step::Overflow, 10));
        assert_eq!(take(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), (Step::Done(u64::MAX), 10));
        assert_eq!(take(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), (Step::Overflow, 10));
        assert_eq!(take(&[0x80; 3]), (Step::More, 3));
        assert_eq!(take(&[]), (Step::More, 0));
    }
}
