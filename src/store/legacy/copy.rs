//! What a value of a Mooncake directory brings along into a record of the store: its bytes, its owner and mode.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::config::limits;
use crate::error::{Error, Result};
use crate::format::legacy::Span;
use crate::os::{self, Attr};
use crate::store::Store;
use crate::store::content::Passing;
use crate::store::writer::Owner;

/// Permission bits that a value keeps.
const MODE_BITS: u32 = 0o777;

impl Store {
    /// Owner and mode here of what has them there. Only root gives files away.
    pub(in crate::store) fn owner_here(&self, attr: &Attr) -> Owner {
        let may_give = self.daemon_uid == 0;
        let (uid, gid) = if may_give { (attr.uid, attr.gid) } else { (self.daemon_uid, self.daemon_gid) };
        Owner { mode: attr.mode & MODE_BITS, uid, gid }
    }
}

/// Copies a stretch of a file to the beginning of another one, past `passing`, if there is a checksum in the making;
/// false where the file ends before. The two may be on different filesystems.
pub(in crate::store) fn copy_span(
    from: &File,
    span: Span,
    to: &File,
    passing: Option<&Passing>,
) -> Result<bool> {
    let mut done = 0;
    // The kernel copies by itself where it can, unless the bytes must pass by for their checksum.
    while passing.is_none() && done < span.bytes {
        let rest = (span.bytes - done).min(1 << 30) as usize;
        match os::copy_range(from, span.offset + done, to, done, rest) {
            Ok(0) => return Ok(false),
            Ok(n) => done += n as u64,
            Err(e) if cannot_copy(&e) => break,
            Err(e) => return Err(e),
        }
    }
    let mut buffer = vec![0; (span.bytes - done).min(limits::SUM_BUFFER_BYTES as u64) as usize];
    while done < span.bytes {
        let most = (span.bytes - done).min(buffer.len() as u64) as usize;
        let n = match from.read_at(&mut buffer[..most], span.offset + done) {
            Ok(0) => return Ok(false),
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Error::os("cannot read a legacy record", e)),
        };
        if let Some(passing) = passing {
            passing.passed(done, &buffer[..n]);
        }
        let written = to.write_all_at(&buffer[..n], done);
        written.map_err(|e| Error::os("cannot copy a legacy record into the store", e))?;
        done += n as u64;
    }
    Ok(true)
}

/// Whether the kernel cannot copy between these two files by itself.
fn cannot_copy(e: &Error) -> bool {
    matches!(e.errno(), libc::EXDEV | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::EPERM)
}
