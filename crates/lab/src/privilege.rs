//! Acquiring the privilege to create networks.

use tradewind_net::iproute::{self, Tool};
use tradewind_net::netns::Namespace;
use tradewind_net::{capability, userns};

use crate::error::LabError;

/// The privilege with which this process creates its networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The process had the privilege.
    Privileged,
    /// The process moved into a user namespace of its own, in which it has the privilege.
    UserNamespace,
}

/// Makes sure that this process may create networks, by moving into a user namespace if needed.
/// Must be called first in `main`, before any thread is started.
///
/// # Errors
/// When the process lacks the privilege and the kernel allows no user namespace.
pub fn acquire() -> Result<Standing, LabError> {
    if capability::may_make_networks() {
        return Ok(Standing::Privileged);
    }
    userns::become_root_inside()?;
    // A new network has its loopback down, by which this process may reach itself.
    iproute::batch(&Namespace::of_this_thread()?, Tool::Ip, &["link set lo up".to_owned()])?;
    Ok(Standing::UserNamespace)
}
