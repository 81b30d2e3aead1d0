//! CP's four patterns of flows, generated from a seed [CP III, VII-B].

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use toml::Spanned;
use tradewind_model::geo::distance_km;
use tradewind_model::{Continent, Coordinates};
use tradewind_units::{Ratio, SiteId};

use super::error::FileError;
use super::flows::MAX_FLOWS;
use super::places::{Places, Site};
use super::text::{GenerateSection, Pattern};
use crate::problem::LegEnd;

/// Shares of destinations that a localized source serves, the closest source first [CP VII-B].
const LOCALIZED_SHARES: [f64; 3] = [0.9, 0.07, 0.03];
/// The continents of localized sources, one source in each [CP VII-B].
const LOCALIZED_CONTINENTS: [Continent; 3] =
    [Continent::Asia, Continent::Europe, Continent::NorthAmerica];

type Pairs = Vec<(SiteId, SiteId)>;

/// A seeded random generator.
pub(super) struct Draw(Pcg64Mcg);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not give similar streams: spread them over the state.
        let spread = u128::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        Self(Pcg64Mcg::new(spread ^ 0xCAFE_F00D_D15E_A5E5))
    }

    /// Returns a number from 0 to below `bound`, which is above zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let scaled = u128::from(self.0.next_u64()) * u128::from(bound);
        (scaled >> 64) as u64
    }

    fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// Returns a fraction from 0 to below 1.
    fn share(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Generates the pairs of sources and destinations.
    pub(super) fn pairs(
        &mut self,
        generate: &Spanned<GenerateSection>,
        places: &Places<'_>,
    ) -> Result<Pairs, FileError> {
        let (section, source) = (generate.get_ref(), places.source);
        let sites: Vec<&Site> = places.sites.values().collect();
        if sites.len() < 2 {
            let problem = "flows need two sites: write `[[site]]`, or `sites` in `[generate]`";
            return Err(source.refuse_at(generate, problem));
        }
        if let Some(shares) = &section.shares
            && section.pattern != Pattern::LocalizedOneToMany
        {
            let problem = "only the pattern `localized-one-to-many` has shares";
            return Err(source.refuse_at(shares, problem));
        }
        let more = section.sources.iter().flatten().nth(1);
        if let Some(more) = more.filter(|_| section.pattern == Pattern::OneToMany) {
            let problem = "`one-to-many` has one source: name one, or take another pattern";
            return Err(source.refuse_at(more, problem));
        }
        let mut sources = Vec::new();
        for id in section.sources.iter().flatten() {
            sources.push(places.site(id.get_ref(), &id.span())?);
        }
        let count = section.flows.as_ref().map(|count| *count.get_ref());
        match section.pattern {
            Pattern::OneToMany => {
                let from =
                    sources.first().copied().unwrap_or_else(|| sites[self.index(sites.len())]);
                Ok(self.one_to_many(from, &sites, count.unwrap_or(sites.len() - 1)))
            }
            Pattern::ManyToMany | Pattern::ManyOneToOne => {
                let senders = if sources.is_empty() { &sites } else { &sources };
                if senders.len() * sites.len() > 10 * MAX_FLOWS {
                    return Err(source.refuse_at(generate, "too many sites for a full mesh"));
                }
                let mut pairs = mesh(senders, &sites);
                let all = section.pattern == Pattern::ManyToMany;
                let count = count.unwrap_or(if all { pairs.len() } else { sites.len() / 2 });
                if count < pairs.len() {
                    self.shuffle(&mut pairs);
                }
                if !all {
                    pairs = apart(pairs, count);
                }
                Ok(again(&pairs, count))
            }
            Pattern::LocalizedOneToMany => {
                let sources = self.localized_sources(sources, generate, places)?;
                let shares = shares(section, sources.len(), generate, places)?;
                let count = count.unwrap_or(sites.len().saturating_sub(sources.len()));
                self.localized(&sources, &sites, &shares, count, generate, places)
            }
        }
    }

    /// Pairs one source with different destinations, which are repeated if there are fewer than
    /// flows.
    fn one_to_many(&mut self, from: &Site, sites: &[&Site], count: usize) -> Pairs {
        let mut to: Vec<&SiteId> =
            sites.iter().map(|site| &site.id).filter(|id| **id != from.id).collect();
        self.shuffle(&mut to);
        to.into_iter().cycle().take(count).map(|to| (from.id.clone(), to.clone())).collect()
    }

    /// Returns the named sources, or one random source in each of three continents.
    fn localized_sources<'s>(
        &mut self,
        named: Vec<&'s Site>,
        generate: &Spanned<GenerateSection>,
        places: &'s Places<'_>,
    ) -> Result<Vec<&'s Site>, FileError> {
        if !named.is_empty() {
            return Ok(named);
        }
        let mut sources = Vec::new();
        for wanted in LOCALIZED_CONTINENTS {
            let there: Vec<&Site> = (places.sites.values())
                .filter(|site| continent(site, places) == Some(wanted))
                .collect();
            if there.is_empty() {
                let problem =
                    format!("no site in {} to send from: name `sources`", wanted.as_str());
                return Err(places.source.refuse_at(generate, problem));
            }
            sources.push(there[self.index(there.len())]);
        }
        Ok(sources)
    }

    /// Draws destinations one by one, each served by its closest source or, with small probability,
    /// by one further away.
    fn localized(
        &mut self,
        sources: &[&Site],
        sites: &[&Site],
        shares: &[f64],
        count: usize,
        generate: &Spanned<GenerateSection>,
        places: &Places<'_>,
    ) -> Result<Pairs, FileError> {
        let is_source = |site: &Site| sources.iter().any(|source| source.id == site.id);
        let to: Vec<&&Site> = sites.iter().filter(|site| !is_source(site)).collect();
        if to.is_empty() {
            let problem = "every site is a source: there is nobody to send to";
            return Err(places.source.refuse_at(generate, problem));
        }
        let mut pairs = Pairs::new();
        while pairs.len() < count {
            let to = to[self.index(to.len())];
            let at = located(to, places)?;
            let mut near: Vec<(f64, &Site)> = Vec::new();
            for source in sources {
                near.push((distance_km(located(source, places)?, at), source));
            }
            near.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut left = self.share();
            let place = shares.iter().position(|share| {
                left -= share;
                left < 0.0
            });
            let from = near[place.unwrap_or(0)].1;
            pairs.push((from.id.clone(), to.id.clone()));
        }
        Ok(pairs)
    }
}

/// Returns the shares of destinations that are served by the closest source, the next, and so on.
fn shares(
    section: &GenerateSection,
    sources: usize,
    generate: &Spanned<GenerateSection>,
    places: &Places<'_>,
) -> Result<Vec<f64>, FileError> {
    let Some(stated) = &section.shares else {
        if sources != LOCALIZED_SHARES.len() {
            let problem = format!("{sources} sources: state as many `shares`, the closest first");
            return Err(places.source.refuse_at(generate, problem));
        }
        return Ok(LOCALIZED_SHARES.to_vec());
    };
    let shares: Vec<f64> = stated.get_ref().iter().copied().map(Ratio::as_f64).collect();
    let sum: f64 = shares.iter().sum();
    if shares.len() != sources || (sum - 1.0).abs() > 1e-6 {
        let problem = format!("{sources} shares that add up to 1, one for each source");
        return Err(places.source.refuse_at(stated, problem));
    }
    Ok(shares)
}

fn located(site: &Site, places: &Places<'_>) -> Result<Coordinates, FileError> {
    places.location(&LegEnd::Site(site.id.clone())).ok_or_else(|| {
        let problem = format!("site `{}` needs a `region` or a `location` here", site.id);
        places.source.refuse(&site.span, problem)
    })
}

/// Returns the continent of the region nearest to a site.
fn continent(site: &Site, places: &Places<'_>) -> Option<Continent> {
    let at = places.location(&LegEnd::Site(site.id.clone()))?;
    let near = |region: &&tradewind_model::Region| distance_km(region.location, at);
    let regions = places.catalogue.regions();
    regions.min_by(|a, b| near(a).total_cmp(&near(b))).map(|region| region.continent)
}

/// Returns every ordered pair of different sites.
fn mesh(from: &[&Site], to: &[&Site]) -> Pairs {
    let pairs = from.iter().flat_map(|a| to.iter().map(move |b| (a.id.clone(), b.id.clone())));
    pairs.filter(|(a, b)| a != b).collect()
}

/// Returns `count` of these pairs: first those that share no site, then others.
fn apart(pairs: Pairs, count: usize) -> Pairs {
    let mut busy = std::collections::BTreeSet::new();
    let (mut alone, mut rest) = (Pairs::new(), Pairs::new());
    for (from, to) in pairs {
        if busy.contains(&from) || busy.contains(&to) {
            rest.push((from, to));
        } else {
            busy.insert(from.clone());
            busy.insert(to.clone());
            alone.push((from, to));
        }
    }
    alone.extend(rest);
    alone.truncate(count);
    alone
}

/// Returns `count` of these pairs, repeated from the first if there are fewer.
fn again(pairs: &[(SiteId, SiteId)], count: usize) -> Pairs {
    pairs.iter().cycle().take(count).cloned().collect()
}
