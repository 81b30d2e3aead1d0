//! Tests of a flow's service under sequences of reports, delays and costs, without a clock.

use std::collections::BTreeMap;

use tradewind_model::packet::PacketPath;
use tradewind_units::{Money, Ratio};

use super::super::tests::{ms, path, ratio};
use super::super::{choose, offers};
use super::*;
use PacketService::{Caching, Coding, Direct, Forwarding};

fn costs(coding: f64, caching: f64, forwarding: f64) -> BTreeMap<PacketService, Money> {
    [(Coding, coding), (Caching, caching), (Forwarding, forwarding)]
        .map(|(service, usd)| (service, Money::from_usd(usd).unwrap()))
        .into()
}

fn usual() -> BTreeMap<PacketService, Money> {
    costs(0.01, 0.04, 0.08)
}

/// Returns a keeper that starts with the service that [`choose`] selects for an Internet path that
/// loses `loss`.
fn at_start(loss: f64, costs: &BTreeMap<PacketService, Money>) -> ServiceKeeper {
    let demand = Demand { budget: ms(150), bearable: ratio(0.01) };
    ServiceKeeper::new(demand, &choose(demand, &path(), ratio(loss), costs))
}

/// The same, some time after its start.
fn begun(loss: f64, costs: &BTreeMap<PacketService, Money>) -> ServiceKeeper {
    ServiceKeeper { unsettled: 0, ..at_start(loss, costs) }
}

fn keeper(loss: f64) -> ServiceKeeper {
    begun(loss, &usual())
}

fn good(lost: u64) -> Report {
    Report { expected: 1000, in_time: 995, lost_by_internet: lost }
}

const BAD: Report = Report { expected: 1000, in_time: 900, lost_by_internet: 100 };

fn missed(service: PacketService) -> Option<Change> {
    Some(Change { service, cause: Cause::Missed })
}

/// Checks a path and costs `times` times; returns the changes.
fn looks(
    keeper: &mut ServiceKeeper,
    times: u32,
    path: &PacketPath,
    costs: &BTreeMap<PacketService, Money>,
) -> Vec<(u32, Change)> {
    let offers = offers(keeper.demand, path, Ratio::ZERO, costs);
    (1..=times).filter_map(|time| Some((time, keeper.look(&offers, Duration::ZERO)?))).collect()
}

/// Feeds good reports until the service changes.
fn good_until_change(keeper: &mut ServiceKeeper) -> (u32, Change) {
    (1..1000).find_map(|time| Some((time, keeper.observe(good(0))?))).unwrap()
}

#[test]
fn two_bad_intervals_step_up_and_one_does_not() {
    let mut keeper = keeper(0.0);
    assert_eq!(keeper.service(), Direct);
    assert_eq!(keeper.observe(BAD), None);
    assert_eq!(keeper.observe(good(0)), None);
    assert_eq!(keeper.observe(BAD), None);
    assert_eq!(keeper.observe(BAD), missed(Coding));
    for service in [Caching, Forwarding] {
        keeper.observe(BAD);
        assert_eq!(keeper.observe(BAD), missed(service));
    }
    keeper.observe(BAD);
    assert_eq!(keeper.observe(BAD), None);
}

#[test]
fn first_intervals_over_relays_may_miss() {
    let mut keeper = at_start(0.03, &usual());
    assert_eq!(keeper.service(), Coding);
    assert!((0..UNSETTLED + 1).all(|_| keeper.observe(BAD).is_none()));
    assert_eq!(keeper.observe(BAD), missed(Caching));
    // Over the Internet nothing begins.
    let mut keeper = at_start(0.0, &usual());
    assert_eq!(keeper.observe(BAD), None);
    assert_eq!(keeper.observe(BAD), missed(Coding));
    // Good ones count from the first.
    assert_eq!(good_until_change(&mut at_start(0.03, &usual())).0, GOOD_BEFORE_DOWN);
}

#[test]
fn coding_is_not_tried_after_caching_failed() {
    let mut keeper = begun(0.0, &costs(0.03, 0.01, 0.09));
    let changes: Vec<_> =
        (0..10).filter_map(|_| keeper.observe(BAD)).map(|change| change.service).collect();
    assert_eq!(changes, [Caching, Forwarding]);
}

#[test]
fn direct_path_is_retried_once_sufficient() {
    let mut keeper = keeper(0.05);
    assert_eq!(keeper.service(), Coding);
    assert!((0..1000).all(|_| keeper.observe(good(50)).is_none()));
    let changes: Vec<_> = (0..30).filter_map(|_| keeper.observe(good(0))).collect();
    assert_eq!(changes, [Change { service: Direct, cause: Cause::Cheaper }]);
}

#[test]
fn failed_step_down_is_retried_less_often() {
    let mut keeper = keeper(0.05);
    let mut intervals_until_down = || {
        let (quiet, _) = good_until_change(&mut keeper);
        keeper.observe(BAD);
        assert_eq!(keeper.observe(BAD), missed(Coding));
        quiet
    };
    assert_eq!([intervals_until_down(), intervals_until_down()], [30, 60]);
    assert_eq!(intervals_until_down(), 120);
}

#[test]
fn silence_changes_nothing() {
    let mut keeper = keeper(0.05);
    let silence = Report { expected: 0, in_time: 0, lost_by_internet: 0 };
    assert!((0..100).all(|_| keeper.observe(silence).is_none()));
}

#[test]
fn slow_service_is_left_and_retried_when_fast() {
    let mut keeper = keeper(0.0);
    let slow = PacketPath { internet: ms(160), ..path() };
    let left = looks(&mut keeper, 60, &slow, &usual());
    assert_eq!(left, [(5, Change { service: Forwarding, cause: Cause::TooSlow })]);
    // Reports are good, but nothing cheaper is fast enough.
    assert!((0..1000).all(|_| keeper.observe(good(0)).is_none()));
    assert_eq!(looks(&mut keeper, 29, &path(), &usual()), []);
    assert!((0..1000).all(|_| keeper.observe(good(0)).is_none()));
    assert_eq!(looks(&mut keeper, 1, &path(), &usual()), []);
    // As with losses: one step at a time.
    let steps = [(); 3].map(|()| good_until_change(&mut keeper).1.service);
    assert_eq!(steps, [Caching, Coding, Direct]);
}

#[test]
fn jitter_around_budget_changes_nothing() {
    let mut keeper = keeper(0.0);
    let slow = PacketPath { internet: ms(151), ..path() };
    for _ in 0..100 {
        assert_eq!(looks(&mut keeper, 4, &slow, &usual()), []);
        assert_eq!(looks(&mut keeper, 1, &path(), &usual()), []);
    }
    looks(&mut keeper, 5, &slow, &usual());
    assert_eq!(keeper.service(), Forwarding);
    // Just within the budget is not enough to be used again.
    let barely = PacketPath { internet: ms(140), ..path() };
    looks(&mut keeper, 1000, &barely, &usual());
    assert!((0..1000).all(|_| keeper.observe(good(0)).is_none()));
}

#[test]
fn fastest_service_runs_if_none_meets_budget() {
    let mut keeper = keeper(0.05);
    let far = PacketPath { internet: ms(200), between_relays: ms(175), ..path() };
    let left = looks(&mut keeper, 100, &far, &usual());
    assert_eq!(left, [(5, Change { service: Forwarding, cause: Cause::TooSlow })]);
    keeper.observe(BAD);
    assert_eq!(keeper.observe(BAD), None, "no other would be better");
    // The Internet's route has changed; the delays of the relays are as before.
    let near = PacketPath { internet: ms(80), ..far };
    assert_eq!(looks(&mut keeper, 100, &near, &usual()), [], "it loses too much");
    keeper.observe(good(0));
    let again = looks(&mut keeper, 1, &near, &usual());
    assert_eq!(again, [(1, Change { service: Direct, cause: Cause::FastAgain })]);
}

#[test]
fn order_follows_the_costs() {
    let mut keeper = keeper(0.05);
    assert_eq!(keeper.service(), Coding);
    // It turned out to be expensive.
    assert_eq!(looks(&mut keeper, 1, &path(), &costs(0.05, 0.04, 0.08)), []);
    let step = |keeper: &mut ServiceKeeper| {
        (0..30).find_map(|_| keeper.observe(good(50))).map(|change| change.service)
    };
    assert_eq!(step(&mut keeper), Some(Caching));
    assert_eq!(step(&mut keeper), None, "the Internet loses too much, and coding is dearer");
    looks(&mut keeper, 1, &path(), &usual());
    assert_eq!(step(&mut keeper), Some(Coding));
}

#[test]
fn small_cost_differences_change_nothing() {
    let mut keeper = keeper(0.05);
    for round in 0..200 {
        let coding = if round % 2 == 0 { 0.039 } else { 0.043 };
        assert_eq!(looks(&mut keeper, 1, &path(), &costs(coding, 0.04, 0.08)), []);
        assert_eq!(keeper.observe(good(50)), None);
    }
}

#[test]
fn stronger_service_is_chosen_even_if_cheaper() {
    let mut keeper = keeper(0.05);
    looks(&mut keeper, 1, &path(), &costs(0.1, 0.09, 0.08));
    keeper.observe(BAD);
    assert_eq!(keeper.observe(BAD), missed(Forwarding));
}

/// Returns a report in which `missed` of a thousand packets are missed, all of them lost by the
/// Internet.
fn missing(missed: u64) -> Report {
    Report { expected: 1000, in_time: 1000 - missed, lost_by_internet: missed }
}

/// Feeds reports of `intervals` on a path that loses some packets by itself, and more if copies are
/// sent. Returns the number of intervals of each service, and the cause of the last change.
fn on_a_short_uplink(intervals: u32) -> (BTreeMap<PacketService, u32>, Option<Cause>) {
    let (mut keeper, mut ran, mut why) = (keeper(0.0), BTreeMap::new(), None);
    for _ in 0..intervals {
        *ran.entry(keeper.service()).or_default() += 1;
        let missed = match keeper.service() {
            Direct => 21,
            Coding => 121,
            Caching => 93,
            Forwarding => 186,
        };
        why = keeper.observe(missing(missed)).map(|change| change.cause).or(why);
    }
    (ran, why)
}

#[test]
fn congesting_copies_are_withdrawn() {
    let (ran, why) = on_a_short_uplink(20);
    assert_eq!((ran[&Direct], why), (18, Some(Cause::Harmed)), "{ran:?}");
    // The stronger service is seldom tried again.
    let (ran, _) = on_a_short_uplink(1000);
    assert!(ran[&Direct] >= 970, "{ran:?}");
}

#[test]
fn degraded_path_retains_stronger_service() {
    let mut keeper = keeper(0.0);
    keeper.observe(missing(50));
    assert_eq!(keeper.observe(missing(50)), missed(Coding));
    let withdrawn = (0..5).find_map(|_| keeper.observe(missing(200)));
    assert_eq!(withdrawn, Some(Change { service: Direct, cause: Cause::Harmed }));
    // Without it, twice as many packets are missed.
    let again: Vec<_> = (0..3).filter_map(|_| keeper.observe(missing(400))).collect();
    assert_eq!(again, [Change { service: Coding, cause: Cause::Missed }]);
    let harmed = (0..50).filter_map(|_| keeper.observe(missing(200)));
    assert_eq!(harmed.filter(|change| change.cause == Cause::Harmed).count(), 0);
}

/// Feeds a report and a check once a second, with a queue before the first hop of the path.
fn seconds(keeper: &mut ServiceKeeper, times: u32, missing_of: u64, queue: u64) -> Vec<Change> {
    let offers = offers(keeper.demand, &path(), Ratio::ZERO, &usual());
    let mut changes = Vec::new();
    for _ in 0..times {
        changes.extend(keeper.look(&offers, ms(queue)));
        changes.extend(keeper.observe(missing(missing_of)));
    }
    changes
}

fn harmed(service: PacketService) -> Change {
    Change { service, cause: Cause::Harmed }
}

#[test]
fn standing_queue_delays_copies_by_a_minute() {
    let mut keeper = keeper(0.0);
    assert_eq!(seconds(&mut keeper, 60, 50, 60), []);
    assert_eq!(seconds(&mut keeper, 4, 50, 60)[..1], [missed(Coding).unwrap()]);
}

#[test]
fn service_exceeding_budget_is_withdrawn_at_once() {
    let mut keeper = keeper(0.0);
    assert_eq!(seconds(&mut keeper, 2, 50, 0), [missed(Coding).unwrap()]);
    // Receivers report no misses any more, but all packets arrive 80 ms later.
    assert_eq!(seconds(&mut keeper, 1, 0, 80), [harmed(Direct)]);
    // The queue drains, and a quarter of an hour passes.
    assert_eq!(seconds(&mut keeper, 900, 50, 0), []);
}

#[test]
fn longer_queue_needs_half_the_losses() {
    let changes = |missing_of| {
        let mut keeper = keeper(0.0);
        seconds(&mut keeper, 2, 50, 0);
        seconds(&mut keeper, 20, missing_of, 30)
    };
    assert!(!changes(5).contains(&harmed(Direct)), "they are bearable");
    assert!(!changes(20).contains(&harmed(Direct)), "they are half");
    assert!(changes(40).contains(&harmed(Direct)));
}

#[test]
fn queue_of_others_retains_stronger_service() {
    let mut keeper = keeper(0.0);
    seconds(&mut keeper, 2, 50, 0);
    // The queue stays whether copies are sent or not.
    let changes = seconds(&mut keeper, 5, 40, 60);
    assert_eq!(changes, [harmed(Direct)]);
    let changes = seconds(&mut keeper, 9, 100, 60);
    assert_eq!(changes[..1], [missed(Coding).unwrap()]);
    assert!(!seconds(&mut keeper, 60, 40, 60).contains(&harmed(Direct)));
}

#[test]
fn forwarding_that_fills_uplink_is_withdrawn() {
    let slow = PacketPath { internet: ms(160), ..path() };
    let demand = Demand { budget: ms(150), bearable: ratio(0.01) };
    let mut keeper = ServiceKeeper::new(demand, &choose(demand, &slow, Ratio::ZERO, &usual()));
    assert_eq!(keeper.service(), Forwarding);
    let offers = offers(demand, &slow, Ratio::ZERO, &usual());
    let mut changes = Vec::new();
    for _ in 0..5 {
        changes.extend(keeper.look(&offers, ms(500)));
        changes.extend(keeper.observe(missing(136)));
    }
    assert_eq!(changes, [harmed(Direct)]);
}
