//! Min-max routing over measured RTTs that are not part of this repository. Set `TRADEWIND_RTT_CSV`
//! to their CSV (`src,dst,min_rtt_ms`, regions as `cloud:region`).

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that reads a file, not part of the pure library"
)]

use tradewind_plan::routing::Router;
use tradewind_plan::routing::table::RttTable;
use tradewind_units::{Duration, SiteId};

#[test]
#[ignore = "SKIPPED: needs measured RTTs, see docs/explanation/rtt-model.md"]
fn more_relays_shorten_largest_measured_leg() {
    let path =
        std::env::var("TRADEWIND_RTT_CSV").expect("TRADEWIND_RTT_CSV: a CSV of measured RTTs");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let table = RttTable::parse(&text).unwrap();
    let aws: Vec<&SiteId> =
        table.places().into_iter().filter(|place| place.as_str().starts_with("aws:")).collect();
    let [mumbai, san_francisco] =
        ["gcp:asia-south1", "azure:westus"].map(|name| SiteId::new(name).unwrap());
    let router = Router::new(&&mumbai, &&san_francisco, &aws, |a, b| table.rtt(a, b));

    let ends: Vec<&str> =
        router.cloudified(2, 1)[0].relays.iter().map(|r| aws[*r].as_str()).collect();
    assert_eq!(ends, ["aws:ap-south-1", "aws:us-west-1"], "as in CDD");
    let three = router.cloudified(3, 1).remove(0);
    assert!(["aws:ap-northeast-1", "aws:ap-northeast-3"].contains(&aws[three.relays[1]].as_str()));
    // The paper's largest inner leg was 123 ms in 2017.
    let inner = three.rtts[1].max(three.rtts[2]);
    assert!((90..150).contains(&inner.as_millis()), "{inner:?}");
    assert!(router.gain_over_two(&three) > Some(1.5));

    let largest: Vec<Duration> =
        (0..=4).map(|most| router.ranking(most, 1)[0].largest_leg()).collect();
    assert!(largest.is_sorted_by(|a, b| a >= b), "{largest:?}");
    assert!(largest[0] > 2 * largest[2], "{largest:?}");
}
