//! The outer formats, version 1. Numbers are big-endian.
//!
//! ```text
//! initiation    bytes  field
//!                   1  kind 0x11
//!                   4  initiator's session id
//!                  32  Noise e
//!                  48  Noise s, sealed
//!               x + 16  payload, sealed: 8 time of issue in ms since the Unix epoch, 8 instance,
//!                         2 length of the grant, grant
//!                  16  first tag: whoever made this knows the responder's public identity
//!                  16  second tag: whoever made this was given a cookie; zeros without one
//! response          1  kind 0x12
//!                   4  initiator's session id
//!                  32  Noise e
//!              4 + 16  payload, sealed: responder's session id
//! cookie            1  kind 0x13
//!                   4  initiator's session id
//!                  16  cookie
//!                  16  tag: whoever made this has read the initiation
//! sealed            1  kind: 0x14 data, 0x15 control
//!                   4  receiver's session id
//!                   8  counter
//!              x + 16  payload, sealed; the 13 bytes before are authenticated with it
//! control payload   1  1 ping, 2 pong, 3 confirmation, 4 close, 5 probe
//!                   8  ping, pong and probe: a number that comes back
//!                   x  probe: zeros
//! ```

/// Bytes before a sealed datagram's payload.
pub const HEADER_BYTES: usize = 13;
/// Bytes of the tag behind it.
pub const TAG_BYTES: usize = 16;
/// The bytes that sealing adds to a payload.
pub const OVERHEAD: usize = HEADER_BYTES + TAG_BYTES;
/// Longest payload: that of the longest UDP datagram.
pub const PAYLOAD_LIMIT: usize = 65_507 - OVERHEAD;

pub(super) const INITIATION: u8 = 0x11;
pub(super) const RESPONSE: u8 = 0x12;
pub(super) const COOKIE: u8 = 0x13;
pub(super) const DATA: u8 = 0x14;
pub(super) const CONTROL: u8 = 0x15;
pub(super) const PASSED: u8 = 0x16;

/// Noise's e and sealed s.
pub(super) const KEYS_BYTES: usize = 32 + 48;
/// Bytes of kind and session id, which Noise's prologue covers.
pub(super) const PREFIX_BYTES: usize = 5;
/// Fixed part of an initiation's payload.
pub(super) const FIXED_PAYLOAD_BYTES: usize = 18;
const MIN_INITIATION: usize =
    PREFIX_BYTES + KEYS_BYTES + FIXED_PAYLOAD_BYTES + TAG_BYTES + 2 * TAG_BYTES;
const MAX_INITIATION: usize = MIN_INITIATION + tradewind_grant::token::GRANT_LIMIT;
pub(super) const RESPONSE_BYTES: usize = PREFIX_BYTES + 32 + 4 + TAG_BYTES;
pub(super) const COOKIE_BYTES: usize = PREFIX_BYTES + 2 * TAG_BYTES;

// No answer is longer than the datagram that it answers.
const _: () = assert!(RESPONSE_BYTES <= MIN_INITIATION && COOKIE_BYTES <= MIN_INITIATION);

/// A parsed datagram; nothing is authenticated yet.
pub(super) enum Datagram<'a> {
    Initiation(Initiation<'a>),
    Response { initiator: u32, noise: &'a [u8] },
    Cookie { initiator: u32, cookie: [u8; 16], tag: [u8; 16] },
    Sealed { receiver: u32, counter: u64 },
}

pub(super) struct Initiation<'a> {
    pub(super) initiator: u32,
    pub(super) prefix: &'a [u8],
    pub(super) noise: &'a [u8],
    /// The bytes that the first tag covers.
    pub(super) first_covers: &'a [u8],
    pub(super) first_tag: [u8; 16],
    /// The bytes that the second tag covers.
    pub(super) second_covers: &'a [u8],
    pub(super) second_tag: [u8; 16],
}

/// Returns whether a datagram claims to begin a handshake, which takes Diffie-Hellman steps to
/// check.
#[must_use]
pub fn is_initiation(datagram: &[u8]) -> bool {
    datagram.first() == Some(&INITIATION)
}

/// Parses a datagram; returns `None` for an unknown format.
pub(super) fn cut(bytes: &[u8]) -> Option<Datagram<'_>> {
    let id = u32::from_be_bytes(bytes.get(1..PREFIX_BYTES)?.try_into().ok()?);
    match *bytes.first()? {
        DATA | CONTROL if bytes.len() >= OVERHEAD => {
            let counter = u64::from_be_bytes(bytes[PREFIX_BYTES..HEADER_BYTES].try_into().ok()?);
            Some(Datagram::Sealed { receiver: id, counter })
        }
        INITIATION if (MIN_INITIATION..=MAX_INITIATION).contains(&bytes.len()) => {
            let second_at = bytes.len() - TAG_BYTES;
            let first_at = second_at - TAG_BYTES;
            Some(Datagram::Initiation(Initiation {
                initiator: id,
                prefix: &bytes[..PREFIX_BYTES],
                noise: &bytes[PREFIX_BYTES..first_at],
                first_covers: &bytes[..first_at],
                first_tag: bytes[first_at..second_at].try_into().ok()?,
                second_covers: &bytes[..second_at],
                second_tag: bytes[second_at..].try_into().ok()?,
            }))
        }
        RESPONSE if bytes.len() == RESPONSE_BYTES => {
            Some(Datagram::Response { initiator: id, noise: &bytes[PREFIX_BYTES..] })
        }
        COOKIE if bytes.len() == COOKIE_BYTES => Some(Datagram::Cookie {
            initiator: id,
            cookie: bytes[PREFIX_BYTES..PREFIX_BYTES + TAG_BYTES].try_into().ok()?,
            tag: bytes[PREFIX_BYTES + TAG_BYTES..].try_into().ok()?,
        }),
        _ => None,
    }
}

/// Writes kind and session id.
pub(super) fn prefix(kind: u8, id: u32) -> [u8; PREFIX_BYTES] {
    let id = id.to_be_bytes();
    [kind, id[0], id[1], id[2], id[3]]
}

/// The content of a control datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// A ping: asks whether the neighbour is there, at this address.
    Ping(u64),
    /// A pong: answers a ping or a probe.
    Pong(u64),
    /// The first message of a session.
    Confirmation,
    /// The last message of a session (close).
    Close,
    /// A ping that is padded to a length.
    Probe(u64),
}

/// The longest payload of a control datagram but a probe.
pub(super) const CONTROL_LIMIT: usize = 9;

impl Control {
    /// Writes it to `out`; returns its length.
    pub(super) fn put(self, out: &mut [u8]) -> usize {
        let (kind, number) = match self {
            Self::Ping(number) => (1, Some(number)),
            Self::Pong(number) => (2, Some(number)),
            Self::Confirmation => (3, None),
            Self::Close => (4, None),
            Self::Probe(number) => (5, Some(number)),
        };
        out[0] = kind;
        let Some(number) = number else { return 1 };
        out[1..CONTROL_LIMIT].copy_from_slice(&number.to_be_bytes());
        CONTROL_LIMIT
    }

    pub(super) fn take(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        if *kind == 5 {
            let (number, padding) = rest.split_first_chunk()?;
            let is_right = padding.iter().all(|byte| *byte == 0);
            return is_right.then_some(Self::Probe(u64::from_be_bytes(*number)));
        }
        let number = <[u8; 8]>::try_from(rest).map(u64::from_be_bytes);
        match (kind, number, rest.is_empty()) {
            (1, Ok(number), _) => Some(Self::Ping(number)),
            (2, Ok(number), _) => Some(Self::Pong(number)),
            (3, _, true) => Some(Self::Confirmation),
            (4, _, true) => Some(Self::Close),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_probe_format() {
        let mut bytes = [0; 60];
        assert_eq!(Control::Probe(7).put(&mut bytes), CONTROL_LIMIT);
        assert_eq!(Control::take(&bytes), Some(Control::Probe(7)));
        assert_eq!(Control::take(&bytes[..9]), Some(Control::Probe(7)));
        assert_eq!(Control::take(&bytes[..8]), None);
        bytes[59] = 1;
        assert_eq!(Control::take(&bytes), None);
        bytes[0] = 1;
        assert_eq!(Control::take(&bytes), None, "a ping has nothing behind its number");
    }
}
