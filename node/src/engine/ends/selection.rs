//! Which service a flow gets while it runs: the cheapest that meets its latency budget `[JQ 3.3]`, by the delays of its paths, and then by what
//! its receiver reports (`tradewind_plan::service`).
//!
//! How far the receiver is from its relay is not measured here: members are told (`super::super::members`), and where nobody tells it is taken to be as
//! far as the sender from its own.

use std::collections::BTreeMap;

use tradewind_model::packet::{PacketPath, PacketService};
use tradewind_packet::ingress::Coding;
use tradewind_packet::message::{Feedback, Service};
use tradewind_plan::service::{Demand, Report, ServiceKeeper, choose};
use tradewind_units::{Duration, Money, Ratio};

/// From when a packet should have come to when it is asked for. Chosen: a gap that is given time to close.
const DETECTION: Duration = Duration::from_millis(5);
/// What leaves relays for each byte of a flow, in the order of services: by coding at its default rates, by caching, by forwarding `[JQ 3]`.
const PARTS: [(PacketService, f64); 3] =
    [(PacketService::Coding, 0.4), (PacketService::Caching, 1.0), (PacketService::Forwarding, 2.0)];

/// The choice for one flow.
#[derive(Debug)]
pub(in super::super) struct Selection {
    demand: Demand,
    keeper: Option<ServiceKeeper>,
    why: &'static str,
}

/// Round trips that were measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTrips {
    pub(super) internet: Duration,
    pub(super) overlay: Duration,
    /// Between the sender and its relay.
    pub(super) access: Duration,
    /// Between the receiver and its own, if that is told.
    pub(super) far_access: Option<Duration>,
}

impl Selection {
    pub(in super::super) fn new(budget: Duration, bearable: Ratio) -> Self {
        let why = "its paths are not measured yet";
        Self { demand: Demand { budget, bearable }, keeper: None, why }
    }

    pub(super) fn why(&self) -> &'static str {
        self.why
    }

    /// The paths are others now, and are to be measured.
    pub(super) fn measure_again(&mut self) {
        self.keeper = None;
    }

    pub(super) fn has_begun(&self) -> bool {
        self.keeper.is_some()
    }

    /// Chooses by the delays; nothing is known of losses yet.
    pub(super) fn begin(&mut self, measured: RoundTrips) -> Service {
        let RoundTrips { internet, overlay, access, far_access } = measured;
        let access = access.min(overlay / 2) / 2;
        let far_access = far_access.map_or(access, |told| (told / 2).min(overlay / 2 - access));
        let path = PacketPath {
            internet: internet / 2,
            source_access: access,
            between_relays: overlay / 2 - access - far_access,
            receiver_access: far_access,
            helper_access: far_access,
            detection: DETECTION,
            encoding: Coding::default().cross_stream_within,
        };
        let cost = |part| Money::from_usd(part).unwrap_or(Money::ZERO);
        let costs: BTreeMap<_, _> =
            PARTS.into_iter().map(|(service, part)| (service, cost(part))).collect();
        let choice = choose(self.demand, &path, Ratio::ZERO, &costs);
        self.why = match choice.meets {
            true => "the cheapest within its budget",
            false => "none meets its budget: the fastest",
        };
        let keeper = self.keeper.insert(ServiceKeeper::new(self.demand, &choice));
        service_of(keeper.service())
    }

    /// Takes a report; the service, when it changes.
    pub(super) fn observe(&mut self, told: &Feedback) -> Option<Service> {
        let Feedback { expected, in_time, lost_by_internet, .. } = *told;
        let keeper = self.keeper.as_mut()?;
        let before = keeper.service();
        let service = keeper.observe(Report { expected, in_time, lost_by_internet })?;
        self.why = match service > before {
            true => "a cheaper one lost too much or came late",
            false => "a dearer one was not needed for a while",
        };
        Some(service_of(service))
    }
}

fn service_of(service: PacketService) -> Service {
    match service {
        PacketService::Direct => Service::Direct,
        PacketService::Coding => Service::Coding,
        PacketService::Caching => Service::Caching,
        PacketService::Forwarding => Service::Forwarding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_packet::id::FlowNumber;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn begun(budget: u64) -> (Selection, Service) {
        let mut selection = Selection::new(ms(budget), Ratio::new(0.01).unwrap());
        // 80 ms one way over the Internet, 90 over the relays, 5 of them to the first.
        let service = selection.begin(measured(None));
        (selection, service)
    }

    fn measured(far_access: Option<Duration>) -> RoundTrips {
        RoundTrips { internet: ms(160), overlay: ms(180), access: ms(10), far_access }
    }

    fn told(lost: u64) -> Feedback {
        let flow = FlowNumber(1);
        let in_time = 1000 - lost;
        let (late, recovered) = (0, [0; 3]);
        Feedback { flow, expected: 1000, in_time, late, lost_by_internet: lost, recovered }
    }

    #[test]
    fn it_begins_with_the_cheapest_that_is_fast_enough() {
        assert_eq!(begun(150).1, Service::Direct);
        let (selection, service) = begun(70);
        assert_eq!(
            (service, selection.why()),
            (Service::Forwarding, "none meets its budget: the fastest")
        );
    }

    #[test]
    fn reports_of_losses_buy_the_next_dearer_service_within_the_budget() {
        let (mut selection, _) = begun(150);
        assert_eq!(selection.observe(&told(50)), None);
        assert_eq!(selection.observe(&told(50)), Some(Service::Coding));
        assert_eq!(selection.why(), "a cheaper one lost too much or came late");
        // Where the receiver is far from its relay, only forwarding is fast enough.
        let mut selection = Selection::new(ms(150), Ratio::new(0.01).unwrap());
        selection.begin(measured(Some(ms(120))));
        selection.observe(&told(50));
        assert_eq!(selection.observe(&told(50)), Some(Service::Forwarding));
        // Coding takes too long within 115 ms: 80, 5 to notice, 10 to ask, what it waits for the block, 10 for helpers.
        let (mut selection, _) = begun(115);
        selection.observe(&told(50));
        assert_eq!(selection.observe(&told(50)), Some(Service::Caching));
    }
}
