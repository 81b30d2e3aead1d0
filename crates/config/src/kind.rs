//! The kinds of configuration files.

use serde::{Deserialize, Serialize};
use toml::Table;

/// The process that a file configures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A relay.
    Relay,
    /// A gateway.
    Gateway,
    /// The daemon of jump-start.
    Jumpstart,
}

impl Kind {
    /// Returns the kind of the file with this `text`, by its keys: only relays have `operators`,
    /// and only the daemon's own sections bear these names. A text without either, or that cannot
    /// be parsed, counts as a gateway's.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let table: Table = text.parse().unwrap_or_default();
        let has = |key: &&str| table.contains_key(*key);
        if has(&"operators") {
            Self::Relay
        } else if ["learn", "observe", "act", "hints", "socket"].iter().any(has) {
            Self::Jumpstart
        } else {
            Self::Gateway
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_follows_from_the_keys() {
        for (text, expected) in [
            ("listen = ['127.0.0.1:0']\noperators = []", Kind::Relay),
            ("socks5 = ['127.0.0.1:0']\n[jumpstart.learn]", Kind::Gateway),
            ("[learn]\nmode = 'paced'", Kind::Jumpstart),
            ("metrics = '127.0.0.1:0'\n[act]", Kind::Jumpstart),
            ("", Kind::Gateway),
            ("[broken", Kind::Gateway),
        ] {
            assert_eq!(Kind::of(text), expected, "{text}");
        }
    }
}
