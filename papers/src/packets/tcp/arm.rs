//! The carriers of files and their processes: relays and gateways, or kcptun.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tradewind_net::iproute::{Tool, ask};
use tradewind_units::HostId;

use super::Scenario;
use super::kcptun::{self, Tunnel};
use crate::harness::exchange::lab;
use crate::harness::packets::{Attachment, Carriage, Coding, Copies, DEVICE, Party, Whole};
use crate::harness::process::Service;
use crate::harness::{LabContext, ProcessError, ScenarioError, service};

/// Longest time until gateways intercept packets, and the interval of checks.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// A carrier of files other than plain TCP.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "ArmText")]
pub(super) struct Arm {
    pub(super) name: String,
    pub(super) kind: ArmKind,
    /// The reduction of the tail in the paper, in per cent, if stated.
    pub(super) paper_shorter_percent: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ArmKind {
    /// A packet service carries the connections' packets.
    Gateways(Overlay),
    /// Connections end at kcptun's client, and others begin at its server.
    Kcptun(kcptun::Settings),
}

/// The settings of gateways.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Overlay {
    pub(super) service: String,
    /// The clients' packets that are copied to the relays; `None` means all.
    pub(super) from_clients: Option<Copies>,
    /// The servers' packets that are copied to the relays; `None` means all.
    pub(super) from_servers: Option<Copies>,
}

/// The syntax of an arm: a service, or kcptun.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArmText {
    name: String,
    service: Option<String>,
    from_clients: Option<Copies>,
    from_servers: Option<Copies>,
    kcptun: Option<kcptun::Settings>,
    paper_shorter_percent: Option<f64>,
}

impl TryFrom<ArmText> for Arm {
    type Error = String;

    fn try_from(text: ArmText) -> Result<Self, String> {
        let ArmText { name, service, from_clients, from_servers, kcptun, paper_shorter_percent } =
            text;
        let kind = match (service, kcptun) {
            (Some(service), None) => {
                ArmKind::Gateways(Overlay { service, from_clients, from_servers })
            }
            (None, Some(settings)) if from_clients.is_none() && from_servers.is_none() => {
                ArmKind::Kcptun(settings)
            }
            _ => {
                return Err(format!(
                    "arm `{name}`: expected `service`, with copies or without, or `kcptun` alone"
                ));
            }
        };
        Ok(Self { name, kind, paper_shorter_percent })
    }
}

impl Arm {
    /// Returns whether its programs are installed.
    pub(super) fn is_possible(&self) -> bool {
        !self.is_peer() || kcptun::is_there()
    }

    /// Returns whether it is a foreign program, whose figures serve for comparison.
    pub(super) const fn is_peer(&self) -> bool {
        matches!(self.kind, ArmKind::Kcptun(_))
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// When a setting is out of range.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        match &self.kind {
            ArmKind::Gateways(_) => Ok(()),
            ArmKind::Kcptun(settings) => settings.check(),
        }
    }
}

/// The processes of an arm; they end when it is dropped.
#[derive(Default)]
pub(super) struct Carriers {
    _services: Vec<Service>,
    tunnels: Vec<Tunnel>,
}

impl Carriers {
    /// Starts the processes of `arm`.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub(super) fn start(
        scenario: &Scenario,
        context: &LabContext,
        ends: &[(Party, Party)],
        arm: Option<&Arm>,
    ) -> Result<Self, ProcessError> {
        match arm.map(|arm| &arm.kind) {
            None => Ok(Self::default()),
            Some(ArmKind::Gateways(overlay)) => {
                let services = start(scenario, context, ends, overlay)?;
                Ok(Self { _services: services, tunnels: Vec::new() })
            }
            Some(ArmKind::Kcptun(settings)) => {
                let tunnel = |(client, server): &(Party, Party)| {
                    context.stop.check()?;
                    Tunnel::start(context, (client, server), settings)
                };
                let tunnels = ends.iter().map(tunnel).collect::<Result<_, _>>()?;
                Ok(Self { _services: Vec::new(), tunnels })
            }
        }
    }

    /// Returns the address that a client dials for its server's files.
    pub(super) fn dial_address(&self, server: &Party) -> SocketAddr {
        if self.tunnels.is_empty() { server.application() } else { Tunnel::listener() }
    }

    /// Checks that kcptun is still running.
    ///
    /// # Errors
    /// When it has ended by itself, which makes files fail.
    pub(super) fn check(&mut self) -> Result<(), ProcessError> {
        self.tunnels.iter_mut().try_for_each(Tunnel::check)
    }
}

/// Starts the relays and each pair's gateways, and waits until these intercept packets.
fn start(
    scenario: &Scenario,
    context: &LabContext,
    ends: &[(Party, Party)],
    overlay: &Overlay,
) -> Result<Vec<Service>, ProcessError> {
    let operator = service::operator()?;
    let coding = Coding {
        cross_stream: scenario.cross_stream,
        in_stream: scenario.in_stream,
        across_gateways: true,
    };
    let party = |name: &str| Party::new(context, HostId::new(name.to_owned())?);
    let (near, remote) = (party("near")?, party("remote")?);
    let relays = [near.stop(), remote.stop()];
    let mut services = vec![
        near.relay(context, &operator, &[relays[1].identity], coding)?,
        remote.relay(context, &operator, &[relays[0].identity], coding)?,
    ];
    for (client, server) in ends {
        context.stop.check()?;
        let last = [relays[1].identity];
        let whole = Whole { near: client, replies: overlay.from_servers.as_ref() };
        services.push(server.remote_gateway(context, &operator, &last, Some(whole))?);
        let carriage = Carriage {
            service: &overlay.service,
            relays: &relays,
            remote: server,
            repeat_copies: true,
            budget: None,
            copies: overlay.from_clients.as_ref(),
            uplink: None,
        };
        services.push(client.near_gateway(context, &operator, &carriage, Attachment::Tun)?.0);
    }
    let begun = Instant::now();
    for (client, server) in ends {
        wait_for_route(context, client, server, begun)?;
    }
    Ok(services)
}

/// Waits until a client's packets to its server are routed into the gateway's device.
fn wait_for_route(
    context: &LabContext,
    client: &Party,
    server: &Party,
    begun: Instant,
) -> Result<(), ProcessError> {
    let to = server.application().ip().to_string();
    let route = || ask(Tool::Ip, &["route", "get", &to]);
    while !context.lab.enter(&client.host, route)?.map_err(lab)?.contains(DEVICE) {
        context.stop.check()?;
        if begun.elapsed() > TRANSFER_TIMEOUT {
            let why =
                format!("its device has taken no packets for {} s", TRANSFER_TIMEOUT.as_secs());
            return Err(ProcessError::Program { name: format!("gateway-{}", client.host), why });
        }
        thread::sleep(LOOK);
    }
    Ok(())
}
