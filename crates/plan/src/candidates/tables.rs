//! Legs, prices and lower bounds on time by offer, in dense arrays.
//!
//! The lower bound on a path's time follows from its legs alone, without the recurrence of
//! [`tradewind_model::fct`]: a leg that is ready after some dialling needs at least its volume over
//! its bandwidth, or its volume over its window's rate less one RTT, and then half an RTT for it
//! and each leg behind it. Without start-up it is the volume over the slowest leg's rate, which is
//! exact.

use std::collections::BTreeMap;

use tradewind_model::catalogue::Egress;
use tradewind_model::fct::path_fct;
use tradewind_model::{Leg, ModelError, StartUp};
use tradewind_units::{Bandwidth, Bytes, Duration, Money, PricePerGb, RegionId, SiteId};

use crate::problem::{MAX_RELAYS, Problem};

/// A leg with its derived numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(super) leg: Leg,
    pub(super) rate: Bandwidth,
    pace: Pace,
}

/// A leg's part of the lower bound on time, in seconds and seconds a byte.
#[derive(Debug, Clone, Copy)]
struct Pace {
    rtt: f64,
    by_bandwidth: f64,
    by_window: f64,
}

impl Known {
    fn new(leg: Leg, start_up: StartUp) -> Self {
        let rate = leg.rate();
        let pace = if start_up == StartUp::Ignored {
            Pace { rtt: 0.0, by_bandwidth: 1.0 / rate.as_bytes_per_s(), by_window: 0.0 }
        } else {
            Pace {
                rtt: leg.rtt.as_secs_f64(),
                by_bandwidth: 1.0 / leg.bandwidth_limit().as_bytes_per_s(),
                by_window: 1.0 / leg.window_limit().as_bytes_per_s(),
            }
        };
        Self { leg, rate, pace }
    }
}

/// Returns a leg's pace, infinite where the leg is not known.
fn pace_of(known: &Option<Known>) -> Pace {
    let endless = Pace { rtt: 0.0, by_bandwidth: f64::INFINITY, by_window: 0.0 };
    known.map_or(endless, |known| known.pace)
}

/// Returns dollars a GB; zero where the price is not known, an error that building the candidate
/// reports.
fn usd_of(price: &Result<PricePerGb, ModelError>) -> f64 {
    price.as_ref().map_or(0.0, |price| price.as_usd_per_gb())
}

/// A partial path: its relays, and the time and egress so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartialPath {
    relays: [u16; MAX_RELAYS],
    count: u8,
    /// The lower bound on the time of the last byte's arrival at the end of the path so far.
    pub(crate) least_s: f64,
    /// The lower bound on the time of the hop header's arrival there.
    header_s: f64,
    /// The egress dollars of the relays whose next hop is known.
    pub(crate) egress_usd: f64,
}

impl PartialPath {
    const START: Self =
        Self { relays: [0; MAX_RELAYS], count: 0, least_s: 0.0, header_s: 0.0, egress_usd: 0.0 };

    /// Returns its relays' offers, in order.
    pub(crate) fn relays(&self) -> &[u16] {
        &self.relays[..usize::from(self.count)]
    }

    /// Returns its relays' offers as [`crate::Candidate`] has them.
    pub(super) fn offers(&self) -> Vec<usize> {
        self.relays().iter().map(|relay| usize::from(*relay)).collect()
    }

    fn over(&self, pace: Pace, volume: f64, waits: bool) -> (f64, f64) {
        let ready = self.header_s + if waits { pace.rtt } else { 0.0 };
        let carry = (volume * pace.by_bandwidth).max(volume * pace.by_window - pace.rtt);
        let half = pace.rtt / 2.0;
        ((self.least_s + half).max(ready + carry + half), ready + half)
    }
}

/// Legs and prices of all offers and of all sites at which flows start or end.
pub(crate) struct Tables<'a> {
    problem: &'a Problem,
    offers: usize,
    types: usize,
    /// Row by row; `None` where the leg is not known or both offers are in one region.
    between: Vec<Option<Known>>,
    first: BTreeMap<&'a SiteId, Vec<Option<Known>>>,
    last: BTreeMap<&'a SiteId, Vec<Option<Known>>>,
    /// The paces of `between`, infinite where none is known.
    paces: Vec<Pace>,
    between_prices: Vec<Result<PricePerGb, ModelError>>,
    /// The same in dollars a GB, zero where none is known.
    usd: Vec<f64>,
    one_price: bool,
    last_prices: BTreeMap<Option<&'a RegionId>, Vec<Result<PricePerGb, ModelError>>>,
    /// The egress prices of the source's cloud, by its region: to each offer.
    first_prices: BTreeMap<Option<&'a RegionId>, Vec<Result<PricePerGb, ModelError>>>,
    longest_rtt: Duration,
}

impl<'a> Tables<'a> {
    pub(crate) fn new(problem: &'a Problem) -> Self {
        let inputs = problem.inputs();
        let offers = problem.offers().len();
        let known = |leg: Option<Leg>| leg.map(|leg| Known::new(leg, inputs.start_up));
        let region = |offer: usize| &problem.offers()[offer].region;
        let price = |from: usize, to: Egress<'_>| inputs.prices.egress(region(from), to);
        let mut tables = Self {
            problem,
            offers,
            types: inputs.relay_types.len().max(1),
            between: (0..offers * offers)
                .map(|pair| known(problem.leg_between(pair / offers, pair % offers)))
                .collect(),
            first: BTreeMap::new(),
            last: BTreeMap::new(),
            between_prices: (0..offers * offers)
                .map(|pair| price(pair / offers, Egress::Region(region(pair % offers))))
                .collect(),
            last_prices: BTreeMap::new(),
            first_prices: BTreeMap::new(),
            paces: Vec::new(),
            usd: Vec::new(),
            one_price: false,
            longest_rtt: inputs.legs.values().map(|leg| leg.rtt).max().unwrap_or_default(),
        };
        for (index, flow) in problem.flows().iter().enumerate() {
            let first = |offer| known(problem.unshared_first_leg(index, offer));
            let last = |offer| known(problem.last_leg(index, offer));
            tables.first.entry(&flow.source).or_insert_with(|| (0..offers).map(first).collect());
            tables.last.entry(&flow.destination).or_insert_with(|| (0..offers).map(last).collect());
            let inside = inputs.site_regions.get(&flow.destination);
            let to = inside.map_or(Egress::Internet, Egress::Region);
            let prices = || (0..offers).map(|offer| price(offer, to)).collect();
            tables.last_prices.entry(inside).or_insert_with(prices);
            let source = inputs.site_regions.get(&flow.source);
            let first = |offer| inputs.prices.source_egress(source, Egress::Region(region(offer)));
            let prices = || (0..offers).map(first).collect();
            tables.first_prices.entry(source).or_insert_with(prices);
        }
        tables.paces = tables.between.iter().map(pace_of).collect();
        tables.usd = tables.between_prices.iter().map(usd_of).collect();
        let last = tables.last_prices.values().flatten();
        let mut all = tables.between_prices.iter().chain(last);
        let first = all.next();
        tables.one_price = all.all(|price| Some(price) == first);
        tables
    }

    /// Returns the view of one flow.
    pub(crate) fn of(&self, flow: usize) -> FlowTables<'_> {
        let ends = &self.problem.flows()[flow];
        let inputs = self.problem.inputs();
        let inside = inputs.site_regions.get(&ends.destination);
        let source = inputs.site_regions.get(&ends.source);
        let start_up = inputs.start_up;
        let to = inside.map_or(Egress::Internet, Egress::Region);
        let shared = |(offer, known): (usize, &Option<Known>)| match (
            known,
            self.problem.share(flow, &[offer]),
        ) {
            (Some(known), Some(share)) => Some(Known::new(known.leg.capped_at(share), start_up)),
            _ => *known,
        };
        FlowTables {
            tables: self,
            first: self.first[&ends.source].iter().enumerate().map(shared).collect(),
            last: &self.last[&ends.destination],
            first_prices: &self.first_prices[&source],
            first_usd: self.first_prices[&source].iter().map(usd_of).collect(),
            direct_price: inputs.prices.source_egress(source, to),
            last_prices: &self.last_prices[&inside],
            last_paces: self.last[&ends.destination].iter().map(pace_of).collect(),
            last_usd: self.last_prices[&inside].iter().map(usd_of).collect(),
            volume: ends.volume,
            start_up,
        }
    }
}

/// The view that one flow has of [`Tables`].
pub(crate) struct FlowTables<'t> {
    tables: &'t Tables<'t>,
    first: Vec<Option<Known>>,
    last: &'t [Option<Known>],
    first_prices: &'t [Result<PricePerGb, ModelError>],
    first_usd: Vec<f64>,
    direct_price: Result<PricePerGb, ModelError>,
    last_prices: &'t [Result<PricePerGb, ModelError>],
    last_paces: Vec<Pace>,
    last_usd: Vec<f64>,
    volume: Bytes,
    start_up: StartUp,
}

impl FlowTables<'_> {
    pub(super) fn first(&self, offer: usize) -> Option<&Known> {
        self.first[offer].as_ref()
    }

    pub(super) fn last(&self, offer: usize) -> Option<&Known> {
        self.last[offer].as_ref()
    }

    pub(super) fn between(&self, from: usize, to: usize) -> Option<&Known> {
        self.tables.between[from * self.tables.offers + to].as_ref()
    }

    pub(super) const fn longest_rtt(&self) -> Duration {
        self.tables.longest_rtt
    }

    pub(super) const fn offers(&self) -> usize {
        self.tables.offers
    }

    pub(super) fn same_region(&self, a: usize, b: usize) -> bool {
        a / self.tables.types == b / self.tables.types
    }

    /// Returns the completion time over these legs.
    pub(super) fn fct(&self, legs: &[Known]) -> Duration {
        if self.start_up == StartUp::Ignored {
            let slowest = legs.iter().map(|known| known.rate).min().unwrap_or(Bandwidth::MAX);
            return slowest.time_for(self.volume);
        }
        let legs: Vec<Leg> = legs.iter().map(|known| known.leg).collect();
        path_fct(&legs, self.volume, self.start_up)
    }

    /// Returns the legs over these offers; `None` when one of them is not known.
    pub(super) fn legs(&self, relays: &[usize]) -> Option<Vec<Known>> {
        let (first, last) = (*relays.first()?, *relays.last()?);
        let between = relays.windows(2).map(|pair| self.between(pair[0], pair[1]));
        std::iter::once(self.first(first))
            .chain(between)
            .chain(std::iter::once(self.last(last)))
            .map(Option::<&Known>::copied)
            .collect()
    }

    /// Returns the egress cost over these offers.
    pub(super) fn egress(&self, relays: &[usize]) -> Result<Money, ModelError> {
        let first = relays.first().map_or(&self.direct_price, |first| &self.first_prices[*first]);
        let mut egress = first.clone()?.cost_of(self.volume);
        for (index, relay) in relays.iter().enumerate() {
            let price = match relays.get(index + 1) {
                Some(next) => &self.tables.between_prices[relay * self.tables.offers + next],
                None => &self.last_prices[*relay],
            };
            egress = egress + price.clone()?.cost_of(self.volume);
        }
        Ok(egress)
    }

    /// Calls `visit` with each path of one to `depth` relays whose time bound is not above a limit,
    /// in a fixed order by increasing bound of the first leg. `visit` returns the limit from then
    /// on.
    pub(crate) fn visit(
        &self,
        depth: usize,
        limit_s: f64,
        visit: &mut impl FnMut(&PartialPath) -> f64,
    ) {
        let volume = self.volume.as_u64() as f64;
        let cold = self.start_up == StartUp::Cold;
        let start = |offer: usize| {
            let (least_s, header_s) =
                PartialPath::START.over(self.first[offer]?.pace, volume, cold);
            let egress_usd = volume / 1e9 * self.first_usd[offer];
            let mut path =
                PartialPath { least_s, header_s, egress_usd, count: 1, ..PartialPath::START };
            path.relays[0] = u16::try_from(offer).unwrap_or(u16::MAX);
            Some(path)
        };
        let mut paths: Vec<PartialPath> = (0..self.offers()).filter_map(start).collect();
        paths.sort_by(|a, b| a.least_s.total_cmp(&b.least_s));
        let mut limit_s = limit_s;
        for path in paths.into_iter().take_while(|_| depth > 0) {
            self.visit_from(&path, depth, &mut limit_s, visit);
        }
    }

    fn visit_from(
        &self,
        path: &PartialPath,
        depth: usize,
        limit_s: &mut f64,
        visit: &mut impl FnMut(&PartialPath) -> f64,
    ) {
        if path.least_s > *limit_s {
            return;
        }
        let volume = self.volume.as_u64() as f64;
        let gb = volume / 1e9;
        let count = usize::from(path.count);
        let at = usize::from(path.relays[count - 1]);
        let (least_s, _) = path.over(self.last_paces[at], volume, true);
        if least_s <= *limit_s {
            let egress_usd = path.egress_usd + gb * self.last_usd[at];
            *limit_s = visit(&PartialPath { least_s, egress_usd, ..*path });
        }
        if count == depth {
            return;
        }
        let cold = self.start_up == StartUp::Cold;
        let row = at * self.offers()..(at + 1) * self.offers();
        let (paces, prices) = (&self.tables.paces[row.clone()], &self.tables.usd[row]);
        for (next, (pace, usd)) in paces.iter().zip(prices).enumerate() {
            let (least_s, header_s) = path.over(*pace, volume, cold);
            let longer = PartialPath { least_s, header_s, ..*path };
            if least_s > *limit_s
                || (count + 1 == depth
                    && longer.over(self.last_paces[next], volume, true).0 > *limit_s)
                || path.relays().iter().any(|r| self.same_region(usize::from(*r), next))
            {
                continue;
            }
            let egress_usd = path.egress_usd + gb * usd;
            let mut longer = PartialPath { egress_usd, count: path.count + 1, ..longer };
            longer.relays[count] = u16::try_from(next).unwrap_or(u16::MAX);
            self.visit_from(&longer, depth, limit_s, visit);
        }
    }

    /// Returns whether the egress of all relays has one price, and the source's egress to all
    /// relays, too.
    pub(super) fn one_price(&self) -> bool {
        let first = self.first_usd.first();
        self.tables.one_price && self.first_usd.iter().all(|usd| Some(usd) == first)
    }

    /// Returns whether no path over relays costs less than the direct one, so that slower ones
    /// never help.
    pub(crate) fn direct_is_cheapest(&self) -> bool {
        let direct = usd_of(&self.direct_price);
        let reached = self.first.iter().zip(&self.first_usd).filter(|(leg, _)| leg.is_some());
        reached.map(|(_, usd)| *usd).all(|usd| direct <= usd)
    }

    /// Returns lower bounds for any path over relays: its time in seconds, and the egress dollars
    /// of each of its relays.
    ///
    /// Takes single legs only, so it holds for any number of relays.
    pub(crate) fn least_of_any(&self) -> (f64, f64) {
        let volume = self.volume.as_u64() as f64;
        let carry = |known: &Known| {
            (volume * known.pace.by_bandwidth).max(volume * known.pace.by_window - known.pace.rtt)
        };
        let least =
            |legs: &[Option<Known>]| legs.iter().flatten().map(carry).fold(f64::INFINITY, f64::min);
        let prices = self.tables.usd.iter().chain(&self.last_usd);
        let cheapest = prices.copied().fold(f64::INFINITY, f64::min);
        let least_s = least(&self.first).max(least(self.last));
        (least_s, if cheapest.is_finite() { cheapest * volume / 1e9 } else { 0.0 })
    }
}
