//! Destinations, and the rules of grants and relays that cover them.
//!
//! A destination is `ip:port` or `name:port`. A rule is a range of addresses or a pattern of names
//! with ports: `10.0.0.0/8:443`, `[2001:db8::]/32:8000-8999`, `192.0.2.7:22`, `*.example.com:443`,
//! `db.example.com:*`. An address that is not public is covered only by a rule that lies within
//! such a range itself: `0.0.0.0/0:443` covers the Internet, names included, and no private
//! network.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::forbidden::{Class, class_of, same_prefix_v4, same_prefix_v6};
use crate::wire::{KIND_NAME, Reader, put_ip, put_socket_addr};
use crate::{GrantError, text};

/// Longest host name: RFC 1035 without the trailing dot.
pub const MAX_NAME_BYTES: usize = 253;

/// A host's DNS name: absolute, lower case, without a trailing dot, and nothing that resolvers read
/// as a number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

const NAME_EXPECTED: &str = "a host name such as `db.example.com`, or an IP address";
const LOCAL_EXPECTED: &str = "an address, or a name that means the same on every host, \
     which `localhost` and `.local` names do not";

/// Returns whether `name` is reserved for the own host (RFC 6761) or the own link (RFC 6762).
fn is_local(name: &str) -> bool {
    let last = without_dot(name).rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost") || last.eq_ignore_ascii_case("local")
}

/// Returns `name` without a trailing dot, which marks an absolute name, as all names are here.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

impl HostName {
    /// Creates a host name, in lower case and without a trailing dot.
    ///
    /// # Errors
    /// When it is no host name, or a resolver might read it as a number (`2130706433`, `0x7f.1`) or
    /// as the own host (`localhost`).
    pub fn new(name: &str) -> Result<Self, GrantError> {
        let lower = without_dot(name).to_ascii_lowercase();
        let good_label = |label: &str| {
            let bytes = label.as_bytes();
            let allowed = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            (1..=63).contains(&bytes.len())
                && bytes.iter().all(allowed)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let last = lower.rsplit('.').next().unwrap_or_default();
        let number = last.starts_with("0x") || last.bytes().all(|b| b.is_ascii_digit());
        if lower.len() > MAX_NAME_BYTES || !lower.split('.').all(good_label) || number {
            return Err(GrantError::invalid("host name", name, NAME_EXPECTED));
        }
        if is_local(&lower) {
            return Err(GrantError::invalid("host name", name, LOCAL_EXPECTED));
        }
        Ok(Self(lower))
    }

    /// Returns the name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn is_below(&self, parent: &Self) -> bool {
        self.0.strip_suffix(parent.as_str()).is_some_and(|above| above.ends_with('.'))
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.0.len() as u8);
        out.extend_from_slice(self.0.as_bytes());
    }

    /// Reads a name in its canonical form, as produced by [`HostName::new`].
    fn take(reader: &mut Reader<'_>, what: &'static str) -> Result<Self, GrantError> {
        let at = reader.at();
        let length = usize::from(reader.u8(what)?);
        let name = reader.text(length, what)?;
        match Self::new(name) {
            Ok(parsed) if parsed.0 == name => Ok(parsed),
            _ => Err(GrantError::Malformed { what, at }),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The destination of a session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// An address, never IPv4 mapped into IPv6, with a port other than 0.
    Address(SocketAddr),
    /// A name, which the last relay resolves.
    Name {
        /// The name.
        name: HostName,
        /// The port, not 0.
        port: u16,
    },
}

const DESTINATION_EXPECTED: &str =
    "`address:port` or `name:port` with a port from 1 to 65535, such as `192.0.2.7:443`";

impl Destination {
    /// Creates a destination from an address, unwrapping IPv4 mapped into IPv6.
    ///
    /// # Errors
    /// When the port is 0.
    pub fn address(address: SocketAddr) -> Result<Self, GrantError> {
        if address.port() == 0 {
            return Err(GrantError::invalid("destination", address, DESTINATION_EXPECTED));
        }
        Ok(Self::Address(SocketAddr::new(address.ip().to_canonical(), address.port())))
    }

    /// Creates a destination from `host`, an address or a name, and `port`.
    ///
    /// # Errors
    /// When `host` is neither, or the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, GrantError> {
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(ip) = inner.unwrap_or(host).parse::<IpAddr>() {
            return Self::address(SocketAddr::new(ip, port));
        }
        match HostName::new(host) {
            Ok(name) if port != 0 => Ok(Self::Name { name, port }),
            _ => {
                let expected = if is_local(host) { LOCAL_EXPECTED } else { DESTINATION_EXPECTED };
                Err(GrantError::invalid("destination", format_args!("{host}:{port}"), expected))
            }
        }
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name { port, .. } => *port,
        }
    }

    /// Returns the rule that covers exactly this destination.
    #[must_use]
    pub fn as_rule(&self) -> DestinationRule {
        let hosts = match self {
            Self::Address(address) => {
                let prefix_bits = if address.is_ipv4() { 32 } else { 128 };
                Hosts::Range { base: address.ip(), prefix_bits }
            }
            Self::Name { name, .. } => Hosts::Name(name.clone()),
        };
        DestinationRule { hosts, first_port: self.port(), last_port: self.port() }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Address(address) => put_socket_addr(out, *address),
            Self::Name { name, port } => {
                out.push(KIND_NAME);
                name.put(out);
                out.extend_from_slice(&port.to_be_bytes());
            }
        }
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, GrantError> {
        let what = "destination";
        match reader.u8(what)? {
            KIND_NAME => {
                let name = HostName::take(reader, what)?;
                Ok(Self::Name { name, port: reader.port(what)? })
            }
            kind => {
                let ip = reader.ip(kind, what)?;
                Ok(Self::Address(SocketAddr::new(ip, reader.port(what)?)))
            }
        }
    }
}

impl std::str::FromStr for Destination {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let parts = text.rsplit_once(':').and_then(|(host, port)| {
            let bare_v6 = host.contains(':') && !host.starts_with('[');
            let port = strict_port(port)?;
            (!bare_v6).then_some((host, port))
        });
        match parts {
            Some((host, port)) => Self::new(host, port),
            None => Err(GrantError::invalid("destination", text, DESTINATION_EXPECTED)),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { name, port } => write!(f, "{name}:{port}"),
        }
    }
}

text::serde_as_text!(Destination);

/// Parses a port from 1 to 65535 without sign or leading zero.
fn strict_port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

/// The hosts of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    /// Addresses that share the first `prefix_bits` bits.
    Range { base: IpAddr, prefix_bits: u8 },
    /// One name.
    Name(HostName),
    /// Every name below this one, but not this one.
    Below(HostName),
}

/// A set of destinations: hosts and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationRule {
    hosts: Hosts,
    first_port: u16,
    last_port: u16,
}

const RULE_EXPECTED: &str = "hosts and ports such as `10.0.0.0/8:443`, `[2001:db8::]/32:*`, \
     `192.0.2.7:8000-8999` or `*.example.com:443`";
const KIND_BELOW: u8 = 2;

impl Hosts {
    /// Returns whether a pattern of names includes all names of another.
    fn include(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(wanted), Self::Name(name)) => wanted == name,
            (Self::Below(parent), Self::Name(name)) => name.is_below(parent),
            (Self::Below(parent), Self::Below(other)) => parent == other || other.is_below(parent),
            _ => false,
        }
    }
}

impl DestinationRule {
    /// Returns whether the rule allows dialling `address`.
    #[must_use]
    pub fn covers_address(&self, address: SocketAddr) -> bool {
        self.covers_source(address.ip())
            && self.covers_port(address.port())
            && (class_of(address.ip()) == Class::Public || self.is_explicit())
    }

    /// Returns whether the remote address `ip` of an accepted connection is in the rule's range,
    /// whatever its [`Class`]. Its port is ephemeral and not checked.
    #[must_use]
    pub fn covers_source(&self, ip: IpAddr) -> bool {
        let Hosts::Range { base, prefix_bits } = self.hosts else { return false };
        match (ip.to_canonical(), base) {
            (IpAddr::V4(ip), IpAddr::V4(base)) => same_prefix_v4(ip, base, prefix_bits),
            (IpAddr::V6(ip), IpAddr::V6(base)) => same_prefix_v6(ip, base, prefix_bits),
            _ => false,
        }
    }

    /// Returns whether the rule covers all traffic to the host at `ip`, at any port and by any
    /// protocol.
    #[must_use]
    pub fn covers_host(&self, ip: IpAddr) -> bool {
        self.ports() == (1..=u16::MAX) && self.covers_address(SocketAddr::new(ip, 1))
    }

    /// Returns whether the rule covers `name`, before it is resolved.
    #[must_use]
    pub fn covers_name(&self, name: &HostName, port: u16) -> bool {
        let fits = match &self.hosts {
            Hosts::Range { .. } => false,
            Hosts::Name(wanted) => wanted == name,
            Hosts::Below(parent) => name.is_below(parent),
        };
        fits && self.covers_port(port)
    }

    /// Returns the range of an address rule: its first address, and the length of its prefix.
    #[must_use]
    pub const fn range(&self) -> Option<(IpAddr, u8)> {
        match self.hosts {
            Hosts::Range { base, prefix_bits } => Some((base, prefix_bits)),
            Hosts::Name(_) | Hosts::Below(_) => None,
        }
    }

    /// Returns its ports.
    #[must_use]
    pub const fn ports(&self) -> std::ops::RangeInclusive<u16> {
        self.first_port..=self.last_port
    }

    fn covers_port(&self, port: u16) -> bool {
        (self.first_port..=self.last_port).contains(&port)
    }

    /// Returns whether the rule's range lies within one that is not public, so that this is
    /// intended.
    fn is_explicit(&self) -> bool {
        match self.hosts {
            Hosts::Range { base, prefix_bits } => {
                crate::forbidden::is_within_special(base, prefix_bits)
            }
            _ => false,
        }
    }

    /// Returns whether the rule covers all public addresses of a family at `port`, and so any
    /// name's.
    pub(crate) fn covers_any_name(&self, port: u16) -> bool {
        matches!(self.hosts, Hosts::Range { prefix_bits: 0, .. }) && self.covers_port(port)
    }

    /// Returns whether `rules` cover all that this rule covers: one of them alone, or for a rule of
    /// names a range of all addresses of each family.
    #[must_use]
    pub fn is_within(&self, rules: &[Self]) -> bool {
        let has_ports =
            |rule: &Self| rule.first_port <= self.first_port && self.last_port <= rule.last_port;
        let fitting: Vec<&Self> = rules.iter().filter(|rule| has_ports(rule)).collect();
        match self.range() {
            Some((base, bits)) => fitting.iter().any(|rule| {
                let is_as_explicit = rule.is_explicit() || !self.is_explicit();
                let is_narrower = rule.range().is_some_and(|(_, of_rule)| of_rule <= bits);
                is_as_explicit && is_narrower && rule.covers_source(base)
            }),
            None => {
                let all = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
                let has_all = |ip: &IpAddr| fitting.iter().any(|r| r.range() == Some((*ip, 0)));
                fitting.iter().any(|rule| rule.hosts.include(&self.hosts))
                    || all.iter().all(has_all)
            }
        }
    }

    /// Returns whether the rule covers exactly the address `ip`.
    pub(crate) fn is_one(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.range() == Some((ip, if ip.is_ipv4() { 32 } else { 128 }))
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match &self.hosts {
            Hosts::Range { base, prefix_bits } => {
                put_ip(out, *base);
                out.push(*prefix_bits);
            }
            Hosts::Name(name) => {
                out.push(KIND_NAME);
                name.put(out);
            }
            Hosts::Below(name) => {
                out.push(KIND_BELOW);
                name.put(out);
            }
        }
        out.extend_from_slice(&self.first_port.to_be_bytes());
        out.extend_from_slice(&self.last_port.to_be_bytes());
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Self, GrantError> {
        let what = "destination rule";
        let at = reader.at();
        let malformed = || GrantError::Malformed { what, at };
        let hosts = match reader.u8(what)? {
            KIND_NAME => Hosts::Name(HostName::take(reader, what)?),
            KIND_BELOW => Hosts::Below(HostName::take(reader, what)?),
            kind => {
                let base = reader.ip(kind, what)?;
                let prefix_bits = reader.u8(what)?;
                range(base, prefix_bits).ok_or_else(malformed)?
            }
        };
        let first_port = reader.port(what)?;
        let last_port = reader.port(what)?;
        if first_port > last_port {
            return Err(malformed());
        }
        Ok(Self { hosts, first_port, last_port })
    }

    fn parse(text: &str) -> Option<Self> {
        let (hosts, ports) = text.rsplit_once(':')?;
        let (first_port, last_port) = match ports.split_once('-') {
            _ if ports == "*" => (1, u16::MAX),
            None => (strict_port(ports)?, strict_port(ports)?),
            Some((first, last)) => (strict_port(first)?, strict_port(last)?),
        };
        (first_port <= last_port).then_some(())?;
        Some(Self { hosts: parse_hosts(hosts)?, first_port, last_port })
    }
}

fn parse_hosts(text: &str) -> Option<Hosts> {
    if let Some(parent) = text.strip_prefix("*.") {
        return Some(Hosts::Below(HostName::new(parent).ok()?));
    }
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let inner = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match inner.unwrap_or(address).parse::<IpAddr>() {
        Ok(base) if base.is_ipv6() == inner.is_some() => range(base, prefix_of(base, prefix)?),
        Ok(_) => None,
        Err(_) if prefix.is_none() => Some(Hosts::Name(HostName::new(text).ok()?)),
        Err(_) => None,
    }
}

/// Returns the intended range of one whose base has bits set behind the prefix, and the rule for
/// that base alone; `None` for any other text.
fn without_host_bits(text: &str) -> Option<(String, String)> {
    let (address, prefix) = text.split_once('/')?;
    let inner = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let base: IpAddr = inner.unwrap_or(address).parse().ok()?;
    let bits: u32 = prefix.parse().ok().filter(|_| base.is_ipv6() == inner.is_some())?;
    let network = match base {
        IpAddr::V4(v4) => {
            let mask = !u32::MAX.checked_shr(bits).unwrap_or(0);
            IpAddr::from((u32::from(v4) & mask).to_be_bytes())
        }
        IpAddr::V6(v6) => {
            let mask = !u128::MAX.checked_shr(bits).unwrap_or(0);
            IpAddr::from((u128::from(v6) & mask).to_be_bytes())
        }
    };
    range(network, u8::try_from(bits).ok()?).filter(|_| network != base)?;
    let written = if inner.is_some() { format!("[{network}]") } else { network.to_string() };
    Some((format!("{written}/{bits}"), address.to_owned()))
}

/// Returns the prefix length written after `base`; without one, that of a single address.
pub(crate) fn prefix_of(base: IpAddr, written: Option<&str>) -> Option<u8> {
    match written {
        None if base.is_ipv4() => Some(32),
        None => Some(128),
        Some("0") => Some(0),
        Some(prefix) => u8::try_from(strict_port(prefix)?).ok(),
    }
}

fn range(base: IpAddr, prefix_bits: u8) -> Option<Hosts> {
    is_range(base, prefix_bits).then_some(Hosts::Range { base, prefix_bits })
}

/// Returns whether `base` is canonical and has no bits set behind the prefix.
pub(crate) fn is_range(base: IpAddr, prefix_bits: u8) -> bool {
    match base {
        IpAddr::V4(v4) => {
            let host_bits = u32::MAX.checked_shr(u32::from(prefix_bits)).unwrap_or(0);
            prefix_bits <= 32 && u32::from(v4) & host_bits == 0
        }
        IpAddr::V6(v6) => {
            let host_bits = u128::MAX.checked_shr(u32::from(prefix_bits)).unwrap_or(0);
            prefix_bits <= 128 && u128::from(v6) & host_bits == 0 && v6.to_ipv4_mapped().is_none()
        }
    }
}

impl std::str::FromStr for DestinationRule {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let refused = || {
            let expected = match text.rsplit_once(':') {
                Some((hosts, _)) if is_local(hosts) => LOCAL_EXPECTED.into(),
                Some((hosts, ports)) => match without_host_bits(hosts) {
                    Some((range, one)) => format!(
                        "`{range}:{ports}`, or `{one}:{ports}` for the one address: \
                         bits are set behind the prefix"
                    )
                    .into(),
                    None => Cow::from(RULE_EXPECTED),
                },
                None => RULE_EXPECTED.into(),
            };
            GrantError::invalid("destination rule", text, expected)
        };
        Self::parse(text).ok_or_else(refused)
    }
}

impl fmt::Display for DestinationRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Range { base, prefix_bits } => match base {
                IpAddr::V4(v4) => write!(f, "{v4}/{prefix_bits}:")?,
                IpAddr::V6(v6) => write!(f, "[{v6}]/{prefix_bits}:")?,
            },
            Hosts::Name(name) => write!(f, "{name}:")?,
            Hosts::Below(name) => write!(f, "*.{name}:")?,
        }
        match (self.first_port, self.last_port) {
            (1, u16::MAX) => f.write_str("*"),
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

text::serde_as_text!(DestinationRule);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_name_is_refused() {
        for text in ["localhost:81", "LOCALHOST:81", "db.localhost:81", "printer.local:631"] {
            let error = text.parse::<Destination>().unwrap_err().to_string();
            assert!(error.contains("`localhost` and `.local` names do not"), "{error}");
            assert!(error.starts_with(&format!("destination `{text}`: ")), "{error}");
            let error = text.parse::<DestinationRule>().unwrap_err().to_string();
            assert!(error.contains("`localhost` and `.local` names do not"), "{error}");
        }
        let error = "example.com".parse::<Destination>().unwrap_err().to_string();
        assert!(error.contains("`name:port`"), "{error}");
    }

    #[test]
    fn trailing_dot_names_the_same_host() {
        let dotted = "Dest.test.:443".parse::<Destination>().unwrap();
        assert_eq!(dotted, "dest.test:443".parse().unwrap());
        assert_eq!(dotted.to_string(), "dest.test:443");
        let rule: DestinationRule = "*.test.:443".parse().unwrap();
        assert_eq!(rule, "*.test:443".parse().unwrap());
        let Destination::Name { name, port } = dotted else { panic!() };
        assert!(rule.covers_name(&name, port));
        let longest =
            [&"a".repeat(63)[..], &"b".repeat(63), &"c".repeat(63), &"d".repeat(61)].join(".");
        assert!(HostName::new(&format!("{longest}.")).is_ok());
        for wrong in [".", "dest.test..", "..", "127.0.0.1.", "1.", "localhost.", "printer.local."]
        {
            assert!(HostName::new(wrong).is_err(), "{wrong}");
            assert!(Destination::new(wrong, 80).is_err(), "{wrong}");
        }
        let error = Destination::new("localhost.", 80).unwrap_err().to_string();
        assert!(error.contains("`localhost` and `.local` names do not"), "{error}");
    }

    #[test]
    fn host_bits_are_refused_with_the_range() {
        for (text, range, one) in [
            ("10.0.0.1/8:443", "10.0.0.0/8:443", "10.0.0.1:443"),
            ("192.0.2.7/0:*", "0.0.0.0/0:*", "192.0.2.7:*"),
            ("[2001:db8::1]/32:1-9", "[2001:db8::]/32:1-9", "[2001:db8::1]:1-9"),
        ] {
            let line = text.parse::<DestinationRule>().unwrap_err().to_string();
            assert_eq!(
                line,
                format!(
                    "destination rule `{text}`: expected `{range}`, \
                     or `{one}` for the one address: bits are set behind the prefix"
                )
            );
            range.parse::<DestinationRule>().unwrap();
            one.parse::<DestinationRule>().unwrap();
        }
        for other in ["10.0.0.0/33:1", "10.0.0.1/x:1", "10.0.0.1/32", "[::ffff:10.0.0.1]/100:1"] {
            let line = other.parse::<DestinationRule>().unwrap_err().to_string();
            assert!(line.contains("hosts and ports such as"), "{line}");
        }
    }

    #[test]
    fn rule_is_within_rules_that_cover_as_much() {
        let is_within = |rule: &str, rules: &[&str]| {
            let rules: Vec<DestinationRule> = rules.iter().map(|r| r.parse().unwrap()).collect();
            rule.parse::<DestinationRule>().unwrap().is_within(&rules)
        };
        let internet = ["0.0.0.0/0:*", "[::]/0:*"];
        for (rule, rules, expected) in [
            ("192.0.2.7:443", &["192.0.2.0/24:443"][..], true),
            ("192.0.2.0/24:443", &["192.0.2.7:443"], false),
            ("192.0.2.7:442-443", &["192.0.2.7:443"], false),
            ("8.8.8.8:443", &["0.0.0.0/0:1-442", "0.0.0.0/0:443"], true),
            ("8.8.8.8:443", &["[::]/0:*"], false),
            ("10.0.0.7:443", &internet, false),
            ("127.0.0.1:443", &internet, false),
            ("10.0.0.7:443", &["10.0.0.0/8:*"], true),
            ("a.example.com:443", &["a.example.com:443"], true),
            ("a.example.com:443", &["*.example.com:443"], true),
            ("*.b.example.com:443", &["*.example.com:443"], true),
            ("*.example.com:443", &["a.example.com:443"], false),
            ("example.com:443", &["*.example.com:443"], false),
            ("example.com:443", &internet, true),
            ("example.com:443", &internet[..1], false),
            ("example.com:443", &["0.0.0.0/0:*", "[::]/0:80"], false),
            ("192.0.2.7:443", &["*.example.com:443"], false),
            ("192.0.2.7:443", &[], false),
        ] {
            assert_eq!(is_within(rule, rules), expected, "{rule} within {rules:?}");
        }
    }

    #[test]
    fn destination_as_a_rule_covers_only_itself() {
        let rule = "10.0.0.7:443".parse::<Destination>().unwrap().as_rule();
        assert_eq!(rule, "10.0.0.7/32:443".parse().unwrap());
        assert!(rule.covers_address("10.0.0.7:443".parse().unwrap()));
        for other in ["10.0.0.6:443", "10.0.0.7:444"] {
            assert!(!rule.covers_address(other.parse().unwrap()));
        }
        let name = "example.com:80".parse::<Destination>().unwrap().as_rule();
        assert_eq!(name, "example.com:80".parse().unwrap());
    }
}
