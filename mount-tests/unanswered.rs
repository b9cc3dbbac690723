//! Commands of a daemon that does not answer, and of one that dies while it is waited for.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{BINARY, each, fencefs, wait_until};
use crate::removals::{PATIENCE, Stuck, requests, two_tenants, wait_complete};

/// Twice what the longest of them is to wait.
const LONGEST: Duration = Duration::from_secs(25);

/// Goes on when dropped: a test that fails must not leave a mount that hangs.
pub(crate) struct Stopped(pub(crate) Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).ok();
    }
}

/// A stopped daemon refuses nothing: each command gives up by itself, says so, and has a status of its own.
#[test]
fn commands_give_up_on_a_daemon_that_is_stopped() {
    each(|m| {
        two_tenants(m);
        let mnt = m.mnt.to_str().unwrap().to_owned();
        let key = m.mnt.join("a/k1").to_str().unwrap().to_owned();
        kill_process(m.pid(), Signal::STOP).unwrap();
        let stopped = Stopped(m.pid());
        // Each of its threads stops by itself; one that took a request before that would hold its caller in the kernel.
        std::thread::sleep(Duration::from_millis(500));
        let commands = [
            vec!["remove-all", &mnt, "--tenant", "a", "--timeout", "2s"],
            vec!["remove-all", &mnt, "--tenant", "a", "--no-wait", "--timeout", "1s", "--json"],
            vec!["status", &mnt, "--json"],
            vec!["requests", &mnt],
            vec!["quota", &mnt],
            vec!["pin", &key],
            vec!["umount", &mnt],
        ];
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for command in &commands {
                scope.spawn(move || {
                    let (code, text) = fencefs(command).failed();
                    let took = begun.elapsed();
                    assert_eq!(code, 3, "{command:?}: {text}");
                    assert!(text.contains("did not answer"), "{command:?}: {text}");
                    assert_eq!(text.trim_end().lines().count(), 1, "{command:?}: {text}");
                    let most = if command[0] == "remove-all" { Duration::from_secs(8) } else { LONGEST };
                    assert!(took < most, "{command:?} took {took:?}");
                });
            }
        });
        // Ctrl-C ends one that waits. A test may have been started with the signal ignored, which children inherit.
        let mut waiting = Command::new("env")
            .args(["--default-signal=INT", BINARY, "remove-all", &mnt, "--tenant", "a", "--timeout", "10m"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(waiting.try_wait().unwrap().is_none(), "it waits");
        kill_process(Pid::from_child(&waiting), Signal::INT).unwrap();
        assert!(wait_until(PATIENCE, || waiting.try_wait().unwrap().is_some()), "Ctrl-C does not end it");
        drop(stopped);
        fencefs(["status", &mnt]).ok();
    });
}

/// What was accepted is carried out, whatever becomes of the daemon: a caller that waits is told so.
#[test]
fn who_waits_for_a_daemon_that_dies_is_told_that_the_request_is_durable() {
    each(|m| {
        for json in [false, true] {
            two_tenants_again(m, json);
            let Some(mut stuck) = Stuck::new(m, "a/k1") else { return };
            let asked = requests(m).len();
            let mut command = Command::new(BINARY);
            command.arg("remove-all").arg(&m.mnt).args(["--tenant", "a", "--timeout", "10m"]);
            command.args(json.then_some("--json"));
            let waiting =
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            assert!(wait_until(PATIENCE, || requests(m).len() > asked));
            let number = crate::removals::generation(requests(m).last().unwrap());
            std::thread::sleep(Duration::from_millis(200));
            m.kill();
            let output = waiting.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{said}");
            let told = format!("request {number} is durable and is finished at the next mount");
            assert!(said.contains(&told), "{said}");
            if json {
                let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!((&reply["ok"], &reply["generation"]), (&false.into(), &number.into()), "{reply}");
                assert!(reply["message"].as_str().unwrap().contains(&told), "{reply}");
            }
            stuck.release();
            m.mount();
            wait_complete(m, &format!("generation={number}"));
        }
    });
}

fn two_tenants_again(m: &crate::harness::Mount, again: bool) {
    if again {
        m.shell("echo x > $R/a/k1").ok();
    } else {
        two_tenants(m);
    }
}
