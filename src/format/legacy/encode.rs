//! Writing a record as Mooncake writes it.

use std::io;

use super::storage_key::StorageKey;
use super::wire;

/// What stands before the value of a record of `value_bytes`: the key's field, then the value's tag and length. An
/// empty value has no field.
pub fn head(storage_key: &StorageKey, value_bytes: u64) -> Vec<u8> {
    let key = storage_key.as_bytes();
    let mut out = Vec::with_capacity(2 * (1 + wire::MAX_VARINT_BYTES) + key.len());
    out.push(tag(super::record::KEY_FIELD));
    wire::put_varint(&mut out, key.len() as u64);
    out.extend_from_slice(key);
    if value_bytes > 0 {
        out.push(tag(super::record::VALUE_FIELD));
        wire::put_varint(&mut out, value_bytes);
    }
    out
}

/// Writes a whole record, taking exactly `value_bytes` from `value`. A value that ends before is
/// [`io::ErrorKind::UnexpectedEof`], and what was written by then is no record.
pub fn write(
    out: &mut (impl io::Write + ?Sized),
    storage_key: &StorageKey,
    value: &mut (impl io::Read + ?Sized),
    value_bytes: u64,
) -> io::Result<()> {
    out.write_all(&head(storage_key, value_bytes))?;
    let copied = io::copy(&mut io::Read::take(value, value_bytes), out)?;
    if copied < value_bytes {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the value ends after {copied} of {value_bytes} bytes"),
        ));
    }
    Ok(())
}

fn tag(field: u32) -> u8 {
    ((field << 3) as u8) | wire::BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, &StorageKey::new(key).unwrap(), &mut { value }, value.len() as u64).unwrap();
        out
    }

    #[test]
    fn the_bytes_are_mooncakes() {
        assert_eq!(record(b"default\0a/b", b"hello"), b"\x0a\x0bdefault\0a/b\x12\x05hello");
        assert_eq!(record(b"default\0a/b", b""), b"\x0a\x0bdefault\0a/b");
        let long = record(&[b'k'; 200], &[7; 300]);
        assert_eq!(long[..3], *b"\x0a\xc8\x01");
        assert_eq!(long[203..206], *b"\x12\xac\x02");
        assert_eq!(long.len(), 506);
    }

    #[test]
    fn a_value_that_ends_early_is_an_error_and_more_is_left_alone() {
        let key = StorageKey::new(&b"k"[..]).unwrap();
        let short = write(&mut Vec::new(), &key, &mut &b"abc"[..], 4).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        let (mut out, mut value) = (Vec::new(), &b"abcdef"[..]);
        write(&mut out, &key, &mut value, 4).unwrap();
        assert_eq!((out.as_slice(), value), (&b"\x0a\x01k\x12\x04abcd"[..], &b"ef"[..]));
    }

    #[test]
    fn lengths_over_4_gib_are_spelled_out() {
        let key = StorageKey::new(&b"k"[..]).unwrap();
        assert_eq!(head(&key, 5 << 30), b"\x0a\x01k\x12\x80\x80\x80\x80\x14");
        assert_eq!(head(&key, u64::MAX).len(), 3 + 1 + 10);
    }
}
