//! Invites: one line of text that lets one host join.
//!
//! An invite names the controller's address and identity, so that the host's agent knows whom it
//! dials, and holds a secret that the controller keeps as a hash. It works once, for as long as
//! it lasts; the same host may use it again with the same key.

use std::borrow::Borrow;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use serde::{Deserialize, Serialize};
use tradewind_grant::PublicIdentity;

use crate::record::Role;

/// The prefix of an invite's text; the number is the version of its format.
const PREFIX: &str = "twinvite1_";
/// Most bytes of an invite's text. Chosen: several times what one takes.
const MAX_BYTES: usize = 2048;

/// An invite, as the host's owner gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invite {
    /// The address of the controller's listener for agents.
    pub controller: SocketAddr,
    /// The identity that the controller must prove.
    pub identity: PublicIdentity,
    /// The host's role, for people; the controller decides by its own record.
    pub role: Role,
    /// The secret.
    pub secret: InviteSecret,
}

/// The secret of an invite: 128 bits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InviteSecret([u8; 16]);

impl InviteSecret {
    /// Creates one from random bytes.
    #[must_use]
    pub const fn from_entropy(entropy: [u8; 16]) -> Self {
        Self(entropy)
    }

    /// Returns its hash, the only form that a controller keeps.
    #[must_use]
    pub fn hash(&self) -> InviteHash {
        let hash = blake3::derive_key("tradewind 2026-11 invite secret", &self.0);
        InviteHash(Base64UrlUnpadded::encode_string(&hash))
    }
}

impl fmt::Debug for InviteSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InviteSecret(..)")
    }
}

impl From<InviteSecret> for String {
    fn from(secret: InviteSecret) -> Self {
        Base64UrlUnpadded::encode_string(&secret.0)
    }
}

impl TryFrom<String> for InviteSecret {
    type Error = InviteError;

    fn try_from(text: String) -> Result<Self, InviteError> {
        let mut bytes = [0; 16];
        match Base64UrlUnpadded::decode(&text, &mut bytes) {
            Ok(decoded) if decoded.len() == 16 => Ok(Self(bytes)),
            _ => Err(InviteError),
        }
    }
}

/// The hash of an invite's secret; it identifies the invite.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InviteHash(String);

impl Borrow<str> for InviteHash {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InviteHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is no invite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an invite: expected the whole line that `tradewind invite` printed, `{PREFIX}...`")]
pub struct InviteError;

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_vec(self).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{}", Base64UrlUnpadded::encode_string(&json))
    }
}

impl FromStr for Invite {
    type Err = InviteError;

    fn from_str(text: &str) -> Result<Self, InviteError> {
        let text = text.trim();
        let body = text.strip_prefix(PREFIX).filter(|_| text.len() <= MAX_BYTES);
        let json = Base64UrlUnpadded::decode_vec(body.ok_or(InviteError)?);
        serde_json::from_slice(&json.map_err(|_| InviteError)?).map_err(|_| InviteError)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{gateway, identity};

    proptest! {
        #[test]
        fn invites_are_read_as_written_and_no_damaged_text_passes_unseen(
            secret: [u8; 16], port: u16, at: prop::sample::Index,
        ) {
            let invite = Invite {
                controller: ([192, 0, 2, 1], port).into(),
                identity: identity(1),
                role: gateway("office"),
                secret: InviteSecret::from_entropy(secret),
            };
            let text = invite.to_string();
            prop_assert_eq!(format!(" {text}\n").parse::<Invite>(), Ok(invite.clone()));
            let cut = &text[..at.index(text.len())];
            prop_assert_eq!(cut.parse::<Invite>(), Err(InviteError));
        }
    }

    #[test]
    fn secrets_are_not_printed_and_their_hashes_differ() {
        let [one, other] = [1, 2].map(|byte| InviteSecret::from_entropy([byte; 16]));
        assert_eq!(format!("{one:?}"), "InviteSecret(..)");
        assert_ne!(one.hash(), other.hash());
        assert_ne!(one.hash().to_string(), String::from(one));
    }
}
