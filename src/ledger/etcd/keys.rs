//! The names of what is kept in etcd, and how numbers and names are spelled there. Pure.
//!
//! | below PREFIX | value |
//! |---|---|
//! | `ledger_id` | whose ledger this is, for good |
//! | `seq` | the highest generation given |
//! | `bump` | how far an operator moved `seq` on, after the ledger went backwards |
//! | `mver` | written at every change of the members; its revision counts, not its value |
//! | `storage/{id}` | a member: its token, and the generation that it joined after |
//! | `retired/{id}` | one that was forgotten, and the last generation that it was a target of |
//! | `session/{id}` | a member's running daemon, under a lease |
//! | `seen/{id}` | when it was last known to run |
//! | `rid/{request}` | generation of the request with this id |
//! | `req/{gen}` | a request, as it was made |
//! | `open/{gen}` | its scope, until it is complete |
//! | `done/{gen}` | when it was complete |
//! | `fail/{gen}` | attempts that failed, and why the last did |
//! | `past/{gen}` | what is left of a request that was dropped and had an id |
//! | `floor/g`, `floor/t/{tenant}` | highest generations requested: physical, logical; the mark of the higher request |
//! | `ack/{id}/g`, `ack/{id}/t/{tenant}` | highest generation that a storage acknowledged |

use uuid::Uuid;

use super::wire::Range;
use crate::key::Tenant;
use crate::scope::{Generation, Scope};

/// Digits of a number in a key, so that the order of keys is that of numbers.
const DIGITS: usize = 20;
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// The keys below one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    /// Ends in a slash.
    prefix: String,
}

impl Keys {
    pub(super) fn below(prefix: &str) -> Keys {
        Keys { prefix: format!("{}/", prefix.trim_end_matches('/')) }
    }

    fn of(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    pub(super) fn ledger_id(&self) -> String {
        self.of("ledger_id")
    }

    pub(super) fn seq(&self) -> String {
        self.of("seq")
    }

    pub(super) fn bump(&self) -> String {
        self.of("bump")
    }

    pub(super) fn mver(&self) -> String {
        self.of("mver")
    }

    pub(super) fn storage(&self, id: Uuid) -> String {
        self.of(&format!("storage/{id}"))
    }

    pub(super) fn retired(&self, id: Uuid) -> String {
        self.of(&format!("retired/{id}"))
    }

    pub(super) fn session(&self, id: Uuid) -> String {
        self.of(&format!("session/{id}"))
    }

    pub(super) fn seen(&self, id: Uuid) -> String {
        self.of(&format!("seen/{id}"))
    }

    pub(super) fn rid(&self, request: &str) -> String {
        self.of(&format!("rid/{}", encode(request.as_bytes())))
    }

    pub(super) fn floor(&self, scope: &Scope) -> String {
        self.of(&format!("floor/{}", scope_name(scope)))
    }

    pub(super) fn ack(&self, id: Uuid, scope: &Scope) -> String {
        self.of(&format!("ack/{id}/{}", scope_name(scope)))
    }

    /// What belongs to a generation: one of `req`, `open`, `done`, `fail`, `past`.
    pub(super) fn numbered(&self, kind: &str, generation: Generation) -> String {
        self.of(&format!("{kind}/{}", number(generation)))
    }

    /// Every key of a kind.
    pub(super) fn all(&self, kind: &str) -> Range {
        Range::below(&self.of(&format!("{kind}/")))
    }

    /// Every member behind one, in order.
    pub(super) fn storages_after(&self, id: Uuid) -> Range {
        self.all("storage").from(format!("{}\0", self.storage(id)))
    }

    /// Every acknowledgement of a storage.
    pub(super) fn acks_of(&self, id: Uuid) -> Range {
        Range::below(&self.of(&format!("ack/{id}/")))
    }

    /// What a key says after its prefix and its kind.
    pub(super) fn rest<'k>(&self, kind: &str, key: &'k [u8]) -> Option<&'k str> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(kind.as_bytes())?;
        std::str::from_utf8(rest.strip_prefix(b"/")?).ok()
    }
}

/// How a scope is spelled at the end of a key.
pub(super) fn scope_name(scope: &Scope) -> String {
    scope
        .tenant()
        .map_or_else(|| "g".to_owned(), |tenant| format!("t/{}", encode(tenant.as_str().as_bytes())))
}

/// The scope that is spelled so.
pub(super) fn to_scope(name: &str) -> Option<Scope> {
    if name == "g" {
        return Some(Scope::Global);
    }
    let tenant = decode(name.strip_prefix("t/")?)?;
    Tenant::new(&tenant).ok().map(Scope::Tenant)
}

/// A number as it is kept.
pub(super) fn number(generation: Generation) -> String {
    format!("{:0DIGITS$}", generation.0)
}

/// The number that is kept so.
pub(super) fn to_number(text: &[u8]) -> Option<Generation> {
    if text.len() != DIGITS || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().map(Generation)
}

fn encode(name: &[u8]) -> String {
    let mut encoded = String::with_capacity(name.len());
    for &byte in name {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(char::from(HEX[usize::from(byte >> 4)]));
            encoded.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    encoded
}

/// What [`encode`] made, and nothing else: a name has one key.
fn decode(encoded: &str) -> Option<Vec<u8>> {
    let digit = |d: u8| HEX.iter().position(|h| *h == d).and_then(|at| u8::try_from(at).ok());
    let (mut name, mut rest) = (Vec::new(), encoded.as_bytes());
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let (&[high, low], tail) = tail.split_first_chunk::<2>()?;
            name.push((digit(high)? << 4) | digit(low)?);
            rest = tail;
        } else {
            name.push(byte);
            rest = tail;
        }
    }
    (encode(&name) == encoded).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Scope {
        Scope::Tenant(Tenant::new(name.as_bytes()).unwrap())
    }

    #[test]
    fn keys_are_named_as_the_table_says() {
        let keys = Keys::below("fleet/a");
        let id = Uuid::from_u128(1);
        assert_eq!(keys, Keys::below("fleet/a/"));
        assert_eq!(keys.seq(), "fleet/a/seq");
        assert_eq!(keys.rid("a b/%"), "fleet/a/rid/a%20b%2F%25");
        assert_eq!(keys.numbered("req", Generation(7)), "fleet/a/req/00000000000000000007");
        assert_eq!(keys.floor(&Scope::Global), "fleet/a/floor/g");
        assert_eq!(keys.ack(id, &tenant("a_b")), format!("fleet/a/ack/{id}/t/a_b"));
        assert_eq!(
            keys.rest("ack", keys.ack(id, &Scope::Global).as_bytes()),
            Some(format!("{id}/g").as_str())
        );
        assert_eq!(keys.rest("req", b"fleet/a/requests"), None);
        assert_eq!(keys.rest("req", b"fleet/b/req/1"), None);
        assert_eq!(keys.rest("req", b"fleet/a/req/\xff"), None);
    }

    #[test]
    fn numbers_sort_as_their_keys_do() {
        for generation in [0, 1, 9, 10, u64::MAX] {
            assert_eq!(to_number(number(Generation(generation)).as_bytes()), Some(Generation(generation)));
        }
        assert!(number(Generation(9)) < number(Generation(10)));
        for bad in ["", "7", "0000000000000000000x", "+0000000000000000007", "99999999999999999999"] {
            assert_eq!(to_number(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_scope_has_one_name() {
        for scope in [Scope::Global, tenant("g"), tenant("a.b-C_9")] {
            assert_eq!(to_scope(&scope_name(&scope)), Some(scope));
        }
        for bad in ["", "h", "t/", "t", "t/a%2", "t/%61", "t/a%2f", "t/a/b", "t/.a"] {
            assert_eq!(to_scope(bad), None, "{bad}");
        }
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&every)), Some(every));
    }
}
