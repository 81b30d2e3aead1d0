//! Which packet service a flow gets: the cheapest that meets its latency budget `[JQ 3.3]`, and how that changes with what its receiver
//! reports.
//!
//! *Direct* is among them: where the Internet itself arrives in time and loses less than the flow can bear, nothing is bought. With
//! caching and coding, packets that are not lost come over the Internet; where that is too slow, only forwarding can help.

use std::collections::BTreeMap;

use tradewind_model::packet::{PacketPath, PacketService};
use tradewind_units::{Duration, Money, Ratio};

/// From when a packet should have come to when it is asked for. Chosen: a gap that is given time to close.
pub const DETECTION: Duration = Duration::from_millis(5);

/// What a flow needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Packets that come later than this after they were sent are worth nothing.
    pub budget: Duration,
    /// Share of packets that may be lost or late.
    pub bearable: Ratio,
}

impl Demand {
    /// Whether a service meets it whose slowest packets arrive after `delivery`, where the Internet loses `loss`.
    #[must_use]
    pub fn is_met(&self, service: PacketService, delivery: Duration, loss: Ratio) -> bool {
        let is_bearable =
            service != PacketService::Direct || loss.as_f64() <= self.bearable.as_f64();
        delivery <= self.budget && is_bearable
    }
}

/// One service for one flow.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct ServiceOffer {
    /// Which.
    pub service: PacketService,
    /// When its slowest packets arrive: lost ones, with caching and coding.
    #[serde(with = "tradewind_units::time::as_seconds", rename = "delivery_s")]
    pub delivery: Duration,
    /// What it costs over the flow's span.
    pub cost: Money,
    /// Whether it meets the demand.
    pub meets: bool,
}

/// What was chosen, and among what.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Choice {
    /// The service.
    pub service: PacketService,
    /// Whether it meets the demand; when none does, it is the fastest.
    pub meets: bool,
    /// All services, the cheapest first.
    pub offers: Vec<ServiceOffer>,
}

/// Chooses for a flow with `demand` whose Internet path loses `loss`; `costs` holds the services that can be had.
///
/// *Direct* costs nothing and is always to be had. Of several that meet the demand at the same cost the fastest is taken.
#[must_use]
pub fn choose(
    demand: Demand,
    path: &PacketPath,
    loss: Ratio,
    costs: &BTreeMap<PacketService, Money>,
) -> Choice {
    let offer = |service: PacketService| {
        let cost = match service {
            PacketService::Direct => Money::ZERO,
            _ => *costs.get(&service)?,
        };
        let delivery = path.delivery(service).unwrap_or(path.internet);
        let meets = demand.is_met(service, delivery, loss);
        Some(ServiceOffer { service, delivery, cost, meets })
    };
    let mut offers: Vec<ServiceOffer> = PacketService::ALL.into_iter().filter_map(offer).collect();
    offers.sort_by_key(|offer| (offer.cost, offer.delivery, offer.service));
    let chosen = offers.iter().find(|offer| offer.meets).copied();
    // Over the Internet alone lost packets never come, however fast it is.
    let fastest = || {
        let bought = offers.iter().filter(|offer| offer.service != PacketService::Direct);
        bought.min_by_key(|offer| (offer.delivery, offer.cost)).or(offers.first()).copied()
    };
    let service = chosen.or_else(fastest).map_or(PacketService::Direct, |offer| offer.service);
    Choice { service, meets: chosen.is_some(), offers }
}

/// What a receiver reports of one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Packets that should have come.
    pub expected: u64,
    /// Those that came within the budget, by whatever way.
    pub in_time: u64,
    /// Those that the Internet lost, recovered or not.
    pub lost_by_internet: u64,
}

/// Intervals in a row that miss the demand before a better service is taken. Chosen: one may be chance.
const BAD_BEFORE_UP: u32 = 2;
/// Intervals in a row that meet it before a cheaper one is tried, at first. Chosen: outages come in bursts.
const GOOD_BEFORE_DOWN: u32 = 30;
/// The most, after cheaper ones have failed again and again.
const MOST_BEFORE_DOWN: u32 = 30 << 6;

/// Keeps a flow on the cheapest service that works, by its receiver's reports.
///
/// It moves one step at a time along what was offered in the order of cost. A step down that has to be taken back doubles the wait before
/// the next.
#[derive(Debug, Clone)]
pub struct ServiceKeeper {
    demand: Demand,
    /// In the order of their cost; those that cannot meet the budget are left out, unless none can.
    ladder: Vec<PacketService>,
    step: usize,
    bad: u32,
    good: u32,
    good_before_down: u32,
    /// The last step was down and has not proved itself.
    is_trial: bool,
}

impl ServiceKeeper {
    /// Begins with what was chosen.
    #[must_use]
    pub fn new(demand: Demand, choice: &Choice) -> Self {
        // Whether the Internet's loss can be borne may change; whether a service is fast enough is its path's.
        let fits = |offer: &&ServiceOffer| {
            offer.delivery <= demand.budget || offer.service == choice.service
        };
        let ladder: Vec<_> = choice.offers.iter().filter(fits).map(|offer| offer.service).collect();
        let step = ladder.iter().position(|service| *service == choice.service).unwrap_or_default();
        Self {
            demand,
            ladder,
            step,
            bad: 0,
            good: 0,
            good_before_down: GOOD_BEFORE_DOWN,
            is_trial: false,
        }
    }

    /// The service now.
    #[must_use]
    pub fn service(&self) -> PacketService {
        self.ladder.get(self.step).copied().unwrap_or(PacketService::Direct)
    }

    /// Takes a report; returns the new service when it changes.
    pub fn observe(&mut self, report: Report) -> Option<PacketService> {
        if report.expected == 0 {
            return None;
        }
        let missed = report.expected.saturating_sub(report.in_time) as f64;
        if missed > self.demand.bearable.as_f64() * report.expected as f64 {
            self.good = 0;
            self.bad += 1;
            return if self.bad >= BAD_BEFORE_UP { self.step_up() } else { None };
        }
        self.bad = 0;
        // The Internet alone is tried again only after it would have sufficed.
        let lost = report.lost_by_internet as f64;
        let would_do = self.step != 1
            || self.ladder[0] != PacketService::Direct
            || lost <= self.demand.bearable.as_f64() * report.expected as f64;
        self.good = if would_do { self.good + 1 } else { 0 };
        if self.is_trial && self.good >= GOOD_BEFORE_DOWN {
            self.is_trial = false;
            self.good_before_down = GOOD_BEFORE_DOWN;
        }
        if self.good >= self.good_before_down { self.step_down() } else { None }
    }

    fn step_up(&mut self) -> Option<PacketService> {
        self.bad = 0;
        if self.step + 1 >= self.ladder.len() {
            return None;
        }
        if self.is_trial {
            self.good_before_down = (self.good_before_down * 2).min(MOST_BEFORE_DOWN);
        }
        self.is_trial = false;
        self.step += 1;
        Some(self.service())
    }

    fn step_down(&mut self) -> Option<PacketService> {
        self.good = 0;
        if self.step == 0 {
            return None;
        }
        self.is_trial = true;
        self.step -= 1;
        Some(self.service())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn ratio(value: f64) -> Ratio {
        Ratio::new(value).unwrap()
    }

    fn path() -> PacketPath {
        PacketPath {
            internet: ms(80),
            source_access: ms(5),
            between_relays: ms(75),
            receiver_access: ms(10),
            helper_access: ms(12),
            ..PacketPath::default()
        }
    }

    fn costs() -> BTreeMap<PacketService, Money> {
        let usd = |usd| Money::from_usd(usd).unwrap();
        [
            (PacketService::Coding, usd(0.01)),
            (PacketService::Caching, usd(0.04)),
            (PacketService::Forwarding, usd(0.08)),
        ]
        .into()
    }

    fn chosen(budget: u64, bearable: f64, loss: f64) -> (PacketService, bool) {
        let demand = Demand { budget: ms(budget), bearable: ratio(bearable) };
        let choice = choose(demand, &path(), ratio(loss), &costs());
        (choice.service, choice.meets)
    }

    #[test]
    fn a_tighter_budget_buys_a_dearer_service() {
        assert_eq!(chosen(150, 0.001, 0.01), (PacketService::Coding, true));
        assert_eq!(chosen(124, 0.001, 0.01), (PacketService::Coding, true));
        assert_eq!(chosen(123, 0.001, 0.01), (PacketService::Caching, true));
        assert_eq!(chosen(99, 0.001, 0.01), (PacketService::Forwarding, true));
        assert_eq!(chosen(89, 0.001, 0.01), (PacketService::Forwarding, false));
    }

    #[test]
    fn an_internet_that_is_good_enough_costs_nothing() {
        assert_eq!(chosen(150, 0.01, 0.01), (PacketService::Direct, true));
        assert!(!chosen(79, 0.01, 0.0).1);
    }

    #[test]
    fn the_cheapest_is_taken_even_if_it_is_the_faster_one() {
        let mut costs = costs();
        costs.insert(PacketService::Caching, Money::from_usd(0.005).unwrap());
        let demand = Demand { budget: ms(150), bearable: ratio(0.001) };
        let choice = choose(demand, &path(), ratio(0.01), &costs);
        assert_eq!(choice.service, PacketService::Caching);
    }

    fn keeper(loss: f64) -> ServiceKeeper {
        let demand = Demand { budget: ms(150), bearable: ratio(0.01) };
        ServiceKeeper::new(demand, &choose(demand, &path(), ratio(loss), &costs()))
    }

    fn good(lost: u64) -> Report {
        Report { expected: 1000, in_time: 995, lost_by_internet: lost }
    }

    const BAD: Report = Report { expected: 1000, in_time: 900, lost_by_internet: 100 };

    #[test]
    fn two_bad_intervals_step_up_and_one_does_not() {
        let mut keeper = keeper(0.0);
        assert_eq!(keeper.service(), PacketService::Direct);
        assert_eq!(keeper.observe(BAD), None);
        assert_eq!(keeper.observe(good(0)), None);
        assert_eq!(keeper.observe(BAD), None);
        assert_eq!(keeper.observe(BAD), Some(PacketService::Coding));
        for service in [PacketService::Caching, PacketService::Forwarding] {
            keeper.observe(BAD);
            assert_eq!(keeper.observe(BAD), Some(service));
        }
        keeper.observe(BAD);
        assert_eq!(keeper.observe(BAD), None);
    }

    #[test]
    fn the_internet_is_tried_again_only_once_it_would_do() {
        let mut keeper = keeper(0.05);
        assert_eq!(keeper.service(), PacketService::Coding);
        assert!((0..1000).all(|_| keeper.observe(good(50)).is_none()));
        let changes: Vec<_> = (0..30).filter_map(|_| keeper.observe(good(0))).collect();
        assert_eq!(changes, [PacketService::Direct]);
    }

    #[test]
    fn a_step_down_that_fails_is_tried_more_seldom() {
        let mut keeper = keeper(0.05);
        let mut intervals_until_down = || {
            let quiet = (1..).find(|_| keeper.observe(good(0)).is_some());
            keeper.observe(BAD);
            assert_eq!(keeper.observe(BAD), Some(PacketService::Coding));
            quiet
        };
        assert_eq!([intervals_until_down(), intervals_until_down()], [Some(30), Some(60)]);
        assert_eq!(intervals_until_down(), Some(120));
    }

    #[test]
    fn silence_changes_nothing() {
        let mut keeper = keeper(0.05);
        let silence = Report { expected: 0, in_time: 0, lost_by_internet: 0 };
        assert!((0..100).all(|_| keeper.observe(silence).is_none()));
    }
}
