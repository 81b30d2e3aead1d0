//! Statistics of conversations for the [`Journal`](crate::record::Journal), recorded when they are
//! over.

use std::net::SocketAddr;

use tradewind_grant::{GrantId, PublicIdentity, SignedGrant};
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Refusal, Service};
use tradewind_packet::session::PeerId;
use tradewind_units::Timestamp;

use super::context::Context;
use super::conversations::{Inbound, Outbound};
use super::endpoints::{FlowsOfEnd, name};
use super::local::Local;
use super::reports::Reporter;
use crate::record::{ConversationRecord, EndedBy, Outcome};

/// The statistics of a conversation since its last record.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The times of the first packet and of the last.
    span: Option<(Timestamp, Timestamp)>,
    /// The time of the first packet towards the side that began it.
    answered: Option<Timestamp>,
    /// Packets and bytes away from the side that began it, and towards it.
    up: [u64; 2],
    down: [u64; 2],
    /// The flow that carries it, and the flow's statistics at the beginning.
    flow: Option<(FlowNumber, FlowsOfEnd)>,
    /// The reason why the other endpoint refuses it.
    pub(super) refused: Option<Refusal>,
}

impl Tally {
    /// Counts a packet away from the side that began the conversation.
    pub(super) fn count_up(&mut self, at: Timestamp, bytes: usize) {
        self.note(at);
        self.up = [self.up[0] + 1, self.up[1] + bytes as u64];
    }

    /// Counts a packet towards that side.
    pub(super) fn count_down(&mut self, at: Timestamp, bytes: usize) {
        self.note(at);
        self.answered.get_or_insert(at);
        self.down = [self.down[0] + 1, self.down[1] + bytes as u64];
    }

    /// Returns whether any packet was counted.
    pub(super) fn has_begun(&self) -> bool {
        self.span.is_some()
    }

    fn note(&mut self, at: Timestamp) {
        self.span = Some((self.span.map_or(at, |(first, _)| first), at));
    }

    /// Records which flow carries the conversation from now on.
    pub(super) fn begin_flow(&mut self, begun: Self) {
        self.flow = begun.flow;
    }

    /// Takes the statistics, and begins anew; `None` when there are none.
    pub(super) fn take(&mut self) -> Option<Self> {
        self.span?;
        Some(std::mem::take(self))
    }
}

/// The gateway that began a conversation that ends here, as it was then: its session may be gone
/// when the record is made.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Origin {
    gateway: Option<PublicIdentity>,
    grant: Option<GrantId>,
    /// The address of its gateway.
    peer: Option<SocketAddr>,
    /// The application's address, as its gateway reports it.
    pub(super) source: Option<SocketAddr>,
}

/// The two sides of a conversation that is over, and the service and path between them.
struct Sides {
    origin: Origin,
    remote: Option<PublicIdentity>,
    to: SocketAddr,
    service: Service,
    path: String,
    is_outbound: bool,
}

impl Origin {
    /// Returns the origin of a conversation of `remote` that ends here.
    pub(super) fn of(context: &Context, remote: PeerId, source: Option<SocketAddr>) -> Self {
        let gateway = context.sessions.identity_of(remote);
        let (peer, grant) = (context.address_of(remote), context.sessions.grant_id_of(remote));
        Self { gateway, grant, peer, source }
    }

    /// Returns one of which nothing but the application's address is known yet.
    pub(super) fn of_source(source: Option<SocketAddr>) -> Self {
        Self { source, ..Self::default() }
    }
}

impl Reporter<'_> {
    /// Returns a tally with the current statistics of a flow that begins to carry a conversation.
    pub(super) fn tally_of(&self, end: Option<FlowNumber>) -> Tally {
        let flow = end.filter(|_| self.context.journal.is_some());
        let flow = flow.and_then(|flow| Some((flow, self.ends.flows_of(flow)?)));
        Tally { flow, ..Tally::default() }
    }

    /// Does the same for one that was taken out of the table.
    pub(super) fn journal_outbound(&self, outbound: &Outbound, tally: &Tally, outcome: Outcome) {
        let (Some(_), Some(route)) = (&self.context.journal, self.routes.get(outbound.route()))
        else {
            return;
        };
        let carried = route.end.and_then(|end| self.ends.flows_of(end));
        let service = carried.map_or(route.carriage().service, |flows| flows.sent_by);
        let relays = route.hops().split_last().map_or(&[][..], |(_, relays)| relays);
        let relays: Vec<_> = relays.iter().map(|hop| hop.identity.to_string()).collect();
        let source = outbound.source().to;
        let source =
            if matches!(route.local, Local::Flow(_)) { route.client } else { Some(source) };
        let sides = Sides {
            origin: Origin {
                gateway: Some(self.context.sessions.public()),
                grant: self.context.config.grant.as_ref().map(SignedGrant::id),
                peer: source,
                source,
            },
            remote: route.hops().last().map(|hop| hop.identity),
            to: outbound.to(),
            service,
            path: path_of(service, &relays),
            is_outbound: true,
        };
        self.journal_sides(tally, outcome, carried, sides);
    }

    pub(super) fn journal_inbound(&self, inbound: &Inbound, tally: &Tally, outcome: Outcome) {
        if self.context.journal.is_none() {
            return;
        }
        let carried = inbound.end().and_then(|end| self.ends.flows_of(end));
        let service = carried.map_or(inbound.carriage.service, |flows| flows.comes_by);
        let label = self.remotes.get(&inbound.remote).and_then(|remote| remote.label);
        let relay = label.and_then(|label| self.forwarding.labels.reverse_hop(label));
        let relay = carried.and_then(|flows| flows.relay).or(relay.map(|(relay, _)| relay));
        let relay = relay.and_then(|relay| self.context.sessions.identity_of(relay));
        let relays: Vec<_> = relay.iter().map(ToString::to_string).collect();
        let sides = Sides {
            origin: inbound.origin,
            remote: inbound.origin.gateway,
            to: inbound.to(),
            service,
            path: path_of(service, &relays),
            is_outbound: false,
        };
        self.journal_sides(tally, outcome, carried, sides);
    }

    fn journal_sides(
        &self,
        tally: &Tally,
        outcome: Outcome,
        carried: Option<FlowsOfEnd>,
        sides: Sides,
    ) {
        let (Some(journal), Some((first, last))) = (&self.context.journal, tally.span) else {
            return;
        };
        let left_out = match outcome {
            // All of them, without a limit, since this node ends.
            Outcome::Cut => Some(self.context.records.admit_always()),
            _ => self.context.records.admit(sides.origin.gateway),
        };
        let Some(left_out) = left_out else { return };
        let flow = carried.map(|now| match &tally.flow {
            Some((_, before)) => {
                [now.reported.since(&before.reported), now.received.since(&before.received)]
            }
            None => [now.reported, now.received],
        });
        let [away, towards] = match (flow, sides.is_outbound) {
            (Some([sent, received]), true) => [Some(sent), Some(received)],
            (Some([sent, received]), false) => [Some(received), Some(sent)],
            (None, _) => [None, None],
        };
        let is_refused = tally.refused.is_some() && tally.down[0] == 0;
        let outcome = if is_refused { Outcome::Refused } else { outcome };
        let ms = |from: Timestamp, to: Timestamp| to.since(from).as_nanos() as f64 / 1e6;
        let Origin { gateway, grant, peer, source } = sides.origin;
        let is_stored = journal.conversation_ended(&ConversationRecord {
            grant: grant.map(|grant| grant.to_string()),
            gateway: gateway.map(|gateway| gateway.to_string()),
            remote: sides.remote.map(|remote| remote.to_string()),
            source,
            peer,
            destination: match sides.to.port() {
                0 => sides.to.ip().to_string(),
                _ => sides.to.to_string(),
            },
            service: name(sides.service),
            path: sides.path,
            packets_up: tally.up[0],
            packets_down: tally.down[0],
            bytes_up: tally.up[1],
            bytes_down: tally.down[1],
            flow_up: away,
            flow_down: towards,
            duration_ms: ms(first, last),
            first_byte_ms: tally.answered.map(|at| ms(first, at)),
            outcome,
            ended_by: ended_by(outcome, sides.is_outbound),
            timeout: (outcome == Outcome::Idle).then_some("idle"),
            cause: tally.refused.filter(|_| is_refused).map(|reason| reason.to_string()),
            left_out,
        });
        if !is_stored {
            self.context.records.give_back(left_out);
        }
    }
}

/// Returns the side that ended a conversation.
fn ended_by(outcome: Outcome, is_outbound: bool) -> EndedBy {
    match outcome {
        Outcome::Idle | Outcome::Evicted | Outcome::Revoked | Outcome::Cut => EndedBy::Here,
        Outcome::Replaced => EndedBy::Upstream,
        Outcome::Refused => EndedBy::Downstream,
        Outcome::Gone if is_outbound => EndedBy::Downstream,
        Outcome::Gone => EndedBy::Upstream,
        Outcome::Closed if is_outbound => EndedBy::Upstream,
        Outcome::Closed => EndedBy::Downstream,
    }
}

/// Returns the relays of a path as text.
fn path_of(service: Service, relays: &[String]) -> String {
    match service {
        _ if relays.is_empty() => "direct".to_owned(),
        Service::Direct => "direct".to_owned(),
        Service::Forwarding | Service::Caching | Service::Coding => relays.join(" > "),
    }
}

#[cfg(test)]
mod tests;
