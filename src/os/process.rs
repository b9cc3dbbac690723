//! Processes and processors. Of a process that calls: is this thread of it, and how did it end.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use crate::error::{Error, Result};

/// How a thread that closes a descriptor is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It runs, or it ends by exit(2) with whatever status.
    Ordinary,
    /// It is being ended by a signal.
    Killed {
        /// The signal.
        signal: i32,
        /// The name of its program.
        program: String,
    },
}

const PF_EXITING: u64 = 0x4;

/// How far the calling thread stands back for every other one of the machine from now on, as in nice(1): below 0 it goes
/// before them, where that is permitted.
pub fn stand_back(nice: i32) {
    if let Err(e) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice) {
        log::debug!("a thread keeps its priority: {e}");
    }
}

/// The process of a thread: the id of its first thread. What is not known any more stands for itself.
pub fn of_thread(tid: u32) -> u32 {
    let Some(pid) = rustix::process::Pid::from_raw(tid as i32) else { return tid };
    // Only a process has a pidfd: the cheap test, and nearly always enough.
    if rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).is_ok() {
        return tid;
    }
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("Tgid:"));
    line.and_then(|t| t.trim().parse().ok()).unwrap_or(tid)
}

/// Whether threads `a` and `b` belong to one process, as far as /proc tells while `a` lives.
/// Thread id 0 is a caller in a foreign pid namespace: nothing is known of it but that it is not one of ours.
pub fn same_process(a: u32, b: u32) -> bool {
    a == b || (a != 0 && b != 0 && PathBuf::from(format!("/proc/{a}/task/{b}")).exists())
}

/// Whether thread `tid` is being ended by a signal. Descriptors of a killed process close like any other's; only
/// this tells the difference.
pub fn fate(tid: u32) -> Fate {
    // A thread that has begun to exit has given up its memory, and with it the link to its program: the cheap test.
    if tid == 0 || std::fs::read_link(format!("/proc/{tid}/exe")).is_ok() {
        return Fate::Ordinary;
    }
    let Some(stat) = Stat::of(tid) else { return Fate::Ordinary };
    let (flags, signal) = (stat.field(9).unwrap_or(0), (stat.field(52).unwrap_or(0) & 0x7f) as i32);
    if flags & PF_EXITING == 0 || signal == 0 {
        return Fate::Ordinary;
    }
    Fate::Killed { signal, program: stat.program().to_owned() }
}

/// What /proc tells of a thread in one line.
struct Stat(String);

impl Stat {
    fn of(tid: u32) -> Option<Stat> {
        std::fs::read_to_string(format!("/proc/{tid}/stat")).ok().map(Stat)
    }

    /// A number, by its place in proc(5). The program's name may hold anything: the third field is the first after its
    /// last parenthesis.
    fn field(&self, n: usize) -> Option<u64> {
        self.0.rsplit_once(')')?.1.split_ascii_whitespace().nth(n.checked_sub(3)?)?.parse().ok()
    }

    fn program(&self) -> &str {
        self.0.rsplit_once(')').and_then(|(head, _)| head.split_once('(')).map_or("", |(_, name)| name)
    }
}

/// Where Linux takes the longest wake that somebody can bear, in microseconds, for as long as the file is open.
const WAKE_LATENCY: &str = "/dev/cpu_dma_latency";

/// Keeps idle processors from sleeping for as long as the file is held.
pub fn keep_processors_awake() -> Result<File> {
    let open = OpenOptions::new().write(true).open(WAKE_LATENCY);
    let hold = open.and_then(|mut file| file.write_all(&0_i32.to_ne_bytes()).map(|()| file));
    hold.map_err(|e| Error::os(format!("cannot keep processors awake through {WAKE_LATENCY}"), e))
}

/// The name of a thread's program, as far as /proc tells.
pub fn program(tid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{tid}/comm")).ok()?;
    Some(name.trim_end_matches('\n').to_owned())
}

/// The supplementary groups of a thread, as far as /proc tells.
pub fn groups(tid: u32) -> Option<Vec<u32>> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Groups:"))?;
    line.split_ascii_whitespace().map(|g| g.parse().ok()).collect()
}

/// Whether the process of thread `tid` was started by that of `ancestor`, over at most a few generations.
pub fn descends_from(tid: u32, ancestor: u32) -> bool {
    let mut at = tid;
    for _ in 0..8 {
        match Stat::of(at).and_then(|stat| stat.field(4)).and_then(|parent| u32::try_from(parent).ok()) {
            None | Some(0) => return false,
            Some(parent) if same_process(ancestor, parent) => return true,
            Some(parent) => at = parent,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_this_process() {
        let me = std::process::id();
        let other = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let _tid = other.join();
        assert!(same_process(me, rustix::thread::gettid().as_raw_nonzero().get() as u32));
        assert!(!same_process(me, 1));
        assert!(!same_process(0, me));
        assert_eq!(fate(me), Fate::Ordinary);
    }
}
