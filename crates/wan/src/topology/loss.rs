//! Burst losses and outages of the file.

use std::ops::Range;

use toml::Spanned;
use tradewind_units::{Duration, Ratio, SiteId};

use super::{
    BurstLoss, LinkIndex, Outage, OutageTimes, SiteIndex, TopologyError,
    resolve::{Names, Source},
    text::{BurstSection, OutageSection},
};

/// Shortest mean gap between random outages. Chosen: shorter ones are loss, not outage.
const MIN_MEAN_GAP: Duration = Duration::from_millis(1);

/// Returns the burst loss after checking that bursts can end.
pub(super) fn burst(
    section: Option<&Spanned<BurstSection>>,
    source: Source<'_>,
) -> Result<Option<BurstLoss>, TopologyError> {
    let Some(spanned) = section else { return Ok(None) };
    let BurstSection { enter, leave, inside, outside } = *spanned.get_ref();
    if leave == Ratio::ZERO && enter != Ratio::ZERO {
        let problem = "burst_loss: a burst that never ends; `leave` above 0 would end it";
        return Err(source.refuse_at(spanned, problem));
    }
    Ok(Some(BurstLoss { enter, leave, inside, outside }))
}

/// Outages by the pairs and links they affect.
pub(super) struct Outages {
    /// Outages of each ordered pair of sites, row by source.
    pub(super) of_pairs: Vec<Vec<Outage>>,
    /// Named links and their outages.
    pub(super) of_links: Vec<(LinkIndex, Outage)>,
}

impl Outages {
    pub(super) fn read(
        sections: &[Spanned<OutageSection>],
        names: &Names<'_>,
        site_count: usize,
    ) -> Result<Self, TopologyError> {
        let mut outages =
            Self { of_pairs: vec![Vec::new(); site_count * site_count], of_links: Vec::new() };
        let mut used: Vec<&str> = Vec::new();
        for spanned in sections {
            let name = spanned.get_ref().name.get_ref();
            if used.contains(&name.as_str()) {
                let problem = format!("a second outage `{name}`: names must differ");
                return Err(names.source.refuse_at(&spanned.get_ref().name, problem));
            }
            used.push(name);
            outages.add(spanned, names, site_count)?;
        }
        Ok(outages)
    }

    fn add(
        &mut self,
        spanned: &Spanned<OutageSection>,
        names: &Names<'_>,
        site_count: usize,
    ) -> Result<(), TopologyError> {
        let section = spanned.get_ref();
        let times = times(section)
            .map_err(|problem| names.source.refuse_at(spanned, format!("outage: {problem}")))?;
        let outage = Outage { name: section.name.get_ref().clone(), times };
        let place =
            |from: SiteIndex, to: SiteIndex| usize::from(from.0) * site_count + usize::from(to.0);
        let mut hit = vec![false; site_count * site_count];
        for pair in &section.between {
            let (from, to) = ends(pair.get_ref(), pair.span(), names)?;
            hit[place(from, to)] = true;
            hit[place(to, from)] = true;
        }
        for pair in &section.from_to {
            let (from, to) = ends(pair.get_ref(), pair.span(), names)?;
            hit[place(from, to)] = true;
        }
        for site in &section.sites {
            let index = usize::from(names.site(site.get_ref(), site.span())?.0);
            for other in (0..site_count).filter(|other| *other != index) {
                hit[index * site_count + other] = true;
                hit[other * site_count + index] = true;
            }
        }
        if !hit.contains(&true) && section.links.is_empty() {
            let problem =
                "outage: it hits nothing; name pairs (`between`, `from_to`), `sites` or `links`";
            return Err(names.source.refuse_at(spanned, problem));
        }
        for (pair, _) in self.of_pairs.iter_mut().zip(hit).filter(|(_, is_hit)| *is_hit) {
            pair.push(outage.clone());
        }
        for link in &section.links {
            let index = names.link(link.get_ref(), link.span())?;
            self.of_links.push((index, outage.clone()));
        }
        Ok(())
    }
}

fn ends(
    pair: &[SiteId; 2],
    span: Range<usize>,
    names: &Names<'_>,
) -> Result<(SiteIndex, SiteIndex), TopologyError> {
    Ok((names.site(&pair[0], span.clone())?, names.site(&pair[1], span)?))
}

fn times(section: &OutageSection) -> Result<OutageTimes, String> {
    let planned = (section.start, section.length);
    let random = (section.mean_gap, section.shortest, section.longest);
    match (planned, random) {
        ((Some(start), Some(length)), (None, None, None)) => {
            if length.is_zero() {
                return Err("a `length` above 0 would be felt".to_owned());
            }
            match section.every {
                Some(every) if every <= length => Err(format!(
                    "`every` (begin to begin) must exceed `length`, but {every:?} <= {length:?}"
                )),
                every => Ok(OutageTimes::Planned { start, length, every }),
            }
        }
        ((None, None), (Some(mean_gap), Some(shortest), Some(longest))) => {
            if section.every.is_some() {
                return Err("`every` belongs to `start` and `length`, not to `mean_gap`".to_owned());
            }
            if mean_gap < MIN_MEAN_GAP {
                return Err(format!("a `mean_gap` of 1 ms at least, not {mean_gap:?}"));
            }
            if shortest > longest || longest.is_zero() {
                return Err(format!(
                    "`shortest` at most `longest`, which is above 0, not {shortest:?} and \
                     {longest:?}"
                ));
            }
            Ok(OutageTimes::Random { mean_gap, shortest, longest })
        }
        _ => Err("write either `start` and `length` (and `every`), or `mean_gap`, `shortest` and \
                  `longest`"
            .to_owned()),
    }
}
