//! The gain of the overlay: completion times over relays beside those of the control arm, by size
//! class, with intervals; and what it cost.
//!
//! Times are compared by their logarithms, as completion times of a size are spread by factors.
//! Within each size class that both arms have enough sessions of, the difference of the means of
//! the logarithms has Welch's variance. Classes count by their sessions over relays, so that the
//! speedup is that of what was carried. Sums of variances have Satterthwaite's degrees of freedom,
//! and intervals Student's t.
//!
//! The seconds saved are what the sessions over relays of those classes would have taken more, had
//! each taken as many times longer as the geometric means of its class are apart. Sessions of other
//! classes count as no gain.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_model::statistics::t_975;
use tradewind_units::{FlowId, Money, RelayId, Timestamp};

use crate::draft::{DAY_MS, unix_ms};
use crate::flow_costs::{Costs, first_day, lowest};
use crate::message::{Arm, SessionTally};
use crate::prediction_error::PredictionError;
use crate::record::{DayPredicted, Spent};
use crate::state::State;

/// Least sessions of each arm in a size class that is compared. Chosen: with fewer, one that was
/// delayed decides.
pub const MIN_SESSIONS: u64 = 5;

/// A figure with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The gain of one flow in one day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowGain {
    /// The flow.
    pub flow: FlowId,
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// Sessions for which the plan gave relays, and that ended in order.
    pub overlay_sessions: u64,
    /// Those of them that went direct in the end, as the path over relays failed before it carried
    /// anything.
    pub fallback_sessions: u64,
    /// Sessions of the control arm that ended in order.
    pub control_sessions: u64,
    /// Sessions that went direct by plan, or of the control arm over relays, as the direct path
    /// failed.
    pub other_sessions: u64,
    /// Sessions that did not end in order, of all.
    pub failed_sessions: u64,
    /// Those of them for which the plan gave relays.
    pub overlay_failed_sessions: u64,
    /// Those of them of the control arm.
    pub control_failed_sessions: u64,
    /// Bytes that all of them carried.
    pub bytes: u64,
    /// Completion time direct by that over relays, over size classes with both; absent: too few.
    pub speedup: Option<Estimate>,
    /// The geometric mean of those times over relays, in seconds.
    pub overlay_seconds: Option<f64>,
    /// The same of the control arm, which went direct, had it the sizes of the sessions over
    /// relays.
    pub control_seconds: Option<f64>,
    /// The speedup that plans predicted for such sizes; absent: none did.
    pub speedup_predicted: Option<f64>,
    /// The lower end of its interval; of today alone, once nine flows and days before were
    /// compared.
    pub speedup_predicted_low: Option<f64>,
    /// The upper end of its interval.
    pub speedup_predicted_high: Option<f64>,
    /// Seconds that the sessions over relays saved; absent: too few.
    pub seconds_saved: Option<Estimate>,
    /// The cost of the relays, by bytes carried and by its share of their machines.
    pub cost: Money,
    /// Dollars for each second saved; absent where the gain is not known to be above zero.
    pub usd_per_second_saved: Option<f64>,
}

/// The use of one relay in one day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RelayGain {
    /// The relay.
    pub relay: RelayId,
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// Sessions that it carried.
    pub sessions: u64,
    /// Bytes that it carried.
    pub bytes: u64,
    /// Seconds saved, shared equally among the relays of each path.
    pub seconds_saved: Option<f64>,
    /// Its cost.
    pub cost: Money,
}

/// The money of a day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spending {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The cost of a whole day of the plan in effect, as it was estimated.
    pub estimated: Money,
    /// The cost of machines so far, by the time for which relays were to run.
    pub machines: Money,
    /// The cost of traffic so far, by the bytes of sessions that have ended.
    pub traffic: Money,
    /// The cost of what relays sent in rate tests.
    pub tests: Money,
    /// The budget.
    pub budget: Money,
    /// True once the alarm's share of the budget is spent.
    pub is_alarmed: bool,
    /// True once the budget is spent: all flows go direct until the next day.
    pub is_exhausted: bool,
}

/// The cost of a day.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaySpent {
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// The cost as plans estimated it, each for the time for which it was in effect.
    pub estimated: Money,
    /// The cost of machines.
    pub machines: Money,
    /// The cost of traffic: of sessions and of packets.
    pub traffic: Money,
    /// The cost of what relays sent in rate tests.
    pub tests: Money,
    /// The bytes that rate tests carried; absent if that was not counted yet.
    pub test_bytes: Option<u64>,
}

impl DaySpent {
    /// Returns the cost of machines, traffic and tests.
    #[must_use]
    pub fn total(&self) -> Money {
        self.machines + self.traffic + self.tests
    }
}

/// Returns the gain of each flow in the last `days`, today included, oldest first. The error of
/// predictions of the days before gives those of today their intervals.
#[must_use]
pub fn flows(
    state: &State,
    now: Timestamp,
    days: u64,
    error: Option<PredictionError>,
) -> Vec<FlowGain> {
    gains(state, now, days, error, |_| true)
}

/// Returns the gain of one flow in the last `days`, today included, oldest first.
#[must_use]
pub fn of_flow(
    state: &State,
    now: Timestamp,
    days: u64,
    error: Option<PredictionError>,
    flow: &FlowId,
) -> Vec<FlowGain> {
    gains(state, now, days, error, |other| other == flow)
}

fn gains(
    state: &State,
    now: Timestamp,
    days: u64,
    error: Option<PredictionError>,
    is_wanted: impl Fn(&FlowId) -> bool,
) -> Vec<FlowGain> {
    let costs = Costs::new(state, now, days);
    let today = unix_ms(now) / DAY_MS;
    let gain = |((day, flow), tallies): (&(u64, FlowId), &Vec<SessionTally>)| {
        let arms = Arms::new(tallies);
        let compared = arms.compared();
        let sessions = |arm| arms.of(arm).map(|sample| sample.sessions).sum();
        let seconds_saved = saved(&compared);
        let cost = costs.of_flow(*day, flow, tallies, None).total();
        let is_gain = |saved: &Estimate| saved.low > 0.0;
        let failed = |arm: Option<Arm>| {
            let of = tallies.iter().filter(|tally| arm.is_none_or(|arm| arm_of(tally) == arm));
            of.map(|tally| tally.failed).sum()
        };
        let predicted =
            state.predicted.get(*day, flow).and_then(|row| predicted_for(row, &compared));
        let error = error.filter(|_| *day == today);
        let end = |end: fn(&PredictionError) -> f64| Some(predicted? * end(&error?));
        let fell_back = |tally: &&SessionTally| tally.arm == Arm::Overlay && tally.path.is_empty();
        FlowGain {
            flow: flow.clone(),
            day: *day,
            overlay_sessions: sessions(Arm::Overlay),
            control_sessions: sessions(Arm::Control),
            other_sessions: sessions(Arm::Other),
            fallback_sessions: tallies.iter().filter(fell_back).map(|it| it.sessions).sum(),
            failed_sessions: failed(None),
            overlay_failed_sessions: failed(Some(Arm::Overlay)),
            control_failed_sessions: failed(Some(Arm::Control)),
            bytes: tallies.iter().map(SessionTally::bytes).fold(0, u64::saturating_add),
            speedup: speedup(&compared),
            overlay_seconds: typical(&compared, |class| class.log_seconds),
            control_seconds: typical(&compared, |class| class.log_seconds + class.difference),
            speedup_predicted: predicted,
            speedup_predicted_low: end(|error| error.low),
            speedup_predicted_high: end(|error| error.high),
            seconds_saved,
            cost,
            usd_per_second_saved: seconds_saved
                .filter(is_gain)
                .map(|saved| cost.as_usd() / saved.value),
        }
    };
    let rows = state.sessions.range((first_day(now, days), lowest())..);
    rows.filter(|((_, flow), _)| is_wanted(flow)).map(gain).collect()
}

/// Returns the use of each relay in the last `days`, today included, oldest first.
#[must_use]
pub fn relays(state: &State, now: Timestamp, days: u64) -> Vec<RelayGain> {
    let costs = Costs::new(state, now, days);
    let mut relays: BTreeMap<(u64, RelayId), RelayGain> = BTreeMap::new();
    for ((day, relay), used) in &costs.relays {
        let gain = RelayGain {
            relay: relay.clone(),
            day: *day,
            sessions: used.sessions,
            bytes: used.bytes,
            seconds_saved: None,
            cost: used.machine + used.traffic,
        };
        relays.insert((*day, relay.clone()), gain);
    }
    for ((day, _), tallies) in state.sessions.range((first_day(now, days), lowest())..) {
        for class in Arms::new(tallies).compared() {
            let is_carried = |tally: &&SessionTally| {
                tally.arm == Arm::Overlay && tally.size_class == class.class
            };
            for tally in tallies.iter().filter(is_carried) {
                let seconds = tally.seconds * (class.difference.exp() - 1.0);
                let each = seconds / tally.path.len() as f64;
                for relay in &tally.path {
                    if let Some(gain) = relays.get_mut(&(*day, relay.clone())) {
                        gain.seconds_saved = Some(gain.seconds_saved.unwrap_or(0.0) + each);
                    }
                }
            }
        }
    }
    relays.into_values().collect()
}

/// Returns what each of the last `days` has cost, today included, oldest first; days that cost
/// nothing are left out.
#[must_use]
pub fn spent(state: &State, now: Timestamp, days: u64) -> Vec<DaySpent> {
    let day = |(day, spent): (&u64, &Spent)| DaySpent {
        day: *day,
        estimated: spent.estimated,
        machines: spent.of_machines(),
        traffic: spent.traffic,
        tests: spent.tests,
        test_bytes: spent.test_bytes,
    };
    let has_some = |it: &DaySpent| {
        it.total() + it.estimated > Money::ZERO || it.test_bytes.is_some_and(|bytes| bytes > 0)
    };
    state.spent.range(first_day(now, days)..).map(day).filter(has_some).collect()
}

/// Returns the money of today.
#[must_use]
pub fn spending(state: &State, now: Timestamp) -> Spending {
    let day = unix_ms(now) / DAY_MS;
    let spent = state.spent.get(&day);
    let budget = state.settings.budget_usd_per_day;
    let total = spent.map_or(Money::ZERO, Spent::total);
    let is_beyond = |share: f64| total > Money::ZERO && total.as_usd() >= budget.as_usd() * share;
    Spending {
        day,
        estimated: state.plan_in_effect().map_or(Money::ZERO, |plan| plan.usd_per_day),
        machines: spent.map_or(Money::ZERO, Spent::of_machines),
        traffic: spent.map_or(Money::ZERO, |spent| spent.traffic),
        tests: spent.map_or(Money::ZERO, |spent| spent.tests),
        budget,
        is_alarmed: state.settings.alarm_share.is_some_and(is_beyond),
        is_exhausted: budget > Money::ZERO && total >= budget,
    }
}

/// The sessions of one arm and size class that ended in order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) sessions: u64,
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) seconds: f64,
    pub(crate) log_seconds: f64,
    pub(crate) log_seconds_squared: f64,
}

impl Sample {
    pub(crate) fn add(&mut self, tally: &SessionTally) {
        self.sessions += tally.sessions;
        self.up = self.up.saturating_add(tally.bytes_up);
        self.down = self.down.saturating_add(tally.bytes_down);
        self.seconds += tally.seconds;
        self.log_seconds += tally.log_seconds;
        self.log_seconds_squared += tally.log_seconds_squared;
    }

    /// Returns the sessions that are not among those `before`, which are a part of these; `None` if
    /// they are no part.
    pub(crate) fn without(&self, before: &Self) -> Option<Self> {
        Some(Self {
            sessions: self.sessions.checked_sub(before.sessions)?,
            up: self.up.checked_sub(before.up)?,
            down: self.down.checked_sub(before.down)?,
            seconds: self.seconds - before.seconds,
            log_seconds: self.log_seconds - before.log_seconds,
            log_seconds_squared: self.log_seconds_squared - before.log_seconds_squared,
        })
    }

    /// Returns the mean of the logarithms.
    pub(crate) fn mean(&self) -> f64 {
        self.log_seconds / self.sessions as f64
    }

    /// Returns the variance of that mean.
    pub(crate) fn variance_of_mean(&self) -> f64 {
        let n = self.sessions as f64;
        let squares = self.log_seconds_squared - self.log_seconds.powi(2) / n;
        squares.max(0.0) / (n - 1.0) / n
    }

    /// Returns the mean size of a session, each way. Failed sessions count in bytes only, so a
    /// class bounds it.
    pub(crate) fn mean_size(&self, class: u8) -> (u64, u64) {
        let n = self.sessions.max(1);
        let (up, down) = (self.up / n, self.down / n);
        let most = (2_u64 << class.min(62)) - 1;
        match u128::from(up) + u128::from(down) {
            total if total > u128::from(most) => {
                let scaled = |size: u64| (u128::from(size) * u128::from(most) / total) as u64;
                (scaled(up), scaled(down))
            }
            _ => (up, down),
        }
    }
}

/// Returns the arm that the times of sessions are compared in. Sessions over relays count as they
/// were to go, so that what a failure of relays costs counts against them; those of the control
/// arm that could not go direct tell nothing of the direct path.
fn arm_of(tally: &SessionTally) -> Arm {
    match tally.arm {
        Arm::Control if !tally.path.is_empty() => Arm::Other,
        arm => arm,
    }
}

/// The sessions of one flow and day, by arm and size class.
struct Arms(BTreeMap<(Arm, u8), Sample>);

impl Arms {
    fn new(tallies: &[SessionTally]) -> Self {
        let mut arms: BTreeMap<(Arm, u8), Sample> = BTreeMap::new();
        for tally in tallies.iter().filter(|tally| tally.sessions > 0) {
            arms.entry((arm_of(tally), tally.size_class)).or_default().add(tally);
        }
        Self(arms)
    }

    fn of(&self, arm: Arm) -> impl Iterator<Item = &Sample> {
        self.0.range((arm, 0)..=(arm, u8::MAX)).map(|(_, sample)| sample)
    }

    /// Returns the size classes of which both arms have enough sessions.
    fn compared(&self) -> Vec<Compared> {
        let compare = |(&(arm, class), overlay): (&(Arm, u8), &Sample)| {
            let control = self.0.get(&(Arm::Control, class)).filter(|_| arm == Arm::Overlay)?;
            let has_enough = |sample: &Sample| sample.sessions >= MIN_SESSIONS;
            (has_enough(overlay) && has_enough(control))
                .then(|| Compared::new(class, overlay, control))
        };
        self.0.iter().filter_map(compare).collect()
    }
}

/// A size class that both arms have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compared {
    class: u8,
    /// Sessions over relays, and their seconds.
    pub(crate) sessions: f64,
    seconds: f64,
    /// The mean logarithm of those seconds.
    log_seconds: f64,
    /// The mean logarithm of direct times less that over relays.
    pub(crate) difference: f64,
    /// The variances of both means, with their degrees of freedom.
    variances: [(f64, f64); 2],
}

impl Compared {
    pub(crate) fn new(class: u8, overlay: &Sample, control: &Sample) -> Self {
        let variance = |sample: &Sample| (sample.variance_of_mean(), (sample.sessions - 1) as f64);
        Self {
            class,
            sessions: overlay.sessions as f64,
            seconds: overlay.seconds,
            log_seconds: overlay.mean(),
            difference: control.mean() - overlay.mean(),
            variances: [variance(overlay), variance(control)],
        }
    }
}

/// Returns half the width of the 95 % interval of a sum of the classes' differences by these
/// factors: Student's t with the degrees of freedom of Welch and Satterthwaite.
pub(crate) fn half_width<'a>(parts: impl Iterator<Item = (f64, &'a Compared)>) -> f64 {
    let (mut variance, mut by_freedom) = (0.0, 0.0);
    for (factor, class) in parts {
        for (of_mean, freedom) in class.variances {
            let part = of_mean * factor * factor;
            variance += part;
            by_freedom += part * part / freedom;
        }
    }
    if variance <= 0.0 {
        return 0.0;
    }
    t_975(variance * variance / by_freedom) * variance.sqrt()
}

/// Returns the geometric mean over sessions of how many times longer they take directly; `None`
/// without sessions, or if it is beyond any number, which JSON does not have.
pub(crate) fn speedup(classes: &[Compared]) -> Option<Estimate> {
    let all: f64 = classes.iter().map(|class| class.sessions).sum();
    let share = |class: &Compared| class.sessions / all;
    let value: f64 = classes.iter().map(|class| share(class) * class.difference).sum();
    let half = half_width(classes.iter().map(|class| (share(class), class)));
    let [value, low, high] = [value, value - half, value + half].map(f64::exp);
    let is_finite = [value, low, high].into_iter().all(f64::is_finite);
    (all > 0.0 && is_finite).then_some(Estimate { value, low, high })
}

/// Returns the predicted speedup of sessions of the sizes that were compared, of all sizes where
/// none were.
fn predicted_for(row: &DayPredicted, compared: &[Compared]) -> Option<f64> {
    let is_compared = |class| compared.iter().any(|known| known.class == class);
    row.speedup(|class| compared.is_empty() || is_compared(class))
}

/// Returns how many times the predicted speedup of a flow in a day was measured; `None` if one of
/// both is not known.
pub(crate) fn measured_by_predicted(tallies: &[SessionTally], row: &DayPredicted) -> Option<f64> {
    let compared = Arms::new(tallies).compared();
    Some(speedup(&compared)?.value / predicted_for(row, &compared)?)
}

/// Returns the geometric mean over sessions of what `log_seconds` returns of their classes; `None`
/// without sessions, or if it is no finite number.
fn typical(classes: &[Compared], log_seconds: impl Fn(&Compared) -> f64) -> Option<f64> {
    let all: f64 = classes.iter().map(|class| class.sessions).sum();
    let mean: f64 = classes.iter().map(|class| class.sessions / all * log_seconds(class)).sum();
    Some(mean.exp()).filter(|seconds| all > 0.0 && seconds.is_finite())
}

/// Returns the seconds saved: those that the sessions would have taken directly, less those that
/// they took. The interval is of the logarithm of the former.
fn saved(classes: &[Compared]) -> Option<Estimate> {
    let direct = |class: &Compared| class.seconds * class.difference.exp();
    let all: f64 = classes.iter().map(direct).sum();
    let taken: f64 = classes.iter().map(|class| class.seconds).sum();
    let half = half_width(classes.iter().map(|class| (direct(class) / all, class)));
    (all > 0.0).then(|| Estimate {
        value: all - taken,
        low: all * (-half).exp() - taken,
        high: all * half.exp() - taken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, PATH, tally};

    /// Numbers by chance (splitmix64), and normal ones of them (Box and Muller).
    struct Random(u64);

    impl Random {
        fn unit(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
            radius * (std::f64::consts::TAU * self.unit()).cos()
        }

        /// Returns the tally of sessions of such a mean logarithm and deviation.
        fn tally(&mut self, arm: Arm, class: u8, count: u64, mean: f64, by: f64) -> SessionTally {
            let seconds: Vec<f64> = (0..count).map(|_| (mean + by * self.normal()).exp()).collect();
            let path = if arm == Arm::Overlay { &PATH[..] } else { &[] };
            SessionTally { size_class: class, ..tally(arm, path, &seconds) }
        }
    }

    #[test]
    fn intervals_cover_the_truth() {
        const DAYS: u32 = 4000;
        let mut random = Random(1);
        let (mut in_speedup, mut in_saved, mut too_narrow) = (0, 0, 0);
        for _ in 0..DAYS {
            // Few of the control arm, as at 2 %; two size classes with differences of their own.
            let mut tallies = Vec::new();
            let (mut difference, mut direct, mut taken, mut sessions) = (0.0, 0.0, 0.0, 0.0);
            for (class, control, overlay, mean, by) in
                [(20, 6, 80, 0.0, 0.7), (24, 12, 40, 1.0, 1.1)]
            {
                tallies.push(random.tally(Arm::Control, class, control, mean + by, 0.5));
                let over_relays = random.tally(Arm::Overlay, class, overlay, mean, 0.3);
                difference += by * overlay as f64;
                sessions += overlay as f64;
                direct += over_relays.seconds * by.exp();
                taken += over_relays.seconds;
                tallies.push(over_relays);
            }
            let compared = Arms::new(&tallies).compared();
            let covers = |estimate: Estimate, truth: f64| {
                assert!(estimate.low <= estimate.value && estimate.value <= estimate.high);
                u32::from((estimate.low..=estimate.high).contains(&truth))
            };
            let speedup = speedup(&compared).unwrap();
            in_speedup += covers(speedup, (difference / sessions).exp());
            in_saved += covers(saved(&compared).unwrap(), direct - taken);
            let half = Estimate {
                low: (speedup.low * speedup.value).sqrt(),
                high: (speedup.high * speedup.value).sqrt(),
                ..speedup
            };
            too_narrow += covers(half, (difference / sessions).exp());
        }
        for (covered, what) in [(in_speedup, "speedup"), (in_saved, "seconds saved")] {
            let share = f64::from(covered) / f64::from(DAYS);
            assert!((0.93..=0.97).contains(&share), "{what}: {share}");
        }
        assert!(f64::from(too_narrow) / f64::from(DAYS) < 0.93, "the test could not fail");
    }

    #[test]
    fn too_few_sessions_are_no_gain() {
        let mut bench = Bench::in_service();
        let day = |bench: &Bench| flows(bench.state(), bench.time(), 1, None).pop().unwrap();
        bench.sessions(1, 1, vec![tally(Arm::Overlay, &PATH, &[1.0; 5])]);
        bench.sessions(1, 2, vec![tally(Arm::Control, &[], &[2.0; 4])]);
        let few = day(&bench);
        assert_eq!((few.overlay_sessions, few.control_sessions), (5, 4));
        assert_eq!((few.speedup, few.seconds_saved, few.usd_per_second_saved), (None, None, None));
        assert!(few.speedup_predicted.unwrap() > 1.5, "{few:?}");
        let failed = SessionTally { sessions: 0, failed: 3, ..tally(Arm::Other, &[], &[]) };
        bench.sessions(1, 3, vec![tally(Arm::Control, &[], &[2.0]), failed]);
        let enough = day(&bench);
        assert_eq!(enough.failed_sessions, 3);
        // No variance at all: the interval is the figure.
        let speedup = enough.speedup.unwrap();
        assert!((speedup.value - 2.0).abs() < 1e-9 && (speedup.high - 2.0).abs() < 1e-9);
        let seconds = (enough.overlay_seconds.unwrap(), enough.control_seconds.unwrap());
        assert!((seconds.0 - 1.0).abs() < 1e-9 && (seconds.1 - 2.0).abs() < 1e-9, "{seconds:?}");
        let saved = enough.seconds_saved.unwrap();
        assert!((saved.value - 5.0).abs() < 1e-6, "{saved:?}");
        let per_second = enough.usd_per_second_saved.unwrap();
        assert!((per_second - enough.cost.as_usd() / 5.0).abs() < 1e-9);
    }

    #[test]
    fn sessions_count_in_the_arm_that_they_were_drawn_for() {
        let mut bench = Bench::in_service();
        let day = |bench: &Bench| flows(bench.state(), bench.time(), 1, None).pop().unwrap();
        bench.sessions(1, 1, vec![tally(Arm::Overlay, &PATH, &[1.0; 5]), direct(&[2.0; 5])]);
        assert!((day(&bench).speedup.unwrap().value - 2.0).abs() < 1e-9);
        // The path over relays fails for half of the sessions, which then take four seconds.
        let fallback = tally(Arm::Overlay, &[], &[4.0; 5]);
        let failed = SessionTally { sessions: 0, failed: 2, ..tally(Arm::Overlay, &PATH, &[]) };
        bench.sessions(1, 2, vec![fallback, failed]);
        let gain = day(&bench);
        assert!((gain.speedup.unwrap().value - 1.0).abs() < 1e-9, "{gain:?}");
        assert_eq!((gain.overlay_sessions, gain.fallback_sessions), (10, 5));
        // One of the control arm that went over relays is no direct session.
        let failed = SessionTally { sessions: 0, failed: 1, ..direct(&[]) };
        bench.sessions(1, 3, vec![tally(Arm::Control, &PATH, &[9.0; 5]), failed]);
        let gain = day(&bench);
        assert!((gain.speedup.unwrap().value - 1.0).abs() < 1e-9, "{gain:?}");
        assert_eq!((gain.control_sessions, gain.other_sessions), (5, 5));
        assert_eq!((gain.overlay_failed_sessions, gain.control_failed_sessions), (2, 1));
        assert_eq!(gain.failed_sessions, 3);
    }

    #[test]
    fn cost_is_told_by_day() {
        let mut bench = Bench::in_service();
        bench.pass(60);
        let of = |bench: &Bench, days| spent(bench.state(), bench.time(), days);
        let [first] = &of(&bench, 1)[..] else { panic!("{:?}", of(&bench, 1)) };
        let first = first.clone();
        // Each test of the bench carries 250 MB; gateways pay nothing for theirs.
        let bytes = first.test_bytes.unwrap();
        assert!(bytes >= 2 * 250_000_000 && bytes % 250_000_000 == 0, "{first:?}");
        let today = spending(bench.state(), bench.time());
        assert!(first.tests > Money::ZERO && first.machines > Money::ZERO);
        assert_eq!((first.tests, first.machines), (today.tests, today.machines));
        assert_eq!(spent(bench.restarted().state(), bench.time(), 1), std::slice::from_ref(&first));
        // A plan that is in effect for an hour estimates a 24th of its day.
        bench.pass(3600);
        let later = of(&bench, 1)[0].estimated.as_usd() - first.estimated.as_usd();
        let hour = today.estimated.as_usd() / 24.0;
        assert!((later - hour).abs() < hour / 50.0, "{later} of {hour}");
        let first = of(&bench, 1)[0].clone();
        bench.now += DAY_MS;
        bench.pass(60);
        assert!(of(&bench, 1).iter().all(|it| it.day == first.day + 1));
        assert_eq!(of(&bench, 2)[0].tests, first.tests);
        // The row of a program that did not count bytes.
        let spent = Spent { test_bytes: None, ..bench.state().spent[&first.day].clone() };
        bench.controller.apply(crate::record::Record::Spent(spent));
        assert_eq!(of(&bench, 2)[0].test_bytes, None);
    }

    #[test]
    fn costs_are_by_bytes_and_machines_and_relays_share_the_gain() {
        let mut bench = Bench::in_service();
        let mut big = tally(Arm::Overlay, &PATH, &[10.0; 10]);
        (big.size_class, big.bytes_up, big.bytes_down) = (30, 10_000_000_000, 1000);
        bench.sessions(1, 1, vec![big, SessionTally { size_class: 30, ..direct(&[30.0; 5]) }]);
        bench.pass(3600);
        let flow = flows(bench.state(), bench.time(), 1, None).pop().unwrap();
        let both = relays(bench.state(), bench.time(), 1);
        assert_eq!(both.len(), 2);
        let all: Money = both.iter().map(|relay| relay.cost).sum();
        assert!((all.as_usd() - flow.cost.as_usd()).abs() < 1e-6);
        let spending = spending(bench.state(), bench.time());
        assert_eq!(spending.machines + spending.traffic, all);
        // Two machines of half a dollar a day, for an hour.
        assert!((spending.machines.as_usd() - 1.0 / 24.0).abs() < 0.002, "{spending:?}");
        // 10 GB from Europe to Asia, and from Asia to the Internet.
        assert!((1.0..4.0).contains(&spending.traffic.as_usd()), "{spending:?}");
        let saved = flow.seconds_saved.unwrap().value;
        assert!((saved - 200.0).abs() < 1e-6);
        assert!(both.iter().all(|relay| (relay.seconds_saved.unwrap() - saved / 2.0).abs() < 1e-6));
        assert!(both.iter().all(|relay| relay.sessions == 10 && relay.bytes == 10_000_001_000));
        // The day before, nothing.
        bench.now += DAY_MS;
        assert!(flows(bench.state(), bench.time(), 1, None).is_empty());
        assert_eq!(flows(bench.state(), bench.time(), 2, None).len(), 1);
    }

    fn direct(seconds: &[f64]) -> SessionTally {
        tally(Arm::Control, &[], seconds)
    }
}
