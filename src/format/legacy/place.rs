//! Where a storage key's record stands below Mooncake's fsdir, bit for bit.
//!
//! *Legacy*: `<letter>/<letter>/<sanitised storage key>`, where the letters are the low four bits and the next four of
//! libstdc++'s `std::hash<std::string>`. *Canonical*, as Mooncake's RFC proposes: `<hh>/<hh>/<32 hex>`, the XXH3-128 of
//! the storage key. One letter against two digits: no path is of both layouts.

use xxhash_rust::xxh3::xxh3_128;

use crate::key::Digest;

/// Name of the directory that holds the records, below Mooncake's storage directory, unless it is configured.
pub const FSDIR: &str = "file_per_key_dir";
/// Below the fsdir: values that Mooncake is writing in the canonical layout; never records.
pub const STAGING: &str = ".staging";
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

/// The path below the fsdir of `storage_key` in the canonical layout that Mooncake's RFC proposes: `hh/hh/<32 hex>`.
///
/// For `tenant NUL key` these are the digits of fencefs's own digest; a storage key without a tenant hashes as it is.
pub fn canonical_path(storage_key: &[u8]) -> String {
    let hex = digest(storage_key).to_string();
    format!("{}/{}/{hex}", &hex[0..2], &hex[2..4])
}

fn digest(storage_key: &[u8]) -> Digest {
    Digest::from_u128(xxh3_128(storage_key))
}

/// A path of one of the two layouts: what a record there must be named by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// `hh/hh/<32 hex>`.
    Canonical(Digest),
    /// `<letter>/<letter>/<sanitised storage key>`: the whole path.
    Legacy(Box<[u8]>),
}

impl Place {
    /// Parses a path relative to the fsdir; `None` for what neither layout can name.
    pub fn parse(path: &[u8]) -> Option<Place> {
        let mut parts = path.split(|b| *b == b'/');
        let (first, second, name) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        if is_letter(first) && is_letter(second) && fits(name) {
            let sanitised = name.iter().all(|b| sanitise(*b) == *b);
            return sanitised.then(|| Place::Legacy(path.into()));
        }
        let digest = Digest::parse(name)?;
        (first == &name[0..2] && second == &name[2..4]).then_some(Place::Canonical(digest))
    }

    /// Whether the record of `storage_key` belongs here. A record elsewhere is never served, whatever it holds.
    pub fn binds(&self, storage_key: &[u8]) -> bool {
        match self {
            Place::Canonical(name) => digest(storage_key) == *name,
            Place::Legacy(at) => path(storage_key) == **at,
        }
    }
}

fn is_letter(level: &[u8]) -> bool {
    matches!(level, [b'a'..=b'p'])
}

/// Whether a file can have the name that [`path`] ends with: 1 to 255 bytes, and neither `.` nor `..`, which are
/// directories. Mooncake lost the keys where none can; they are absent in this layout, and that is no error.
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
    fn canonical_paths_are_the_digest_of_the_storage_key() {
        for (storage_key, hex) in [
            (&b""[..], "99aa06d3014798d86001c324468d497f"),
            (b"a/b", "354b81d0032a270248f71e9475860604"),
            (b"default\0a/b", "64c719bce58a6a9d621f9888577b399c"),
            (b"tenantA\0shared/key", "723917e8153914d8386c6de1a9d62d78"),
            (b"tenantB\0shared/key", "ed199858de6777948eda9c848922f9f0"),
        ] {
            assert_eq!(canonical_path(storage_key), format!("{}/{}/{hex}", &hex[..2], &hex[2..4]));
        }
    }

    #[test]
    fn a_place_binds_its_own_keys_alone() {
        let legacy = Place::parse(b"a/b/default_c______").unwrap();
        assert!(legacy.binds(b"default\0c::::/_") && legacy.binds(b"default\0c__:___"));
        assert!(!legacy.binds(b"default\0c______") && !legacy.binds(b"tenantA\0c::::/_"));
        let canonical = Place::parse(canonical_path(b"default\0c::::/_").as_bytes()).unwrap();
        assert!(canonical.binds(b"default\0c::::/_") && !canonical.binds(b"default\0c__:___"));
    }

    #[test]
    fn strangers_have_no_place() {
        for ok in [&b"a/p/x"[..], b"64/c7/64c719bce58a6a9d621f9888577b399c", b"a/b/line\nbreak", b"a/b/\xff"]
        {
            assert!(Place::parse(ok).is_some(), "{}", ok.escape_ascii());
        }
        let long = [&b"a/b/"[..], &[b'k'; 256]].concat();
        for bad in [
            &b""[..],
            b"x",
            b"a/b",
            b"a/b/",
            b"a/b/.",
            b"a/b/..",
            b"a/b/c/d",
            b"/a/b/c",
            b"q/a/x",
            b"A/a/x",
            b"aa/a/x",
            b"a/b/c:d",
            b"a/b/c\0d",
            b".staging/a/x",
            b"64/c8/64c719bce58a6a9d621f9888577b399c",
            b"64/c7/64C719BCE58A6A9D621F9888577B399C",
            b"64/c7/64c719bce58a6a9d621f9888577b399",
            &long,
        ] {
            assert_eq!(Place::parse(bad), None, "{}", bad.escape_ascii());
        }
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
