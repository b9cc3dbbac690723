//! The format file `FENCEFS`: format version and storage identity, as JSON for people to read.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Kind, Result};

/// The format that this build writes and reads.
pub const FORMAT: u32 = 1;

/// What the format file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superblock {
    /// Format version of everything below the root.
    pub format: u32,
    /// Identity of this store, for good.
    pub storage_id: Uuid,
}

impl Superblock {
    /// A new store's.
    pub fn new() -> Self {
        Superblock { format: FORMAT, storage_id: Uuid::new_v4() }
    }

    /// The file's text.
    pub fn encode(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("two plain fields serialise");
        text.push('\n');
        text
    }

    /// Reads the file's text. A newer format is refused, never rewritten.
    pub fn decode(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let unreadable = |e: serde_json::Error| {
            Error::new(
                Kind::Corrupt,
                format!("the format file FENCEFS cannot be read ({e}); restore it from a backup"),
            )
        };
        let head: Head = serde_json::from_str(text).map_err(unreadable)?;
        if head.format != FORMAT {
            return Err(Error::new(
                Kind::Unsupported,
                format!(
                    "the store is of format {}, this fencefs knows format {FORMAT}: use the version that wrote it",
                    head.format
                ),
            ));
        }
        serde_json::from_str(text).map_err(unreadable)
    }
}

impl Default for Superblock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let s = Superblock::new();
        assert_eq!(Superblock::decode(&s.encode()).unwrap(), s);
        let newer = format!("{{\"format\":2,\"storage_id\":\"{}\",\"more\":1}}", s.storage_id);
        assert_eq!(Superblock::decode(&newer).unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(Superblock::decode("").unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(Superblock::decode("{\"format\":1}").unwrap_err().kind(), Kind::Corrupt);
    }
}
