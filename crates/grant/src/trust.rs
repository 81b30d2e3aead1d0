//! The trusted operators. Accepted grants are checked again when these change.

use crate::{GrantError, OperatorPublicKey, Revocations, VerifiedGrant};

/// The operators whose grants are accepted, and their revocations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    operators: Vec<OperatorPublicKey>,
    revocations: Revocations,
}

impl Trust {
    /// Creates a trust in grants that `operators` have signed and not revoked.
    #[must_use]
    pub const fn new(operators: Vec<OperatorPublicKey>, revocations: Revocations) -> Self {
        Self { operators, revocations }
    }

    /// Returns the keys that verify grants.
    #[must_use]
    pub fn operators(&self) -> &[OperatorPublicKey] {
        &self.operators
    }

    /// Returns their revocations.
    #[must_use]
    pub const fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Checks that a grant whose signature was verified is still accepted.
    ///
    /// # Errors
    /// [`GrantError::UnknownKey`] when its operator is no longer trusted, or
    /// [`GrantError::Revoked`].
    pub fn check(&self, verified: &VerifiedGrant) -> Result<(), GrantError> {
        self.check_operator(verified)?;
        self.revocations.check(verified)
    }

    /// Checks that the operator of a grant is trusted.
    pub(crate) fn check_operator(&self, verified: &VerifiedGrant) -> Result<(), GrantError> {
        if self.operators.iter().any(|key| key.key_id() == verified.operator) {
            Ok(())
        } else {
            Err(GrantError::UnknownKey(verified.operator))
        }
    }
}

impl From<Vec<OperatorPublicKey>> for Trust {
    fn from(operators: Vec<OperatorPublicKey>) -> Self {
        Self::new(operators, Revocations::default())
    }
}
