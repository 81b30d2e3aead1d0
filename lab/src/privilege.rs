//! Becoming somebody who may make networks.

use tradewind_net::{capability, userns};

use crate::error::LabError;

/// In what standing this process makes its networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It had the rights.
    Privileged,
    /// It moved into a user namespace of its own, in which it has them.
    UserNamespace,
}

/// Makes sure that this process may make networks: it does already, or it moves into a user
/// namespace. To be called first in `main`, before any thread is started.
///
/// # Errors
/// When it may not, and the kernel allows no user namespace.
pub fn acquire() -> Result<Standing, LabError> {
    if capability::may_make_networks() {
        return Ok(Standing::Privileged);
    }
    userns::become_root_inside()?;
    Ok(Standing::UserNamespace)
}
