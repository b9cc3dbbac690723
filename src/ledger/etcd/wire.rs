//! What travels: the JSON form of etcd's requests and answers. Pure.
//!
//! Its gateway writes 64-bit numbers as strings, keys and values in base64, and leaves out every field that is zero; so
//! an answer without `succeeded` did not succeed, and one without `kvs` found nothing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Bytes as base64.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(&text).map(Bytes).map_err(|_| D::Error::custom("bytes that are no base64"))
    }
}

/// A 64-bit number: a string, or a number where somebody writes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Int(pub(super) i64);

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = match Value::deserialize(from)? {
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => number.as_i64(),
            _ => None,
        };
        number.map(Int).ok_or_else(|| D::Error::custom("a number that is none"))
    }
}

/// Keys from `key` up to `range_end`, or `key` alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Range {
    pub(super) key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Int>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    count_only: bool,
}

impl Range {
    /// One key.
    pub(super) fn one(key: &str) -> Range {
        Range { key: Bytes(key.into()), range_end: None, limit: None, count_only: false }
    }

    /// Every key that begins so, in order. `prefix` ends in a slash.
    pub(super) fn below(prefix: &str) -> Range {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Range { key: Bytes(prefix.into()), range_end: Some(Bytes(end)), limit: None, count_only: false }
    }

    /// Those of them that are not before a key.
    pub(super) fn from(self, key: impl Into<Vec<u8>>) -> Range {
        Range { key: Bytes(key.into()), ..self }
    }

    /// How many there are, and none of them.
    pub(super) fn counted(self) -> Range {
        Range { count_only: true, ..self }
    }

    /// At most this many of them, the first ones; the answer still counts all.
    pub(super) fn first(self, limit: usize) -> Range {
        Range { limit: Some(Int(i64::try_from(limit).unwrap_or(i64::MAX))), ..self }
    }
}

/// What must be so for a transaction to happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Compare {
    result: &'static str,
    target: &'static str,
    key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    mod_revision: Option<Int>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Bytes>,
}

impl Compare {
    /// Nobody has written the key since it was read; revision 0 is that of a key that was not there.
    pub(super) fn unchanged(key: &str, revision: Int) -> Compare {
        Compare {
            result: "EQUAL",
            target: "MOD",
            key: Bytes(key.into()),
            mod_revision: Some(revision),
            value: None,
        }
    }

    /// The key has this value.
    pub(super) fn holds(key: &str, value: &str) -> Compare {
        Compare {
            result: "EQUAL",
            target: "VALUE",
            key: Bytes(key.into()),
            mod_revision: None,
            value: Some(Bytes(value.into())),
        }
    }
}

/// A part of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) enum Op {
    #[serde(rename = "request_range")]
    Range(Range),
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_delete_range")]
    DeleteRange(Range),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Put {
    key: Bytes,
    value: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<Int>,
}

impl Op {
    pub(super) fn put(key: &str, value: impl Into<String>) -> Op {
        let value = Bytes(value.into().into_bytes());
        Op::Put(Put { key: Bytes(key.into()), value, lease: None })
    }

    /// The key goes with the lease.
    pub(super) fn put_leased(key: &str, value: impl Into<String>, lease: Int) -> Op {
        let value = Bytes(value.into().into_bytes());
        Op::Put(Put { key: Bytes(key.into()), value, lease: Some(lease) })
    }

    pub(super) fn delete(key: &str) -> Op {
        Op::DeleteRange(Range::one(key))
    }
}

/// Either all of `success`, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub(super) struct Txn {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Op>,
}

/// A key as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Entry {
    pub(super) key: Bytes,
    #[serde(default)]
    pub(super) value: Bytes,
    #[serde(default)]
    pub(super) mod_revision: Int,
}

/// What a range had.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub(super) struct Found {
    #[serde(default)]
    pub(super) kvs: Vec<Entry>,
    /// How many there are, more than `kvs` where a limit was given.
    #[serde(default)]
    pub(super) count: Int,
}

impl Found {
    /// The one key that was asked for.
    pub(super) fn one(&self) -> Option<&Entry> {
        self.kvs.first()
    }

    /// Its revision; 0 where it was not there.
    pub(super) fn revision(&self) -> Int {
        self.one().map(|entry| entry.mod_revision).unwrap_or_default()
    }
}

/// How a transaction went.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct TxnAnswer {
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    pub(super) responses: Vec<Response>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub(super) struct Response {
    #[serde(default)]
    pub(super) response_range: Option<Found>,
}

/// A lease that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Granted {
    #[serde(rename = "ID")]
    pub(super) id: Int,
}

/// A lease that was to live on: no seconds are left of one that is over.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Renewed {
    pub(super) result: Left,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Left {
    #[serde(rename = "TTL", default)]
    pub(super) seconds: Int,
}

/// A user's token.
#[derive(Deserialize)]
pub(super) struct Authenticated {
    pub(super) token: String,
}

/// What `/version` says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Version {
    pub(super) etcdserver: String,
    #[serde(default)]
    pub(super) etcdcluster: String,
}

impl Version {
    /// Whether both the member and what its cluster has agreed on are of this release or a later one.
    pub(super) fn is_at_least(&self, release: (u32, u32)) -> bool {
        let of = |text: &str| {
            let mut parts = text.split('.').map(|part| part.parse::<u32>());
            match (parts.next(), parts.next()) {
                (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
                _ => None,
            }
        };
        // A member that has not joined its cluster yet has none of the cluster's.
        let cluster = of(&self.etcdcluster).unwrap_or(release);
        of(&self.etcdserver).is_some_and(|member| member >= release) && cluster >= release
    }
}

/// An error that etcd answers with: a code of gRPC, and its sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) message: String,
}

impl Refusal {
    /// The refusal that an answer is, whatever its HTTP status: streams carry theirs inside a 200.
    pub(super) fn of(answer: &Value) -> Option<Refusal> {
        let inner = match answer.get("error") {
            Some(Value::Object(_)) => &answer["error"],
            Some(_) => answer,
            // Newer releases have no `error` beside `code` and `message`.
            None if answer.get("code").is_some() && answer.get("message").is_some() => answer,
            None => return None,
        };
        let number = |name: &str| inner.get(name).and_then(Value::as_i64);
        let text = |name: &str| inner.get(name).and_then(Value::as_str);
        let message = text("message").or_else(|| text("error")).unwrap_or("an error without a word");
        // 2 is "unknown".
        let code = number("code").or_else(|| number("grpc_code")).unwrap_or(2);
        Some(Refusal { code, message: message.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(value: &impl Serialize) -> Value {
        serde_json::to_value(value).unwrap()
    }

    #[test]
    fn a_transaction_is_spelled_as_the_gateway_reads_it() {
        let txn = Txn {
            compare: vec![Compare::unchanged("p/seq", Int(7)), Compare::holds("p/ledger_id", "u")],
            success: vec![
                Op::put("p/seq", "8"),
                Op::put_leased("p/session/x", "", Int(i64::MAX)),
                Op::delete("p/open/1"),
                Op::Range(Range::below("p/req/").first(2)),
            ],
        };
        let expected = json!({
            "compare": [
                {"result": "EQUAL", "target": "MOD", "key": "cC9zZXE=", "mod_revision": "7"},
                {"result": "EQUAL", "target": "VALUE", "key": "cC9sZWRnZXJfaWQ=", "value": "dQ=="},
            ],
            "success": [
                {"request_put": {"key": "cC9zZXE=", "value": "OA=="}},
                {"request_put": {"key": "cC9zZXNzaW9uL3g=", "value": "", "lease": "9223372036854775807"}},
                {"request_delete_range": {"key": "cC9vcGVuLzE="}},
                {"request_range": {"key": "cC9yZXEv", "range_end": "cC9yZXEw", "limit": "2"}},
            ],
        });
        assert_eq!(text(&txn), expected);
    }

    /// As etcd 3.4.23 answers.
    #[test]
    fn what_is_left_out_is_zero() {
        let none: TxnAnswer = serde_json::from_str(
            r#"{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","revision":"5","raft_term":"2"},"responses":[{"response_range":{"header":{"revision":"5"}}}]}"#,
        )
        .unwrap();
        assert!(!none.succeeded);
        let found = none.responses[0].response_range.clone().unwrap();
        assert_eq!((found.kvs.len(), found.count, found.revision()), (0, Int(0), Int(0)));

        let some: TxnAnswer = serde_json::from_str(
            r#"{"header":{"revision":"6"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"6"}}},{"response_range":{"header":{"revision":"6"},"kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"6","version":"3"}],"count":"4"}}]}"#,
        )
        .unwrap();
        assert!(some.succeeded && some.responses[0].response_range.is_none());
        let found = some.responses[1].response_range.clone().unwrap();
        assert_eq!((found.count, found.revision()), (Int(4), Int(6)));
        assert_eq!(found.one().unwrap().value, Bytes(Vec::new()));
    }

    #[test]
    fn what_is_no_answer_is_an_error_and_no_panic() {
        for bad in [
            r#"{"kvs":[{"key":"?"}]}"#,
            r#"{"kvs":[{"value":"YQ=="}]}"#,
            r#"{"kvs":[{"key":"YQ==","mod_revision":"x"}]}"#,
            r#"{"kvs":[{"key":"YQ==","mod_revision":1.5}]}"#,
            r#"{"kvs":[{"key":"YQ==","mod_revision":[]}]}"#,
            r#"{"kvs":7}"#,
            "7",
        ] {
            assert!(serde_json::from_str::<Found>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn refusals_are_found_wherever_they_stand() {
        let of = |text: &str| Refusal::of(&serde_json::from_str(text).unwrap()).map(|r| (r.code, r.message));
        // 3.4, 3.5 and later, and both kinds of streams.
        for (answer, code) in [
            (r#"{"error":"etcdserver: x","message":"etcdserver: x","code":14}"#, 14),
            (r#"{"code":14,"message":"etcdserver: x","details":[]}"#, 14),
            (
                r#"{"error":{"grpc_code":11,"http_code":400,"message":"etcdserver: x","http_status":"Bad Request"}}"#,
                11,
            ),
            (r#"{"error":{"code":11,"message":"etcdserver: x"}}"#, 11),
            (r#"{"error":"etcdserver: x"}"#, 2),
        ] {
            assert_eq!(of(answer), Some((code, "etcdserver: x".to_owned())), "{answer}");
        }
        for fine in [r#"{"header":{}}"#, r#"{"result":{}}"#, "{}", "[]", "7"] {
            assert_eq!(of(fine), None, "{fine}");
        }
    }

    #[test]
    fn versions_compare_by_number() {
        let of = |member: &str, cluster: &str| {
            Version { etcdserver: member.into(), etcdcluster: cluster.into() }.is_at_least((3, 4))
        };
        assert!(
            of("3.4.23", "3.4.0")
                && of("3.10.1", "3.10.0")
                && of("4.0.0", "")
                && of("3.5.0-rc.1", "not_decided")
        );
        assert!(
            !of("3.3.25", "3.3.0") && !of("2.3.8", "2.3.0") && !of("3.5.1", "3.3.0") && !of("x", "3.4.0")
        );
    }
}
