//! The one bit of a redb file that nothing checks: which of its two commit slots counts.
//!
//! Everything else that redb trusts carries a checksum. After a two-phase commit it follows this bit alone, so one
//! flipped bit would quietly bring back the commit before the last, and with it lose an acknowledged request. Where
//! both slots are whole and the other one is newer, the mark of the two-phase commit is therefore hidden from redb:
//! it then takes the newest commit whose checksums hold. After a crash between the two phases that is the commit
//! which was being made, of which nobody knows yet whether it happened.

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Length of the header, at the start of the file.
pub(super) const HEADER_BYTES: usize = 320;

const FLAGS: usize = 9;
const SECOND_IS_PRIMARY: u8 = 1;
const TWO_PHASE_COMMIT: u8 = 4;
const SLOTS: [usize; 2] = [64, 192];
/// Within a slot.
const TRANSACTION_ID: std::ops::Range<usize> = 104..112;
const CHECKSUM: std::ops::Range<usize> = 112..128;

/// Makes redb choose the newest commit where the flags name an older one.
pub(super) fn follow_newest(header: &mut [u8]) {
    let primary = usize::from(header[FLAGS] & SECOND_IS_PRIMARY);
    let (named, other) = (slot(header, primary), slot(header, primary ^ 1));
    if whole(named) && whole(other) && transaction_id(other) > transaction_id(named) {
        header[FLAGS] &= !TWO_PHASE_COMMIT;
    }
}

fn slot(header: &[u8], n: usize) -> &[u8] {
    &header[SLOTS[n]..SLOTS[n] + CHECKSUM.end]
}

fn whole(slot: &[u8]) -> bool {
    xxh3_128_with_seed(&slot[..CHECKSUM.start], 0).to_le_bytes() == slot[CHECKSUM]
}

fn transaction_id(slot: &[u8]) -> u64 {
    u64::from_le_bytes(slot[TRANSACTION_ID].try_into().expect("eight bytes"))
}
