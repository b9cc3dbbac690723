//! The control file, from outside: one line out, one JSON object back on the same descriptor.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Kind, Result};

/// An open control file.
pub(super) struct ControlClient {
    file: BufReader<File>,
}

/// A reply: the JSON object that the daemon sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reply {
    object: Map<String, Value>,
}

impl ControlClient {
    /// Opens the control file of the mount (or of the tenant's directory) at `mountpoint`.
    pub(super) fn open(mountpoint: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(mountpoint.join(".fencefs/control"))
            .map_err(|e| no_mount(mountpoint, e))?;
        Ok(ControlClient { file: BufReader::new(file) })
    }

    /// Sends a command and reads its reply. A command that is refused has a reply too; an error is no reply at all.
    pub(super) fn ask(&mut self, line: &str) -> Result<Reply> {
        let sent = self.file.get_mut().write_all(format!("{line}\n").as_bytes());
        match (self.reply(), sent) {
            (Ok(reply), _) => Ok(reply),
            (Err(_), Err(refused)) => Err(Error::os(format!("the daemon refused {line:?}"), refused)),
            (Err(e), Ok(())) => Err(e),
        }
    }

    /// Reads the next reply.
    pub(super) fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        let read =
            self.file.read_line(&mut line).map_err(|e| Error::os("cannot read the daemon's reply", e))?;
        if read == 0 {
            return Err(Error::new(Kind::NotFound, "the daemon did not reply"));
        }
        Reply::parse(&line)
    }
}

impl Reply {
    fn parse(line: &str) -> Result<Self> {
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

/// The error of a virtual file that could not be opened or read, with what to do.
pub(super) fn no_mount(mountpoint: &Path, error: io::Error) -> Error {
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
        let e = ControlClient::open(dir.path()).err().unwrap();
        assert!(e.to_string().contains("no fencefs is mounted there"));
    }
}
