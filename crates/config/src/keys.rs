//! A process's secret identities: files, or the text itself.

use std::path::Path;

use serde::Deserialize as _;
use tradewind_grant::IdentityKey;

use crate::ConfigError;

pub(crate) fn identity_text<'de, D: serde::Deserializer<'de>>(
    text: D,
) -> Result<Option<IdentityKey>, D::Error> {
    String::deserialize(text)?.parse().map(Some).map_err(serde::de::Error::custom)
}

/// An identity: the file that holds it, or the identity itself.
pub type KeySource<'a> = (Option<&'a Path>, Option<&'a IdentityKey>);

/// The secret identities of a process.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    /// The present one.
    pub present: KeySource<'a>,
    /// The one before, during a rotation.
    pub previous: KeySource<'a>,
}

impl Keys<'_> {
    /// Refuses an identity that is given twice, and a previous one without a present one.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for (key, source) in [("identity", self.present), ("previous_identity", self.previous)] {
            if matches!(source, (Some(_), Some(_))) {
                return Err(ConfigError::new(key, format!("give either `{key}_file` or `{key}`")));
            }
        }
        if is_given(self.previous) && !is_given(self.present) {
            let problem = "missing beside `previous_identity_file`";
            return Err(ConfigError::new("identity_file", problem));
        }
        Ok(())
    }
}

const fn is_given(source: KeySource<'_>) -> bool {
    source.0.is_some() || source.1.is_some()
}
