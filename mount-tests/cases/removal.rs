//! Cases on clears, and on tenants that share a store.

use std::fs;

use serde_json::Value;

use crate::cases::{PATIENCE, case, case_with, let_others_in, make_tenants, python, shell};
use crate::harness::{Mount, wait_until};
use crate::removals::{
    Bystander, Control, OTHER, OWNER, Stuck, assert_counters_equal_the_disk, assert_empty, generation, query,
    remove, requests, tenant, two_tenants, wait_complete,
};

#[test]
fn u040_a_tenants_clear_is_that_tenants() {
    case(|m| {
        two_tenants(m);
        let bystander = Bystander::look(m);
        let usage = shell(m, "du -sB1 $TB | cut -f1; find $TB | sort").ok();
        let held = tenant(m, "a");
        let end = Control::open(m).remove("tenant=a");
        assert_empty(m, "a");
        bystander.assert_untouched(m);
        assert_eq!(shell(m, "du -sB1 $TB | cut -f1; find $TB | sort").ok(), usage);
        assert_eq!(
            (&end["scope"], &end["tenant"], &end["generation"]),
            (&"tenant".into(), &"a".into(), &1.into())
        );
        // Its keys, and the two directories that it made.
        let deleted = held["keys"].as_u64().unwrap() + 2;
        assert_eq!(end["deleted_records"], deleted, "{end}");
        assert_eq!(query(m, "generation=1")["deleted_records"], deleted);
    });
}

/// The daemon dies right after it took the request, with everything still to be done.
#[test]
fn u041_a_request_outlives_whoever_dies() {
    case(|m| {
        make_tenants(m);
        python(m, "for i in range(3000): write(TA + '/z%d' % i, b'')\nfor i in range(50): write(TB + '/k%d' % i, b'b')").ok();
        // Whoever asks is killed too: it writes, and its daemon is gone before it can read the answer.
        let mut client = m.peer();
        client.run("fd = os.open(R + '/.fencefs/control', os.O_RDWR)");
        client.run("os.write(fd, b'remove-all tenant=a id=r1') and None");
        m.kill();
        client.kill();
        m.mount();
        // Until it is acknowledged, nothing old is seen and nothing new gets in.
        assert_eq!(fs::read_dir(m.mnt.join("a")).unwrap().count(), 0);
        let end = wait_complete(m, "id=r1");
        assert_eq!((&end["tenant"], generation(&end)), (&"a".into(), 1));
        assert_empty(m, "a");
        shell(m, "[ $(ls $TB | wc -l) = 50 ]; echo new > $TA/z1; [ $(cat $TA/z1) = new ]").ok();
        // The same id again is the same request, and takes nothing new.
        let again = Control::open(m).ask("remove-all tenant=a id=r1");
        assert_eq!(generation(&again), 1);
        shell(m, "[ $(cat $TA/z1) = new ]").ok();
        assert_counters_equal_the_disk(m);
    });
}

#[test]
fn u043_a_write_from_before_the_clear_never_commits() {
    case(|m| {
        make_tenants(m);
        for rename in [true, false] {
            for late in ["os.write(fd, b'late')", "None"] {
                let mut a = m.peer();
                a.run("fd = os.open(R + '/a/w.tmp', os.O_CREAT | os.O_WRONLY); os.write(fd, b'old' * 1000)");
                remove(m, "tenant=a");
                let refused = [a.outcome(late), a.outcome("os.close(fd)")];
                assert!(refused.contains(&"ESTALE".to_owned()), "{refused:?}");
                assert!(refused.iter().all(|e| e == "ok" || e == "ESTALE"), "{refused:?}");
                if rename {
                    assert_eq!(a.error("os.rename(R + '/a/w.tmp', R + '/a/w')"), "ENOENT");
                }
                assert_empty(m, "a");
                a.run("write(R + '/a/w', b'fresh')");
                assert_eq!(a.text("read(R + '/a/w')"), "fresh");
            }
        }
        // The rename before the close.
        let mut a = m.peer();
        a.run("fd = os.open(R + '/a/w.tmp', os.O_CREAT | os.O_WRONLY); os.write(fd, b'old')");
        remove(m, "tenant=a");
        assert!(["ENOENT", "ESTALE"].contains(&a.error("os.rename(R + '/a/w.tmp', R + '/a/w')").as_str()));
        assert_eq!(a.error("os.close(fd)"), "ESTALE");
        assert_empty(m, "a");
    });
}

#[test]
fn u044_no_acknowledgement_while_anything_remains() {
    case(|m| {
        make_tenants(m);
        shell(m, "for i in $(seq 20); do echo $i > $TA/k$i; done; head -c 1M /dev/zero > $TA/stuck").ok();
        let held = tenant(m, "a");
        let Some(mut stuck) = Stuck::new(m, "a/stuck") else { return };
        let mut control = Control::open(m);
        control.ask("remove-all tenant=a");
        let end = control.line();
        assert_eq!(
            (&end["ok"], &end["state"], &end["generation"]),
            (&false.into(), &"failed".into(), &1.into())
        );
        // One is left, and is named.
        let message = end["message"].as_str().unwrap();
        assert!(message.contains("cannot remove") && end["deleted_records"].as_u64() <= Some(20), "{end}");
        // Out of sight, and counted as before.
        assert_eq!(fs::read_dir(m.mnt.join("a")).unwrap().count(), 0);
        let status = tenant(m, "a");
        assert_eq!((&status["keys"], &status["bytes"]), (&held["keys"], &held["bytes"]), "{status}");
        let status = m.status();
        assert!(["failed", "removing"].contains(&status["state"].as_str().unwrap()), "{status}");
        assert_eq!(status["pending_requests"], 1);
        let request = &requests(m)[0];
        assert!(
            request["acked"].as_array().unwrap().is_empty() && request["failed_attempts"].as_u64() > Some(0)
        );
        assert!(request["last_error"].as_str().is_some_and(|e| e.contains("cannot remove")), "{request}");
        stuck.release();
        control.ask("retry generation=1");
        wait_complete(m, "generation=1");
        assert_empty(m, "a");
        assert_eq!(m.status_number("pending_requests"), 0);
        assert_counters_equal_the_disk(m);
    });
}

/// A backend that walks the whole mount and deletes what it finds reaches its own tenant alone.
#[test]
fn u046_who_clears_by_walking_reaches_only_itself() {
    case(|m| {
        let_others_in(m);
        two_tenants(m);
        shell(m, "echo x > $M/k; chown -R 4001 $TA").ok();
        let bystander = Bystander::look(m);
        let mut nobody = m.peer();
        let walk = "for top, dirs, files in os.walk(root, onerror=lambda e: seen.append(e.errno)):
    for f in files:
        try: os.remove(os.path.join(top, f))
        except OSError as e: seen.append(e.errno)";
        nobody.run("os.setgroups([]); os.setgid(65534); os.setuid(65534)");
        nobody.run(&format!("root = R; seen = []\n{walk}"));
        assert_eq!(nobody.run("sorted(set(errno.errorcode[n] for n in seen))").to_string(), "[\"EACCES\"]");
        let mut owner = m.peer();
        owner.run(&format!("os.setgroups([]); os.setgid({OWNER}); os.setuid({OWNER})"));
        owner.run(&format!("root = R; seen = []\n{walk}"));
        shell(m, "[ $(find $TA -type f | wc -l) = 0 ]; [ -e $M/k ]").ok();
        bystander.assert_untouched(m);
        let mut other = m.peer();
        other.run(&format!("os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})"));
        for step in [
            "write(R + '/a/k1', b'')",
            "os.rmdir(R + '/a/deep/er')",
            "os.rename(R + '/a', R + '/b/a')",
            "os.rmdir(R + '/a')",
        ] {
            assert!(["EACCES", "EXDEV", "EPERM"].contains(&other.error(step).as_str()), "{step}");
        }
        // With a view of its own, a backend has nothing else to walk.
        shell(m, "mkdir -p $M/deploy/one $M/deploy/two; echo 1 > $M/deploy/one/k; echo 2 > $M/deploy/two/k")
            .ok();
        python(m, "for n in os.listdir(M + '/deploy/one'): os.remove(M + '/deploy/one/' + n)").ok();
        shell(m, "[ $(cat $M/deploy/two/k) = 2 ]; [ -z \"$(ls -A $M/deploy/one)\" ]").ok();
    });
}

/// Lists the directory, removes each regular file, and stops at the first error.
#[test]
fn u047_a_clear_by_listing_meets_no_internal_file() {
    let clear = "for i in range(300): write(DIR + '/c%d.bin' % i, b'x')
os.mkdir(DIR + '/sub')
for n in os.listdir(DIR):
    if os.path.isfile(DIR + '/' + n): os.remove(DIR + '/' + n)
assert os.listdir(DIR) == ['sub'] and '.fencefs' not in os.listdir(R)
write(CTL, b'status\\n')
assert json.loads(read(CTL))['ok'] and json.loads(read(R + '/.fencefs/status'))['keys'] == 0";
    case(|m| {
        make_tenants(m);
        for dir in ["M", "TA"] {
            python(m, &clear.replace("DIR", dir)).ok();
        }
    });
    case_with(|b| b.tenant("view"), |m| drop(python(m, &clear.replace("DIR", "R")).ok()));
}

/// One rising sequence; a global clear covers the earlier ones. A command names no generation: what an old one is worth is
/// told where it is acknowledged, and to who asks again under its id.
#[test]
fn u049_clears_have_one_order() {
    case(|m| {
        make_tenants(m);
        let put = |m: &Mount| drop(shell(m, "echo v > $TA/k; echo v > $TB/k").ok());
        put(m);
        let first = generation(&Control::open(m).remove("tenant=a id=t1"));
        put(m);
        let global = generation(&Control::open(m).remove("scope=global id=g1"));
        assert!(first < global);
        assert_empty(m, "b");
        put(m);
        let mut control = Control::open(m);
        for (id, number) in [("id=t1", first), ("id=g1", global)] {
            assert_eq!((generation(&query(m, id)), &query(m, id)["state"]), (number, &"complete".into()));
        }
        // Asked again: the old answer, and nothing is removed.
        assert_eq!(generation(&control.remove("tenant=a id=t1")), first);
        let (errno, _) = control.refused("remove-all tenant=a id=t0 generation=1");
        assert_eq!(errno, libc::EINVAL);
        shell(m, "[ $(cat $TA/k) = v ]; [ $(cat $TB/k) = v ]").ok();
        assert_eq!(m.status_number("generation"), global);
        assert!(generation(&control.remove("tenant=a")) > global);
        shell(m, "[ ! -e $TA/k ]; [ $(cat $TB/k) = v ]").ok();
        put(m);
        // An acknowledgement of the first one is superseded, by its own word, and deletes nothing.
        let storage = m.status()["storage_id"].as_str().unwrap().to_owned();
        let (errno, reply) =
            control.refused(&format!("ack storage={storage} generation={first} scope=tenant tenant=a"));
        assert_eq!((errno, &reply["code"]), (libc::ESTALE, &"STALE_GENERATION".into()), "{reply}");
        shell(m, "[ $(cat $TA/k) = v ]").ok();
    });
}

#[test]
fn u050_one_key_in_two_tenants_is_two_objects() {
    case(|m| {
        make_tenants(m);
        shell(
            m,
            "echo secret > $TA/samekey; ! cat $TB/samekey; echo other > $TB/samekey
             [ $(cat $TA/samekey) = secret ]; [ $(cat $TB/samekey) = other ]; [ ! -e $M/samekey ]
             d() { getfattr --only-values -n user.fencefs.$1 $2; }
             [ $(d digest $TA/samekey) != $(d digest $TB/samekey) ]; [ $(d tenant $TA/samekey) = a ]
             ! mv $TA/samekey $TB/stolen --no-copy 2> $W/err || false; [ -e $TA/samekey ] || mv $TB/stolen $TA/samekey
             $BIN quota $R --tenant a 1MiB; head -c 2M /dev/zero > $TB/large; ! head -c 2M /dev/zero > $TA/large
             [ $(cat $TB/samekey) = other ]",
        )
        .ok();
        let (a, b) = (tenant(m, "a"), tenant(m, "b"));
        assert_eq!((&a["keys"], &b["keys"], &b["quota_bytes"]), (&1.into(), &2.into(), &Value::Null));
        m.remount();
        shell(m, "[ $(cat $TA/samekey) = secret ]; [ $(cat $TB/samekey) = other ]; [ ! -e $M/samekey ]").ok();
        remove(m, "tenant=a");
        shell(m, "[ ! -e $TA/samekey ]; [ $(cat $TB/samekey) = other ]").ok();
    });
}

/// `..` is the kernel's to resolve: it leads where permissions let it. No key has such a component.
#[test]
fn u052_no_name_leads_out() {
    case(|m| {
        let_others_in(m);
        make_tenants(m);
        shell(m, "chmod 700 $TA $TB; chown 4001 $TA; chown 4002 $TB; echo b > $TB/k").ok();
        let mut a = m.peer();
        a.run("os.setgroups([]); os.setgid(4001); os.setuid(4001); A = R + '/a'");
        for out in ["/../b/escaped", "/../escaped", "/../../escaped", "/../default/escaped", "/../b/k"] {
            let errno = a.error(&format!("write(A + '{out}', b'x')"));
            assert!(["EACCES", "EPERM"].contains(&errno.as_str()), "{out}: {errno}");
        }
        a.run("os.mkdir(A + '/in'); write(A + '/in/../k', b'mine'); assert os.listdir(A) == ['in', 'k'] or os.listdir(A) == ['k', 'in']");
        // Root is kept by no mode; still nothing lands but where the path leads.
        python(
            m,
            "write(TA + '/../b/by-root', b'x'); assert read(TB + '/by-root') == b'x'
write(TA + '/../../beside', b'x'); assert read(os.path.dirname(R) + '/beside') == b'x'
for name in ['%2E%2E%2Fescaped', '%2E%2E', '..%2Fescaped']:
    p = TA + '/.fencefs/by-key/' + name
    try: write(p, b'x')
    except OSError as e: continue
    # Such a key is a value by that name, and nothing beside the tenant.
    assert os.listdir(TA + '/.fencefs/by-key') == [name], name
    os.unlink(p)
for top, dirs, files in os.walk(S):
    assert '..' not in dirs + files and 'escaped' not in dirs + files
for name in ['..', '.', '...', '.hidden', 'a/../b']:
    try: os.mkdir(R + '/' + name)
    except OSError as e: assert e.errno in (errno.EINVAL, errno.EEXIST), (name, e)
    else: assert False, name
assert sorted(os.listdir(R)) == ['a', 'b', 'default'] and not os.path.exists(R + '/../escaped')",
        )
        .ok();
        // Who has no more than a bind mount of its tenant has nothing above it.
        shell(
            m,
            "unshare -m bash -euc 'mkdir $W/jail; mount --bind $R/a $W/jail; mkdir $W/jail/x
             echo v > $W/jail/x/../../out; [ -e $W/out ]; [ ! -e $R/out ]; [ $(ls $R | wc -l) = 3 ]'",
        )
        .ok();
        assert!(wait_until(PATIENCE, || m.status_number("staged_bytes") == 0));
    });
}
