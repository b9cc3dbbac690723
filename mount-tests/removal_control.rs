//! The control file as removals use it: streams of replies, who may ask, what a storage polls and acknowledges.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::harness::each;
use crate::harness::wait_until;
use crate::removals::{
    Bystander, Control, OTHER, OWNER, PATIENCE, Stuck, assert_empty, epoch, generation, list, query, remove,
    requests, tenant, two_tenants, wait_complete,
};

/// INTERFACE: the first line at once, a second one when the generation is acknowledged; poll(2) tells of each.
#[test]
fn one_open_file_gets_a_first_line_and_a_second() {
    each(|m| {
        two_tenants(m);
        let mut control = Control::open(m);
        let first = control.ask("remove-all tenant=a");
        assert_eq!((&first["scope"], &first["tenant"]), (&"tenant".into(), &"a".into()), "{first}");
        let states = ["pending", "removing", "applied", "complete"];
        assert!(states.contains(&first["state"].as_str().unwrap()), "{first}");
        assert!(control.is_readable(PATIENCE), "poll(2) tells of the second line");
        let second = control.line();
        assert_eq!((&second["ok"], &second["state"]), (&true.into(), &"complete".into()), "{second}");
        assert_eq!(generation(&first), generation(&second));
        assert!(!control.is_readable(Duration::ZERO), "there is no third line");
        // The same file takes the next command.
        let global = control.remove("scope=global");
        assert_eq!(global["scope"], "global");
        assert!(global["tenant"].is_null(), "{global}");
        // A plain blocking read, and one that must not block.
        let mut a = m.peer();
        a.run("c = os.open(R + '/.fencefs/control', os.O_RDWR); os.write(c, b'remove-all tenant=a\\n')");
        a.run("text = b''\nwhile text.count(b'\\n') < 2: text += os.read(c, 4096)");
        assert_eq!(a.text("json.loads(text.splitlines()[1])['state']"), "complete");
        a.run("n = os.open(R + '/.fencefs/control', os.O_RDWR | os.O_NONBLOCK); os.write(n, b'remove-all tenant=a\\n')");
        a.run("import select, time; p = select.poll(); p.register(n, select.POLLIN); text = b''; end = time.monotonic() + 30");
        a.run("while text.count(b'\\n') < 2 and time.monotonic() < end: assert p.poll(30000); text += os.read(n, 4096)");
        assert_eq!(a.text("json.loads(text.splitlines()[1])['state']"), "complete");
    });
}

/// docs/cli.md: how a shell waits for the second line.
#[test]
fn a_shell_waits_for_the_end_on_the_descriptor_that_asked() {
    each(|m| {
        two_tenants(m);
        for shell in ["sh", "bash"] {
            let line = "(echo 'remove-all tenant=a' >&3 && read -r accepted <&3 && until read -r ended <&3; do :; done; \
                        echo \"$ended\") 3<>$R/.fencefs/control";
            fs::write(m.scratch.join("wait.sh"), line).unwrap();
            let ended = m.shell(&format!("R=$R timeout 40 {shell} $W/wait.sh")).ok();
            let ended: serde_json::Value = serde_json::from_str(ended.trim_end()).unwrap();
            assert_eq!(ended["state"], "complete", "{shell}: {ended}");
        }
    });
}

/// docs/cli.md lists every metric that there is.
#[test]
fn the_list_of_metrics_is_complete() {
    let listed = include_str!("../docs/cli.md");
    each(|m| {
        let text = fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
        for name in text.lines().filter_map(|l| l.strip_prefix("# TYPE fencefs_")) {
            let name = name.split(' ').next().unwrap();
            assert!(
                listed.contains(&format!("`{name}`")) || listed.contains(&format!("`{name}{{")),
                "{name} is not in docs/cli.md"
            );
        }
    });
}

/// Issue 8: the shell one-liner, and a fresh open for its replies.
#[test]
fn a_shell_needs_one_line() {
    each(|m| {
        two_tenants(m);
        m.shell("sh -c \"echo 'remove-all tenant=a' > $R/.fencefs/control\"").ok();
        let latest = || m.shell("timeout 20 cat $R/.fencefs/control").ok();
        assert!(latest().starts_with("{\"ok\":true"));
        assert!(wait_until(PATIENCE, || latest().contains("\"state\":\"complete\"")), "{}", latest());
        assert_empty(m, "a");
        m.shell("diff -r --no-dereference $W/copy-b $R/b").ok();
        m.shell("printf 'remove-all scope=global' > $R/.fencefs/control").ok();
        assert!(wait_until(PATIENCE, || latest().contains("\"state\":\"complete\"")));
        assert_empty(m, "b");
    });
}

/// Issue 8: "a user who cannot write a tenant's directory cannot clear it"; invariant "never deletes ... another
/// tenant".
#[test]
fn only_who_may_write_a_tenants_directory_may_clear_it() {
    each(|m| {
        two_tenants(m);
        let (mut owner, mut other) = (m.peer(), m.peer());
        let ask = "def ask(where, line):
    c = os.open(R + where + '/.fencefs/control', os.O_RDWR)
    try: os.write(c, line.encode())
    finally: global reply; reply = os.read(c, 65536).decode(); os.close(c)
def wait():
    import time
    end = time.monotonic() + 30
    while time.monotonic() < end:
        c = os.open(R + '/.fencefs/control', os.O_RDWR); os.write(c, b'query generation=%d' % json.loads(reply.splitlines()[0])['generation'])
        if '\"complete\"' in os.read(c, 65536).decode(): return
        os.close(c); time.sleep(0.01)
    raise Exception('not complete')";
        for (peer, uid) in [(&mut owner, OWNER), (&mut other, OTHER)] {
            peer.run("import time");
            peer.run(ask);
            peer.run(&format!("os.setgroups([]); os.setgid({uid}); os.setuid({uid})"));
        }
        for line in ["remove-all tenant=a", "remove-all tenant=a mode=logical", "remove-all scope=global"] {
            assert_eq!(other.error(&format!("ask('', '{line}')")), "EACCES", "{line}");
            assert!(other.text("reply").contains("EACCES"), "{line}");
        }
        assert_eq!(other.error("ask('/a', 'remove-all tenant=a')"), "EACCES");
        assert_eq!(owner.error("ask('', 'remove-all scope=global')"), "EACCES");
        assert_eq!(owner.error("ask('', 'remove-all tenant=b')"), "EACCES");
        assert_eq!(owner.error("ask('', 'remove-all tenant=default')"), "EACCES");
        for line in ["forget storage=", "ack generation=1 scope=global storage="] {
            let storage = m.status()["storage_id"].as_str().unwrap().to_owned();
            assert_eq!(owner.error(&format!("ask('', '{line}{storage}')")), "EACCES", "{line}");
        }
        m.shell("for t in a b; do diff -r --no-dereference $W/copy-$t $R/$t; done").ok();
        assert_eq!(m.status_number("generation"), 0);
        // The owner, at the root and in its own directory.
        for place in ["", "/a"] {
            owner.run("write(R + '/a/mine', b'x')");
            owner.run(&format!("ask('{place}', 'remove-all tenant=a')"));
            owner.run("wait()");
            assert_empty(m, "a");
        }
        m.shell("diff -r --no-dereference $W/copy-b $R/b").ok();
        // A group that may write may clear.
        m.shell(&format!("chgrp {OTHER} $R/a; chmod 770 $R/a; echo x > $R/a/k")).ok();
        other.run("ask('', 'remove-all tenant=a')");
        other.run("wait()");
        assert_empty(m, "a");
    });
}

/// INTERFACE: two users never see each other's replies.
#[test]
fn users_do_not_see_each_others_replies() {
    each(|m| {
        two_tenants(m);
        let (mut owner, mut other) = (m.peer(), m.peer());
        for (peer, uid) in [(&mut owner, OWNER), (&mut other, OTHER)] {
            peer.run(&format!("os.setgroups([]); os.setgid({uid}); os.setuid({uid})"));
        }
        let write = |tenant: &str| {
            format!(
                "c = os.open(R + '/.fencefs/control', os.O_WRONLY); os.write(c, b'remove-all tenant={tenant} id=of-{tenant}'); os.close(c)"
            )
        };
        let latest = "read(R + '/.fencefs/control')";
        owner.run(&write("a"));
        wait_complete(m, "id=of-a");
        // One who has asked nothing gets the status; of the owner's request there is no word.
        let text = other.text(latest);
        assert!(!text.contains("of-a") && text.contains("\"name\":\"fencefs\""), "{text}");
        other.run(&write("b"));
        wait_complete(m, "id=of-b");
        let last = |text: String| serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap();
        assert!(wait_until(PATIENCE, || last(owner.text(latest))["state"] == "complete"));
        assert!(wait_until(PATIENCE, || last(other.text(latest))["state"] == "complete"));
        assert_eq!(last(owner.text(latest))["tenant"], "a");
        assert_eq!(last(other.text(latest))["tenant"], "b");
    });
}

/// Issue 8: a tenant's control file speaks of that tenant alone.
#[test]
fn a_tenants_control_file_clears_that_tenant_alone() {
    each(|m| {
        two_tenants(m);
        let b = Bystander::look(m);
        let dir = m.mnt.join("a");
        for line in ["remove-all tenant=b", "remove-all scope=global", "remove-all tenant=default"] {
            let (errno, reply) = Control::at(&dir).refused(line);
            assert!([libc::EACCES, libc::EPERM].contains(&errno), "{line}: {reply}");
        }
        m.shell("diff -r --no-dereference $W/copy-a $R/a").ok();
        let done = Control::at(&dir).remove("tenant=a");
        assert_empty(m, "a");
        b.assert_untouched(m);
        let number = generation(&done);
        assert_eq!(Control::at(&dir).ask(&format!("query generation={number}"))["state"], "complete");
        // What another tenant or everybody asked for is not told here.
        remove(m, "tenant=b id=theirs");
        let listed = fs::read_to_string(dir.join(".fencefs/requests")).unwrap();
        assert!(!listed.contains("theirs") && listed.contains("\"a\""), "{listed}");
        assert!(Control::at(&dir).send("query id=theirs").is_err());
    });
}

/// Issue 5; invariants "Polling is non-destructive and idempotent", "ACK is monotonic and idempotent". Timeline "A
/// clear request is lost".
#[test]
fn poll_changes_nothing_and_an_ack_only_goes_forward() {
    each(|m| {
        two_tenants(m);
        let storage = m.status()["storage_id"].as_str().unwrap().to_owned();
        let foreign = "00000000-0000-4000-8000-000000000001";
        let mut c = Control::open(m);
        let poll = format!("poll storage={storage}");
        assert!(list(&c.ask(&poll)).is_empty());
        let Some(mut stuck) = Stuck::new(m, "a/k7") else { return };
        let number = generation(&c.ask("remove-all tenant=a"));
        assert_eq!(c.line()["state"], "failed");
        // As often as it is asked, by whoever loses the answer.
        for _ in 0..3 {
            let pending = list(&c.ask(&poll));
            assert_eq!(pending.len(), 1, "{pending:?}");
            assert_eq!(generation(&pending[0]), number);
            assert_eq!((&pending[0]["scope"], &pending[0]["tenant"]), (&"tenant".into(), &"a".into()));
        }
        // What is not applied cannot be acknowledged, by nobody and of nothing.
        let ack = |number: u64, of: &str| format!("ack storage={storage} generation={number} {of}");
        for line in [
            ack(number, "scope=tenant tenant=a"),
            ack(number, "scope=global"),
            ack(number, "scope=tenant tenant=b"),
            ack(number + 7, "scope=tenant tenant=a"),
            format!("ack storage={foreign} generation={number} scope=tenant tenant=a"),
            format!("poll storage={foreign}"),
            format!("forget storage={foreign}"),
            "ack storage=nonsense generation=1 scope=global".to_owned(),
        ] {
            c.refused(&line);
        }
        assert_ne!(query(m, &format!("generation={number}"))["state"], "complete");
        assert_eq!(list(&c.ask(&poll)).len(), 1);
        stuck.release();
        c.ask(&format!("retry generation={number}"));
        wait_complete(m, &format!("generation={number}"));
        assert!(list(&Control::open(m).ask(&poll)).is_empty());
        // Repeating the acknowledgement of what is applied is no change.
        let mut c = Control::open(m);
        for _ in 0..2 {
            c.ask(&ack(number, "scope=tenant tenant=a"));
        }
        let later = remove(m, "tenant=a");
        let (errno, reply) = c.refused(&ack(number, "scope=tenant tenant=a"));
        assert_eq!((errno, &reply["code"]), (libc::ESTALE, &"STALE_GENERATION".into()), "{reply}");
        c.ask(&ack(later, "scope=tenant tenant=a"));
        assert_eq!(epoch(m, "a"), later);
        m.shell("diff -r --no-dereference $W/copy-b $R/b").ok();
    });
}

/// Codes beyond errno names, and commands that mean nothing.
#[test]
fn unknown_tenants_generations_and_words_are_refused() {
    each(|m| {
        two_tenants(m);
        let (errno, reply) = Control::open(m).refused("remove-all tenant=nosuch");
        assert_eq!((errno, &reply["code"]), (libc::ENOENT, &"UNKNOWN_TENANT".into()), "{reply}");
        for line in ["query generation=99", "query id=nosuch", "retry generation=99"] {
            assert_eq!(Control::open(m).refused(line).0, libc::ENOENT, "{line}");
        }
        for line in [
            "remove-all",
            "remove-all a",
            "remove-all tenant=a scope=global",
            "remove-all tenant=a force=1",
            "remove-all scope=everything",
            "removeall tenant=a",
            "query",
            "poll",
            "ack generation=1 scope=global",
        ] {
            assert_eq!(Control::open(m).refused(line).0, libc::EINVAL, "{line}");
        }
        Control::open(m).ask("retry");
        assert_eq!(m.status_number("generation"), 0);
        m.shell("for t in a b; do diff -r --no-dereference $W/copy-$t $R/$t; done").ok();
        assert!(!m.mnt.join("nosuch").exists());
    });
}

/// RFC phase 1, "scope/generation observability": the same story in `requests`, `query`, status and metrics.
#[test]
fn requests_status_and_metrics_tell_of_removals() {
    each(|m| {
        two_tenants(m);
        assert!(requests(m).is_empty());
        assert_eq!((m.status_number("generation"), m.status_number("pending_requests")), (0, 0));
        let first = remove(m, "tenant=a id=one");
        let second = remove(m, "scope=global");
        let storage = m.status()["storage_id"].as_str().unwrap().to_owned();
        let listed = requests(m);
        assert_eq!(listed.iter().map(generation).collect::<Vec<_>>(), [first, second], "newest last");
        let expected = [("tenant", Value::from("a")), ("global", Value::Null)];
        for (line, (scope, of)) in listed.iter().zip(expected) {
            assert_eq!((&line["scope"], &line["tenant"]), (&scope.into(), &of), "{line}");
            assert_eq!((&line["state"], &line["last_error"]), (&"complete".into(), &Value::Null), "{line}");
            // Target and acknowledgement.
            assert!(line.to_string().matches(&storage).count() >= 2, "{line}");
        }
        assert_eq!(list(&Control::open(m).ask("requests")).len(), 2);
        assert_eq!(generation(&query(m, "id=one")), first);
        let status = m.status();
        assert_eq!((&status["generation"], &status["pending_requests"]), (&second.into(), &0.into()));
        assert_eq!((&status["state"], &status["last_error"]), (&"ready".into(), &Value::Null));
        assert_eq!(
            (tenant(m, "a")["epoch"].as_u64(), tenant(m, "b")["epoch"].as_u64()),
            (Some(second), Some(second))
        );
        let metrics = fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
        for expected in [
            format!("fencefs_generation {second}"),
            "fencefs_removal_requests{state=\"complete\"} 2".to_owned(),
            "fencefs_removal_requests{state=\"failed\"} 0".to_owned(),
            "fencefs_removal_failures_total 0".to_owned(),
            format!("fencefs_tenant_epoch{{tenant=\"a\"}} {second}"),
            "fencefs_tenant_ready{tenant=\"a\"} 1".to_owned(),
        ] {
            assert!(metrics.lines().any(|l| l == expected), "{expected}: {metrics}");
        }
    });
}
