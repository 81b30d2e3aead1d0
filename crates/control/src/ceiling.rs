//! The ceiling of a host: the most that its owner allows any controller. The agent refuses a
//! document beyond it, so that a stolen controller makes no open relay of the host.

use serde::{Deserialize, Serialize};
use tradewind_grant::DestinationRule;

/// The most that a host's owner allows: the file `ceiling.toml` of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// Destinations that a relay or a gateway here may dial for others.
    pub destinations: Vec<DestinationRule>,
    /// Relays that a relay here may dial.
    pub next_hops: Vec<DestinationRule>,
    /// The roles that it may run: `relay`, `gateway`.
    pub roles: Vec<String>,
}
