//! Advice for one flow: direct or over relays, over which ones, and why \[CDD\], \[TRN\].
//!
//! Paths come from min-max routing and from CDD's rule ([`super::Router`]); their times come from
//! the completion-time model ([`tradewind_model::fct`]), because RTTs alone do not tell direct from
//! relayed. A relay pays for each gigabyte again and must be dialled, so the verdict is "direct"
//! unless a relayed path is faster by a margin, and it gives its reasons in words.

use std::collections::BTreeMap;

use tradewind_model::catalogue::Egress;
use tradewind_model::cost::{Prices, path_egress};
use tradewind_model::fct::{Completion, path_completion, path_rate};
use tradewind_model::leg::Loss;
use tradewind_model::{Leg, ModelError, StartUp};
use tradewind_units::{Bandwidth, Bytes, Duration, Money, RegionId};

use super::{MinMaxPath, Router};
use crate::problem::RelayType;

mod verdict;

pub use verdict::{MIN_GAIN, MIN_SAVED, Reason, Verdict};

/// The volume of a flow, the machines that may carry it, and prices.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The flow's volume.
    pub volume: Bytes,
    /// The most relays on a path.
    pub most_relays: usize,
    /// Window of a connection with an end point at one of its ends, or at both.
    pub window: Bytes,
    /// Window of a connection between two relays.
    pub relay_window: Bytes,
    /// The bandwidth of each end point's access link, if that is limited.
    pub last_mile: Option<Bandwidth>,
    /// Random loss on the open Internet, that is on legs with an end point at one of their ends.
    /// Legs between relays run over their clouds' networks and lose nothing \[CDD\].
    pub loss: Option<Loss>,
    /// Parallel connections on each leg.
    pub connections: u32,
    /// The machine type of relays.
    pub relay_type: RelayType,
    /// The egress prices of relays.
    pub prices: Prices,
    /// The region that the source lies in, if any: its cloud charges for egress.
    pub source: Option<RegionId>,
    /// The region that the destination lies in, if any: the last relay pays for egress to it.
    pub destination: Option<RegionId>,
    /// The start-up of sessions in the model.
    pub start_up: StartUp,
}

/// A rule that chose a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Min-max routing: its largest leg is least among the paths over as many relays.
    MinMax,
    /// CDD's rule: ends nearest to the end points, the largest inner leg least.
    Cloudified,
    /// The least completion time over one relay: RTTs do not tell which relay that is \[CDD\].
    Fastest,
}

/// A path for the flow, with its predicted time and cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Its relays and RTTs.
    pub path: MinMaxPath,
    /// The rules that rank it first for its number of relays.
    pub rules: Vec<Rule>,
    /// The parts of its completion time.
    pub completion: Completion,
    /// The direct path's completion time over this one's; `None` where there is no direct path.
    pub gain: Option<f64>,
    /// CDD's estimate of its gain over its first and last relay alone, for three relays or more.
    pub gain_over_two: Option<f64>,
    /// The egress cost of its relays, and of a source inside a cloud.
    pub egress: Money,
    /// The set-up cost of its relays.
    pub set_up: Money,
    /// The slowest leg's index, if sending at its rate takes most of the time.
    pub slowest_leg: Option<usize>,
    /// The bottleneck: `start-up`, or the limit of the slowest leg.
    pub bound_by: &'static str,
}

impl Route {
    /// Returns the completion time.
    #[must_use]
    pub fn fct(&self) -> Duration {
        self.completion.total()
    }

    /// Returns the cost of egress and set-up.
    #[must_use]
    pub fn cost(&self) -> Money {
        self.egress + self.set_up
    }
}

/// The routes worth showing, and the verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// By largest leg, as [`Router::ranking`] ranks them; the direct one is among them if there is
    /// one.
    pub routes: Vec<Route>,
    /// The verdict, relay or direct, with its reasons.
    pub verdict: Verdict,
}

/// Ranks the paths and judges them: the best `count` of the min-max ranking, the best of each rule
/// for each number of relays, the single relay with the least completion time, and the direct one.
///
/// `regions` are those of the router's relays.
///
/// # Errors
/// When a price is missing.
pub fn advise(
    router: &Router,
    regions: &[RegionId],
    settings: &Settings,
    count: usize,
) -> Result<Advice, ModelError> {
    let direct = router.path(&[]).map(|path| completion(&path, settings));
    let mut routes = Vec::new();
    for (path, rules) in paths(router, settings, count) {
        routes.push(route(router, regions, settings, path, rules, direct.as_ref())?);
    }
    routes.sort_by(|a, b| a.path.key().cmp(&b.path.key()));
    let verdict = verdict::verdict(&routes, settings);
    Ok(Advice { routes, verdict })
}

/// Returns the paths to judge, each once, with the rules that choose it.
fn paths(router: &Router, settings: &Settings, count: usize) -> Vec<(MinMaxPath, Vec<Rule>)> {
    let most_relays = settings.most_relays;
    let mut rules: BTreeMap<Vec<usize>, Vec<Rule>> = BTreeMap::new();
    for path in router.ranking(most_relays, count) {
        rules.entry(path.relays).or_default();
    }
    if let Some(direct) = router.path(&[]) {
        rules.entry(direct.relays).or_default();
    }
    for relays in 1..=most_relays {
        let chosen = [
            (Rule::MinMax, router.best(relays, 1)),
            (Rule::Cloudified, if relays < 2 { Vec::new() } else { router.cloudified(relays, 1) }),
        ];
        for (rule, best) in chosen {
            for path in best {
                rules.entry(path.relays).or_default().push(rule);
            }
        }
    }
    if most_relays > 0 {
        let singles = (0..router.relays()).filter_map(|relay| router.path(&[relay]));
        let fastest = singles.min_by_key(|path| completion(path, settings).total());
        if let Some(path) = fastest {
            rules.entry(path.relays).or_default().push(Rule::Fastest);
        }
    }
    let path = |relays: Vec<usize>| router.path(&relays).expect("every leg of it was looked up");
    rules.into_iter().map(|(relays, rules)| (path(relays), rules)).collect()
}

fn route(
    router: &Router,
    regions: &[RegionId],
    settings: &Settings,
    path: MinMaxPath,
    rules: Vec<Rule>,
    direct: Option<&Completion>,
) -> Result<Route, ModelError> {
    let legs = legs(&path, settings);
    let completion = path_completion(&legs, settings.volume, settings.start_up);
    let (slowest_leg, bound_by) = binds(&legs, &completion);
    let relays: Vec<RegionId> = path.relays.iter().map(|relay| regions[*relay].clone()).collect();
    let destination = settings.destination.as_ref().map_or(Egress::Internet, Egress::Region);
    let ratio = |direct: &Completion| {
        direct.total().as_secs_f64() / completion.total().as_secs_f64().max(f64::MIN_POSITIVE)
    };
    Ok(Route {
        rules,
        gain: direct.map(ratio),
        gain_over_two: router.gain_over_two(&path),
        egress: path_egress(
            &settings.prices,
            settings.source.as_ref(),
            &relays,
            destination,
            settings.volume,
        )?,
        set_up: settings.relay_type.set_up.times(relays.len() as u64),
        completion,
        slowest_leg,
        bound_by,
        path,
    })
}

/// Returns the flow's predicted completion over a path.
#[must_use]
pub fn completion(path: &MinMaxPath, settings: &Settings) -> Completion {
    path_completion(&legs(path, settings), settings.volume, settings.start_up)
}

/// Returns the legs of a path, with windows and caps by the kind of their ends.
#[must_use]
pub fn legs(path: &MinMaxPath, settings: &Settings) -> Vec<Leg> {
    let last = path.rtts.len() - 1;
    let dressed = |(index, rtt): (usize, &Duration)| {
        let (at_source, at_destination) = (index == 0, index == last);
        let at_an_end = at_source || at_destination;
        let window = if at_an_end { settings.window } else { settings.relay_window };
        let mut leg = Leg::new(*rtt).with_window(window).with_connections(settings.connections);
        if let Some(cap) = settings.last_mile.filter(|_| at_an_end) {
            leg = leg.capped_at(cap);
        }
        if let Some(loss) = settings.loss.filter(|_| at_an_end) {
            leg = leg.with_loss(loss);
        }
        if !(at_source && at_destination) {
            leg = settings.relay_type.limits(leg);
        }
        leg
    };
    path.rtts.iter().enumerate().map(dressed).collect()
}

/// Returns the slowest leg and its limit if sending at its rate takes most of the time; else
/// start-up.
fn binds(legs: &[Leg], completion: &Completion) -> (Option<usize>, &'static str) {
    if completion.steady < completion.total() / 2 {
        return (None, "start-up");
    }
    let rate = path_rate(legs);
    let slowest = legs.iter().position(|leg| leg.rate() == rate);
    (slowest, slowest.map_or("start-up", |leg| legs[leg].bound_by()))
}
