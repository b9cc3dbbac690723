//! The one error type, and the one table from its kind to an errno, a code word and an exit status.
//!
//! Inside the crate errors are typed; the errno exists only at the edge ([`Error::errno`]). "Absent" is not an
//! error: look-ups return `Option`. Messages are sentences: what was being done, to what, what to do about it.

use std::borrow::Cow;
use std::fmt;
use std::io;

/// Result of every fallible operation of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller can act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The key, directory, tenant or node does not exist (any more).
    NotFound,
    /// The name is taken.
    Exists,
    /// The directory holds entries.
    NotEmpty,
    /// A directory stands where a value was meant.
    IsDirectory,
    /// A value stands where a directory was meant.
    NotDirectory,
    /// Malformed input: a bad tenant name, option, command or offset.
    Invalid,
    /// The key or a component of it is longer than the store carries.
    NameTooLong,
    /// The store's quota cannot make room.
    NoSpace,
    /// The tenant's quota cannot make room.
    TenantQuota,
    /// The scope is still being removed. Nothing has happened: the same may be tried again.
    Busy,
    /// The write was admitted before a removal; its generation is gone.
    Stale,
    /// A rename that leaves its tenant, or a directory with entries.
    CrossTenant,
    /// An operation that the filesystem does not offer on this object.
    NotPermitted,
    /// The caller may not do this.
    AccessDenied,
    /// The backing filesystem, kernel or build cannot do this.
    Unsupported,
    /// A record, format file or ledger that does not hold what it must.
    Corrupt,
    /// Another daemon holds the store.
    Locked,
    /// The extended attribute does not exist.
    NoAttribute,
    /// The buffer offered is too small.
    Range,
    /// More symbolic links or handles than allowed.
    TooMany,
    /// Not every path of a tenant is proven to be that tenant's: nothing of it is removed.
    UnprovenOwnership,
    /// There is no such tenant.
    UnknownTenant,
    /// The generation is older than the one that counts.
    StaleGeneration,
    /// The daemon did not answer in time.
    NoAnswer,
    /// The coordinator does not answer: what was asked of it may have happened.
    Unreachable,
    /// The disk failed: the operating system's errno.
    Io(i32),
}

/// An error: its kind, a sentence for people, and what caused it.
pub struct Error {
    kind: Kind,
    context: Cow<'static, str>,
    source: Option<io::Error>,
}

impl Error {
    /// An error of `kind`; `context` is the sentence a person reads.
    pub fn new(kind: Kind, context: impl Into<Cow<'static, str>>) -> Self {
        Error { kind, context: context.into(), source: None }
    }

    /// Wraps an operating system error met while doing `context`.
    pub fn os(context: impl Into<Cow<'static, str>>, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        let kind = kind_of_errno(source.raw_os_error().unwrap_or(libc::EIO));
        Error { kind, context: context.into(), source: Some(source) }
    }

    /// The same error, said of something.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        Error { context: format!("{what}: {}", self.context).into(), ..self }
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The errno that a program sees.
    pub fn errno(&self) -> i32 {
        match self.kind {
            Kind::NotFound | Kind::UnknownTenant => libc::ENOENT,
            Kind::Exists => libc::EEXIST,
            Kind::NotEmpty => libc::ENOTEMPTY,
            Kind::IsDirectory => libc::EISDIR,
            Kind::NotDirectory => libc::ENOTDIR,
            Kind::Invalid => libc::EINVAL,
            Kind::NameTooLong => libc::ENAMETOOLONG,
            Kind::NoSpace => libc::ENOSPC,
            Kind::TenantQuota => libc::EDQUOT,
            Kind::Busy | Kind::Locked => libc::EBUSY,
            Kind::Stale | Kind::StaleGeneration => libc::ESTALE,
            Kind::CrossTenant => libc::EXDEV,
            Kind::NotPermitted => libc::EPERM,
            Kind::AccessDenied => libc::EACCES,
            Kind::Unsupported | Kind::UnprovenOwnership => libc::EOPNOTSUPP,
            Kind::Corrupt => libc::EIO,
            Kind::NoAttribute => libc::ENODATA,
            Kind::Range => libc::ERANGE,
            Kind::TooMany => libc::EMFILE,
            Kind::NoAnswer => libc::ETIMEDOUT,
            Kind::Unreachable => libc::EHOSTUNREACH,
            Kind::Io(errno) => errno,
        }
    }

    /// Whether a disk, or the daemon's quota on it, has no room left for what was being done.
    pub fn is_full_disk(&self) -> bool {
        matches!(self.kind, Kind::NoSpace | Kind::Io(libc::EDQUOT))
    }

    /// The exit status of a command that it ends.
    pub fn exit_status(&self) -> u8 {
        match self.kind {
            Kind::NoAnswer => 3,
            _ => 1,
        }
    }

    /// The errno's name, for instance `"EINVAL"`.
    pub fn errno_name(&self) -> &'static str {
        errno_name(self.errno())
    }

    /// The code word in control replies: the errno's name, or one that says more.
    pub fn code(&self) -> &'static str {
        match self.kind {
            Kind::UnprovenOwnership => "UNSUPPORTED_TENANT_LOCAL_CLEANUP",
            Kind::UnknownTenant => "UNKNOWN_TENANT",
            Kind::StaleGeneration => "STALE_GENERATION",
            _ => self.errno_name(),
        }
    }
}

fn kind_of_errno(errno: i32) -> Kind {
    match errno {
        libc::ENOENT => Kind::NotFound,
        libc::EEXIST => Kind::Exists,
        libc::ENOTEMPTY => Kind::NotEmpty,
        libc::EISDIR => Kind::IsDirectory,
        libc::ENOTDIR => Kind::NotDirectory,
        libc::ENOSPC => Kind::NoSpace,
        libc::EOPNOTSUPP => Kind::Unsupported,
        libc::ENODATA => Kind::NoAttribute,
        libc::EACCES => Kind::AccessDenied,
        libc::ENAMETOOLONG => Kind::NameTooLong,
        libc::ERANGE => Kind::Range,
        other => Kind::Io(other),
    }
}

/// The name of an errno that fencefs itself answers with; `"EIO"` for the rest.
pub fn errno_name(errno: i32) -> &'static str {
    match errno {
        libc::ENOENT => "ENOENT",
        libc::EEXIST => "EEXIST",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::EISDIR => "EISDIR",
        libc::ENOTDIR => "ENOTDIR",
        libc::EINVAL => "EINVAL",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOSPC => "ENOSPC",
        libc::EDQUOT => "EDQUOT",
        libc::EBUSY => "EBUSY",
        libc::ESTALE => "ESTALE",
        libc::EXDEV => "EXDEV",
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENODATA => "ENODATA",
        libc::ERANGE => "ERANGE",
        libc::EMFILE => "EMFILE",
        libc::ENFILE => "ENFILE",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ENOTCONN => "ENOTCONN",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::E2BIG => "E2BIG",
        libc::EROFS => "EROFS",
        _ => "EIO",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {}", self.context, source),
            None => f.write_str(&self.context),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Error::os("system call failed", io::Error::from(errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_errors_keep_their_errno() {
        for errno in
            [libc::ENOENT, libc::EEXIST, libc::ENOSPC, libc::EIO, libc::EROFS, libc::ENOTEMPTY, libc::ERANGE]
        {
            let e = Error::os("reading x", io::Error::from_raw_os_error(errno));
            assert_eq!(e.errno(), errno);
            assert_eq!(e.code(), errno_name(errno));
            assert!(e.to_string().starts_with("reading x: "));
        }
    }
}
