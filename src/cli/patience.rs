//! How long a command waits for the daemon. A daemon that is stopped, or hangs, answers nothing and refuses nothing, so
//! whatever asks it does so on a thread of its own, and the command goes on without it.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use crate::error::{Error, Kind, Result};

/// For commands that do not say how long.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Asks the daemon of the mount at `mountpoint`, and gives up after `limit`.
///
/// # Errors
/// [`Kind::NoAnswer`] then; what `work` says.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    mountpoint: &Path,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (tell, told) = mpsc::channel();
    let ask = move || {
        // Nobody listens any more where it took too long.
        drop(tell.send(work()));
    };
    std::thread::Builder::new().spawn(ask).map_err(|e| Error::os("cannot start a thread", e))?;
    told.recv_timeout(limit).unwrap_or_else(|_| Err(no_answer(limit, mountpoint)))
}

fn no_answer(limit: Duration, mountpoint: &Path) -> Error {
    let at = mountpoint.display();
    Error::new(
        Kind::NoAnswer,
        format!(
            "{at}: the daemon did not answer within {limit:?} (is it stopped, or does its disk hang? to detach the mount: \
             fencefs umount --lazy {at})"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_time_is_passed_on_and_none_is_an_error() {
        let at = Path::new("/m");
        assert_eq!(within(ANSWER_WAIT, at, || Ok(7)).unwrap(), 7);
        let refused = within(ANSWER_WAIT, at, || Err::<(), _>(Error::new(Kind::NotFound, "no")));
        assert_eq!(refused.unwrap_err().kind(), Kind::NotFound);
        let (_held, wait) = mpsc::channel::<()>();
        let e = within(Duration::from_millis(10), at, move || Ok(wait.recv().is_ok())).unwrap_err();
        assert_eq!((e.kind(), e.errno()), (Kind::NoAnswer, libc::ETIMEDOUT));
        assert!(e.to_string().starts_with("/m: the daemon did not answer within 10ms"), "{e}");
    }
}
