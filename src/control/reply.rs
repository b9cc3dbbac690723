//! Replies of the control file: one JSON object a line.
//!
//! `ok` always comes first, so that a shell script can tell the two kinds of reply by how the line begins.

use serde_json::{Map, Value};

use crate::error::Error;

/// `{"ok":true,...}` and a newline: a command was done, and these are its answers. A member `ok` in `fields` is
/// left out.
pub fn ok(fields: &Map<String, Value>) -> String {
    line(true, fields.iter().map(|(name, value)| (name.as_str(), value)))
}

/// `{"ok":false,...}` and a newline: why a command was not done.
pub fn failure(error: &Error) -> String {
    failure_of(error, &Map::new())
}

/// The same, and what failed.
pub fn failure_of(error: &Error, fields: &Map<String, Value>) -> String {
    let why = [
        ("error", Value::from(error.errno_name())),
        ("code", Value::from(error.code())),
        ("message", Value::from(error.to_string())),
    ];
    let what = fields.iter().map(|(name, value)| (name.as_str(), value));
    line(false, why.iter().map(|(name, value)| (*name, value)).chain(what))
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
        let reply = failure(&Error::new(Kind::UnknownTenant, "no tenant t"));
        assert_eq!(
            reply,
            "{\"ok\":false,\"error\":\"ENOENT\",\"code\":\"UNKNOWN_TENANT\",\"message\":\"no tenant t\"}\n"
        );
        let code = |kind| Error::new(kind, "").code();
        assert_eq!(code(Kind::StaleGeneration), "STALE_GENERATION");
        assert_eq!(code(Kind::UnprovenOwnership), "UNSUPPORTED_TENANT_LOCAL_CLEANUP");
    }
}
