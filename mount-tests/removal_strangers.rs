//! Paths of a tenant that are not proven to be its own: a tenant's removal refuses, a global one sets them aside.

use std::fs;
use std::path::PathBuf;

use crate::harness::{Mount, each};
use crate::removals::{
    Bystander, Control, assert_counters_equal_the_disk, assert_empty, generation, record_of, remove,
    requests, two_tenants,
};

/// What may stand in A's directory without being A's: a name, how it is planted (`D` is A's epoch directory, `H` a
/// shard of it, `B` a record of B), and its path below `D`.
const STRANGERS: [(&str, &str, &str); 7] = [
    ("a file that is no record", "echo n > $H/notes.txt", "{shard}/notes.txt"),
    (
        "a record name without its attribute",
        "echo n > $H/0123456789abcdef0123456789abcdef",
        "{shard}/0123456789abcdef0123456789abcdef",
    ),
    ("another tenant's record", "mkdir -p $D/${P%/*}; cp -a $B $D/$P", "{foreign}"),
    (
        "a symbolic link",
        "ln -s $W/outside $H/fedcba9876543210fedcba9876543210",
        "{shard}/fedcba9876543210fedcba9876543210",
    ),
    ("a fifo", "mkfifo $H/fifo", "{shard}/fifo"),
    ("a directory that is no shard", "mkdir $D/zz; echo n > $D/zz/f", "zz"),
    ("a link in the place of a shard", "ln -s $W/outdir $D/zz", "zz"),
];

struct Planted {
    at: PathBuf,
}

/// Plants a stranger below A.
#[track_caller]
fn plant(m: &Mount, (what, script, path): (&str, &str, &str)) -> Planted {
    eprintln!("{what}");
    let (ours, foreign) = (record_of(m, "a/k1"), record_of(m, "b/k1"));
    let shard = ours.parent().unwrap().to_owned();
    let epoch = shard.parent().unwrap().parent().unwrap().to_owned();
    let below = foreign.strip_prefix(m.store.join("data/t/b/0")).unwrap().to_owned();
    m.shell(&format!(
        "D={} H={} B={} P={}
         mkdir -p $W/outdir; echo outside > $W/outside; echo in > $W/outdir/f\n{script}",
        epoch.display(),
        shard.display(),
        foreign.display(),
        below.display()
    ))
    .ok();
    let path = path
        .replace("{shard}", shard.strip_prefix(&epoch).unwrap().to_str().unwrap())
        .replace("{foreign}", below.to_str().unwrap());
    Planted { at: epoch.join(path) }
}

/// RFC matrix: "Current backend receives tenant-local cleanup". Invariant: "If the backend cannot prove tenant
/// ownership for every affected path, tenant-local cleanup is explicitly unsupported". Acceptance: "never degrades
/// into a global wipe".
#[test]
fn a_tenant_removal_with_a_stranger_is_unsupported_before_anything_changes() {
    each(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        for stranger in STRANGERS {
            let planted = plant(m, stranger);
            let (before, listed) = (m.status(), requests(m));
            for words in ["tenant=a", "tenant=a id=stranger"] {
                let (errno, reply) = Control::open(m).refused(&format!("remove-all {words}"));
                assert_eq!(errno, libc::EOPNOTSUPP, "{reply}");
                assert_eq!(reply["code"], "UNSUPPORTED_TENANT_LOCAL_CLEANUP", "{reply}");
            }
            // Neither keys nor generations nor requests.
            m.shell("diff -r --no-dereference $W/copy-a $R/a; echo x > $R/a/write; rm $R/a/write").ok();
            assert_eq!(requests(m), listed);
            for same in ["generation", "pending_requests", "keys", "used_bytes", "tenants"] {
                assert_eq!(m.status()[same], before[same], "{same}");
            }
            b.assert_untouched(m);
            assert!(planted.at.symlink_metadata().is_ok(), "the stranger stays");
            fs::rename(&planted.at, m.scratch.join("taken-away")).unwrap();
            m.shell("rm -rf $W/taken-away; [ $(cat $W/outside) = outside ]; [ $(cat $W/outdir/f) = in ]")
                .ok();
        }
        // The stranger away, it works.
        remove(m, "tenant=a id=stranger");
        assert_empty(m, "a");
        b.assert_untouched(m);
        assert_counters_equal_the_disk(m);
    });
}

/// RFC matrix: "Absolute, traversal, symlink, or out-of-root path" and "Unrelated managed-root sibling".
#[test]
fn a_global_removal_keeps_strangers_aside_and_follows_no_link() {
    each(|m| {
        two_tenants(m);
        for stranger in STRANGERS.iter().filter(|(what, ..)| !what.contains("in the place of a shard")) {
            plant(m, *stranger);
        }
        m.shell("ln -s $W/outdir $S/data/t/linked; ln -s /etc $S/data/t/a/1etc").ok();
        remove(m, "scope=global");
        assert_empty(m, "b");
        assert_empty(m, "default");
        let listed: Vec<_> = fs::read_dir(m.mnt.join("a")).unwrap().collect();
        assert!(listed.is_empty(), "{listed:?}");
        m.shell(
            "[ $(cat $W/outside) = outside ]; [ $(cat $W/outdir/f) = in ]; [ -e /etc/passwd ]
             [ $(find $S/data/.quarantine -type p | wc -l) = 1 ]
             [ $(find $S/data/.quarantine -type l | wc -l) -ge 1 ]
             grep -rqx n $S/data/.quarantine
             find $S/data/.quarantine -type f -exec cmp -s {} $W/copy-b/k1 \\; -print | grep -q .
             echo new > $R/a/k1; [ $(cat $R/a/k1) = new ]",
        )
        .ok();
        assert_counters_equal_the_disk(m);
        m.remount();
        m.shell("[ $(cat $R/a/k1) = new ]; [ \"$(ls $R/a)\" = k1 ]; grep -rqx n $S/data/.quarantine").ok();
        assert_counters_equal_the_disk(m);
        // What was set aside is in nobody's way.
        remove(m, "tenant=a");
        assert_empty(m, "a");
    });
}

/// RFC matrix: "Absolute, traversal, symlink, or out-of-root path": names that would lead out.
#[test]
fn names_that_lead_out_are_no_tenants() {
    each(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        for name in ["..", ".", "/", "/etc", "../b", "a/../b", "b/k1", ".staging", ".trash", "a*", ""] {
            let (errno, reply) = Control::open(m).refused(&format!("remove-all tenant={name}"));
            assert_eq!(errno, libc::EINVAL, "{name}: {reply}");
        }
        b.assert_untouched(m);
        m.shell("diff -r --no-dereference $W/copy-a $R/a").ok();
        assert_eq!(m.status_number("generation"), 0);
    });
}

/// A stranger that comes after the request was made, or that a crash left in the trash, is nobody's to delete.
#[test]
fn a_stranger_beside_the_epochs_survives_a_tenant_removal_or_refuses_it() {
    each(|m| {
        two_tenants(m);
        m.shell("echo n > $S/data/t/a/notes").ok();
        let mut control = Control::open(m);
        let sent = control.send("remove-all tenant=a");
        let reply = control.line();
        match sent {
            Ok(()) => {
                let second = control.line();
                assert_eq!(second["state"], "complete", "{second}");
                assert!(generation(&second) > 0);
                assert_empty(m, "a");
            }
            Err(errno) => {
                assert_eq!(errno, libc::EOPNOTSUPP, "{reply}");
                m.shell("diff -r --no-dereference $W/copy-a $R/a").ok();
            }
        }
        m.shell("grep -rqx n $S/data/t/a/notes $S/data/.quarantine; diff -r --no-dereference $W/copy-b $R/b")
            .ok();
    });
}
