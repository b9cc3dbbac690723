//! Numbers that the kernel keeps: of inodes and of open files, and which daemon of the connection gave them.
//!
//! A connection may outlive its daemon ([`super::handover`]). What the kernel still has of an earlier one must never be
//! taken for something of this one's, so each number has its daemon's in it.

/// Bit of the inode numbers of virtual files.
pub(super) const VIRTUAL_BIT: u64 = 1 << 63;
/// Where the daemon's number stands: below it is a slot and its generation, or a count of handles.
const SHIFT: u32 = 56;
const MASK: u64 = (Incarnation::LAST.0 as u64) << SHIFT;

/// Which daemon of its connection this one is: the first is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Incarnation(u8);

impl Incarnation {
    /// The last one that can be told from the others.
    pub const LAST: Incarnation = Incarnation(0x7f);

    /// The one of this number, if there can be one.
    pub fn new(number: u8) -> Option<Self> {
        (number <= Self::LAST.0).then_some(Incarnation(number))
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The one after it; none after the last.
    pub fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }

    /// The number as this daemon gives it to the kernel.
    pub(super) fn mark(self, number: u64) -> u64 {
        debug_assert!(number & MASK == 0, "{number:#x} has no room for the daemon's number");
        number | u64::from(self.0) << SHIFT
    }

    /// What this daemon gave; `None` for what an earlier one did.
    pub(super) fn unmark(self, number: u64) -> Option<u64> {
        (number & MASK == u64::from(self.0) << SHIFT).then_some(number & !MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_daemon_knows_its_own_numbers_only() {
        let (first, last) = (Incarnation::default(), Incarnation::LAST);
        let second = first.next().unwrap();
        assert_eq!((last.next(), second.number(), Incarnation::new(128)), (None, 1, None));
        for number in [0, 1, (1 << SHIFT) - 1, VIRTUAL_BIT | 7] {
            assert_eq!(first.mark(number), number);
            for (a, b) in [(first, second), (second, last), (last, first)] {
                assert_eq!(a.unmark(a.mark(number)), Some(number));
                assert_eq!(b.unmark(a.mark(number)), None);
            }
        }
    }
}
