//! (tests) Each kind of odd or damaged record has one defined result.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use crate::format::legacy::{MAX_STORAGE_KEY_BYTES, Malformed, Record, Span, StorageKey};
use crate::format::legacy::{head, locate, locate_bytes};

const HELLO: &[u8] = b"\x0a\x0bdefault\0a/b\x12\x05hello";

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// What a file with these bytes holds; a file and memory must agree.
fn found(bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Malformed> {
    let in_memory = locate_bytes(bytes);
    assert_eq!(locate(&file(bytes)).unwrap(), in_memory);
    in_memory.map(|Record { storage_key, value: Span { offset, bytes: n } }| {
        let value = &bytes[offset as usize..(offset + n) as usize];
        (storage_key.as_bytes().to_vec(), value.to_vec())
    })
}

fn good(bytes: &[u8], key: &[u8], value: &[u8]) {
    assert_eq!(found(bytes), Ok((key.to_vec(), value.to_vec())), "{}", bytes.escape_ascii());
}

fn bad(bytes: &[u8], why: Malformed) {
    assert_eq!(found(bytes), Err(why), "{}", bytes.escape_ascii());
}

#[test]
fn what_mooncake_writes() {
    good(HELLO, b"default\0a/b", b"hello");
    assert_eq!(locate_bytes(HELLO).unwrap().value, Span { offset: 15, bytes: 5 });
    good(b"\x0a\x01k", b"k", b"");
    assert_eq!(locate_bytes(b"\x0a\x01k").unwrap().value, Span { offset: 3, bytes: 0 });
}

#[test]
fn fields_come_in_any_order() {
    good(b"\x12\x05hello\x0a\x01k", b"k", b"hello");
    good(b"\x12\x00\x0a\x01k", b"k", b"");
}

#[test]
fn of_a_repeated_field_the_last_counts() {
    good(b"\x0a\x01a\x12\x01x\x0a\x01b\x12\x02yz", b"b", b"yz");
    good(b"\x0a\x01k\x12\x01x\x12\x00", b"k", b"");
    bad(b"\x0a\x01k\x0a\x00", Malformed::NoKey);
    let long = [b"\x0a\x88\x27".to_vec(), vec![b'l'; 5000]].concat();
    good(&[&long[..], b"\x0a\x01k"].concat(), b"k", b"");
    bad(&[b"\x0a\x01k", &long[..]].concat(), Malformed::KeyTooLong { bytes: 5000 });
}

#[test]
fn unknown_fields_are_skipped() {
    for unknown in
        [&b"\x18\xff\x01"[..], b"\x19abcdefgh", b"\x1a\x03abc", b"\x1dabcd", b"\xfa\xff\xff\xff\x0f\x01z"]
    {
        good(&[unknown, HELLO].concat(), b"default\0a/b", b"hello");
        good(&[HELLO, unknown].concat(), b"default\0a/b", b"hello");
        good(&[b"\x0a\x01k", unknown, b"\x12\x01v"].concat(), b"k", b"v");
        for n in 1..unknown.len() {
            bad(&[HELLO, &unknown[..n]].concat(), Malformed::Cut { at: HELLO.len() as u64 });
        }
    }
}

#[test]
fn a_known_field_of_another_type_is_refused() {
    for (tag, field) in
        [(0x08_u8, 1), (0x09, 1), (0x0b, 1), (0x0c, 1), (0x0d, 1), (0x0e, 1), (0x10, 2), (0x17, 2)]
    {
        bad(&[tag; 9], Malformed::WireType { at: 0, field, wire_type: tag & 7 });
    }
    let at = HELLO.len() as u64;
    bad(&[HELLO, b"\x10\x00"].concat(), Malformed::WireType { at, field: 2, wire_type: 0 });
}

#[test]
fn groups_and_unknown_types_are_refused_in_any_field() {
    for wire_type in [3_u8, 4, 6, 7] {
        bad(&[0x18 | wire_type, 0x0a, 1, b'k'], Malformed::WireType { at: 0, field: 3, wire_type });
    }
}

#[test]
fn field_numbers_that_protobuf_does_not_have_are_refused() {
    bad(&[HELLO, &[0; 64]].concat(), Malformed::FieldNumber { at: HELLO.len() as u64 });
    bad(b"\x02\x01k", Malformed::FieldNumber { at: 0 });
    bad(b"\x82\x80\x80\x80\x10\x01k", Malformed::FieldNumber { at: 0 });
    // Field 1 once only the low 32 bits of its tag are looked at.
    bad(b"\x8a\x80\x80\x80\x10\x01k", Malformed::FieldNumber { at: 0 });
}

#[test]
fn every_cut_is_seen() {
    for n in 1..HELLO.len() {
        match n {
            13 => good(&HELLO[..n], b"default\0a/b", b""),
            1..13 => bad(&HELLO[..n], Malformed::Cut { at: 0 }),
            _ => bad(&HELLO[..n], Malformed::Cut { at: 13 }),
        }
    }
}

#[test]
fn an_empty_file_and_a_file_without_a_key_are_told_apart() {
    bad(b"", Malformed::Empty);
    bad(b"\x12\x05hello", Malformed::NoKey);
    bad(b"\x0a\x00", Malformed::NoKey);
}

#[test]
fn padded_numbers_are_read_as_protobuf_reads_them() {
    good(b"\x8a\x00\x81\x80\x00k\x92\x80\x80\x00\x82\x00vw", b"k", b"vw");
    good(b"\x0a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00k", b"k", b"");
    bad(b"\x0a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00k", Malformed::Varint { at: 0 });
    bad(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02k", Malformed::Varint { at: 0 });
}

#[test]
fn lengths_are_believed_up_to_the_end_of_the_file() {
    for claim in [b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00"] {
        bad(&[b"\x0a", &claim[..], b"k"].concat(), Malformed::Cut { at: 0 });
        bad(&[b"\x0a\x01k\x12", &claim[..], b"v"].concat(), Malformed::Cut { at: 3 });
        bad(&[b"\x0a\x01k\x1a", &claim[..], b"v"].concat(), Malformed::Cut { at: 3 });
    }
    bad(b"\x0a\x01k\x12\x80\x80\x80\x80\x14v", Malformed::Cut { at: 3 });
}

#[test]
fn keys_of_every_length_up_to_the_limit_are_read() {
    for n in [1, 127, 128, 490, 509, 510, 511, 512, 513, MAX_STORAGE_KEY_BYTES] {
        let key = StorageKey::new((0..n).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
        let bytes = [head(&key, 3), b"abc".to_vec()].concat();
        good(&bytes, key.as_bytes(), b"abc");
    }
    let over = MAX_STORAGE_KEY_BYTES as u64 + 1;
    let bytes = [b"\x0a\x81\x1a".to_vec(), vec![b'k'; over as usize]].concat();
    bad(&bytes, Malformed::KeyTooLong { bytes: over });
}

#[test]
fn the_number_of_fields_is_bounded() {
    let tiny = b"\x18\x00".repeat(1022);
    good(&[b"\x0a\x01k", &tiny[..], b"\x12\x01v"].concat(), b"k", b"v");
    bad(&[b"\x0a\x01k", &tiny[..], b"\x12\x01v\x18\x00"].concat(), Malformed::TooManyFields);
}

#[test]
fn values_over_4_gib_are_found_and_not_read() {
    let key = StorageKey::new(&b"default\0big"[..]).unwrap();
    let value_bytes = (5_u64 << 30) + 7;
    let start = head(&key, value_bytes);
    let file = file(&start);
    let end = start.len() as u64 + value_bytes;
    file.set_len(end).unwrap();
    file.write_all_at(b"last", end - 4).unwrap();
    let value = Span { offset: start.len() as u64, bytes: value_bytes };
    let record = Record { storage_key: key.clone(), value };
    assert_eq!(locate(&file).unwrap(), Ok(record.clone()));

    file.set_len(end - 1).unwrap();
    assert_eq!(locate(&file).unwrap(), Err(Malformed::Cut { at: start.len() as u64 - 6 }));

    // Fields behind the value are found across it.
    file.set_len(end).unwrap();
    file.write_all_at(b"\x0a\x05other", end).unwrap();
    let other = StorageKey::new(&b"other"[..]).unwrap();
    assert_eq!(locate(&file).unwrap(), Ok(Record { storage_key: other, ..record }));
}

#[test]
fn a_key_over_4_gib_is_refused_unread() {
    let file = file(b"\x0a\x80\x80\x80\x80\x14");
    file.set_len(6 + (5 << 30)).unwrap();
    assert_eq!(locate(&file).unwrap(), Err(Malformed::KeyTooLong { bytes: 5 << 30 }));
}

#[test]
fn an_unreadable_file_is_an_error_and_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let error = locate(&File::open(dir.path()).unwrap()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
}

#[test]
fn the_offset_of_the_file_stays() {
    let mut file = file(HELLO);
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(15)).unwrap();
    locate(&file).unwrap().unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "hello");
}
