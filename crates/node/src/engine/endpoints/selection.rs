//! Choice of a flow's service while it runs: the cheapest that meets its latency budget `[JQ 3.3]`,
//! by the delays of its paths, its receiver's reports and its relays' bills
//! (`tradewind_plan::service`). Until there are bills, costs are those of the configuration
//! (`costs` of a `[[packet]]`), or in proportion to the bytes that leave relays.
//!
//! The delay between the receiver and its relay is not measured here: the members' list holds it
//! (`super::super::members`), and without it the sender's own access delay is assumed.

use std::collections::BTreeMap;

use tradewind_config::packet::{Assumed, ServiceCosts};
use tradewind_model::packet::{PacketPath, PacketService};
use tradewind_packet::message::{Feedback, Service};
use tradewind_plan::service::{
    Cause, Change, Choice, ConfiguredCosts, DETECTION, Demand, FlowCosts, Report, ServiceKeeper,
    Spent, StandingQueue, choose, offers,
};
use tradewind_units::{Duration, Ratio, Timestamp};

/// Interval of the checks of delays and bills. Chosen: that of receivers' reports and relays'
/// bills; round trips are smoothed over two seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The choice for one flow.
#[derive(Debug)]
pub(in super::super) struct Selection {
    demand: Demand,
    assumed: Assumed,
    costs: FlowCosts,
    queue: StandingQueue,
    keeper: Option<ServiceKeeper>,
    why: &'static str,
    next_look: Timestamp,
}

/// Measured round trips.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTrips {
    pub(super) internet: Duration,
    pub(super) overlay: Duration,
    /// Between the sender and its relay.
    pub(super) access: Duration,
    /// Between the receiver and its relay, if known.
    pub(super) remote_access: Option<Duration>,
}

impl RoundTrips {
    /// Returns the round trips without a queue before the hop that all share.
    fn without(self, queue: Duration) -> Self {
        let less = |round_trip: Duration| round_trip.saturating_sub(queue);
        let Self { internet, overlay, access, remote_access } = self;
        Self {
            internet: less(internet),
            overlay: less(overlay),
            access: less(access),
            remote_access,
        }
    }
}

impl Selection {
    pub(in super::super) fn new(budget: Duration, bearable: Ratio, assumed: Assumed) -> Self {
        let configured = assumed.costs.map(|ServiceCosts { coding, caching, forwarding, loss }| {
            ConfiguredCosts {
                costs: BTreeMap::from([
                    (PacketService::Coding, coding),
                    (PacketService::Caching, caching),
                    (PacketService::Forwarding, forwarding),
                ]),
                loss,
            }
        });
        Self {
            demand: Demand { budget, bearable },
            assumed,
            costs: FlowCosts::new(configured, assumed.coding.rates()),
            queue: StandingQueue::default(),
            keeper: None,
            why: "its paths are not measured yet",
            next_look: Timestamp::ZERO,
        }
    }

    pub(super) fn why(&self) -> &'static str {
        self.why
    }

    /// Restarts the measurements: the paths have changed.
    pub(super) fn measure_again(&mut self) {
        (self.keeper, self.queue) = (None, StandingQueue::default());
        self.costs.forget_relays();
    }

    pub(super) fn has_begun(&self) -> bool {
        self.keeper.is_some()
    }

    /// Chooses by the delays, and by the loss that is expected or was reported before.
    pub(super) fn begin(&mut self, now: Timestamp, measured: RoundTrips) -> Service {
        self.queue.note(now, measured.internet, measured.access);
        let path = self.path(measured);
        let choice: Choice = choose(self.demand, &path, self.costs.loss(), &self.costs.now());
        self.why = if choice.meets {
            "the cheapest within its budget"
        } else {
            "none meets its budget: the fastest"
        };
        let keeper = self.keeper.insert(ServiceKeeper::new(self.demand, &choice));
        service_of(keeper.service())
    }

    /// Checks, at intervals, the round trips, if they are known by now, and the bills of the
    /// service that carried the flow. Returns the service, when it changes.
    pub(super) fn look(
        &mut self,
        now: Timestamp,
        measured: Option<RoundTrips>,
        (carried_by, spent): (Service, Spent),
    ) -> Option<Service> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK_EVERY;
        self.costs.note_spent(now, modelled(carried_by), spent);
        let measured = measured?;
        let queue = self.queue.note(now, measured.internet, measured.access);
        let path = self.path(measured.without(queue));
        let offers = offers(self.demand, &path, self.costs.loss(), &self.costs.now());
        let change = self.keeper.as_mut()?.look(&offers, queue);
        self.take(change)
    }

    /// Evaluates a report. Returns the service, when it changes.
    pub(super) fn observe(&mut self, feedback: &Feedback) -> Option<Service> {
        let Feedback { expected, in_time, lost_by_internet, .. } = *feedback;
        let report = Report { expected, in_time, lost_by_internet };
        self.costs.note_report(report);
        let change = self.keeper.as_mut()?.observe(report);
        self.take(change)
    }

    fn take(&mut self, change: Option<Change>) -> Option<Service> {
        let Change { service, cause } = change?;
        self.why = match cause {
            Cause::Missed => "another lost too much or came late",
            Cause::Cheaper => "a dearer one was not needed for a while",
            Cause::TooSlow => "another became too slow for its budget",
            Cause::FastAgain => "it meets its budget by now, and another does not",
            Cause::Harmed => "a dearer one made more late or lost",
        };
        Some(service_of(service))
    }

    fn path(&self, measured: RoundTrips) -> PacketPath {
        let RoundTrips { internet, overlay, access, remote_access } = measured;
        let access = access.min(overlay / 2) / 2;
        let remote_access =
            remote_access.map_or(access, |round_trip| (round_trip / 2).min(overlay / 2 - access));
        PacketPath {
            internet: internet / 2,
            source_access: access,
            between_relays: overlay / 2 - access - remote_access,
            receiver_access: remote_access,
            helper_access: remote_access,
            detection: DETECTION,
            encoding: self.assumed.coding.within,
        }
    }
}

/// Returns the planner's name of a service.
fn modelled(service: Service) -> PacketService {
    match service {
        Service::Direct => PacketService::Direct,
        Service::Coding => PacketService::Coding,
        Service::Caching => PacketService::Caching,
        Service::Forwarding => PacketService::Forwarding,
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
    use tradewind_plan::packets::BlockCoding;
    use tradewind_plan::service::RelayUsage;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn unmeasured(budget: Duration) -> Selection {
        Selection::new(budget, Ratio::new(0.01).unwrap(), Assumed::default())
    }

    fn begun(budget: u64) -> (Selection, Service) {
        let mut selection = unmeasured(ms(budget));
        // 80 ms one way over the Internet, 90 ms over the relays, 5 ms of these to the first.
        let service = selection.begin(at(0), measured(None));
        (selection, service)
    }

    fn measured(remote_access: Option<Duration>) -> RoundTrips {
        RoundTrips { internet: ms(160), overlay: ms(180), access: ms(10), remote_access }
    }

    fn feedback(lost: u64) -> Feedback {
        let flow = FlowNumber(1);
        let in_time = 1000 - lost;
        let (late, recovered) = (0, [0; 3]);
        Feedback { flow, expected: 1000, in_time, late, lost_by_internet: lost, recovered }
    }

    #[test]
    fn selection_begins_with_cheapest() {
        assert_eq!(begun(150).1, Service::Direct);
        let (selection, service) = begun(70);
        assert_eq!(
            (service, selection.why()),
            (Service::Forwarding, "none meets its budget: the fastest")
        );
    }

    #[test]
    fn loss_reports_raise_service() {
        let (mut selection, _) = begun(150);
        assert_eq!(selection.observe(&feedback(50)), None);
        assert_eq!(selection.observe(&feedback(50)), Some(Service::Coding));
        assert_eq!(selection.why(), "another lost too much or came late");
        // Where the receiver is far from its relay, only forwarding is fast enough.
        let mut selection = unmeasured(ms(150));
        selection.begin(at(0), measured(Some(ms(120))));
        selection.observe(&feedback(50));
        assert_eq!(selection.observe(&feedback(50)), Some(Service::Forwarding));
        // Coding takes too long within 115 ms: 80 ms, 5 ms to notice, 10 ms to request, the wait
        // for the block, 10 ms for helpers.
        let (mut selection, _) = begun(115);
        selection.observe(&feedback(50));
        assert_eq!(selection.observe(&feedback(50)), Some(Service::Caching));
    }

    /// Returns the services that a flow passes through as the Internet's loss goes on.
    fn ladder(assumed: Assumed) -> Vec<Service> {
        let mut selection = Selection::new(ms(300), Ratio::new(0.01).unwrap(), assumed);
        let mut ladder = vec![selection.begin(at(0), measured(None))];
        ladder.extend((0..10).filter_map(|_| selection.observe(&feedback(50))));
        ladder
    }

    #[test]
    fn services_are_ordered_by_configured_cost() {
        let by_parts = ladder(Assumed::default());
        let all = [Service::Direct, Service::Coding, Service::Caching, Service::Forwarding];
        assert_eq!(by_parts, all, "by what leaves relays");
        let usd = |usd| tradewind_units::Money::from_usd(usd).unwrap();
        // The last relay's cloud is expensive, the first one's free: requests to helpers cost more
        // than copies.
        let (coding, caching, forwarding) = (usd(0.03), usd(0.01), usd(0.09));
        let costs = Some(ServiceCosts { coding, caching, forwarding, loss: Ratio::ZERO });
        let by_costs = ladder(Assumed { costs, ..Assumed::default() });
        // Where caching is not enough, coding is no better.
        assert_eq!(by_costs, [Service::Direct, Service::Caching, Service::Forwarding]);
    }

    #[test]
    fn long_blocks_slow_coding() {
        // 80 ms, 5 ms to notice, 10 ms to request, 10 ms for helpers, and the rest of a block's
        // time when the request arrives.
        let first_bought = |within| {
            let coding = BlockCoding { within, ..BlockCoding::default() };
            let assumed = Assumed { coding, ..Assumed::default() };
            let mut selection = Selection::new(ms(130), Ratio::new(0.01).unwrap(), assumed);
            selection.begin(at(0), measured(None));
            selection.observe(&feedback(50));
            selection.observe(&feedback(50))
        };
        assert_eq!(first_bought(ms(10)), Some(Service::Coding));
        assert_eq!(first_bought(ms(60)), Some(Service::Caching));
    }

    #[test]
    fn planner_and_relays_share_coding_rates() {
        assert_eq!(Assumed::default().coding, BlockCoding::default());
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    /// Checks once a second, in a range of seconds, with the traffic by then; returns the services
    /// that follow.
    fn looks(
        selection: &mut Selection,
        seconds: std::ops::Range<u64>,
        measured: Option<RoundTrips>,
        carried: impl Fn(u64) -> (Service, Spent),
    ) -> Vec<Service> {
        seconds.filter_map(|second| selection.look(at(second), measured, carried(second))).collect()
    }

    #[test]
    fn slow_path_is_left() {
        let (mut selection, _) = begun(150);
        let slow = RoundTrips { internet: ms(320), ..measured(None) };
        let direct = |_| (Service::Direct, Spent::default());
        assert_eq!(looks(&mut selection, 0..1000, None, direct), [], "one of both is silent");
        let left = looks(&mut selection, 1000..1010, Some(slow), direct);
        assert_eq!(left, [Service::Forwarding]);
        assert_eq!(selection.why(), "another became too slow for its budget");
        // Checks keep their own interval, however often the engine calls.
        let (mut selection, _) = begun(150);
        let looks = (0..1000).filter_map(|_| selection.look(at(0), Some(slow), direct(0)));
        assert_eq!(looks.count(), 0);
    }

    #[test]
    fn coding_billed_dearer_yields_to_caching() {
        let (mut selection, _) = begun(150);
        selection.observe(&feedback(50));
        assert_eq!(selection.observe(&feedback(50)), Some(Service::Coding));
        // No flow shares its blocks: each packet goes as a copy, and some more.
        let alone = |second: u64| {
            let (packets, bytes) = (second * 100, second * 100_000);
            let ingress = RelayUsage { bytes: bytes * 12 / 10, nano_usd: bytes / 10 };
            let egress = Some(RelayUsage::default());
            (Service::Coding, Spent { packets, bytes, copied: packets, ingress, egress })
        };
        // The Internet's loss stays above the limit.
        let recovered = Feedback { in_time: 1000, ..feedback(50) };
        let without_accounting: Vec<Service> =
            (0..100).filter_map(|_| selection.observe(&recovered)).collect();
        assert_eq!(without_accounting, []);
        assert_eq!(looks(&mut selection, 0..60, Some(measured(None)), alone), []);
        let next: Vec<Service> = (0..100).filter_map(|_| selection.observe(&recovered)).collect();
        assert_eq!(next, [Service::Caching]);
    }
}
