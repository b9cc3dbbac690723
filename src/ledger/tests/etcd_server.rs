//! A real etcd for tests: on loopback, with a directory of its own, gone with the test process.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::config::EtcdSettings;

/// Ends etcd, by its own process id, when the other end of the pipe is gone: whichever way the tests end.
const KEEPER: &str = r#"
dir=$1; shift
"$@" >"$dir/log" 2>&1 &
pid=$!
cat >/dev/null
kill -9 $pid
wait $pid 2>/dev/null
[ -e "$dir/keep" ] || rm -rf "$dir"
"#;

/// A cluster of one.
pub(crate) struct EtcdServer {
    pub(crate) client: u16,
    peer: u16,
    dir: std::path::PathBuf,
    more: Vec<String>,
    keeper: Child,
    pipe: Option<ChildStdin>,
}

impl EtcdServer {
    /// The one of all tests that do nothing to it; `None`, with a word, where etcd is not installed.
    pub(crate) fn shared() -> Option<&'static EtcdServer> {
        static SHARED: OnceLock<Option<EtcdServer>> = OnceLock::new();
        SHARED.get_or_init(|| EtcdServer::start(&[])).as_ref()
    }

    /// One of a test's own. `more` are further arguments.
    pub(crate) fn start(more: &[&str]) -> Option<EtcdServer> {
        let found = Command::new("etcd").arg("--version").output();
        if found.is_err() {
            eprintln!("skipped: there is no etcd (install the package etcd-server)");
            return None;
        }
        let (client, peer) = (free_port(), free_port());
        let dir = tempfile::tempdir().unwrap().keep();
        let more: Vec<String> = more.iter().map(|m| (*m).to_owned()).collect();
        let (keeper, pipe) = run(&dir, client, peer, &more);
        let server = EtcdServer { client, peer, dir, more, keeper, pipe: Some(pipe) };
        server.wait_until_there();
        Some(server)
    }

    /// Starts it again after [`EtcdServer::stop`], from what it has on its disk.
    pub(crate) fn start_again(&mut self) {
        let (keeper, pipe) = run(&self.dir, self.client, self.peer, &self.more);
        (self.keeper, self.pipe) = (keeper, Some(pipe));
        self.wait_until_there();
    }

    /// Kills it; what it has on its disk stays.
    pub(crate) fn stop(&mut self) {
        std::fs::write(self.dir.join("keep"), "").unwrap();
        self.end();
        std::fs::remove_file(self.dir.join("keep")).unwrap();
    }

    fn end(&mut self) {
        self.pipe = None;
        self.keeper.wait().unwrap();
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client)
    }

    /// A ledger of nobody else's.
    pub(crate) fn settings(&self) -> EtcdSettings {
        EtcdSettings {
            endpoints: vec![self.endpoint()],
            prefix: format!("test/{}", Uuid::new_v4()),
            ..EtcdSettings::default()
        }
    }

    fn wait_until_there(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        let health = format!("http://{}/health", self.endpoint());
        let agent = ureq::Agent::config_builder().proxy(None).build().new_agent();
        while agent.get(&health).call().is_err() {
            let log = || std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "etcd did not come up: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.end();
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn run(dir: &Path, client: u16, peer: u16, more: &[String]) -> (Child, ChildStdin) {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let mut keeper = Command::new("sh")
        .args(["-c", KEEPER, "keeper"])
        .arg(dir)
        .args(["etcd", "--name", "one", "--data-dir"])
        .arg(dir.join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("one={peer}")])
        .args(more)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pipe = keeper.stdin.take().unwrap();
    (keeper, pipe)
}
