//! The ways in which a call is carried, and what must run for each.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;
use tradewind_units::HostId;

use super::scenario::Scenario;
use super::shield::Shield;
use crate::demo::DemoError;
use crate::lab_run::listeners::{Port, listens};
use crate::lab_run::packets::{Carriage, Coding, Party, Taking};
use crate::lab_run::process::{Service, is_installed};
use crate::lab_run::{Ground, round_trip, service};
use crate::packets::traffic::Pair;

/// SRT's own program, to which ours are compared.
const SRT: &str = "srt-live-transmit";
/// Where it listens for its like, and for an application.
const SRT_PORT: u16 = 7001;
const APPLICATION_PORT: u16 = 5004;
/// How long its ends bear silence: longer than any outage here.
const SRT_IDLE_MS: u32 = 120_000;
/// Less patience than this it cannot use.
const LEAST_SRT_LATENCY: Duration = Duration::from_millis(20);
/// Flows of a call's group, itself included: k of [JQ 5.3].
pub(super) const FLOWS: usize = 4;

/// One way to carry a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Arm {
    /// Over the Internet alone.
    Direct,
    /// The same, each packet twice.
    Duplication,
    /// The same with repair packets of the call's own.
    Fec,
    /// The same, by SRT, which asks for lost packets again.
    Srt,
    /// Lost packets are pulled from the egress relay.
    Caching,
    /// Lost packets are solved for.
    Coding,
    /// The same with more repair packets than the paper has.
    CodingMore,
    /// Every packet goes over the relays as well.
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

    /// Whether its programs are there.
    pub(super) fn is_possible(self) -> bool {
        self != Self::Srt || is_installed(SRT)
    }

    /// What the call's own ends do.
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

    /// The gateways' service, and whether it takes relays.
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
    /// Where the call's sender writes to.
    pub(super) entrance: SocketAddr,
    /// Where its receiver listens.
    pub(super) exit: SocketAddr,
    /// The other flows.
    pub(super) beside: Vec<Pair>,
}

/// A host of a group.
///
/// # Errors
/// When the name is none.
pub(super) fn host(group: &str, name: &str) -> Result<HostId, DemoError> {
    Ok(HostId::new(format!("{group}-{name}"))?)
}

/// All hosts of a group.
pub(super) fn hosts(group: &str) -> Result<Vec<HostId>, DemoError> {
    let ends = (0..FLOWS).flat_map(|flow| [format!("s{flow}"), format!("r{flow}")]);
    let relays = ["in", "out"].map(str::to_owned);
    ends.chain(relays).map(|name| host(group, &name)).collect()
}

/// Starts what carries a group.
///
/// # Errors
/// When something cannot be started.
pub(super) fn start(
    ground: &Ground,
    scenario: &Scenario,
    group: &str,
    arm: Arm,
) -> Result<Group, DemoError> {
    if arm == Arm::Srt {
        return start_srt(ground, scenario, group);
    }
    let operator = service::operator()?;
    let party = |name: &str| Party::new(ground, host(group, name)?);
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
        services.push(ingress.relay(ground, &operator, &[], coding)?);
        services.push(egress.relay(ground, &operator, &[ingress.stop().identity], coding)?);
        relays = vec![ingress.stop(), egress.stop()];
    }
    let last: Vec<_> = relays.last().map(|relay| relay.identity).into_iter().collect();
    let mut ends = Vec::new();
    for flow in 0..if takes_relays { FLOWS } else { 1 } {
        let (near, far) = (party(&format!("s{flow}"))?, party(&format!("r{flow}"))?);
        services.push(far.far_gateway(ground, &operator, &last, None)?);
        let budget = Some(scenario.budget());
        let carriage = Carriage {
            service,
            relays: &relays,
            far: &far,
            repeat_copies: true,
            budget,
            copies: None,
            uplink: None,
        };
        let (gateway, entrance) = near.near_gateway(ground, &operator, &carriage, Taking::Port)?;
        services.push(gateway);
        ends.push((near.host, entrance, far.application(), far.host));
    }
    let (_, entrance, exit, _) = ends.remove(0);
    let pair = |(near, entrance, exit, far): &(HostId, _, _, HostId)| {
        Pair::open(ground, (near, *entrance), (far, *exit), Duration::ZERO)
    };
    let beside = ends.iter().map(pair).collect::<Result<_, _>>()?;
    Ok(Group { _services: services, entrance, exit, beside })
}

/// Starts SRT between a call's ends. It holds packets until they are due, as its manual has it: as long after they were sent as the path
/// takes and its latency together, which is made the call's budget less a margin.
fn start_srt(ground: &Ground, scenario: &Scenario, group: &str) -> Result<Group, DemoError> {
    let (near, far) = (host(group, "s0")?, host(group, "r0")?);
    let one_way = round_trip(ground.lab.topology(), &near, &far) / 2;
    let latency = scenario.budget().saturating_sub(one_way + scenario.srt_margin());
    let latency = latency.max(LEAST_SRT_LATENCY).as_millis();
    let options = format!("latency={latency}&peeridletimeo={SRT_IDLE_MS}");
    let to = SocketAddr::new(ground.lab.address_v4(&far)?.into(), SRT_PORT);
    let exit = SocketAddr::new(to.ip(), APPLICATION_PORT);
    let start = |host: &HostId, from: &str, to: &str, port| {
        let mut command = ground.lab.command(host, SRT)?;
        command.args(["-quiet", from, to]);
        let name = format!("srt-{host}");
        let is_ready = || listens(ground, host, Port::Udp(port));
        Service::start_listening(command, &name, &ground.scratch, is_ready)
    };
    let listen = format!("srt://:{SRT_PORT}?mode=listener&{options}");
    let dial = format!("srt://{to}?mode=caller&{options}");
    let receiver = start(&far, &listen, &format!("udp://{exit}"), SRT_PORT)?;
    let sender = start(&near, &format!("udp://:{APPLICATION_PORT}"), &dial, APPLICATION_PORT)?;
    let entrance = (Ipv4Addr::LOCALHOST, APPLICATION_PORT).into();
    Ok(Group { _services: vec![receiver, sender], entrance, exit, beside: Vec::new() })
}
