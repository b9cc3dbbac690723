//! Named steps: where tests, with the feature `failpoints`, inject an error, stop the process or stall. Without the
//! feature they are nothing.

/// Marks a named step of a function that returns [`crate::Result`].
///
/// With the feature, `return` makes the step fail with EIO, `return(enospc)` with ENOSPC, and `return(kill)` ends the
/// process as `kill -9` does.
macro_rules! step {
    ($name:literal) => {
        fail::fail_point!($name, |word| Err($crate::step::injected($name, word)))
    };
}

/// Marks a named moment that tests can stretch, where nothing can fail.
macro_rules! stall {
    ($name:literal) => {
        fail::fail_point!($name)
    };
}

/// The error that a fail point stands for.
#[cfg(feature = "failpoints")]
pub(crate) fn injected(step: &'static str, word: Option<String>) -> crate::Error {
    let errno = match word.as_deref() {
        Some("kill") => {
            let killed =
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            panic!("the process outlived its end at {step}: {killed:?}");
        }
        Some("enospc") => libc::ENOSPC,
        _ => libc::EIO,
    };
    crate::Error::os(format!("injected at {step}"), std::io::Error::from_raw_os_error(errno))
}
