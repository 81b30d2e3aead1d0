//! Flows of packet services at their endpoints.
//!
//! An *end* is one endpoint's part of two flows, one in each direction, that carry the
//! conversations of one route. Packets of both are numbered. With caching and coding they go over
//! the Internet, and as copies to the relay near here as long as the path over it answers; with
//! forwarding, relays pass them on as they are. The sender draws a flow's number at random: an
//! endpoint that restarts begins another flow.

mod expected;
mod reports;
mod selection;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::BTreeMap;

use tradewind_grant::PublicIdentity;
use tradewind_net::entropy;
use tradewind_packet::id::{FlowNumber, PacketId};
use tradewind_packet::message::{
    Carriage, Class, Feedback, MAX_PAYLOAD_BYTES, Message, SOURCE_HEADER_BYTES, Service,
    write_numbered,
};
use tradewind_packet::receiver::ReceiverFlow;
use tradewind_packet::sender::{Copies, Paths as Over, SenderFlow};
use tradewind_packet::session::{Now, PeerId};
use tradewind_plan::service::{DETECTION, Spent};
use tradewind_units::{Duration, Ratio, Timestamp};

use super::AROUND_MESSAGE;
use super::accounting::{Accounting, Role};
use super::neighbours::Legs;
use super::paths::Paths;
use super::remotes::RemoteEndpoint;
use super::services::Services;
use crate::counts::add;
use crate::status::FlowStatistics;
use expected::Expectations;
pub(super) use reports::{FlowsOfEnd, ForwardedBills, name};
use selection::RoundTrips;
pub(super) use selection::Selection;

/// Most ends of one worker. Chosen: as many as conversations.
const MAX: usize = super::conversations::MAX;
/// Interval of messages to the relays on the service of a flow.
const SERVE_EVERY: Duration = Duration::from_secs(1);
/// Silence after which an incoming flow counts as not served. Chosen: of three messages one may get
/// lost.
const SERVED_FOR: Duration = Duration::from_secs(3);
/// Number of messages to the relays that a flow is left to the Internet. Chosen: as above.
const LEAVING_WORDS: u8 = 3;
/// The round trip that is assumed before one is measured. Source: the slowest mobile clients of [JQ
/// 5.5].
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);
/// Least round trip for loss detection. Chosen: with less, each packet of a steady flow would count
/// as a burst of its own, and be requested before it is sent.
const MIN_ROUND_TRIP: Duration = Duration::from_millis(50);

/// Bytes of headers around a packet between relays, as they bill it.
const AROUND_PACKET: usize = AROUND_MESSAGE + SOURCE_HEADER_BYTES;

/// One endpoint's part of two flows.
#[derive(Debug)]
pub(super) struct FlowEndpoint {
    remote: PeerId,
    carriage: Carriage,
    /// The packets that are copied to the relay.
    copies: Copies,
    carrier: Carrier,
    incoming: Option<FlowNumber>,
    /// The relay near here: of the last path that answered.
    relay: Option<PeerId>,
    is_up: bool,
    /// Set while the Internet path does not answer, and the overlay path does.
    is_internet_down: bool,
    next_serve: Timestamp,
    /// Set if a relay serves the incoming flow; below: when and with which service that was last
    /// confirmed.
    is_served: bool,
    confirmed: Option<(Timestamp, Service)>,
    /// Set once the sender of the incoming flow has left it to the Internet.
    is_left: bool,
    /// Number of messages still to be sent that say that the flow is left to the Internet.
    leaving_messages: u8,
    /// The source of the choice of service: configuration, remote endpoint, or measurements.
    choice: Choice,
    sent: Sent,
    /// Statistics of the outgoing flow, as its receiver reports them.
    reported: FlowStatistics,
    /// The share of its last interval that the Internet lost.
    internet_loss: Option<Ratio>,
    /// Statistics of the incoming flow.
    received: FlowStatistics,
    /// Reports of the ingress relays, each by itself, and of the egress relay, which reports
    /// through those.
    accounting: Accounting<Option<PublicIdentity>>,
}

/// The part that carries the packets of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// The state machines of the services: relays know each packet by its number.
    Machines,
    /// The paths of its carriage: relays forward the packets without knowing their flow.
    Paths,
}

impl Carrier {
    /// Returns the carrier of a service where all packets are copied.
    pub(super) fn of(service: Service) -> Self {
        match service {
            Service::Forwarding => Self::Paths,
            Service::Direct | Service::Caching | Service::Coding => Self::Machines,
        }
    }
}

/// The source of the choice of a flow's service.
#[derive(Debug)]
pub(super) enum Choice {
    /// The configuration.
    Configured,
    /// The remote endpoint: replies are carried as it carries its own flow.
    Followed,
    /// This node, by measurements while the flow runs.
    Selected(Box<Selection>),
}

/// The traffic that an end has sent.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    packets: u64,
    bytes: u64,
    copies: u64,
    resent: u64,
}

/// All ends, by their outgoing flows.
#[derive(Debug, Default)]
pub(super) struct FlowEndpoints {
    by_outgoing: BTreeMap<FlowNumber, FlowEndpoint>,
    outgoing: BTreeMap<FlowNumber, FlowNumber>,
    /// Flows that relays serve and of which no packet has come yet: their first packets are to be
    /// protected, too.
    expected: Expectations,
}

impl FlowEndpoints {
    pub(super) fn is_empty(&self) -> bool {
        self.by_outgoing.is_empty()
    }

    /// Returns the sender of an incoming flow.
    pub(super) fn remote_of(&self, incoming: FlowNumber) -> Option<PeerId> {
        let outgoing = self.outgoing.get(&incoming)?;
        self.by_outgoing.get(outgoing).map(|end| end.remote)
    }

    /// Returns whether a relay serves an incoming flow.
    pub(super) fn is_served(&self, incoming: FlowNumber) -> bool {
        let end = self.outgoing.get(&incoming).and_then(|flow| self.by_outgoing.get(flow));
        end.is_some_and(|end| end.is_up && end.is_served)
    }

    /// Returns whether packets of an outgoing flow are forwarded as they are.
    fn is_forwarded_by_paths(&self, outgoing: FlowNumber) -> bool {
        self.by_outgoing.get(&outgoing).is_some_and(|end| end.carrier == Carrier::Paths)
    }

    /// Returns the service for which packets must be short enough: a numbered flow that is direct
    /// may be coded at any time, and one that is forwarded may have chosen copies.
    pub(super) fn sizing_service(&self, service: Service, flow: Option<FlowNumber>) -> Service {
        match (service, flow) {
            (Service::Direct, Some(_)) => Service::Coding,
            (Service::Forwarding, Some(flow)) if !self.is_forwarded_by_paths(flow) => {
                Service::Caching
            }
            (service, _) => service,
        }
    }

    /// Returns the outgoing flow of the end that receives an incoming one.
    pub(super) fn outgoing_of(&self, incoming: FlowNumber) -> Option<FlowNumber> {
        self.outgoing.get(&incoming).copied()
    }

    fn note_sent(&mut self, outgoing: FlowNumber, bytes: usize) {
        if let Some(end) = self.by_outgoing.get_mut(&outgoing) {
            end.sent.packets += 1;
            end.sent.bytes += bytes as u64;
        }
    }

    /// Counts a copy of a packet.
    pub(super) fn note_copy(&mut self, outgoing: FlowNumber, resent: u8) {
        if let Some(end) = self.by_outgoing.get_mut(&outgoing) {
            end.sent.copies += 1;
            end.sent.resent += u64::from(resent > 0);
        }
    }

    /// Records what has become of packets of a flow that is sent or received here.
    pub(super) fn note_report(&mut self, report: &Feedback) {
        if let Some(end) = self.by_outgoing.get_mut(&report.flow) {
            end.reported.add(report);
            let share = report.lost_by_internet as f64 / report.expected.max(1) as f64;
            end.internet_loss = Ratio::new(share).ok();
            if let (Choice::Selected(selection), true) = (&mut end.choice, end.is_up) {
                let service = selection.observe(report);
                end.take_choice(service);
            }
            return;
        }
        let outgoing = self.outgoing.get(&report.flow);
        if let Some(end) = outgoing.and_then(|flow| self.by_outgoing.get_mut(flow)) {
            end.received.add(report);
        }
    }

    /// Restarts measurements: the paths of a flow have changed.
    pub(super) fn measure_again(&mut self, outgoing: FlowNumber) {
        if let Some(FlowEndpoint { choice: Choice::Selected(selection), .. }) =
            self.by_outgoing.get_mut(&outgoing)
        {
            selection.measure_again();
        }
    }

    /// Returns whether any end has this remote endpoint.
    pub(super) fn has(&self, remote: PeerId) -> bool {
        self.by_outgoing.values().any(|end| end.remote == remote)
    }
}

impl Services {
    /// Begins an end towards `remote` and returns its outgoing flow.
    pub(super) fn new_end(
        &mut self,
        (paths, legs): (&mut Paths<'_>, &Legs),
        now: Now,
        (remote, carriage, copies, carrier): (PeerId, Carriage, Copies, Carrier),
        choice: Choice,
    ) -> Option<FlowNumber> {
        let ends = &mut self.ends;
        if ends.by_outgoing.len() >= MAX {
            return None;
        }
        let outgoing = FlowNumber(u64::from_be_bytes(entropy::bytes().ok()?));
        let next_serve = now.steady;
        let end = FlowEndpoint {
            remote,
            carriage,
            copies,
            carrier,
            incoming: None,
            relay: None,
            is_up: false,
            is_internet_down: false,
            next_serve,
            is_served: false,
            confirmed: None,
            is_left: false,
            leaving_messages: 0,
            choice,
            sent: Sent::default(),
            reported: FlowStatistics::default(),
            internet_loss: None,
            received: FlowStatistics::default(),
            accounting: Accounting::default(),
        };
        self.sender.set_flow(outgoing, end.at_sender()).ok()?;
        ends.by_outgoing.insert(outgoing, end);
        // Its first packets are copied, too, where the path is open already.
        self.maintain_end((paths, legs), now, outgoing);
        Some(outgoing)
    }

    /// Numbers a message of a conversation, seals it, and sends it with the service of its flow.
    pub(super) fn send_numbered(
        &mut self,
        paths: &mut Paths<'_>,
        now: Now,
        (outgoing, class): (FlowNumber, Class),
        message: &Message<'_>,
    ) {
        let end = self.ends.by_outgoing.get(&outgoing);
        let packet = self.sender.next_packet(outgoing);
        let (Some(end), Some(packet)) = (end, packet) else {
            return add(&paths.context.counts.refused, 1);
        };
        let (remote, forwarded) = (end.remote, end.forwarded_carriage());
        let mut sealed = std::mem::take(&mut paths.context.sealed);
        let is_sealed = paths
            .context
            .seal_remote(remote, &mut sealed, |out| write_numbered(packet, message, out));
        let is_short = sealed.len() <= MAX_PAYLOAD_BYTES;
        if is_short && is_sealed {
            add(&paths.context.counts.accepted, 1);
            self.ends.note_sent(outgoing, sealed.len());
            match forwarded {
                Some(carriage) => {
                    self.sender.skip(outgoing);
                    paths.send_over_paths((now, &mut self.sender), remote, carriage, &sealed);
                }
                None if paths.remotes.needs_relays(now, remote, sealed.len()) => {
                    self.sender.skip(outgoing);
                    paths.send_over_paths(
                        (now, &mut self.sender),
                        remote,
                        Carriage::FORWARDED,
                        &sealed,
                    );
                }
                None => {
                    // This cannot fail: the flow exists, and the length was checked.
                    let _ = self.sender.send(now.steady, outgoing, class, &sealed);
                    self.send_packets(paths.context, now);
                }
            }
        } else if is_short {
            add(&paths.context.counts.refused, 1);
        }
        paths.context.sealed = sealed;
        if !is_short {
            // Relays do not cache packets of this length.
            let carriage = forwarded.unwrap_or(Carriage::DIRECT);
            paths.send_remote((now, &mut self.sender), remote, carriage, message);
        }
    }

    /// Has an end receive a new incoming flow of its remote endpoint; `false` when it cannot.
    pub(super) fn bind(
        &mut self,
        paths: &Paths<'_>,
        peer: PeerId,
        (incoming, outgoing): (FlowNumber, FlowNumber),
    ) -> bool {
        let ends = &mut self.ends;
        let Some(end) = ends.by_outgoing.get_mut(&outgoing) else { return false };
        // The remote endpoint has restarted.
        if let Some(before) = end.incoming.replace(incoming) {
            ends.outgoing.remove(&before);
            self.order.end_flow(peer, before);
            self.receiver.remove_flow(before);
            self.joined.remove(&before);
        }
        ends.outgoing.insert(incoming, outgoing);
        let round_trip = paths.remotes.get(&peer).and_then(|remote| remote.round_trip);
        self.receiver.add_flow(incoming, end.at_receiver(round_trip)).is_ok()
    }

    /// Returns whether a packet of a group has come before, sealed in its session or for all: the
    /// seals alone cannot tell.
    pub(super) fn has_come(&self, peer: PeerId, packet: PacketId) -> bool {
        let joined = self.joined.get(&packet.flow);
        joined.is_some_and(|joined| joined.is_of(peer)) && self.receiver.has_arrived(packet)
    }
}

impl FlowEndpoint {
    /// Chooses a service once the paths are measured, and checks the measurements and the bills
    /// again while both paths answer.
    fn select(&mut self, now: Timestamp, remote: &RemoteEndpoint, legs: &Legs) {
        let (carried_by, spent) = (self.carried_by(), self.spent());
        let Choice::Selected(selection) = &mut self.choice else { return };
        let access = self.relay.and_then(|relay| legs.round_trip(relay));
        let (Some(internet), Some(overlay), Some(access)) =
            (remote.round_trip, remote.overlay_round_trip, access)
        else {
            return;
        };
        let measured = RoundTrips { internet, overlay, access, remote_access: remote.access };
        let service = if selection.has_begun() {
            let measured = (self.is_up && !self.is_internet_down).then_some(measured);
            selection.look(now, measured, (carried_by, spent))
        } else {
            Some(selection.begin(now, measured))
        };
        self.take_choice(service);
    }

    fn take_choice(&mut self, service: Option<Service>) {
        if let Some(service) = service {
            (self.carriage.service, self.next_serve) = (service, Timestamp::ZERO);
        }
    }

    /// Returns the service that carries the outgoing flow now.
    fn carried_by(&self) -> Service {
        if self.is_up { self.service() } else { Service::Direct }
    }

    /// Returns the service of the incoming flow: as its relay reports it, and without a report the
    /// outgoing flow's.
    fn comes_by(&self) -> Service {
        match self.confirmed {
            Some(_) if self.is_left => Service::Direct,
            Some((_, service)) if self.is_up && self.is_served => service,
            _ => self.carried_by(),
        }
    }

    /// Returns whether lost packets of the incoming flow may come from a relay, or by the other of
    /// two paths.
    fn brings_back(&self, now: Timestamp) -> bool {
        if self.is_left {
            return false;
        }
        let recent = self.confirmed.filter(|(at, _)| now.since(*at) < SERVED_FOR);
        match recent.map_or(self.carriage.service, |(_, service)| service) {
            Service::Caching | Service::Coding => recent.is_some(),
            Service::Forwarding => self.carriage.paths == Over::Both,
            Service::Direct => false,
        }
    }

    /// Returns the traffic that was sent, and what relays billed for it, in bytes as relays count
    /// them.
    fn spent(&self) -> Spent {
        let Sent { packets, bytes, copies, resent } = self.sent;
        Spent {
            packets,
            bytes: bytes + packets * AROUND_PACKET as u64,
            copied: copies.saturating_sub(resent),
            ingress: self.accounting.left(Role::Ingress).unwrap_or_default(),
            egress: self.accounting.left(Role::Egress),
        }
    }

    /// Returns the service while the overlay path answers. Where this node chooses and the Internet
    /// path is down, everything is forwarded: losses there go unnoticed, and nobody would request
    /// the packets.
    fn service(&self) -> Service {
        match &self.choice {
            Choice::Selected(selection) if self.is_internet_down && selection.has_begun() => {
                Service::Forwarding
            }
            _ => self.carriage.service,
        }
    }

    /// Returns the carriage of packets that are forwarded as they are.
    fn forwarded_carriage(&self) -> Option<Carriage> {
        (self.carrier == Carrier::Paths).then_some(self.carriage)
    }

    fn at_sender(&self) -> SenderFlow {
        let is_copied = self.is_up && self.carrier == Carrier::Machines;
        SenderFlow {
            receiver: Some(self.remote.into()),
            ingress: self.relay.map(Into::into),
            service: if is_copied { self.service() } else { Service::Direct },
            paths: Over::Both,
            copies: self.copies,
            worth: self.carriage.worth(),
        }
    }

    /// Without a budget, a missing packet is waited for one more round trip.
    fn at_receiver(&self, measured: Option<Duration>) -> ReceiverFlow {
        let measured = measured.unwrap_or(FIRST_ROUND_TRIP);
        let round_trip = measured.max(MIN_ROUND_TRIP);
        let recovery_deadline = match self.carriage.worth() {
            None => round_trip + DETECTION,
            Some(budget) => budget.saturating_sub(measured / 2),
        };
        let relay = self.relay.filter(|_| self.is_up && self.is_served);
        ReceiverFlow {
            sender: self.remote.into(),
            egress: relay.map(Into::into),
            service: self.confirmed.map_or(self.carriage.service, |(_, service)| service),
            round_trip,
            recovery_deadline,
        }
    }
}
