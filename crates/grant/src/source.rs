//! Ranges of source addresses of packets.

use std::fmt;
use std::net::IpAddr;

use crate::destination::{is_range, prefix_of};
use crate::forbidden::{same_prefix_v4, same_prefix_v6};
use crate::wire::{Reader, put_ip};
use crate::{GrantError, text};

/// Addresses that share a prefix: `10.1.0.0/16`, `fd00:1::/64`, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceRange {
    base: IpAddr,
    prefix_bits: u8,
}

const EXPECTED: &str = "a range of addresses such as `10.1.0.0/16` or `fd00:1::/64`, without ports \
                        and without bits behind the prefix";

impl SourceRange {
    /// Returns whether `ip` is in the range.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (ip.to_canonical(), self.base) {
            (IpAddr::V4(ip), IpAddr::V4(base)) => same_prefix_v4(ip, base, self.prefix_bits),
            (IpAddr::V6(ip), IpAddr::V6(base)) => same_prefix_v6(ip, base, self.prefix_bits),
            _ => false,
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put_ip(out, self.base);
        out.push(self.prefix_bits);
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, GrantError> {
        let what = "source range";
        let at = reader.at();
        let kind = reader.u8(what)?;
        let base = reader.ip(kind, what)?;
        let prefix_bits = reader.u8(what)?;
        if is_range(base, prefix_bits) {
            Ok(Self { base, prefix_bits })
        } else {
            Err(GrantError::Malformed { what, at })
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let base: IpAddr = address.parse().ok()?;
        let prefix_bits = prefix_of(base, prefix)?;
        is_range(base, prefix_bits).then_some(Self { base, prefix_bits })
    }
}

impl From<IpAddr> for SourceRange {
    /// Creates the range of a single address.
    fn from(ip: IpAddr) -> Self {
        let base = ip.to_canonical();
        Self { base, prefix_bits: if base.is_ipv4() { 32 } else { 128 } }
    }
}

impl std::str::FromStr for SourceRange {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        Self::parse(text).ok_or_else(|| GrantError::invalid("source range", text, EXPECTED))
    }
}

impl fmt::Display for SourceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix_bits)
    }
}

text::serde_as_text!(SourceRange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ranges_are_written_in_one_way() {
        for (text, shown) in [
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("fd00:1::/64", "fd00:1::/64"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(text.parse::<SourceRange>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "10.1.0.1/16",
            "10.1.0.0/16:*",
            "[fd00::]/64",
            "::ffff:10.0.0.0/104",
            "10.0.0.0/33",
        ] {
            let error = text.parse::<SourceRange>().unwrap_err().to_string();
            assert!(error.contains("source range") && error.contains("10.1.0.0/16"), "{error}");
        }
    }

    #[test]
    fn source_range_covers_mapped_addresses() {
        let range: SourceRange = "10.1.0.0/16".parse().unwrap();
        for (ip, expected) in [
            ("10.1.255.1", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.1", false),
            ("fd00::1", false),
        ] {
            assert_eq!(range.contains(ip.parse().unwrap()), expected, "{ip}");
        }
    }
}
