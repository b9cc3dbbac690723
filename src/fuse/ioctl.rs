//! The ioctls of the control files: a removal submitted, and its state.
//!
//! `struct fencefs_remove_all` in the byte order of the machine: u32 version, scope, flags, state; char tenant[256]; u64
//! generation, reserved.

use std::sync::Arc;

use fuser::{Errno, ReplyIoctl};
use rustix::ioctl::{Opcode, opcode};

use super::Fs;
use super::files::Caller;
use super::requests::errno;
use super::virt::VirtualIno;
use crate::control::permission::may_remove;
use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::ledger::{RequestName, State};
use crate::scope::{Generation, Mode, Scope};

const BYTES: usize = 288;
const GROUP: u8 = 0xfc;
const REMOVE_ALL: Opcode = opcode::read_write::<[u8; BYTES]>(GROUP, 1);
const QUERY: Opcode = opcode::read_write::<[u8; BYTES]>(GROUP, 2);

const VERSION: u32 = 1;
const FLAG_LOGICAL: u32 = 1;
const STATE_AT: usize = 12;
const TENANT_AT: usize = 16;
const GENERATION_AT: usize = 272;
const RESERVED_AT: usize = 280;

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Invalid, why)
}

/// What a program asks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Call {
    bytes: [u8; BYTES],
    scope: Scope,
    mode: Mode,
    generation: Generation,
}

fn word(bytes: &[u8; BYTES], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]))
}

fn long_word(bytes: &[u8; BYTES], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]))
}

impl Call {
    fn parse(bytes: &[u8]) -> Result<Call> {
        let bytes: [u8; BYTES] =
            bytes.try_into().map_err(|_| invalid(format!("the argument has {BYTES} bytes")))?;
        if word(&bytes, 0) != VERSION {
            return Err(invalid("only version 1 of the argument exists"));
        }
        let flags = word(&bytes, 8);
        if flags & !FLAG_LOGICAL != 0 || long_word(&bytes, RESERVED_AT) != 0 {
            return Err(invalid("unknown flags, or something in what is reserved"));
        }
        let mode = if flags & FLAG_LOGICAL == 0 { Mode::Physical } else { Mode::Logical };
        let tenant = &bytes[TENANT_AT..GENERATION_AT];
        let end = tenant.iter().position(|b| *b == 0);
        let name = &tenant[..end.ok_or_else(|| invalid("the tenant's name does not end"))?];
        let scope = match word(&bytes, 4) {
            0 if !name.is_empty() => return Err(invalid("the global scope names no tenant")),
            0 if mode == Mode::Logical => return Err(invalid("the global scope is removed physically")),
            0 => Scope::Global,
            1 => Scope::Tenant(Tenant::new(name)?),
            other => return Err(invalid(format!("{other} is no scope"))),
        };
        let generation = Generation(long_word(&bytes, GENERATION_AT));
        Ok(Call { bytes, scope, mode, generation })
    }

    /// The argument as the program gets it back.
    fn answer(mut self, generation: Generation, state: State) -> [u8; BYTES] {
        self.bytes[STATE_AT..TENANT_AT].copy_from_slice(&state_number(state).to_ne_bytes());
        self.bytes[GENERATION_AT..RESERVED_AT].copy_from_slice(&generation.0.to_ne_bytes());
        self.bytes
    }
}

fn state_number(state: State) -> u32 {
    match state {
        State::Pending => 0,
        State::Removing => 1,
        State::Applied => 2,
        State::Complete => 3,
        State::Failed => 4,
    }
}

#[cfg(any(test, feature = "fuzzing"))]
/// (fuzzing) Whether bytes are an argument; then an answer differs from it in state and generation alone.
pub(super) fn parses(bytes: &[u8]) -> bool {
    let Ok(call) = Call::parse(bytes) else { return false };
    let answer = call.answer(Generation(1), State::Complete);
    assert!(
        answer[..STATE_AT] == bytes[..STATE_AT]
            && answer[TENANT_AT..GENERATION_AT] == bytes[TENANT_AT..GENERATION_AT]
    );
    true
}

impl Fs {
    /// IOCTL on a control file.
    pub(super) fn ioctl(
        self: &Arc<Self>,
        who: Caller,
        v: VirtualIno,
        command: Opcode,
        argument: &[u8],
        reply: ReplyIoctl,
    ) {
        if command != REMOVE_ALL && command != QUERY {
            return reply.error(Errno::ENOTTY);
        }
        let call = match Call::parse(argument) {
            Ok(call) => call,
            Err(e) => return reply.error(errno(&e)),
        };
        // A submission is written to the disk.
        let fs = Arc::clone(self);
        self.pool.run(move || {
            let done = if command == QUERY { fs.query(who, v, call) } else { fs.submit(who, v, call) };
            match done {
                Ok(bytes) => reply.ioctl(0, &bytes),
                Err(e) => reply.error(errno(&e)),
            }
        });
    }

    fn submit(&self, who: Caller, v: VirtualIno, call: Call) -> Result<[u8; BYTES]> {
        may_remove(&self.store, &self.asker(who, v)?, &call.scope)?;
        let request = self.removals.submit(&call.scope, call.mode, None)?.request;
        Ok(call.answer(request.generation, request.state))
    }

    fn query(&self, who: Caller, v: VirtualIno, call: Call) -> Result<[u8; BYTES]> {
        let asker = self.asker(who, v)?;
        if !asker.may_see(&call.scope) {
            asker.tenant(call.scope.tenant())?;
        }
        let request = self.removals.request(&RequestName::Generation(call.generation))?;
        if request.scope != call.scope {
            let generation = request.generation;
            return Err(invalid(format!("generation {generation} is of the scope {}", request.scope)));
        }
        Ok(call.answer(request.generation, request.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(words: [u32; 4], tenant: &[u8], generation: u64, reserved: u64) -> Vec<u8> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        bytes.extend_from_slice(tenant);
        bytes.resize(GENERATION_AT, 0);
        bytes.extend_from_slice(&generation.to_ne_bytes());
        bytes.extend_from_slice(&reserved.to_ne_bytes());
        bytes
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn the_commands_are_those_of_the_c_macros() {
        assert_eq!(REMOVE_ALL, 0xc120_fc01);
        assert_eq!(QUERY, 0xc120_fc02);
    }

    #[test]
    fn an_argument_is_read_and_answered_in_place() {
        let bytes = argument([1, 1, 1, 77], b"a.b", 9, 0);
        let call = Call::parse(&bytes).unwrap();
        assert_eq!(call.scope, Scope::Tenant(Tenant::new(b"a.b").unwrap()));
        assert_eq!((call.mode, call.generation), (Mode::Logical, Generation(9)));
        assert_eq!(call.answer(Generation(12), State::Failed)[..], argument([1, 1, 1, 4], b"a.b", 12, 0)[..]);
        let global = Call::parse(&argument([1, 0, 0, 0], b"", 0, 0)).unwrap();
        assert_eq!((global.scope.clone(), global.mode), (Scope::Global, Mode::Physical));
        assert_eq!(global.answer(Generation(3), State::Complete)[..], argument([1, 0, 0, 3], b"", 3, 0)[..]);
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for (why, bytes) in [
            ("version", argument([2, 0, 0, 0], b"", 0, 0)),
            ("scope", argument([1, 2, 0, 0], b"", 0, 0)),
            ("flags", argument([1, 1, 2, 0], b"a", 0, 0)),
            ("reserved", argument([1, 1, 0, 0], b"a", 0, 1)),
            ("global with a tenant", argument([1, 0, 0, 0], b"a", 0, 0)),
            ("global and logical", argument([1, 0, 1, 0], b"", 0, 0)),
            ("tenant without a name", argument([1, 1, 0, 0], b"", 0, 0)),
            ("a name that is none", argument([1, 1, 0, 0], b".x", 0, 0)),
            ("a name without an end", argument([1, 1, 0, 0], &[b'a'; 256], 0, 0)),
            ("short", argument([1, 0, 0, 0], b"", 0, 0)[1..].to_vec()),
        ] {
            assert_eq!(Call::parse(&bytes).unwrap_err().kind(), Kind::Invalid, "{why}");
        }
    }
}
