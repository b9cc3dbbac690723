//! The control file, from outside: one line out, one JSON object back on the same descriptor.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::patience::{ANSWER_WAIT, within};
use crate::error::{Error, Kind, Result};

/// An open control file.
pub(super) struct ControlClient {
    /// Absent once an answer did not come: it may come yet, and would be taken for another's.
    file: Option<BufReader<File>>,
    mountpoint: PathBuf,
}

/// A reply: the JSON object that the daemon sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reply {
    object: Map<String, Value>,
}

/// What became of a command that has no reply.
fn unanswered(line: &str, e: &std::io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => {
            format!(
                "the daemon ended before it answered {line:?}, and may not have done it; mount again and ask"
            )
        }
        _ => format!("the daemon refused {line:?}"),
    }
}

impl ControlClient {
    /// Opens the control file of the mount (or of the tenant's directory) at `mountpoint`.
    pub(super) fn open(mountpoint: &Path, limit: Duration) -> Result<Self> {
        let at = mountpoint.to_owned();
        let open = move || {
            let opened = OpenOptions::new().read(true).write(true).open(at.join(".fencefs/control"));
            opened.map_err(|e| no_mount(&at, e))
        };
        let file = within(limit, mountpoint, open)?;
        Ok(ControlClient { file: Some(BufReader::new(file)), mountpoint: mountpoint.to_owned() })
    }

    /// Sends a command and reads its reply. A command that is refused has a reply too; an error is no reply at all.
    pub(super) fn ask(&mut self, line: &str, limit: Duration) -> Result<Reply> {
        let gone = || Error::new(Kind::NoAnswer, "an earlier answer of the daemon did not come");
        let (mut file, line) = (self.file.take().ok_or_else(gone)?, line.to_owned());
        let (file, reply) = within(limit, &self.mountpoint, move || {
            let sent = file.get_mut().write_all(format!("{line}\n").as_bytes());
            let reply = match (reply(&mut file), sent) {
                (Ok(reply), _) => Ok(reply),
                (Err(_), Err(e)) => Err(Error::os(unanswered(&line, &e), e)),
                (Err(e), Ok(())) => Err(e),
            };
            Ok((file, reply))
        })?;
        self.file = Some(file);
        reply
    }
}

fn reply(file: &mut BufReader<File>) -> Result<Reply> {
    let mut line = String::new();
    let read = file.read_line(&mut line).map_err(|e| Error::os("cannot read the daemon's reply", e))?;
    if read == 0 {
        return Err(Error::new(Kind::NotFound, "the daemon did not reply"));
    }
    Reply::parse(&line)
}

#[cfg(any(test, feature = "fuzzing"))]
/// (fuzzing) Whether a line is a reply; whatever it says, it is shown.
pub(super) fn parses(line: &str) -> bool {
    Reply::parse(line).is_ok_and(|reply| reply.check("do it").is_ok() || !reply.json_line().is_empty())
}

impl Reply {
    pub(super) fn parse(line: &str) -> Result<Self> {
        match serde_json::from_str(line) {
            Ok(Value::Object(object)) => Ok(Reply { object }),
            _ => Err(Error::new(
                Kind::Corrupt,
                format!("the daemon's reply is no JSON object: {:?}", line.trim_end()),
            )),
        }
    }

    /// The reply as the daemon sent it, one line.
    pub(super) fn json_line(&self) -> String {
        format!("{}\n", Value::Object(self.object.clone()))
    }

    /// The same request, of which the daemon says no more.
    pub(super) fn unanswered(&self, why: &Error) -> Self {
        let mut object = self.object.clone();
        let said =
            [("ok", Value::from(false)), ("error", why.errno_name().into()), ("code", why.code().into())];
        object.extend(said.map(|(name, value)| (name.to_owned(), value)));
        object.insert("message".to_owned(), why.to_string().into());
        Reply { object }
    }

    /// A field, if the reply has it.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name)
    }

    /// The refusal as an error, if it is one.
    pub(super) fn check(&self, doing: &str) -> Result<()> {
        if self.get("ok") == Some(&Value::Bool(true)) {
            return Ok(());
        }
        let text = |name| self.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let why = text("message").or(text("code")).or(text("error")).unwrap_or("the daemon does not say why");
        Err(Error::new(Kind::Invalid, format!("{doing}: {why}")))
    }
}

/// The text of a virtual file of the mount.
pub(super) fn read(mountpoint: &Path, name: &str) -> Result<String> {
    let (at, path) = (mountpoint.to_owned(), mountpoint.join(".fencefs").join(name));
    within(ANSWER_WAIT, mountpoint, move || std::fs::read_to_string(path).map_err(|e| no_mount(&at, e)))
}

/// The error of a virtual file that could not be opened or read, with what to do.
fn no_mount(mountpoint: &Path, error: io::Error) -> Error {
    let at = mountpoint.display();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => {
            let sentence = format!("{at}: no fencefs is mounted there (mount it: fencefs mount STORE {at})");
            Error::new(Kind::NotFound, sentence)
        }
        Some(libc::ENOTCONN | libc::ECONNABORTED) => {
            let sentence =
                format!("{at}: the daemon of this mount is gone (mount it again: fencefs mount STORE {at})");
            Error::new(Kind::NotFound, sentence)
        }
        Some(libc::EHOSTUNREACH) => {
            let sentence = format!(
                "the coordinator does not answer the daemon at {at} (`last error` of fencefs status {at} says more)"
            );
            Error::new(Kind::Unreachable, sentence)
        }
        _ => Error::os(format!("cannot reach the daemon at {at}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_objects() {
        let reply = Reply::parse("{\"ok\":true,\"quota_bytes\":5}\n").unwrap();
        assert!(reply.check("x").is_ok());
        assert_eq!(reply.get("quota_bytes"), Some(&Value::from(5)));
        for bad in ["", "[1]\n", "ok\n", "{"] {
            assert_eq!(Reply::parse(bad).unwrap_err().kind(), Kind::Corrupt);
        }
    }

    #[test]
    fn refusals_say_why() {
        let why = |line: &str| Reply::parse(line).unwrap().check("cannot set").unwrap_err().to_string();
        assert_eq!(why(r#"{"ok":false,"error":"EINVAL","code":"EINVAL","message":"no"}"#), "cannot set: no");
        assert_eq!(why(r#"{"ok":false,"error":"EINVAL","message":""}"#), "cannot set: EINVAL");
        assert!(why("{}").contains("does not say"));
    }

    #[test]
    fn a_directory_without_a_mount_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let e = ControlClient::open(dir.path(), Duration::from_secs(60)).err().unwrap();
        assert!(e.to_string().contains("no fencefs is mounted there"));
    }
}
