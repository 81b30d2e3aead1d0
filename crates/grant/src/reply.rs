//! The authenticated answer to a hop header.
//!
//! A relay answers its neighbour once, before any data that flows back. The tag is made with the
//! key that both share and covers the header's hash, so it proves that this relay answered this
//! session. A relay that receives a reply checks it and seals it anew for its own neighbour.
//!
//! Format, version 2, at most [`REPLY_LIMIT`] bytes, numbers big-endian:
//!
//! ```text
//! bytes  field
//!     3  magic "TWR"
//!     1  version, 2
//!     2  length of the whole reply
//!     1  status: 0 ok, else an error
//!     1  hop that answered or failed, from 0
//!     1  whether a relay may have begun to dial the destination: 0 no, 1 perhaps; 1 when the
//!        status is ok, unless it answers a probe
//!     1  length of the message, 0 to 200
//!     x  message, UTF-8 without control characters; when the status is ok empty, or a probe's
//!        round trips, see `echo`
//!    16  tag: keyed BLAKE3 over the header's hash, the replying hop, and all bytes before
//! ```

use tradewind_units::one_line;

use crate::pair::{PairKey, TAG_BYTES, Tag, tag, tags_match};
use crate::wire::Reader;
use crate::{Echo, GrantError, header::HOP_LIMIT};

/// Length of the prefix that gives a reply's length.
pub const REPLY_PREFIX_BYTES: usize = 6;
/// Longest message of a reply.
pub const MESSAGE_LIMIT: usize = 200;
/// Longest reply.
pub const REPLY_LIMIT: usize = FIXED_BYTES + MESSAGE_LIMIT + TAG_BYTES;

const MAGIC: [u8; 4] = *b"TWR\x02";
const FIXED_BYTES: usize = REPLY_PREFIX_BYTES + 4;

/// The result of opening a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Status {
    /// The last relay has a connection to the destination.
    Ok = 0,
    /// The grant has expired, is not valid yet, or does not allow this relay.
    GrantRefused = 1,
    /// The header's time is too far from the relay's clock.
    ClockSkew = 2,
    /// The header was seen before.
    Replayed = 3,
    /// The grant or the relay's policy does not allow the destination.
    DestinationRefused = 4,
    /// The relay's policy does not allow the next hop.
    NextHopRefused = 5,
    /// The destination's name has no address.
    NameNotFound = 6,
    /// The next hop or destination refused the connection.
    ConnectionRefused = 7,
    /// The next hop or destination cannot be reached.
    Unreachable = 8,
    /// The next hop or destination did not answer in time.
    TimedOut = 9,
    /// The next hop ended the connection without a reply, or its reply is false.
    NextHopFailed = 10,
    /// The relay lacks capacity: sessions, descriptors, or the grant's sessions.
    Overloaded = 11,
    /// The relay is draining.
    Draining = 12,
    /// Anything else.
    Internal = 13,
    /// The grant was revoked.
    GrantRevoked = 14,
}

impl Status {
    const ALL: [Self; 15] = [
        Self::Ok,
        Self::GrantRefused,
        Self::ClockSkew,
        Self::Replayed,
        Self::DestinationRefused,
        Self::NextHopRefused,
        Self::NameNotFound,
        Self::ConnectionRefused,
        Self::Unreachable,
        Self::TimedOut,
        Self::NextHopFailed,
        Self::Overloaded,
        Self::Draining,
        Self::Internal,
        Self::GrantRevoked,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Returns a short word for metrics and logs, e.g. `timed_out`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::GrantRefused => "grant_refused",
            Self::ClockSkew => "clock_skew",
            Self::Replayed => "replayed",
            Self::DestinationRefused => "destination_refused",
            Self::NextHopRefused => "next_hop_refused",
            Self::NameNotFound => "name_not_found",
            Self::ConnectionRefused => "connection_refused",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::NextHopFailed => "next_hop_failed",
            Self::Overloaded => "overloaded",
            Self::Draining => "draining",
            Self::Internal => "internal",
            Self::GrantRevoked => "grant_revoked",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<&GrantError> for Status {
    /// Returns the status with which a relay refuses a header for this cause.
    fn from(cause: &GrantError) -> Self {
        match cause {
            GrantError::NotYetValid { .. }
            | GrantError::Expired { .. }
            | GrantError::RelayNotGranted(_)
            | GrantError::WrongGateway { .. }
            | GrantError::UnknownKey(_)
            | GrantError::BadSignature(_) => Self::GrantRefused,
            GrantError::Revoked { .. } => Self::GrantRevoked,
            GrantError::Skew { .. } => Self::ClockSkew,
            GrantError::Replayed(_) | GrantError::BeforeStart { .. } => Self::Replayed,
            GrantError::ReplayTableFull(_) => Self::Overloaded,
            GrantError::DestinationNotGranted(_)
            | GrantError::Forbidden { .. }
            | GrantError::UnnamedPrivate(_)
            | GrantError::Relay(_)
            | GrantError::LocalHost(_)
            | GrantError::Denied(_) => Self::DestinationRefused,
            GrantError::ReplyTag(_) => Self::NextHopFailed,
            _ => Self::Internal,
        }
    }
}

/// An answer to a header: its status, hop and message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The result.
    pub status: Status,
    /// The hop that answered or failed, from 0.
    pub hop: usize,
    /// True if a relay may have begun to dial the destination. If not, the session may be retried
    /// on another path, and the destination never sees two.
    pub dialled: bool,
    /// One line for people, empty on success; or the echo of a probe.
    pub message: String,
}

impl Reply {
    /// Creates the reply of the last hop on success.
    #[must_use]
    pub fn ok(hop: usize) -> Self {
        Self { status: Status::Ok, hop, dialled: true, message: String::new() }
    }

    /// Creates the reply to a probe that arrived, with its echo.
    #[must_use]
    pub fn alive(hop: usize, echo: &Echo) -> Self {
        Self { status: Status::Ok, hop, dialled: false, message: echo.to_string() }
    }

    /// Creates the reply of a failure at hop `hop`, perhaps after it had begun to dial the
    /// destination. The message is cut to [`MESSAGE_LIMIT`] bytes and to one line.
    #[must_use]
    pub fn failed(status: Status, hop: usize, message: &str) -> Self {
        Self { status, hop, dialled: true, message: one_line(message, MESSAGE_LIMIT) }
    }

    /// Returns the same failure, marked as before any relay had begun to dial the destination.
    #[must_use]
    pub fn before_dial(self) -> Self {
        Self { dialled: false, ..self }
    }
}

/// Returns the length in a reply's first [`REPLY_PREFIX_BYTES`] bytes.
///
/// # Errors
/// [`GrantError::Malformed`] when it is no reply or its length is out of bounds.
pub fn reply_length(prefix: &[u8]) -> Result<usize, GrantError> {
    let mut reader = Reader::new(prefix);
    reader.magic(MAGIC, "reply magic and version")?;
    let at = reader.at();
    let length = usize::from(reader.u16("reply length")?);
    if (FIXED_BYTES + TAG_BYTES..=REPLY_LIMIT).contains(&length) {
        Ok(length)
    } else {
        Err(GrantError::Malformed { what: "reply length", at })
    }
}

/// The key that seals or opens the replies between two neighbours of one session.
#[derive(Clone)]
pub struct ReplyKey {
    key: zeroize::Zeroizing<[u8; 32]>,
    transcript: [u8; 32],
    /// The hop that seals: the relay, or the later of two relays.
    hop: u8,
}

impl std::fmt::Debug for ReplyKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplyKey([secret], hop {})", self.hop)
    }
}

impl ReplyKey {
    pub(crate) fn new(pair: &PairKey, transcript: [u8; 32], hop: u8) -> Self {
        Self { key: zeroize::Zeroizing::new(pair.reply_key()), transcript, hop }
    }

    /// Returns the material that this session's keys are derived from.
    pub(crate) fn material(&self) -> zeroize::Zeroizing<[u8; 65]> {
        let mut material = zeroize::Zeroizing::new([0; 65]);
        material[..32].copy_from_slice(&*self.key);
        material[32..64].copy_from_slice(&self.transcript);
        material[64] = self.hop;
        material
    }

    /// Seals a reply for the neighbour upstream; its message is cut as by [`Reply::failed`].
    #[must_use]
    pub fn seal(&self, reply: &Reply) -> Vec<u8> {
        let dialled = reply.dialled;
        let reply = Reply::failed(reply.status, reply.hop, &reply.message);
        let hop = reply.hop.clamp(usize::from(self.hop), HOP_LIMIT - 1);
        let length = FIXED_BYTES + reply.message.len() + TAG_BYTES;
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&(length as u16).to_be_bytes());
        bytes.push(reply.status as u8);
        bytes.push(hop as u8);
        bytes.push(u8::from(dialled));
        bytes.push(reply.message.len() as u8);
        bytes.extend_from_slice(reply.message.as_bytes());
        let tag = self.tag(&bytes);
        bytes.extend_from_slice(&tag);
        bytes
    }

    /// Opens a reply from the neighbour downstream.
    ///
    /// # Errors
    /// [`GrantError::Malformed`], or [`GrantError::ReplyTag`] when another relay sealed it, or for
    /// another session.
    pub fn open(&self, bytes: &[u8]) -> Result<Reply, GrantError> {
        let length = reply_length(bytes)?;
        if bytes.len() != length {
            return Err(GrantError::Malformed { what: "reply length", at: REPLY_PREFIX_BYTES - 2 });
        }
        let (body, theirs) = bytes.split_at(length - TAG_BYTES);
        let theirs = Tag::try_from(theirs).expect("split at the length of a tag");
        if !tags_match(&self.tag(body), &theirs) {
            return Err(GrantError::ReplyTag(usize::from(self.hop)));
        }
        self.take(&mut Reader::new(body))
    }

    fn take(&self, reader: &mut Reader<'_>) -> Result<Reply, GrantError> {
        reader.take(REPLY_PREFIX_BYTES, "reply")?;
        let at = reader.at();
        let status = Status::from_code(reader.u8("reply status")?);
        let status = status.ok_or(GrantError::Malformed { what: "reply status", at })?;
        let at = reader.at();
        let hop = reader.u8("reply hop")?;
        if hop < self.hop || usize::from(hop) >= HOP_LIMIT {
            return Err(GrantError::Malformed { what: "reply hop", at });
        }
        let at = reader.at();
        let dialled = match reader.u8("reply dial")? {
            0 => false,
            1 => true,
            _ => return Err(GrantError::Malformed { what: "reply dial", at }),
        };
        let at = reader.at();
        let count = usize::from(reader.u8("reply message")?);
        let message = reader.text(count, "reply message")?;
        reader.end("end of the reply")?;
        let silent_ok = status != Status::Ok || !dialled || message.is_empty();
        if count > MESSAGE_LIMIT || !silent_ok || message.chars().any(char::is_control) {
            return Err(GrantError::Malformed { what: "reply message", at });
        }
        Ok(Reply { status, hop: usize::from(hop), dialled, message: message.to_owned() })
    }

    fn tag(&self, body: &[u8]) -> Tag {
        tag(&self.key, &[&self.transcript, &[self.hop], body])
    }
}
