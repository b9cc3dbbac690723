//! A real cluster of etcd for a test: on loopback, each member with its own directory and ports, gone with the test.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{run, wait_until};

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
    /// An address beside loopback that clients come by.
    address: Option<String>,
    /// Further arguments of each member.
    more: Vec<String>,
    scheme: &'static str,
}

struct Member {
    client: u16,
    peer: u16,
    metrics: u16,
    running: Option<(Child, ChildStdin)>,
}

impl Cluster {
    /// So many members; `None`, with a word, where etcd is not installed.
    pub(crate) fn start(members: usize) -> Option<Cluster> {
        Cluster::start_at(members, None)
    }

    /// The same, to be reached by another address as well.
    pub(crate) fn start_at(members: usize, address: Option<&str>) -> Option<Cluster> {
        if Command::new("etcd").arg("--version").output().is_err() {
            eprintln!("skipped: there is no etcd (install the package etcd-server)");
            return None;
        }
        // All are held until all are known, so that none is given twice.
        let held: Vec<TcpListener> =
            (0..3 * members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = held.iter().map(|l| l.local_addr().unwrap().port()).collect();
        drop(held);
        let member = |p: &[u16]| Member { client: p[0], peer: p[1], metrics: p[2], running: None };
        let mut cluster = Cluster {
            dir: tempfile::tempdir().unwrap(),
            members: ports.chunks(3).map(member).collect(),
            address: address.map(str::to_owned),
            more: Vec::new(),
            scheme: "http",
        };
        cluster.revive_all();
        Some(cluster)
    }

    /// The `--coordinator` of a mount.
    pub(crate) fn coordinator(&self) -> String {
        let address = self.address.as_deref().unwrap_or("127.0.0.1");
        let endpoints: Vec<String> = self.members.iter().map(|m| format!("{address}:{}", m.client)).collect();
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

    #[track_caller]
    pub(crate) fn wait_for_leader(&self) -> usize {
        let mut leader = None;
        let found = wait_until(PATIENCE, || {
            leader = self.leader();
            leader.is_some()
        });
        assert!(found, "no leader: {}", self.logs());
        leader.unwrap()
    }

    fn status(&self, n: usize) -> Option<Value> {
        self.members[n].running.as_ref()?;
        self.post(n, "/v3/maintenance/status", "{}").ok()
    }

    /// Asks a member whose connections are plain.
    pub(crate) fn post(&self, n: usize, path: &str, body: &str) -> std::io::Result<Value> {
        let head = format!("POST {path} HTTP/1.0\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let answer = said(self.members[n].client, &head)?;
        serde_json::from_str(&answer).map_err(|e| std::io::Error::other(format!("{path}: {e}: {answer}")))
    }

    fn is_healthy(&self, n: usize) -> bool {
        said(self.members[n].metrics, "GET /health HTTP/1.0\r\nHost: x\r\n\r\n")
            .is_ok_and(|answer| answer.contains("true"))
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, n: usize) {
        if let Some((mut keeper, pipe)) = self.members[n].running.take() {
            drop(pipe);
            keeper.wait().unwrap();
        }
    }

    /// Kills every member.
    pub(crate) fn kill_all(&mut self) {
        (0..self.members.len()).for_each(|n| self.kill(n));
    }

    /// Starts every member, or starts it again from its disk, and waits until they answer.
    #[track_caller]
    pub(crate) fn revive_all(&mut self) {
        (0..self.members.len()).for_each(|n| self.revive(n));
        let all = wait_until(PATIENCE, || (0..self.members.len()).all(|n| self.is_healthy(n)));
        assert!(all, "etcd does not come up: {}", self.logs());
    }

    /// Starts a member, or starts it again from its disk.
    pub(crate) fn revive(&mut self, n: usize) {
        if self.members[n].running.is_some() {
            return;
        }
        let all = self.members.iter().enumerate();
        let initial: Vec<String> = all.map(|(n, m)| format!("m{n}=http://127.0.0.1:{}", m.peer)).collect();
        let member = &self.members[n];
        let addresses = std::iter::once("127.0.0.1").chain(self.address.as_deref());
        let client: Vec<String> =
            addresses.map(|address| format!("{}://{address}:{}", self.scheme, member.client)).collect();
        let client = client.join(",");
        let [peer, metrics] = [member.peer, member.metrics].map(|port| format!("http://127.0.0.1:{port}"));
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(self.log(n))
            .args(["etcd", "--name", &format!("m{n}"), "--data-dir"])
            .arg(self.data(n))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--listen-metrics-urls", &metrics])
            .args(["--initial-cluster", &initial.join(",")])
            .args(&self.more)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pipe = keeper.stdin.take().unwrap();
        self.members[n].running = Some((keeper, pipe));
    }

    /// Starts all members again with TLS, and further arguments.
    pub(crate) fn secure(&mut self, more: Vec<String>) {
        self.kill_all();
        (self.scheme, self.more) = ("https", more);
        self.revive_all();
    }

    /// Copies what a cluster that is stopped has on its disks.
    pub(crate) fn back_up(&self, to: &Path) {
        run(Command::new("cp").arg("-a").arg(self.dir.path()).arg(to)).ok();
    }

    /// Has a cluster that is stopped begin again from a copy.
    pub(crate) fn restore(&self, from: &Path) {
        for n in 0..self.members.len() {
            std::fs::remove_dir_all(self.data(n)).unwrap();
            let kept = from.join(self.data(n).file_name().unwrap());
            run(Command::new("cp").arg("-a").arg(kept).arg(self.data(n))).ok();
        }
    }

    fn data(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("m{n}"))
    }

    fn log(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("log{n}"))
    }

    fn logs(&self) -> String {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        (0..self.members.len()).map(|n| read(&self.log(n))).collect()
    }
}

/// The body of the answer to one request.
fn said(port: u16, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    body.ok_or_else(|| std::io::Error::other("no answer"))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill_all();
    }
}
