//! The carriers of a call and their processes.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;
use tradewind_units::HostId;

use super::scenario::Scenario;
use super::shield::Shield;
use crate::harness::listeners::{Port, listens};
use crate::harness::packets::{Attachment, Carriage, Coding, Party};
use crate::harness::process::{Service, is_installed};
use crate::harness::{LabContext, ProcessError, round_trip, service};
use crate::packets::traffic::Pair;

/// SRT's own program, for comparison.
const SRT: &str = "srt-live-transmit";
/// The ports at which it listens for its peer, and for an application.
const SRT_PORT: u16 = 7001;
const APPLICATION_PORT: u16 = 5004;
/// The silence that its ends tolerate, longer than any outage here.
const SRT_IDLE_MS: u32 = 120_000;
/// The smallest latency that it supports.
const MIN_SRT_LATENCY: Duration = Duration::from_millis(20);
/// The number of flows of a call's group, including the call: k of [JQ 5.3].
pub(super) const FLOWS: usize = 4;

/// A carrier of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Arm {
    /// The Internet path alone.
    Direct,
    /// The Internet path, with each packet twice.
    Duplication,
    /// The Internet path, with repair packets for the call alone.
    Fec,
    /// The Internet path with SRT, which requests retransmissions.
    Srt,
    /// Lost packets are fetched from the egress relay.
    Caching,
    /// Lost packets are recovered by coding.
    Coding,
    /// Coding with more repair packets than in the paper.
    CodingMore,
    /// Every packet is also sent over the relays.
    Forwarding,
}

impl Arm {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Duplication => "duplication on the direct path",
            Self::Fec => "FEC on the direct path",
            Self::Srt => "SRT on the direct path",
            Self::Caching => "caching",
            Self::Coding => "coding",
            Self::CodingMore => "coding with more repair packets",
            Self::Forwarding => "forwarding",
        }
    }

    /// Returns whether its programs are installed.
    pub(super) fn is_possible(self) -> bool {
        self != Self::Srt || is_installed(SRT)
    }

    /// Returns the protection by the call's own ends.
    pub(super) fn shield(self, scenario: &Scenario) -> Shield {
        match self {
            Self::Duplication => Shield::Twice,
            Self::Fec => Shield::Repairs(scenario.fec),
            Self::Direct
            | Self::Srt
            | Self::Caching
            | Self::Coding
            | Self::CodingMore
            | Self::Forwarding => Shield::None,
        }
    }

    /// Returns the gateways' service, and whether it uses relays.
    const fn service(self) -> (&'static str, bool) {
        match self {
            Self::Direct | Self::Duplication | Self::Fec | Self::Srt => ("direct", false),
            Self::Caching => ("caching", true),
            Self::Coding | Self::CodingMore => ("coding", true),
            Self::Forwarding => ("forwarding", true),
        }
    }
}

/// A group of flows between the same relays, the first of which is a call.
pub(super) struct Group {
    _services: Vec<Service>,
    /// The address to which the call's sender writes.
    pub(super) listener: SocketAddr,
    /// The address of its receiver.
    pub(super) exit: SocketAddr,
    /// The other flows.
    pub(super) beside: Vec<Pair>,
}

/// The ends of one flow of a group.
struct FlowEnds {
    near: HostId,
    /// The address to which the sender writes.
    listener: SocketAddr,
    /// The address of the receiver.
    exit: SocketAddr,
    remote: HostId,
}

/// Returns a host of a group.
///
/// # Errors
/// When the name is malformed.
pub(super) fn host(group: &str, name: &str) -> Result<HostId, ProcessError> {
    Ok(HostId::new(format!("{group}-{name}"))?)
}

/// Returns all hosts of a group.
pub(super) fn hosts(group: &str) -> Result<Vec<HostId>, ProcessError> {
    let ends = (0..FLOWS).flat_map(|flow| [format!("s{flow}"), format!("r{flow}")]);
    let relays = ["in", "out"].map(str::to_owned);
    ends.chain(relays).map(|name| host(group, &name)).collect()
}

/// Starts the processes of a group.
///
/// # Errors
/// When a process cannot be started.
pub(super) fn start(
    context: &LabContext,
    scenario: &Scenario,
    group: &str,
    arm: Arm,
) -> Result<Group, ProcessError> {
    if arm == Arm::Srt {
        return start_srt(context, scenario, group);
    }
    let operator = service::operator()?;
    let party = |name: &str| Party::new(context, host(group, name)?);
    let (service, takes_relays) = arm.service();
    let (mut services, mut relays) = (Vec::new(), Vec::new());
    if takes_relays {
        let coding = Coding {
            cross_stream: match arm {
                Arm::CodingMore => scenario.cross_stream_more,
                _ => scenario.cross_stream,
            },
            in_stream: scenario.in_stream,
            across_gateways: true,
        };
        let (ingress, egress) = (party("in")?, party("out")?);
        services.push(ingress.relay(context, &operator, &[], coding)?);
        services.push(egress.relay(context, &operator, &[ingress.stop().identity], coding)?);
        relays = vec![ingress.stop(), egress.stop()];
    }
    let last: Vec<_> = relays.last().map(|relay| relay.identity).into_iter().collect();
    let mut ends = Vec::new();
    for flow in 0..if takes_relays { FLOWS } else { 1 } {
        let (near, remote) = (party(&format!("s{flow}"))?, party(&format!("r{flow}"))?);
        services.push(remote.remote_gateway(context, &operator, &last, None)?);
        let budget = Some(scenario.budget());
        let carriage = Carriage {
            service,
            relays: &relays,
            remote: &remote,
            repeat_copies: true,
            budget,
            copies: None,
            uplink: None,
        };
        let (gateway, listener) =
            near.near_gateway(context, &operator, &carriage, Attachment::Port)?;
        services.push(gateway);
        let exit = remote.application();
        ends.push(FlowEnds { near: near.host, listener, exit, remote: remote.host });
    }
    let FlowEnds { listener, exit, .. } = ends.remove(0);
    let pair = |ends: &FlowEnds| {
        let (sender, receiver) = ((&ends.near, ends.listener), (&ends.remote, ends.exit));
        Pair::open(context, sender, receiver, Duration::ZERO)
    };
    let beside = ends.iter().map(pair).collect::<Result<_, _>>()?;
    Ok(Group { _services: services, listener, exit, beside })
}

/// Starts SRT between a call's ends. According to its manual it holds a packet for its latency
/// beyond the path's delay; the latency is chosen so that both add up to the call's budget less a
/// margin.
fn start_srt(
    context: &LabContext,
    scenario: &Scenario,
    group: &str,
) -> Result<Group, ProcessError> {
    let (near, remote) = (host(group, "s0")?, host(group, "r0")?);
    let one_way = round_trip(context.lab.topology(), &near, &remote) / 2;
    let latency = scenario.budget().saturating_sub(one_way + scenario.srt_margin());
    let latency = latency.max(MIN_SRT_LATENCY).as_millis();
    let options = format!("latency={latency}&peeridletimeo={SRT_IDLE_MS}");
    let to = SocketAddr::new(context.lab.address_v4(&remote)?.into(), SRT_PORT);
    let exit = SocketAddr::new(to.ip(), APPLICATION_PORT);
    let start = |host: &HostId, from: &str, to: &str, port| {
        let mut command = context.lab.command(host, SRT)?;
        command.args(["-quiet", from, to]);
        let name = format!("srt-{host}");
        let is_ready = || listens(context, host, Port::Udp(port));
        Service::start_listening(command, &name, &context.scratch, is_ready)
    };
    let listen = format!("srt://:{SRT_PORT}?mode=listener&{options}");
    let dial = format!("srt://{to}?mode=caller&{options}");
    let receiver = start(&remote, &listen, &format!("udp://{exit}"), SRT_PORT)?;
    let sender = start(&near, &format!("udp://:{APPLICATION_PORT}"), &dial, APPLICATION_PORT)?;
    let listener = (Ipv4Addr::LOCALHOST, APPLICATION_PORT).into();
    Ok(Group { _services: vec![receiver, sender], listener, exit, beside: Vec::new() })
}
