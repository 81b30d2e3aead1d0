//! The PROXY protocol: a client's addresses in front of its data [HAProxy, proxy-protocol.txt 2].
//!
//! Parser and writer only. Version 1 is a line of text. Version 2 is twelve fixed bytes, version
//! and command, family, the length of the rest, two addresses, two ports, and optional TLVs. Both
//! are parsed; version 2 is sent on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use tradewind_stream::connection::head::Progress;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const PREFIX_BYTES: usize = 16;
/// Length of the longest header. Chosen: one page, far longer than any that senders are known to
/// write.
pub(crate) const MAX_BYTES: usize = 4096;
/// The prefix of a line of version 1.
const LINE_BEGINS: &[u8] = b"PROXY ";
const MAX_LINE_BYTES: usize = 107;
const VERSION: u8 = 2;
const LOCAL: u8 = 0;
const PROXY: u8 = 1;
const TCP_OVER_V4: u8 = 0x11;
const TCP_OVER_V6: u8 = 0x21;

/// The two ends of a client's connection, as it sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The client.
    pub(crate) source: SocketAddr,
    /// The address that it connected to.
    pub(crate) destination: SocketAddr,
}

/// A parsed header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyHeader {
    pub(crate) ends: Ends,
    /// The header itself if it is of version 2: it is sent on with all its TLVs, checksums
    /// included.
    header: Option<Vec<u8>>,
}

impl ProxyHeader {
    /// Returns a header of version 2 with the same content.
    pub(crate) fn into_header(self) -> Vec<u8> {
        let ends = self.ends;
        self.header.unwrap_or_else(|| ends.to_header())
    }
}

impl From<Ends> for ProxyHeader {
    fn from(ends: Ends) -> Self {
        Self { ends, header: None }
    }
}

/// The reason why the first bytes of a connection are no valid header.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProxyError {
    /// They begin with something else.
    #[error("the connection does not begin with a PROXY header of version 1 or 2")]
    Signature,
    /// An invalid line of version 1.
    #[error("PROXY line of version 1: expected `PROXY TCP4 SOURCE DESTINATION PORT PORT`, or TCP6")]
    Line,
    /// Another version.
    #[error("PROXY version {0}: expected 1 as text, or 2")]
    Version(u8),
    /// Another command than LOCAL and PROXY.
    #[error("PROXY command {0}: expected 0 or 1")]
    Command(u8),
    /// Other addresses than of TCP over IPv4 or IPv6.
    #[error("PROXY addresses of kind {0:#04x}: expected 0x11 (TCP over IPv4) or 0x21 (IPv6)")]
    Family(u8),
    /// The length is too short for the addresses, or longer than is accepted.
    #[error("PROXY header with {0} bytes behind its length")]
    Length(usize),
}

/// Parses a header: the ends in it, or `None` if the sender connects for itself (LOCAL).
pub(crate) fn header(bytes: &[u8]) -> Result<Progress<Option<ProxyHeader>>, ProxyError> {
    let known = bytes.len().min(LINE_BEGINS.len());
    if known > 0 && bytes[..known] == LINE_BEGINS[..known] {
        return line(bytes);
    }
    let known = bytes.len().min(SIGNATURE.len());
    if bytes[..known] != SIGNATURE[..known] {
        return Err(ProxyError::Signature);
    }
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Ok(Progress::Incomplete);
    };
    let (version, command, family) = (prefix[12] >> 4, prefix[12] & 0xf, prefix[13]);
    let length = usize::from(u16::from_be_bytes([prefix[14], prefix[15]]));
    match (version, command) {
        (VERSION, LOCAL | PROXY) => {}
        (VERSION, other) => return Err(ProxyError::Command(other)),
        (other, _) => return Err(ProxyError::Version(other)),
    }
    if PREFIX_BYTES + length > MAX_BYTES {
        return Err(ProxyError::Length(length));
    }
    let Some(rest) = rest.get(..length) else { return Ok(Progress::Incomplete) };
    let ends = match (command, family) {
        (LOCAL, _) => None,
        (_, TCP_OVER_V4) => Some(ends::<4>(rest).ok_or(ProxyError::Length(length))?),
        (_, TCP_OVER_V6) => Some(ends::<16>(rest).ok_or(ProxyError::Length(length))?),
        (_, other) => return Err(ProxyError::Family(other)),
    };
    let whole = PREFIX_BYTES + length;
    let parsed = ends.map(|ends| ProxyHeader { ends, header: Some(bytes[..whole].to_vec()) });
    Ok(Progress::Complete(parsed, whole))
}

/// Parses a line of version 1; `None` if the sender does not know the ends (UNKNOWN).
fn line(bytes: &[u8]) -> Result<Progress<Option<ProxyHeader>>, ProxyError> {
    let begun = &bytes[..bytes.len().min(MAX_LINE_BYTES)];
    let Some(length) = begun.iter().position(|byte| *byte == b'\n') else {
        let is_too_long = begun.len() == MAX_LINE_BYTES;
        return if is_too_long { Err(ProxyError::Line) } else { Ok(Progress::Incomplete) };
    };
    let text = std::str::from_utf8(&begun[..length]).ok();
    let text = text.and_then(|text| text.strip_suffix('\r')).ok_or(ProxyError::Line)?;
    let words: Vec<_> = text.split(' ').collect();
    let ends = match words[..] {
        ["PROXY", "UNKNOWN", ..] => None,
        ["PROXY", "TCP4", source, destination, from, to] => {
            Some(in_words::<Ipv4Addr>([source, destination], [from, to]).ok_or(ProxyError::Line)?)
        }
        ["PROXY", "TCP6", source, destination, from, to] => {
            Some(in_words::<Ipv6Addr>([source, destination], [from, to]).ok_or(ProxyError::Line)?)
        }
        _ => return Err(ProxyError::Line),
    };
    Ok(Progress::Complete(ends.map(ProxyHeader::from), length + 1))
}

/// Parses two addresses and two ports as text.
fn in_words<A: FromStr + Into<IpAddr>>(addresses: [&str; 2], ports: [&str; 2]) -> Option<Ends> {
    let port = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| is_number)
    };
    let at = |index: usize| {
        let ip: A = addresses[index].parse().ok()?;
        Some(SocketAddr::new(ip.into(), port(ports[index])?))
    };
    Some(Ends { source: at(0)?, destination: at(1)? })
}

/// Parses two addresses of `N` bytes and two ports.
fn ends<const N: usize>(bytes: &[u8]) -> Option<Ends>
where
    [u8; N]: Into<IpAddr>,
{
    let (source, rest) = bytes.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let (ports, _) = rest.split_first_chunk::<4>()?;
    let at = |ip: &[u8; N], port: [u8; 2]| SocketAddr::new((*ip).into(), u16::from_be_bytes(port));
    Some(Ends {
        source: at(source, [ports[0], ports[1]]),
        destination: at(destination, [ports[2], ports[3]]),
    })
}

impl Ends {
    /// Encodes them as a header.
    pub(crate) fn to_header(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + 36);
        bytes.extend_from_slice(&SIGNATURE);
        bytes.push(VERSION << 4 | PROXY);
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes.extend_from_slice(&[TCP_OVER_V4, 0, 12]);
                bytes.extend_from_slice(&source.octets());
                bytes.extend_from_slice(&destination.octets());
            }
            (source, destination) => {
                bytes.extend_from_slice(&[TCP_OVER_V6, 0, 36]);
                bytes.extend_from_slice(&as_v6(source).octets());
                bytes.extend_from_slice(&as_v6(destination).octets());
            }
        }
        bytes.extend_from_slice(&self.source.port().to_be_bytes());
        bytes.extend_from_slice(&self.destination.port().to_be_bytes());
        bytes
    }
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::to_ipv6_mapped(&ip),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_pieces::assert_read_in_any_pieces;
    use proptest::prelude::*;

    fn complete(bytes: &[u8]) -> (Option<Ends>, usize) {
        match header(bytes) {
            Ok(Progress::Complete(parsed, used)) => (parsed.map(|parsed| parsed.ends), used),
            Ok(Progress::Incomplete) => panic!("incomplete"),
            Err(error) => panic!("{error}"),
        }
    }

    /// The specification's layout, byte by byte.
    #[test]
    fn ipv4_header_matches_the_specification() {
        let ends = Ends {
            source: "192.0.2.7:5555".parse().unwrap(),
            destination: "198.51.100.1:443".parse().unwrap(),
        };
        let mut expected =
            b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c".to_vec();
        expected.extend([192, 0, 2, 7, 198, 51, 100, 1, 0x15, 0xb3, 0x01, 0xbb]);
        assert_eq!(ends.to_header(), expected);
    }

    #[test]
    fn wrong_byte_is_refused_at_once() {
        let good = Ends {
            source: "[2001:db8::1]:1".parse().unwrap(),
            destination: "[2001:db8::2]:2".parse().unwrap(),
        }
        .to_header();
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            header(&bytes).err()
        };
        assert_eq!(header(b"GET / HTTP/1.1").err(), Some(ProxyError::Signature));
        assert_eq!(header(b"PROXz").err(), Some(ProxyError::Signature));
        assert_eq!(changed(12, 0x11), Some(ProxyError::Version(1)));
        assert_eq!(changed(12, 0x22), Some(ProxyError::Command(2)));
        assert_eq!(changed(13, 0x22), Some(ProxyError::Family(0x22)));
        assert_eq!(changed(14, 0xff), Some(ProxyError::Length(0xff24)));
        assert_eq!(changed(15, 35), Some(ProxyError::Length(35)));
    }

    #[test]
    fn local_command_has_no_addresses() {
        let mut local = SIGNATURE.to_vec();
        local.extend([0x20, 0, 0, 3, 1, 2, 3, b'd']);
        assert_eq!(complete(&local), (None, 19));
    }

    #[test]
    fn version_1_is_forwarded_as_version_2() {
        let parse = |line: &str| match header(line.as_bytes()) {
            Ok(Progress::Complete(parsed, used)) => (parsed, used),
            Ok(Progress::Incomplete) => panic!("incomplete"),
            Err(error) => panic!("{error}"),
        };
        for (words, source, destination) in [
            ("TCP4 192.0.2.7 198.51.100.1 5555 443", "192.0.2.7:5555", "198.51.100.1:443"),
            ("TCP6 2001:db8::1 ::1 1 65535", "[2001:db8::1]:1", "[::1]:65535"),
        ] {
            let (found, used) = parse(&format!("PROXY {words}\r\ndata"));
            let ends =
                Ends { source: source.parse().unwrap(), destination: destination.parse().unwrap() };
            assert_eq!(used, words.len() + 8);
            assert_eq!(found.unwrap().into_header(), ends.to_header());
        }
        let unknown = "PROXY UNKNOWN whatever 1\r\n";
        assert_eq!(parse(&format!("{unknown}data")), (None, unknown.len()));
        assert_eq!(parse("PROXY UNKNOWN\r\n").0, None);
        for wrong in [
            "PROXY TCP4 192.0.2.7 198.51.100.1 5555 443\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 5555\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 5555 65536\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 +5555 443\r\n",
            "PROXY TCP4  192.0.2.7 198.51.100.1 5555 443\r\n",
            "PROXY TCP4 2001:db8::1 ::1 5555 443\r\n",
            "PROXY TCP6 192.0.2.7 198.51.100.1 5555 443\r\n",
            "PROXY UDP4 192.0.2.7 198.51.100.1 5555 443\r\n",
            "PROXY \r\n",
        ] {
            assert_eq!(header(wrong.as_bytes()).err(), Some(ProxyError::Line), "{wrong:?}");
        }
        let long = format!("PROXY UNKNOWN {}", "x".repeat(100));
        assert_eq!(header(long.as_bytes()).err(), Some(ProxyError::Line));
    }

    proptest! {
        #[test]
        fn header_with_tlvs_round_trips(
            source: SocketAddr,
            destination: SocketAddr,
            more in proptest::collection::vec(any::<u8>(), 0..600),
            data in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let plain = |address: SocketAddr| SocketAddr::new(address.ip(), address.port());
            prop_assume!(source.is_ipv4() == destination.is_ipv4());
            let ends = Ends { source: plain(source), destination: plain(destination) };
            let mut bytes = ends.to_header();
            let length = u16::try_from(bytes.len() - PREFIX_BYTES + more.len()).unwrap();
            bytes[14..16].copy_from_slice(&length.to_be_bytes());
            bytes.extend(&more);
            let whole = bytes.len();
            for cut in 0..whole {
                prop_assert!(matches!(header(&bytes[..cut]), Ok(Progress::Incomplete)), "{cut}");
            }
            let original = bytes.clone();
            bytes.extend(&data);
            prop_assert_eq!(complete(&bytes), (Some(ends), whole));
            let Ok(Progress::Complete(Some(passed_on), _)) = header(&bytes) else { panic!() };
            prop_assert_eq!(passed_on.into_header(), original, "with all that it tells");
        }

        #[test]
        fn any_bytes_are_read_alike_in_any_pieces(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            assert_read_in_any_pieces(header, &bytes);
            assert_read_in_any_pieces(header, &[&SIGNATURE[..], &bytes].concat());
            assert_read_in_any_pieces(header, &[b"PROXY TCP4 ", &bytes[..]].concat());
            assert_read_in_any_pieces(header, &[b"PROXY UNKNOWN ", &bytes[..], b"\r\n"].concat());
        }
    }
}
