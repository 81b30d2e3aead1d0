//! Construction of a problem's legs from stated properties, from defaults, and from distance where
//! that is allowed.
//!
//! A site in a region without statements of its own takes those of the region, its access network's
//! round-trip time added; a direction without a stated round-trip time takes that of the other.

use std::collections::BTreeSet;
use std::ops::Range;

use tradewind_model::geo::distance_km;
use tradewind_model::leg::Loss;
use tradewind_model::tcp::LossResponse;
use tradewind_model::{Leg, RttModel};
use tradewind_units::{Bandwidth, Duration, Segments, SiteId, time::as_millis_f64};

use super::error::FileError;
use super::flows::PlacedFlow;
use super::pairs::{Pair, Stated, connections, loss, smaller};
use super::places::{Places, window};
use super::text::{File, LegSection, QuickStart};
use crate::assumptions::{LegOrigin, Origins, RttOrigin, WindowOrigin};
use crate::problem::{Flow, LegEnd, Legs, MAX_RELAYS};

/// Most legs. Chosen: each takes some 200 bytes.
const MAX_LEGS: usize = 2_000_000;

/// Legs, and the origins of their figures.
pub(super) struct Built {
    pub(super) legs: Legs,
    pub(super) origins: Origins,
    /// Notes on round-trip times that are shorter than light takes, or longer than any path's.
    pub(super) impossible: Vec<String>,
}

/// The source and destination of a flow, and its position in the file.
pub(super) struct Ends {
    pub(super) from: SiteId,
    pub(super) to: SiteId,
    pub(super) span: Range<usize>,
}

impl Ends {
    pub(super) fn of(placed: &PlacedFlow) -> Self {
        let Flow { source, destination, .. } = &placed.flow;
        Self { from: source.clone(), to: destination.clone(), span: placed.span.clone() }
    }
}

/// Builds every leg that some path of some flow may have.
pub(super) fn legs(
    file: &File,
    places: &Places<'_>,
    carried: &[Ends],
    stated: &Stated,
    max_relays: usize,
) -> Result<Built, FileError> {
    for section in [&file.leg.all, &file.leg.direct, &file.leg.access, &file.leg.inner] {
        window(section.window.as_ref(), places.source)?;
        connections(section.connections.as_ref(), places.source)?;
        loss(section.loss.as_ref(), places.source)?;
    }
    let mut builder = Builder {
        file,
        places,
        stated,
        legs: Legs::new(),
        origins: Origins::new(),
        faster: Vec::new(),
    };
    let mut seen = BTreeSet::new();
    for Ends { from, to, span } in carried {
        builder.add(LegEnd::Site(from.clone()), LegEnd::Site(to.clone()), span)?;
        if max_relays == 0 {
            continue;
        }
        if seen.insert((from, true)) {
            for region in &places.regions {
                let relay = LegEnd::Relay(region.clone());
                builder.add(LegEnd::Site(from.clone()), relay, span)?;
            }
        }
        if seen.insert((to, false)) {
            for region in &places.regions {
                let relay = LegEnd::Relay(region.clone());
                builder.add(relay, LegEnd::Site(to.clone()), span)?;
            }
        }
    }
    if max_relays >= 2 {
        for from in &places.regions {
            for to in places.regions.iter().filter(|to| *to != from) {
                let (from, to) = (LegEnd::Relay(from.clone()), LegEnd::Relay(to.clone()));
                builder.add(from, to, &places.regions_span)?;
            }
        }
    }
    let impossible = builder.too_fast().into_iter().chain(builder.too_slow()).collect();
    Ok(Built { legs: builder.legs, origins: builder.origins, impossible })
}

/// Returns the greatest number of relays on a path.
pub(super) fn max_relays(file: &File, places: &Places<'_>) -> Result<usize, FileError> {
    let Some(stated) = &file.max_relays else { return Ok(2) };
    if *stated.get_ref() > MAX_RELAYS {
        let problem = format!("0 to {MAX_RELAYS} relays on a path, not {}", stated.get_ref());
        return Err(places.source.refuse_at(stated, problem));
    }
    Ok(*stated.get_ref())
}

struct Builder<'a> {
    file: &'a File,
    places: &'a Places<'a>,
    stated: &'a Stated,
    legs: Legs,
    origins: Origins,
    /// Legs whose stated round-trip time is shorter than light's, with the latter.
    faster: Vec<(Pair, Duration)>,
}

/// The speed of light in vacuum, in kilometres a second.
const LIGHT_KM_PER_S: f64 = 299_792.458;
/// Distance by which places may be closer than in the catalogue. Chosen: regions are located by
/// their city, and spread around it.
const NEARER_KM: f64 = 200.0;
/// Round-trip time that no path has. Chosen: some eight times that over two geostationary
/// satellites.
const NO_PATH: Duration = Duration::from_secs(10);

impl Builder<'_> {
    /// Notes a round-trip time that is shorter than light takes.
    fn hold_against_light(&mut self, pair: &Pair, rtt: Duration) {
        let ends = self.places.location(&pair.0).zip(self.places.location(&pair.1));
        let Some((from, to)) = ends else { return };
        let far_km = (distance_km(from, to) - NEARER_KM).max(0.0);
        let light = Duration::from_secs_f64(2.0 * far_km / LIGHT_KM_PER_S);
        if rtt < light {
            self.faster.push((pair.clone(), light));
        }
    }

    fn too_fast(&self) -> Option<String> {
        let ((from, to), light) = self.faster.first()?;
        let rtt = self.legs.get(&(from.clone(), to.clone()))?.rtt;
        Some(format!(
            "the round trips of {} of {} legs are shorter than light takes, such as from {from} \
             to {to}: {:.3} ms stated, {:.1} ms by \
             light; is a table in seconds?",
            self.faster.len(),
            self.legs.len(),
            as_millis_f64(rtt),
            as_millis_f64(*light),
        ))
    }

    fn too_slow(&self) -> Option<String> {
        let mut slow = self.legs.iter().filter(|(_, leg)| leg.rtt > NO_PATH);
        let ((from, to), leg) = slow.next()?;
        Some(format!(
            "the round trips of {} of {} legs are longer than any path takes, such as from {from} \
             to {to}: {:.1} s stated; is a table in microseconds?",
            1 + slow.count(),
            self.legs.len(),
            leg.rtt.as_secs_f64(),
        ))
    }

    fn add(&mut self, from: LegEnd, to: LegEnd, span: &Range<usize>) -> Result<(), FileError> {
        let pair = (from, to);
        if self.legs.contains_key(&pair) {
            return Ok(());
        }
        if self.legs.len() == MAX_LEGS {
            let problem = format!("more than {MAX_LEGS} legs: name fewer sites or regions");
            return Err(self.places.source.refuse(span, problem));
        }
        let standing = self.standing_for(&pair);
        let blocked = |(pair, _): &(Pair, Duration)| self.stated.legs.get(pair)?.blocked;
        if standing.iter().find_map(blocked).unwrap_or(false) {
            return Ok(());
        }
        let (rtt, of_rtt) = self.rtt(&pair, &standing, span)?;
        let (leg, of_window) = self.dressed(&pair, &standing, rtt);
        if of_rtt != RttOrigin::Distance {
            self.hold_against_light(&pair, rtt);
        }
        self.origins.insert(pair.clone(), LegOrigin { rtt: of_rtt, window: of_window });
        self.legs.insert(pair, leg);
        Ok(())
    }

    /// Returns the round-trip time of a pair: its own, that of its regions, or one by distance.
    fn rtt(
        &self,
        pair: &Pair,
        standing: &[(Pair, Duration)],
        span: &Range<usize>,
    ) -> Result<(Duration, RttOrigin), FileError> {
        for (place, ((from, to), access)) in standing.iter().enumerate() {
            let there = self.stated.rtts.get(&(from.clone(), to.clone()));
            let back = || self.stated.rtts.get(&(to.clone(), from.clone()));
            if let Some(rtt) = there.or_else(back) {
                let own = if place == 0 { RttOrigin::Stated } else { RttOrigin::OfRegions };
                return Ok((rtt.saturating_add(*access), own));
            }
        }
        let (from, to) = pair;
        let access = self.places.access_rtt(from) + self.places.access_rtt(to);
        let region = self.places.region_of(from);
        if let Some(same) = self.file.same_region_rtt
            && region.is_some()
            && region == self.places.region_of(to)
        {
            return Ok((same + access, RttOrigin::SameRegion));
        }
        let located = self.places.location(from).zip(self.places.location(to));
        match located {
            Some((from, to)) if self.file.assume_rtt_from_distance => {
                Ok((RttModel::fitted().rtt_between(from, to) + access, RttOrigin::Distance))
            }
            Some(_) => Err(self.places.source.refuse(
                span,
                format!(
                    "no round-trip time from {from} to {to}: state it in a table of `rtt_tables`, \
                     a \
                     report of `[[probes]]` or a `[[pair]]`, or set `assume_rtt_from_distance = \
                     true`"
                ),
            )),
            None => Err(self.places.source.refuse(
                span,
                format!(
                    "no round-trip time from {from} to {to}: state it in a table of `rtt_tables`, \
                     a \
                     report of `[[probes]]` or a `[[pair]]`"
                ),
            )),
        }
    }

    /// Returns the pairs whose statements apply to this one, the most specific first, with the
    /// round-trip times of the access networks that they leave out.
    fn standing_for(&self, pair: &Pair) -> Vec<(Pair, Duration)> {
        let own_and_region = |place: &LegEnd| {
            let mut names = vec![(place.clone(), Duration::ZERO)];
            if let (LegEnd::Site(_), Some(region)) = (place, self.places.region_of(place)) {
                names.push((LegEnd::Relay(region), self.places.access_rtt(place)));
            }
            names
        };
        let (from, to) = (own_and_region(&pair.0), own_and_region(&pair.1));
        let mut all = Vec::new();
        for (a, a_access) in &from {
            for (b, b_access) in &to {
                all.push(((a.clone(), b.clone()), *a_access + *b_access));
            }
        }
        all
    }

    /// Returns the leg with all properties that apply to it, and the origin of its window.
    fn dressed(
        &self,
        pair: &Pair,
        standing: &[(Pair, Duration)],
        rtt: Duration,
    ) -> (Leg, WindowOrigin) {
        let (from, to) = pair;
        let site = |place: &LegEnd| match place {
            LegEnd::Site(site) => self.places.sites.get(site),
            LegEnd::Relay(_) => None,
        };
        let (source, destination) = (site(from), site(to));
        let kind = match (source, destination) {
            (Some(_), Some(_)) => &self.file.leg.direct,
            (None, None) => &self.file.leg.inner,
            _ => &self.file.leg.access,
        };
        let mut leg = Leg::new(rtt);
        let own = self.stated.legs.get(pair);
        let sections = [Some(&self.file.leg.all), Some(kind), own.map(|own| &own.leg)];
        leg = with_section(with_section(leg, &self.file.leg.all), kind);
        let window = smaller(source.and_then(|s| s.window), destination.and_then(|s| s.window));
        if let Some(window) = window {
            leg = leg.with_window(window);
        }
        for rate in [source, destination].into_iter().flatten().filter_map(|site| site.rate) {
            leg = leg.capped_at(rate);
        }
        if let Some(rate) = standing.iter().find_map(|(pair, _)| self.stated.rates.get(pair)) {
            leg = leg.capped_at(*rate);
        }
        leg = own.map_or(leg, |own| with_section(leg, &own.leg));
        // The most specific section that has the key applies.
        let mut granted =
            sections.iter().copied().flatten().filter_map(|section| section.quick_start);
        if let Some(QuickStart::Rate(rate)) = granted.next_back() {
            leg.initial_window = leg.initial_window.max(quick_start(rate, &leg));
        }
        let mut stated = sections.into_iter().flatten().map(|section| section.window.is_some());
        let is_stated = window.is_some() || stated.any(|stated| stated);
        (leg, if is_stated { WindowOrigin::Stated } else { WindowOrigin::Default })
    }
}

/// Returns the leg with its properties overridden by those of a section.
fn with_section(mut leg: Leg, section: &LegSection) -> Leg {
    if let Some(window) = &section.window {
        leg = leg.with_window(*window.get_ref());
    }
    if let Some(connections) = &section.connections {
        leg = leg.with_connections(*connections.get_ref());
    }
    leg.per_connection_cap = section.per_connection.or(leg.per_connection_cap);
    leg.initial_window = section.initial_window.unwrap_or(leg.initial_window);
    if section.loss.is_some() || section.congestion_control.is_some() {
        let before = leg.loss;
        let stated = section.loss.as_ref().map(|loss| *loss.get_ref());
        let ratio = stated.or(before.map(|loss| loss.ratio)).unwrap_or_default();
        let response = section.congestion_control.or(before.map(|loss| loss.response));
        leg.loss = Some(Loss { ratio, response: response.unwrap_or(LossResponse::Cubic) });
    }
    leg
}

/// Returns the initial window of a connection whose path grants it this rate from the start [RFC
/// 4782].
fn quick_start(rate: Bandwidth, leg: &Leg) -> Segments {
    let segments = rate.volume_in(leg.rtt).as_u64() / leg.mss.as_u64().max(1);
    let most = 1 << 20;
    let segments = u32::try_from(segments.clamp(1, most)).unwrap_or(u32::MAX);
    Segments::new(segments).expect("clamped to what a window can be")
}
