//! Percent-encoded key names: any key as one directory entry below `by-key`.
//!
//! RFC 3986 unreserved bytes stay, every other byte is `%XX` in upper case. The spelling is canonical: a key has
//! one name and a name has one key, so a directory of such names never shows an entry twice. The keys `.` and
//! `..` are the one exception to "unreserved stays": as names they would be the directory and its parent, so
//! their dots are escaped. The empty key encodes to the empty string, which no directory entry can be.

const HEX: &[u8; 16] = b"0123456789ABCDEF";

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// The name of a key.
pub fn encode(key: &[u8]) -> String {
    let dots = key == b"." || key == b"..";
    let mut name = String::with_capacity(key.len());
    for &byte in key {
        if is_unreserved(byte) && !dots {
            name.push(char::from(byte));
        } else {
            name.push('%');
            name.push(char::from(HEX[usize::from(byte >> 4)]));
            name.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    name
}

/// The key of a name, or `None` where the name is not exactly what [`encode`] makes of a key: a lower-case
/// escape, an escaped byte that should stay, a bare byte that should be escaped, a cut escape.
pub fn decode(name: &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let (&[high, low], tail) = tail.split_first_chunk::<2>()?;
            key.push((hex_digit(high)? << 4) | hex_digit(low)?);
            rest = tail;
        } else {
            key.push(byte);
            rest = tail;
        }
    }
    (encode(&key).as_bytes() == name).then_some(key)
}

fn hex_digit(digit: u8) -> Option<u8> {
    HEX.iter().position(|h| *h == digit).and_then(|at| u8::try_from(at).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_rfc_3986() {
        let unreserved = b"ABCXYZabcxyz0189-._~";
        assert_eq!(encode(unreserved).as_bytes(), unreserved);
        assert_eq!(encode(b"a/b c"), "a%2Fb%20c");
        assert_eq!(encode(b"100%"), "100%25");
        assert_eq!(encode(b"\0\x7f\xff"), "%00%7F%FF");
        assert_eq!(encode("\u{e9}".as_bytes()), "%C3%A9");
        assert_eq!(encode(b"/lead//"), "%2Flead%2F%2F");
        assert_eq!(encode(b""), "");
    }

    #[test]
    fn dot_names_are_escaped_because_directories_own_them() {
        assert_eq!(encode(b"."), "%2E");
        assert_eq!(encode(b".."), "%2E%2E");
        assert_eq!(encode(b"..."), "...");
        assert_eq!(encode(b"./a"), ".%2Fa");
        assert_eq!(decode(b"%2E%2E"), Some(b"..".to_vec()));
        assert_eq!(decode(b"."), None);
        assert_eq!(decode(b".."), None);
        assert_eq!(decode(b".%2E"), None);
    }

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=u8::MAX {
            for key in [vec![byte], vec![b'a', byte], vec![byte, byte]] {
                assert_eq!(decode(encode(&key).as_bytes()), Some(key.clone()), "{key:?}");
            }
        }
        assert_eq!(decode(b""), Some(Vec::new()));
    }

    #[test]
    fn only_the_canonical_spelling_is_a_name() {
        for bad in
            ["a%2fb", "%41", "%7E", "a/b", "a b", "%", "%2", "a%", "%G0", "%%25", "%+1", "\u{e9}", "\0"]
        {
            assert_eq!(decode(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(decode(b"\xff"), None);
    }
}
