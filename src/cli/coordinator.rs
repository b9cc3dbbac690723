//! Who keeps the removal requests, from the command line and the file that says more of it.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;
use clap::error::ErrorKind;

use crate::config::{Coordinator, CoordinatorWords, EtcdSettings};
use crate::error::{Error, Kind, Result};

/// Parses what stands on a command line. What is wrong with it is said without repeating it: clap would, and it may hold
/// a password, which would then be in a log as well.
#[derive(Debug, Clone)]
pub(super) struct WordsParser;

impl TypedValueParser for WordsParser {
    type Value = CoordinatorWords;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> std::result::Result<CoordinatorWords, clap::Error> {
        let words = value.to_str().map_or_else(
            || Err(Error::new(Kind::Invalid, "a coordinator is named in UTF-8")),
            str::parse::<CoordinatorWords>,
        );
        let said = |e: Error| {
            clap::Error::raw(ErrorKind::ValueValidation, format!("--coordinator: {e}\n")).with_cmd(command)
        };
        words.map_err(said)
    }
}

/// The coordinator that these words and the file make, by paths that mean the same from everywhere.
///
/// # Errors
/// [`Kind::Invalid`] where they make none; [`Kind::AccessDenied`] for a file with a password that others may read.
pub(super) fn read(mut words: CoordinatorWords, file: Option<&Path>) -> Result<Coordinator> {
    if let Some(path) = file.map(Path::to_owned).or_else(|| words.file()) {
        let of_file = |e: Error| e.context(path.display());
        let cannot = |e| Error::os(format!("cannot read {}", path.display()), e);
        let text = std::fs::read_to_string(&path).map_err(cannot)?;
        words.add_file(&text).map_err(of_file)?;
        let mode = std::fs::metadata(&path).map_err(cannot)?.permissions().mode();
        if words.has_secret() && mode & 0o077 != 0 {
            let sentence =
                format!("{} holds a password and others may read it: chmod 600 {0}", path.display());
            return Err(Error::new(Kind::AccessDenied, sentence));
        }
    }
    let mut coordinator = words.coordinator()?;
    if let Coordinator::Etcd(EtcdSettings { tls: Some(tls), .. }) = &mut coordinator {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path).map_err(|e| Error::os(format!("cannot find {}", path.display()), e))
        };
        tls.ca = absolute(&tls.ca)?;
        if let Some((certificate, key)) = &tls.identity {
            tls.identity = Some((absolute(certificate)?, absolute(key)?));
        }
    }
    Ok(coordinator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_in_a_file_that_nobody_else_reads() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c");
        std::fs::write(&file, "user=u\npassword=p\nca=some.pem\n").unwrap();
        let words: CoordinatorWords = "etcd://h:1/p".parse().unwrap();
        let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        let e = read(words.clone(), Some(&file)).unwrap_err();
        assert_eq!(e.kind(), Kind::AccessDenied);
        assert!(e.to_string().contains("chmod 600"), "{e}");
        mode(0o600);
        let Coordinator::Etcd(settings) = read(words.clone(), Some(&file)).unwrap() else { panic!("local") };
        assert_eq!(settings.user.unwrap().password.expose(), "p");
        assert!(settings.tls.unwrap().ca.is_absolute());
        assert_eq!(read(words, Some(&dir.path().join("none"))).unwrap_err().kind(), Kind::NotFound);
    }
}
