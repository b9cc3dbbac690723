//! Mooncake's file-per-key path of a storage key, bit for bit.
//!
//! `<letter>/<letter>/<sanitised storage key>`, where the letters are the low four bits and the next four of libstdc++'s
//! `std::hash<std::string>`. Released masters have stored these paths, so nothing here ever changes. Two keys can
//! share a path: what a file there holds is known only from the key inside it.

/// The longest name that Linux filesystems carry.
pub const MAX_NAME_BYTES: usize = 255;

/// The seed that libstdc++ hashes strings with.
const SEED: u64 = 0xc70f_6907;

/// The path below Mooncake's fsdir of `storage_key` (`tenant NUL key`); always three components.
pub fn path(storage_key: &[u8]) -> Vec<u8> {
    let hash = hash_bytes(storage_key);
    let mut path = vec![letter(hash), b'/', letter(hash >> 4), b'/'];
    path.extend(storage_key.iter().map(|b| sanitise(*b)));
    path
}

/// Whether a file can have the name that [`path`] ends with; Mooncake lost the keys where none can.
pub fn fits(storage_key: &[u8]) -> bool {
    (1..=MAX_NAME_BYTES).contains(&storage_key.len()) && storage_key != b"." && storage_key != b".."
}

fn letter(hash: u64) -> u8 {
    b'a' + (hash & 0xf) as u8
}

fn sanitise(byte: u8) -> u8 {
    match byte {
        b'/' | b'\\' | b':' | b'*' | b'?' | b'"' | b'<' | b'>' | b'|' | 0 => b'_',
        other => other,
    }
}

/// libstdc++'s `_Hash_bytes` on 64-bit little-endian machines: a variant of MurmurHash64A.
fn hash_bytes(bytes: &[u8]) -> u64 {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    let shift_mix = |v: u64| v ^ (v >> 47);
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(MUL);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let data = shift_mix(u64::from_le_bytes(*word).wrapping_mul(MUL)).wrapping_mul(MUL);
        hash = (hash ^ data).wrapping_mul(MUL);
    }
    if !tail.is_empty() {
        let data = tail.iter().rev().fold(0_u64, |acc, b| (acc << 8) | u64::from(*b));
        hash = (hash ^ data).wrapping_mul(MUL);
    }
    hash = shift_mix(hash).wrapping_mul(MUL);
    shift_mix(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the released program wrote: storage key, path.
    const VECTORS: &[(&[u8], &[u8])] = &[
        (b"default\x00a/b", b"j/p/default_a_b"),
        (b"default\x00plain", b"g/h/default_plain"),
        (b"default\x00with space", b"j/i/default_with space"),
        (b"default\x00dots.in.name", b"e/j/default_dots.in.name"),
        (b"default\x00.", b"e/m/default_."),
        (b"default\x00..", b"k/g/default_.."),
        (b"default\x00.hidden", b"p/a/default_.hidden"),
        (b"default\x00../../etc/passwd", b"f/e/default_.._.._etc_passwd"),
        (b"default\x00/abs/path", b"j/m/default__abs_path"),
        (b"default\x00trailing/", b"k/c/default_trailing_"),
        (b"default\x00//double//slash", b"i/o/default___double__slash"),
        (b"default\x00a:b*c?d\"e<f>g|h\\i", b"j/n/default_a_b_c_d_e_f_g_h_i"),
        (b"default\x00unicode-\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87-\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e-\xf0\x9f\xa6\x80", b"h/g/default_unicode-\xd0\xba\xd0\xbb\xd1\x8e\xd1\x87-\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e-\xf0\x9f\xa6\x80"),
        (b"default\x00line\nbreak\ttab", b"o/o/default_line\nbreak\ttab"),
        (b"default\x00size-1", b"d/f/default_size-1"),
        (b"default\x00size-127", b"e/c/default_size-127"),
        (b"default\x00size-128", b"f/e/default_size-128"),
        (b"default\x00size-300", b"j/h/default_size-300"),
        (b"default\x00size-16383", b"k/i/default_size-16383"),
        (b"default\x00size-16384", b"h/k/default_size-16384"),
        (b"default\x00size-70000", b"e/h/default_size-70000"),
        (b"default\x00size-1MiB", b"e/i/default_size-1MiB"),
        (b"default\x00bin-\x00-nul", b"o/k/default_bin-_-nul"),
    ];

    #[test]
    fn paths_are_mooncakes() {
        for (storage_key, expected) in VECTORS {
            assert_eq!(
                path(storage_key).escape_ascii().to_string(),
                expected.escape_ascii().to_string(),
                "{}",
                storage_key.escape_ascii()
            );
        }
    }

    #[test]
    fn long_keys_have_mooncakes_letters_and_no_file() {
        for (letters, byte, count) in
            [(b"p/g/", b'k', 200), (b"l/o/", b'k', 247), (b"b/g/", b'k', 248), (b"e/l/", b'K', 300)]
        {
            let mut key = b"default\0".to_vec();
            key.resize(8 + count, byte);
            assert!(path(&key).starts_with(letters), "{count}");
            assert_eq!(path(&key).len(), 4 + key.len());
            assert_eq!(fits(&key), key.len() <= 255);
        }
    }

    #[test]
    fn two_keys_may_share_a_path() {
        assert_eq!(path(b"default\0c::::/_"), b"a/b/default_c______");
        assert_eq!(path(b"default\0c__:___"), b"a/b/default_c______");
    }

    #[test]
    fn no_name_escapes_its_directory() {
        for key in [&b""[..], b"..", b"/..", b"../x"] {
            assert_eq!(path(key).iter().filter(|b| **b == b'/').count(), 2);
        }
        for key in [&b""[..], b".", b".."] {
            assert!(!fits(key));
        }
    }
}
