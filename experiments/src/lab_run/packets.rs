//! Relays and gateways that carry datagrams, as processes on hosts of the lab (docs/packet.md).

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tradewind_grant::{
    DestinationRule, IdentityKey, OperatorKey, PublicIdentity, Relays, SignedGrant, SourceRange,
};
use tradewind_units::time::as_text;
use tradewind_units::{Bandwidth, Duration, HostId};

use super::Ground;
use super::process::Service;
use super::service;
use crate::demo::DemoError;

/// Where relays and far gateways listen.
const PORT: u16 = 7001;
/// Where applications write to at a near gateway, and where a far one delivers.
const APPLICATIONS: u16 = 5004;
/// Gateways' TUN devices, one a host.
pub(crate) const DEVICE: &str = "tw-packets";
/// Whom relays send to: the lab's own range.
const HOSTS: &str = "10.200.0.0/16:*";

/// A relay or far gateway: where it listens, and who it is.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Stop {
    pub(crate) address: SocketAddr,
    pub(crate) identity: PublicIdentity,
}

/// Somebody to start, with its secret.
pub(crate) struct Party {
    pub(crate) host: HostId,
    key: IdentityKey,
    ip: IpAddr,
}

/// How relays code.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Coding {
    /// Repair packets for packets of several flows.
    pub(crate) cross_stream: [u8; 2],
    /// The same for packets of one.
    pub(crate) in_stream: [u8; 2],
    /// Whether flows of several gateways are coded together.
    pub(crate) across_gateways: bool,
}

/// A relay's configuration; that of docs/packet.md.
#[derive(Serialize)]
struct RelayText<'a> {
    listen: [SocketAddr; 1],
    identity_file: PathBuf,
    operators: [String; 1],
    packet: RelaySection<'a>,
}

#[derive(Serialize)]
struct RelaySection<'a> {
    listen: SocketAddr,
    workers: usize,
    relays: &'a [PublicIdentity],
    next_hops: [&'static str; 1],
    coding: Coding,
}

/// A gateway's.
#[derive(Serialize)]
struct GatewayText<'a> {
    identity_file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    grant: Option<SignedGrant>,
    packet_endpoint: EndpointSection<'a>,
    packet: Vec<FlowSection<'a>>,
}

#[derive(Serialize)]
struct EndpointSection<'a> {
    listen: SocketAddr,
    operators: Vec<String>,
    relays: &'a [PublicIdentity],
    destinations: Vec<String>,
    repeat_copies: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    uplink: Option<Bandwidth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<&'a Copies>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tun: Option<FarDevice>,
}

#[derive(Serialize)]
struct FlowSection<'a> {
    #[serde(flatten)]
    entrance: Entrance,
    far: Stop,
    relays: &'a [Stop],
    service: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<&'a Copies>,
}

/// Which packets are copied to the relays: those that one of these rules chooses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Copies {
    /// Those marked with one of these code points.
    pub(crate) dscp: Vec<u8>,
    /// Those that open a TCP connection, of packets that are taken whole.
    pub(crate) tcp_syn: bool,
    /// Those after which nothing follows for so long.
    #[serde(with = "as_text::option", skip_serializing_if = "Option::is_none")]
    pub(crate) last_after: Option<Duration>,
}

/// Where a near gateway's applications come in.
#[derive(Serialize)]
#[serde(untagged)]
enum Entrance {
    Port { listen: SocketAddr, to: SocketAddr },
    Device { tun: NearDevice },
    Way { tproxy: OwnDatagrams },
}

/// How the packets of a near gateway's host come to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taking {
    /// The application writes to its port.
    Port,
    /// Its datagrams are taken off their way.
    Tproxy,
    /// Its packets are routed into a device.
    Tun,
}

impl Taking {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Port => "UDP port",
            Self::Tproxy => "TPROXY",
            Self::Tun => "TUN",
        }
    }
}

#[derive(Serialize)]
struct OwnDatagrams {
    destinations: [DestinationRule; 1],
    own_host: bool,
}

#[derive(Serialize)]
struct NearDevice {
    name: &'static str,
    destinations: [DestinationRule; 1],
}

#[derive(Serialize)]
struct FarDevice {
    name: &'static str,
    sources: [DestinationRule; 1],
}

/// How a near gateway carries its flow.
pub(crate) struct Carriage<'a> {
    /// The service's name.
    pub(crate) service: &'a str,
    /// The relays, in order.
    pub(crate) relays: &'a [Stop],
    /// Where the flow ends.
    pub(crate) far: &'a Party,
    /// Whether copies that the access path loses are sent again.
    pub(crate) repeat_copies: bool,
    /// Its latency budget; the gateway's default when absent.
    pub(crate) budget: Option<Duration>,
    /// Which packets are copied; all when absent.
    pub(crate) copies: Option<&'a Copies>,
    /// What copies may take of the uplink; any when absent.
    pub(crate) uplink: Option<Bandwidth>,
}

/// A far gateway that takes all of a host's packets.
pub(crate) struct Whole<'a> {
    /// Whose.
    pub(crate) near: &'a Party,
    /// Which packets of the replies are copied; all when absent.
    pub(crate) replies: Option<&'a Copies>,
}

impl Party {
    /// Somebody new on `host`.
    ///
    /// # Errors
    /// When there is no such host, or no entropy.
    pub(crate) fn new(ground: &Ground, host: HostId) -> Result<Self, DemoError> {
        let key = IdentityKey::from_entropy(tradewind_net::entropy::bytes()?);
        let ip = IpAddr::V4(ground.lab.address_v4(&host)?);
        Ok(Self { host, key, ip })
    }

    /// Where it listens, and who it is.
    pub(crate) fn stop(&self) -> Stop {
        Stop { address: SocketAddr::new(self.ip, PORT), identity: self.key.public() }
    }

    /// Where its application listens, if it is a far gateway.
    pub(crate) fn application(&self) -> SocketAddr {
        SocketAddr::new(self.ip, APPLICATIONS)
    }

    /// Starts it as a relay that takes packets of gateways with the operator's grant, and of `neighbours`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn relay(
        &self,
        ground: &Ground,
        operator: &OperatorKey,
        neighbours: &[PublicIdentity],
        coding: Coding,
    ) -> Result<Service, DemoError> {
        let listen = self.stop().address;
        let packet = RelaySection {
            listen,
            // Flows that are to help each other must be on one worker.
            workers: 1,
            relays: neighbours,
            next_hops: [HOSTS],
            coding,
        };
        self.start(ground, "relay", |identity_file| RelayText {
            listen: [listen],
            identity_file,
            operators: [operator.public().to_string()],
            packet,
        })
    }

    /// Starts it as a far gateway, which delivers on its own host what comes over `relays`, or directly; of a host all packets, if it
    /// is told which.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn far_gateway(
        &self,
        ground: &Ground,
        operator: &OperatorKey,
        relays: &[PublicIdentity],
        whole: Option<Whole<'_>>,
    ) -> Result<Service, DemoError> {
        let copies = whole.as_ref().and_then(|whole| whole.replies);
        let tun = whole.map(|whole| FarDevice { name: DEVICE, sources: [whole.near.all()] });
        let packet_endpoint = EndpointSection {
            listen: self.stop().address,
            operators: vec![operator.public().to_string()],
            relays,
            // Its own host takes a rule of its own.
            destinations: vec![format!("{}/32:*", self.ip)],
            repeat_copies: true,
            uplink: None,
            copies,
            tun,
        };
        self.start(ground, "gateway", |identity_file| GatewayText {
            identity_file,
            grant: None,
            packet_endpoint,
            packet: Vec::new(),
        })
    }

    /// Starts it as a near gateway, to which packets of its host come by `taking`; returns where its application writes to.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn near_gateway(
        &self,
        ground: &Ground,
        operator: &OperatorKey,
        carriage: &Carriage<'_>,
        taking: Taking,
    ) -> Result<(Service, SocketAddr), DemoError> {
        let to = carriage.far.application();
        let port = SocketAddr::from(([127, 0, 0, 1], APPLICATIONS));
        let destinations = [carriage.far.all()];
        let (entrance, writes_to) = match taking {
            Taking::Port => (Entrance::Port { listen: port, to }, port),
            Taking::Tproxy => {
                let tproxy = OwnDatagrams { destinations, own_host: true };
                (Entrance::Way { tproxy }, to)
            }
            Taking::Tun => {
                (Entrance::Device { tun: NearDevice { name: DEVICE, destinations } }, to)
            }
        };
        Ok((self.near(ground, operator, carriage, entrance)?, writes_to))
    }

    /// All that is said to it.
    fn all(&self) -> DestinationRule {
        format!("{}/32:*", self.ip).parse().expect("a rule")
    }

    fn near(
        &self,
        ground: &Ground,
        operator: &OperatorKey,
        carriage: &Carriage<'_>,
        entrance: Entrance,
    ) -> Result<Service, DemoError> {
        let everywhere: Vec<DestinationRule> = vec![HOSTS.parse().expect("a rule")];
        let own = SourceRange::from(self.ip);
        let grant = service::grant(&self.key, Relays::Any, (everywhere, vec![own]), operator)?;
        let flow = FlowSection {
            entrance,
            far: carriage.far.stop(),
            relays: carriage.relays,
            service: carriage.service,
            budget: carriage.budget.map(|budget| format!("{} ms", budget.as_millis())),
            copies: carriage.copies,
        };
        let packet_endpoint = EndpointSection {
            listen: self.stop().address,
            operators: Vec::new(),
            relays: &[],
            destinations: Vec::new(),
            repeat_copies: carriage.repeat_copies,
            uplink: carriage.uplink,
            copies: None,
            tun: None,
        };
        self.start(ground, "gateway", |identity_file| GatewayText {
            identity_file,
            grant: Some(grant),
            packet_endpoint,
            packet: vec![flow],
        })
    }

    /// Starts the program as `role` with the configuration that `text` makes of the file with the secret.
    fn start<T: Serialize>(
        &self,
        ground: &Ground,
        role: &str,
        text: impl FnOnce(PathBuf) -> T,
    ) -> Result<Service, DemoError> {
        let name = format!("{role}-{}", self.host);
        let key = ground.scratch.write(&format!("{name}.key"), &self.key.to_secret_text())?;
        let config = toml::to_string(&text(key))?;
        let config = ground.scratch.write(&format!("{name}.toml"), &config)?;
        let mut command = ground.lab.command(&self.host, &ground.program)?;
        command.arg(role).arg("--config").arg(config);
        Ok(Service::start(command, &name, &ground.scratch)?.0)
    }
}
