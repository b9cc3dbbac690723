//! Who holds a mount: a scan of /proc for descriptors, directories, programs and mappings on its device.
//!
//! Nothing here asks the mounted filesystem: one that hangs must not hang the answer.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};

/// Most holders that a message names.
const MAX_NAMED: usize = 8;

/// A process with something of the mount in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    /// Its id.
    pub(super) pid: u32,
    name: String,
}

/// The processes that hold something on `device`, by pid. Those of other users may be out of sight.
pub(super) fn of(device: (u32, u32)) -> Vec<Holder> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut holders: Vec<Holder> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let process = entry.path();
            holds(&process, device).then(|| Holder { pid, name: name(&process) })
        })
        .collect();
    holders.sort_by_key(|holder| holder.pid);
    holders
}

/// `812 (bash), 900 (python3) and 3 more`.
pub(super) fn describe(holders: &[Holder]) -> String {
    let named: Vec<String> =
        holders.iter().take(MAX_NAMED).map(|h| format!("{} ({})", h.pid, h.name)).collect();
    let more = holders.len() - named.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("pid {}{rest}", named.join(", "))
}

fn holds(process: &Path, device: (u32, u32)) -> bool {
    let mut places: Vec<PathBuf> = ["cwd", "root", "exe"].iter().map(|place| process.join(place)).collect();
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten();
    places.extend(descriptors.filter_map(|fd| fd.ok()).map(|fd| fd.path()));
    places.iter().any(|place| on_device(place, device)) || maps(process, device)
}

fn on_device(place: &Path, device: (u32, u32)) -> bool {
    let found = rustix::fs::statx(CWD, place, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    found.is_ok_and(|stat| (stat.stx_dev_major, stat.stx_dev_minor) == device)
}

fn maps(process: &Path, device: (u32, u32)) -> bool {
    let wanted = format!("{:02x}:{:02x}", device.0, device.1);
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    maps.split(|b| *b == b'\n').any(|line| line.split(|b| *b == b' ').nth(3) == Some(wanted.as_bytes()))
}

fn name(process: &Path) -> String {
    let comm = fs::read(process.join("comm")).unwrap_or_default();
    let name: String = String::from_utf8_lossy(&comm).chars().filter(|c| !c.is_control()).collect();
    if name.is_empty() { "?".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_its_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("f")).unwrap();
        let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE).unwrap();
        let held = of((stat.stx_dev_major, stat.stx_dev_minor));
        assert!(held.iter().any(|h| h.pid == std::process::id()), "{held:?}");
        assert!(of((0xfff, 0xfffff)).is_empty());
    }

    #[test]
    fn a_message_names_some() {
        let holder = |pid| Holder { pid, name: "sh".into() };
        assert_eq!(describe(&[holder(1), holder(2)]), "pid 1 (sh), 2 (sh)");
        let many: Vec<Holder> = (0..10).map(holder).collect();
        assert!(describe(&many).ends_with("7 (sh) and 2 more"));
    }
}
