//! Choices of eviction.

use std::str::FromStr;
use std::time::Duration;

use super::{choice, invalid, parse_duration};
use crate::error::{Error, Result};

/// Which key goes when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    /// First published, first out.
    Fifo,
    /// Least recently opened or published, first out.
    Lru,
    /// The same, but the keys of one run of a client from its end.
    LruChain,
    /// The least frequently used of those that were not used for a while: multi-queue replacement.
    Mq,
    /// The same, but the keys of one run of a client from its end.
    MqChain,
}

impl PolicyName {
    /// Every choice, by the name that a person types.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("fifo", Self::Fifo),
        ("lru", Self::Lru),
        ("lru-chain", Self::LruChain),
        ("mq", Self::Mq),
        ("mq-chain", Self::MqChain),
    ];

    /// The name that a person types, and that the status shows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Lru => "lru",
            Self::LruChain => "lru-chain",
            Self::Mq => "mq",
            Self::MqChain => "mq-chain",
        }
    }
}

impl FromStr for PolicyName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        choice("eviction policy", text, &Self::NAMES)
    }
}

/// Parameters of the multi-queue policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictOptions {
    /// Queues, by the logarithm of the frequency.
    pub queues: u8,
    /// Touches, in percent of the keys, after which a key that is not touched moves down by a queue.
    pub lifetime_percent: u32,
    /// Evicted keys whose frequency is remembered, in percent of the keys.
    pub ghosts_percent: u32,
}

impl Default for EvictOptions {
    fn default() -> Self {
        EvictOptions { queues: 4, lifetime_percent: 50, ghosts_percent: 200 }
    }
}

/// Most queues of an eviction policy: a key's frequency is counted up to 31.
pub const MAX_QUEUES: u8 = 5;
/// The longest lifetime, and the most ghosts, in percent of the keys.
pub const MAX_EVICT_PERCENT: u32 = 10_000;

impl EvictOptions {
    /// Parameters in range; what is not given is the default.
    pub fn new(queues: Option<u8>, lifetime: Option<u32>, ghosts: Option<u32>) -> Result<Self> {
        let default = Self::default();
        let options = EvictOptions {
            queues: queues.unwrap_or(default.queues),
            lifetime_percent: lifetime.unwrap_or(default.lifetime_percent),
            ghosts_percent: ghosts.unwrap_or(default.ghosts_percent),
        };
        if !(1..=MAX_QUEUES).contains(&options.queues) {
            return Err(invalid(format!("evict-queues {} is not 1 to {MAX_QUEUES}", options.queues)));
        }
        for (name, percent) in
            [("evict-lifetime", options.lifetime_percent), ("evict-ghosts", options.ghosts_percent)]
        {
            if percent > MAX_EVICT_PERCENT {
                return Err(invalid(format!(
                    "{name} {percent} is more than {MAX_EVICT_PERCENT} percent of the keys"
                )));
            }
        }
        Ok(options)
    }
}

/// How often the eviction order is written while keys are used, where nobody says otherwise.
pub const DEFAULT_ORDER_INTERVAL: Duration = Duration::from_secs(300);
/// The longest that the order may stay unwritten.
pub const MAX_ORDER_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Parses how often the eviction order is written, up to a day.
pub fn parse_order_interval(text: &str) -> Result<Duration> {
    let interval = parse_duration(text)?;
    if interval > MAX_ORDER_INTERVAL {
        return Err(invalid(format!("order-interval {text:?} is longer than a day")));
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_a_range() {
        let given = EvictOptions { queues: 5, lifetime_percent: 0, ghosts_percent: 10_000 };
        assert_eq!(EvictOptions::new(Some(5), Some(0), Some(10_000)).unwrap(), given);
        assert_eq!(EvictOptions::new(None, None, None).unwrap(), EvictOptions::default());
        for (queues, lifetime, ghosts, named) in [
            (Some(0), None, None, "evict-queues 0 is not 1 to 5"),
            (Some(6), None, None, "evict-queues 6 is not 1 to 5"),
            (None, Some(10_001), None, "evict-lifetime 10001"),
            (None, None, Some(10_001), "evict-ghosts 10001"),
        ] {
            let refused = EvictOptions::new(queues, lifetime, ghosts).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn the_order_is_written_within_a_day() {
        assert_eq!(parse_order_interval("90s").unwrap(), Duration::from_secs(90));
        assert!(parse_order_interval("25h").unwrap_err().to_string().contains("longer than a day"));
    }
}
