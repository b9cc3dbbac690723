//! `/proc/self/mountinfo`: what is mounted where, without asking any filesystem (a dead one would not answer).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The filesystem type of our mounts.
pub(super) const FSTYPE: &str = "fuse.fencefs";

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// Device: major and minor number.
    pub(super) device: (u32, u32),
    /// Where it is mounted.
    pub(super) mountpoint: PathBuf,
    /// Its type, for instance `fuse.fencefs`.
    pub(super) fstype: String,
    /// Its source; of our mounts, the canonical path of the store.
    pub(super) source: PathBuf,
}

impl MountEntry {
    /// Whether it is one of ours.
    pub(super) fn is_fencefs(&self) -> bool {
        self.fstype == FSTYPE
    }
}

/// Every mount that this process can see, in the order of mounting.
pub(super) fn read() -> Result<Vec<MountEntry>> {
    let text = std::fs::read("/proc/self/mountinfo")
        .map_err(|e| Error::os("cannot list the mounts in /proc/self/mountinfo", e))?;
    Ok(parse(&text))
}

/// The mount that is seen at this very path: the last one there.
pub(super) fn topmost<'a>(mounts: &'a [MountEntry], mountpoint: &Path) -> Option<&'a MountEntry> {
    mounts.iter().rev().find(|m| m.mountpoint == mountpoint)
}

/// Parses mountinfo; a line that is not understood is left out, since it cannot be one of ours.
pub(super) fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAG...] - FSTYPE SOURCE SUPER_OPTIONS`.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|b| *b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let mountpoint = fields.nth(1)?;
    let mut rest = fields.skip_while(|field| *field != b"-");
    rest.next()?;
    let fstype = unescape(rest.next()?);
    let source = rest.next()?;
    Some(MountEntry {
        device: (major.parse().ok()?, minor.parse().ok()?),
        mountpoint: OsString::from_vec(unescape(mountpoint)).into(),
        fstype: String::from_utf8(fstype).ok()?,
        source: OsString::from_vec(unescape(source)).into(),
    })
}

/// Takes back the kernel's `\ooo` for space, tab, newline, backslash and `#`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                out.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 27 0:21 / /proc rw,nosuid shared:12 - proc proc rw
27 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
90 27 0:63 / /mnt/with\\040space\\134x rw,nosuid shared:1 master:2 - fuse.fencefs /srv/my\\040store rw,user_id=0
91 27 0:64 / /mnt/a rw - fuse.fencefs /srv/a rw
92 91 0:65 / /mnt/a rw - tmpfs  rw
nonsense
93 27 0:x / /bad rw - tmpfs none rw
94 27 0:66 / /no-dash rw
";

    #[test]
    fn lines_parse() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 5);
        assert_eq!(
            mounts[2],
            MountEntry {
                device: (0, 63),
                mountpoint: "/mnt/with space\\x".into(),
                fstype: FSTYPE.into(),
                source: "/srv/my store".into(),
            }
        );
        assert!(mounts[2].is_fencefs());
        assert_eq!(mounts[4].source, PathBuf::new());
    }

    #[test]
    fn the_last_mount_covers_the_others() {
        let mounts = parse(TEXT);
        assert_eq!(topmost(&mounts, Path::new("/mnt/a")).unwrap().fstype, "tmpfs");
        assert_eq!(topmost(&mounts, Path::new("/mnt")), None);
    }

    #[test]
    fn escapes_end_where_they_end() {
        assert_eq!(unescape(b"a\\011b\\0x\\777\\04"), b"a\tb\\0x\\777\\04");
        assert_eq!(unescape(b"\\"), b"\\");
        assert_eq!(unescape(b"\\377"), b"\xff");
    }

    #[test]
    fn this_machine_has_mounts() {
        assert!(read().unwrap().iter().any(|m| m.mountpoint == Path::new("/")));
    }
}
