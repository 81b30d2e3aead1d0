//! The true conditions of a day: round trips and rates of legs at each time, and what dies when.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::fct::path_fct;
use tradewind_model::leg::{DEFAULT_WINDOW, RELAY_TO_RELAY_WINDOW};
use tradewind_model::{Leg, StartUp};
use tradewind_units::{Bandwidth, Bytes, Duration, HostId, RegionId, SiteId};

use super::super::rtts::Rtts;
use super::scenario::{Conditions, Scenario};
use crate::harness::{NumericError, Random};

/// Midnight (UTC) at which the day begins, in milliseconds since the Unix epoch: in November 2026.
pub(super) const MIDNIGHT: u64 = 20_780 * 86_400_000;
/// Hours of a day.
pub(super) const HOURS: u64 = 24;
/// The capacity of a relay's machine and of each leg, in Mbit/s.
pub(super) const CAPACITY_MBPS: f64 = 2000.0;
/// Time that a session loses at a relay that is dead before it goes direct. Chosen: the dial's.
const LOST_TO_DEAD: f64 = 1.0;

/// A span of clock time, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Span {
    begin: u64,
    end: u64,
}

impl Span {
    fn covers(&self, at: u64) -> bool {
        (self.begin..self.end).contains(&at)
    }
}

/// A leg, by its ends.
pub(super) type Ends = (SiteId, SiteId);

/// The true conditions of a day.
pub(super) struct World {
    conditions: Conditions,
    session: Bytes,
    hour_ms: u64,
    regions: BTreeSet<SiteId>,
    /// Round-trip times at night, in milliseconds.
    rtts: BTreeMap<Ends, f64>,
    slow: Vec<(Ends, Span)>,
    dead: Vec<(HostId, Span)>,
    /// True volumes over the declared ones, in the order of the flows.
    demand: Vec<f64>,
}

impl World {
    /// Draws the world of a seed, in which nothing has slowed down yet.
    pub(super) fn new(
        scenario: &Scenario,
        hour: Duration,
        random: &mut Random,
    ) -> Result<Self, NumericError> {
        let places: Vec<(SiteId, RegionId)> = scenario
            .regions
            .iter()
            .map(|id| (id.clone().into(), id.clone()))
            .chain(scenario.sites.iter().map(|site| (site.name.clone(), site.at.clone())))
            .collect();
        let all: BTreeSet<RegionId> = places.iter().map(|(_, at)| at.clone()).collect();
        let between = Rtts::new(None, &all, random)?;
        let regions: BTreeSet<SiteId> =
            scenario.regions.iter().map(|id| id.clone().into()).collect();
        let conditions = scenario.conditions.clone();
        let access = conditions.access.as_secs_f64() * 1e3;
        let mut rtts = BTreeMap::new();
        for (from, at) in &places {
            for (to, other) in places.iter().filter(|(to, _)| to != from) {
                let sites = [from, to].iter().filter(|end| !regions.contains(**end)).count();
                let of_regions = between.between(at, other).map_or(0.0, |rtt| rtt.as_secs_f64());
                let detour = if sites == 2 { conditions.detour } else { 1.0 };
                let rtt = of_regions * 1e3 * detour + access * sites as f64;
                rtts.insert((from.clone(), to.clone()), rtt.max(1.0));
            }
        }
        let error = conditions.demand_error;
        let demand =
            scenario.flows.iter().map(|_| 1.0 + error * (2.0 * random.fraction() - 1.0)).collect();
        let (slow, dead, session) = (Vec::new(), Vec::new(), scenario.session);
        let hour_ms = hour.as_millis() as u64;
        Ok(Self { conditions, session, hour_ms, regions, rtts, slow, dead, demand })
    }

    /// Lets legs slow down and hosts die in the course of the day, drawn from these.
    pub(super) fn plant(&mut self, legs: &[Ends], hosts: &[HostId], random: &mut Random) {
        let (slow, dead) = (self.conditions.slow, self.conditions.dead);
        for _ in (0..slow.legs).filter(|_| !legs.is_empty()) {
            let leg = legs[random.draw(legs.len())].clone();
            self.slow.push((leg, self.span(slow.hours, random)));
        }
        for _ in (0..dead.hosts).filter(|_| !hosts.is_empty()) {
            let host = hosts[random.draw(hosts.len())].clone();
            self.dead.push((host, self.span(dead.hours, random)));
        }
    }

    fn span(&self, [least, most]: [f64; 2], random: &mut Random) -> Span {
        let hours = least + (most - least) * random.fraction();
        let from = 1.0 + (HOURS as f64 - 2.0 - hours).max(0.0) * random.fraction();
        let at = |hours: f64| MIDNIGHT + (hours * self.hour_ms as f64) as u64;
        Span { begin: at(from), end: at(from + hours) }
    }

    /// Takes all away that changes by the hour or by chance but noise.
    pub(super) fn calm(&mut self) {
        self.conditions.swell = 0.0;
        self.slow.clear();
        self.dead.clear();
    }

    pub(super) const fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    pub(super) const fn end(&self) -> u64 {
        MIDNIGHT + HOURS * self.hour_ms
    }

    /// Returns all legs.
    pub(super) fn legs(&self) -> impl Iterator<Item = &Ends> {
        self.rtts.keys()
    }

    /// Returns the times at which the best plan may change, in milliseconds since the Unix epoch:
    /// each hour, and when something slows down, dies or recovers.
    pub(super) fn changes(&self) -> BTreeSet<u64> {
        let hours = (0..HOURS).map(|hour| MIDNIGHT + hour * self.hour_ms);
        let slow = self.slow.iter().flat_map(|(_, span)| [span.begin, span.end]);
        let dead = self.dead.iter().flat_map(|(_, span)| [span.begin, span.end]);
        hours.chain(slow).chain(dead).collect()
    }

    /// Returns the hour of the day, from 0 to 24; before it begins, its first.
    fn hour(&self, at: u64) -> f64 {
        at.saturating_sub(MIDNIGHT) as f64 / self.hour_ms as f64
    }

    /// Returns whether a host is dead.
    pub(super) fn is_dead(&self, host: &HostId, at: u64) -> bool {
        self.dead.iter().any(|(it, span)| it == host && span.covers(at))
    }

    /// Returns the true round-trip time of a leg, in milliseconds: those of sites swell by day.
    pub(super) fn rtt_ms(&self, leg: &Ends, at: u64) -> f64 {
        let is_inner = self.regions.contains(&leg.0) && self.regions.contains(&leg.1);
        let busy = (std::f64::consts::PI * (self.hour(at) - 8.0) / 12.0).sin().max(0.0);
        let is_day = (8.0..20.0).contains(&self.hour(at));
        let swell = if is_inner || !is_day { 0.0 } else { self.conditions.swell * busy };
        self.rtts[leg] * (1.0 + swell)
    }

    /// Returns a leg as it truly is.
    fn leg(&self, ends: &Ends, at: u64) -> Leg {
        let is_inner = self.regions.contains(&ends.0) && self.regions.contains(&ends.1);
        let window = if is_inner { RELAY_TO_RELAY_WINDOW } else { DEFAULT_WINDOW };
        let rtt = Duration::from_secs_f64(self.rtt_ms(ends, at) / 1e3);
        let capacity = Bandwidth::from_mbps(CAPACITY_MBPS).expect("a capacity");
        let leg = Leg::new(rtt).with_window(window).capped_at(capacity);
        let is_slow = self.slow.iter().any(|(it, span)| it == ends && span.covers(at));
        if is_slow { leg.capped_at(leg.rate().scaled(self.conditions.slow.to)) } else { leg }
    }

    /// Returns the true rate of a leg, in Mbit/s.
    pub(super) fn mbps(&self, ends: &Ends, at: u64) -> f64 {
        self.leg(ends, at).rate().as_mbps()
    }

    /// Returns the mean time of a session over these places, in seconds.
    pub(super) fn seconds(&self, places: &[SiteId], at: u64) -> f64 {
        let leg = |pair: &[SiteId]| self.leg(&(pair[0].clone(), pair[1].clone()), at);
        let legs: Vec<Leg> = places.windows(2).map(leg).collect();
        path_fct(&legs, self.session, StartUp::default()).as_secs_f64()
    }

    /// Returns the same where a relay of the path may be dead: then it goes direct after all.
    pub(super) fn seconds_over(&self, route: &Route, at: u64) -> f64 {
        if route.hosts.iter().any(|host| self.is_dead(host, at)) {
            let ends = [route.places[0].clone(), route.places[route.places.len() - 1].clone()];
            return LOST_TO_DEAD + self.seconds(&ends, at);
        }
        self.seconds(&route.places, at)
    }

    /// Returns the sessions of a flow that end in this many milliseconds, as a mean.
    pub(super) fn sessions(&self, flow: usize, per_day: Bytes, at: u64, millis: u64) -> f64 {
        let hour = self.hour(at).floor();
        let weight = 1.0 + 0.8 * (std::f64::consts::PI * (hour - 8.0) / 12.0).sin();
        let day = (HOURS * self.hour_ms) as f64;
        let bytes = per_day.as_u64() as f64 * self.demand[flow] * weight * millis as f64 / day;
        bytes / self.session.as_u64() as f64
    }

    /// Returns the true volume of a flow's day.
    pub(super) fn volume(&self, flow: usize, per_day: Bytes) -> Bytes {
        Bytes::new((per_day.as_u64() as f64 * self.demand[flow]) as u64)
    }
}

/// A path: its places from end to end, and the hosts of its relays, where they are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) places: Vec<SiteId>,
    pub(super) hosts: Vec<HostId>,
}

impl Route {
    pub(super) fn direct(from: &SiteId, to: &SiteId) -> Self {
        Self { places: vec![from.clone(), to.clone()], hosts: Vec::new() }
    }

    /// Returns its legs.
    pub(super) fn legs(&self) -> impl Iterator<Item = Ends> {
        self.places.windows(2).map(|pair| (pair[0].clone(), pair[1].clone()))
    }

    /// Returns the number of its relays.
    pub(super) const fn relays(&self) -> usize {
        self.places.len() - 2
    }
}
