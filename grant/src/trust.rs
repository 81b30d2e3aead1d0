//! Whose grants are believed. What was believed once is asked again when that changes.

use crate::{GrantError, OperatorPublicKey, Revocations, VerifiedGrant};

/// The operators whose grants are believed, and what they have revoked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust {
    operators: Vec<OperatorPublicKey>,
    revocations: Revocations,
}

impl Trust {
    /// Believes what `operators` have signed and not revoked.
    #[must_use]
    pub const fn new(operators: Vec<OperatorPublicKey>, revocations: Revocations) -> Self {
        Self { operators, revocations }
    }

    /// The keys by which grants are checked.
    #[must_use]
    pub fn operators(&self) -> &[OperatorPublicKey] {
        &self.operators
    }

    /// What they have revoked.
    #[must_use]
    pub const fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Checks that a grant whose signature was found true is still believed.
    ///
    /// # Errors
    /// [`GrantError::UnknownKey`] when its operator is trusted no more, or [`GrantError::Revoked`].
    pub fn check(&self, verified: &VerifiedGrant) -> Result<(), GrantError> {
        self.check_operator(verified)?;
        self.revocations.check(verified)
    }

    /// Checks that whoever signed a grant is trusted.
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
