//! Troubles that may last.

/// A trouble that may last: each reason is logged once.
#[derive(Debug, Default)]
pub(crate) struct Trouble(Option<String>);

impl Trouble {
    /// Logs a reason, unless it is the last one.
    pub(crate) fn say(&mut self, reason: String) {
        if self.0.as_ref() != Some(&reason) {
            tracing::warn!("{reason}");
            self.0 = Some(reason);
        }
    }
}
