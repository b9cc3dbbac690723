//! What may go wrong with etcd, and what a person can do about it.

use std::time::Duration;

use crate::error::{Error, Kind};

/// Why a call has no answer that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// No endpoint answered, for so long. What was asked may have happened.
    Unreachable { endpoints: Vec<String>, silent: Duration, last: String },
    /// etcd understood, and will not.
    Refused { endpoint: String, code: i64, message: String },
    /// A release whose gateway has another form.
    TooOld { endpoint: String, version: String },
    /// There is etcd, and its gateway is switched off.
    GatewayOff { endpoint: String },
    /// Not with this user, or this password.
    Auth { endpoint: String, message: String },
    /// Something answers that is not etcd, or not as etcd does.
    Garbled { endpoint: String, what: String },
}

/// Codes of gRPC.
pub(super) mod code {
    pub(in super::super) const CANCELLED: i64 = 1;
    pub(in super::super) const INVALID_ARGUMENT: i64 = 3;
    pub(in super::super) const DEADLINE_EXCEEDED: i64 = 4;
    pub(in super::super) const PERMISSION_DENIED: i64 = 7;
    pub(in super::super) const RESOURCE_EXHAUSTED: i64 = 8;
    pub(in super::super) const FAILED_PRECONDITION: i64 = 9;
    pub(in super::super) const UNAVAILABLE: i64 = 14;
    pub(in super::super) const UNAUTHENTICATED: i64 = 16;
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let (kind, sentence) = match failure {
            Failure::Unreachable { endpoints, silent, last } => (
                Kind::Unreachable,
                format!(
                    "no etcd answers at {} (for {} s; the last said: {last}): is it running, and does it have a quorum?",
                    endpoints.join(", "),
                    silent.as_secs()
                ),
            ),
            Failure::Refused { endpoint, code, message } => (
                if code == code::RESOURCE_EXHAUSTED { Kind::NoSpace } else { Kind::Io(libc::EREMOTEIO) },
                format!("etcd at {endpoint} refuses: {message}"),
            ),
            Failure::TooOld { endpoint, version } => (
                Kind::Unsupported,
                format!(
                    "etcd at {endpoint} is version {version}: fencefs needs 3.4 or newer in the whole cluster"
                ),
            ),
            Failure::GatewayOff { endpoint } => (
                Kind::Unsupported,
                format!(
                    "etcd at {endpoint} does not offer its JSON gateway: start it without \
                     --enable-grpc-gateway=false"
                ),
            ),
            Failure::Auth { endpoint, message } => (
                Kind::AccessDenied,
                format!(
                    "etcd at {endpoint} does not let us in: {message} (give user and password in --coordinator-file, \
                     and the user a role that may read and write below the prefix)"
                ),
            ),
            Failure::Garbled { endpoint, what } => {
                (Kind::Corrupt, format!("what answers at {endpoint} does not answer as etcd does: {what}"))
            }
        };
        Error::new(kind, sentence)
    }
}
