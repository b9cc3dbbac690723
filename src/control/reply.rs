//! Replies of the control file: one JSON object a line.
//!
//! `ok` always comes first, so that a shell script can tell the two kinds of reply by how the line begins.

use serde_json::{Map, Value};

use crate::error::Error;

/// Code words that say more than an errno's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Only a global removal can be asked of this store.
    UnsupportedTenantLocalCleanup,
    /// No such tenant.
    UnknownTenant,
    /// The generation is older than the one that counts.
    StaleGeneration,
}

impl Code {
    /// The word as programs match it.
    pub fn word(self) -> &'static str {
        match self {
            Code::UnsupportedTenantLocalCleanup => "UNSUPPORTED_TENANT_LOCAL_CLEANUP",
            Code::UnknownTenant => "UNKNOWN_TENANT",
            Code::StaleGeneration => "STALE_GENERATION",
        }
    }
}

/// `{"ok":true,...}` and a newline: a command was done, and these are its answers. A member `ok` in `fields` is
/// left out.
pub fn ok(fields: &Map<String, Value>) -> String {
    line(true, fields.iter().map(|(name, value)| (name.as_str(), value)))
}

/// `{"ok":false,...}` and a newline: why a command was not done. The code is the errno's name.
pub fn failure(error: &Error) -> String {
    failure_line(error, error.code())
}

/// As [`failure`], with a code that is more specific.
pub fn failure_with(error: &Error, code: Code) -> String {
    failure_line(error, code.word())
}

fn failure_line(error: &Error, code: &str) -> String {
    let fields = [
        ("error", Value::from(error.code())),
        ("code", Value::from(code)),
        ("message", Value::from(error.to_string())),
    ];
    line(false, fields.iter().map(|(name, value)| (*name, value)))
}

/// JSON escapes every control character, so a reply never holds a newline but its last byte.
fn line<'a>(ok: bool, fields: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let mut line = format!("{{\"ok\":{ok}");
    for (name, value) in fields.filter(|(name, _)| *name != "ok") {
        line.push_str(&format!(",{}:{value}", Value::from(name)));
    }
    line.push_str("}\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn a_success_begins_with_ok_and_is_one_line() {
        assert_eq!(ok(&Map::new()), "{\"ok\":true}\n");
        let map = fields(serde_json::json!({"generation": 7, "a": "x\ny\"", "tenant": null, "ok": false}));
        let reply = ok(&map);
        assert!(reply.starts_with("{\"ok\":true,"), "{reply}");
        assert_eq!(reply.matches('\n').count(), 1);
        assert!(reply.ends_with("}\n"));
        let back: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!(back, serde_json::json!({"ok": true, "generation": 7, "a": "x\ny\"", "tenant": null}));
    }

    #[test]
    fn a_name_cannot_break_out() {
        let reply = ok(&fields(serde_json::json!({"a\":1,\"b\n": 2})));
        assert_eq!(reply, "{\"ok\":true,\"a\\\":1,\\\"b\\n\":2}\n");
    }

    #[test]
    fn a_failure_names_its_errno() {
        let error = Error::new(Kind::Invalid, "unknown word \"x\"");
        assert_eq!(
            failure(&error),
            "{\"ok\":false,\"error\":\"EINVAL\",\"code\":\"EINVAL\",\"message\":\"unknown word \\\"x\\\"\"}\n"
        );
    }

    #[test]
    fn a_code_can_say_more() {
        let reply = failure_with(&Error::new(Kind::NotFound, "no tenant t"), Code::UnknownTenant);
        assert_eq!(
            reply,
            "{\"ok\":false,\"error\":\"ENOENT\",\"code\":\"UNKNOWN_TENANT\",\"message\":\"no tenant t\"}\n"
        );
        assert_eq!(Code::StaleGeneration.word(), "STALE_GENERATION");
        assert_eq!(Code::UnsupportedTenantLocalCleanup.word(), "UNSUPPORTED_TENANT_LOCAL_CLEANUP");
    }
}
