//! Ports and devices that two sections claim.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::Tunnel;
use crate::ConfigError;
use crate::listeners::{first_clash, of_both_families};

/// Refuses two sections of which one takes the other's port: the node's own, whose socket on `[::]`
/// takes IPv4 as well, and applications' ports, by their keys.
pub(super) fn check_listeners(
    own: (String, SocketAddr),
    ports: impl IntoIterator<Item = (String, SocketAddr)>,
) -> Result<(), ConfigError> {
    let own = of_both_families(own.1).map(|address| ((own.0.clone(), own.1), address));
    let all = own.chain(ports.into_iter().map(|port| (port.clone(), port.1)));
    let Some([((other, used), _), ((key, address), _)]) = first_clash(all) else {
        return Ok(());
    };
    let problem = format!(
        "{address} is listened on twice: `{other}` has {used} already; expected another address \
         or port for one of them"
    );
    Err(ConfigError::new(key, problem))
}

/// Refuses a TUN device that two sections claim; each is given with its key.
///
/// # Errors
/// The device's name, at the later key.
pub fn check_devices<'a>(
    devices: impl IntoIterator<Item = (String, &'a Tunnel)>,
) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    let mut devices = devices.into_iter();
    devices.find(|(_, tunnel)| !names.insert(&tunnel.name)).map_or(Ok(()), |(key, tunnel)| {
        let name = &tunnel.name;
        let problem = format!("`{name}` is there twice; expected a device for each section");
        Err(ConfigError::new(format!("{key}.name"), problem))
    })
}
