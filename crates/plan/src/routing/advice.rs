//! Whether relays are worth it for one flow, which ones, and why not \[CDD\], \[TRN\].
//!
//! Paths come from min-max routing and from CDD's rule ([`super::Router`]); what they bring is the
//! completion-time model's word ([`tradewind_model::fct`]), because RTTs alone do not tell direct
//! from relayed. A relay pays each gigabyte again and must be dialled, so the verdict is "direct"
//! unless a relayed path is faster by a margin, and it says in words why.

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

pub use verdict::{LEAST_GAIN, LEAST_SAVED, Reason, Verdict};

/// What is to be carried, by what machines, at what prices.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much is to be carried.
    pub volume: Bytes,
    /// Most relays on a path.
    pub most_relays: usize,
    /// Window of a connection with an end point at one of its ends, or at both.
    pub window: Bytes,
    /// Window of a connection between two relays.
    pub relay_window: Bytes,
    /// What each end point's access carries, if that is limited.
    pub last_mile: Option<Bandwidth>,
    /// Random loss on the open Internet, that is on legs with an end point at one of their ends.
    /// Legs between relays run over their clouds' networks and lose nothing \[CDD\].
    pub loss: Option<Loss>,
    /// Parallel connections on each leg.
    pub connections: u32,
    /// The machine that relays.
    pub relay_type: RelayType,
    /// What relays pay for egress.
    pub prices: Prices,
    /// The region that the source lies in, if it does: its cloud charges what it sends.
    pub source: Option<RegionId>,
    /// The region that the destination lies in, if it does: the last relay pays for egress to
    /// there.
    pub destination: Option<RegionId>,
    /// How sessions start.
    pub start_up: StartUp,
}

/// How a path was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Its largest leg is least among the paths over as many relays.
    MinMax,
    /// CDD's: ends nearest to the end points, the largest inner leg least.
    Cloudified,
    /// Over one relay, the least completion time: RTTs do not tell which one that is \[CDD\].
    Fastest,
}

/// One way to carry the flow.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Its relays and RTTs.
    pub path: MinMaxPath,
    /// The rules that choose it first for its number of relays.
    pub rules: Vec<Rule>,
    /// Where its time goes.
    pub completion: Completion,
    /// Completion time of the direct path over this one's; `None` where there is no direct path.
    pub gain: Option<f64>,
    /// CDD's estimate of its gain over its first and last relay alone, for three relays and more.
    pub gain_over_two: Option<f64>,
    /// What its relays, and a source inside a cloud, pay for egress.
    pub egress: Money,
    /// What setting its relays up costs.
    pub set_up: Money,
    /// The slowest leg's place, from 0, if its rate is most of the time.
    pub slowest_leg: Option<usize>,
    /// What binds: `start-up`, or what limits the slowest leg.
    pub bound_by: &'static str,
}

impl Route {
    /// Completion time.
    #[must_use]
    pub fn fct(&self) -> Duration {
        self.completion.total()
    }

    /// Egress and set-up.
    #[must_use]
    pub fn cost(&self) -> Money {
        self.egress + self.set_up
    }
}

/// The routes worth showing, and what to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// By largest leg, as [`Router::ranking`] ranks them; the direct one is among them if there is
    /// one.
    pub routes: Vec<Route>,
    /// Relay or direct, and why.
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

/// The paths to judge, each once, with the rules that choose it.
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

/// Predicted completion of the flow over a path.
#[must_use]
pub fn completion(path: &MinMaxPath, settings: &Settings) -> Completion {
    path_completion(&legs(path, settings), settings.volume, settings.start_up)
}

/// The legs of a path: windows and caps by what stands at their ends.
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

/// The slowest leg and what limits it, if sending at its rate is most of the time; else start-up.
fn binds(legs: &[Leg], completion: &Completion) -> (Option<usize>, &'static str) {
    if completion.steady < completion.total() / 2 {
        return (None, "start-up");
    }
    let rate = path_rate(legs);
    let slowest = legs.iter().position(|leg| leg.rate() == rate);
    (slowest, slowest.map_or("start-up", |leg| legs[leg].bound_by()))
}
