//! Time to live: a key is gone for everybody at its deadline, also for the kernel's memory of it, and deleted soon after.

use std::fs::{self, File};
use std::io::Read;
#[cfg(feature = "failpoints")]
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

#[cfg(feature = "failpoints")]
use rustix::fs::fsetxattr;
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;

#[cfg(feature = "failpoints")]
use crate::harness::{Builder, each_with};
use crate::harness::{Mount, each, fencefs, run, wait_until};

const TTL: &str = "user.fencefs.ttl";
/// How long a deletion may take that nobody waits for.
const SOON: Duration = Duration::from_secs(2);

fn get(path: &Path) -> Result<String, Errno> {
    let mut value = [0; 64];
    let length = getxattr(path, TTL, &mut value[..])?;
    Ok(String::from_utf8(value[..length].to_vec()).unwrap())
}

fn set(path: &Path, value: &str) -> Result<(), Errno> {
    setxattr(path, TTL, value.as_bytes(), XattrFlags::empty())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn expired(m: &Mount) -> u64 {
    m.status()["evictions"]["expired"].as_u64().unwrap()
}

fn changed(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

/// Asks for a path all the time, so that the kernel remembers it until the last moment: it is there before the deadline,
/// and not after.
#[track_caller]
fn gone_at(path: &Path, deadline: SystemTime) {
    let gone = wait_until(Duration::from_secs(20), || {
        let before = SystemTime::now();
        let is_there = path.exists();
        let after = SystemTime::now();
        assert!(is_there || after >= deadline, "gone {:?} too early", deadline.duration_since(after));
        assert!(!is_there || before < deadline, "there {:?} too late", before.duration_since(deadline));
        !is_there
    });
    assert!(gone);
    assert_eq!(File::open(path).unwrap_err().raw_os_error(), Some(Errno::NOENT.raw_os_error()));
}

#[test]
fn a_keys_own_time() {
    each(|m| {
        let k = m.key("k");
        fs::write(&k, b"value").unwrap();
        assert_eq!(get(&k), Err(Errno::NODATA));
        for bad in ["", "1s", "-1", "+1", "1.5", "18446744073709551616"] {
            assert_eq!(set(&k, bad), Err(Errno::INVAL), "{bad}");
        }
        fs::create_dir(m.key("dir")).unwrap();
        assert_eq!(set(&m.key("dir"), "1"), Err(Errno::ISDIR));
        assert_eq!(get(&m.key("dir")), Err(Errno::NODATA));
        set(&k, "3600").unwrap();
        assert_eq!(get(&k).unwrap(), "3600");
        assert_eq!(listxattr(&k, &mut [0_u8; 64][..]), Ok(0), "it is told to who asks, and not listed");
        set(&k, "0").unwrap();
        assert_eq!(get(&k), Err(Errno::NODATA));
        set(&k, "18446744073709551615").unwrap();
        removexattr(&k, TTL).unwrap();
        assert_eq!(removexattr(&k, TTL), Err(Errno::NODATA));
        // The kernel was told to remember it for a day.
        let mut reader = File::open(&k).unwrap();
        assert!(names(&m.keys()).contains(&"k".to_owned()));
        set(&k, "2").unwrap();
        gone_at(&k, changed(&k) + Duration::from_secs(2));
        let by_key = m.mnt.join("default/.fencefs/by-key/k");
        assert!(!by_key.exists());
        assert!(wait_until(SOON, || expired(m) == 1 && m.status_number("keys") == 0), "{}", m.status());
        assert_eq!(names(&m.keys()), ["dir"]);
        let mut value = String::new();
        reader.read_to_string(&mut value).unwrap();
        assert_eq!((value.as_str(), reader.metadata().unwrap().len()), ("value", 5));
        // Its name is free, and what is made there lives for ever.
        File::create_new(&k).unwrap();
        assert_eq!(get(&k), Err(Errno::NODATA));
    });
}

#[test]
fn a_tenants_time() {
    each(|m| {
        let mnt = m.mnt.clone();
        let quota = |args: &[&str]| fencefs(["quota", mnt.to_str().unwrap()].iter().chain(args));
        fs::write(m.key("before"), b"1").unwrap();
        fs::create_dir(m.mnt.join("other")).unwrap();
        fs::write(m.mnt.join("other/k"), b"1").unwrap();
        assert!(m.key("before").exists() && names(&m.keys()) == ["before"]);
        let shown = quota(&["--tenant", "default", "--ttl", "2s"]).ok();
        assert!(shown.starts_with("tenant default: no quota, keys live 2 s, "), "{shown}");
        let tenants = m.status()["tenants"].clone();
        assert_eq!((&tenants[0]["ttl_seconds"], &tenants[1]["ttl_seconds"]), (&2.into(), &Value::Null));
        m.shell("echo 2 > $M/after; ln -s nowhere $M/link; mkdir $M/dir; echo 3 > $M/dir/k").ok();
        let deadline = changed(&m.key("after")) + Duration::from_secs(2);
        assert_eq!(m.control("quota tenant=default").1["ttl_seconds"], 2);
        gone_at(&m.key("after"), deadline);
        assert!(!m.key("before").exists());
        assert!(wait_until(SOON, || expired(m) == 4), "{}", m.status());
        assert_eq!((names(&m.keys()), names(&m.key("dir")).len()), (vec!["dir".to_owned()], 0));
        assert!(m.mnt.join("other/k").exists());
        let metrics = fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
        for line in [
            "fencefs_tenant_ttl_seconds{tenant=\"default\"} 2\n",
            "fencefs_tenant_ttl_seconds{tenant=\"other\"} 0\n",
            "fencefs_evictions_total{reason=\"expired\"} 4\n",
        ] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
        assert_eq!(m.control("quota tenant=default ttl=none").1["ttl_seconds"], Value::Null);
        m.shell("echo 4 > $M/k; touch -d '1 hour ago' $M/k; cat $M/k > $W/out").ok();
        for (line, says) in
            [("quota ttl=1h", "tenant=NAME"), ("quota tenant=default ttl=1500ms", "whole seconds")]
        {
            let (done, reply) = m.control(line);
            assert_eq!(done, Err(Errno::INVAL.raw_os_error()), "{line}");
            assert!(reply["message"].as_str().unwrap().contains(says), "{reply}");
        }
        assert_eq!(quota(&["--ttl", "1h"]).failed().0, 2);
    });
}

/// Before the first close; and who keeps it: a value that is overwritten, not one that is renamed into place.
#[test]
fn a_time_that_is_set_while_the_value_is_written() {
    each(|m| {
        m.python(
            "import os
M = os.environ['M']
fd = os.open(M + '/k', os.O_CREAT | os.O_WRONLY)
os.setxattr(fd, 'user.fencefs.ttl', b'3600')
assert os.getxattr(fd, 'user.fencefs.ttl') == b'3600'
os.write(fd, b'one')
os.close(fd)
assert os.getxattr(M + '/k', 'user.fencefs.ttl') == b'3600'
with open(M + '/k', 'w') as f: f.write('two')
assert os.getxattr(M + '/k', 'user.fencefs.ttl') == b'3600'
os.rename(M + '/k', M + '/moved')
assert os.getxattr(M + '/moved', 'user.fencefs.ttl') == b'3600'
with open(M + '/new', 'w') as f: f.write('three')
os.rename(M + '/new', M + '/moved')
try: os.getxattr(M + '/moved', 'user.fencefs.ttl'); assert False
except OSError as e: assert e.errno == 61, e
",
        )
        .ok();
    });
}

#[test]
fn what_is_touched_lives_on_and_what_is_aged_does_not() {
    each(|m| {
        fs::write(m.key("k"), b"v").unwrap();
        set(&m.key("k"), "600").unwrap();
        m.shell("touch -d '9 minutes ago' $M/k; touch $M/k; cat $M/k > $W/out").ok();
        m.shell("touch -d '9 minutes ago' $M/k; echo more >> $M/k").ok();
        assert!(changed(&m.key("k")).elapsed().unwrap_or_default() < Duration::from_secs(100));
        setxattr(m.key("k"), "user.fencefs.pin", b"1", XattrFlags::empty()).unwrap();
        m.shell("touch -d '1 hour ago' $M/k; cat $M/k > $W/out").ok();
        assert_eq!(expired(m), 0);
        setxattr(m.key("k"), "user.fencefs.pin", b"0", XattrFlags::empty()).unwrap();
        assert!(wait_until(SOON, || expired(m) == 1 && !m.key("k").exists()), "{}", m.status());
    });
}

/// The keeper fails, and nobody finds the key all the same.
#[test]
fn a_key_that_cannot_be_deleted_is_gone_all_the_same() {
    each(|m| {
        let (k, chattr) =
            (m.key("k"), |flag: &str, file: &Path| run(Command::new("chattr").arg(flag).arg(file)));
        m.shell("echo v > $M/k; echo v > $M/l").ok();
        set(&k, "2").unwrap();
        let record = m.record_of("k");
        if !chattr("+i", &record).status.success() {
            return eprintln!("skipped: chattr +i needs a filesystem that knows it");
        }
        gone_at(&k, changed(&k) + Duration::from_secs(2));
        m.shell("[ ! -e $M/k ]; [ ! -e $R/default/.fencefs/by-key/k ]; ! cat $M/k").ok();
        assert!(wait_until(SOON, || names(&m.keys()) == ["l"]), "{:?}", names(&m.keys()));
        assert!(wait_until(SOON, || m.status_number("eviction_errors") > 0));
        assert_eq!((expired(m), m.status_number("keys")), (0, 2), "it occupies the disk");
        chattr("-i", &record).ok();
        assert!(wait_until(Duration::from_secs(15), || expired(m) == 1), "it is tried again");
    });
}

/// With a checkpoint, which says nothing of it, and without. While the store is stopped, time passes.
#[test]
fn a_restart_forgets_no_time() {
    each(|m| {
        for clean in [true, false] {
            m.shell("for k in old own young; do echo v > $M/$k; done; mkdir -p $R/t; echo v > $R/t/own").ok();
            set(&m.key("own"), "60").unwrap();
            set(&m.mnt.join("t/own"), "60").unwrap();
            assert_eq!(m.control("quota tenant=default ttl=1h").0, Ok(()));
            let records = [m.record_of("old"), m.record_of("own")];
            if clean {
                m.umount();
            } else {
                m.kill();
            }
            let past = SystemTime::now() - Duration::from_secs(7200);
            for record in records {
                File::options().write(true).open(record).unwrap().set_modified(past).unwrap();
            }
            m.mount();
            assert!(!m.key("old").exists() && !m.key("own").exists(), "clean {clean}");
            assert_eq!(names(&m.keys()), ["young"], "clean {clean}");
            assert_eq!(get(&m.mnt.join("t/own")).unwrap(), "60");
            assert!(wait_until(SOON, || expired(m) == 2 && m.status_number("keys") == 2), "{}", m.status());
            assert_eq!(m.control("quota tenant=default").1["ttl_seconds"], 3600);
        }
    });
}

/// A close that is publishing the value just now: what is set meanwhile counts, whichever was first. Nobody looks at the
/// key, which would tell of it.
#[cfg(feature = "failpoints")]
#[test]
fn a_time_and_a_pin_that_are_set_during_the_publication() {
    let settings = |b: Builder| {
        // The close waits in the pool, after the value is in place.
        b.arg("--durability").arg("fsync").env("FAILPOINTS", "publish.renamed=sleep(1000)")
    };
    each_with(settings, |m| {
        let set_while_closing = |name: &str, attribute: &str| {
            let before = m.records().len();
            let file = File::create(m.key(name)).unwrap();
            (&file).write_all(b"value").unwrap();
            let closing = file.try_clone().unwrap();
            let close = std::thread::spawn(move || drop(closing));
            assert!(wait_until(SOON, || m.records().len() > before));
            fsetxattr(&file, attribute, b"1", XattrFlags::empty()).unwrap();
            close.join().unwrap();
        };
        set_while_closing("mortal", TTL);
        assert!(wait_until(Duration::from_secs(10), || expired(m) == 1), "{}", m.status());
        set_while_closing("pinned", "user.fencefs.pin");
        assert!(m.status_number("pinned_bytes") > 0);
        assert_eq!(m.control("evict to=0").0, Ok(()));
        assert_eq!(names(&m.keys()), ["pinned"]);
    });
}
