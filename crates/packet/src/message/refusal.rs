//! Reasons for refusals, as sent to the refused peer: no more than it may know.

use std::fmt;

use tradewind_grant::GrantError;

/// The reason why an overlay path or a conversation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// The grant does not cover the destination.
    NotGranted = 0,
    /// The refusing node's policy does not allow the destination.
    NotAllowed = 1,
    /// The refusing node's policy does not allow the next hop.
    NextHop = 2,
    /// The grant is not valid at the refusing node.
    Grant = 3,
    /// The clocks differ.
    Clock = 4,
    /// The refusing node is full.
    Full = 5,
    /// Another reason, found in the refusing node's log.
    Other = 6,
}

impl Refusal {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::NotGranted,
        Self::NotAllowed,
        Self::NextHop,
        Self::Grant,
        Self::Clock,
        Self::Full,
        Self::Other,
    ];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotGranted => "the grant does not cover the destination",
            Self::NotAllowed => "its policy does not allow the destination",
            Self::NextHop => "its policy does not allow the next hop",
            Self::Grant => {
                "the grant is not good there: it must be signed by whom that trusts, be in force, \
                 and list every relay"
            }
            Self::Clock => "the clocks differ by more than is tolerated",
            Self::Full => "it has no room for more",
            Self::Other => "its log tells why",
        })
    }
}

impl From<&GrantError> for Refusal {
    fn from(error: &GrantError) -> Self {
        match error {
            GrantError::DestinationNotGranted(_) => Self::NotGranted,
            GrantError::Denied(_)
            | GrantError::Forbidden { .. }
            | GrantError::UnnamedPrivate(_)
            | GrantError::Relay(_)
            | GrantError::LocalHost(_) => Self::NotAllowed,
            GrantError::UnknownKey(_)
            | GrantError::BadSignature(_)
            | GrantError::Revoked { .. }
            | GrantError::Expired { .. }
            | GrantError::WrongGateway { .. }
            | GrantError::RelayNotGranted(_) => Self::Grant,
            GrantError::NotYetValid { .. }
            | GrantError::Skew { .. }
            | GrantError::BeforeStart { .. } => Self::Clock,
            GrantError::ReplayTableFull(_) => Self::Full,
            _ => Self::Other,
        }
    }
}
