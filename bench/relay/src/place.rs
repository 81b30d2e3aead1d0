//! The benchmark's network: three namespaces that end with this process.
//!
//! ```text
//! client 10.77.1.2 ---- 10.77.1.1 relay 10.77.2.1 ---- 10.77.2.2 server
//!        10.77.3.2 ------------------------------------ 10.77.3.1
//! ```
//! The lower pair is the bare path that a session takes without a relay.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use anyhow::Context;
use tradewind_net::iproute::{Tool, batch, require};
use tradewind_net::netns::Namespace;
use tradewind_net::sysctl;

/// The three namespaces.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) client: Arc<Namespace>,
    pub(crate) relay: Arc<Namespace>,
    pub(crate) server: Arc<Namespace>,
}

const RELAY_TO_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const SERVER_TO_RELAY: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 2);
const SERVER_TO_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 3, 1);

/// The address of the collector of traces, beside the server.
pub(crate) const COLLECTOR: SocketAddrV4 = SocketAddrV4::new(SERVER_TO_RELAY, 4318);

/// A service of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    /// Discards received bytes.
    Sink,
    /// Answers one short request and closes.
    Answer,
    /// Echoes received bytes.
    Echo,
    /// Answers an upload long before its end, and resets.
    Early,
}

impl Port {
    /// All services.
    pub(crate) const ALL: [Self; 4] = [Self::Sink, Self::Answer, Self::Echo, Self::Early];

    /// Returns the server's port of the service; the proxies listen on the same number.
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::Sink => 9001,
            Self::Answer => 9002,
            Self::Echo => 9003,
            Self::Early => 9004,
        }
    }

    /// Returns the server's address on the bare path.
    pub(crate) fn direct(self) -> SocketAddr {
        (SERVER_TO_CLIENT, self.number()).into()
    }

    /// Returns the server's address behind a relay.
    pub(crate) fn behind_relay(self) -> SocketAddr {
        (SERVER_TO_RELAY, self.number()).into()
    }

    /// Returns the address of a proxy that has one port for each destination.
    pub(crate) fn at_proxy(self) -> SocketAddr {
        (RELAY_TO_CLIENT, self.number()).into()
    }
}

/// Proxies of one kind in the longest row.
pub(crate) const IN_A_ROW: usize = 3;

/// Returns the address of our relay; of several in a row that of the first.
pub(crate) fn relay_address() -> SocketAddr {
    relay_in_row(0)
}

/// Returns the address of a relay in a row.
pub(crate) fn relay_in_row(place: usize) -> SocketAddr {
    in_row(7000, place)
}

/// Returns the address of a HAProxy in a row behind another one.
pub(crate) fn haproxy_in_row(place: usize) -> SocketAddr {
    in_row(8000, place)
}

/// Returns rules for all relays in a row.
pub(crate) fn relays_in_row() -> String {
    format!("{RELAY_TO_CLIENT}/32:{}-{}", relay_in_row(0).port(), relay_in_row(IN_A_ROW - 1).port())
}

fn in_row(first: u16, place: usize) -> SocketAddr {
    (RELAY_TO_CLIENT, first + u16::try_from(place).expect("few are in a row")).into()
}

impl Place {
    /// Creates the namespaces and joins them.
    pub(crate) fn new() -> anyhow::Result<Self> {
        require(Tool::Ip)?;
        let place = Self {
            client: Arc::new(Namespace::create()?),
            relay: Arc::new(Namespace::create()?),
            server: Arc::new(Namespace::create()?),
        };
        let (own, relay, server) = (std::process::id(), &place.relay, &place.server);
        let fd = |namespace: &Namespace| format!("/proc/{own}/fd/{}", namespace.as_raw_fd());
        let pair = |name: &str, other: &Namespace, peer: &str| {
            format!("link add {name} type veth peer name {peer} netns {}", fd(other))
        };
        let up = |device: &str, address: &str| {
            [format!("addr add {address}/24 dev {device}"), format!("link set {device} up")]
        };
        let join = |groups: &[[String; 2]]| {
            let mut lines = vec!["link set lo up".to_owned()];
            lines.extend(groups.iter().flatten().cloned());
            lines
        };
        batch(
            &place.client,
            Tool::Ip,
            &[pair("relay", relay, "client"), pair("server", server, "client")],
        )?;
        batch(relay, Tool::Ip, &[pair("server", server, "relay")])?;
        batch(
            &place.client,
            Tool::Ip,
            &join(&[up("relay", "10.77.1.2"), up("server", "10.77.3.2")]),
        )?;
        batch(relay, Tool::Ip, &join(&[up("client", "10.77.1.1"), up("server", "10.77.2.1")]))?;
        batch(server, Tool::Ip, &join(&[up("relay", "10.77.2.2"), up("client", "10.77.3.1")]))?;
        for namespace in [&place.client, relay, server] {
            namespace.run(prepare)?.context("prepare a namespace")?;
        }
        Ok(place)
    }
}

/// Prepares a namespace: many short connections need many ports, and reuse them soon. Congestion
/// control must not pace: on a path without delay that would measure timers. Every kernel allows
/// reno in every namespace.
fn prepare() -> anyhow::Result<()> {
    sysctl::set("net.ipv4.tcp_congestion_control", "reno")?;
    sysctl::set("net.ipv4.ip_local_port_range", "10000 65535")?;
    sysctl::set("net.ipv4.tcp_tw_reuse", "1")?;
    sysctl::set("net.core.somaxconn", "4096")?;
    Ok(())
}
