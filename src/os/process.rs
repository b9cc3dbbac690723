//! Questions about the processes that call: is this thread of that process, and how did it end.

use std::path::PathBuf;

/// How far along its end a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It runs, or it ends by exit(2) with whatever status.
    Ordinary,
    /// It is being ended by a signal.
    Killed,
}

const PF_EXITING: u64 = 0x4;

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
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{tid}/stat")) else {
        return Fate::Ordinary;
    };
    // The command name may hold anything; fields are counted from the last parenthesis. Field 3 is the first after it.
    let Some((_, rest)) = stat.rsplit_once(')') else { return Fate::Ordinary };
    let field =
        |n: usize| rest.split_ascii_whitespace().nth(n - 3).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    let (flags, exit_code) = (field(9), field(52));
    if flags & PF_EXITING != 0 && exit_code & 0x7f != 0 { Fate::Killed } else { Fate::Ordinary }
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
