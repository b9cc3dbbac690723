//! The background: our own program started again as a daemon, and the lines by which it says when the mount is live.
//!
//! The daemon writes to its stdout, a pipe: `progress PHASE COUNT` any number of times, `answer BYTES` where it is supervised,
//! then `ready` or `error: SENTENCE`. Before `ready` it has left the terminal, the session and every standard stream of its parent.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::mountpoint::{self, Place};
use super::{one_line, progress};
use crate::error::{Error, Kind, Result};

/// How long a mount that called itself live may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// How long to wait for the last words of a daemon's stderr.
const STDERR_WAIT: Duration = Duration::from_millis(500);
/// Most bytes kept of a daemon's stderr.
const MAX_STDERR_BYTES: u64 = 1 << 16;

/// The daemon's end: how it tells its parent.
pub(super) struct Ready {
    /// Our end of the pipe; gone once the parent knows.
    pipe: Option<File>,
}

impl Ready {
    /// Takes the pipe off stdout, so that nothing else ever writes to it and no child inherits it.
    pub(super) fn take() -> Result<Self> {
        let failed = |e| Error::os("cannot keep the ready pipe", e);
        let pipe = std::io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
        rustix::stdio::dup2_stdout(dev_null()?).map_err(|e| failed(e.into()))?;
        Ok(Ready { pipe: Some(pipe.into()) })
    }

    /// Whether the parent still waits for an answer.
    pub(super) fn is_waiting(&self) -> bool {
        self.pipe.is_some()
    }

    /// Tells how far the opening of the store is. A parent that is gone is found out by [`Ready::live`].
    pub(super) fn progress(&mut self, phase: &str, count: u64) {
        if let Some(pipe) = &mut self.pipe {
            drop(writeln!(pipe, "progress {} {count}", one_line(phase)));
        }
    }

    /// Says what the next daemon of the connection must answer the kernel as well; nothing where there cannot be one.
    pub(super) fn answered(&mut self, answer: Option<&[u8]>) {
        if let (Some(pipe), Some(answer)) = (&mut self.pipe, answer) {
            drop(writeln!(pipe, "answer {}", STANDARD_NO_PAD.encode(answer)));
        }
    }

    /// Leaves the terminal and says that the mount is live; an error if nobody is there to hear it.
    pub(super) fn live(&mut self, log_file: Option<File>) -> Result<()> {
        let failed = |e: rustix::io::Errno| Error::os("cannot leave the terminal", e);
        let stderr = log_file.map_or_else(dev_null, |file| Ok(file.into()))?;
        rustix::stdio::dup2_stderr(stderr).map_err(failed)?;
        rustix::process::setsid().map_err(failed)?;
        self.live_here()
    }

    /// Says that the mount is live, and stays where it is.
    pub(super) fn live_here(&mut self) -> Result<()> {
        if let Some(mut pipe) = self.pipe.take() {
            pipe.write_all(b"ready\n").map_err(|e| {
                let sentence =
                    format!("cannot say that the mount is live, the command that asked is gone: {e}");
                Error::new(Kind::NotFound, sentence)
            })?;
        }
        Ok(())
    }

    /// Says why there will be no mount.
    pub(super) fn failed(&mut self, error: &Error) {
        if let Some(mut pipe) = self.pipe.take()
            && let Err(e) = writeln!(pipe, "error: {}", one_line(&error.to_string()))
        {
            log::error!("{error} (and nobody hears it: {e})");
        }
    }
}

/// One line of a daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Progress { phase: String, count: u64 },
    Answer(Vec<u8>),
    Ready,
    Failed(String),
}

impl Line {
    /// What is not understood says nothing.
    pub(super) fn parse(line: &str) -> Option<Line> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "ready" => Some(Line::Ready),
            "error:" => Some(Line::Failed(rest.to_owned())),
            "answer" => STANDARD_NO_PAD.decode(rest).ok().map(Line::Answer),
            "progress" => {
                let (phase, count) = rest.rsplit_once(' ')?;
                Some(Line::Progress { phase: phase.to_owned(), count: count.parse().ok()? })
            }
            _ => None,
        }
    }
}

pub(super) fn dev_null() -> Result<OwnedFd> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/null");
    opened.map(OwnedFd::from).map_err(|e| Error::os("cannot open /dev/null", e))
}

/// Starts the daemon and returns once its mount answers; whatever fails leaves nothing mounted.
pub(super) fn start(place: &Place, argv: &[std::ffi::OsString]) -> Result<()> {
    let program = std::env::current_exe().map_err(|e| Error::os("cannot find the fencefs program", e))?;
    let mut child = Command::new(&program)
        .args(argv)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Error::os(format!("cannot start {}", program.display()), e))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let stderr = collect(child.stderr.take().expect("stderr is piped"));
    match listen(BufReader::new(stdout)) {
        Heard::Ready => {}
        Heard::Failed(sentence) => {
            wait(&mut child)?;
            return Err(Error::new(Kind::Invalid, sentence));
        }
        Heard::Nothing => {
            let status = wait(&mut child)?;
            clean_up(place);
            return Err(died(status, &stderr.recv_timeout(STDERR_WAIT).unwrap_or_default()));
        }
    }
    if let Err(e) = answers(place) {
        clean_up(place);
        stop(&mut child)?;
        return Err(e);
    }
    // Warnings that came before the mount was live have no other place to go.
    let warnings = stderr.recv_timeout(STDERR_WAIT).unwrap_or_default();
    drop(std::io::stderr().write_all(&warnings));
    Ok(())
}

enum Heard {
    Ready,
    Failed(String),
    Nothing,
}

/// Listens until the daemon has said how it went, or is gone.
fn listen(lines: impl BufRead) -> Heard {
    let mut shown = progress::Progress::new();
    for line in lines.lines().map_while(|line| line.ok()) {
        match Line::parse(&line) {
            Some(Line::Ready) => return Heard::Ready,
            Some(Line::Failed(sentence)) => return Heard::Failed(sentence),
            Some(Line::Progress { phase, count }) => shown.update(&phase, count),
            Some(Line::Answer(_)) | None => {}
        }
    }
    Heard::Nothing
}

/// Collects a stream in a thread of its own: a full pipe would stop the daemon.
fn collect(mut stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        // What was read counts, also when the stream ends in an error; nobody may be left to take it.
        drop(stream.by_ref().take(MAX_STDERR_BYTES).read_to_end(&mut kept));
        drop(std::io::copy(&mut stream, &mut std::io::sink()));
        drop(send.send(kept));
    });
    receive
}

/// How a process ended, in words.
pub(super) fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(signal)) => format!("signal {signal}"),
        (Some(code), None) => format!("exit status {code}"),
        (None, None) => "no exit status".to_owned(),
    }
}

fn died(status: ExitStatus, stderr: &[u8]) -> Error {
    let how = ending(status);
    let text = String::from_utf8_lossy(stderr);
    // Two lines: the first of a panic says only where.
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(2).collect();
    let words = if lines.is_empty() { "it said nothing".to_owned() } else { lines.join(" ") };
    let sentence =
        format!("the daemon died before the mount was live ({how}): {words} (run it with -f to see more)");
    Error::new(Kind::Invalid, sentence)
}

/// Waits until the mountpoint is another device than before: the daemon answered for its root.
fn answers(place: &Place) -> Result<()> {
    let (send, receive) = channel();
    let mountpoint = place.mountpoint.clone();
    // In a thread: a daemon that hangs would take this one along.
    std::thread::spawn(move || drop(send.send(std::fs::metadata(mountpoint).map(|meta| meta.dev()))));
    let at = place.mountpoint.display();
    match receive.recv_timeout(ANSWER_WAIT) {
        Ok(Ok(device)) if device != place.covered_device => Ok(()),
        Ok(Ok(_)) => {
            Err(Error::new(Kind::NotFound, format!("the mount at {at} is gone again: somebody unmounted it")))
        }
        Ok(Err(e)) => Err(Error::os(format!("the mount at {at} does not answer"), e)),
        Err(_) => Err(Error::new(
            Kind::Busy,
            format!("the mount at {at} does not answer after {} seconds", ANSWER_WAIT.as_secs()),
        )),
    }
}

/// Takes away a mount whose daemon is dead or deaf.
fn clean_up(place: &Place) {
    let Ok(mounts) = super::mountinfo::read() else { return };
    let ours = super::mountinfo::topmost(&mounts, &place.mountpoint);
    if ours.is_some_and(|m| m.is_fencefs() && m.source == place.store)
        && let Err(e) = mountpoint::unmount(&place.mountpoint, true)
    {
        super::complain(&e.to_string());
    }
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    child.wait().map_err(|e| Error::os("cannot wait for the daemon", e))
}

fn stop(child: &mut Child) -> Result<()> {
    child.kill().map_err(|e| Error::os("cannot stop the daemon", e))?;
    wait(child).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_heard() {
        assert!(matches!(listen(&b"progress scan 1\nready\n"[..]), Heard::Ready));
        assert!(matches!(listen(&b"progress scan 1\nprogress x\nnoise\n"[..]), Heard::Nothing));
        assert_eq!(Line::parse("answer AAH/"), Some(Line::Answer(vec![0, 1, 255])));
        let progress = Line::Progress { phase: "a b".into(), count: 3 };
        assert_eq!(Line::parse("progress a b 3"), Some(progress));
        match listen(&b"error: cannot open store /s: no\n"[..]) {
            Heard::Failed(sentence) => assert_eq!(sentence, "cannot open store /s: no"),
            _ => panic!("not heard"),
        }
    }

    #[test]
    fn last_words_are_reported() {
        let e = died(ExitStatus::from_raw(9), b"\n  first\nsecond\nthird\n").to_string();
        assert!(e.contains("signal 9") && e.contains("first second (run"), "{e}");
        assert!(died(ExitStatus::from_raw(256), b"").to_string().contains("exit status 1"));
        assert_eq!(collect(&b"abc"[..]).recv().unwrap(), b"abc");
    }
}
