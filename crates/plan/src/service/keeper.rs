//! Keeps a running flow on the cheapest packet service that works, by its receiver's reports, the
//! delays of its paths and the costs of services, which all change `[JQ 3.3]`.
//!
//! | observation | action |
//! |---|---|
//! | reports miss the demand, the first three over relays | none: these only begin to serve it |
//! | consecutive reports miss the demand | the cheapest *stronger* service that is fast enough: a stronger one recovers more packets, and sooner |
//! | consecutive reports meet it | the next cheaper service that is fast enough is tried; direct only if the Internet would have sufficed |
//! | the service is too slow in consecutive checks | the cheapest stronger one that is fast enough, or any; the fastest if none is |
//! | it is still too slow, and another is fast enough by now | that one |
//! | with a stronger service more packets are missed than before, or the queue before the first hop is longer (`guard`) | back to the one before, and no step up for a hold time, if that helps |
//! | packets are missed, and there is a standing queue before the first hop | no step up for a hold time |
//!
//! Receivers measure from a packet's expected arrival, so that a path that gets slower as a whole
//! shows only in its round trips. Delays have jitter, and costs are estimates until a service has
//! run: no change follows from a single check or a small difference.

use tradewind_model::packet::PacketService;
use tradewind_units::Duration;

use super::guard::{Guard, Interval};
use super::{Choice, Demand, ServiceOffer, fastest};

/// A receiver's report of one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Packets that were expected.
    pub expected: u64,
    /// Those that arrived within the budget, on any path.
    pub in_time: u64,
    /// Those that the Internet lost, recovered or not.
    pub lost_by_internet: u64,
}

/// Intervals at the start of a flow over relays that may miss the demand. Chosen: relays serve a
/// flow after a second or two, and recover nothing before.
const UNSETTLED: u32 = 3;
/// Consecutive intervals that miss the demand before a stronger service is used. Chosen: one may be
/// chance.
const BAD_BEFORE_UP: u32 = 2;
/// Consecutive intervals that meet it before a cheaper service is tried, at first. Chosen: outages
/// come in bursts.
const GOOD_BEFORE_DOWN: u32 = 30;
/// The greatest number of them, after cheaper ones have failed repeatedly.
const MAX_BEFORE_DOWN: u32 = 30 << 6;
/// Consecutive checks in which a service is too slow before it counts as such. Chosen: at one a
/// second, longer than a burst of queueing.
const SLOW_BEFORE_LEFT: u32 = 5;
/// Consecutive checks in which it is fast enough before it counts as such again. Chosen: as long as
/// the demand must be met before a step down. Leaving a service too early costs packets, returning
/// to it too late costs a little money.
const FAST_BEFORE_TRIED: u32 = 30;
/// Divisor of the budget that gives the margin required for that. Chosen: above the jitter that
/// remains in a smoothed round trip.
const FREE_OF_BUDGET: u32 = 10;
/// Relative saving that another service must offer to be tried in place of the running one. Chosen:
/// above the error of accounting over 30 s, which is at most a second's traffic.
const WORTH_TRYING: f64 = 0.1;

/// The cause of a change of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Too many packets were late or lost with the one before.
    Missed,
    /// The new one is cheaper, and the demand was met for long enough.
    Cheaper,
    /// The one before became too slow for the budget.
    TooSlow,
    /// The one before is too slow, and the new one is fast enough again.
    FastAgain,
    /// With the one before more packets were late or lost than with the new one.
    Harmed,
}

/// A change of a flow's service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The new service.
    pub service: PacketService,
    /// The cause.
    pub cause: Cause,
}

/// Keeps a flow on the cheapest service that works.
///
/// Steps to cheaper services are made one at a time. One that has to be reverted doubles the wait
/// before the next.
#[derive(Debug, Clone)]
pub struct ServiceKeeper {
    demand: Demand,
    /// All services in the order of their cost.
    rungs: Vec<Rung>,
    service: PacketService,
    /// Intervals that may still miss the demand.
    unsettled: u32,
    bad: u32,
    good: u32,
    good_before_down: u32,
    /// True if the last step was to a cheaper service that is not yet confirmed.
    is_trial: bool,
    /// True if the Internet alone would have met the demand by the last report.
    would_do_alone: bool,
    guard: Guard,
    /// Queueing delay before the first hop, which all paths share.
    queue: Duration,
}

/// A service, and whether it counts as fast enough.
#[derive(Debug, Clone, Copy)]
struct Rung {
    offer: ServiceOffer,
    is_fast: bool,
    /// Consecutive checks with the opposite result.
    doubts: u32,
}

impl Rung {
    fn new(demand: Demand, offer: ServiceOffer) -> Self {
        Self { offer, is_fast: offer.delivery <= demand.budget, doubts: 0 }
    }

    fn look(&mut self, demand: Demand, offer: ServiceOffer) {
        self.offer = offer;
        let (is_doubtful, most) = if self.is_fast {
            (offer.delivery > demand.budget, SLOW_BEFORE_LEFT)
        } else {
            let wanted = demand.budget - demand.budget / FREE_OF_BUDGET;
            (offer.delivery <= wanted, FAST_BEFORE_TRIED)
        };
        self.doubts = if is_doubtful { self.doubts + 1 } else { 0 };
        if self.doubts >= most {
            (self.is_fast, self.doubts) = (!self.is_fast, 0);
        }
    }
}

impl ServiceKeeper {
    /// Creates a keeper that starts with the selected service.
    #[must_use]
    pub fn new(demand: Demand, choice: &Choice) -> Self {
        let meets_alone =
            |offer: &ServiceOffer| offer.service == PacketService::Direct && offer.meets;
        Self {
            demand,
            rungs: choice.offers.iter().map(|offer| Rung::new(demand, *offer)).collect(),
            service: choice.service,
            unsettled: if choice.service == PacketService::Direct { 0 } else { UNSETTLED },
            bad: 0,
            good: 0,
            good_before_down: GOOD_BEFORE_DOWN,
            is_trial: false,
            would_do_alone: choice.offers.iter().any(meets_alone),
            guard: Guard::new(),
            queue: Duration::ZERO,
        }
    }

    /// Returns the current service.
    #[must_use]
    pub fn service(&self) -> PacketService {
        self.service
    }

    /// Processes a report; returns the change of the service, if there is one.
    pub fn observe(&mut self, report: Report) -> Option<Change> {
        if report.expected == 0 {
            return None;
        }
        let bearable = self.demand.bearable.as_f64() * report.expected as f64;
        let missed = report.expected.saturating_sub(report.in_time) as f64;
        self.would_do_alone = report.lost_by_internet as f64 <= bearable;
        let is_settled = self.unsettled == 0;
        self.unsettled = self.unsettled.saturating_sub(1);
        let (expected, queue) = (report.expected as f64, self.queue);
        let seen = Interval { expected, missed, is_late: self.is_late(), queue };
        let most = self.demand.bearable.as_f64();
        if let Some(service) = self.guard.observe(self.service, seen, most) {
            let cause = if service < self.service { Cause::Harmed } else { Cause::Missed };
            return Some(self.change(service, cause));
        }
        if missed > bearable {
            self.good = 0;
            self.bad += u32::from(is_settled);
            return if self.bad >= BAD_BEFORE_UP { self.step_up() } else { None };
        }
        self.bad = 0;
        let cheaper = self.next_cheaper();
        // The Internet alone is tried again only after it would have sufficed.
        let would_do = cheaper != Some(PacketService::Direct) || self.would_do_alone;
        self.good = if would_do { self.good + 1 } else { 0 };
        if self.is_trial && self.good >= GOOD_BEFORE_DOWN {
            self.is_trial = false;
            self.good_before_down = GOOD_BEFORE_DOWN;
        }
        if self.good < self.good_before_down {
            return None;
        }
        let change = cheaper.map(|service| self.change(service, Cause::Cheaper));
        (self.good, self.is_trial) = (0, change.is_some() || self.is_trial);
        change
    }

    /// Checks the current delays and costs of the services, to all of which the queueing delay
    /// `queue` before the first hop is added; returns the change of the service, if there is one.
    pub fn look(&mut self, offers: &[ServiceOffer], queue: Duration) -> Option<Change> {
        self.queue = queue;
        let was_fast = self.is_fast();
        for rung in &mut self.rungs {
            if let Some(offer) = offers.iter().find(|offer| offer.service == rung.offer.service) {
                rung.look(self.demand, *offer);
            }
        }
        self.rungs.sort_by_key(|rung| rung.offer.rank());
        if self.is_fast() {
            return None;
        }
        let cause = if was_fast { Cause::TooSlow } else { Cause::FastAgain };
        let slow_but_fastest = || {
            let fastest = fastest(self.rungs.iter().map(|rung| &rung.offer))?;
            was_fast.then_some(fastest.service)
        };
        let next =
            self.cheapest_stronger().or_else(|| self.cheapest()).or_else(slow_but_fastest)?;
        let is_allowed = next < self.service || self.guard.allows_faster();
        (next != self.service && is_allowed).then(|| self.change(next, cause))
    }

    fn running(&self) -> Option<&Rung> {
        self.rungs.iter().find(|rung| rung.offer.service == self.service)
    }

    fn is_fast(&self) -> bool {
        self.running().is_some_and(|rung| rung.is_fast)
    }

    /// Returns whether the queueing delay before the first hop makes packets exceed the latency
    /// budget.
    fn is_late(&self) -> bool {
        let is_usual = |rung: &&Rung| match rung.offer.service {
            PacketService::Direct => true,
            PacketService::Forwarding => self.service == PacketService::Forwarding,
            PacketService::Caching | PacketService::Coding => false,
        };
        let usual = self.rungs.iter().filter(is_usual).map(|rung| rung.offer.delivery).min();
        // Not all packets see the full queue.
        let wanted = self.demand.budget - self.demand.budget / FREE_OF_BUDGET;
        usual.is_some_and(|usual| usual <= wanted && usual + self.queue > wanted)
    }

    /// Returns the services that count as fast enough, the cheapest first.
    fn fast(&self) -> impl DoubleEndedIterator<Item = &ServiceOffer> {
        self.rungs.iter().filter(|rung| rung.is_fast).map(|rung| &rung.offer)
    }

    fn cheapest_stronger(&self) -> Option<PacketService> {
        self.fast().map(|offer| offer.service).find(|service| *service > self.service)
    }

    /// Returns the cheapest service that is fast enough; direct only if the Internet alone would
    /// suffice.
    fn cheapest(&self) -> Option<PacketService> {
        let bears =
            |service: &PacketService| *service != PacketService::Direct || self.would_do_alone;
        self.fast().map(|offer| offer.service).find(bears)
    }

    /// Returns the most expensive of the cheaper services that are worth trying in place of the
    /// running one.
    fn next_cheaper(&self) -> Option<PacketService> {
        let paid = self.running()?.offer.cost.as_usd();
        let is_worth_it = |offer: &&ServiceOffer| {
            offer.service != self.service
                && (offer.service == PacketService::Direct
                    || offer.cost.as_usd() < paid * (1.0 - WORTH_TRYING))
        };
        self.fast().rfind(is_worth_it).map(|offer| offer.service)
    }

    fn step_up(&mut self) -> Option<Change> {
        self.bad = 0;
        let stronger = self.cheapest_stronger()?;
        if !self.guard.allows(self.queue) {
            return None;
        }
        if self.is_trial {
            self.good_before_down = (self.good_before_down * 2).min(MAX_BEFORE_DOWN);
        }
        Some(self.change(stronger, Cause::Missed))
    }

    fn change(&mut self, service: PacketService, cause: Cause) -> Change {
        self.guard.note_change(self.service, service);
        (self.service, self.bad, self.good, self.is_trial) = (service, 0, 0, false);
        Change { service, cause }
    }
}

#[cfg(test)]
mod tests;
