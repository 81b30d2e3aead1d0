//! Flows, stated one by one or generated from a seed in one of CP's patterns [CP III].

use std::collections::BTreeSet;

use toml::Spanned;
use tradewind_units::{Bytes, FlowId, SiteId};

use super::draw::Draw;
use super::error::{FileError, Source};
use super::places::Places;
use super::text::{File, FlowSection, GenerateSection};
use crate::problem::Flow;

/// Most flows. Chosen: ten times the number that the planner is designed for.
pub(super) const MAX_FLOWS: usize = 100_000;

/// A flow and its position in the file.
pub(super) struct PlacedFlow {
    pub(super) flow: Flow,
    pub(super) span: std::ops::Range<usize>,
}

/// Returns all flows of the file: those stated, then those generated; it is an error if there are
/// none, unless `may_be_none`.
pub(super) fn flows(
    file: &File,
    places: &Places<'_>,
    may_be_none: bool,
) -> Result<Vec<PlacedFlow>, FileError> {
    let source = places.source;
    let mut flows = Vec::new();
    let mut names = BTreeSet::new();
    for section in &file.flow {
        let flow = stated(section.get_ref(), places)?;
        if !names.insert(flow.id.clone()) {
            let span = section.get_ref().id.as_ref().map_or(section.span(), Spanned::span);
            let problem = format!("a second flow `{}`: give each its own `id`", flow.id);
            return Err(source.refuse(&span, problem));
        }
        flows.push(PlacedFlow { flow, span: section.get_ref().from.span() });
    }
    if let Some(generate) = &file.generate {
        for flow in drawn(generate, places)? {
            if !names.insert(flow.id.clone()) {
                let problem = format!("flow `{}` is drawn, and stated as well", flow.id);
                return Err(source.refuse_at(generate, problem));
            }
            flows.push(PlacedFlow { flow, span: generate.get_ref().volume.span() });
        }
    }
    if flows.is_empty() && !may_be_none {
        let problem = "no flows: write `[[flow]]` with `from`, `to` and `volume`, `[generate]` or \
            `[[packet_flow]]`";
        return Err(source.refuse(&(0..0), problem));
    }
    if flows.len() > MAX_FLOWS {
        return Err(source.refuse(&flows[MAX_FLOWS].span, format!("at most {MAX_FLOWS} flows")));
    }
    Ok(flows)
}

fn stated(section: &FlowSection, places: &Places<'_>) -> Result<Flow, FileError> {
    let source = places.source;
    let from = places.site(section.from.get_ref(), &section.from.span())?.id.clone();
    let to = places.site(section.to.get_ref(), &section.to.span())?.id.clone();
    if from == to {
        return Err(source.refuse_at(&section.to, format!("a flow from `{from}` to itself")));
    }
    let id = match &section.id {
        Some(id) => id.get_ref().clone(),
        None => FlowId::new(format!("{from}-{to}")).map_err(|error| {
            source.refuse_at(&section.from, format!("give it an `id`: {error}"))
        })?,
    };
    Ok(Flow {
        weight: weight(section.weight.as_ref(), source)?,
        deadline: section.deadline,
        ..Flow::new(id, from, to, volume(&section.volume, source)?)
    })
}

fn volume(stated: &Spanned<Bytes>, source: Source<'_>) -> Result<Bytes, FileError> {
    if *stated.get_ref() == Bytes::ZERO {
        return Err(source.refuse_at(stated, "a volume above zero, not `0 B`"));
    }
    Ok(*stated.get_ref())
}

fn weight(stated: Option<&Spanned<u32>>, source: Source<'_>) -> Result<u32, FileError> {
    match stated {
        Some(weight) if *weight.get_ref() == 0 => {
            Err(source.refuse_at(weight, "a weight of 1 or more, not 0"))
        }
        Some(weight) => Ok(*weight.get_ref()),
        None => Ok(1),
    }
}

/// Generates the flows of `[generate]`.
fn drawn(generate: &Spanned<GenerateSection>, places: &Places<'_>) -> Result<Vec<Flow>, FileError> {
    let (section, source) = (generate.get_ref(), places.source);
    if let Some(count) = &section.flows
        && !(1..=MAX_FLOWS).contains(count.get_ref())
    {
        let problem = format!("1 to {MAX_FLOWS} flows, not {}", count.get_ref());
        return Err(source.refuse_at(count, problem));
    }
    let least = volume(&section.volume, source)?;
    let most = match &section.volume_max {
        Some(most) if *most.get_ref() < least => {
            let problem = format!("at least `volume`, {least}, not `{}`", most.get_ref());
            return Err(source.refuse_at(most, problem));
        }
        Some(most) => *most.get_ref(),
        None => least,
    };
    let weight = weight(section.weight.as_ref(), source)?;
    let mut draw = Draw::new(section.seed);
    let pairs: Vec<(SiteId, SiteId)> = draw.pairs(generate, places)?;
    let digits = pairs.len().to_string().len();
    let flow = |(number, (from, to)): (usize, (SiteId, SiteId))| {
        let id = FlowId::new(format!("flow-{number:0digits$}")).expect("a short word");
        let span = most.as_u64() - least.as_u64();
        let volume = Bytes::new(least.as_u64() + draw.below(span + 1));
        Flow { weight, deadline: section.deadline, ..Flow::new(id, from, to, volume) }
    };
    Ok((1..).zip(pairs).map(flow).collect())
}
