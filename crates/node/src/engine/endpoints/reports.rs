//! Status reports of flows at their endpoints.

use std::collections::BTreeMap;

use tradewind_grant::PublicIdentity;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::Service;
use tradewind_packet::session::{Now, PeerId};
use tradewind_plan::service::RelayUsage;
use tradewind_units::{Duration, Timestamp};

use super::super::accounting::Role;
use super::super::remotes::RemoteEndpoint;
use super::{Carrier, Choice, FlowEndpoint, FlowEndpoints, Sent};
use crate::status::{Billed, Direction, FlowStatistics, FlowStatus};

/// Returns the name of a service in reports.
pub(in super::super) fn name(service: Service) -> &'static str {
    match service {
        Service::Direct => "direct",
        Service::Forwarding => "forwarding",
        Service::Caching => "caching",
        Service::Coding => "coding",
    }
}

/// Statistics and services of both flows of an end.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct FlowsOfEnd {
    /// Of the outgoing flow, as its receiver reports.
    pub(in super::super) reported: FlowStatistics,
    pub(in super::super) received: FlowStatistics,
    pub(in super::super) sent_by: Service,
    pub(in super::super) comes_by: Service,
    /// The relay near here, of the last path that answered.
    pub(in super::super) relay: Option<PeerId>,
}

/// Bytes that were sent to each remote endpoint by plain forwarding, and what relays charge for
/// them.
///
/// Relays cannot tell the flows of forwarded packets apart, and charge them to the first flow of
/// the path that they know: each flow's share of the charge is its share of the bytes.
#[derive(Debug, Default)]
pub(in super::super) struct ForwardedBills(BTreeMap<PeerId, (u64, Billed)>);

impl ForwardedBills {
    fn billed(&self, end: &FlowEndpoint) -> Billed {
        match self.0.get(&end.remote) {
            Some((bytes, billed)) if end.carrier == Carrier::Paths => {
                billed.part(end.sent.bytes as f64 / (*bytes).max(1) as f64)
            }
            _ => end.accounting.billed(),
        }
    }
}

impl FlowEndpoints {
    /// Returns the statistics of both flows of an end.
    pub(in super::super) fn flows_of(&self, outgoing: FlowNumber) -> Option<FlowsOfEnd> {
        let end = self.by_outgoing.get(&outgoing)?;
        Some(FlowsOfEnd {
            reported: end.reported,
            received: end.received,
            sent_by: end.service(),
            comes_by: end.confirmed.map_or(end.carriage.service, |(_, service)| service),
            relay: end.relay,
        })
    }

    /// Returns how long a missing packet of the incoming flow is worth waiting for: not at all
    /// where nothing can recover it.
    pub(in super::super) fn recovery_deadline(
        &self,
        now: Now,
        incoming: FlowNumber,
        remote: &RemoteEndpoint,
    ) -> Option<Duration> {
        let end = self.by_outgoing.get(self.outgoing.get(&incoming)?)?;
        if !remote.is_overlay_alive(now) || !end.brings_back(now.steady) {
            return Some(Duration::ZERO);
        }
        Some(end.at_receiver(remote.round_trip).recovery_deadline)
    }

    /// Returns the incoming flow of the end that sends `outgoing`.
    pub(in super::super) fn incoming_of(&self, outgoing: FlowNumber) -> Option<FlowNumber> {
        self.by_outgoing.get(&outgoing)?.incoming
    }

    /// Returns the status of the two flows of one end.
    pub(in super::super) fn report(
        &self,
        outgoing: FlowNumber,
        remote: &str,
        forwarded_bills: &ForwardedBills,
    ) -> Vec<FlowStatus> {
        let Some(end) = self.by_outgoing.get(&outgoing) else { return Vec::new() };
        let service = end.carried_by();
        let why = match (end.is_up, &end.choice) {
            (false, _) => "the path over the relays does not answer",
            (true, Choice::Configured) => "as configured",
            (true, Choice::Followed) => "as the remote gateway sends",
            (true, Choice::Selected(selection))
                if end.is_internet_down && selection.has_begun() =>
            {
                "the Internet path does not answer"
            }
            (true, Choice::Selected(selection)) => selection.why(),
        };
        let Sent { packets, bytes, copies, resent } = end.sent;
        let sent = FlowStatus {
            direction: Direction::Sent,
            remote: remote.to_owned(),
            listen: None,
            to: None,
            service: name(service).to_owned(),
            why: why.to_owned(),
            packets,
            bytes,
            copies,
            resent,
            statistics: Some(end.reported),
            internet_loss: end.internet_loss,
            longest: None,
            billed: Some(forwarded_bills.billed(end)),
        };
        let (packets, bytes, copies, resent) = (end.received.expected, 0, 0, 0);
        let (direction, statistics) = (Direction::Received, Some(end.received));
        let comes_by = end.comes_by();
        let why = if comes_by == service { why } else { "as the remote gateway sends" };
        let received = FlowStatus {
            direction,
            service: name(comes_by).to_owned(),
            why: why.to_owned(),
            packets,
            bytes,
            copies,
            resent,
            statistics,
            internet_loss: None,
            billed: None,
            ..sent.clone()
        };
        vec![sent, received]
    }

    /// Returns the traffic to each remote endpoint by plain forwarding, and what relays have sent
    /// of it.
    pub(in super::super) fn forwarded_bills(&self) -> ForwardedBills {
        let mut all = ForwardedBills::default();
        for end in self.by_outgoing.values().filter(|end| end.carrier == Carrier::Paths) {
            let (bytes, billed) = all.0.entry(end.remote).or_default();
            *bytes += end.sent.bytes;
            *billed = [*billed, end.accounting.billed()].into_iter().sum();
        }
        all
    }

    /// Records a relay's report of what it has sent for a flow: from the relay near here, or from
    /// another through it.
    pub(in super::super) fn take_bill(
        &mut self,
        now: Timestamp,
        (from, identity): (PeerId, Option<PublicIdentity>),
        outgoing: FlowNumber,
        (role, report): (Role, RelayUsage),
    ) {
        let end = self.by_outgoing.get_mut(&outgoing).filter(|end| end.relay == Some(from));
        if let Some(end) = end {
            end.accounting.take(now, (role, identity.filter(|_| role == Role::Ingress)), report);
        }
    }

    /// Returns the outgoing flows.
    pub(in super::super) fn flows(&self) -> impl Iterator<Item = (FlowNumber, PeerId)> + '_ {
        self.by_outgoing.iter().map(|(flow, end)| (*flow, end.remote))
    }
}
