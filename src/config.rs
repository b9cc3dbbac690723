//! Validated settings, the text forms of their values, and the limits of everything.
//!
//! Everything that a person types (sizes, percents, durations, modes, names of choices) is parsed here, once; each
//! refusal is a [`Kind::Invalid`] error whose sentence names the text and what it should have been.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Kind, Result};

mod coordinator;
mod evict;

pub use coordinator::{Coordinator, CoordinatorWords, EtcdSettings, EtcdTls, EtcdUser, Secret};
pub use evict::{
    DEFAULT_ORDER_INTERVAL, EvictOptions, MAX_EVICT_PERCENT, MAX_ORDER_INTERVAL, MAX_QUEUES, PolicyName,
    parse_order_interval,
};

/// Percent of the quota above which background eviction starts, where nobody says otherwise.
pub const DEFAULT_HIGH_PERCENT: u8 = 97;
/// Percent of the quota at which background eviction stops, where nobody says otherwise.
pub const DEFAULT_LOW_PERCENT: u8 = 95;
/// Longest that a mutation may wait for a scope that is being removed.
pub const MAX_FENCE_WAIT: Duration = Duration::from_secs(24 * 3600);

/// Whole-store quota and where background eviction starts and stops.
#[derive(Debug, Clone)]
pub struct Quota {
    /// Allocated bytes; `None` is 90 % of the backing filesystem.
    pub size_bytes: Option<u64>,
    /// Most keys (files and symlinks); `None` is no limit.
    pub max_keys: Option<u64>,
    /// Percent of the quota above which background eviction starts.
    pub high_percent: u8,
    /// Percent of the quota at which background eviction stops.
    pub low_percent: u8,
}

impl Quota {
    /// A quota; an empty one, or a high watermark below the low one, is [`Kind::Invalid`]. A watermark that is not
    /// given is its default, moved where the other one needs it.
    pub fn new(
        size_bytes: Option<u64>,
        max_keys: Option<u64>,
        high_percent: Option<u8>,
        low_percent: Option<u8>,
    ) -> Result<Self> {
        if size_bytes == Some(0) {
            return Err(invalid("size 0 leaves no room for any value"));
        }
        if max_keys == Some(0) {
            return Err(invalid("max-keys 0 leaves no room for any key"));
        }
        let high = high_percent.unwrap_or(DEFAULT_HIGH_PERCENT.max(low_percent.unwrap_or(0)));
        let low = low_percent.unwrap_or(DEFAULT_LOW_PERCENT.min(high));
        if !(1..=100).contains(&low) || !(1..=100).contains(&high) {
            return Err(invalid(format!("watermarks {high} and {low} are not both 1 to 100 percent")));
        }
        if high < low {
            return Err(invalid(format!(
                "high watermark {high} is below low watermark {low}: eviction would stop before it starts"
            )));
        }
        Ok(Quota { size_bytes, max_keys, high_percent: high, low_percent: low })
    }
}

/// What a close promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Namespace order: a reader sees the old value or the new one, also after the daemon died.
    Rename,
    /// Also after power was lost.
    Fsync,
}

impl Durability {
    /// Every choice, by the name that a person types.
    pub const NAMES: [(&'static str, Self); 2] = [("rename", Self::Rename), ("fsync", Self::Fsync)];
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        choice("durability", text, &Self::NAMES)
    }
}

/// Whether records get a checksum of their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// Values go the fastest way.
    Off,
    /// Values are written through the daemon.
    On,
}

impl Checksum {
    /// Every choice, by the name that a person types.
    pub const NAMES: [(&'static str, Self); 2] = [("off", Self::Off), ("on", Self::On)];
}

/// Whether the kernel moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passthrough {
    /// Where the kernel and privileges allow it.
    Auto,
    /// Or fail the mount.
    On,
    /// The daemon copies.
    Off,
}

impl Passthrough {
    /// Every choice, by the name that a person types.
    pub const NAMES: [(&'static str, Self); 3] = [("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

impl FromStr for Passthrough {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        choice("passthrough", text, &Self::NAMES)
    }
}

/// A Mooncake directory that is served in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachLegacy {
    /// Mooncake's storage directory.
    pub dir: PathBuf,
    /// The directory of records in it.
    pub fsdir: PathBuf,
    /// Words `OLD=NEW`: names of tenants there and here.
    pub tenants: Vec<OsString>,
}

/// Settings of a store, shared by every way of opening it.
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// Quota and watermarks.
    pub quota: Quota,
    /// Eviction policy.
    pub policy: PolicyName,
    /// Its parameters.
    pub evict: EvictOptions,
    /// How often the eviction order is written while keys are used.
    pub order_interval: Duration,
    /// What a publication promises.
    pub durability: Durability,
    /// Whether records get a checksum of their content.
    pub checksum: Checksum,
    /// Whether the machine's processors are kept from sleeping while requests come, or a long walk goes on.
    pub keep_awake: bool,
    /// A legacy directory to serve beside the store's own records.
    pub attach: Option<AttachLegacy>,
    /// Whether keys go to make room. Where not, what does not fit is refused.
    pub evicts: bool,
}

impl Default for StoreSettings {
    fn default() -> Self {
        StoreSettings {
            quota: Quota {
                size_bytes: None,
                max_keys: None,
                high_percent: DEFAULT_HIGH_PERCENT,
                low_percent: DEFAULT_LOW_PERCENT,
            },
            policy: PolicyName::MqChain,
            evict: EvictOptions::default(),
            order_interval: DEFAULT_ORDER_INTERVAL,
            durability: Durability::Rename,
            checksum: Checksum::Off,
            keep_awake: true,
            attach: None,
            evicts: true,
        }
    }
}

/// Settings of a mount.
#[derive(Debug, Clone)]
pub struct MountSettings {
    /// A view: this tenant's keys at the root of the mount.
    pub tenant: Option<crate::key::Tenant>,
    /// Whether other users than the mounting one may enter; permissions are enforced either way.
    pub allow_other: bool,
    /// Kernel passthrough.
    pub passthrough: Passthrough,
    /// How long a mutation waits for a scope that is being removed.
    pub fence_wait: Duration,
    /// Overrides every file's owner.
    pub uid: Option<u32>,
    /// Overrides every file's group.
    pub gid: Option<u32>,
    /// Overrides every file's permission bits.
    pub file_mode: Option<u32>,
    /// Overrides every directory's permission bits.
    pub dir_mode: Option<u32>,
    /// Mount read-only, noexec and the like: options handed to the kernel as they are.
    pub kernel_options: Vec<String>,
}

impl Default for MountSettings {
    fn default() -> Self {
        MountSettings {
            tenant: None,
            allow_other: false,
            passthrough: Passthrough::Auto,
            fence_wait: Duration::from_secs(1),
            uid: None,
            gid: None,
            file_mode: None,
            dir_mode: None,
            kernel_options: Vec::new(),
        }
    }
}

/// Bounds of every queue, list and wait.
pub mod limits {
    use std::time::Duration;

    pub use super::coordinator::limits::*;

    /// Removals that have ended and are remembered with what they deleted.
    pub const ENDED_REMOVALS: usize = 64;
    /// Descriptors of the daemon that no open takes.
    pub const SPARE_DESCRIPTORS: u64 = 48;
    /// Records kept in quarantine; the next one is removed instead.
    pub const QUARANTINED_RECORDS: usize = 1000;
    /// How often the bytes of values being written are looked at, while there are any.
    pub const STAGED_POLL: Duration = Duration::from_millis(20);
    /// The same while they have come near the quota, or one has passed it.
    pub const STAGED_POLL_NEAR: Duration = Duration::from_millis(2);
    /// How near that is: what may be written in a look at full speed.
    pub const STAGED_RUSH_BYTES: u64 = 128 << 20;
    /// Values being written that are looked at so often, at most: more would cost the keeper too much.
    pub const WATCHED_CLOSELY: usize = 256;
    /// For how long a value that is edited in place has not grown when its growth counts as used.
    pub const EDIT_RESTS: Duration = Duration::from_secs(1);
    /// What a value may have grown in place beside what is counted of it when its disk is full.
    pub const EDIT_ON_FULL_DISK_BYTES: u64 = 16 << 20;
    /// Values that threads of their own empty at once.
    pub const EMPTIED_AT_ONCE: usize = 16;
    /// Looks without anything being written, after which the keeper looks only now and then.
    pub const IDLE_LOOKS: u32 = 50;
    /// How often free space is looked at otherwise.
    pub const IDLE_POLL: Duration = Duration::from_secs(1);
    /// Runs of clients that are followed at once.
    pub const RUNS: usize = 1024;
    /// Keys of a run, at most; and no more than this part of all keys,
    pub const RUN_KEYS: usize = 1024;
    /// a sixteenth of them,
    pub const RUN_SHARE: usize = 16;
    /// but in a store of few keys these.
    pub const SHORTEST_RUN_BOUND: usize = 8;
    /// A pause that ends a run.
    pub const RUN_PAUSE: Duration = Duration::from_secs(1);
    /// Keys whose place in the eviction order is looked up at once: the index waits that long.
    pub const ORDERED_AT_ONCE: usize = 1024;
    /// Threads that an import copies with, at most.
    pub const IMPORT_THREADS: usize = 8;
    /// Values that one of them takes on at once.
    pub const IMPORTED_AT_ONCE: usize = 32;
    /// How much of a record is read at once for its checksum.
    pub const SUM_BUFFER_BYTES: usize = 256 << 10;
    /// A value up to this length is read back for its checksum where its close is handled; a longer one beside.
    pub const SUMMED_INLINE_BYTES: u64 = 256 << 10;
    /// Free space of the backing filesystem that eviction defends: this, or 5 % of it where that is less.
    pub const FREE_FLOOR_BYTES: u64 = 1 << 30;
    /// Free inodes that eviction defends: these, or 2 % of all where that is less.
    pub const FREE_FLOOR_INODES: u64 = 10_000;
    /// Free space below which a value being written may lack what its writer could not write.
    pub const FULL_DISK_BYTES: u64 = 256 << 10;
    /// Keys evicted at once when the backing filesystem refuses a file or a directory.
    pub const EVICTED_FOR_ROOM: usize = 32;
    /// How often that is tried for one operation.
    pub const ROOM_TRIES: usize = 8;
    /// Victims in a row that could not be removed, after which one round of eviction gives up.
    pub const STUCK_VICTIMS: usize = 64;
    /// Keys in a row that a search passes and the next one need not ask about, at least.
    pub const GAP_SLOTS: usize = 16;
    /// Keys that one search for a victim sets aside for a reserve's sake, the index locked.
    pub const SET_ASIDE_AT_ONCE: usize = 1024;
    /// Keys set aside that are asked whether they may go, of each tenant above its reserve.
    pub const ASKED_OF_ASIDE: usize = 64;
    /// Keys whose time is over that the keeper deletes before it looks at anything else.
    pub const EXPIRED_AT_ONCE: usize = 256;
    /// Until one that could not be deleted, or is being written, is tried again.
    pub const EXPIRE_AGAIN_SECONDS: i64 = 10;
    /// Keys that the keeper looks at for their age in one part of a round.
    pub const AGED_AT_ONCE: usize = 256;
    /// Nodes that it searches for them, the index locked.
    pub const AGED_SLOTS_AT_ONCE: usize = 16 << 10;
    /// Removals of different tenants that run at once.
    pub const REMOVALS_AT_ONCE: usize = 8;
    /// Pause after the first failed attempt at a removal; each further one doubles it.
    pub const FIRST_RETRY: Duration = Duration::from_millis(100);
    /// Longest pause between attempts at a removal.
    pub const LAST_RETRY: Duration = Duration::from_secs(30);
    /// Pause after the ledger could not be asked.
    pub const LEDGER_RETRY: Duration = Duration::from_secs(1);
    /// Threads that a start walks with, at most.
    pub const START_THREADS: usize = 8;
    /// Threads that a removal deletes with, at most.
    pub const REMOVAL_THREADS: usize = 2;
    /// How far the watch over values being written goes before others, as in nice(1), where that is permitted.
    pub const WATCH_NICE: i32 = -10;
    /// How far these threads stand back for those that serve, as in nice(1).
    pub const REMOVAL_NICE: i32 = 5;
    /// How long all of them but one wait to see that nobody uses the store.
    pub const MAKE_WAY: Duration = Duration::from_millis(20);
    /// Records that a proof of ownership remembers: 32 bytes each, until they are removed.
    pub const PROVEN_RECORDS: usize = 1 << 20;
    /// Names that a removal takes out of the index before others get at it.
    pub const HIDDEN_AT_ONCE: usize = 32;
    /// How long a removal waits for kernels to forget what it took.
    pub const FORGET_WAIT: Duration = Duration::from_secs(5);
    /// How long a look-up waits for a value whose last close is on its way.
    pub const SETTLE_WAIT: Duration = Duration::from_millis(10);
    /// Longest id of a removal request.
    pub const REQUEST_ID_BYTES: usize = 1024;
    /// Complete removal requests that the ledger keeps.
    pub const KEPT_REQUESTS: u64 = 10_000;
    /// Requests older than those whose id still answers.
    pub const KEPT_REQUEST_IDS: u64 = 100_000;
    /// Records that one submission drops at most, so that none pays for all.
    pub const DROPPED_AT_ONCE: usize = 16;
    /// Tokens that a storage may have offered without an answer.
    pub const OPEN_TOKENS: usize = 64;
    /// Longest request for metrics.
    pub const SCRAPE_BYTES: usize = 8 << 10;
    /// How long one may take to ask for metrics, and to take the answer.
    pub const SCRAPE_WAIT: Duration = Duration::from_secs(2);
    /// Pause after a connection for metrics could not be accepted.
    pub const SCRAPE_RETRY: Duration = Duration::from_millis(100);
    /// What the ledger caches of its file.
    pub const LEDGER_CACHE_BYTES: usize = 8 << 20;
}

fn invalid(sentence: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, sentence.into())
}

fn choice<T: Copy>(what: &str, text: &str, names: &[(&str, T)]) -> Result<T> {
    names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        invalid(format!("{what} {text:?} is not one of {}", known.join(", ")))
    })
}

/// Most digits after the point of a fraction: what keeps every product below within `u128`.
const MAX_FRACTION_DIGITS: usize = 9;

/// Parses a size: `100G` and `100GiB` count in 1024, `100GB` in 1000, a plain number is bytes; `1.5G` is fine.
pub fn parse_size(text: &str) -> Result<u64> {
    let (number, unit) = split_number("size", text)?;
    let unit_bytes = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        "kb" => 1000,
        "mb" => 1000_u128.pow(2),
        "gb" => 1000_u128.pow(3),
        "tb" => 1000_u128.pow(4),
        "pb" => 1000_u128.pow(5),
        _ => {
            return Err(invalid(format!(
                "size {text:?}: unknown unit {unit:?} (K, M, G, T, P or KiB.. count in 1024, KB.. in 1000)"
            )));
        }
    };
    scale("size", text, number, unit_bytes)
}

/// Parses a duration with its unit: `500ms`, `1s`, `2m`, `1h`; `0` needs none.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let (number, unit) = split_number("duration", text)?;
    let unit_ns = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60 * 1_000_000_000,
        "h" => 3600 * 1_000_000_000,
        "" if number == "0" => 1,
        "" => return Err(invalid(format!("duration {text:?} has no unit (500ms, 1s, 2m)"))),
        _ => return Err(invalid(format!("duration {text:?}: unknown unit {unit:?} (ms, s, m or h)"))),
    };
    scale("duration", text, number, unit_ns).map(Duration::from_nanos)
}

/// Parses a time to live: a duration of whole seconds.
pub fn parse_ttl(text: &str) -> Result<u64> {
    let time = parse_duration(text)?;
    if time.subsec_nanos() > 0 {
        return Err(invalid(format!("duration {text:?}: a time to live is whole seconds")));
    }
    Ok(time.as_secs())
}

/// Parses a fence wait: a duration of at most [`MAX_FENCE_WAIT`].
pub fn parse_fence_wait(text: &str) -> Result<Duration> {
    let wait = parse_duration(text)?;
    if wait > MAX_FENCE_WAIT {
        return Err(invalid(format!("duration {text:?} is longer than a day")));
    }
    Ok(wait)
}

/// Parses a percentage from 1 to 100, with or without its sign.
pub fn parse_percent(text: &str) -> Result<u8> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    match number.parse::<u8>() {
        Ok(percent @ 1..=100) if digits => Ok(percent),
        _ => Err(invalid(format!("percentage {text:?} is not a whole number from 1 to 100"))),
    }
}

/// Parses permission bits in octal: `640`, `0640` or `0o640`, at most `7777`.
pub fn parse_mode(text: &str) -> Result<u32> {
    let number = text.strip_prefix("0o").unwrap_or(text);
    let digits = !number.is_empty() && number.bytes().all(|b| matches!(b, b'0'..=b'7'));
    match u32::from_str_radix(number, 8) {
        Ok(mode) if digits && mode <= 0o7777 => Ok(mode),
        _ => Err(invalid(format!("mode {text:?} is not octal permission bits such as 0640"))),
    }
}

/// A size for people: `512 B`, `1.5 GiB`. [`parse_size`] reads it back, rounded to a tenth.
pub fn format_size(size_bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let tenths = |shift: u32| ((u128::from(size_bytes) * 10) + (1 << (shift - 1))) >> shift;
    if size_bytes < 1024 {
        return format!("{size_bytes} B");
    }
    for (i, unit) in (1_u32..).zip(UNITS) {
        let t = tenths(10 * i);
        if t < 10 * 1024 || i == 6 {
            return if t % 10 == 0 {
                format!("{} {unit}", t / 10)
            } else {
                format!("{}.{} {unit}", t / 10, t % 10)
            };
        }
    }
    unreachable!("the last unit always answers")
}

/// The number that a text begins with, and the unit that follows it (after at most one space).
fn split_number<'a>(what: &str, text: &'a str) -> Result<(&'a str, &'a str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err(not_number(what, text));
    }
    Ok((number, unit.strip_prefix(' ').unwrap_or(unit)))
}

fn not_number(what: &str, text: &str) -> Error {
    invalid(format!("{what} {text:?} does not begin with a number such as 10 or 1.5"))
}

/// `number` times `unit`, rounded down; a fraction of the smallest unit and anything above `u64` is refused.
fn scale(what: &str, text: &str, number: &str, unit: u128) -> Result<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let pointless = number.contains('.') && fraction.is_empty();
    if whole.is_empty() || pointless || !all_digits(whole) || !all_digits(fraction) {
        return Err(not_number(what, text));
    }
    if unit == 1 && !fraction.is_empty() {
        return Err(invalid(format!("{what} {text:?} is a fraction of the smallest unit")));
    }
    if fraction.len() > MAX_FRACTION_DIGITS {
        return Err(invalid(format!(
            "{what} {text:?} has more than {MAX_FRACTION_DIGITS} digits after the point"
        )));
    }
    let too_large = || invalid(format!("{what} {text:?} is too large"));
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let ten_to = 10_u128.pow(fraction.len() as u32);
    let fraction: u128 =
        if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| not_number(what, text))? };
    // Below 2^64 * 2^50 + 10^9 * 2^50: far from overflow.
    u64::try_from(u128::from(whole) * unit + fraction * unit / ten_to).map_err(|_| too_large())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T: std::fmt::Debug>(r: Result<T>) -> String {
        let e = r.unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid);
        e.to_string()
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("1k", 1024),
            ("100G", 100 << 30),
            ("100GiB", 100 << 30),
            ("100gib", 100 << 30),
            ("100 GiB", 100 << 30),
            ("100GB", 100_000_000_000),
            ("1.5G", 3 << 29),
            ("0.1K", 102),
            ("3T", 3 << 40),
            ("2PB", 2_000_000_000_000_000),
            ("16383P", 16383 << 50),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for (text, why) in [
            ("", "number"),
            ("G", "number"),
            ("-1", "number"),
            ("+1", "number"),
            (".5G", "number"),
            ("1.G", "number"),
            ("1.2.3G", "number"),
            ("1.5", "fraction"),
            ("1.5B", "fraction"),
            ("1.0000000001G", "digits"),
            ("10X", "unit"),
            ("1e9", "unit"),
            ("10G ", "unit"),
            ("10  G", "unit"),
            ("1\u{661}", "unit"),
            ("16384P", "too large"),
            ("18446744073709551616", "too large"),
            ("99999999999999999999999999999999999999999999G", "too large"),
        ] {
            let message = refusal(parse_size(text));
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (100 << 30, "100 GiB"),
            ((1 << 20) - 1, "1 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(parse_size(&format_size(3 << 29)).unwrap(), 3 << 29);
    }

    #[test]
    fn percents() {
        for (text, percent) in [("1", 1), ("97", 97), ("97%", 97), ("100", 100)] {
            assert_eq!(parse_percent(text).unwrap(), percent);
        }
        for text in ["", "%", "0", "101", "256", "-1", "+5", "9.5", "97%%", "x"] {
            assert!(refusal(parse_percent(text)).contains("1 to 100"), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [("0", 0), ("0s", 0), ("500ms", 500), ("1s", 1000), ("1.5s", 1500), ("2m", 120_000)]
        {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for (text, why) in [
            ("", "number"),
            ("5", "unit"),
            ("5d", "unit"),
            ("s", "number"),
            ("-1s", "number"),
            ("9999999999h", "large"),
        ] {
            let message = refusal(parse_duration(text));
            assert!(message.contains(why), "{text}: {message}");
        }
        assert_eq!(parse_fence_wait("24h").unwrap(), MAX_FENCE_WAIT);
        assert!(refusal(parse_fence_wait("25h")).contains("day"));
    }

    #[test]
    fn modes() {
        for (text, mode) in [("0640", 0o640), ("750", 0o750), ("0o600", 0o600), ("0", 0), ("7777", 0o7777)] {
            assert_eq!(parse_mode(text).unwrap(), mode);
        }
        for text in ["", "0o", "0o0o7", "rw", "8", "10000", "-1", "+7", "77777777777777777777"] {
            assert!(refusal(parse_mode(text)).contains("octal"), "{text}");
        }
    }

    #[test]
    fn watermarks() {
        let marks = |high, low| Quota::new(None, None, high, low).map(|q| (q.high_percent, q.low_percent));
        assert_eq!(marks(None, None).unwrap(), (97, 95));
        assert_eq!(marks(Some(80), Some(80)).unwrap(), (80, 80));
        assert_eq!(marks(Some(80), None).unwrap(), (80, 80));
        assert_eq!(marks(None, Some(99)).unwrap(), (99, 99));
        assert!(refusal(marks(Some(80), Some(81))).contains("below low watermark 81"));
        assert!(refusal(marks(Some(101), None)).contains("percent"));
        assert!(refusal(marks(Some(50), Some(0))).contains("percent"));
        assert!(refusal(Quota::new(Some(0), None, None, None)).contains("size 0"));
        assert!(refusal(Quota::new(None, Some(0), None, None)).contains("max-keys 0"));
    }

    #[test]
    fn choices() {
        assert_eq!("lru".parse::<PolicyName>().unwrap(), PolicyName::Lru);
        assert_eq!("fsync".parse::<Durability>().unwrap(), Durability::Fsync);
        assert_eq!("off".parse::<Passthrough>().unwrap(), Passthrough::Off);
        assert!(refusal("mru".parse::<PolicyName>()).contains("fifo, lru"));
        for (name, policy) in PolicyName::NAMES {
            assert_eq!(policy.as_str(), name);
        }
    }
}
