//! What a removal takes and what it leaves: the scope, the other tenants, readers, epochs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Mount, each, fencefs, wait_until};
use crate::removals::{
    Bystander, Control, OWNER, PATIENCE, assert_counters_equal_the_disk, assert_empty, each_evicting, epoch,
    generation, is_empty_dir, query, remove, requests, tenant, two_tenants, wait_complete,
};

/// Owner, group and mode of a directory.
fn owner(m: &Mount, name: &str) -> (u32, u32, u32) {
    let meta = fs::metadata(m.mnt.join(name)).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

/// RFC matrix: "Tenant A clear with A and B sharing an SSD backend"; "Eviction enabled and disabled". Timeline:
/// "Tenant-scoped removal deletes another tenant's SSD data".
#[test]
fn a_tenant_removal_leaves_the_other_tenant_its_files_and_accounting() {
    each_evicting(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let generation = remove(m, "tenant=a");
        assert_empty(m, "a");
        b.assert_untouched(m);
        assert_counters_equal_the_disk(m);
        assert_eq!((epoch(m, "a"), epoch(m, "b")), (generation, 0));
        // The directory is A's as before, and takes writes.
        assert_eq!(owner(m, "a"), (OWNER, OWNER, 0o750));
        assert_eq!(tenant(m, "a")["quota_bytes"], 40 << 20);
        assert_eq!(tenant(m, "a")["state"], "ready");
        m.shell("mkdir -p $R/a/deep/er; echo new > $R/a/deep/er/k1; [ $(cat $R/a/deep/er/k1) = new ]").ok();
        m.remount();
        b.assert_untouched(m);
        m.shell("[ $(cat $R/a/deep/er/k1) = new ]; [ ! -e $R/a/k1 ]").ok();
        assert_eq!((owner(m, "a"), epoch(m, "a")), ((OWNER, OWNER, 0o750), generation));
        assert_eq!(tenant(m, "a")["quota_bytes"], 40 << 20);
        assert_counters_equal_the_disk(m);
    });
}

/// RFC matrix: "Eviction enabled and disabled", the global scope; "Unrelated managed-root sibling".
#[test]
fn a_global_removal_empties_every_tenant_and_keeps_what_is_beside() {
    each_evicting(|m| {
        two_tenants(m);
        m.shell(
            "echo x > $M/k; mkdir $R/none
             echo beside > $S/beside; mkdir $S/besidedir; echo f > $S/besidedir/f
             echo sibling > $S/../sibling; echo inside > $S/data/inside",
        )
        .ok();
        let number = remove(m, "scope=global");
        for name in ["a", "b", "default", "none"] {
            assert_empty(m, name);
            assert_eq!(epoch(m, name), number, "{name}");
        }
        assert_eq!(owner(m, "a"), (OWNER, OWNER, 0o750));
        assert_eq!(tenant(m, "b")["quota_bytes"], 48 << 20);
        assert_counters_equal_the_disk(m);
        assert_eq!((m.status_number("used_bytes"), m.status_number("keys")), (0, 0));
        m.shell(
            "[ \"$(ls $R | tr '\\n' ' ')\" = 'a b default none ' ]
             for t in a b default none; do echo new > $R/$t/k; [ $(cat $R/$t/k) = new ]; done",
        )
        .ok();
        m.remount();
        m.shell(
            "for t in a b default none; do [ $(cat $R/$t/k) = new ]; [ ! -e $R/$t/k1 ]; done
             [ $(cat $S/beside) = beside ]; [ $(cat $S/besidedir/f) = f ]
             [ $(cat $S/../sibling) = sibling ]; [ $(cat $S/data/inside) = inside ]",
        )
        .ok();
    });
}

/// Issue, "apply": kernel caches are invalidated; a removed key is ENOENT at once for whoever knew it.
#[test]
fn removed_keys_are_gone_through_caches_working_directories_and_listings() {
    each(|m| {
        two_tenants(m);
        let (mut cached, mut inside, mut top) = (m.peer(), m.peer(), m.peer());
        let names = "['k1', 'k12', 'link', 'empty', 'deep', 'deep/er', 'deep/er/k1']";
        cached.run(&format!("[os.lstat(R + '/a/' + n) for n in {names}] and None"));
        cached.run("listed = os.listdir(R + '/a'), os.listdir(R + '/a/deep/er')");
        cached.run("dir = os.open(R + '/a/deep', os.O_RDONLY | os.O_DIRECTORY)");
        inside.run("os.chdir(R + '/a/deep/er'); os.stat('k1'); os.listdir('.')");
        top.run("os.chdir(R + '/a'); os.stat('k1'); os.stat('deep/er/k1')");
        remove(m, "tenant=a");
        for name in ["k1", "k12", "link", "empty", "deep", "deep/er", "deep/er/k1"] {
            assert_eq!(cached.error(&format!("os.lstat(R + '/a/{name}')")), "ENOENT", "{name}");
        }
        assert_eq!(cached.error("os.open(R + '/a/k1', os.O_RDONLY)"), "ENOENT");
        assert_eq!(cached.run("os.listdir(R + '/a')"), serde_json::json!([]));
        assert_eq!(cached.error("os.open('er/k1', os.O_RDONLY, dir_fd=dir)"), "ENOENT");
        // Who stands in a directory that is gone finds nothing there and can bring nothing back.
        for step in ["os.stat('k1')", "os.open('k1', os.O_RDONLY)"] {
            assert_eq!(inside.error(step), "ENOENT", "{step}");
        }
        for step in ["write('new', b'x')", "os.mkdir('d')", "os.rename('k1', 'k2')", "os.symlink('x', 's')"] {
            let errno = inside.error(step);
            assert!(["ENOENT", "ESTALE"].contains(&errno.as_str()), "{step}: {errno}");
        }
        let listed = inside.outcome("assert os.listdir('.') == []");
        assert!(["ok", "ENOENT", "ESTALE"].contains(&listed.as_str()), "{listed}");
        assert_empty(m, "a");
        // The tenant's own directory is the same one.
        assert_eq!(top.error("os.stat('deep/er/k1')"), "ENOENT");
        top.run("write('k1', b'again'); os.makedirs('deep/er'); write('deep/er/k1', b'again')");
        m.shell("[ $(cat $R/a/k1) = again ]; [ $(cat $R/a/deep/er/k1) = again ]").ok();
    });
}

/// Issue, "apply": open readers of removed keys finish.
#[test]
fn readers_of_removed_keys_go_on_and_cannot_open_again() {
    each(|m| {
        two_tenants(m);
        let (mut a, mut b) = (m.peer(), m.peer());
        a.run("fd = os.open(R + '/a/k12', os.O_RDONLY); x = mmap.mmap(fd, 0, prot=mmap.PROT_READ); os.read(fd, 100)");
        a.run("unread = os.open(R + '/a/deep/er/k6', os.O_RDONLY)");
        b.run("os.stat(R + '/a/k12')");
        remove(m, "tenant=a");
        assert_eq!(a.run("os.pread(fd, 1 << 20, 0) == read(W + '/copy-a/k12')"), true);
        assert_eq!(a.run("x[:] == read(W + '/copy-a/k12')"), true);
        assert_eq!(a.run("os.pread(unread, 1 << 20, 0) == read(W + '/copy-a/deep/er/k6')"), true);
        assert_eq!(a.int("os.fstat(fd).st_size"), 36000);
        for peer in [&mut a, &mut b] {
            assert_eq!(peer.error("os.stat(R + '/a/k12')"), "ENOENT");
            assert_eq!(peer.error("os.open(R + '/a/k12', os.O_RDONLY)"), "ENOENT");
        }
        let again = a.error("os.open('/proc/self/fd/%d' % fd, os.O_RDONLY)");
        assert!(["ENOENT", "ESTALE"].contains(&again.as_str()), "{again}");
        m.shell("echo again > $R/a/k12; [ $(cat $R/a/k12) = again ]").ok();
        assert_eq!(a.run("os.pread(fd, 1 << 20, 0) == read(W + '/copy-a/k12')"), true);
        a.run("x.close(); os.close(fd); os.close(unread)");
        m.shell("[ $(cat $R/a/k12) = again ]").ok();
        assert_counters_equal_the_disk(m);
    });
}

/// RFC matrix: "Tenant request followed by global request". Invariant: "Global and tenant generations have a defined
/// order".
#[test]
fn generations_are_one_rising_sequence_and_global_dominates() {
    each(|m| {
        two_tenants(m);
        let first = remove(m, "tenant=a");
        assert_eq!((epoch(m, "a"), epoch(m, "b"), epoch(m, "default")), (first, 0, 0));
        m.shell("echo x > $R/a/k").ok();
        let global = remove(m, "scope=global");
        assert!(global > first);
        for name in ["a", "b", "default"] {
            assert_eq!(epoch(m, name), global);
            assert_empty(m, name);
        }
        // A later removal of a tenant is not implied by the earlier global one.
        m.shell("echo x > $R/a/k; echo x > $R/b/k").ok();
        let later = remove(m, "tenant=a");
        assert!(later > global);
        assert_eq!((epoch(m, "a"), epoch(m, "b")), (later, global));
        assert_empty(m, "a");
        m.shell("[ $(cat $R/b/k) = x ]").ok();
        assert_eq!(m.status_number("generation"), later);
        let numbers: Vec<u64> = requests(m).iter().map(generation).collect();
        assert_eq!(numbers, [first, global, later]);
    });
}

/// RFC matrix: the same row, with both on their way at once.
#[test]
fn a_tenant_and_a_global_request_sent_together_are_both_complete() {
    each(|m| {
        two_tenants(m);
        let (mut one, mut two) = (Control::open(m), Control::open(m));
        let first = generation(&one.ask("remove-all tenant=a id=t"));
        let second = generation(&two.ask("remove-all scope=global id=g"));
        let third = generation(&two.ask("remove-all tenant=b id=b"));
        assert!(first < second && second < third, "{first} {second} {third}");
        for (id, number) in [("t", first), ("g", second), ("b", third)] {
            assert_eq!(generation(&wait_complete(m, &format!("id={id}"))), number);
        }
        assert_empty(m, "a");
        assert_empty(m, "b");
        assert_eq!((epoch(m, "a"), epoch(m, "b"), epoch(m, "default")), (second, third, second));
        assert_eq!(m.status_number("pending_requests"), 0);
        assert_counters_equal_the_disk(m);
    });
}

/// Invariant: "Polling is non-destructive and idempotent", for the submission: a repeated request id.
#[test]
fn the_same_id_again_removes_nothing_new() {
    each(|m| {
        two_tenants(m);
        let first = remove(m, "tenant=a id=r1");
        m.shell("echo after > $R/a/k").ok();
        let again = Control::open(m).ask("remove-all tenant=a id=r1");
        assert_eq!((generation(&again), again["state"].as_str()), (first, Some("complete")));
        m.shell("[ $(cat $R/a/k) = after ]").ok();
        for other in ["tenant=b id=r1", "scope=global id=r1"] {
            let (errno, reply) = Control::open(m).refused(&format!("remove-all {other}"));
            assert_eq!(errno, libc::EINVAL, "{other}: {reply}");
        }
        m.remount();
        let again = Control::open(m).ask("remove-all tenant=a id=r1");
        assert_eq!(generation(&again), first);
        m.shell("[ $(cat $R/a/k) = after ]; diff -r --no-dereference $W/copy-b $R/b").ok();
        assert_eq!((epoch(m, "a"), m.status_number("generation")), (first, first));
    });
}

/// Issue 7: `mode=logical` is an operation of its own, never reported as physical.
#[test]
fn a_logical_removal_hides_at_once_and_says_what_it_is() {
    each_evicting(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let mut peer = m.peer();
        peer.run("os.stat(R + '/a/k1'); fd = os.open(R + '/a/k12', os.O_RDONLY)");
        let mut control = Control::open(m);
        let done = control.remove("tenant=a mode=logical");
        assert_eq!(done["mode"], "logical", "{done}");
        assert_eq!(peer.error("os.stat(R + '/a/k1')"), "ENOENT");
        assert_eq!(peer.run("os.listdir(R + '/a')"), serde_json::json!([]));
        assert_eq!(peer.run("os.pread(fd, 1 << 20, 0) == read(W + '/copy-a/k12')"), true);
        let number = generation(&done);
        assert_eq!(query(m, &format!("generation={number}"))["mode"], "logical");
        assert_eq!(requests(m).last().unwrap()["mode"], "logical");
        assert_eq!(epoch(m, "a"), number);
        m.shell("echo new > $R/a/k1; [ $(cat $R/a/k1) = new ]").ok();
        // The bytes follow.
        assert!(wait_until(PATIENCE, || is_empty_dir(&m.store.join("data/.trash"))));
        assert_counters_equal_the_disk(m);
        b.assert_untouched(m);
        let physical = Control::open(m).remove("tenant=a");
        assert_eq!(physical["mode"], "physical", "{physical}");
        for words in ["scope=global mode=logical", "scope=global mode=physical", "tenant=a mode=half"] {
            assert_eq!(Control::open(m).refused(&format!("remove-all {words}")).0, libc::EINVAL, "{words}");
        }
        assert_eq!(m.status_number("generation"), generation(&physical));
    });
}

/// Acceptance: "Successful ACK means the exact requested scope is physically and internally empty".
#[test]
fn an_acknowledged_physical_removal_has_left_the_disk() {
    each_evicting(|m| {
        two_tenants(m);
        fencefs_pin(m);
        remove(m, "tenant=a");
        // With the second line read, not a moment later.
        assert!(is_empty_dir(&m.store.join("data/.trash")), "trash is left");
        assert_empty(m, "a");
        assert_eq!(m.status_number("pinned_bytes"), 0);
        let names: Vec<_> =
            fs::read_dir(m.store.join("data/t/a")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [epoch(m, "a").to_string().as_str()]);
    });
}

/// A pin keeps eviction away, not a removal.
#[track_caller]
fn fencefs_pin(m: &Mount) {
    crate::harness::fencefs(["pin".into(), m.mnt.join("a/k1")]).ok();
}

/// Others use the store without a pause: the removal gets through all the same.
#[test]
fn a_removal_ends_while_others_never_rest() {
    each(|m| {
        two_tenants(m);
        m.shell("mkdir -p $R/a/many; for i in $(seq 600); do echo v > $R/a/many/$i; done").ok();
        let (stop, key) = (AtomicBool::new(false), m.mnt.join("b/busy"));
        let m = &*m;
        std::thread::scope(|scope| {
            let puts = scope.spawn(|| {
                let mut puts = 0;
                while !stop.load(Ordering::Relaxed) {
                    fs::write(&key, "again").unwrap();
                    puts += 1;
                }
                puts
            });
            let mnt = m.mnt.to_str().unwrap();
            let removed = fencefs(["remove-all", mnt, "--tenant", "a", "--timeout", "60s"]);
            stop.store(true, Ordering::Relaxed);
            removed.ok();
            assert!(puts.join().unwrap() > 0);
        });
        assert_empty(m, "a");
    });
}
