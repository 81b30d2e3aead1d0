//! The joins of further connections to the session of a striped leg: the first bytes of the
//! dialling side on each, and the response.
//!
//! A header that offers striping (see [`header`](crate::header)) gives both ends of the leg a key
//! of this session, from which its name follows as well. Whoever knows that key was authenticated
//! by the header, under its grant; so a join needs no grant, no time and no replay table: it is
//! valid for one session, as long as that lasts, and each number is valid once.
//!
//! Numbers big-endian. The join:
//!
//! ```text
//! bytes  field
//!     3  magic "TWJ"
//!     1  version, 1
//!    16  name of the session
//!     4  number of the connection, from 1: no two of a session have the same
//!    16  tag: keyed hash of the bytes so far
//! ```
//!
//! The welcome; before it, no byte of the stream is sent on the connection:
//!
//! ```text
//!     3  magic "TWJ"
//!     1  version, 1
//!    16  tag: keyed hash of the letter "w" and the number
//! ```
//!
//! Frames follow in both directions.

use std::fmt;

use crate::pair::{TAG_BYTES, Tag, tag, tags_match};
use crate::wire::Reader;
use crate::{GrantError, ReplyKey};

/// Length of a join.
pub const JOIN_BYTES: usize = SIGNED_BYTES + TAG_BYTES;
/// Length of a welcome.
pub const WELCOME_BYTES: usize = MAGIC.len() + TAG_BYTES;

const MAGIC: [u8; 4] = *b"TWJ\x01";
const NAME_BYTES: usize = 16;
const SIGNED_BYTES: usize = MAGIC.len() + NAME_BYTES + 4;
const CONTEXT: &str = "tradewind 2026-11 striped leg: joining connections v1";

/// The name of a session whose leg is striped; it reveals nothing about the key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionName([u8; NAME_BYTES]);

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns whether `bytes` begin like a join.
#[must_use]
pub fn is_join(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Returns the session that a join names; nothing in it is verified yet.
///
/// # Errors
/// [`GrantError::Malformed`].
pub fn session_of(bytes: &[u8]) -> Result<SessionName, GrantError> {
    let mut reader = Reader::new(bytes);
    reader.magic(MAGIC, "join magic and version")?;
    Ok(SessionName(reader.array("session")?))
}

/// The key that seals and opens the joins of one session.
#[derive(Clone)]
pub struct JoinKey {
    name: SessionName,
    key: zeroize::Zeroizing<[u8; 32]>,
}

impl fmt::Debug for JoinKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinKey([secret], session {})", self.name)
    }
}

impl JoinKey {
    /// Derives the key of the session whose replies `reply` seals or opens: the same at both ends
    /// of the leg.
    #[must_use]
    pub fn of(reply: &ReplyKey) -> Self {
        let key = zeroize::Zeroizing::new(blake3::derive_key(CONTEXT, &*reply.material()));
        let name = SessionName(tag(&key, &[b"name"]));
        Self { name, key }
    }

    /// Returns the session's name.
    #[must_use]
    pub const fn session(&self) -> SessionName {
        self.name
    }

    /// Returns the join to send first on the connection with this number.
    #[must_use]
    pub fn join(&self, number: u32) -> [u8; JOIN_BYTES] {
        let mut bytes = [0; JOIN_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..20].copy_from_slice(&self.name.0);
        bytes[20..24].copy_from_slice(&number.to_be_bytes());
        let tag = tag(&self.key, &[b"j", &bytes[..SIGNED_BYTES]]);
        bytes[SIGNED_BYTES..].copy_from_slice(&tag);
        bytes
    }

    /// Returns the number of the connection that sent `bytes`. The caller must accept each number
    /// once.
    ///
    /// # Errors
    /// [`GrantError::Malformed`], or [`GrantError::JoinTag`] when this session's other end did not
    /// seal it.
    pub fn open(&self, bytes: &[u8]) -> Result<u32, GrantError> {
        let name = session_of(bytes)?;
        let mut reader = Reader::new(bytes);
        reader.take(MAGIC.len() + NAME_BYTES, "join")?;
        let at = reader.at();
        let number = reader.u32("number of the connection")?;
        let theirs: Tag = reader.array("tag")?;
        reader.end("end of the join")?;
        let ours = tag(&self.key, &[b"j", &bytes[..SIGNED_BYTES]]);
        if name != self.name || !tags_match(&ours, &theirs) {
            return Err(GrantError::JoinTag(name));
        }
        if number == 0 {
            return Err(GrantError::Malformed { what: "number of the connection", at });
        }
        Ok(number)
    }

    /// Returns the response to the join of the connection with this number.
    #[must_use]
    pub fn welcome(&self, number: u32) -> [u8; WELCOME_BYTES] {
        let mut bytes = [0; WELCOME_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..].copy_from_slice(&tag(&self.key, &[b"w", &number.to_be_bytes()]));
        bytes
    }

    /// Returns whether `bytes` are the other end's response to the join of the connection with this
    /// number.
    #[must_use]
    pub fn is_welcome(&self, number: u32, bytes: &[u8; WELCOME_BYTES]) -> bool {
        let theirs = Tag::try_from(&bytes[MAGIC.len()..]).expect("the rest is a tag");
        let ours = tag(&self.key, &[b"w", &number.to_be_bytes()]);
        bytes.starts_with(&MAGIC) && tags_match(&ours, &theirs)
    }
}
