//! Presence of receivers. The packets of a flow whose receiver does not answer are of no use to
//! others, and the ingress relay codes without them [JQ 3.1.2].

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

use super::Egress;
use crate::budget::{Allowance, Budget};
use crate::event::Event;
use crate::id::{FlowNumber, Peer};
use crate::message::Message;

/// Consecutive unanswered help requests after which a receiver counts as offline. Chosen: a lossy
/// path loses some.
const MAX_UNANSWERED: u32 = 8;
/// Least time without any message of the receiver before it counts as offline. Chosen: some
/// recoveries.
const SILENT_FOR: Duration = Duration::from_secs(1);

/// Least time between two reports that a receiver is offline, while its flows are still coded.
/// Chosen: an ingress relay that missed the first report codes in vain no longer than that.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// All receivers.
#[derive(Debug, Clone)]
pub(super) struct Receivers {
    asks: Allowance,
    helps: Allowance,
    states: BTreeMap<Peer, State>,
}

#[derive(Debug, Clone)]
struct State {
    flows: Vec<FlowNumber>,
    asks: Budget,
    helps: Budget,
    last_received: Timestamp,
    unanswered: u32,
    is_online: bool,
    /// When its presence was last reported.
    last_reported: Timestamp,
}

impl Receivers {
    pub(super) fn new(asks: Allowance, helps: Allowance) -> Self {
        Self { asks, helps, states: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, peer: Peer, flow: FlowNumber) {
        let fresh = || State {
            flows: Vec::new(),
            asks: Budget::new(self.asks),
            helps: Budget::new(self.helps),
            last_received: Timestamp::ZERO,
            unanswered: 0,
            is_online: true,
            last_reported: Timestamp::ZERO,
        };
        self.states.entry(peer).or_insert_with(fresh).flows.push(flow);
    }

    pub(super) fn remove(&mut self, peer: Peer, flow: FlowNumber) {
        let Some(state) = self.states.get_mut(&peer) else { return };
        state.flows.retain(|other| *other != flow);
        if state.flows.is_empty() {
            self.states.remove(&peer);
        }
    }

    pub(super) fn knows(&self, peer: Peer) -> bool {
        self.states.contains_key(&peer)
    }

    pub(super) fn may_ask(&mut self, now: Timestamp, peer: Peer, items: u8) -> bool {
        self.states.get_mut(&peer).is_some_and(|state| state.asks.take(now, items.into()))
    }

    /// Returns whether a receiver can be asked for a packet, and charges its budget.
    pub(super) fn may_help(&mut self, now: Timestamp, peer: Peer) -> bool {
        self.states.get_mut(&peer).is_some_and(|state| state.is_online && state.helps.take(now, 1))
    }

    /// Notes a message of a peer; returns whether the peer was offline.
    pub(super) fn note_message(&mut self, now: Timestamp, peer: Peer) -> bool {
        let Some(state) = self.states.get_mut(&peer) else { return false };
        state.last_received = now;
        state.unanswered = 0;
        !std::mem::replace(&mut state.is_online, true)
    }

    /// Returns whether the presence of a receiver is to be reported again. The rate is limited as
    /// it is for offline receivers.
    pub(super) fn is_presence_due(&mut self, now: Timestamp, peer: Peer) -> bool {
        let Some(state) = self.states.get_mut(&peer) else { return false };
        let is_due = state.last_reported == Timestamp::ZERO
            || now.since(state.last_reported) >= REPORT_INTERVAL;
        if is_due {
            state.last_reported = now;
        }
        is_due
    }

    /// Notes that a receiver did not answer a request for help; returns whether it is offline from
    /// now on.
    pub(super) fn miss(&mut self, now: Timestamp, peer: Peer) -> bool {
        let Some(state) = self.states.get_mut(&peer) else { return false };
        state.unanswered += 1;
        let is_gone =
            state.unanswered >= MAX_UNANSWERED && now.since(state.last_received) >= SILENT_FOR;
        let was_online = state.is_online;
        state.is_online = was_online && !is_gone;
        state.last_reported = now;
        was_online && is_gone
    }

    /// Returns whether it is to be reported again that a receiver is offline.
    fn is_absence_due(&mut self, now: Timestamp, peer: Peer) -> bool {
        let Some(state) = self.states.get_mut(&peer).filter(|state| !state.is_online) else {
            return false;
        };
        let is_due = now.since(state.last_reported) >= REPORT_INTERVAL;
        if is_due {
            state.last_reported = now;
        }
        is_due
    }

    fn flows(&self, peer: Peer) -> &[FlowNumber] {
        self.states.get(&peer).map_or(&[], |state| &state.flows)
    }
}

impl Egress {
    /// Reports again that a flow's receiver is offline, when a repair packet has arrived for the
    /// flow: the ingress relay has missed the report.
    pub(super) fn report_absence_again(&mut self, now: Timestamp, flow: FlowNumber) {
        let Some(receiver) = self.flows.get(&flow).map(|flow| flow.receiver) else { return };
        if self.receivers.is_absence_due(now, receiver) {
            self.report_presence(receiver, false);
        }
    }

    /// Reports to the ingress relays of a receiver's flows whether it is online.
    pub(super) fn report_presence(&mut self, receiver: Peer, is_online: bool) {
        for flow in self.receivers.flows(receiver) {
            let Some(state) = self.flows.get(flow) else { continue };
            if self.groups.contains_key(flow) {
                continue;
            }
            self.outbox.send(state.ingress, &Message::Presence { flow: *flow, is_online });
            self.outbox.emit(Event::Presence { flow: *flow, is_online });
        }
    }
}
