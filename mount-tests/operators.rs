//! What operators install: names that exist, units and manifests that their readers take, the view of `status --watch`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{BINARY, Builder, can_mount, python3, run};

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(path)
}

/// Every word of a text that is a name of ours for a metric.
fn metric_names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("fencefs_")).map(str::to_owned).collect()
}

fn is_there(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program} >/dev/null")]).status().unwrap();
    if !found.success() {
        eprintln!("skipped: no {program}");
    }
    found.success()
}

#[test]
fn every_metric_of_the_dashboard_and_the_alerts_is_exported() {
    if !can_mount() {
        return;
    }
    let m = Builder::new().mount();
    let exported = metric_names(&fs::read_to_string(m.mnt.join(".fencefs/metrics")).unwrap());
    for file in ["grafana/fencefs.json", "prometheus/alerts.yaml"] {
        let named = metric_names(&fs::read_to_string(packaging(file)).unwrap());
        assert!(named.len() > 5, "{file} names {named:?}");
        let unknown: Vec<_> = named.difference(&exported).collect();
        assert!(unknown.is_empty(), "{file} names what nobody exports: {unknown:?}");
    }
    if is_there("promtool") {
        run(Command::new("promtool").args(["check", "rules"]).arg(packaging("prometheus/alerts.yaml"))).ok();
    }
}

#[test]
fn the_unit_is_one() {
    let unit = fs::read_to_string(packaging("systemd/fencefs@.service")).unwrap();
    for line in ["Type=notify", "Restart=on-failure", "NotifyAccess=main", "KillMode=mixed"] {
        assert!(unit.lines().any(|l| l == line), "no {line}");
    }
    if is_there("systemd-analyze") {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fencefs@.service");
        fs::write(&path, unit.replace("/usr/bin/fencefs", BINARY)).unwrap();
        let told = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(path));
        assert!(told.status.success() && !told.stderr.contains("fencefs@"), "{told:?}");
    }
}

#[test]
fn the_manifests_mount_with_propagation() {
    let script = "
import sys
try: import yaml
except ImportError: print('skipped: no python yaml'); sys.exit()
def load(name): return {d['kind']: d for d in yaml.safe_load_all(open(sys.argv[1] + '/' + name))}
pod = load('daemonset.yaml')['DaemonSet']['spec']['template']['spec']
main = pod['containers'][0]
mounts = {m['name']: m for m in main['volumeMounts']}
assert mounts['fencefs']['mountPropagation'] == 'Bidirectional' and main['securityContext']['privileged']
assert main['args'][-1].startswith(mounts['fencefs']['mountPath'] + '/'), 'a mount below what is propagated'
volumes = {v['name'] for v in pod['volumes']}
assert volumes == set(mounts), (volumes, set(mounts))
tenant = load('tenant.yaml')['Deployment']
assert tenant['spec']['selector']['matchLabels'] == tenant['spec']['template']['metadata']['labels']
assert tenant['spec']['template']['spec']['containers'][0]['volumeMounts'][0]['mountPropagation'] == 'HostToContainer'
print('\\n'.join(main['args'][1:-2]))
";
    let told = run(Command::new(python3()).args(["-c", script]).arg(packaging("kubernetes"))).ok();
    let help = run(Command::new(BINARY).args(["mount", "--help"])).ok();
    for option in told.lines().filter(|line| line.starts_with("--")) {
        let name = option.split('=').next().unwrap();
        assert!(help.contains(name), "the daemon set uses {name}, which mount does not know");
    }
}

/// Runs `status --watch` in a terminal of the script's own, sends it Ctrl-C, and prints what it drew.
const IN_A_TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios
pid, fd = pty.fork()
if pid == 0:
    os.environ['TERM'] = 'xterm'
    os.execv(sys.argv[1], [sys.argv[1], 'status', sys.argv[2], '--watch'])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', 20, 60, 0, 0))
seen = b''
def until(words):
    global seen
    while words not in seen:
        assert select.select([fd], [], [], 30)[0], seen
        seen += os.read(fd, 65536)
until(b'Ctrl-C ends this')
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack('HHHH', 10, 12, 0, 0))
seen = b''
# Twelve columns of it.
until(b'Ctrl-C ends \x1b')
os.write(fd, b'\x03')
until(b'\x1b[?1049l')
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn the_view_of_a_terminal_follows_its_size_and_gives_it_back() {
    if !can_mount() {
        return;
    }
    let m = Builder::new().mount();
    let script =
        Command::new(python3()).args(["-c", IN_A_TERMINAL, BINARY]).arg(&m.mnt).env("LC_ALL", "C").output();
    let told = script.unwrap();
    assert_eq!(String::from_utf8_lossy(&told.stdout), "0\n", "{}", String::from_utf8_lossy(&told.stderr));
}
