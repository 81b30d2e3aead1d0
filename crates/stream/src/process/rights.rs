//! The rights that a relay or gateway needs of the host beyond those of every user: the
//! capabilities that its configuration needs for the process's life.

use std::net::{Ipv4Addr, SocketAddr};

use tradewind_config::packet::{GatewayPackets, Intercepted, Path, TrafficSource};
use tradewind_config::{GatewayConfig, LegProfiles, RelayConfig, Tproxy};
use tradewind_desired::LegProfile;
use tradewind_grant::DestinationRule;
use tradewind_net::privileges::Capability;
use tradewind_net::{congestion, secret_file, sysctl};
use tradewind_units::Bytes;

use crate::StreamError;
use crate::error::refused;
use crate::failure::plain;

/// Ports below this take a capability, where the host does not say otherwise.
const FIRST_FREE_PORT: u16 = 1024;

/// Refuses a configuration, the `text` of `file`, that contains an identity and that others may
/// read.
///
/// # Errors
/// When others may read an identity in it.
pub fn check_readers(file: &std::path::Path, text: &str) -> Result<(), StreamError> {
    let table: toml::Table = text.parse().unwrap_or_default();
    let given = ["identity", "previous_identity"].into_iter().find(|key| table.contains_key(*key));
    let Some(key) = given else { return Ok(()) };
    let checked = file.metadata().and_then(|found| secret_file::check(&found));
    checked.map_err(|error| {
        refused(key, format!("{}, or give `{key}_file` in its place", plain(&error)))
    })
}

/// The capabilities that a process needs after its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// Those of the process.
    pub of_process: Vec<Capability>,
    /// Those of its workers.
    pub of_workers: Vec<Capability>,
}

impl Rights {
    /// Returns those of a relay.
    #[must_use]
    pub fn of_relay(config: &RelayConfig) -> Self {
        let streams = config.listen.iter().copied();
        let packets = config.packet.iter().map(|packet| packet.listen);
        Self::of(&Takes {
            listens: streams.chain(config.metrics).chain(packets).collect(),
            takes_packets: false,
            foreign: Vec::new(),
            legs: &config.leg,
            learns: config.jumpstart.is_some(),
            tproxy: &[],
        })
    }

    /// Returns those of a gateway.
    #[must_use]
    pub fn of_gateway(config: &GatewayConfig) -> Self {
        let forwards = config.forward.iter().map(|forward| forward.listen);
        let proxies = config.socks5.iter().chain(&config.connect).copied();
        let tproxies = config.tproxy.iter().flat_map(Tproxy::listeners);
        let streams = forwards.chain(proxies);
        // Its sections have been checked.
        let packets = config.packets().ok().flatten();
        let of_packets = packets.iter().flat_map(listeners);
        let takes_packets = packets.as_ref().is_some_and(takes_packets);
        let foreign = packets.iter().flat_map(foreign).collect();
        Self::of(&Takes {
            listens: streams.chain(config.metrics).chain(tproxies).chain(of_packets).collect(),
            takes_packets,
            foreign,
            legs: &config.leg,
            learns: config.jumpstart.is_some(),
            tproxy: &config.tproxy,
        })
    }

    fn of(takes: &Takes<'_>) -> Self {
        Self { of_process: takes.of_process(), of_workers: takes.of_workers() }
    }
}

/// The parts of a configuration that take rights.
struct Takes<'a> {
    listens: Vec<SocketAddr>,
    /// True if packets are intercepted, or delivered under foreign addresses.
    takes_packets: bool,
    /// The foreign addresses that packets are delivered or answered from.
    foreign: Vec<DestinationRule>,
    legs: &'a LegProfiles,
    learns: bool,
    tproxy: &'a [Tproxy],
}

impl Takes<'_> {
    fn of_process(&self) -> Vec<Capability> {
        let mut needed = self.of_workers();
        if self.listens.iter().any(|address| is_low(address.port())) {
            needed.push(Capability::NetBindService);
        }
        // Buffers beyond the host's limit, and the setting by which warm connections keep their
        // window.
        let tunes = self.profiles().any(|profile| {
            profile.send_buffer.is_some()
                || profile.receive_buffer.is_some()
                || profile.warm.is_some()
        });
        let restricted = self.profiles().any(is_restricted);
        let intercepts = !self.tproxy.is_empty() || self.takes_packets;
        if self.starts() || tunes || restricted || intercepts {
            needed.push(Capability::NetAdmin);
        }
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Capabilities of the sockets that workers make while they serve.
    fn of_workers(&self) -> Vec<Capability> {
        let mut needed = Vec::new();
        if self.foreign.iter().any(|rule| is_low(*rule.ports().start())) {
            needed.push(Capability::NetBindService);
        }
        let dials = || [&self.legs.dial].into_iter().chain(self.legs.to.iter().map(|to| &to.dial));
        if dials().any(|profile| is_restricted(profile) || exceeds_buffers(profile)) {
            needed.push(Capability::NetAdmin);
        }
        if !self.foreign.is_empty() || self.tproxy.iter().any(|tproxy| tproxy.local_output) {
            needed.push(Capability::NetRaw);
        }
        if self.starts() {
            needed.push(Capability::Bpf);
        }
        needed
    }

    fn profiles(&self) -> impl Iterator<Item = &LegProfile> {
        let to = self.legs.to.iter().map(|to| &to.dial);
        [&self.legs.accept, &self.legs.dial].into_iter().chain(to)
    }

    /// Returns true if the kernel starts connections with other windows than its own.
    fn starts(&self) -> bool {
        self.learns || self.profiles().any(|profile| profile.initial_window.is_some())
    }
}

/// Returns the addresses that a gateway's packet plane listens on.
fn listeners(packets: &GatewayPackets) -> impl Iterator<Item = SocketAddr> {
    let of_paths = packets.paths.iter().filter_map(|path| match &path.source {
        TrafficSource::Port { listen, .. } => Some(*listen),
        TrafficSource::Intercepted(Intercepted { port, .. }) => {
            Some((Ipv4Addr::LOCALHOST, *port).into())
        }
        TrafficSource::Tunnel(_) => None,
    });
    let of_groups = packets.groups.iter().map(|group| group.listen);
    let of_deposits = packets.rendezvous.deposits.iter().map(|deposits| deposits.listen);
    of_paths.chain(of_groups).chain(of_deposits).chain([packets.listen])
}

/// Returns true if packets are intercepted, or delivered under foreign addresses.
fn takes_packets(packets: &GatewayPackets) -> bool {
    let takes = |path: &Path| !matches!(path.source, TrafficSource::Port { .. });
    packets.tunnel.is_some()
        || !packets.preserve_source.is_empty()
        || packets.paths.iter().any(takes)
}

/// Returns the foreign addresses that packets are delivered or answered from.
fn foreign(packets: &GatewayPackets) -> impl Iterator<Item = DestinationRule> {
    let answers = packets.paths.iter().flat_map(|path| match &path.source {
        TrafficSource::Intercepted(Intercepted { destinations, .. }) => destinations.as_slice(),
        TrafficSource::Port { .. } | TrafficSource::Tunnel(_) => &[],
    });
    answers.chain(&packets.preserve_source).cloned()
}

fn is_low(port: u16) -> bool {
    (1..FIRST_FREE_PORT).contains(&port)
}

fn is_restricted(profile: &LegProfile) -> bool {
    profile.congestion_control.as_deref().is_some_and(congestion::is_restricted)
}

/// Returns true if its buffers exceed this host's limit for unprivileged users.
fn exceeds_buffers(profile: &LegProfile) -> bool {
    let exceeds = |wanted: Option<Bytes>, name: &str| {
        let most = || sysctl::get(name).ok()?.parse().ok();
        wanted.is_some_and(|wanted| most().is_none_or(|most: u64| wanted.as_u64() > most))
    };
    exceeds(profile.receive_buffer, "net.core.rmem_max")
        || exceeds(profile.send_buffer, "net.core.wmem_max")
}

#[cfg(test)]
mod tests {
    use tradewind_grant::IdentityKey;

    use super::*;

    fn relay(more: &str) -> Vec<Capability> {
        let key = IdentityKey::from_entropy([1; 32]).to_secret_text().to_string();
        let operator = tradewind_grant::OperatorKey::from_entropy([2; 32]).public();
        let text = format!("identity = '{key}'\noperators = ['{operator}']\n{more}");
        Rights::of_relay(&RelayConfig::parse(&text).unwrap()).of_process
    }

    #[test]
    fn relay_capabilities_follow_its_configuration() {
        use Capability::{Bpf, NetAdmin, NetBindService};
        let plain = "listen = ['0.0.0.0:7000']\n";
        assert_eq!(relay(plain), []);
        assert_eq!(relay("listen = ['0.0.0.0:443']\n"), [NetBindService]);
        assert_eq!(relay(&format!("{plain}[jumpstart]\n")), [NetAdmin, Bpf]);
        assert_eq!(relay(&format!("{plain}[leg.dial]\nwarm = 4\n")), [NetAdmin]);
        assert_eq!(
            relay(&format!("{plain}[leg.dial]\nprofile = 'quick-start'\n")),
            [NetAdmin, Bpf]
        );
        assert_eq!(relay(&format!("{plain}[packet]\nlisten = '0.0.0.0:53'\n")), [NetBindService]);
        let controlled =
            |name: &str| relay(&format!("{plain}[leg.dial]\ncongestion_control = '{name}'\n"));
        assert_eq!(controlled("reno"), []);
        assert_eq!(controlled("no_such"), [NetAdmin], "the kernel may load it for that");
    }

    #[test]
    fn intercepting_gateway_keeps_net_admin() {
        let of = |text: &str| Rights::of_gateway(&GatewayConfig::parse(text).unwrap()).of_process;
        let forward = "direct = true
            [[forward]]
            listen = '127.0.0.1:8000'
            to = '192.0.2.1:80'
            ";
        assert_eq!(of(forward), []);
        let tproxy = "direct = true\n[[tproxy]]\ndestinations = ['192.0.2.0/24:80']\n";
        assert_eq!(of(tproxy), [Capability::NetAdmin]);
        let both = [Capability::NetBindService, Capability::NetAdmin];
        assert_eq!(of(&format!("{tproxy}port = 1023\n")), both);
        assert_eq!(of(&format!("{tproxy}port = 1024\n")), [Capability::NetAdmin]);
        let remote = IdentityKey::from_entropy([4; 32]).public();
        let remote = format!("remote = {{ address = '192.0.2.9:7', identity = '{remote}' }}\n");
        let packets = |port: u16| {
            let tproxy = format!("{{ destinations = ['192.0.2.0/24:2000'], port = {port} }}");
            format!("{forward}[[packet]]\n{remote}tproxy = {tproxy}\n")
        };
        let raw = Capability::NetRaw;
        assert_eq!(of(&packets(1023)), [Capability::NetBindService, Capability::NetAdmin, raw]);
        assert_eq!(of(&packets(1024)), [Capability::NetAdmin, raw]);
        let tun = "tun = { name = 'tw0', destinations = ['10.2.0.0/16:*'] }";
        let tun = format!("{forward}[[packet]]\n{remote}{tun}\n");
        assert_eq!(of(&tun), [Capability::NetAdmin]);
    }

    #[test]
    fn workers_keep_what_their_sockets_take_alone() {
        use Capability::{Bpf, NetAdmin, NetBindService, NetRaw};
        let of = |more: &str| {
            let text = format!("direct = true\nsocks5 = ['127.0.0.1:0']\n{more}");
            let rights = Rights::of_gateway(&GatewayConfig::parse(&text).unwrap());
            (rights.of_process, rights.of_workers)
        };
        let tproxy = "[[tproxy]]\ndestinations = ['192.0.2.0/24:80']\n";
        assert_eq!(of(tproxy), (vec![NetAdmin], vec![]));
        let local_output = format!("{tproxy}local_output = true\n");
        assert_eq!(of(&local_output), (vec![NetAdmin, NetRaw], vec![NetRaw]));
        // Packets delivered from foreign addresses may bear low ports.
        let remote = |ports: &str| {
            of(&format!("[packet_endpoint]\npreserve_source = ['10.1.0.0/16:{ports}']\n"))
        };
        assert_eq!(remote("1024-65535"), (vec![NetAdmin, NetRaw], vec![NetRaw]));
        let low = [NetBindService, NetRaw].to_vec();
        assert_eq!(remote("*"), (vec![NetBindService, NetAdmin, NetRaw], low.clone()));
        let section = "[[packet]]\ntproxy = { destinations = ['192.0.2.0/24:53'] }\n";
        let identity = IdentityKey::from_entropy([4; 32]).public();
        let section =
            format!("{section}remote = {{ address = '192.0.2.9:7', identity = '{identity}' }}");
        assert_eq!(of(&section), (vec![NetBindService, NetAdmin, NetRaw], low));
        assert_eq!(of("[leg.dial]\nwarm = 4\n"), (vec![NetAdmin], vec![]));
        assert_eq!(of("[jumpstart]\n"), (vec![NetAdmin, Bpf], vec![Bpf]));
        let buffers = |bytes: u64| of(&format!("[leg.dial]\nsend_buffer = '{bytes} B'\n"));
        assert_eq!(buffers(4096), (vec![NetAdmin], vec![]));
        let most: u64 = sysctl::get("net.core.wmem_max").unwrap().parse().unwrap();
        assert_eq!(buffers(most + 1), (vec![NetAdmin], vec![NetAdmin]));
    }
}
