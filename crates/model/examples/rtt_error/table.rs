//! A table of measured RTTs between regions, and the error of predictions against it.
//!
//! Form: CSV with the header `src,dst,min_rtt_ms`, one row for each ordered pair of regions.

use tradewind_model::{Catalogue, Coordinates};
use tradewind_units::RegionId;

/// One measured pair.
pub(crate) struct Pair {
    pub(crate) source_cloud: String,
    pub(crate) destination_cloud: String,
    pub(crate) ends: (Coordinates, Coordinates),
    pub(crate) measured_ms: f64,
}

/// Median and 90th percentile of `|predicted - measured| / measured`.
pub(crate) struct Error {
    pub(crate) median: f64,
    pub p90: f64,
}

/// Reads the table, sorted by place; regions that the catalogue does not hold are an error.
pub(crate) fn read(text: &str, catalogue: &Catalogue) -> Result<Vec<Pair>, String> {
    let mut lines = text.lines().enumerate();
    match lines.next() {
        Some((_, "src,dst,min_rtt_ms")) => {}
        _ => return Err("line 1: expected the header `src,dst,min_rtt_ms`".to_owned()),
    }
    let mut pairs: Vec<Pair> = lines
        .map(|(index, line)| {
            read_pair(line, catalogue).map_err(|error| format!("line {}: {error}", index + 1))
        })
        .collect::<Result<_, _>>()?;
    let degrees = |pair: &Pair| {
        let (a, b) = pair.ends;
        [a.latitude(), a.longitude(), b.latitude(), b.longitude()].map(f64::to_bits)
    };
    pairs.sort_by_key(degrees);
    Ok(pairs)
}

fn read_pair(line: &str, catalogue: &Catalogue) -> Result<Pair, String> {
    let fields: Vec<&str> = line.split(',').collect();
    let [source, destination, rtt] = fields[..] else {
        return Err(format!("expected three fields, not `{line}`"));
    };
    let region = |id: &str| {
        let id = RegionId::new(id).map_err(|error| error.to_string())?;
        catalogue.require(&id).map_err(|error| error.to_string()).cloned()
    };
    let (source, destination) = (region(source)?, region(destination)?);
    let measured_ms: f64 = rtt.parse().map_err(|_| format!("expected an RTT, not `{rtt}`"))?;
    if measured_ms.is_nan() || measured_ms <= 0.0 {
        return Err(format!("expected an RTT above zero, not `{rtt}`"));
    }
    Ok(Pair {
        source_cloud: source.id.cloud().to_owned(),
        destination_cloud: destination.id.cloud().to_owned(),
        ends: (source.location, destination.location),
        measured_ms,
    })
}

/// Returns the error of `predict` on these pairs.
pub(crate) fn error_of<'a>(
    pairs: impl IntoIterator<Item = &'a Pair>,
    predict: impl Fn(Coordinates, Coordinates) -> f64,
) -> Error {
    let off = |pair: &Pair| {
        let predicted_ms = predict(pair.ends.0, pair.ends.1);
        (predicted_ms - pair.measured_ms).abs() / pair.measured_ms
    };
    let mut errors: Vec<f64> = pairs.into_iter().map(off).collect();
    errors.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| errors[((errors.len() - 1) as f64 * share).round() as usize];
    Error { median: at(0.5), p90: at(0.9) }
}
