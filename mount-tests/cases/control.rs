//! Cases on the control file, the status and the metrics.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::cases::{PATIENCE, case, case_with, df_used, let_others_in, make_tenants, python, settle, shell};
use crate::harness::{Mount, fencefs, wait_until};
use crate::removals::{Control, Stuck, two_tenants, wait_complete};

#[test]
fn u103_redirections() {
    case(|m| {
        make_tenants(m);
        shell(
            m,
            "echo status > $CTL; printf status > $CTL; echo status >> $CTL; printf 'status\\n\\n' > $CTL; truncate -s 0 $CTL; : > $CTL
             cat $CTL | head -1 | grep -q '\"ok\":true'; [ $(stat -c %s $CTL) = 0 ]
             ! printf stat > $CTL 2> $W/said; grep 'Invalid argument' $W/said; cat $CTL | grep '\"ok\":false' | grep -q EINVAL
             ! echo stat > $CTL 2> $W/said; grep 'Invalid argument' $W/said
             echo status | tee $CTL > $W/out; echo status | dd of=$CTL 2> $W/said; cp $W/out $CTL",
        )
        .ok();
        // Once, on the write: an empty open and a close carry out nothing.
        shell(
            m,
            "echo 'remove-all tenant=a' > $CTL; : > $CTL; exec 4<> $CTL; exec 4<&-; exec 5> $CTL; exec 5>&-",
        )
        .ok();
        wait_complete(m, "generation=1");
        assert_eq!(m.status_number("generation"), 1);
    });
}

/// Each write begins a transaction of its open file; its reply is read as a stream, wherever the position stands.
#[test]
fn u104_ask_and_read_on_one_descriptor() {
    case(|m| {
        make_tenants(m);
        shell(
            m,
            "exec 3<> $CTL
             echo status >&3; read -r l <&3; grep -q '\"name\":\"fencefs\"' <<< $l
             echo 'epoch tenant=a' >&3; read -r l <&3; grep -q '\"epoch\":0' <<< $l
             printf 'epoch tenant=a\\nepoch tenant=b\\n' >&3; read -r l <&3; grep -q '\"tenant\":\"a\"' <<< $l; read -r l <&3; grep -q '\"tenant\":\"b\"' <<< $l
             exec 3<&-",
        )
        .ok();
        let mut a = m.peer();
        a.run("fd = os.open(R + '/.fencefs/control', os.O_RDWR); os.write(fd, b'status\\n')");
        a.run("l = b''\nwhile not l.endswith(b'\\n'): l += os.read(fd, 7)\nassert json.loads(l)['ok']");
        assert_eq!(a.error("os.lseek(fd, 0, 0)"), "ESPIPE", "a stream has no position");
        // Two descriptors, two streams.
        a.run("two = os.open(R + '/.fencefs/control', os.O_RDWR); os.write(two, b'epoch tenant=b\\n'); os.write(fd, b'epoch tenant=a\\n')");
        a.run("assert json.loads(os.read(two, 65536))['tenant'] == 'b' and json.loads(os.read(fd, 65536))['tenant'] == 'a'");
        a.run("f = open(R + '/.fencefs/control', 'r+b', buffering=0); f.write(b'status'); assert json.loads(f.readline())['ok']");
    });
}

/// poll(2), a blocking read, EAGAIN; and a signal ends the wait, not the request.
#[test]
fn u106_waiting_for_the_acknowledgement() {
    case(|m| {
        two_tenants(m);
        let mut stuck = Stuck::new(m, "a/k1");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(m.mnt.join(".fencefs/control"))
            .unwrap();
        let mut control = Control::open(m);
        let mut buffer = [0; 4096];
        if let Some(stuck) = &mut stuck {
            // Held by a record that cannot be deleted, until it is let go.
            file.write_all(b"remove-all tenant=a id=held").unwrap();
            let read = file.read(&mut buffer).unwrap();
            assert!(read > 0);
            shell(
                m,
                "ulimit -t 30; set +e
                 env --default-signal=INT timeout -s INT 1 bash -c \"exec 3<> $CTL; echo 'remove-all tenant=a id=waits' >&3; while true; do cat <&3 > $W/cat; done\"
                 [ $? = 124 ]",
            )
            .ok();
            stuck.release();
            control.ask("retry");
            wait_complete(m, "id=held");
            wait_complete(m, "id=waits");
        }
        let mut b = Control::open(m);
        b.send("remove-all tenant=b").unwrap();
        assert!(b.is_readable(PATIENCE));
        assert_eq!(b.line()["ok"], true);
        assert!(b.is_readable(PATIENCE), "the second line is polled for");
        assert_eq!(b.line()["state"], "complete");
        assert!(!b.is_readable(Duration::ZERO), "nothing is to come");
        // By a blocking read alone.
        python(
            m,
            "fd = os.open(CTL, os.O_RDWR); os.write(fd, b'remove-all tenant=a\\n'); lines = b''
while lines.count(b'\\n') < 2:
    try: lines += os.read(fd, 4096)
    except InterruptedError: pass
assert [json.loads(l)['state'] for l in lines.splitlines()][1] == 'complete', lines",
        )
        .ok();
    });
}

#[test]
fn u107_junk_and_strangers() {
    case(|m| {
        let_others_in(m);
        two_tenants(m);
        for (junk, errnos) in [
            ("bytes(100000)", &["EINVAL", "E2BIG"][..]),
            ("b'\\xff\\xfe'", &["EINVAL"]),
            ("b'status\\0'", &["EINVAL"]),
            ("b'status ' * 600", &["EINVAL", "E2BIG"]),
            ("b'remove-all'", &["EINVAL"]),
            ("b'remove-all tenant=../b'", &["EINVAL"]),
            ("b'remove-all tenant=a tenant=b'", &["EINVAL"]),
            ("b'remove-all scope=global tenant=a'", &["EINVAL"]),
            ("b'\\x1b[2Jstatus'", &["EINVAL"]),
            ("'\\u2028status'.encode()", &["EINVAL"]),
        ] {
            let mut a = m.peer();
            let errno = a.error(&format!("os.write(os.open(R + '/.fencefs/control', os.O_WRONLY), {junk})"));
            assert!(errnos.contains(&errno.as_str()), "{junk}: {errno}");
        }
        let mut nobody = m.peer();
        nobody.run("control = R + '/.fencefs/control'; early = os.open(control, os.O_RDWR)");
        nobody.run("os.setgroups([]); os.setgid(65534); os.setuid(65534)");
        for command in [
            "remove-all scope=global",
            "remove-all tenant=a",
            "quota bytes=1MiB",
            "evict to=0",
            "quota tenant=a bytes=1MiB",
        ] {
            // Opened by root, written by another: who writes is asked.
            for file in ["early", "os.open(control, os.O_WRONLY)"] {
                let errno = nobody.error(&format!("os.write({file}, b'{command}\\n')"));
                assert!(["EACCES", "EPERM"].contains(&errno.as_str()), "{command} by {file}: {errno}");
            }
        }
        nobody.run("fd = os.open(control, os.O_RDWR); os.write(fd, b'status\\n'); assert json.loads(os.read(fd, 65536))['ok']");
        nobody.run("json.loads(read(R + '/.fencefs/status'))['keys']");
        assert_eq!(m.status_number("generation"), 0);
        shell(
            m,
            "for t in a b; do diff -r --no-dereference $W/copy-$t $R/$t; done; cat $CTL > $W/out; ls -l $CTL",
        )
        .ok();
    });
}

/// A metric's name and type, and its samples.
type Family = (String, String, Vec<(String, f64)>);

/// The families of a page; fails where the text is not of the format.
fn parse(text: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').expect("help has a text").0;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, help, "each type follows its help");
            assert!(["gauge", "counter"].contains(&kind), "{line}");
            assert!(families.iter().all(|f| f.0 != name), "{name} is there twice");
            assert!(kind != "counter" || name.ends_with("_total"), "{name}");
            families.push((name.to_owned(), kind.to_owned(), Vec::new()));
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            let family = families.last_mut().expect("a sample has a family");
            let name = sample.split('{').next().unwrap();
            assert_eq!(name, family.0, "{line}");
            assert!(family.2.iter().all(|(known, _)| known != sample), "{sample} is there twice");
            family.2.push((sample.to_owned(), value.parse().unwrap_or_else(|e| panic!("{line}: {e}"))));
        }
    }
    assert!(text.ends_with('\n'));
    families
}

/// Prometheus text, in the mount and by HTTP, without histograms of requests: docs/semantics.md says why; JSON that lasts; a view for people. (`status --watch` is what was asked for as `top`.)
#[test]
fn u109_metrics_and_status() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    case_with(
        |b| b.evict("fifo").arg("--metrics-listen").arg(address.to_string()),
        |m| {
            two_tenants(m);
            shell(m, "for i in $(seq 80); do head -c 1M /dev/zero > $M/k$i; done; cat $M/k80 > $W/out; ! cat $M/none; $BIN pin $M/k80").ok();
            shell(m, "! head -c $((Q * 2)) /dev/zero > $M/huge; mkdir $M/d; ls -l $M > $W/out; mv $M/k79 $M/d/k; rm $M/d/k").ok();
            Control::open(m).remove("tenant=a");
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut page = String::new();
            stream.read_to_string(&mut page).unwrap();
            let page = page.split_once("\r\n\r\n").unwrap().1;
            let families = parse(page);
            let names = |families: &[Family]| families.iter().map(|f| f.0.clone()).collect::<Vec<_>>();
            let file = fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap();
            assert_eq!(names(&families), names(&parse(&file)));
            let number = |sample: &str| {
                let mut samples = families.iter().flat_map(|f| &f.2);
                samples.find(|s| s.0 == sample).unwrap_or_else(|| panic!("{sample}: {page}")).1
            };
            for (sample, least) in [
                ("fencefs_quota_bytes", 64e6),
                ("fencefs_used_bytes", 32e6),
                ("fencefs_keys", 30.0),
                ("fencefs_pinned_bytes", 1e6),
                ("fencefs_hits_total", 1.0),
                ("fencefs_misses_total", 1.0),
                ("fencefs_publications_total", 80.0),
                ("fencefs_abandoned_total", 1.0),
                ("fencefs_evictions_total{reason=\"quota\"}", 10.0),
                ("fencefs_removal_requests{state=\"complete\"}", 1.0),
                ("fencefs_removed_records_total", 1.0),
            ] {
                assert!(number(sample) >= least, "{sample} is {}", number(sample));
            }
            for zero in [
                "fencefs_staged_bytes",
                "fencefs_quarantined_total",
                "fencefs_eviction_errors_total",
                "fencefs_unlinked_bytes",
            ] {
                assert!(number(zero) == 0.0, "{zero} is {}", number(zero));
            }
            let mnt = m.mnt.to_str().unwrap();
            let told: Value = serde_json::from_str(&fencefs(["status", mnt, "--json"]).ok()).unwrap();
            for (name, value) in m.status().as_object().unwrap() {
                assert!(told.get(name).is_some(), "{name} ({value})");
            }
            // For people: until it is stopped.
            let out = fs::File::create(m.scratch.join("watch")).unwrap();
            let mut watch = Command::new(crate::harness::BINARY)
                .args(["status", mnt, "--watch"])
                .stdin(Stdio::null())
                .stdout(out)
                .spawn()
                .unwrap();
            let shown = wait_until(PATIENCE, || {
                fs::read_to_string(m.scratch.join("watch")).unwrap().contains("64 MiB")
            });
            watch.kill().unwrap();
            watch.wait().unwrap();
            assert!(shown, "{}", fs::read_to_string(m.scratch.join("watch")).unwrap());
        },
    );
}

/// What status, df, a walk of the mount, a walk of the store and fsck say agrees.
#[test]
fn u110_counters_reconcile() {
    case(|m| {
        make_tenants(m);
        let agree = |m: &Mount| {
            settle(m);
            m.settle_blocks();
            let used = m.status_number("used_bytes");
            let walked =
                shell(m, "find $R -not -type d -printf '%b\\n' | awk '{n += $1} END {print n * 512}'").ok();
            assert_eq!((used, walked.trim()), (crate::cases::record_bytes(m), used.to_string().as_str()));
            assert!(df_used(m).abs_diff(used) < 4096, "{} {used}", df_used(m));
            let keys = shell(m, "find $R -not -type d | wc -l").ok();
            assert_eq!(m.status_number("keys").to_string(), keys.trim());
            used
        };
        python(
            m,
            "r = random.Random(1)
for n in range(400):
    p = R + '/' + r.choice(['a', 'b', 'default']) + '/k%d' % r.randrange(60)
    what = r.randrange(8)
    try:
        if what < 4: write(p, bytes(r.randrange(1 << 20)))
        elif what == 4: os.unlink(p)
        elif what == 5: os.rename(p, p + 'x')
        elif what == 6: os.truncate(p, os.path.getsize(p) // 2)
        else:
            with open(p, 'ab') as f: f.write(b'x' * 5000)
    except FileNotFoundError: pass
os.symlink('k1', M + '/link')",
        )
        .ok();
        let used = agree(m);
        // Nothing here has holes, so what is used is at least what the files say they hold.
        let total =
            shell(m, "find $R -type f -size -1M -printf '%s\\n' | awk '{n += $1} END {print n + 0}'").ok();
        assert!(used >= total.trim().parse::<u64>().unwrap());
        Control::open(m).remove("tenant=a");
        assert_eq!(m.control("evict to=40").0, Ok(()));
        agree(m);
        m.crash();
        let used = agree(m);
        m.umount();
        let report: Value = serde_json::from_str(&shell(m, "$BIN fsck $S --json").ok()).unwrap();
        assert_eq!(
            (&report["clean"], &report["errors"], &report["warnings"]),
            (&true.into(), &0.into(), &0.into())
        );
        m.mount();
        assert_eq!(agree(m), used);
    });
}
