//! Lines of the control file: text in, commands out.
//!
//! Anything that is not exactly a command is refused with a sentence that names the word; a control file that
//! guesses would turn a typing error into a removal. Parsing touches nothing and knows no store.

use crate::config::{parse_size, parse_ttl};
use crate::error::{Error, Kind, Result};
use crate::key::Tenant;
use crate::scope::{Mode, Scope};

/// Longest line, in bytes, its newline not counted.
pub const MAX_LINE_BYTES: usize = 4096;
/// Most of a bad word that a message repeats.
const MAX_SHOWN_CHARS: usize = 64;

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The status object.
    Status,
    /// Every tenant.
    Tenants,
    /// Every removal request.
    Requests,
    /// Sets or shows a quota.
    Quota {
        /// Whose; `None` is the whole store's.
        tenant: Option<Tenant>,
        /// The new quota; `None` leaves the one in force.
        bytes: Option<QuotaValue>,
        /// The tenant's new reserve; `None` leaves the one in force.
        reserve: Option<QuotaValue>,
        /// The tenant's new time to live; `None` leaves the one in force.
        ttl: Option<TtlValue>,
    },
    /// Evicts down to a percentage of the quota.
    Evict {
        /// 0 to 100.
        to_percent: u8,
    },
    /// The epoch that a new write would be admitted under.
    Epoch {
        /// Of this tenant.
        tenant: Tenant,
    },
    /// Asks for a removal.
    RemoveAll {
        /// What goes.
        scope: Scope,
        /// How; always physical for the global scope.
        mode: Mode,
        /// The caller's name for this request: the same again asks for nothing new.
        id: Option<String>,
    },
    /// The state of one removal request.
    Query {
        /// Which.
        request: Request,
    },
    /// Attempts failed removals again, at once.
    Retry {
        /// This one; `None` is every failed one.
        generation: Option<u64>,
    },
    /// The pending requests for a storage identity.
    Poll {
        /// The identity.
        storage: String,
    },
    /// A storage identity has applied a removal.
    Ack {
        /// The identity.
        storage: String,
        /// What it applied.
        generation: u64,
        /// To what.
        scope: Scope,
    },
    /// A storage identity never comes back.
    Forget {
        /// The identity.
        storage: String,
    },
}

/// A quota or a reserve to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaValue {
    /// This many bytes.
    Bytes(u64),
    /// None of its own.
    None,
}

impl QuotaValue {
    /// The bytes, where there are any.
    pub fn bytes(self) -> Option<u64> {
        match self {
            QuotaValue::Bytes(n) => Some(n),
            QuotaValue::None => None,
        }
    }
}

/// A time to live to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TtlValue {
    /// This many seconds.
    Seconds(u64),
    /// For ever.
    None,
}

impl TtlValue {
    /// The seconds, where there is an end.
    pub fn seconds(self) -> Option<u64> {
        match self {
            TtlValue::Seconds(n) => Some(n),
            TtlValue::None => None,
        }
    }
}

/// Names a removal request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// By its generation.
    Generation(u64),
    /// By the id that its caller gave.
    Id(String),
}

/// The lines of one write(2): one or more whole lines, the last newline may be missing. Lines of blanks alone are
/// skipped: a program that writes its newline by itself writes no command, and makes no error. A write with one
/// bad byte or one long line is refused as a whole, before any command of it runs.
pub fn split_lines(written: &[u8]) -> Result<Vec<&str>> {
    let text = std::str::from_utf8(written).map_err(|e| {
        invalid(format!("a command is text, and byte {} of this write is not UTF-8", e.valid_up_to()))
    })?;
    let lines: Vec<&str> = text.split('\n').filter(|l| words_of(l).next().is_some()).collect();
    lines.iter().try_for_each(|line| check_line(line))?;
    Ok(lines)
}

/// The command of one line.
pub fn parse(line: &str) -> Result<Command> {
    check_line(line)?;
    let mut parts = words_of(line);
    let Some(name) = parts.next() else { return Err(invalid("an empty line is no command")) };
    let words = Words::new(name, parts)?;
    match name {
        "status" => words.only(&[]).map(|_| Command::Status),
        "tenants" => words.only(&[]).map(|_| Command::Tenants),
        "requests" => words.only(&[]).map(|_| Command::Requests),
        "quota" => {
            let words = words.only(&["tenant", "bytes", "reserve", "ttl"])?;
            let value = |name| words.get(name).map(quota_value).transpose();
            let (bytes, reserve) = (value("bytes")?, value("reserve")?);
            let ttl = words.get("ttl").map(ttl_value).transpose()?;
            let tenant = words.get("tenant").map(tenant).transpose()?;
            Ok(Command::Quota { tenant, bytes, reserve, ttl })
        }
        "evict" => Ok(Command::Evict { to_percent: percent(words.only(&["to"])?.need("to")?)? }),
        "epoch" => Ok(Command::Epoch { tenant: tenant(words.only(&["tenant"])?.need("tenant")?)? }),
        "remove-all" => remove_all(&words.only(&["scope", "tenant", "mode", "id"])?),
        "query" => query(&words.only(&["generation", "id"])?),
        "retry" => {
            let words = words.only(&["generation"])?;
            Ok(Command::Retry { generation: words.get("generation").map(generation).transpose()? })
        }
        "poll" => Ok(Command::Poll { storage: words.only(&["storage"])?.need("storage")?.to_owned() }),
        "forget" => Ok(Command::Forget { storage: words.only(&["storage"])?.need("storage")?.to_owned() }),
        "ack" => ack(&words.only(&["storage", "generation", "scope", "tenant"])?),
        other => Err(invalid(format!("unknown command {}", shown(other)))),
    }
}

fn remove_all(words: &Words<'_>) -> Result<Command> {
    let scope = scope(words, words.get("tenant").map(|_| "tenant"))?;
    let mode = match (words.get("mode"), &scope) {
        (None, _) => Mode::Physical,
        (Some(_), Scope::Global) => {
            return Err(invalid(
                "remove-all: the word mode goes with tenant=NAME; a global removal is physical",
            ));
        }
        (Some("physical"), Scope::Tenant(_)) => Mode::Physical,
        (Some("logical"), Scope::Tenant(_)) => Mode::Logical,
        (Some(other), Scope::Tenant(_)) => {
            return Err(invalid(format!("mode={} is neither physical nor logical", shown(other))));
        }
    };
    Ok(Command::RemoveAll { scope, mode, id: words.get("id").map(str::to_owned) })
}

fn query(words: &Words<'_>) -> Result<Command> {
    let request = match (words.get("generation"), words.get("id")) {
        (Some(number), None) => Request::Generation(generation(number)?),
        (None, Some(id)) => Request::Id(id.to_owned()),
        (None, None) => return Err(invalid("query: the word generation or id is missing")),
        (Some(_), Some(_)) => return Err(invalid("query takes generation or id, not both")),
    };
    Ok(Command::Query { request })
}

fn ack(words: &Words<'_>) -> Result<Command> {
    Ok(Command::Ack {
        storage: words.need("storage")?.to_owned(),
        generation: generation(words.need("generation")?)?,
        scope: scope(words, None)?,
    })
}

/// The scope of the words `scope` and `tenant`; `implied` stands for a missing `scope`.
fn scope(words: &Words<'_>, implied: Option<&'static str>) -> Result<Scope> {
    let Some(word) = words.get("scope").or(implied) else {
        return Err(invalid(format!("{}: the word scope is missing", words.command)));
    };
    match (word, words.get("tenant")) {
        ("global", None) => Ok(Scope::Global),
        ("global", Some(_)) => Err(invalid("scope=global takes no tenant: give one or the other")),
        ("tenant", Some(name)) => tenant(name).map(Scope::Tenant),
        ("tenant", None) => Err(invalid("scope=tenant: the word tenant is missing")),
        (other, _) => Err(invalid(format!("scope={} is neither global nor tenant", shown(other)))),
    }
}

fn tenant(name: &str) -> Result<Tenant> {
    Tenant::new(name.as_bytes())
}

fn generation(text: &str) -> Result<u64> {
    number(text).ok_or_else(|| invalid(format!("generation={} is not a whole number", shown(text))))
}

fn percent(text: &str) -> Result<u8> {
    number(text.strip_suffix('%').unwrap_or(text))
        .and_then(|n| u8::try_from(n).ok())
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| invalid(format!("to={} is not a percentage from 0 to 100", shown(text))))
}

fn quota_value(text: &str) -> Result<QuotaValue> {
    match text {
        "none" => Ok(QuotaValue::None),
        size => parse_size(size).map(QuotaValue::Bytes),
    }
}

fn ttl_value(text: &str) -> Result<TtlValue> {
    match text {
        "none" => Ok(TtlValue::None),
        time => parse_ttl(time).map(TtlValue::Seconds),
    }
}

/// Digits only: what `str::parse` also takes, a plus sign, is no number here.
fn number(text: &str) -> Option<u64> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// The `name=value` words behind a command. INVARIANT: no name twice, no empty value.
struct Words<'a> {
    command: &'a str,
    words: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn new(command: &'a str, parts: impl Iterator<Item = &'a str>) -> Result<Self> {
        let mut words: Vec<(&str, &str)> = Vec::new();
        for part in parts {
            let Some((name, value)) = part.split_once('=') else {
                return Err(invalid(format!(
                    "{}: the word {} is not name=value",
                    shown(command),
                    shown(part)
                )));
            };
            if words.iter().any(|(known, _)| *known == name) {
                return Err(invalid(format!("{}: the word {} is repeated", shown(command), shown(name))));
            }
            if value.is_empty() {
                return Err(invalid(format!("{}: the word {} has no value", shown(command), shown(name))));
            }
            words.push((name, value));
        }
        Ok(Words { command, words })
    }

    /// Refuses every word but these.
    fn only(self, names: &[&str]) -> Result<Self> {
        match self.words.iter().find(|(name, _)| !names.contains(name)) {
            Some((name, _)) => Err(invalid(format!("{}: unknown word {}", self.command, shown(name)))),
            None => Ok(self),
        }
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.words.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn need(&self, name: &str) -> Result<&'a str> {
        self.get(name).ok_or_else(|| invalid(format!("{}: the word {name} is missing", self.command)))
    }
}

/// Blanks are what a person types between words: spaces and tabs.
fn words_of(line: &str) -> impl Iterator<Item = &str> {
    line.split([' ', '\t']).filter(|word| !word.is_empty())
}

fn check_line(line: &str) -> Result<()> {
    if line.len() > MAX_LINE_BYTES {
        let sentence = format!("a line of {} bytes is longer than {MAX_LINE_BYTES}", line.len());
        return Err(invalid(sentence));
    }
    match line.chars().find(|c| c.is_control() && *c != '\t') {
        Some(c) => Err(invalid(format!("a command is text without control characters such as {c:?}"))),
        None => Ok(()),
    }
}

/// A word as a message repeats it: quoted, and cut where it is long.
fn shown(word: &str) -> String {
    match word.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{:?}...", &word[..end]),
        None => format!("{word:?}"),
    }
}

fn invalid(sentence: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Kind::Invalid, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant_named(name: &str) -> Tenant {
        Tenant::new(name.as_bytes()).unwrap()
    }

    fn tenant_scope(name: &str) -> Scope {
        Scope::Tenant(tenant_named(name))
    }

    #[track_caller]
    fn refused(line: &str, says: &str) {
        let error = parse(line).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{line:?}");
        assert!(error.to_string().contains(says), "{line:?} answers {error}, without {says:?}");
    }

    #[test]
    fn plain_commands() {
        assert_eq!(parse("status").unwrap(), Command::Status);
        assert_eq!(parse(" \ttenants\t ").unwrap(), Command::Tenants);
        assert_eq!(parse("requests").unwrap(), Command::Requests);
        assert_eq!(parse("epoch tenant=a").unwrap(), Command::Epoch { tenant: tenant_named("a") });
        assert_eq!(parse("poll storage=s-1").unwrap(), Command::Poll { storage: "s-1".into() });
        assert_eq!(parse("forget storage=s-1").unwrap(), Command::Forget { storage: "s-1".into() });
        assert_eq!(parse("retry").unwrap(), Command::Retry { generation: None });
        assert_eq!(parse("retry generation=7").unwrap(), Command::Retry { generation: Some(7) });
    }

    #[test]
    fn quotas() {
        let both = |tenant: Option<&str>, bytes, reserve| Command::Quota {
            tenant: tenant.map(tenant_named),
            bytes,
            reserve,
            ttl: None,
        };
        let quota = |tenant, bytes| both(tenant, bytes, None);
        let bytes = |n| Some(QuotaValue::Bytes(n));
        assert_eq!(parse("quota").unwrap(), quota(None, None));
        assert_eq!(parse("quota bytes=4096").unwrap(), quota(None, bytes(4096)));
        assert_eq!(parse("quota bytes=100GiB").unwrap(), quota(None, bytes(107_374_182_400)));
        assert_eq!(parse("quota bytes=100G").unwrap(), quota(None, bytes(107_374_182_400)));
        assert_eq!(parse("quota bytes=100GB").unwrap(), quota(None, bytes(100_000_000_000)));
        assert_eq!(parse("quota bytes=none tenant=a").unwrap(), quota(Some("a"), Some(QuotaValue::None)));
        assert_eq!(parse("quota tenant=a").unwrap(), quota(Some("a"), None));
        assert_eq!(parse("quota tenant=a reserve=1K").unwrap(), both(Some("a"), None, bytes(1024)));
        let all = parse("quota tenant=a reserve=none bytes=2K").unwrap();
        assert_eq!(all, both(Some("a"), bytes(2048), Some(QuotaValue::None)));
        let ttl = |ttl| Command::Quota { tenant: Some(tenant_named("a")), bytes: None, reserve: None, ttl };
        assert_eq!(parse("quota tenant=a ttl=2m").unwrap(), ttl(Some(TtlValue::Seconds(120))));
        assert_eq!(parse("quota tenant=a ttl=none").unwrap(), ttl(Some(TtlValue::None)));
        refused("quota tenant=a ttl=90", "no unit");
        refused("quota tenant=a ttl=1500ms", "whole seconds");
        refused("quota tenant=a reserve=", "no value");
        for bad in ["5X", "-1", "+1", "G", "None", "99999999999T", "18446744073709551616"] {
            assert_eq!(parse(&format!("quota bytes={bad}")).unwrap_err().kind(), Kind::Invalid, "{bad}");
        }
    }

    #[test]
    fn percentages() {
        for (text, to_percent) in [("0", 0), ("95", 95), ("100", 100), ("50%", 50)] {
            assert_eq!(parse(&format!("evict to={text}")).unwrap(), Command::Evict { to_percent });
        }
        for bad in ["101", "-1", "+5", "300", "9.5", "%", "x"] {
            refused(&format!("evict to={bad}"), bad);
        }
    }

    #[test]
    fn removals() {
        let remove =
            |scope, mode, id: Option<&str>| Command::RemoveAll { scope, mode, id: id.map(str::to_owned) };
        let physical = Mode::Physical;
        assert_eq!(parse("remove-all scope=global").unwrap(), remove(Scope::Global, physical, None));
        assert_eq!(
            parse("remove-all id=a=b/\u{e9} scope=global").unwrap(),
            remove(Scope::Global, physical, Some("a=b/\u{e9}"))
        );
        let a = tenant_scope("a");
        assert_eq!(parse("remove-all tenant=a").unwrap(), remove(a.clone(), physical, None));
        assert_eq!(parse("remove-all tenant=a scope=tenant").unwrap(), remove(a.clone(), physical, None));
        assert_eq!(parse("remove-all tenant=a mode=physical").unwrap(), remove(a.clone(), physical, None));
        assert_eq!(
            parse("remove-all  tenant=a mode=logical id=x").unwrap(),
            remove(a, Mode::Logical, Some("x"))
        );
    }

    /// The dangerous command: nothing that is not exactly spelled removes anything.
    #[test]
    fn removals_never_guess() {
        refused("remove-all", "scope is missing");
        refused("remove-all id=x", "scope is missing");
        refused("remove-all scope=global tenant=a", "no tenant");
        refused("remove-all scope=tenant", "tenant is missing");
        refused("remove-all scope=Global", "\"Global\"");
        refused("remove-all scope=global mode=logical", "mode");
        refused("remove-all tenant=a mode=soft", "\"soft\"");
        refused("remove-all tenant=../a", "../a");
        refused("remove-all tenant=", "\"tenant\" has no value");
        refused("remove-all global", "\"global\" is not name=value");
        refused("remove-all tenant=a tenant=b", "\"tenant\" is repeated");
        refused("remove-all tenant=a tennant=b", "unknown word \"tennant\"");
        refused("remove-all tenant=a Mode=logical", "unknown word \"Mode\"");
    }

    #[test]
    fn queries_name_one_request() {
        let query = |request| Command::Query { request };
        assert_eq!(parse("query generation=3").unwrap(), query(Request::Generation(3)));
        assert_eq!(parse("query id=job-3").unwrap(), query(Request::Id("job-3".into())));
        refused("query", "generation or id");
        refused("query id=x generation=3", "not both");
        for bad in ["", "-3", "+3", "0x3", "3.0", "18446744073709551616"] {
            refused(&format!("query generation={bad}"), "generation");
        }
    }

    #[test]
    fn acknowledgements() {
        let ack = |scope| Command::Ack { storage: "s".into(), generation: 9, scope };
        assert_eq!(parse("ack storage=s generation=9 scope=global").unwrap(), ack(Scope::Global));
        assert_eq!(
            parse("ack scope=tenant tenant=a storage=s generation=9").unwrap(),
            ack(tenant_scope("a"))
        );
        refused("ack generation=9 scope=global", "storage is missing");
        refused("ack storage=s scope=global", "generation is missing");
        refused("ack storage=s generation=9", "scope is missing");
        refused("ack storage=s generation=9 tenant=a", "scope is missing");
        refused("ack storage=s generation=9 scope=tenant", "tenant is missing");
        refused("ack storage=s generation=9 scope=global tenant=a", "no tenant");
    }

    #[test]
    fn what_is_no_command_is_named() {
        refused("", "empty line");
        refused("reboot", "unknown command \"reboot\"");
        refused("STATUS", "unknown command \"STATUS\"");
        refused("status verbose=1", "unknown word \"verbose\"");
        refused("status =1", "unknown word \"\"");
        refused("evict", "to is missing");
        refused("epoch", "tenant is missing");
        refused("poll", "storage is missing");
        refused(&"x".repeat(1000), &format!("{:?}...", "x".repeat(64)));
        refused(&"\u{e9}".repeat(1000), "unknown command");
        refused("status\0", "control characters");
        refused("status\r", "control characters");
        refused("status\u{9b}", "control characters");
    }

    #[test]
    fn the_longest_line() {
        let line = |bytes: usize| format!("poll storage={}", "s".repeat(bytes - "poll storage=".len()));
        assert!(parse(&line(4096)).is_ok());
        refused(&line(4097), "4097 bytes");
        assert_eq!(split_lines(format!("status\n{}\n", line(4096)).as_bytes()).unwrap().len(), 2);
        assert_eq!(split_lines(line(4097).as_bytes()).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn one_write_is_whole_lines() {
        assert_eq!(split_lines(b"status").unwrap(), ["status"]);
        assert_eq!(split_lines(b"status\n").unwrap(), ["status"]);
        assert_eq!(
            split_lines(b"\n\nstatus\n \t\npoll storage=x\n\n").unwrap(),
            ["status", "poll storage=x"]
        );
        for none in [&b""[..], b"\n", b" \n\t"] {
            assert_eq!(split_lines(none).unwrap().len(), 0, "{none:?}");
        }
        for bad in [&b"status\0"[..], b"\0", b"status\n\x01\n", b"status\r\n", b"\xff\xfe"] {
            assert_eq!(split_lines(bad).unwrap_err().kind(), Kind::Invalid, "{bad:?}");
        }
        let torn = &"status \u{e9}".as_bytes()[..8];
        assert!(split_lines(torn).unwrap_err().to_string().contains("byte 7"));
    }
}
