//! Relays and gateways that carry datagrams, as processes on hosts of the lab
//! (docs/reference/packets.md).

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tradewind_grant::{
    DestinationRule, IdentityKey, OperatorKey, PublicIdentity, Relays, SignedGrant, SourceRange,
};
use tradewind_units::time::as_text;
use tradewind_units::{Bandwidth, Duration, HostId};

use super::LabContext;
use super::process::Service;
use super::service;
use super::{ProcessError, unusable};

/// The port of relays and remote gateways.
const PORT: u16 = 7001;
/// The port to which applications write at a local gateway, and to which a remote one delivers.
const APPLICATIONS: u16 = 5004;
/// The name of gateways' TUN devices, one per host.
pub(crate) const DEVICE: &str = "tw-packets";
/// The destinations to which relays may send: the lab's own range.
const HOSTS: &str = "10.200.0.0/16:*";

/// The address and the identity of a relay or remote gateway.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Stop {
    pub(crate) address: SocketAddr,
    pub(crate) identity: PublicIdentity,
}

/// A relay or gateway to start, with its secret key.
pub(crate) struct Party {
    pub(crate) host: HostId,
    key: IdentityKey,
    ip: IpAddr,
}

/// The coding of relays.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Coding {
    /// Repair packets for packets of several flows.
    pub(crate) cross_stream: [u8; 2],
    /// Repair packets for packets of one flow.
    pub(crate) in_stream: [u8; 2],
    /// `true` when flows of several gateways are coded together.
    pub(crate) across_gateways: bool,
}

/// A relay's configuration, as in docs/reference/packets.md.
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

/// A gateway's configuration.
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
    tun: Option<RemoteDevice>,
}

#[derive(Serialize)]
struct FlowSection<'a> {
    #[serde(flatten)]
    attachment: AttachmentSection,
    remote: Stop,
    relays: &'a [Stop],
    service: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copies: Option<&'a Copies>,
}

/// The packets that are copied to the relays: those that match any of these rules.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Copies {
    /// Packets marked with one of these code points.
    pub(crate) dscp: Vec<u8>,
    /// Packets that open a TCP connection, where whole packets are carried (TUN).
    pub(crate) tcp_syn: bool,
    /// Packets after which nothing follows for this time.
    #[serde(with = "as_text::option", skip_serializing_if = "Option::is_none")]
    pub(crate) last_after: Option<Duration>,
}

/// The attachment of applications to a local gateway.
#[derive(Serialize)]
#[serde(untagged)]
enum AttachmentSection {
    Port { listen: SocketAddr, to: SocketAddr },
    Device { tun: NearDevice },
    Tproxy { tproxy: OwnDatagrams },
}

/// The method by which packets of a local gateway's host reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// The application writes to the gateway's port.
    Port,
    /// The application's datagrams are intercepted.
    Tproxy,
    /// The packets are routed into a device.
    Tun,
}

impl Attachment {
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
    local_output: bool,
}

#[derive(Serialize)]
struct NearDevice {
    name: &'static str,
    destinations: [DestinationRule; 1],
}

#[derive(Serialize)]
struct RemoteDevice {
    name: &'static str,
    sources: [DestinationRule; 1],
}

/// The settings of a local gateway for its flow.
pub(crate) struct Carriage<'a> {
    /// The service's name.
    pub(crate) service: &'a str,
    /// The relays, in order.
    pub(crate) relays: &'a [Stop],
    /// The remote end of the flow.
    pub(crate) remote: &'a Party,
    /// `true` when copies lost on the access path are sent again.
    pub(crate) repeat_copies: bool,
    /// Its latency budget; `None` means the gateway's default.
    pub(crate) budget: Option<Duration>,
    /// The packets that are copied; `None` means all.
    pub(crate) copies: Option<&'a Copies>,
    /// The share of the uplink for copies; `None` means no limit.
    pub(crate) uplink: Option<Bandwidth>,
}

/// The settings of a remote gateway for all packets of a host.
pub(crate) struct Whole<'a> {
    /// The host.
    pub(crate) near: &'a Party,
    /// The packets of the replies that are copied; `None` means all.
    pub(crate) replies: Option<&'a Copies>,
}

impl Party {
    /// Creates a party on `host`.
    ///
    /// # Errors
    /// When the host does not exist, or the system has no entropy.
    pub(crate) fn new(context: &LabContext, host: HostId) -> Result<Self, ProcessError> {
        let key = IdentityKey::from_entropy(tradewind_net::entropy::bytes()?);
        let ip = IpAddr::V4(context.lab.address_v4(&host)?);
        Ok(Self { host, key, ip })
    }

    /// Returns its address and identity.
    pub(crate) fn stop(&self) -> Stop {
        Stop { address: SocketAddr::new(self.ip, PORT), identity: self.key.public() }
    }

    /// Returns the address of its application, for a remote gateway.
    pub(crate) fn application(&self) -> SocketAddr {
        SocketAddr::new(self.ip, APPLICATIONS)
    }

    /// Starts it as a relay that accepts packets of gateways with the operator's grant, and of
    /// `neighbours`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn relay(
        &self,
        context: &LabContext,
        operator: &OperatorKey,
        neighbours: &[PublicIdentity],
        coding: Coding,
    ) -> Result<Service, ProcessError> {
        let listen = self.stop().address;
        let packet = RelaySection {
            listen,
            // Flows that are coded together must be on one worker.
            workers: 1,
            relays: neighbours,
            next_hops: [HOSTS],
            coding,
        };
        self.start(context, "relay", |identity_file| RelayText {
            listen: [listen],
            identity_file,
            operators: [operator.public().to_string()],
            packet,
        })
    }

    /// Starts it as a remote gateway, which delivers on its own host the packets that arrive over
    /// `relays` or directly; with `whole`, it accepts all packets of that host through a TUN
    /// device.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn remote_gateway(
        &self,
        context: &LabContext,
        operator: &OperatorKey,
        relays: &[PublicIdentity],
        whole: Option<Whole<'_>>,
    ) -> Result<Service, ProcessError> {
        let copies = whole.as_ref().and_then(|whole| whole.replies);
        let tun = whole.map(|whole| RemoteDevice { name: DEVICE, sources: [whole.near.all()] });
        let packet_endpoint = EndpointSection {
            listen: self.stop().address,
            operators: vec![operator.public().to_string()],
            relays,
            // Its own host needs a rule of its own.
            destinations: vec![format!("{}/32:*", self.ip)],
            repeat_copies: true,
            uplink: None,
            copies,
            tun,
        };
        self.start(context, "gateway", |identity_file| GatewayText {
            identity_file,
            grant: None,
            packet_endpoint,
            packet: Vec::new(),
        })
    }

    /// Starts it as a local gateway that gets the packets of its host by `attachment`; returns the
    /// address to which the application writes.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn near_gateway(
        &self,
        context: &LabContext,
        operator: &OperatorKey,
        carriage: &Carriage<'_>,
        attachment: Attachment,
    ) -> Result<(Service, SocketAddr), ProcessError> {
        let to = carriage.remote.application();
        let port = SocketAddr::from(([127, 0, 0, 1], APPLICATIONS));
        let destinations = [carriage.remote.all()];
        let (attachment, writes_to) = match attachment {
            Attachment::Port => (AttachmentSection::Port { listen: port, to }, port),
            Attachment::Tproxy => {
                let tproxy = OwnDatagrams { destinations, local_output: true };
                (AttachmentSection::Tproxy { tproxy }, to)
            }
            Attachment::Tun => {
                (AttachmentSection::Device { tun: NearDevice { name: DEVICE, destinations } }, to)
            }
        };
        Ok((self.near(context, operator, carriage, attachment)?, writes_to))
    }

    /// Returns the rule for all traffic to it.
    fn all(&self) -> DestinationRule {
        format!("{}/32:*", self.ip).parse().expect("a rule")
    }

    fn near(
        &self,
        context: &LabContext,
        operator: &OperatorKey,
        carriage: &Carriage<'_>,
        attachment: AttachmentSection,
    ) -> Result<Service, ProcessError> {
        let everywhere: Vec<DestinationRule> = vec![HOSTS.parse().expect("a rule")];
        let own = SourceRange::from(self.ip);
        let grant = service::grant(&self.key, Relays::Any, (everywhere, vec![own]), operator)?;
        let flow = FlowSection {
            attachment,
            remote: carriage.remote.stop(),
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
        self.start(context, "gateway", |identity_file| GatewayText {
            identity_file,
            grant: Some(grant),
            packet_endpoint,
            packet: vec![flow],
        })
    }

    /// Starts the program as `role` with the configuration that `text` builds from the key file's
    /// path.
    fn start<T: Serialize>(
        &self,
        context: &LabContext,
        role: &str,
        text: impl FnOnce(PathBuf) -> T,
    ) -> Result<Service, ProcessError> {
        let name = format!("{role}-{}", self.host);
        let key = context.scratch.write(&format!("{name}.key"), &self.key.to_secret_text())?;
        let config = toml::to_string(&text(key));
        let config = config.map_err(|error| unusable("configuration", &error))?;
        let config = context.scratch.write(&format!("{name}.toml"), &config)?;
        let mut command = context.lab.command(&self.host, &context.program)?;
        command.arg(role).arg("--config").arg(config);
        Ok(Service::start(command, &name, &context.scratch)?.0)
    }
}
