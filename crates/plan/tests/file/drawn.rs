//! Flows that a pattern draws.

use std::collections::BTreeSet;

use super::*;

fn drawn(pattern: &str, more: &str) -> Vec<(String, String)> {
    let text = format!(
        "assume_rtt_from_distance = true\n[generate]\npattern = \"{pattern}\"\nvolume = \"1 GB\"\n\
         sites = {{ clouds = [\"gcp\"], outside = true }}\n{more}"
    );
    let flows = read(&text).unwrap().inputs.flows.into_iter();
    flows.map(|flow| (flow.source.to_string(), flow.destination.to_string())).collect()
}

#[test]
fn each_pattern_draws_its_flows_and_the_seed_decides() {
    let sources =
        |flows: &[(String, String)]| flows.iter().map(|(a, _)| a.clone()).collect::<BTreeSet<_>>();
    let star = drawn("one-to-many", "flows = 20");
    assert_eq!((star.len(), sources(&star).len()), (20, 1));
    assert_eq!(star.iter().map(|(_, to)| to).collect::<BTreeSet<_>>().len(), 20, "all differ");
    assert_eq!(star, drawn("one-to-many", "flows = 20\nseed = 0"));
    assert_ne!(star, drawn("one-to-many", "flows = 20\nseed = 1"));

    let mesh = drawn("many-to-many", "sources = [\"host.gcp:us-east4\", \"host.gcp:us-west1\"]");
    assert_eq!(sources(&mesh).len(), 2);
    assert_eq!(mesh.len() % 2, 0);

    let pairs = drawn("many-one-to-one", "flows = 15");
    let ends: Vec<&String> = pairs.iter().flat_map(|(a, b)| [a, b]).collect();
    assert_eq!(ends.iter().collect::<BTreeSet<_>>().len(), 30, "no site is in two pairs");

    let local = drawn("localized-one-to-many", "flows = 600\nseed = 3");
    assert_eq!((local.len(), sources(&local).len()), (600, 3));
}

#[test]
fn localized_flows_come_from_closest_source() {
    let sources =
        "[\"host.gcp:us-east4\", \"host.gcp:europe-west3\", \"host.gcp:asia-northeast1\"]";
    let flows = drawn("localized-one-to-many", &format!("flows = 4000\nsources = {sources}"));
    let catalogue = Catalogue::builtin();
    let at = |host: &str| {
        let region = RegionId::new(host.strip_prefix("host.").unwrap()).unwrap();
        catalogue.region(&region).unwrap().location
    };
    let mut ranks = [0_u32; 3];
    for (from, to) in &flows {
        let far = |other: &str| tradewind_model::geo::distance_km(at(other), at(to));
        let all = ["host.gcp:us-east4", "host.gcp:europe-west3", "host.gcp:asia-northeast1"];
        ranks[all.iter().filter(|other| far(other) < far(from)).count()] += 1;
    }
    let share = |rank: usize| f64::from(ranks[rank]) / flows.len() as f64;
    assert!((share(0) - 0.90).abs() < 0.02, "{ranks:?}");
    assert!((share(1) - 0.07).abs() < 0.02, "{ranks:?}");
    assert!((share(2) - 0.03).abs() < 0.01, "{ranks:?}");
}
