//! Which service a flow gets while it runs: the cheapest that meets its latency budget `[JQ 3.3]`, by the delays of its paths, and then by what
//! its receiver reports (`tradewind_plan::service`). What services cost is told (`costs` of a `[[packet]]`), or taken to be what leaves relays.
//!
//! How far the receiver is from its relay is not measured here: members are told (`super::super::members`), and where nobody tells it is taken to be as
//! far as the sender from its own.

use std::collections::BTreeMap;

use tradewind_model::packet::{PacketPath, PacketService};
use tradewind_packet::message::{Feedback, Service};
use tradewind_plan::service::{DETECTION, Demand, Report, ServiceKeeper, choose};
use tradewind_units::{Duration, Ratio};

use crate::config::{Assumed, ServiceCosts};

/// The choice for one flow.
#[derive(Debug)]
pub(in super::super) struct Selection {
    demand: Demand,
    assumed: Assumed,
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
    pub(in super::super) fn new(budget: Duration, bearable: Ratio, assumed: Assumed) -> Self {
        let why = "its paths are not measured yet";
        Self { demand: Demand { budget, bearable }, assumed, keeper: None, why }
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
            encoding: self.assumed.coding_within,
        };
        let ServiceCosts { coding, caching, forwarding } = self.assumed.costs;
        let costs = BTreeMap::from([
            (PacketService::Coding, coding),
            (PacketService::Caching, caching),
            (PacketService::Forwarding, forwarding),
        ]);
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

    fn unmeasured(budget: Duration) -> Selection {
        Selection::new(budget, Ratio::new(0.01).unwrap(), Assumed::default())
    }

    fn begun(budget: u64) -> (Selection, Service) {
        let mut selection = unmeasured(ms(budget));
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
        let mut selection = unmeasured(ms(150));
        selection.begin(measured(Some(ms(120))));
        selection.observe(&told(50));
        assert_eq!(selection.observe(&told(50)), Some(Service::Forwarding));
        // Coding takes too long within 115 ms: 80, 5 to notice, 10 to ask, what it waits for the block, 10 for helpers.
        let (mut selection, _) = begun(115);
        selection.observe(&told(50));
        assert_eq!(selection.observe(&told(50)), Some(Service::Caching));
    }

    /// The services that a flow comes to whose Internet loses more and more.
    fn ladder(assumed: Assumed) -> Vec<Service> {
        let mut selection = Selection::new(ms(300), Ratio::new(0.01).unwrap(), assumed);
        let mut ladder = vec![selection.begin(measured(None))];
        ladder.extend((0..10).filter_map(|_| selection.observe(&told(50))));
        ladder
    }

    #[test]
    fn services_stand_in_the_order_of_what_they_are_told_to_cost() {
        let by_parts = ladder(Assumed::default());
        let all = [Service::Direct, Service::Coding, Service::Caching, Service::Forwarding];
        assert_eq!(by_parts, all, "by what leaves relays");
        let usd = |usd| tradewind_units::Money::from_usd(usd).unwrap();
        // The last relay's cloud asks much, the first one's nothing: requests to helpers cost more than copies.
        let costs = ServiceCosts { coding: usd(0.03), caching: usd(0.01), forwarding: usd(0.09) };
        let by_costs = ladder(Assumed { costs, ..Assumed::default() });
        assert_eq!(
            by_costs,
            [Service::Direct, Service::Caching, Service::Coding, Service::Forwarding]
        );
    }

    #[test]
    fn blocks_that_are_open_for_long_make_coding_slow() {
        // 80 ms, 5 to notice, 10 to ask, 10 for helpers, and what is left of a block's time when the request is there.
        let first_bought = |coding_within| {
            let assumed = Assumed { coding_within, ..Assumed::default() };
            let mut selection = Selection::new(ms(130), Ratio::new(0.01).unwrap(), assumed);
            selection.begin(measured(None));
            selection.observe(&told(50));
            selection.observe(&told(50))
        };
        assert_eq!(first_bought(ms(10)), Some(Service::Coding));
        assert_eq!(first_bought(ms(60)), Some(Service::Caching));
    }

    #[test]
    fn the_planner_takes_relays_to_code_as_they_do() {
        let planned = tradewind_plan::packets::BlockCoding::default();
        let relays = crate::RelayServices::default();
        assert_eq!(planned.cross_stream, [relays.coding.repairs, relays.coding.packets]);
        let in_stream = relays.in_stream.unwrap();
        assert_eq!(planned.in_stream, [in_stream.repairs, in_stream.packets]);
        assert_eq!(planned.within, Assumed::default().coding_within);
    }
}
