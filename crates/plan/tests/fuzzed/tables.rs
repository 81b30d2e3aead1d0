//! Properties of any log of flows and any table of RTTs, which the fuzzer and the replay of its
//! corpus check.

use tradewind_plan::forecast::{History, forecast, parse_log};
use tradewind_plan::routing::Router;
use tradewind_plan::routing::table::RttTable;
use tradewind_units::{Bytes, Duration, SiteId};

/// Most periods for which a forecast is made here: a step of the fuzzer should be short.
const MAX_PERIODS: usize = 400;

/// Checks that a log is refused in one line, or that its sums are complete and its forecast is
/// finite.
pub(crate) fn flow_log(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let flows = match parse_log(text) {
        Ok(flows) => flows,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    assert!(flows.iter().all(|flow| flow.volume > Bytes::ZERO));
    let Ok(history) = History::new(&flows, Duration::from_secs(3600)) else { return };
    let sums = || history.series().iter().flat_map(|series| &series.volumes);
    let summed: f64 = sums().sum();
    let carried: f64 = flows.iter().map(|flow| flow.volume.as_u64() as f64).sum();
    assert!((summed / carried - 1.0).abs() < 1e-6, "{summed} of {carried}");
    if history.periods() <= MAX_PERIODS {
        let forecast = forecast(&history, None).expect("without a season none is refused");
        assert!(forecast.trials.iter().all(|trial| trial.error_bytes.is_finite()));
        assert_eq!(forecast.planned_flows().len(), forecast.flows.len());
    }
}

/// Checks that a table is refused in one line, or that routes over it are in order.
pub(crate) fn rtt_table(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let table = match RttTable::parse(text) {
        Ok(table) => table,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    let places: Vec<&SiteId> = table.places().into_iter().take(8).collect();
    let [from, to, relays @ ..] = places.as_slice() else { return };
    let router = Router::new(from, to, relays, |a, b| table.rtt(a, b));
    let paths = router.ranking(3, 50);
    assert!(paths.is_sorted_by_key(|path| (path.largest_leg(), path.total_rtt())));
    for path in &paths {
        assert_eq!(router.path(&path.relays).as_ref(), Some(path));
    }
}
