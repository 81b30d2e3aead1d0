//! Turns the file's sections into a checked [`Topology`]: looks up names and fills in defaults.

use std::{collections::BTreeMap, ops::Range};

use toml::Spanned;
use tradewind_model::Catalogue;
use tradewind_units::{Bandwidth, Bytes, SiteId, in_plain_words};

use super::{
    LinkIndex, Loss, SharedLink, Site, SiteIndex, Topology, TopologyError, hosts, limits,
    loss::{self, Outages},
    pairs,
    text::{File, LinkSection, SiteSection},
};

/// Default interface MTU: Ethernet's.
const MTU: Bytes = Bytes::new(1500);
/// Smallest window that can be enforced: two full segments.
const MIN_WINDOW: Bytes = Bytes::new(3000);
/// The round trip at which a named link's default queue is one bandwidth-delay product. Chosen: a
/// wide-area path of middle length.
const SHARED_LINK_RTT: tradewind_units::Duration = tradewind_units::Duration::from_millis(100);

/// The error for an ECN threshold without a queue.
pub(super) const NEEDS_RATE: &str =
    "ecn_threshold: without a `rate` there is no queue that could exceed it";

/// Turns positions in the text into errors that name a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a>(pub(super) &'a str);

impl Source<'_> {
    pub(super) fn refuse(self, span: Range<usize>, problem: impl Into<String>) -> TopologyError {
        let before = self.0.as_bytes().get(..span.start).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        TopologyError { place: format!("line {line}"), problem: problem.into() }
    }

    /// Returns the error for a value that carries its position.
    pub(super) fn refuse_at<T>(
        self,
        value: &Spanned<T>,
        problem: impl Into<String>,
    ) -> TopologyError {
        self.refuse(value.span(), problem)
    }
}

/// Names that are known so far.
pub(super) struct Names<'a> {
    pub(super) source: Source<'a>,
    sites: BTreeMap<SiteId, SiteIndex>,
    links: BTreeMap<String, LinkIndex>,
}

impl Names<'_> {
    pub(super) fn site(&self, id: &SiteId, span: Range<usize>) -> Result<SiteIndex, TopologyError> {
        self.sites.get(id).copied().ok_or_else(|| {
            let known = some_of(self.sites.keys());
            self.source.refuse(span, format!("no site `{id}`; the file has {known}"))
        })
    }

    pub(super) fn link(&self, name: &str, span: Range<usize>) -> Result<LinkIndex, TopologyError> {
        self.links.get(name).copied().ok_or_else(|| {
            let known = some_of(self.links.keys());
            self.source.refuse(span, format!("no link `{name}`; the file has {known}"))
        })
    }
}

/// Lists a few names for an error's hint.
pub(super) fn some_of<T: std::fmt::Display>(names: impl ExactSizeIterator<Item = T>) -> String {
    const SHOWN: usize = 8;
    let more = names.len() > SHOWN;
    let shown: Vec<String> = names.take(SHOWN).map(|name| format!("`{name}`")).collect();
    match (shown.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (false, true) => format!("{}, ...", shown.join(", ")),
        (false, false) => shown.join(", "),
    }
}

/// Parses and checks a whole file.
pub(super) fn topology(text: &str, catalogue: &Catalogue) -> Result<Topology, TopologyError> {
    let source = Source(text);
    let file: File = toml::from_str(text).map_err(|error| {
        let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        source.refuse(error.span().unwrap_or_default(), in_plain_words(&message))
    })?;
    if file.site.is_empty() {
        let problem = "no sites: write `[[site]]` with an `id` or a `region`";
        return Err(source.refuse(0..0, problem));
    }
    let (mut sites, site_names) = sites(&file.site, source)?;
    for (site, place) in sites.iter_mut().zip(pairs::places(&file.site, source, catalogue)?) {
        site.location = place;
    }
    let (mut links, link_names) = shared_links(&file.link, source)?;
    let names = Names { source, sites: site_names, links: link_names };
    let hosts = hosts::hosts(&file, &names, &sites, catalogue)?;
    let mut pairs = pairs::pairs(&file, &names, &sites)?;
    let outages = Outages::read(&file.outage, &names, sites.len())?;
    for (pair, of_pair) in pairs.iter_mut().zip(outages.of_pairs) {
        pair.loss.outages = of_pair;
    }
    for (index, outage) in outages.of_links {
        links[usize::from(index.0)].loss.outages.push(outage);
    }
    Ok(Topology { seed: file.seed, sites, hosts, links, pairs })
}

type SiteNames = BTreeMap<SiteId, SiteIndex>;

fn sites(
    sections: &[Spanned<SiteSection>],
    source: Source<'_>,
) -> Result<(Vec<Site>, SiteNames), TopologyError> {
    let mut sites = Vec::new();
    let mut names = SiteNames::new();
    for spanned in sections {
        let section = spanned.get_ref();
        let id = match (&section.id, &section.region) {
            (Some(id), _) => id.get_ref().clone(),
            (None, Some(region)) => region.get_ref().clone().into(),
            (None, None) => {
                return Err(source.refuse_at(spanned, "a site without a name: give it an `id`"));
            }
        };
        if sites.len() == limits::MAX_SITES {
            let problem = format!("more than {} sites: fewer would be right", limits::MAX_SITES);
            return Err(source.refuse_at(spanned, problem));
        }
        if let Some(window) = &section.window
            && *window.get_ref() < MIN_WINDOW
        {
            let problem = format!(
                "window: room for two segments (`{MIN_WINDOW}`) at least, not `{}`",
                window.get_ref()
            );
            return Err(source.refuse_at(window, problem));
        }
        if let Some(window) = &section.window {
            limits::buffer(*window.get_ref())
                .map_err(|problem| source.refuse_at(window, format!("window: {problem}")))?;
        }
        if section.region.is_some() && section.location.is_some() {
            let problem = format!("site `{id}` has a region and a location: one is enough");
            return Err(source.refuse_at(spanned, problem));
        }
        let index = SiteIndex(u16::try_from(sites.len()).expect("sites are limited"));
        if names.insert(id.clone(), index).is_some() {
            let span = section.id.as_ref().map_or(spanned.span(), Spanned::span);
            return Err(source.refuse(span, format!("a second site `{id}`: ids must differ")));
        }
        let region = section.region.as_ref().map(|region| region.get_ref().clone());
        let window = section.window.as_ref().map(|window| *window.get_ref());
        sites.push(Site { id, region, location: None, window });
    }
    Ok((sites, names))
}

type LinkNames = BTreeMap<String, LinkIndex>;

fn shared_links(
    sections: &[Spanned<LinkSection>],
    source: Source<'_>,
) -> Result<(Vec<SharedLink>, LinkNames), TopologyError> {
    let mut links = Vec::new();
    let mut names = LinkNames::new();
    for spanned in sections {
        let section = spanned.get_ref();
        let name = section.name.get_ref();
        // A link's name follows the rules of all other names.
        if let Err(error) = SiteId::new(name.as_str()) {
            let problem = format!("link name: {}, not `{name}`", error.expected);
            return Err(source.refuse_at(&section.name, problem));
        }
        let Ok(index) = u16::try_from(links.len()) else {
            return Err(source.refuse_at(spanned, "more than 65536 links"));
        };
        if names.insert(name.clone(), LinkIndex(index)).is_some() {
            let problem = format!("a second link `{name}`: names must differ");
            return Err(source.refuse_at(&section.name, problem));
        }
        let rate = section.rate.and_then(|limit| limit.0);
        let queue = room(section.queue.as_ref(), rate, MTU, SHARED_LINK_RTT, source)?;
        let loss = Loss {
            random: section.loss.unwrap_or_default(),
            burst: loss::burst(section.burst_loss.as_ref(), source)?,
            outages: Vec::new(),
        };
        let ecn_threshold = section.ecn_threshold.as_ref();
        if let Some(threshold) = ecn_threshold.filter(|_| rate.is_none()) {
            return Err(source.refuse_at(threshold, NEEDS_RATE));
        }
        let ecn_threshold = ecn_threshold.map(|threshold| *threshold.get_ref());
        links.push(SharedLink { name: name.clone(), rate, queue, ecn_threshold, loss });
    }
    Ok((links, names))
}

/// Returns a queue's capacity: as stated, if a packet fits, or one bandwidth-delay product.
pub(super) fn room(
    stated: Option<&Spanned<Bytes>>,
    rate: Option<Bandwidth>,
    mtu: Bytes,
    rtt: tradewind_units::Duration,
    source: Source<'_>,
) -> Result<Bytes, TopologyError> {
    match (stated, rate) {
        (Some(queue), _) if *queue.get_ref() < mtu => {
            let problem =
                format!("queue: room for at least one packet of {mtu}, not `{}`", queue.get_ref());
            Err(source.refuse_at(queue, problem))
        }
        (Some(queue), _) => {
            limits::queue(*queue.get_ref())
                .map_err(|problem| source.refuse_at(queue, format!("queue: {problem}")))?;
            Ok(*queue.get_ref())
        }
        (None, Some(rate)) => Ok(limits::default_queue(rate, rtt)),
        (None, None) => Ok(Bytes::ZERO),
    }
}
