//! Candidate regions and sites, and the resolution of names in pairs and tables.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tradewind_model::{Catalogue, Continent, Coordinates};
use tradewind_units::{Bandwidth, Bytes, Duration, RegionId, SiteId};

use super::error::{FileError, Source};
use super::tables::shown;
use super::text::{File, GeneratedSites, Regions};
use crate::problem::LegEnd;

/// Most sites. Chosen: the number of legs grows with sites times regions.
const MAX_SITES: usize = 5_000;
/// Most candidate regions. Chosen: all clouds have some two hundred.
const MAX_REGIONS: usize = 500;

/// A site: the source or destination of flows.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) id: SiteId,
    pub(super) region: Option<RegionId>,
    pub(super) location: Option<Coordinates>,
    pub(super) access_rtt: Duration,
    pub(super) rate: Option<Bandwidth>,
    pub(super) egress_cap: Option<Bandwidth>,
    pub(super) egress_cap_outside: Option<Bandwidth>,
    pub(super) window: Option<Bytes>,
    /// Its position in the file.
    pub(super) span: Range<usize>,
}

/// All places of a file.
pub(super) struct Places<'a> {
    pub(super) source: Source<'a>,
    pub(super) catalogue: &'a Catalogue,
    pub(super) regions: Vec<RegionId>,
    /// Their position in the file.
    pub(super) regions_span: Range<usize>,
    pub(super) sites: BTreeMap<SiteId, Site>,
}

impl<'a> Places<'a> {
    pub(super) fn read(
        file: &File,
        source: Source<'a>,
        catalogue: &'a Catalogue,
    ) -> Result<Self, FileError> {
        let regions = regions(file, source, catalogue)?;
        let regions_span = file.regions.as_ref().map_or(0..0, toml::Spanned::span);
        let mut places = Self { source, catalogue, regions, regions_span, sites: BTreeMap::new() };
        for spanned in &file.site {
            places.add(stated(spanned, source)?)?;
        }
        if let Some(generate) = &file.generate
            && let Some(generated) = &generate.get_ref().sites
        {
            places.generate(generated.get_ref(), generated.span())?;
        }
        Ok(places)
    }

    fn add(&mut self, site: Site) -> Result<(), FileError> {
        let refuse = |problem: String| Err(self.source.refuse(&site.span, problem));
        if self.sites.len() == MAX_SITES {
            return refuse(format!("at most {MAX_SITES} sites"));
        }
        if self.sites.contains_key(&site.id) {
            return refuse(format!("a second site `{}`: ids must differ", site.id));
        }
        let called_as_region = |region: &RegionId| region.as_str() == site.id.as_str();
        if self.regions.iter().any(called_as_region) || self.region(site.id.as_str()).is_some() {
            let problem = "a region is called so: give the site another name and `region = ..`";
            return refuse(problem.to_owned());
        }
        if let Some(region) = &site.region {
            self.catalogue
                .require(region)
                .map_err(|_| self.source.refuse(&site.span, self.no_region(region.as_str())))?;
        }
        self.sites.insert(site.id.clone(), site);
        Ok(())
    }

    /// Adds a site for each region of the catalogue that the filter selects.
    fn generate(&mut self, spec: &GeneratedSites, span: Range<usize>) -> Result<(), FileError> {
        let selected = filtered(
            self.catalogue,
            spec.clouds.as_deref(),
            spec.continents.as_deref(),
            &spec.except,
        );
        if selected.is_empty() {
            return Err(self.source.refuse(&span, "no region of the catalogue is taken"));
        }
        let outside = spec.egress_cap_outside.as_ref();
        if let Some(cap) = outside.filter(|_| spec.outside) {
            let problem = "sites outside the cloud leave no region; all that leaves a machine is \
                `egress_cap`";
            return Err(self.source.refuse_at(cap, problem));
        }
        part_of(outside, spec.egress_cap, self.source)?;
        for region in selected {
            let id = SiteId::new(format!("host.{region}"))
                .map_err(|error| self.source.refuse(&span, error.to_string()))?;
            let location = self.catalogue.region(&region).map(|region| region.location);
            let (region, location) =
                if spec.outside { (None, location) } else { (Some(region), None) };
            self.add(Site {
                id,
                region,
                location,
                access_rtt: spec.access_rtt.unwrap_or_default(),
                rate: spec.rate,
                egress_cap: spec.egress_cap,
                egress_cap_outside: outside.map(|cap| *cap.get_ref()),
                window: window(spec.window.as_ref(), self.source)?,
                span: span.clone(),
            })?;
        }
        Ok(())
    }

    /// Returns the site of this name.
    pub(super) fn site(&self, id: &SiteId, span: &Range<usize>) -> Result<&Site, FileError> {
        self.sites.get(id).ok_or_else(|| {
            self.source.refuse(span, format!("no site `{id}`; the file has {}", self.some_sites()))
        })
    }

    pub(super) fn some_sites(&self) -> String {
        const SHOWN: usize = 6;
        let names: Vec<String> =
            self.sites.keys().take(SHOWN).map(|site| format!("`{site}`")).collect();
        match (names.is_empty(), self.sites.len() > SHOWN) {
            (true, _) => "none".to_owned(),
            (false, true) => format!("{}, ...", names.join(", ")),
            (false, false) => names.join(", "),
        }
    }

    /// Returns the site or region of this name, candidate or not.
    pub(super) fn place(&self, name: &str) -> Result<LegEnd, String> {
        if let Some(site) = SiteId::new(name).ok().filter(|id| self.sites.contains_key(id)) {
            return Ok(LegEnd::Site(site));
        }
        self.region(name).map(LegEnd::Relay).ok_or_else(|| {
            let close = self.catalogue.did_you_mean(name);
            format!("no site and no region of the catalogue is called `{}`{close}", shown(name))
        })
    }

    /// Returns the region of this name, or the one that contains the zone of this name.
    pub(super) fn region(&self, name: &str) -> Option<RegionId> {
        let known = |name: &str| {
            let id = RegionId::new(name).ok()?;
            self.catalogue.region(&id).map(|region| region.id.clone())
        };
        known(name).or_else(|| known(without_zone(name)?))
    }

    /// Returns a message that the catalogue has no region of this name, with a similar name.
    pub(super) fn no_region(&self, name: &str) -> String {
        no_region(self.catalogue, name)
    }

    /// Returns the region of a relay, or the one that a site is in.
    pub(super) fn region_of(&self, place: &LegEnd) -> Option<RegionId> {
        match place {
            LegEnd::Relay(region) => Some(region.clone()),
            LegEnd::Site(site) => self.sites.get(site)?.region.clone(),
        }
    }

    /// Returns the coordinates of a place, if they are known.
    pub(super) fn location(&self, place: &LegEnd) -> Option<Coordinates> {
        let own = match place {
            LegEnd::Relay(_) => None,
            LegEnd::Site(site) => self.sites.get(site)?.location,
        };
        own.or_else(|| Some(self.catalogue.region(&self.region_of(place)?)?.location))
    }

    /// Returns the round-trip time of a site's access network; zero for a region.
    pub(super) fn access_rtt(&self, place: &LegEnd) -> Duration {
        match place {
            LegEnd::Relay(_) => Duration::ZERO,
            LegEnd::Site(site) => self.sites.get(site).map_or(Duration::ZERO, |s| s.access_rtt),
        }
    }
}

/// Returns the region's name in a zone's name: `gcp:us-east4-a` is in `gcp:us-east4`,
/// `aws:us-east-1a` in `aws:us-east-1`; `None` if it is no zone's name.
fn without_zone(name: &str) -> Option<&str> {
    let region = name.strip_suffix(|last: char| last.is_ascii_lowercase())?;
    let region = region.strip_suffix('-').unwrap_or(region);
    region.ends_with(|last: char| last.is_ascii_digit()).then_some(region)
}

/// Returns a message that the catalogue has no region of this name, with a similar name.
pub(super) fn no_region(catalogue: &Catalogue, name: &str) -> String {
    let close = catalogue.did_you_mean(name);
    format!("region `{}` is not in the catalogue{close}", shown(name))
}

fn stated(
    spanned: &toml::Spanned<super::text::SiteSection>,
    source: Source<'_>,
) -> Result<Site, FileError> {
    let section = spanned.get_ref();
    let region = section.region.as_ref();
    if let Some(region) = region.filter(|_| section.location.is_some()) {
        return Err(source.refuse_at(region, "a region and a location: one is enough"));
    }
    let outside = section.egress_cap_outside.as_ref();
    if let Some(cap) = outside.filter(|_| region.is_none()) {
        let problem = "it needs the site's `region`; all that leaves a machine is `egress_cap`";
        return Err(source.refuse_at(cap, problem));
    }
    part_of(outside, section.egress_cap, source)?;
    Ok(Site {
        id: section.id.get_ref().clone(),
        region: region.map(|region| region.get_ref().clone()),
        location: section.location,
        access_rtt: section.access_rtt.unwrap_or_default(),
        rate: section.rate,
        egress_cap: section.egress_cap,
        egress_cap_outside: outside.map(|cap| *cap.get_ref()),
        window: window(section.window.as_ref(), source)?,
        span: region.map_or(section.id.span(), toml::Spanned::span),
    })
}

/// Refuses a cap on traffic that leaves the region above the cap on all traffic.
fn part_of(
    outside: Option<&toml::Spanned<Bandwidth>>,
    all: Option<Bandwidth>,
    source: Source<'_>,
) -> Result<(), FileError> {
    match outside.zip(all) {
        Some((outside, all)) if *outside.get_ref() > all => {
            let outside_rate = outside.get_ref();
            let problem = format!("{outside_rate} leave the region, but {all} the machine");
            Err(source.refuse_at(outside, problem))
        }
        _ => Ok(()),
    }
}

/// The largest window that TCP's window scale can express [RFC 7323 section 2.3].
const MAX_WINDOW: Bytes = Bytes::new((1 << 30) - 1);

/// Validates a window: above zero, and no more than TCP supports.
pub(super) fn window(
    stated: Option<&toml::Spanned<Bytes>>,
    source: Source<'_>,
) -> Result<Option<Bytes>, FileError> {
    let Some(window) = stated else { return Ok(None) };
    if *window.get_ref() == Bytes::ZERO {
        return Err(source.refuse_at(window, "a window above zero, not `0 B`"));
    }
    if *window.get_ref() > MAX_WINDOW {
        return Err(
            source.refuse_at(window, "at most 1 GB, which is all that TCP can have under way")
        );
    }
    Ok(Some(*window.get_ref()))
}

fn regions(
    file: &File,
    source: Source<'_>,
    catalogue: &Catalogue,
) -> Result<Vec<RegionId>, FileError> {
    let Some(spanned) = &file.regions else { return Ok(Vec::new()) };
    let listed = match spanned.get_ref() {
        Regions::Filtered(filter) => {
            let (clouds, continents) = (filter.clouds.as_deref(), filter.continents.as_deref());
            let selected = filtered(catalogue, clouds, continents, &filter.except);
            if selected.is_empty() {
                return Err(source.refuse_at(spanned, "no region of the catalogue is taken"));
            }
            return Ok(selected);
        }
        Regions::Listed(listed) => listed,
    };
    let mut seen = BTreeSet::new();
    for region in listed {
        catalogue.require(region.get_ref()).map_err(|_| {
            source.refuse_at(region, no_region(catalogue, region.get_ref().as_str()))
        })?;
        if !seen.insert(region.get_ref()) {
            let problem = format!("region `{}` is named twice", region.get_ref());
            return Err(source.refuse_at(region, problem));
        }
    }
    if listed.len() > MAX_REGIONS {
        return Err(source.refuse_at(spanned, format!("at most {MAX_REGIONS} regions")));
    }
    Ok(listed.iter().map(|region| region.get_ref().clone()).collect())
}

/// Returns the catalogue's regions in these clouds and continents, by name.
fn filtered(
    catalogue: &Catalogue,
    clouds: Option<&[String]>,
    continents: Option<&[Continent]>,
    except: &[RegionId],
) -> Vec<RegionId> {
    let selected = |region: &&tradewind_model::Region| {
        clouds.is_none_or(|clouds| clouds.iter().any(|cloud| cloud == region.id.cloud()))
            && continents.is_none_or(|continents| continents.contains(&region.continent))
            && !except.contains(&region.id)
    };
    catalogue.regions().filter(selected).map(|region| region.id.clone()).collect()
}
