//! How a daemon takes over a connection that another one has served, or that nobody has yet.
//!
//! The kernel says its first message once. The one who keeps the connection has it, and each daemon's FUSE library gets it
//! through a socket, as if it came from the kernel; its answer goes to the kernel the first time, and must be the same
//! every time after that. Then the connection takes the socket's place.
//!
//! What the kernel remembers of an earlier daemon's is worth nothing: entries are looked up again, because the
//! connection's epoch is raised before the store is opened (Linux 6.16); numbers of inodes and of open files are
//! recognised ([`super::numbers`]) and refused as stale.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use fuser::{Config, Session};

use super::numbers::Incarnation;
use super::requests::Requests;
use super::work;
use crate::error::{Error, Kind, Result};
use crate::os::device;

/// `FUSE_NOTIFY_INC_EPOCH`.
pub(super) const RAISE_EPOCH: i32 = 8;
const MOST_ANSWER_BYTES: usize = 4096;

/// What a daemon is told of the connection that it gets. Its text form stands on the daemon's command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    /// Which daemon of the connection it is.
    pub incarnation: Incarnation,
    /// The connection's number in fusectl.
    pub connection: u32,
    pub(super) first_message: Vec<u8>,
    pub(super) answer: Option<Vec<u8>>,
    /// The file by which one daemon tells the next what the kernel knows.
    pub(super) known: String,
}

impl fmt::Display for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = self.answer.as_deref().unwrap_or_default();
        let [first, answer] = [&self.first_message[..], answer].map(|bytes| STANDARD_NO_PAD.encode(bytes));
        write!(f, "{}:{}:{first}:{answer}:{}", self.incarnation.number(), self.connection, self.known)
    }
}

impl FromStr for Handed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::new(Kind::Invalid, "no description of a connection");
        let [incarnation, connection, first, answer, known] =
            <[&str; 5]>::try_from(text.split(':').collect::<Vec<_>>()).map_err(|_| wrong())?;
        let bytes = |text: &str| STANDARD_NO_PAD.decode(text).map_err(|_| wrong());
        let answer = bytes(answer)?;
        Ok(Handed {
            incarnation: incarnation.parse().ok().and_then(Incarnation::new).ok_or_else(wrong)?,
            connection: connection.parse().map_err(|_| wrong())?,
            first_message: bytes(first)?,
            answer: (!answer.is_empty()).then_some(answer),
            known: known.to_owned(),
        })
    }
}

/// A connection that this daemon holds and does not serve yet.
#[derive(Debug)]
pub struct Takeover {
    handed: Handed,
    /// The keeper's descriptor: only what was read through it can be answered through it.
    kept: OwnedFd,
    own: OwnedFd,
    known: File,
    /// Whether the kernel can be made to forget what it was told.
    forgets: bool,
}

/// What a handle, a directory or a file of an earlier daemon's is.
pub(super) fn of_an_earlier_daemon() -> Error {
    Error::new(Kind::Stale, "opened before the daemon died and was started again (open it once more)")
}

impl Handed {
    /// Takes a descriptor of its own of the connection behind `kept`, and has the kernel forget what it was told. To be
    /// called before the store is opened: nothing that changes there must meet what was remembered before.
    pub fn take(self, kept: OwnedFd) -> Result<Takeover> {
        let own = device::clone_connection(kept.as_fd())?;
        // It looks every entry up again before it uses it.
        let raised = notify(own.as_fd(), RAISE_EPOCH);
        match raised {
            Err(e) if self.answer.is_some() => {
                return Err(Error::os("cannot take the mount over: the kernel forgets nothing", e));
            }
            Err(ref e) => log::info!("this kernel cannot hand a mount over ({e}); Linux 6.16 can"),
            Ok(()) => {}
        }
        let known = OpenOptions::new().read(true).write(true).open(&self.known);
        let known = known.map_err(|e| Error::os("cannot open what the last daemon knew", e))?;
        Ok(Takeover { handed: self, kept, own, known, forgets: raised.is_ok() })
    }

    /// The number of its connection.
    pub fn connection(&self) -> u32 {
        self.connection
    }
}

/// Tells the kernel something that needs no words: a header of an answer to nothing.
pub(super) fn notify(device: BorrowedFd<'_>, code: i32) -> rustix::io::Result<()> {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16_u32.to_ne_bytes());
    message[4..8].copy_from_slice(&code.to_ne_bytes());
    rustix::io::write(device, &message).map(drop)
}

impl Takeover {
    /// Which daemon this is.
    pub fn incarnation(&self) -> Incarnation {
        self.handed.incarnation
    }

    /// The number of the connection.
    pub fn connection(&self) -> u32 {
        self.handed.connection
    }

    /// What the last daemon has written down, if it let go in order. It is said once: a daemon that dies says nothing.
    pub(super) fn take_known(&mut self) -> Result<String> {
        let mut text = String::new();
        let read = self.known.read_to_string(&mut text).and_then(|_| self.known.set_len(0));
        read.map_err(|e| Error::os("cannot read what the last daemon knew", e))?;
        Ok(text)
    }

    /// Where to write down what the next daemon is to know.
    pub(super) fn known_file(&self) -> Result<File> {
        self.known.try_clone().map_err(|e| Error::os("cannot keep a file open", e))
    }

    /// A session that serves it, and the answer that the next daemon must give as well: none where there cannot be one.
    pub(super) fn session(
        self,
        fs: Requests,
        config: Config,
    ) -> Result<(Session<Requests>, Option<Vec<u8>>)> {
        let failed = |e| Error::os("cannot take the mount over", e);
        let (kernel, ours) = UnixDatagram::pair().map_err(failed)?;
        kernel.send(&self.handed.first_message).map_err(failed)?;
        let session = Session::from_fd(fs, ours.into(), config.acl, config).map_err(failed)?;
        kernel.set_nonblocking(true).map_err(failed)?;
        let mut answer = vec![0; MOST_ANSWER_BYTES];
        let length = kernel.recv(&mut answer).map_err(failed)?;
        answer.truncate(length);
        match &self.handed.answer {
            None => {
                rustix::io::write(&self.kept, &answer).map_err(|e| failed(e.into()))?;
            }
            Some(first) if *first == answer => {}
            Some(_) => {
                let why =
                    "cannot take the mount over: it was made with other settings, or by another version";
                return Err(Error::new(Kind::Unsupported, why));
            }
        }
        device::Number::of(session.as_fd()).becomes(self.own.as_fd())?;
        Ok((session, self.forgets.then_some(answer)))
    }
}

/// Takes back, beside the event loop, what earlier daemons gave the kernel as backing: it would keep the blocks of what is
/// evicted. Their ids are below `first`, this daemon's own first one; files that are open keep theirs.
pub(super) fn close_backings(session: &Session<Requests>, first: u32) -> Result<()> {
    let device = session.as_fd().try_clone_to_owned();
    let device = device.map_err(|e| Error::os("cannot keep the connection open", e))?;
    work::thread("fencefs-backing", move || {
        let closed = (1..first).filter(|id| device::close_backing(device.as_fd(), *id).is_ok()).count();
        log::info!("{closed} backing files of earlier daemons were closed");
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_described_in_one_word() {
        for answer in [None, Some(vec![0, 1, 255])] {
            let incarnation = Incarnation::new(3).unwrap();
            let handed = Handed {
                incarnation,
                connection: 7,
                first_message: vec![9; 104],
                answer,
                known: "/proc/1/fd/3".into(),
            };
            let text = handed.to_string();
            assert!(!text.contains(char::is_whitespace), "{text}");
            assert_eq!(text.parse::<Handed>().unwrap(), handed);
        }
        for wrong in ["", "0:1:AA:", "128:1:AA::", "0:x:AA::", "0:1:!::", "0:1:AA:::"] {
            assert!(wrong.parse::<Handed>().is_err(), "{wrong}");
        }
    }
}
