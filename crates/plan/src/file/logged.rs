//! A log of past flows between the sites of a problem file.

use std::collections::BTreeSet;

use tradewind_units::{Bytes, FlowId, SiteId};

use super::error::FileError;
use super::flows::PlacedFlow;
use super::places::Places;
use super::tables::shown;
use crate::forecast::log::{LogError, PastFlow, lines_of_flows, parse_log};
use crate::problem::Flow;

/// A log of past flows as [`parse_log`] reads it.
#[derive(Debug, Clone, Copy)]
pub struct Log<'a> {
    /// Its name in errors.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
}

impl Log<'_> {
    /// Parses its flows, all of which must be between sites of the file.
    pub(super) fn read(self, places: &Places<'_>) -> Result<Vec<PastFlow>, FileError> {
        let refuse = |line: usize, field: Option<&str>, problem: String| FileError {
            table: Some(shown(self.name)),
            line,
            field: field.map(str::to_owned),
            problem,
        };
        let flows = parse_log(self.text).map_err(|error| match error {
            LogError::Line { line, message } => refuse(line, None, message),
            other => refuse(1, None, other.to_string()),
        })?;
        for (flow, line) in flows.iter().zip(lines_of_flows(self.text)) {
            for (field, site) in [("source", &flow.source), ("destination", &flow.destination)] {
                if !places.sites.contains_key(site) {
                    let problem =
                        format!("no site `{site}`; the problem file has {}", places.some_sites());
                    return Err(refuse(line, Some(field), problem));
                }
            }
        }
        Ok(flows)
    }
}

/// Returns a flow for each pair of sites in a log, for which legs are needed. Its position is that
/// of its source in the problem file.
pub(super) fn pairs(past: &[PastFlow], places: &Places<'_>) -> Vec<PlacedFlow> {
    let pairs: BTreeSet<(&SiteId, &SiteId)> =
        past.iter().map(|flow| (&flow.source, &flow.destination)).collect();
    let placed = |(source, destination): (&SiteId, &SiteId)| {
        let id = FlowId::new("any").expect("a short word");
        PlacedFlow {
            flow: Flow::new(id, source.clone(), destination.clone(), Bytes::new(1)),
            span: places.sites.get(source).map_or(0..0, |site| site.span.clone()),
        }
    };
    pairs.into_iter().map(placed).collect()
}
