//! SOCKS version 5 [RFC 1928], the commands CONNECT and UDP ASSOCIATE; without authentication, or
//! with a name and a password [RFC 1929].
//!
//! Parsers and replies only; the session is in [`super::session`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tradewind_grant::{Destination, GrantError, Status};
use tradewind_stream::connection::head::Progress;
use tradewind_stream::failure::Failure;

use super::users::Credentials;

const VERSION: u8 = 5;
/// The method without authentication.
pub(crate) const NO_AUTHENTICATION: u8 = 0;
/// The method with a name and a password.
pub(crate) const PASSWORD: u8 = 2;
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const UDP_ASSOCIATE: u8 = 3;
const KIND_V4: u8 = 1;
const KIND_NAME: u8 = 3;
const KIND_V6: u8 = 4;

/// Length of the longest message: a name and a password of 255 bytes each and three more.
pub(crate) const MAX_BYTES: usize = 513;

/// Returns the answer to a greeting that selects `method`.
pub(crate) const fn accepted(method: u8) -> [u8; 2] {
    [VERSION, method]
}
/// The answer to a greeting that does not offer the required method.
pub(crate) const NO_METHOD: [u8; 2] = [VERSION, 0xff];
/// The answer to a correct name and password.
pub(crate) const RIGHT: [u8; 2] = [PASSWORD_VERSION, 0];
/// The answer to a wrong name or password.
pub(crate) const WRONG: [u8; 2] = [PASSWORD_VERSION, 1];

/// The reason why a client's bytes were refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocksError {
    /// Another protocol or version.
    #[error("SOCKS version {0}: only version 5 is spoken here")]
    Version(u8),
    /// The client does not offer the required method.
    #[error("the client offers no method {0} (0: without authentication, 2: name and password)")]
    Method(u8),
    /// Another version of the name and password message.
    #[error("name and password in version {0}: expected 1")]
    PasswordVersion(u8),
    /// Another command.
    #[error("SOCKS command {0}: CONNECT (1) and UDP ASSOCIATE (3) are served")]
    Command(u8),
    /// An unknown address type.
    #[error("SOCKS address type {0}: expected 1, 3 or 4")]
    AddressKind(u8),
    /// A name that is not UTF-8.
    #[error("SOCKS host name is no text")]
    NameBytes,
    /// An invalid destination.
    #[error(transparent)]
    Destination(#[from] GrantError),
}

impl SocksError {
    /// Returns the reply code for the client.
    const fn code(&self) -> u8 {
        match self {
            Self::Command(_) => NO_COMMAND,
            Self::AddressKind(_) => 8,
            // No host has such a name.
            Self::NameBytes | Self::Destination(_) => 4,
            Self::Version(_) | Self::Method(_) | Self::PasswordVersion(_) => 1,
        }
    }

    /// Returns the answer to send before closing; empty for a client of another protocol.
    pub(crate) fn answer(&self) -> Vec<u8> {
        match self {
            Self::Version(_) => Vec::new(),
            Self::Method(_) => NO_METHOD.to_vec(),
            Self::PasswordVersion(_) => WRONG.to_vec(),
            other => reply(other.code()).to_vec(),
        }
    }
}

/// Reads a greeting, which must offer `method`: version, number of methods, methods.
pub(crate) fn greeting(bytes: &[u8], method: u8) -> Result<Progress<()>, SocksError> {
    match bytes {
        [version, ..] if *version != VERSION => Err(SocksError::Version(*version)),
        [_, count, rest @ ..] if rest.len() >= usize::from(*count) => {
            let methods = &rest[..usize::from(*count)];
            if !methods.contains(&method) {
                return Err(SocksError::Method(method));
            }
            Ok(Progress::Complete((), 2 + methods.len()))
        }
        _ => Ok(Progress::Incomplete),
    }
}

/// Reads a name and a password, each with its length before it, after the version of this message.
pub(crate) fn credentials(bytes: &[u8]) -> Result<Progress<Credentials>, SocksError> {
    let part = |bytes: &[u8]| {
        let (length, rest) = bytes.split_first()?;
        rest.get(..usize::from(*length)).map(<[u8]>::to_vec)
    };
    match bytes {
        [version, ..] if *version != PASSWORD_VERSION => Err(SocksError::PasswordVersion(*version)),
        [_, rest @ ..] => {
            let Some(name) = part(rest) else { return Ok(Progress::Incomplete) };
            let Some(password) = part(&rest[1 + name.len()..]) else {
                return Ok(Progress::Incomplete);
            };
            let used = 3 + name.len() + password.len();
            // No user has a name that is not UTF-8.
            let name = String::from_utf8_lossy(&name).into_owned();
            Ok(Progress::Complete(Credentials { name, password }, used))
        }
        [] => Ok(Progress::Incomplete),
    }
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// CONNECT: a session to a destination.
    Connect(Destination),
    /// UDP ASSOCIATE: a port for datagrams, which the client will send from this port of its own,
    /// unless that is 0.
    Associate(u16),
}

/// Reads a request: version, command, zero, address, port.
pub(crate) fn request(bytes: &[u8]) -> Result<Progress<Request>, SocksError> {
    let [version, command, _, rest @ ..] = bytes else { return Ok(Progress::Incomplete) };
    if *version != VERSION {
        return Err(SocksError::Version(*version));
    }
    if rest.is_empty() {
        return Ok(Progress::Incomplete);
    }
    if !matches!(*command, CONNECT | UDP_ASSOCIATE) {
        return Err(SocksError::Command(*command));
    }
    let Some((host, port, used)) = place(rest)? else { return Ok(Progress::Incomplete) };
    let request = match *command {
        CONNECT => Request::Connect(host.with(port)?),
        _ => Request::Associate(port),
    };
    Ok(Progress::Complete(request, 3 + used))
}

/// A host as encoded in a message.
enum Host<'a> {
    Address(IpAddr),
    Name(&'a [u8]),
}

impl Host<'_> {
    fn with(&self, port: u16) -> Result<Destination, SocksError> {
        Ok(match self {
            Self::Address(ip) => Destination::address(SocketAddr::new(*ip, port))?,
            Self::Name(name) => {
                let name = std::str::from_utf8(name).map_err(|_| SocksError::NameBytes)?;
                Destination::new(name, port)?
            }
        })
    }
}

/// Reads an address type, a host and a port, and returns the host, the port and their length in
/// bytes; `None` while some bytes are missing.
fn place(bytes: &[u8]) -> Result<Option<(Host<'_>, u16, usize)>, SocksError> {
    let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
    let host_bytes = match (*kind, rest) {
        (KIND_V4, _) => 4,
        (KIND_V6, _) => 16,
        (KIND_NAME, [length, ..]) => 1 + usize::from(*length),
        (KIND_NAME, []) => return Ok(None),
        (other, _) => return Err(SocksError::AddressKind(other)),
    };
    let Some((host, [high, low, ..])) = rest.split_at_checked(host_bytes) else {
        return Ok(None);
    };
    let host = match *kind {
        KIND_V4 => {
            Host::Address(Ipv4Addr::from(<[u8; 4]>::try_from(host).expect("four bytes")).into())
        }
        KIND_V6 => {
            Host::Address(Ipv6Addr::from(<[u8; 16]>::try_from(host).expect("16 bytes")).into())
        }
        _ => Host::Name(&host[1..]),
    };
    Ok(Some((host, u16::from_be_bytes([*high, *low]), 1 + host_bytes + 2)))
}

/// Appends an address type, an address and its port.
fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            out.push(KIND_V4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(KIND_V6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Returns the destination and the payload of a client's datagram; `None` if it is invalid or a
/// fragment.
pub(crate) fn unwrap(datagram: &[u8]) -> Option<(Destination, &[u8])> {
    let [0, 0, 0, rest @ ..] = datagram else { return None };
    let (host, port, used) = place(rest).ok()??;
    Some((host.with(port).ok()?, &rest[used..]))
}

/// Encodes a datagram for a client, received from `source`.
pub(crate) fn wrap(source: SocketAddr, data: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(22 + data.len());
    datagram.extend_from_slice(&[0, 0, 0]);
    put_address(&mut datagram, source);
    datagram.extend_from_slice(data);
    datagram
}

/// Encodes the reply to a client that may send its datagrams to `address`.
pub(crate) fn associated(address: SocketAddr) -> Vec<u8> {
    let mut reply = vec![VERSION, 0, 0];
    put_address(&mut reply, address);
    reply
}

/// The reply code of any other failure.
pub(crate) const FAILED: u8 = 1;
/// The reply code of a command that is not served.
pub(crate) const NO_COMMAND: u8 = 7;

/// The reply to a request whose flow is open.
pub(crate) const OPENED: [u8; 10] = reply(0);

/// Returns the reply to a request whose flow could not be opened: not allowed (2), network
/// unreachable (3, also for failures of the overlay), host unreachable (4), connection refused (5),
/// timed out (6, literally "TTL expired"), or general failure (1).
pub(crate) fn refused(failure: &Failure) -> [u8; 10] {
    reply(match failure.status {
        Status::GrantRefused | Status::DestinationRefused | Status::NextHopRefused => 2,
        Status::TimedOut => 6,
        Status::NextHopFailed => 3,
        Status::ConnectionRefused | Status::Unreachable | Status::NameNotFound
            if failure.is_of_overlay =>
        {
            3
        }
        Status::Unreachable if failure.is_of_network() => 3,
        Status::NameNotFound | Status::Unreachable => 4,
        Status::ConnectionRefused => 5,
        _ => 1,
    })
}

/// Encodes a reply with `code`; the bound address, which no client needs, is all zeros.
pub(crate) const fn reply(code: u8) -> [u8; 10] {
    [VERSION, code, 0, KIND_V4, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_pieces::assert_read_in_any_pieces;
    use proptest::prelude::*;

    fn complete(bytes: &[u8]) -> (String, usize) {
        match request(bytes).unwrap() {
            Progress::Complete(Request::Connect(to), used) => (to.to_string(), used),
            _ => panic!("incomplete"),
        }
    }

    #[test]
    fn greeting_must_offer_the_method() {
        for (method, other) in [(NO_AUTHENTICATION, PASSWORD), (PASSWORD, NO_AUTHENTICATION)] {
            let both = greeting(&[5, 2, 2, 0, 9], method);
            assert!(matches!(both, Ok(Progress::Complete((), 4))));
            assert!(matches!(greeting(&[5, 2, method], method), Ok(Progress::Incomplete)));
            let refused = greeting(&[5, 1, other], method).err().unwrap();
            assert_eq!(refused.answer(), NO_METHOD);
        }
        assert!(matches!(greeting(b"GET /", 0), Err(SocksError::Version(b'G'))));
    }

    #[test]
    fn credentials_are_read_exactly() {
        let bytes = b"\x01\x03ann\x02\xff:rest";
        let Ok(Progress::Complete(shown, 8)) = credentials(bytes) else { panic!() };
        assert_eq!((shown.name.as_str(), &shown.password[..]), ("ann", &b"\xff:"[..]));
        let whole = [&[1, 255][..], &[b'n'; 255], &[255], &[b'p'; 255]].concat();
        assert_eq!(whole.len(), MAX_BYTES);
        assert!(matches!(credentials(&whole), Ok(Progress::Complete(_, MAX_BYTES))));
        assert_eq!(credentials(&[5, 1, 0]).err().unwrap().answer(), WRONG);
    }

    #[test]
    fn requests_are_read_exactly() {
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
    fn unsupported_requests_have_their_code() {
        assert_eq!(request(&[5, 2, 0, 1]).err().unwrap().answer()[1], 7);
        assert_eq!(request(&[5, 1, 0, 9]).err().unwrap().answer()[1], 8);
        assert!(request(&[5, 1, 0, 1, 1, 2, 3, 4, 0, 0]).is_err());
        assert_eq!(request(b"\x05\x01\0\x03\x09localhost\0\x50").err().unwrap().answer()[1], 4);
        assert_eq!(OPENED[1], 0);
    }

    #[test]
    fn reply_code_of_each_cause() {
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

    #[test]
    fn associate_request_and_datagram_header() {
        let asked = request(&[5, 3, 0, 1, 0, 0, 0, 0, 0x15, 0xb3]);
        assert!(matches!(asked, Ok(Progress::Complete(Request::Associate(5555), 10))));
        let asked = request(&[5, 3, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert!(matches!(asked, Ok(Progress::Complete(Request::Associate(0), 10))));
        for source in ["192.0.2.7:53", "[2001:db8::1]:53"] {
            let source: SocketAddr = source.parse().unwrap();
            let wrapped = wrap(source, b"data");
            let (to, data) = unwrap(&wrapped).unwrap();
            assert_eq!((to, data), (Destination::Address(source), &b"data"[..]));
            assert_eq!(associated(source)[3..], wrapped[3..wrapped.len() - 4]);
        }
        let name = b"\0\0\0\x03\x09a.example\0\x35data";
        assert_eq!(unwrap(name).unwrap().0.to_string(), "a.example:53");
        for wrong in [
            &b"\0\0\x01\x01\xc0\0\x02\x07\0\x35data"[..],
            b"\0\x01\0\x01\xc0\0\x02\x07\0\x35data",
            b"\0\0\0\x02\xc0\0\x02\x07\0\x35data",
            b"\0\0\0\x01\xc0\0\x02\x07\0\0data",
            b"\0\0\0\x01\xc0\0\x02\x07\0",
            b"",
        ] {
            assert!(unwrap(wrong).is_none(), "{wrong:?}");
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
                for method in [NO_AUTHENTICATION, PASSWORD] {
                    let greeting = |bytes: &[u8]| greeting(bytes, method);
                    assert_read_in_any_pieces(greeting, rest);
                    assert_read_in_any_pieces(greeting, &[&[VERSION][..], rest].concat());
                }
                assert_read_in_any_pieces(credentials, rest);
                let begun = [&[PASSWORD_VERSION][..], rest].concat();
                assert_read_in_any_pieces(credentials, &begun);
                assert_read_in_any_pieces(request, rest);
                let begun = [&[VERSION, UDP_ASSOCIATE, 0, kind][..], rest].concat();
                assert_read_in_any_pieces(request, &begun);
                let _read_without_panic = unwrap(&[&[0, 0, 0, kind][..], rest].concat());
                let begun = [&[VERSION, CONNECT, 0, kind][..], rest].concat();
                assert_read_in_any_pieces(request, &begun);
                if begun.len() > MAX_BYTES {
                    prop_assert!(!matches!(request(&begun), Ok(Progress::Incomplete)));
                }
            }
        }
    }
}
