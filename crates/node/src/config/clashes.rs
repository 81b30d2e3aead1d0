//! Ports and devices that two sections want.

use tradewind_net::listeners::first_clash;

use super::*;

impl NodeConfig {
    /// Each port is of one section.
    pub(super) fn check_listeners(&self) -> Result<(), NodeError> {
        let of_paths = self.paths.iter().filter_map(|path| match &path.entrance {
            Entrance::Port { listen, .. } => Some(*listen),
            Entrance::Tunnel(_) | Entrance::Taken(_) => None,
        });
        let of_groups = self.groups.iter().map(|group| group.listen);
        let of_deposits = self.rendezvous.deposits.iter().map(|deposits| deposits.listen);
        let sections = of_paths.chain(of_groups).chain(of_deposits);
        let listeners = std::iter::once(("packet_endpoint.listen", self.listen))
            .chain(sections.map(|listen| ("packet.listen", listen)));
        let Some([(other, taken), (key, address)]) = first_clash(listeners) else {
            return Ok(());
        };
        let problem = format!(
            "{address} is listened on twice: `{other}` has {taken} already; expected another \
             address or port for one of them"
        );
        Err(NodeError::Config { key, problem })
    }

    /// Each TUN device is of one section.
    pub(super) fn check_devices(&self) -> Result<(), NodeError> {
        let of_paths = self.paths.iter().filter_map(|path| match &path.entrance {
            Entrance::Tunnel(tunnel) => Some(tunnel),
            Entrance::Port { .. } | Entrance::Taken(_) => None,
        });
        let mut names = BTreeSet::new();
        match of_paths.chain(&self.tunnel).find(|tunnel| !names.insert(&tunnel.name)) {
            None => Ok(()),
            Some(Tunnel { name, .. }) => {
                let problem =
                    format!("`{name}` is there twice; expected a device for each section");
                Err(NodeError::Config { key: "tun.name", problem })
            }
        }
    }
}
