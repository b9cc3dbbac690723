//! (tests) Random records and random damage, against a second reader that is written another way.

use crate::format::legacy::{Place, StorageKey};
use crate::format::legacy::{canonical_path, fits, head, locate_bytes, path, write};
use crate::random::Random;

impl Random {
    fn up_to(&mut self, most: usize) -> Vec<u8> {
        let n = self.below(most + 1);
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// Bytes that a reader of records is likely to stumble over.
    fn nasty(&mut self) -> u8 {
        const NASTY: [u8; 12] = [0, 1, 2, 0x0a, 0x12, 0x0b, 0x1a, 0x7f, 0x80, 0x81, 0xfe, 0xff];
        NASTY[self.below(NASTY.len())]
    }

    fn record(&mut self) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let most = [4, 40, 700][self.below(3)];
        let (mut key, value) = (self.up_to(most), self.up_to(most));
        key.push(b'k');
        let mut bytes = Vec::new();
        write(&mut bytes, &StorageKey::new(&key[..]).unwrap(), &mut &value[..], value.len() as u64).unwrap();
        (key, value, bytes)
    }
}

/// The second reader: whole slices, wide numbers, no positions. `None` for anything that is not a record.
fn second_reader(bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    fn number(rest: &mut &[u8]) -> Option<u128> {
        let end = rest.iter().take(10).position(|b| b & 0x80 == 0)?;
        let (groups, tail) = rest.split_at(end + 1);
        *rest = tail;
        let value = groups.iter().rev().fold(0_u128, |acc, b| (acc << 7) | u128::from(b & 0x7f));
        (value <= u128::from(u64::MAX)).then_some(value)
    }
    fn take<'a>(rest: &mut &'a [u8], n: u128) -> Option<&'a [u8]> {
        let (head, tail) = rest.split_at_checked(usize::try_from(n).ok()?)?;
        *rest = tail;
        Some(head)
    }
    let (mut rest, mut key, mut value, mut fields) = (bytes, &b""[..], &b""[..], 0);
    while !rest.is_empty() {
        fields += 1;
        let tag = number(&mut rest)?;
        if tag < 8 || tag > u128::from(u32::MAX) || fields > 1024 {
            return None;
        }
        let content = match tag % 8 {
            0 => number(&mut rest).map(|_| &b""[..])?,
            1 => take(&mut rest, 8)?,
            2 => {
                let n = number(&mut rest)?;
                take(&mut rest, n)?
            }
            5 => take(&mut rest, 4)?,
            _ => return None,
        };
        match (tag / 8, tag % 8) {
            (1, 2) => key = content,
            (2, 2) => value = content,
            (1 | 2, _) => return None,
            _ => {}
        }
    }
    (!key.is_empty() && key.len() <= 3328).then(|| (key.to_vec(), value.to_vec()))
}

/// The first reader in the second's terms.
fn first_reader(bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let record = locate_bytes(bytes).ok()?;
    let (start, n) = (record.value.offset as usize, record.value.bytes as usize);
    Some((record.storage_key.as_bytes().to_vec(), bytes[start..start + n].to_vec()))
}

#[test]
fn what_is_written_is_found() {
    let mut numbers = Random(1);
    for round in 0..4000 {
        let (key, value, bytes) = numbers.record();
        assert_eq!(first_reader(&bytes), Some((key.clone(), value.clone())), "round {round}");
        let start = head(&StorageKey::new(key).unwrap(), value.len() as u64);
        assert_eq!(bytes, [start, value].concat(), "round {round}");
    }
}

#[test]
fn damage_is_never_a_panic_and_never_another_reading() {
    let mut numbers = Random(2);
    let mut refused = 0;
    for round in 0..60_000 {
        let (_, _, mut bytes) = numbers.record();
        for _ in 0..=numbers.below(3) {
            // Half of the damage falls on the few bytes that are not content.
            let reach = if numbers.below(2) == 0 { bytes.len().min(8) } else { bytes.len() };
            let at = numbers.below(reach.max(1)).min(bytes.len());
            match numbers.below(6) {
                0 => bytes.truncate(at),
                1 => bytes.extend(numbers.up_to(12)),
                2 => bytes.insert(at, numbers.nasty()),
                3 if at < bytes.len() => drop(bytes.remove(at)),
                4 if at < bytes.len() => bytes[at] = numbers.nasty(),
                _ if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
                _ => {}
            }
        }
        let expected = second_reader(&bytes);
        refused += usize::from(expected.is_none());
        assert_eq!(first_reader(&bytes), expected, "round {round}: {}", bytes.escape_ascii());
    }
    assert!((5_000..55_000).contains(&refused), "{refused} refused: the damage is too mild or too wild");
}

#[test]
fn noise_is_never_a_panic_and_never_another_reading() {
    let mut numbers = Random(3);
    let mut read = 0;
    for round in 0..200_000 {
        let n = numbers.below(24);
        let bytes: Vec<u8> = (0..n)
            .map(|_| if numbers.below(3) == 0 { numbers.next() as u8 } else { numbers.nasty() })
            .collect();
        let expected = second_reader(&bytes);
        read += usize::from(expected.is_some());
        assert_eq!(first_reader(&bytes), expected, "round {round}: {}", bytes.escape_ascii());
    }
    assert!(read > 50, "{read} read: the noise is too wild");
}

#[test]
fn every_short_record_of_the_awkward_bytes_is_read_alike() {
    const BYTES: [u8; 8] = [0, 1, 2, 0x0a, 0x12, 0x18, 0x80, 0x8a];
    for length in 0..=6_u32 {
        for n in 0..8_u32.pow(length) {
            let bytes: Vec<u8> = (0..length).map(|i| BYTES[(n >> (3 * i)) as usize % 8]).collect();
            assert_eq!(first_reader(&bytes), second_reader(&bytes), "{}", bytes.escape_ascii());
        }
    }
}

#[test]
fn every_path_is_a_place_that_binds_its_key() {
    let mut numbers = Random(4);
    for round in 0..20_000 {
        let most = [3, 20, 300][numbers.below(3)];
        let key = numbers.up_to(most);
        let canonical = Place::parse(canonical_path(&key).as_bytes());
        assert!(canonical.is_some_and(|place| place.binds(&key)), "round {round}");
        let legacy = Place::parse(&path(&key));
        assert_eq!(legacy.is_some(), fits(&key), "round {round}: {}", key.escape_ascii());
        assert!(legacy.is_none_or(|place| place.binds(&key)), "round {round}");
    }
}
