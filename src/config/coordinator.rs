//! Who keeps the removal requests: the text forms of that.
//!
//! `etcd://HOST:PORT[,HOST:PORT...]/PREFIX[?NAME=VALUE&...]`; a file may say the same and more, a line each, so that no
//! secret need be on a command line, which everybody on the machine can read.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::invalid;
use crate::error::{Error, Result};

/// Who keeps the removal requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Coordinator {
    /// The store's own ledger.
    #[default]
    Local,
    /// A cluster that other hosts ask as well.
    Etcd(EtcdSettings),
}

/// How to reach etcd, and where in it the ledger is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EtcdSettings {
    /// `HOST:PORT`, at least one.
    pub endpoints: Vec<String>,
    /// What every key begins with; no slash at either end.
    pub prefix: String,
    /// Absent where the connection is plain.
    pub tls: Option<EtcdTls>,
    /// Absent where etcd asks nobody who he is.
    pub user: Option<EtcdUser>,
}

/// Whom to believe, and who we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// Certificates, one of which has signed that of etcd.
    pub ca: PathBuf,
    /// Our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: Secret,
}

/// A text that is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, for the one who asks for it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Bounds of what is asked of etcd.
pub mod limits {
    use std::time::Duration;

    /// How long a connection to an endpoint of etcd may take.
    pub const ETCD_CONNECT_WAIT: Duration = Duration::from_secs(1);
    /// How long one answer of it may take.
    pub const ETCD_ATTEMPT_WAIT: Duration = Duration::from_secs(3);
    /// How long all endpoints are asked before a call fails; while none has answered for so long, each is asked once.
    pub const ETCD_PATIENCE: Duration = Duration::from_secs(6);
    /// Pause after the first round over the endpoints; each further one doubles it.
    pub const ETCD_FIRST_PAUSE: Duration = Duration::from_millis(20);
    /// Longest pause between such rounds.
    pub const ETCD_LAST_PAUSE: Duration = Duration::from_millis(500);
    /// How long a change of the ledger is repeated while others are faster.
    pub const ETCD_CONTENTION_WAIT: Duration = Duration::from_secs(20);
    /// How often a daemon asks what is pending, in a small fleet.
    pub const ETCD_POLL: Duration = Duration::from_secs(2);
    /// How often all daemons of a large one do, together.
    pub const ETCD_POLLS_A_SECOND: u32 = 200;
    /// The largest fleet in which each daemon is told of requests, beside asking.
    pub const ETCD_WATCHERS: usize = 1_000;
    /// How long it is told before it asks to be told again.
    pub const ETCD_WATCH: Duration = Duration::from_secs(60);
    /// How often they renew their leases, together.
    pub const ETCD_RENEWALS_A_SECOND: u32 = 100;
    /// How often a daemon notes that it runs, in a small fleet.
    pub const ETCD_NOTE: Duration = Duration::from_secs(60);
    /// How often all daemons of a large one do, together.
    pub const ETCD_NOTES_A_SECOND: u32 = 20;
    /// What an operator's word moves the generations on by: above all that a ledger can have lost.
    pub const BUMP_GENERATIONS: u64 = 1_000_000_000;
    /// Longest answer of etcd.
    pub const ETCD_ANSWER_BYTES: u64 = 256 << 20;
    /// Keys of a kind that one answer brings.
    pub const ETCD_PART: usize = 500;
    /// Storages whose acknowledgements are asked for at once: etcd does not take many more questions in one.
    pub const ETCD_MARKS_AT_ONCE: usize = 100;
    /// And how many at first, by one who looks whether a request is complete.
    pub const ETCD_FIRST_MARKS: usize = 2;
    /// How long a daemon that does not answer any more is shown as there, in a small fleet.
    pub const ETCD_LEASE: Duration = Duration::from_secs(30);
}

/// What was said about a coordinator so far, in one place or another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CoordinatorWords {
    url: Option<(Vec<String>, String)>,
    local: bool,
    options: Vec<(String, Secret)>,
}

/// Names that a file may give a value to. Of them `password` stands only there.
const NAMES: [&str; 6] = ["ca", "cert", "key", "user", "password", "config"];

impl FromStr for CoordinatorWords {
    type Err = Error;

    /// What stands on a command line.
    fn from_str(text: &str) -> Result<Self> {
        let mut words = CoordinatorWords::default();
        words.url(text)?;
        if words.value("password").is_some() {
            return Err(invalid(
                "a password on a command line is everybody's to read: put it into a file, --coordinator-file FILE",
            ));
        }
        Ok(words)
    }
}

impl CoordinatorWords {
    /// The file that the command line names as having more.
    pub fn file(&self) -> Option<PathBuf> {
        self.value("config").map(PathBuf::from)
    }

    /// Adds what stands in a file: a `NAME=VALUE` a line, `#` begins a comment. What was said before counts.
    pub fn add_file(&mut self, text: &str) -> Result<()> {
        for (line, number) in text.lines().map(str::trim).zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let of_line = |e: Error| e.context(format!("line {number}"));
            let Some((name, value)) = line.split_once('=') else {
                return Err(of_line(invalid("it has no `=`")));
            };
            match (name.trim(), value.trim()) {
                ("config", _) => return Err(of_line(invalid("a file names no other one"))),
                ("coordinator", _) if self.url.is_some() || self.local => {}
                ("coordinator", value) => self.url(value).map_err(of_line)?,
                (name, value) => self.option(name, value).map_err(of_line)?,
            }
        }
        Ok(())
    }

    /// Whether a file that says this is nobody else's to read.
    pub fn has_secret(&self) -> bool {
        self.value("password").is_some()
    }

    /// The coordinator that all of it makes.
    pub fn coordinator(&self) -> Result<Coordinator> {
        let Some((endpoints, prefix)) = self.url.clone() else {
            if self.options.is_empty() {
                return Ok(Coordinator::Local);
            }
            return Err(invalid(
                "options of a coordinator, and no coordinator: name it, coordinator=etcd://HOST:PORT/PREFIX",
            ));
        };
        let path = |name: &str| self.value(name).map(PathBuf::from);
        let identity = match (path("cert"), path("key")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(invalid("cert= and key= go together")),
        };
        let tls = match (path("ca"), identity) {
            (Some(ca), identity) => Some(EtcdTls { ca, identity }),
            (None, None) => None,
            (None, Some(_)) => return Err(invalid("cert= and key= need ca=: whom to believe")),
        };
        let user = match (self.value("user"), self.value("password")) {
            (Some(name), Some(password)) => {
                Some(EtcdUser { name: name.to_owned(), password: Secret(password.to_owned()) })
            }
            (None, None) => None,
            (Some(_), None) => {
                return Err(invalid("user= needs password=, in a file: --coordinator-file FILE"));
            }
            (None, Some(_)) => return Err(invalid("password= needs user=")),
        };
        Ok(Coordinator::Etcd(EtcdSettings { endpoints, prefix, tls, user }))
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == name).map(|(_, value)| value.expose())
    }

    fn option(&mut self, name: &str, value: &str) -> Result<()> {
        if !NAMES.contains(&name) {
            return Err(invalid(format!("{name:?} is not one of coordinator, {}", NAMES.join(", "))));
        }
        if value.is_empty() {
            return Err(invalid(format!("{name}= has no value")));
        }
        if self.value(name).is_none() {
            self.options.push((name.to_owned(), Secret(value.to_owned())));
        }
        Ok(())
    }

    fn url(&mut self, text: &str) -> Result<()> {
        if text == "local" {
            self.local = true;
            return Ok(());
        }
        let form = "local, or etcd://HOST:PORT[,HOST:PORT...]/PREFIX";
        // The text itself may hold what should not be shown again.
        let Some(rest) = text.strip_prefix("etcd://") else {
            return Err(invalid(format!("a coordinator is {form}")));
        };
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, prefix) = place.split_once('/').unwrap_or((place, ""));
        let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
        if let Some(bad) = endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            return Err(invalid(format!("{bad:?} is no HOST:PORT: a coordinator is {form}")));
        }
        let prefix = prefix.trim_end_matches('/');
        let is_name = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        };
        if !prefix.split('/').all(is_name) {
            return Err(invalid(format!(
                "the prefix {prefix:?} is not made of A-Z a-z 0-9 . _ - with slashes between: a coordinator is {form}"
            )));
        }
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            self.option(name, value)?;
        }
        self.url = Some((endpoints, prefix.to_owned()));
        Ok(())
    }
}

/// `HOST:PORT`, `[IPv6]:PORT`; whether there is such a host is another question.
fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0) && port.bytes().all(|b| b.is_ascii_digit());
    let is_name = |host: &str| {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    is_port && bare.map_or_else(|| is_name(host), |ip| ip.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn words(text: &str) -> Result<CoordinatorWords> {
        text.parse()
    }

    fn etcd(words: &CoordinatorWords) -> EtcdSettings {
        match words.coordinator().unwrap() {
            Coordinator::Etcd(settings) => settings,
            Coordinator::Local => panic!("local"),
        }
    }

    #[test]
    fn a_coordinator_is_local_or_a_url() {
        assert_eq!(words("local").unwrap().coordinator().unwrap(), Coordinator::Local);
        let settings = etcd(&words("etcd://a:2379,b.c:1,[::1]:65535/fleet/x/").unwrap());
        assert_eq!(settings.endpoints, ["a:2379", "b.c:1", "[::1]:65535"]);
        assert_eq!((settings.prefix.as_str(), settings.tls, settings.user), ("fleet/x", None, None));
        for bad in [
            "",
            "remote",
            "etcd://",
            "etcd://a:1",
            "etcd://a:1/",
            "etcd:///p",
            "etcd://a/p",
            "etcd://a:0/p",
            "etcd://a:1,/p",
            "etcd://a:65536/p",
            "etcd://a:+1/p",
            "etcd://a:1/p q",
            "etcd://a:1//p",
            "http://a:1/p",
            "etcd://u@a:1/p",
            "etcd://[x]:1/p",
            "etcd://a:1/p?x=1",
            "etcd://a:1/p?ca",
            "etcd://a:1/p?ca=",
            "etcd://a:1/p?password=x",
        ] {
            assert_eq!(words(bad).unwrap_err().kind(), Kind::Invalid, "{bad}");
        }
    }

    #[test]
    fn tls_is_named_in_the_url_or_a_file() {
        let tls =
            etcd(&words("etcd://a:1/p?ca=/c/ca.pem&cert=/c/me.pem&key=/c/me.key").unwrap()).tls.unwrap();
        assert_eq!(
            (tls.ca, tls.identity),
            ("/c/ca.pem".into(), Some(("/c/me.pem".into(), "/c/me.key".into())))
        );
        for bad in ["etcd://a:1/p?cert=x&key=y", "etcd://a:1/p?ca=x&cert=y", "etcd://a:1/p?ca=x&key=y"] {
            assert_eq!(words(bad).unwrap().coordinator().unwrap_err().kind(), Kind::Invalid, "{bad}");
        }
    }

    #[test]
    fn a_file_says_the_rest_and_the_command_line_counts() {
        let mut said = words("etcd://a:1/p?ca=/mine&config=/etc/f").unwrap();
        assert_eq!(said.file(), Some("/etc/f".into()));
        said.add_file("# whose\n\ncoordinator = etcd://b:1/q\nca=/theirs\nuser=u\n password = a=b # c \n")
            .unwrap();
        assert!(said.has_secret());
        let settings = etcd(&said);
        assert_eq!((settings.endpoints, settings.prefix.as_str()), (vec!["a:1".to_owned()], "p"));
        assert_eq!(settings.tls.unwrap().ca, PathBuf::from("/mine"));
        let user = settings.user.unwrap();
        assert_eq!((user.name.as_str(), user.password.expose()), ("u", "a=b # c"));
        assert!(!format!("{user:?} {said:?}").contains("a=b"));

        let mut alone = CoordinatorWords::default();
        alone.add_file("coordinator=etcd://b:1/q").unwrap();
        assert_eq!(etcd(&alone).endpoints, ["b:1"]);
    }

    #[test]
    fn a_file_that_is_wrong_says_where() {
        for (bad, line) in [("ca=x\nbogus=1", 2), ("ca", 1), ("\n\nconfig=x", 3), ("coordinator=etcd://x", 1)]
        {
            let e = CoordinatorWords::default().add_file(bad).unwrap_err();
            assert!(e.to_string().contains(&format!("line {line}")), "{e}");
        }
        let mut said = words("etcd://a:1/p").unwrap();
        said.add_file("user=u").unwrap();
        assert!(said.coordinator().is_err());
        let mut said = CoordinatorWords::default();
        said.add_file("ca=x").unwrap();
        assert!(said.coordinator().unwrap_err().to_string().contains("no coordinator"));
    }
}
