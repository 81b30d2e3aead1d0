//! Tests of problem files: valid ones are read, and invalid ones are refused with line and field.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod drawn;
mod hours;
mod refusals;
mod tables;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use tradewind_model::{Catalogue, Leg};
use tradewind_plan::file::{self, FileError, ProblemFile};
use tradewind_plan::solver::{Greedy, Limits, Solver};
use tradewind_plan::{LegEnd, Objective, Problem, verify};
use tradewind_units::{Bandwidth, Bytes, Duration, Money, RegionId, Segments, SiteId};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);

fn read_with(text: &str, tables: &[(&str, &str)]) -> Result<ProblemFile, FileError> {
    let tables: BTreeMap<&str, &str> = tables.iter().copied().collect();
    let mut load = |name: &str| {
        tables.get(name).map(|text| (*text).to_owned()).ok_or_else(|| format!("{name}: not there"))
    };
    file::parse(text, &CATALOGUE, &mut load)
}

fn read(text: &str) -> Result<ProblemFile, FileError> {
    read_with(text, &[])
}

/// Two sites, one flow, one region, all round-trip times stated; the last line is 19.
const SMALL: &str = r#"budget_usd = 2.0
regions = ["gcp:europe-west2"]
[[site]]
id = "a"
[[site]]
id = "b"
[[flow]]
from = "a"
to = "b"
volume = "2 GB"
[[pair]]
between = ["a", "b"]
rtt = "200 ms"
[[pair]]
between = ["a", "gcp:europe-west2"]
rtt = "60 ms"
[[pair]]
between = ["b", "gcp:europe-west2"]
rtt = "140 ms"
"#;

fn site(name: &str) -> LegEnd {
    LegEnd::Site(SiteId::new(name).unwrap())
}

fn relay(name: &str) -> LegEnd {
    LegEnd::Relay(RegionId::new(name).unwrap())
}

fn leg(read: &ProblemFile, from: LegEnd, to: LegEnd) -> Leg {
    read.inputs.legs[&(from, to)]
}

#[test]
fn small_file_is_parsed() {
    let read = read(SMALL).unwrap();
    let inputs = &read.inputs;
    assert_eq!(inputs.budget, Money::from_usd(2.0).unwrap());
    assert_eq!(inputs.flows[0].id.as_str(), "a-b");
    assert_eq!(inputs.flows[0].volume, Bytes::new(2_000_000_000));
    assert_eq!(inputs.legs.len(), 3);
    assert_eq!(read.legs_by_distance(), 0);
    let access = leg(&read, site("a"), relay("gcp:europe-west2"));
    assert_eq!(access, Leg::new(Duration::from_millis(60)));
    let plan = Greedy.solve(&Problem::new(inputs.clone()).unwrap(), &Limits::work(10_000)).unwrap();
    assert_eq!(plan.relays.len(), 1);
}

#[test]
fn site_inherits_figures_of_region() {
    let text = r#"
        regions = ["gcp:europe-west2", "gcp:us-east4"]
        rtt_tables = ["rtt"]
        rate_tables = ["rate"]
        same_region_rtt = "1 ms"
        robust = 2.0
        [leg.all]
        connections = 2
        [leg.access]
        connections = 3
        quick_start = "100 Mbit/s"
        [[site]]
        id = "vm"
        region = "gcp:us-east4"
        access_rtt = "5 ms"
        rate = "600 Mbit/s"
        [[site]]
        id = "home"
        location = { latitude = 51.0, longitude = 0.0 }
        window = "1 MB"
        [[flow]]
        from = "vm"
        to = "home"
        volume = "1 GB"
        [[pair]]
        from = "vm"
        to = "home"
        loss = 0.01
        [[pair]]
        from = "gcp:us-east4"
        to = "gcp:europe-west2"
        blocked = true
        [[pair]]
        from = "vm"
        to = "gcp:europe-west2"
        blocked = false
    "#;
    let rtts = "src,dst,rtt_ms,spread_ms\ngcp:europe-west2,gcp:us-east4,80,4\n\
                home,gcp:us-east4,90,0\nhome,gcp:europe-west2,9,\n";
    let rates = "dst,src,mbps,spread_mbps\ngcp:europe-west2,gcp:us-east4,500,100\n";
    let read = read_with(text, &[("rtt", rtts), ("rate", rates)]).unwrap();
    let rtt_ms = |from, to| leg(&read, from, to).rtt.as_millis();
    let (vm, home) = (site("vm"), site("home"));
    let (london, ashburn) = (relay("gcp:europe-west2"), relay("gcp:us-east4"));
    assert_eq!(rtt_ms(vm.clone(), home.clone()), 95, "the region's row and the access network");
    assert_eq!(rtt_ms(vm.clone(), ashburn.clone()), 6, "the same region and the access network");
    assert_eq!(rtt_ms(vm.clone(), london.clone()), 93, "80 + 2 * 4 + 5");
    assert_eq!(rtt_ms(london.clone(), ashburn.clone()), 88);
    assert!(!read.inputs.legs.contains_key(&(ashburn, london.clone())), "it is blocked");
    let access = leg(&read, vm.clone(), london);
    assert_eq!(access.cap, Bandwidth::from_mbps(300.0).ok(), "500 - 2 * 100, below the last mile");
    assert_eq!((access.connections, access.window.as_u64()), (3, 2_875_000));
    assert_eq!(access.initial_window, Segments::new(802).unwrap(), "100 Mbit/s in 93 ms of 1448 B");
    let direct = leg(&read, vm, home);
    assert_eq!((direct.connections, direct.window.as_u64()), (2, 1_000_000));
    assert_eq!(direct.bound_by(), "loss");
    assert_eq!(read.inputs.site_regions.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn numbers_round_trip_through_file(
        budget_cents in 0_u32..100_000,
        volume_mb in 1_u64..1_000_000,
        rtts_ms in proptest::collection::vec(1_u64..500, 3),
        mbps in 1_u32..100_000,
        weight in 1_u32..100,
        objective in 0..3_usize,
    ) {
        let words = ["total-fct", "makespan", "cost"];
        let rows = format!(
            "src,dst,rtt_ms\na,b,{}\na,gcp:europe-west2,{}\ngcp:europe-west2,b,{}\n",
            rtts_ms[0], rtts_ms[1], rtts_ms[2]
        );
        let text = format!(
            "budget_usd = {}\nobjective = \"{}\"\nregions = [\"gcp:europe-west2\"]\nrtt_tables = \
             [\"t\"]\n\
             [[site]]\nid = \"a\"\nrate = \"{mbps} Mbit/s\"\n[[site]]\nid = \"b\"\n[[flow]]\nfrom \
             = \"a\"\n\
             to = \"b\"\nvolume = \"{volume_mb} MB\"\nweight = {weight}\n",
            f64::from(budget_cents) / 100.0, words[objective]
        );
        let read = read_with(&text, &[("t", &rows)]).unwrap();
        let inputs = &read.inputs;
        prop_assert_eq!(inputs.budget, Money::from_usd(f64::from(budget_cents) / 100.0).unwrap());
        prop_assert_eq!(
            inputs.objective,
            [Objective::TotalFct, Objective::Makespan, Objective::Cost][objective]
        );
        prop_assert_eq!(inputs.flows[0].volume, Bytes::new(volume_mb * 1_000_000));
        prop_assert_eq!(inputs.flows[0].weight, weight);
        let relay = relay("gcp:europe-west2");
        let pairs = [(site("a"), site("b")), (site("a"), relay.clone()), (relay, site("b"))];
        for ((from, to), rtt) in pairs.into_iter().zip(&rtts_ms) {
            let leg = leg(&read, from.clone(), to);
            prop_assert_eq!(leg.rtt, Duration::from_millis(*rtt));
            let cap = (from == site("a")).then(|| Bandwidth::from_mbps(f64::from(mbps)).unwrap());
            prop_assert_eq!(leg.cap, cap);
        }
        let problem = Problem::new(inputs.clone()).unwrap();
        if let Ok(plan) = Greedy.solve(&problem, &Limits::work(1_000)) {
            prop_assert_eq!(verify(&problem, &plan), vec![]);
        }
    }
}

#[test]
fn region_egress_is_capped() {
    let capped = |line: &str| SMALL.replacen("id = \"a\"", &format!("id = \"a\"\n{line}"), 1);
    let alone = capped("egress_cap_outside = \"1 Gbit/s\"");
    let refused = read(&alone).unwrap_err().to_string();
    assert!(
        refused.starts_with("line 5: egress_cap_outside: it needs the site's `region`"),
        "{refused}"
    );
    let more = capped(
        "region = \"gcp:us-east4\"\negress_cap = \"1 Gbit/s\"\negress_cap_outside = \"2 Gbit/s\"",
    );
    let refused = read(&more).unwrap_err().to_string();
    assert!(
        refused.starts_with("line 7: egress_cap_outside: 2 Gbit/s leave the region"),
        "{refused}"
    );
    let inside = capped("region = \"gcp:us-east4\"\negress_cap_outside = \"1 Gbit/s\"");
    assert_eq!(read(&inside).unwrap().inputs.site_caps_outside.len(), 1);

    let drawn = |outside: bool| {
        let cap = format!("outside = {outside}, egress_cap_outside = \"1 Gbit/s\"");
        read(&format!(
            "assume_rtt_from_distance = true\n[generate]\npattern = \"one-to-many\"\nvolume = \"1 \
             GB\"\n\
             sites = {{ clouds = [\"gcp\"], {cap} }}\n"
        ))
    };
    assert!(drawn(false).unwrap().inputs.site_caps_outside.len() > 10);
    let refused = drawn(true).unwrap_err().to_string();
    assert!(
        refused.starts_with("line 5: ") && refused.contains("sites outside the cloud"),
        "{refused}"
    );
}

#[test]
fn quick_start_follows_most_specific_section() {
    let with = |all: &str, pair: &str| {
        let pair = SMALL.replacen("rtt = \"200 ms\"", &format!("rtt = \"200 ms\"\n{pair}"), 1);
        let read = read(&format!("{pair}[leg.all]\n{all}\n")).unwrap();
        leg(&read, site("a"), site("b")).initial_window
    };
    let segments = |count| Segments::new(count).unwrap();
    let on = "quick_start = \"100 Mbit/s\"";
    assert_eq!(with("", ""), segments(10));
    assert_eq!(with(on, ""), segments(1726), "100 Mbit/s in 200 ms of 1448 B");
    assert_eq!(with(on, "quick_start = \"off\""), segments(10));
    assert_eq!(with(on, "quick_start = \"10 Mbit/s\""), segments(172));
    assert_eq!(with("quick_start = \"off\"", on), segments(1726));
    let wrong = SMALL.replacen("rtt = \"200 ms\"", "rtt = \"200 ms\"\nquick_start = \"on\"", 1);
    let refused = read(&wrong).unwrap_err().to_string();
    assert!(refused.starts_with("line 14: quick_start: `off`, or a bandwidth"), "{refused}");
}

#[test]
fn flow_moves_only_if_worth_its_cost() {
    let planned = |move_usd: &str| {
        let text = SMALL.replacen("budget_usd = 2.0", "budget_usd = 2.0\nobjective = \"cost\"", 1);
        let text = format!(
            "{text}[egress]\nusd_per_gb = 0.08\n[running]\nmove_usd = \
             {move_usd}\n[[running.relay]]\nregion = \"gcp:europe-west2\"\n\
             [[running.path]]\nflow = \"a-b\"\nregions = [\"gcp:europe-west2\"]\n"
        );
        let problem = Problem::new(read(&text).unwrap().inputs).unwrap();
        let plan = Greedy.solve(&problem, &Limits::work(10_000)).unwrap();
        assert_eq!(verify(&problem, &plan), vec![]);
        (plan.relays.len(), plan.cost.as_usd(), plan.flows[0].move_cost.as_usd())
    };
    let left = SMALL.replacen("[\"gcp:europe-west2\"]", "[]", 1);
    let left = format!(
        "{left}[running]\nmove_usd = 1.0\n[[running.path]]\nflow = \"a-b\"\nregions = \
         [\"gcp:europe-west2\"]\n"
    );
    let left = read(&left).unwrap();
    assert_eq!(left.must_move, [left.inputs.flows[0].id.clone()], "no relay may run there");
    let plan = Greedy.solve(&Problem::new(left.inputs).unwrap(), &Limits::work(10_000)).unwrap();
    assert_eq!(plan.cost, Money::from_usd(1.0).unwrap());
    assert_eq!(planned("1.0"), (1, 0.16, 0.0), "it stays: 2 GB of egress, no set-up");
    assert_eq!(planned("0.05"), (0, 0.05, 0.05), "it goes direct");
}
