//! Finding the key and the value in a record's file.
//!
//! A record is a protobuf message: field 1 the storage key, field 2 the value, both bytes. The value is found, never
//! read: it is served where it stands. A file may claim anything: no claim is believed beyond the file's end, nothing
//! is allocated for one, and the number of fields looked at is bounded.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use super::storage_key::{MAX_STORAGE_KEY_BYTES, StorageKey};
use super::wire;

/// Number of the field that holds the storage key.
pub(super) const KEY_FIELD: u32 = 1;
/// Number of the field that holds the value.
pub(super) const VALUE_FIELD: u32 = 2;
/// Most fields of a record; Mooncake writes two. Without an end a large file of tiny fields would stall a scan.
const MAX_FIELDS: usize = 1024;
/// Highest field number that protobuf has.
const MAX_FIELD_NUMBER: u64 = (1 << 29) - 1;
/// Bytes read at once: the key and the value's head of all but unusual records.
const WINDOW_BYTES: usize = 512;

/// A stretch of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where it begins, in bytes from the start of the file.
    pub offset: u64,
    /// How long it is. `offset + bytes` is never beyond the end of the file.
    pub bytes: u64,
}

/// What a record's file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key inside: the one word on whose record this is.
    pub storage_key: StorageKey,
    /// Where the value is; 0 bytes at the end of the file when it is empty and has no field.
    pub value: Span,
}

/// Why a file is no record. Offsets are where in the file the field begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The file has no bytes.
    Empty,
    /// No field holds a key, or the last that does is empty: whose it is cannot be told.
    NoKey,
    /// The key is longer than [`MAX_STORAGE_KEY_BYTES`].
    KeyTooLong {
        /// Its length.
        bytes: u64,
    },
    /// The file ends inside a field.
    Cut {
        /// The field's offset; its content's, when the file shrank while it was read.
        at: u64,
    },
    /// A number of more than ten bytes or 64 bits.
    Varint {
        /// The field's offset.
        at: u64,
    },
    /// A field number that protobuf does not have: 0 (as of zeros behind the record), or over 2^29 - 1.
    FieldNumber {
        /// The field's offset.
        at: u64,
    },
    /// Key or value of another type than bytes, or a group or an unknown type in any field.
    WireType {
        /// The field's offset.
        at: u64,
        /// Its number.
        field: u32,
        /// The type that it has.
        wire_type: u8,
    },
    /// More than 1024 fields.
    TooManyFields,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Empty => f.write_str("the file is empty"),
            Malformed::NoKey => f.write_str("no key is in it"),
            Malformed::KeyTooLong { bytes } => {
                write!(f, "its key of {bytes} bytes is longer than {MAX_STORAGE_KEY_BYTES}")
            }
            Malformed::Cut { at } => write!(f, "it ends inside the field at byte {at}"),
            Malformed::Varint { at } => write!(f, "the field at byte {at} has a number that is too long"),
            Malformed::FieldNumber { at } => write!(f, "no field can be what stands at byte {at}"),
            Malformed::WireType { at, field, wire_type } => {
                write!(f, "field {field} at byte {at} is of type {wire_type}")
            }
            Malformed::TooManyFields => write!(f, "it has more than {MAX_FIELDS} fields"),
        }
    }
}

/// Finds key and value in a file, with reads at positions: the file's own offset stays. One read for what Mooncake
/// writes, unless the key is long. The outer error is a failing read, which says nothing of the record.
pub fn locate(file: &fs::File) -> io::Result<Result<Record, Malformed>> {
    let file_bytes = file.metadata()?.len();
    settle(Walk::new(&|buf, at| file.read_at(buf, at), file_bytes).record())
}

/// The same of bytes in memory.
pub fn locate_bytes(bytes: &[u8]) -> Result<Record, Malformed> {
    let read = |buf: &mut [u8], at: u64| {
        let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    };
    match Walk::new(&read, bytes.len() as u64).record() {
        Ok(record) => Ok(record),
        Err(Stop::Malformed(why)) => Err(why),
        Err(Stop::Io(e)) => unreachable!("memory does not fail: {e}"),
    }
}

/// What ends a walk early.
enum Stop {
    Io(io::Error),
    Malformed(Malformed),
}

impl From<Malformed> for Stop {
    fn from(why: Malformed) -> Self {
        Stop::Malformed(why)
    }
}

fn settle(end: Result<Record, Stop>) -> io::Result<Result<Record, Malformed>> {
    match end {
        Ok(record) => Ok(Ok(record)),
        Err(Stop::Malformed(why)) => Ok(Err(why)),
        Err(Stop::Io(e)) => Err(e),
    }
}

type ReadAt<'a> = &'a dyn Fn(&mut [u8], u64) -> io::Result<usize>;

/// One pass over the fields.
struct Walk<'a> {
    read: ReadAt<'a>,
    file_bytes: u64,
    /// Where the next byte is. INVARIANT: at most `file_bytes`.
    at: u64,
    /// Where the field in hand begins.
    field_at: u64,
    window: [u8; WINDOW_BYTES],
    window_at: u64,
    window_bytes: usize,
}

impl<'a> Walk<'a> {
    fn new(read: ReadAt<'a>, file_bytes: u64) -> Self {
        let window = [0; WINDOW_BYTES];
        Walk { read, file_bytes, at: 0, field_at: 0, window, window_at: 0, window_bytes: 0 }
    }

    fn record(mut self) -> Result<Record, Stop> {
        if self.file_bytes == 0 {
            return Err(Malformed::Empty.into());
        }
        let mut key = None;
        let mut value = Span { offset: self.file_bytes, bytes: 0 };
        let mut fields = 0;
        while self.at < self.file_bytes {
            fields += 1;
            if fields > MAX_FIELDS {
                return Err(Malformed::TooManyFields.into());
            }
            self.field_at = self.at;
            let (field, wire_type) = self.tag()?;
            match (field, wire_type) {
                (KEY_FIELD, wire::BYTES) => key = Some(self.bytes()?),
                (VALUE_FIELD, wire::BYTES) => value = self.bytes()?,
                (KEY_FIELD | VALUE_FIELD, _) => return Err(self.wire_type(field, wire_type)),
                (_, wire::VARINT) => {
                    self.varint()?;
                }
                (_, wire::FIXED64) => {
                    self.skip(8)?;
                }
                (_, wire::BYTES) => {
                    self.bytes()?;
                }
                (_, wire::FIXED32) => {
                    self.skip(4)?;
                }
                _ => return Err(self.wire_type(field, wire_type)),
            }
        }
        let key = key.ok_or(Malformed::NoKey)?;
        Ok(Record { storage_key: self.storage_key(key)?, value })
    }

    fn wire_type(&self, field: u32, wire_type: u8) -> Stop {
        Malformed::WireType { at: self.field_at, field, wire_type }.into()
    }

    fn cut(&self) -> Stop {
        Malformed::Cut { at: self.field_at }.into()
    }

    fn tag(&mut self) -> Result<(u32, u8), Stop> {
        let tag = self.varint()?;
        match tag >> 3 {
            number @ 1..=MAX_FIELD_NUMBER => Ok((number as u32, (tag & 7) as u8)),
            _ => Err(Malformed::FieldNumber { at: self.field_at }.into()),
        }
    }

    fn varint(&mut self) -> Result<u64, Stop> {
        let mut varint = wire::Varint::default();
        loop {
            match varint.push(self.byte()?) {
                wire::Step::More => {}
                wire::Step::Done(value) => return Ok(value),
                wire::Step::Overflow => return Err(Malformed::Varint { at: self.field_at }.into()),
            }
        }
    }

    fn bytes(&mut self) -> Result<Span, Stop> {
        let bytes = self.varint()?;
        self.skip(bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<Span, Stop> {
        if bytes > self.file_bytes - self.at {
            return Err(self.cut());
        }
        let span = Span { offset: self.at, bytes };
        self.at += bytes;
        Ok(span)
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        if self.at >= self.file_bytes {
            return Err(self.cut());
        }
        let within = self.at.checked_sub(self.window_at).filter(|n| *n < self.window_bytes as u64);
        let index = match within {
            Some(n) => n as usize,
            None => {
                self.window_bytes = read_some(self.read, &mut self.window, self.at).map_err(Stop::Io)?;
                self.window_at = self.at;
                if self.window_bytes == 0 {
                    // Shorter now than it was when the walk began.
                    return Err(self.cut());
                }
                0
            }
        };
        self.at += 1;
        Ok(self.window[index])
    }

    /// The bytes of a span, when the window holds them all.
    fn in_window(&self, span: Span) -> Option<&[u8]> {
        let start = usize::try_from(span.offset.checked_sub(self.window_at)?).ok()?;
        let end = start.checked_add(usize::try_from(span.bytes).ok()?)?;
        self.window[..self.window_bytes].get(start..end)
    }

    fn storage_key(&self, key: Span) -> Result<StorageKey, Stop> {
        if key.bytes == 0 {
            return Err(Malformed::NoKey.into());
        }
        let too_long = Malformed::KeyTooLong { bytes: key.bytes };
        let length =
            usize::try_from(key.bytes).ok().filter(|n| *n <= MAX_STORAGE_KEY_BYTES).ok_or(too_long)?;
        let mut bytes = vec![0; length];
        if let Some(known) = self.in_window(key) {
            bytes.copy_from_slice(known);
        } else {
            let mut done = 0;
            while done < length {
                match read_some(self.read, &mut bytes[done..], key.offset + done as u64).map_err(Stop::Io)? {
                    0 => return Err(Malformed::Cut { at: key.offset }.into()),
                    n => done += n,
                }
            }
        }
        StorageKey::new(bytes).ok_or_else(|| too_long.into())
    }
}

/// Reads once, again when a signal came first; 0 at the end of the file.
fn read_some(read: ReadAt<'_>, buf: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match read(buf, at) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Walks a file that says it has `file_bytes` and holds `bytes`; also how often it was read.
    fn walk(bytes: &[u8], file_bytes: u64) -> (Result<Record, Malformed>, u32) {
        let reads = Cell::new(0);
        let read = |buf: &mut [u8], at: u64| {
            reads.set(reads.get() + 1);
            let rest = bytes.get(at as usize..).unwrap_or(&[]);
            let n = rest.len().min(buf.len());
            buf[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        };
        let found = settle(Walk::new(&read, file_bytes).record()).unwrap();
        (found, reads.get())
    }

    #[test]
    fn what_mooncake_writes_costs_one_read_whatever_the_value() {
        for value_bytes in [0_u64, 1, 4096, 1 << 40] {
            let key = StorageKey::new(vec![b'k'; 255]).unwrap();
            let head = crate::format::legacy::head(&key, value_bytes);
            let file_bytes = head.len() as u64 + value_bytes;
            let value = Span { offset: head.len() as u64, bytes: value_bytes };
            assert_eq!(walk(&head, file_bytes), (Ok(Record { storage_key: key, value }), 1));
        }
    }

    #[test]
    fn a_file_that_shrinks_meanwhile_is_cut() {
        assert_eq!(walk(b"", 20), (Err(Malformed::Cut { at: 0 }), 1));
        assert_eq!(walk(b"\x0a\x01k", 20).0, Err(Malformed::Cut { at: 3 }));
        assert_eq!(walk(b"\x0a\xbc\x05k", 703).0, Err(Malformed::Cut { at: 3 }));
    }

    #[test]
    fn a_failing_read_is_no_verdict_and_an_interrupted_one_is_tried_again() {
        let calls = Cell::new(0);
        let read = |buf: &mut [u8], _| {
            calls.set(calls.get() + 1);
            if calls.get() == 1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            buf[..3].copy_from_slice(b"\x0a\x01k");
            Ok(3)
        };
        assert!(Walk::new(&read, 3).record().is_ok());
        let read = |_: &mut [u8], _| Err(io::Error::from_raw_os_error(libc::EIO));
        let error = settle(Walk::new(&read, 3).record()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
}
