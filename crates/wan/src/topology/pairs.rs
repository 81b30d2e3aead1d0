//! Ordered pairs of sites: settings of the file for both ways, for one way, and by default.
//!
//! The most specific section that states a key wins: `from`/`to`, then `between`, then
//! `[default.pair]`, then this module's defaults. The last resort for the delay is the model of
//! round trips over distance, plus both sites' access.

use std::ops::Range;

use toml::Spanned;
use tradewind_model::{Catalogue, Coordinates, RttModel};
use tradewind_units::{Bytes, Duration, RegionId, SiteId};

use super::{
    Direction, LinkIndex, Loss, Pair, Reorder, Site, SiteIndex, TopologyError, limits, loss,
    resolve::{NEEDS_RATE, Names, Source, room, some_of},
    text::{File, PairSection, SiteSection, Span},
};

/// Default round trip within a site. Chosen: two machines in one zone of a cloud.
const RTT_WITHIN_A_SITE: Duration = Duration::from_micros(400);
/// Default of the largest IP packet: Ethernet's.
const MTU: Bytes = Bytes::new(1500);

/// Returns the settings of every ordered pair, row by source site.
pub(super) fn pairs(
    file: &File,
    names: &Names<'_>,
    sites: &[Site],
) -> Result<Vec<Pair>, TopologyError> {
    let source = names.source;
    let none = PairSection::default();
    let default = default_section(file, source)?.unwrap_or(&none);
    let stated = Stated::read(file, names, sites.len())?;
    let model = RttModel::fitted();
    let mut pairs = Vec::with_capacity(sites.len() * sites.len());
    for from in 0..sites.len() {
        for to in 0..sites.len() {
            // The defaults apply between sites, not within one.
            let default = if from == to { &none } else { default };
            let layers = Layers {
                one_way: stated.one_way[from * sites.len() + to],
                both_ways: stated.both_ways[from * sites.len() + to],
                default,
            };
            let rtt = match layers.rtt(source)? {
                Some(rtt) => Rtt::Stated(rtt),
                None if from == to => Rtt::Stated(RTT_WITHIN_A_SITE),
                None => match (sites[from].location, sites[to].location) {
                    (Some(a), Some(b)) => {
                        let access = [from, to]
                            .map(|site| file.site[site].get_ref().access_rtt.unwrap_or_default());
                        Rtt::Stated(model.rtt_between(a, b) + access[0] + access[1])
                    }
                    (a, _) => Rtt::Unknown(if a.is_none() { from } else { to }),
                },
            };
            let is_forward = stated.is_forward(from, to, sites.len());
            let ends = Ends { from, to, is_forward };
            pairs.push(layers.pair(rtt, ends, names, sites)?);
        }
    }
    // A default threshold needs at least one pair with a rate.
    if let Some(threshold) = &default.ecn_threshold
        && !pairs.iter().any(|pair| pair.rate.is_some())
    {
        return Err(source.refuse_at(threshold, NEEDS_RATE));
    }
    Ok(pairs)
}

/// A pair's round trip, or the site whose location is missing.
#[derive(Clone, Copy)]
enum Rtt {
    Stated(Duration),
    Unknown(usize),
}

/// An ordered pair, and whether the file names its sites in this order.
#[derive(Clone, Copy)]
struct Ends {
    from: usize,
    to: usize,
    is_forward: bool,
}

/// Returns the location of each site, if the file states it.
pub(super) fn places(
    sections: &[Spanned<SiteSection>],
    source: Source<'_>,
    catalogue: &Catalogue,
) -> Result<Vec<Option<Coordinates>>, TopologyError> {
    let place = |spanned: &Spanned<SiteSection>| {
        let section = spanned.get_ref();
        if let Some(access) = section.access_rtt {
            limits::check_span(access, limits::MAX_RTT)
                .map_err(|problem| source.refuse_at(spanned, format!("access_rtt: {problem}")))?;
        }
        let Some(region) = &section.region else { return Ok(section.location) };
        let known = catalogue
            .region(region.get_ref())
            .ok_or_else(|| source.refuse_at(region, unknown_region(region.get_ref(), catalogue)))?;
        Ok(Some(known.location))
    };
    sections.iter().map(place).collect()
}

/// Returns an error text that names the region that was meant, or lists the known ones.
fn unknown_region(id: &RegionId, catalogue: &Catalogue) -> String {
    let meant = catalogue.did_you_mean(id.as_str());
    if !meant.is_empty() {
        return format!("region `{id}` is not in the catalogue{meant}");
    }
    let of_cloud: Vec<_> =
        catalogue.regions().map(|region| &region.id).filter(|r| r.cloud() == id.cloud()).collect();
    if of_cloud.is_empty() {
        let mut clouds: Vec<_> = catalogue.regions().map(|region| region.id.cloud()).collect();
        clouds.dedup();
        let clouds = some_of(clouds.into_iter());
        return format!("region `{id}` is not in the catalogue, which has the clouds {clouds}");
    }
    let regions = some_of(of_cloud.into_iter());
    format!("region `{id}` is not in the catalogue, which has {regions}")
}

fn default_section<'a>(
    file: &'a File,
    source: Source<'_>,
) -> Result<Option<&'a PairSection>, TopologyError> {
    let Some(spanned) = &file.default.pair else { return Ok(None) };
    let section = spanned.get_ref();
    let names_a_pair = section.between.is_some() || section.from.is_some() || section.to.is_some();
    if names_a_pair || section.delay.is_some() || section.via.is_some() {
        let problem = "`between`, `from`, `to`, `delay` and `via` have no default: write them in \
                       `[[pair]]`";
        return Err(source.refuse_at(spanned, problem));
    }
    Ok(Some(section))
}

/// The sections about each ordered pair.
struct Stated<'a> {
    one_way: Vec<Option<&'a PairSection>>,
    both_ways: Vec<Option<&'a PairSection>>,
    /// `true` where `between` names the pair in this order.
    forward: Vec<bool>,
}

impl<'a> Stated<'a> {
    fn read(file: &'a File, names: &Names<'_>, site_count: usize) -> Result<Self, TopologyError> {
        let source = names.source;
        let empty = || vec![None; site_count * site_count];
        let mut stated = Self {
            one_way: empty(),
            both_ways: empty(),
            forward: vec![false; site_count * site_count],
        };
        for spanned in &file.pair {
            let section = spanned.get_ref();
            match (&section.between, &section.from, &section.to) {
                (Some(between), None, None) => {
                    let [a, b] = between.get_ref();
                    let (from, to) = (at(a, between.span(), names)?, at(b, between.span(), names)?);
                    if let Some(delay) = &section.delay {
                        let problem = "`delay` is one-way: write `rtt`, or `from` and `to`";
                        return Err(source.refuse_at(delay, problem));
                    }
                    for (from, to) in [(from, to), (to, from)] {
                        stated.both_ways[from * site_count + to] = Some(section);
                    }
                    let place = from * site_count + to;
                    if stated.forward[place] || stated.forward[to * site_count + from] {
                        let problem = format!("a second `[[pair]]` between `{a}` and `{b}`");
                        return Err(source.refuse_at(between, problem));
                    }
                    stated.forward[place] = true;
                }
                (None, Some(from), Some(to)) => {
                    if let Some(rtt) = &section.rtt {
                        let problem = "`rtt` is for both ways: write `delay`, or `between`";
                        return Err(source.refuse_at(rtt, problem));
                    }
                    let place = at(from.get_ref(), from.span(), names)? * site_count
                        + at(to.get_ref(), to.span(), names)?;
                    if stated.one_way[place].replace(section).is_some() {
                        let problem = format!(
                            "a second `[[pair]]` from `{}` to `{}`",
                            from.get_ref(),
                            to.get_ref()
                        );
                        return Err(source.refuse_at(spanned, problem));
                    }
                }
                _ => {
                    let problem = "a pair needs either `between = [\"a\", \"b\"]`, or `from` and \
                                   `to`";
                    return Err(source.refuse_at(spanned, problem));
                }
            }
        }
        Ok(stated)
    }

    /// Returns whether this is the direction that `between` names; without one, it is.
    fn is_forward(&self, from: usize, to: usize, site_count: usize) -> bool {
        self.forward[from * site_count + to] || !self.forward[to * site_count + from]
    }
}

fn at(id: &SiteId, span: Range<usize>, names: &Names<'_>) -> Result<usize, TopologyError> {
    names.site(id, span).map(|SiteIndex(index)| usize::from(index))
}

/// The sections about one ordered pair, most specific first.
#[derive(Clone, Copy)]
struct Layers<'a> {
    one_way: Option<&'a PairSection>,
    both_ways: Option<&'a PairSection>,
    default: &'a PairSection,
}

impl<'a> Layers<'a> {
    fn find<T>(&self, key: impl Fn(&'a PairSection) -> Option<T>) -> Option<T> {
        self.one_way
            .and_then(&key)
            .or_else(|| self.both_ways.and_then(&key))
            .or_else(|| key(self.default))
    }

    fn rtt(&self, source: Source<'_>) -> Result<Option<Duration>, TopologyError> {
        match self.find(|section| section.rtt.as_ref()) {
            Some(rtt) => limited("rtt", rtt, limits::MAX_RTT, source).map(Some),
            None => Ok(None),
        }
    }

    fn delay(
        &self,
        rtt: Rtt,
        ends: Ends,
        source: Source<'_>,
        sites: &[Site],
    ) -> Result<Duration, TopologyError> {
        if let Some(delay) = self.find(|section| section.delay.as_ref()) {
            return limited("delay", delay, limits::MAX_RTT, source);
        }
        match rtt {
            // Both halves add up to the round trip to the nanosecond.
            Rtt::Stated(rtt) if ends.is_forward => Ok(rtt / 2),
            Rtt::Stated(rtt) => Ok(rtt - rtt / 2),
            Rtt::Unknown(homeless) => {
                let (from, to, homeless) =
                    (&sites[ends.from].id, &sites[ends.to].id, &sites[homeless].id);
                let problem = format!(
                    "no round trip from `{from}` to `{to}`: write `[[pair]]` with between = \
                     [\"{from}\", \"{to}\"] and an `rtt`, or give `{homeless}` a `region` or a \
                     `location`"
                );
                Err(TopologyError { place: format!("pair `{from}`, `{to}`"), problem })
            }
        }
    }

    fn pair(
        &self,
        rtt: Rtt,
        ends: Ends,
        names: &Names<'_>,
        sites: &[Site],
    ) -> Result<Pair, TopologyError> {
        let source = names.source;
        let delay = self.delay(rtt, ends, source, sites)?;
        let jitter = match self.find(|section| section.jitter.as_ref()) {
            Some(jitter) => limited("jitter", jitter, limits::MAX_JITTER, source)?,
            None => Duration::ZERO,
        };
        let mtu = match self.find(|section| section.mtu.as_ref()) {
            Some(mtu) => {
                limits::mtu(*mtu.get_ref())
                    .map_err(|problem| source.refuse_at(mtu, format!("mtu: {problem}")))?;
                *mtu.get_ref()
            }
            None => MTU,
        };
        let rate = self.find(|section| section.rate).and_then(|limit| limit.0);
        let round_trip = match rtt {
            Rtt::Stated(rtt) => rtt,
            Rtt::Unknown(_) => delay * 2,
        };
        let queue = self.find(|section| section.queue.as_ref());
        let burst = self.find(|section| section.burst_loss.as_ref());
        Ok(Pair {
            delay,
            jitter,
            rate,
            queue: room(queue, rate, mtu, round_trip, source)?,
            ecn_threshold: self.ecn_threshold(rate.is_some(), source)?,
            mtu,
            icmp: self.find(|section| section.icmp).unwrap_or(true),
            loss: Loss {
                random: self.find(|section| section.loss).unwrap_or_default(),
                burst: loss::burst(burst, source)?,
                outages: Vec::new(),
            },
            reorder: self.reorder(source)?,
            duplicate: self.find(|section| section.duplicate).unwrap_or_default(),
            via: self.via(ends, names)?,
        })
    }

    fn ecn_threshold(
        &self,
        has_rate: bool,
        source: Source<'_>,
    ) -> Result<Option<Bytes>, TopologyError> {
        let mut own = [self.one_way, self.both_ways].into_iter().flatten();
        let own = own.find_map(|section| section.ecn_threshold.as_ref());
        if let Some(threshold) = own.filter(|_| !has_rate) {
            return Err(source.refuse_at(threshold, NEEDS_RATE));
        }
        Ok(own.or(self.default.ecn_threshold.as_ref()).map(|threshold| *threshold.get_ref()))
    }

    fn reorder(&self, source: Source<'_>) -> Result<Option<Reorder>, TopologyError> {
        let Some(spanned) = self.find(|section| section.reorder.as_ref()) else { return Ok(None) };
        let section = spanned.get_ref();
        if section.late_by.is_zero() {
            let problem = "reorder: a `late_by` above 0 would let others overtake";
            return Err(source.refuse_at(spanned, problem));
        }
        limits::check_span(section.late_by, limits::MAX_JITTER)
            .map_err(|problem| source.refuse_at(spanned, format!("reorder: {problem}")))?;
        Ok(Some(Reorder { share: section.share, late_by: section.late_by }))
    }

    fn via(
        &self,
        ends: Ends,
        names: &Names<'_>,
    ) -> Result<Vec<(LinkIndex, Direction)>, TopologyError> {
        // A `from`/`to` section's own `via` is already in the direction of travel.
        let own = self.one_way.and_then(|section| section.via.as_ref());
        let shared = self.both_ways.and_then(|section| section.via.as_ref());
        let (list, is_forward) = match (own, shared) {
            (Some(list), _) => (list, true),
            (None, Some(list)) => (list, ends.is_forward),
            (None, None) => return Ok(Vec::new()),
        };
        if let Some(surplus) = list.get(limits::MAX_LINKS_ON_A_PAIR) {
            let problem = format!("via: at most {} links", limits::MAX_LINKS_ON_A_PAIR);
            return Err(names.source.refuse_at(surplus, problem));
        }
        let read = |spanned: &Spanned<String>| {
            let text = spanned.get_ref().as_str();
            let (name, is_reversed) =
                text.strip_prefix('-').map_or((text, false), |name| (name, true));
            let index = names.link(name, spanned.span())?;
            let forward = is_forward != is_reversed;
            Ok((index, if forward { Direction::Forward } else { Direction::Backward }))
        };
        let mut via: Vec<_> = list.iter().map(read).collect::<Result<_, TopologyError>>()?;
        if !is_forward {
            via.reverse();
        }
        Ok(via)
    }
}

fn limited(
    key: &str,
    span: &Spanned<Span>,
    longest: Duration,
    source: Source<'_>,
) -> Result<Duration, TopologyError> {
    let value = span.get_ref().0;
    limits::check_span(value, longest)
        .map_err(|problem| source.refuse_at(span, format!("{key}: {problem}")))?;
    Ok(value)
}
