//! SOCKS version 5 [RFC 1928], the command CONNECT without authentication.
//!
//! Parsers and answers only; the session that speaks it is in [`super::session`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tradewind_grant::{Destination, GrantError, Status};

use crate::failure::Failure;
use crate::head::Progress;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const CONNECT: u8 = 1;
const KIND_V4: u8 = 1;
const KIND_NAME: u8 = 3;
const KIND_V6: u8 = 4;

/// Longest greeting or request: a name of 255 bytes and seven more.
pub(crate) const MOST_BYTES: usize = 262;

/// Answer to a greeting: go on without authentication.
pub(crate) const ACCEPTED: [u8; 2] = [VERSION, NO_AUTHENTICATION];
/// Answer to a greeting that does not offer that.
pub(crate) const NO_METHOD: [u8; 2] = [VERSION, 0xff];

/// Why a client's bytes were refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocksError {
    /// Another protocol or version.
    #[error("SOCKS version {0}: only version 5 is spoken here")]
    Version(u8),
    /// The client wants to authenticate.
    #[error("the client offers no method without authentication")]
    Method,
    /// Another command than CONNECT.
    #[error("SOCKS command {0}: only CONNECT (1) is served")]
    Command(u8),
    /// An unknown kind of address.
    #[error("SOCKS address type {0}: expected 1, 3 or 4")]
    AddressKind(u8),
    /// A name that is no text.
    #[error("SOCKS host name is no text")]
    NameBytes,
    /// A destination that makes no sense.
    #[error(transparent)]
    Destination(#[from] GrantError),
}

impl SocksError {
    /// The reply code that tells the client.
    const fn code(&self) -> u8 {
        match self {
            Self::Command(_) => 7,
            Self::AddressKind(_) => 8,
            // Nobody has such a name.
            Self::NameBytes | Self::Destination(_) => 4,
            Self::Version(_) | Self::Method => 1,
        }
    }

    /// What to answer before closing; nothing to a client of another protocol.
    pub(crate) fn answer(&self) -> Vec<u8> {
        match self {
            Self::Version(_) => Vec::new(),
            Self::Method => NO_METHOD.to_vec(),
            other => reply(other.code()).to_vec(),
        }
    }
}

/// Reads a greeting: version, number of methods, methods.
pub(crate) fn greeting(bytes: &[u8]) -> Result<Progress<()>, SocksError> {
    match bytes {
        [version, ..] if *version != VERSION => Err(SocksError::Version(*version)),
        [_, count, rest @ ..] if rest.len() >= usize::from(*count) => {
            let methods = &rest[..usize::from(*count)];
            if !methods.contains(&NO_AUTHENTICATION) {
                return Err(SocksError::Method);
            }
            Ok(Progress::Complete((), 2 + methods.len()))
        }
        _ => Ok(Progress::Incomplete),
    }
}

/// Reads a request: version, command, zero, address, port.
pub(crate) fn request(bytes: &[u8]) -> Result<Progress<Destination>, SocksError> {
    let [version, command, _, kind, rest @ ..] = bytes else { return Ok(Progress::Incomplete) };
    if *version != VERSION {
        return Err(SocksError::Version(*version));
    }
    if *command != CONNECT {
        return Err(SocksError::Command(*command));
    }
    let address = |ip: IpAddr, port| Destination::address(SocketAddr::new(ip, port));
    let host_bytes = match (*kind, rest) {
        (KIND_V4, _) => 4,
        (KIND_V6, _) => 16,
        (KIND_NAME, [length, ..]) => 1 + usize::from(*length),
        (KIND_NAME, []) => return Ok(Progress::Incomplete),
        (other, _) => return Err(SocksError::AddressKind(other)),
    };
    let Some((host, [high, low, ..])) = rest.split_at_checked(host_bytes) else {
        return Ok(Progress::Incomplete);
    };
    let port = u16::from_be_bytes([*high, *low]);
    let destination = match *kind {
        KIND_V4 => {
            address(Ipv4Addr::from(<[u8; 4]>::try_from(host).expect("four bytes")).into(), port)?
        }
        KIND_V6 => {
            address(Ipv6Addr::from(<[u8; 16]>::try_from(host).expect("16 bytes")).into(), port)?
        }
        _ => {
            let name = std::str::from_utf8(&host[1..]).map_err(|_| SocksError::NameBytes)?;
            Destination::new(name, port)?
        }
    };
    Ok(Progress::Complete(destination, 4 + host_bytes + 2))
}

/// The reply to a request whose flow is open.
pub(crate) const OPENED: [u8; 10] = reply(0);

/// The reply to a request whose flow could not be opened: not allowed (2), network unreachable (3),
/// which is the overlay's, too, host unreachable (4), refused (5), not in time (6, which says that
/// a time to live has expired), or failed (1).
pub(crate) fn refused(failure: &Failure) -> [u8; 10] {
    reply(match failure.status {
        Status::GrantRefused | Status::DestinationRefused | Status::NextHopRefused => 2,
        Status::TimedOut => 6,
        Status::NextHopFailed => 3,
        Status::ConnectionRefused | Status::Unreachable if failure.is_of_overlay => 3,
        Status::Unreachable if failure.is_of_network() => 3,
        Status::NameNotFound | Status::Unreachable => 4,
        Status::ConnectionRefused => 5,
        _ => 1,
    })
}

/// A reply with `code`; the bound address, which no client needs, is all zeros.
const fn reply(code: u8) -> [u8; 10] {
    [VERSION, code, 0, KIND_V4, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::tests::assert_read_in_any_pieces;
    use proptest::prelude::*;

    fn complete(bytes: &[u8]) -> (String, usize) {
        match request(bytes).unwrap() {
            Progress::Complete(destination, used) => (destination.to_string(), used),
            Progress::Incomplete => panic!("incomplete"),
        }
    }

    #[test]
    fn a_greeting_must_offer_no_authentication() {
        assert!(matches!(greeting(&[5, 2, 2, 0, 9]), Ok(Progress::Complete((), 4))));
        assert!(matches!(greeting(&[5, 2, 2]), Ok(Progress::Incomplete)));
        assert!(matches!(greeting(&[5, 1, 2]), Err(SocksError::Method)));
        assert!(matches!(greeting(b"GET /"), Err(SocksError::Version(b'G'))));
    }

    #[test]
    fn requests_for_addresses_and_names_are_read_to_their_last_byte() {
        let v4 = [5, 1, 0, 1, 192, 0, 2, 7, 1, 187, 99];
        assert_eq!(complete(&v4), ("192.0.2.7:443".into(), 10));
        let mut v6 = vec![5, 1, 0, 4];
        v6.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend([0, 80]);
        assert_eq!(complete(&v6), ("[2001:db8::1]:80".into(), 22));
        let mut name = vec![5, 1, 0, 3, 11];
        name.extend(b"example.com");
        name.extend([0, 80]);
        assert_eq!(complete(&name), ("example.com:80".into(), 18));
        for length in 0..name.len() {
            assert!(matches!(request(&name[..length]), Ok(Progress::Incomplete)), "{length}");
        }
    }

    #[test]
    fn what_is_not_served_is_refused_with_its_code() {
        assert_eq!(request(&[5, 2, 0, 1]).err().unwrap().answer()[1], 7);
        assert_eq!(request(&[5, 1, 0, 9]).err().unwrap().answer()[1], 8);
        assert!(request(&[5, 1, 0, 1, 1, 2, 3, 4, 0, 0]).is_err());
        assert_eq!(request(b"\x05\x01\0\x03\x09localhost\0\x50").err().unwrap().answer()[1], 4);
        assert_eq!(OPENED[1], 0);
    }

    #[test]
    fn each_cause_has_the_reply_code_that_fits() {
        let of = |status, message: &str| Failure::new(status, message);
        for (failure, expected) in [
            (of(Status::DestinationRefused, ""), 2),
            (of(Status::GrantRefused, ""), 2),
            (of(Status::NextHopRefused, "").of_overlay(), 2),
            (of(Status::Unreachable, "dial 10.0.0.1:1: network is unreachable"), 3),
            (of(Status::Unreachable, "dial 10.0.0.1:1: no route to host"), 4),
            (of(Status::Unreachable, "dial 10.0.0.1:1: no route to host").of_overlay(), 3),
            (of(Status::NameNotFound, ""), 4),
            (of(Status::ConnectionRefused, ""), 5),
            (of(Status::ConnectionRefused, "").of_overlay(), 3),
            (of(Status::NextHopFailed, "").of_overlay(), 3),
            (of(Status::TimedOut, ""), 6),
            (of(Status::TimedOut, "").of_overlay(), 6),
            (of(Status::Overloaded, ""), 1),
            (of(Status::Internal, ""), 1),
        ] {
            assert_eq!(refused(&failure)[1], expected, "{failure:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_in_any_pieces(
            kind in prop_oneof![Just(KIND_V4), Just(KIND_V6), Just(KIND_NAME), any::<u8>()],
            rest in proptest::collection::vec(any::<u8>(), 0..300),
            text in "[a-z0-9.\u{e4}-]{0,60}",
        ) {
            let named = [&[text.len() as u8], text.as_bytes(), &[1, 187, 7]].concat();
            for rest in [&rest, &named] {
                assert_read_in_any_pieces(greeting, rest);
                assert_read_in_any_pieces(greeting, &[&[VERSION][..], rest].concat());
                assert_read_in_any_pieces(request, rest);
                let begun = [&[VERSION, CONNECT, 0, kind][..], rest].concat();
                assert_read_in_any_pieces(request, &begun);
                if begun.len() > MOST_BYTES {
                    prop_assert!(!matches!(request(&begun), Ok(Progress::Incomplete)));
                }
            }
        }
    }
}
