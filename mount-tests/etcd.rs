//! A real cluster of etcd for a test: on loopback, each member with its own directory and ports, gone with the test.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::wait_until;

/// Ends a member, by its own process id, when the other end of the pipe is gone: whichever way the tests end.
const KEEPER: &str = r#"
log=$1; shift
"$@" >>"$log" 2>&1 &
pid=$!
cat >/dev/null
kill -9 $pid
wait $pid 2>/dev/null
"#;

const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster.
pub(crate) struct Cluster {
    dir: TempDir,
    members: Vec<Member>,
}

struct Member {
    client: u16,
    peer: u16,
    running: Option<(Child, ChildStdin)>,
}

impl Cluster {
    /// So many members; `None`, with a word, where etcd is not installed.
    pub(crate) fn start(members: usize) -> Option<Cluster> {
        if Command::new("etcd").arg("--version").output().is_err() {
            eprintln!("skipped: there is no etcd (install the package etcd-server)");
            return None;
        }
        // All are held until all are known, so that none is given twice.
        let held: Vec<TcpListener> =
            (0..2 * members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        drop(held);
        let members = ports.chunks(2).map(|p| Member { client: p[0], peer: p[1], running: None }).collect();
        let mut cluster = Cluster { dir: tempfile::tempdir().unwrap(), members };
        for n in 0..cluster.members.len() {
            cluster.revive(n);
        }
        assert!(wait_until(PATIENCE, || cluster.leader().is_some()), "no leader: {}", cluster.logs());
        Some(cluster)
    }

    /// The `--coordinator` of a mount.
    pub(crate) fn coordinator(&self) -> String {
        let endpoints: Vec<String> = self.members.iter().map(|m| format!("127.0.0.1:{}", m.client)).collect();
        format!("etcd://{}/fleet", endpoints.join(","))
    }

    /// The member that leads, as those say who are there.
    pub(crate) fn leader(&self) -> Option<usize> {
        (0..self.members.len()).find(|n| {
            let Some(status) = self.status(*n) else { return false };
            let (id, leader) = (&status["header"]["member_id"], &status["leader"]);
            !leader.is_null() && leader != "0" && id == leader
        })
    }

    fn status(&self, n: usize) -> Option<Value> {
        self.members[n].running.as_ref()?;
        let port = self.members[n].client;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let ask = "POST /v3/maintenance/status HTTP/1.0\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
        std::io::Write::write_all(&mut stream, ask.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, n: usize) {
        if let Some((mut keeper, pipe)) = self.members[n].running.take() {
            drop(pipe);
            keeper.wait().unwrap();
        }
    }

    /// Starts a member, or starts it again from its disk.
    pub(crate) fn revive(&mut self, n: usize) {
        let all = self.members.iter().enumerate();
        let initial: Vec<String> = all.map(|(n, m)| format!("m{n}=http://127.0.0.1:{}", m.peer)).collect();
        let member = &self.members[n];
        let [client, peer] = [member.client, member.peer].map(|port| format!("http://127.0.0.1:{port}"));
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(self.log(n))
            .args(["etcd", "--name", &format!("m{n}"), "--data-dir"])
            .arg(self.dir.path().join(format!("m{n}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &initial.join(",")])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pipe = keeper.stdin.take().unwrap();
        self.members[n].running = Some((keeper, pipe));
    }

    fn log(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("log{n}"))
    }

    fn logs(&self) -> String {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        (0..self.members.len()).map(|n| read(&self.log(n))).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for n in 0..self.members.len() {
            self.kill(n);
        }
    }
}
