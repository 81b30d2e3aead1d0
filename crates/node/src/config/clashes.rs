//! Ports and devices that two sections claim.

use tradewind_net::listeners::{first_clash, of_both_families};

use super::*;

/// Refuses two sections of which one takes the other's port: the node's own, whose socket on `[::]`
/// takes IPv4 as well, and applications' ports.
pub(super) fn check_listeners(
    own: (Section, SocketAddr),
    ports: impl IntoIterator<Item = (Section, SocketAddr)>,
) -> Result<(), NodeError> {
    let own = of_both_families(own.1).map(|address| (own, address));
    let all = own.chain(ports.into_iter().map(|port| (port, port.1)));
    let Some([((other, taken), _), ((section, address), _)]) = first_clash(all) else {
        return Ok(());
    };
    let problem = format!(
        "{address} is listened on twice: {other} has {taken} already; expected another address or \
         port for one of them"
    );
    let error = NodeError::Config { key: "listen", problem };
    Err(NodeError::Section { section, error: error.into() })
}

impl NodeConfig {
    /// Checks that each TUN device belongs to one section.
    pub(super) fn check_devices(&self) -> Result<(), NodeError> {
        let of_paths = self.paths.iter().enumerate().filter_map(|(at, path)| match &path.source {
            TrafficSource::Tunnel(tunnel) => Some((at, tunnel)),
            TrafficSource::Port { .. } | TrafficSource::Taken(_) => None,
        });
        let mut names: BTreeSet<&String> = self.tunnel.iter().map(|tunnel| &tunnel.name).collect();
        for (at, Tunnel { name, .. }) in of_paths {
            if !names.insert(name) {
                let problem =
                    format!("`{name}` is there twice; expected a device for each section");
                let error = NodeError::Config { key: "tun.name", problem };
                return Err(self.sections.in_path(at, error));
            }
        }
        Ok(())
    }
}
