//! Another process, led step by step: a python3 that runs one line at a time and answers each.
//!
//! What two processes do to each other is then a straight list of steps, without a sleep in it: a step is over
//! before the next one begins. In a step `M` is the directory of plain keys, `R` the mount, `W` a scratch directory.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Mount, python3};

const STEP_TIMEOUT: Duration = Duration::from_secs(60);

const INTERPRETER: &str = r#"
import errno, fcntl, hashlib, json, mmap, os, shutil, signal, stat, subprocess, sys, tempfile
M, R, W = sys.argv[1:4]
def read(path):
    with open(path, 'rb') as f: return f.read()
def write(path, data):
    with open(path, 'wb') as f: f.write(data)
for line in sys.stdin:
    source = json.loads(line)
    try:
        try: code = compile(source, 'step', 'eval')
        except SyntaxError: code = None
        if code is None: exec(source, globals()); result = None
        else: result = eval(code, globals())
        if isinstance(result, bytes): result = result.decode('latin-1')
        answer = {'ok': result}
    except OSError as e: answer = {'errno': errno.errorcode.get(e.errno, str(e)), 'text': repr(e)}
    except BaseException as e: answer = {'exception': repr(e)}
    print(json.dumps(answer), flush=True)
"#;

/// A python3 that waits for its next step.
pub(crate) struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Peer {
    /// Starts one that sees the given mount.
    pub(crate) fn start(mount: &Mount) -> Peer {
        let mut child = Command::new(python3())
            .args(["-u", "-c", INTERPRETER])
            .args([mount.keys(), mount.mnt.clone(), mount.scratch.clone()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is needed for these tests");
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (send, answers) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        Peer { child, stdin, answers }
    }

    /// Begins a step without waiting for its end; `finish` waits.
    pub(crate) fn begin(&mut self, source: &str) {
        let mut line = serde_json::to_vec(source).unwrap();
        line.push(b'\n');
        self.stdin.as_mut().expect("not killed").write_all(&line).expect("the peer takes a step");
    }

    /// The answer to the step that `begin` began.
    pub(crate) fn finish(&mut self) -> Value {
        match self.answers.recv_timeout(STEP_TIMEOUT) {
            Ok(answer) => serde_json::from_str(&answer).unwrap(),
            Err(e) => {
                self.kill();
                panic!("the peer gave no answer: {e}")
            }
        }
    }

    fn step(&mut self, source: &str) -> Value {
        self.begin(source);
        self.finish()
    }

    /// Runs a step that must work and gives its value.
    #[track_caller]
    pub(crate) fn run(&mut self, source: &str) -> Value {
        let answer = self.step(source);
        match answer.get("ok") {
            Some(value) => value.clone(),
            None => panic!("`{source}` failed: {answer}"),
        }
    }

    /// Runs a step whose value is text or bytes (as latin-1).
    #[track_caller]
    pub(crate) fn text(&mut self, source: &str) -> String {
        self.run(source).as_str().unwrap_or_else(|| panic!("`{source}` gave no text")).to_owned()
    }

    /// Runs a step whose value is a number.
    #[track_caller]
    pub(crate) fn int(&mut self, source: &str) -> i64 {
        self.run(source).as_i64().unwrap_or_else(|| panic!("`{source}` gave no number"))
    }

    /// Runs a step that must fail with an errno, and gives its name.
    #[track_caller]
    pub(crate) fn error(&mut self, source: &str) -> String {
        let answer = self.step(source);
        match answer.get("errno").and_then(Value::as_str) {
            Some(name) => name.to_owned(),
            None => panic!("`{source}` should have failed with an errno: {answer}"),
        }
    }

    /// `ok`, or the name of the errno, for steps that may go either way.
    #[track_caller]
    pub(crate) fn outcome(&mut self, source: &str) -> String {
        let answer = self.step(source);
        match answer.get("errno").and_then(Value::as_str) {
            Some(name) => name.to_owned(),
            None if answer.get("ok").is_some() => "ok".to_owned(),
            None => panic!("`{source}` raised: {answer}"),
        }
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.stdin = None;
        self.child.kill().expect("the peer is ours");
        self.child.wait().expect("the peer is ours");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stdin = None;
        if let Err(e) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("a peer could not be ended: {e}");
        }
    }
}
