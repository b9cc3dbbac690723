//! Extended attributes: the user's own last; what fencefs tells about a key can be read and not set.

use std::fs;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::harness::{each, fencefs};

fn get(path: &Path, name: &str) -> Result<String, Errno> {
    let mut value = vec![0; 8192];
    let length = getxattr(path, name, &mut value[..])?;
    Ok(String::from_utf8(value[..length].to_vec()).unwrap())
}

fn list(path: &Path) -> Vec<String> {
    let mut names = vec![0; 8192];
    let length = listxattr(path, &mut names[..]).unwrap();
    let text = String::from_utf8(names[..length].to_vec()).unwrap();
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn the_users_own_last() {
    each(|m| {
        fs::write(m.key("k"), b"v").unwrap();
        let k = m.key("k");
        setxattr(&k, "user.mine", b"one", XattrFlags::CREATE).unwrap();
        setxattr(&k, "user.other", b"two", XattrFlags::empty()).unwrap();
        assert_eq!(setxattr(&k, "user.mine", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(setxattr(&k, "user.none", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
        m.remount();
        assert_eq!(get(&k, "user.mine").unwrap(), "one");
        let mut names = list(&k);
        names.sort();
        assert_eq!(names, ["user.mine", "user.other"]);
        removexattr(&k, "user.other").unwrap();
        assert_eq!(get(&k, "user.other"), Err(Errno::NODATA));
        m.shell("mv $M/k $M/k2").ok();
        assert_eq!(get(&m.key("k2"), "user.mine").unwrap(), "one");
    });
}

#[test]
fn what_fencefs_tells_is_read_only_and_unlisted() {
    each(|m| {
        fs::create_dir(m.key("a")).unwrap();
        fs::write(m.key("a/b"), b"v").unwrap();
        let k = m.key("a/b");
        assert_eq!(get(&k, "user.fencefs.digest").unwrap(), "64c719bce58a6a9d621f9888577b399c");
        assert_eq!(get(&k, "user.fencefs.tenant").unwrap(), "default");
        assert_eq!(get(&k, "user.fencefs.epoch").unwrap(), "0");
        assert!(
            get(&k, "user.fencefs.path")
                .unwrap()
                .ends_with("t/default/0/64/c7/64c719bce58a6a9d621f9888577b399c")
        );
        assert_eq!(fs::read(m.record_of("a/b")).unwrap(), b"v");
        for name in ["digest", "tenant", "epoch", "path"] {
            let name = format!("user.fencefs.{name}");
            assert_eq!(setxattr(&k, &name, b"1", XattrFlags::empty()), Err(Errno::PERM), "{name}");
            assert_eq!(removexattr(&k, &name), Err(Errno::PERM), "{name}");
        }
        // The record's own attribute is nobody's to see or set.
        assert!(get(&k, "user.fencefs").is_err());
        assert!(setxattr(&k, "user.fencefs", b"1", XattrFlags::empty()).is_err());
        assert_eq!(list(&k), [""; 0]);
        m.shell("cp -a $M/a/b $W/copy; tar --xattrs -C $M -cf $W/out.tar a").ok();
    });
}

#[test]
fn pins_by_attribute_and_by_command() {
    each(|m| {
        fs::write(m.key("k"), b"v").unwrap();
        let k = m.key("k");
        setxattr(&k, "user.fencefs.pin", b"1", XattrFlags::empty()).unwrap();
        assert_eq!(get(&k, "user.fencefs.pin").unwrap(), "1");
        m.remount();
        assert_eq!(get(&k, "user.fencefs.pin").unwrap(), "1");
        fencefs(["unpin".as_ref(), k.as_os_str()]).ok();
        assert_ne!(get(&k, "user.fencefs.pin").as_deref(), Ok("1"));
        fencefs(["pin".as_ref(), k.as_os_str()]).ok();
        assert_eq!(get(&k, "user.fencefs.pin").unwrap(), "1");
        setxattr(&k, "user.fencefs.pin", b"0", XattrFlags::empty()).unwrap();
        assert_ne!(get(&k, "user.fencefs.pin").as_deref(), Ok("1"));
        assert_eq!(setxattr(&k, "user.fencefs.pin", b"yes", XattrFlags::empty()), Err(Errno::INVAL));
        assert_eq!(list(&k), [""; 0]);
    });
}
