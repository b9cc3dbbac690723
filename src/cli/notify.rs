//! What a service manager is told by its protocol (sd_notify): one datagram a message to the socket in `NOTIFY_SOCKET`.
//!
//! Only the process that the manager started speaks, and nobody that it starts inherits the socket's name.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use super::one_line;

/// The name of the socket.
pub(super) const SOCKET: &str = "NOTIFY_SOCKET";
/// How often the manager wants to hear of a service that is well.
pub(super) const WATCHDOG: &str = "WATCHDOG_USEC";
/// The process that is to say so.
pub(super) const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";
/// How much longer a start that makes progress may take.
const MORE_TIME: Duration = Duration::from_secs(30);

/// The service manager, if one started this process.
#[derive(Debug, Default)]
pub(super) struct Service {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl Service {
    /// The one in the environment. A name that nobody can send to is as good as none.
    pub(super) fn take() -> Service {
        Service::at(std::env::var_os(SOCKET))
    }

    fn at(name: Option<OsString>) -> Service {
        let connect = |name: &OsString| {
            let address = match name.as_bytes() {
                [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
                _ => SocketAddr::from_pathname(name)?,
            };
            Ok::<_, std::io::Error>((UnixDatagram::unbound()?, address))
        };
        let socket = name.filter(|name| !name.is_empty()).and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(e) => {
                log::warn!("cannot tell the service manager anything at {}: {e}", name.display());
                None
            }
        });
        Service { socket }
    }

    /// How often it wants to hear that the service is well: no more than half its patience goes by in between.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let meant = number(WATCHDOG_PROCESS).is_none_or(|pid| pid == u64::from(std::process::id()));
        let usec = number(WATCHDOG).filter(|usec| *usec > 0)?;
        (meant && self.socket.is_some()).then(|| Duration::from_micros(usec / 2))
    }

    /// The store is being opened, and comes on.
    pub(super) fn opening(&self, phase: &str, count: u64) {
        let more = MORE_TIME.as_micros();
        let phase = one_line(phase);
        self.send(&format!("STATUS={phase}: {count}\nEXTEND_TIMEOUT_USEC={more}\nWATCHDOG=1"));
    }

    /// The mount answers.
    pub(super) fn ready(&self, mountpoint: &Path) {
        self.send(&format!("READY=1\nSTATUS=Serving {}", one_line(&mountpoint.display().to_string())));
    }

    /// The mount still answers.
    pub(super) fn well(&self) {
        self.send("WATCHDOG=1");
    }

    /// What there is to say.
    pub(super) fn status(&self, sentence: &str) {
        self.send(&format!("STATUS={}", one_line(sentence)));
    }

    /// The end has begun.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=Unmounting");
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(e) = socket.send_to_addr(message.as_bytes(), address)
        {
            log::warn!("cannot tell the service manager {message:?}: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_datagrams_of_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let heard = || {
            let mut bytes = [0; 256];
            let length = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        let service = Service::at(Some(path.clone().into()));
        service.opening("re\ncover", 7);
        assert_eq!(heard(), "STATUS=re; cover: 7\nEXTEND_TIMEOUT_USEC=30000000\nWATCHDOG=1");
        service.ready(Path::new("/m"));
        assert_eq!(heard(), "READY=1\nSTATUS=Serving /m");
        service.stopping();
        assert_eq!(heard(), "STOPPING=1\nSTATUS=Unmounting");
    }

    #[test]
    fn a_socket_may_have_no_file() {
        let name = format!("fencefs-test-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Service::at(Some(format!("@{name}").into())).well();
        let mut bytes = [0; 64];
        let length = manager.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"WATCHDOG=1");
    }

    #[test]
    fn nobody_is_told_where_nobody_listens() {
        for name in [None, Some(OsString::new()), Some("/no/such/socket".into())] {
            Service::at(name).well();
        }
    }
}
