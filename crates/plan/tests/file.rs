//! Tests of problem files: valid ones are read, and invalid ones are refused with line and field.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::prelude::*;
use tradewind_model::{Catalogue, Leg};
use tradewind_plan::file::{self, FileError, ProblemFile};
use tradewind_plan::solver::{Greedy, Limits, Solver};
use tradewind_plan::{Objective, Place, Problem, verify};
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

fn site(name: &str) -> Place {
    Place::Site(SiteId::new(name).unwrap())
}

fn relay(name: &str) -> Place {
    Place::Relay(RegionId::new(name).unwrap())
}

fn leg(read: &ProblemFile, from: Place, to: Place) -> Leg {
    read.inputs.legs[&(from, to)]
}

#[test]
fn a_small_file_says_what_it_says() {
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
fn what_makes_no_sense_is_refused_with_line_and_field() {
    let cases = [
        ("from = \"a\"", "from = \"c\"", "line 8: from: no site `c`; the file has `a`, `b`"),
        ("to = \"b\"", "to = \"a\"", "line 9: to: a flow from `a` to itself"),
        ("volume = \"2 GB\"", "volume = \"0 B\"", "line 10: volume: a volume above zero"),
        ("volume = \"2 GB\"", "volume = \"-2 GB\"", "line 10: volume: size: "),
        ("volume = \"2 GB\"", "volume = 2", "line 10: volume: "),
        ("volume = \"2 GB\"", "volume = \"2 GB\"\nweight = 0", "line 11: weight: a weight of 1"),
        ("budget_usd = 2.0", "budget_usd = nan", "line 1: budget_usd: money: "),
        ("budget_usd = 2.0", "budget_usd = -1", "line 1: budget_usd: money: "),
        ("budget_usd = 2.0", "colour = 2", "line 1: colour: unknown field `colour`"),
        ("budget_usd = 2.0", "robust = -1.0", "line 1: robust: a number from 0 to 100"),
        ("budget_usd = 2.0", "robust = nan", "line 1: robust: a number from 0 to 100"),
        ("budget_usd = 2.0", "max_relays = 5", "line 1: max_relays: 0 to 4 relays"),
        ("budget_usd = 2.0", "rtt_tables = [\"x.csv\"]", "line 1: rtt_tables: x.csv: not there"),
        (
            "gcp:europe-west2\"]\n[[site",
            "gcp:mars\"]\n[[site",
            "line 2: regions: region `gcp:mars`",
        ),
        ("rtt = \"200 ms\"", "rtt = \"0 ms\"", "line 11: pair: rtt: a span above zero"),
        ("rtt = \"200 ms\"", "rtt = \"-3 ms\"", "line 13: rtt: duration: "),
        ("rtt = \"200 ms\"", "rate = \"0 bit/s\"", "line 13: rate: bandwidth: "),
        ("rtt = \"200 ms\"", "loss = 2.0", "line 13: loss: ratio: "),
        ("rtt = \"200 ms\"", "window = \"0 B\"", "line 13: window: a window above zero"),
        ("rtt = \"200 ms\"", "connections = 0", "line 13: connections: a number of connections"),
        (
            "rtt = \"200 ms\"",
            "rate = \"1 Gbit/s\"",
            "line 8: from: no round-trip time from site a to site b",
        ),
        (
            "rtt = \"60 ms\"",
            "",
            "line 8: from: no round-trip time from site a to relay gcp:europe-west2",
        ),
        (
            "between = [\"a\", \"b\"]",
            "between = [\"a\", \"x\"]",
            "line 12: between: no site and no region",
        ),
        ("between = [\"a\", \"b\"]", "from = \"a\"", "line 11: pair: either `between = [a, b]`"),
        ("id = \"b\"", "id = \"a\"", "line 6: id: a second site `a`"),
        ("id = \"b\"", "id = \"gcp:us-east4\"", "line 6: id: a region is called so"),
        ("id = \"b\"", "id = \"b\"\nregion = \"gcp:mars\"", "line 7: region: region `gcp:mars`"),
        ("id = \"b\"", "id = \"b\"\nrate = \"0 Mbit/s\"", "line 7: rate: bandwidth: "),
        ("id = \"b\"", "id = \"b\"\negress_cap = \"none\"", "line 7: egress_cap: bandwidth: "),
    ];
    for (from, to, expected) in cases {
        assert!(SMALL.contains(from), "{from}");
        let error = read(&SMALL.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{to}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn sections_that_contradict_themselves_are_refused() {
    let relay = "[[relay_type]]\nid = \"r\"\ncapacity = \"1 Gbit/s\"\nset_up_usd = 1.0\n";
    let cases = [
        (
            format!("{relay}per_connection = \"2 Gbit/s\""),
            "line 24: per_connection: 2 Gbit/s for one",
        ),
        (format!("{relay}{relay}"), "line 25: id: a second relay type `r`"),
        ("[running]\n[[running.relay]]\nregion = \"gcp:us-east4\"".into(), "line 22: region: "),
        ("[[running.path]]\nflow = \"x\"\nregions = []".into(), "line 21: flow: no flow `x`"),
        (
            "[[running.path]]\nflow = \"a-b\"\n\
             regions = [\"gcp:us-east4\", \"gcp:us-west1\", \"gcp:us-east1\"]"
                .into(),
            "line 22: regions: 3 relays, but `max_relays` is 2",
        ),
        (
            "[[running.path]]\nflow = \"a-b\"\n\
             regions = [\"gcp:us-east4\", \"gcp:us-east4\"]"
                .into(),
            "line 22: regions: region `gcp:us-east4` twice",
        ),
        (
            "[generate]\npattern = \"one-to-many\"\nvolume = \"1 GB\"\n\
             sources = [\"a\", \"b\"]"
                .into(),
            "line 23: sources: `one-to-many` has one source",
        ),
        ("[egress]\nusd_per_gb = -1.0".into(), "line 21: usd_per_gb: price: "),
        (
            "[[egress.pair]]\nfrom = \"gcp:us-east4\"\nto = \"moon\"\nusd_per_gb = 1.0".into(),
            "line 22: to: ",
        ),
        (
            "[generate]\npattern = \"star\"\nvolume = \"1 GB\"".into(),
            "line 21: pattern: unknown variant",
        ),
        (
            "[generate]\npattern = \"one-to-many\"\nflows = 0\nvolume = \"1 GB\"".into(),
            "line 22: flows: ",
        ),
        ("[leg.inner]\nwindow = \"0 B\"".into(), "line 21: window: "),
        (
            "[[flow]]\nfrom = \"a\"\nto = \"b\"\nvolume = \"1 GB\"".into(),
            "line 20: flow: a second flow",
        ),
    ];
    for (more, expected) in cases {
        let error = read(&format!("{SMALL}{more}\n")).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{more}: {error}");
    }
    let error = read("[[site]]\nid = \"a\"\n").unwrap_err().to_string();
    assert!(error.starts_with("line 1: ") && error.contains("no flows"), "{error}");
}

#[test]
fn a_table_with_a_mistake_is_refused_by_name_line_and_column() {
    let text = SMALL.replacen("budget_usd = 2.0", "rtt_tables = [\"t\"]\nrate_tables = [\"r\"]", 1);
    let rates = "src,dst,mbps\n";
    let cases = [
        ("", rates, "t: line 1: a header `src,dst,rtt_ms` is missing"),
        ("src,dst\n", rates, "t: line 1: rtt_ms: the header has no such column"),
        ("src,dst,rtt_ms,dest\n", rates, "t: line 1: dest: a second such column"),
        ("src,dst,rtt_ms\na,b\n", rates, "t: line 2: 2 cells, the header has 3"),
        ("src,dst,rtt_ms\n# note\na,x,3\n", rates, "t: line 3: dst: no site and no region"),
        (",a,b\na,,3\nb,4\n", rates, "t: line 3: 2 cells, the header has 3"),
        (",a,b\na,,ten\n", rates, "t: line 2: rtt_ms: a number, not `ten`"),
        ("src,dst,rtt_ms\na,,3\n", rates, "t: line 2: dst: the name"),
        ("src,dst,rtt_ms\na,b,\n", rates, "t: line 2: rtt_ms: a number is missing"),
        ("src,dst,rtt_ms\na,b,ten\n", rates, "t: line 2: rtt_ms: a number, not `ten`"),
        ("src,dst,rtt_ms\na,b,NaN\n", rates, "t: line 2: rtt_ms: duration: "),
        ("src,dst,rtt_ms\na,b,-4\n", rates, "t: line 2: rtt_ms: duration: "),
        ("src,dst,rtt_ms\na,b,0\n", rates, "t: line 2: rtt_ms: round-trip time: "),
        (
            "src,dst,rtt_ms\na,gcp:us-east4,3\na,gcp:us-east4,4\n",
            rates,
            "t: line 3: rtt_ms: a second",
        ),
        ("src,dst,rtt_ms\n", "src,dst,mbps\na,b,0\n", "r: line 2: mbps: bandwidth: "),
        ("src,dst,rtt_ms\n", "src,dst,mbps,spread_mbps\na,b,5,-1\n", "r: line 2: spread_mbps: "),
    ];
    let from_a_spreadsheet = "\u{feff}src,dst,rtt_ms\r\n\r\na,gcp:us-east4,3\r\n";
    assert!(read_with(&text, &[("t", from_a_spreadsheet), ("r", rates)]).is_ok());
    for (rtts, rates, expected) in cases {
        let error = read_with(&text, &[("t", rtts), ("r", rates)]).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{rtts}{rates}: {error}");
    }
}

#[test]
fn a_site_takes_its_regions_figures_where_it_has_none_of_its_own() {
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

#[test]
fn what_a_pair_of_regions_says_of_its_path_holds_for_their_sites() {
    let text = |more: &str| {
        format!(
            "regions = []\n[[site]]\nid = \"a\"\nregion = \"gcp:us-east4\"\n[[site]]\nid = \"b\"\n\
             region = \"gcp:us-west1\"\n[[flow]]\nfrom = \"a\"\nto = \"b\"\nvolume = \"1 GB\"\n\
             [[pair]]\nbetween = [\"gcp:us-east4\", \"gcp:us-west1\"]\nrtt = \"50 ms\"\n{more}"
        )
    };
    let own = "[[pair]]\nbetween = [\"a\", \"b\"]\n";
    let cap = |more: &str| leg(&read(&text(more)).unwrap(), site("a"), site("b")).cap;
    assert_eq!(cap(""), None);
    assert_eq!(cap("rate = \"10 Mbit/s\"\n"), Bandwidth::from_mbps(10.0).ok());
    let exact = format!("rate = \"10 Mbit/s\"\n{own}rate = \"30 Mbit/s\"\n");
    assert_eq!(cap(&exact), Bandwidth::from_mbps(30.0).ok(), "its own statement goes before");
    let legs = |more: &str| read(&text(more)).unwrap().inputs.legs.len();
    assert_eq!((legs(""), legs("blocked = true\n")), (1, 0));
    assert_eq!(legs(&format!("blocked = true\n{own}blocked = false\n")), 1);
    assert_eq!(legs(&format!("blocked = true\n{own}loss = 0.1\n")), 0, "it says nothing of that");

    let table = "src,dst,mbps\ngcp:us-west1,gcp:us-east4,5\n";
    let twice = format!("rate_tables = [\"t\"]\n{}", text("rate = \"10 Mbit/s\"\n"));
    let refused = read_with(&twice, &[("t", table)]).unwrap_err().to_string();
    assert!(refused.starts_with("line 13: pair: rate: a second one from"), "{refused}");
}

#[test]
fn missing_round_trips_are_guessed_only_when_allowed() {
    let text = SMALL.replacen("rtt = \"200 ms\"", "spread = \"1 ms\"", 1);
    assert!(read(&text).unwrap_err().to_string().contains("spread: it needs an `rtt`"));
    let located = SMALL
        .replace("id = \"a\"\n", "id = \"a\"\nlocation = { latitude = 60.57, longitude = 27.2 }\n")
        .replace(
            "id = \"b\"\n",
            "id = \"b\"\nlocation = { latitude = 35.68, longitude = 139.69 }\n",
        )
        .replace("rtt = \"200 ms\"\n", "");
    let error = read(&located).unwrap_err().to_string();
    assert!(error.contains("or set `assume_rtt_from_distance = true`"), "{error}");
    let read = read(&format!("assume_rtt_from_distance = true\n{located}")).unwrap();
    assert_eq!(read.legs_by_distance(), 1);
    assert!(leg(&read, site("a"), site("b")).rtt > Duration::from_millis(100));
}

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
fn localized_flows_come_from_the_closest_source_nine_times_in_ten() {
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

#[test]
fn the_schema_has_every_key_that_the_reader_has() {
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../../../docs/plan-problem.schema.json")).unwrap();
    let sections = [
        ("zzz = 1", "/properties"),
        ("[[site]]\nzzz = 1", "/properties/site/items/properties"),
        ("[[flow]]\nzzz = 1", "/properties/flow/items/properties"),
        ("[[pair]]\nzzz = 1", "/properties/pair/items/properties"),
        ("[[probes]]\nzzz = 1", "/properties/probes/items/properties"),
        ("[[relay_type]]\nzzz = 1", "/properties/relay_type/items/properties"),
        ("[generate]\nzzz = 1", "/properties/generate/properties"),
        ("[generate]\nsites = { zzz = 1 }", "/properties/generate/properties/sites/properties"),
        ("[leg]\nzzz = 1", "/properties/leg/properties"),
        ("[leg.all]\nzzz = 1", "/$defs/leg/properties"),
        ("[egress]\nzzz = 1", "/properties/egress/properties"),
        ("[[egress.pair]]\nzzz = 1", "/properties/egress/properties/pair/items/properties"),
        ("[running]\nzzz = 1", "/properties/running/properties"),
        ("[[running.relay]]\nzzz = 1", "/properties/running/properties/relay/items/properties"),
        ("[[packet_flow]]\nzzz = 1", "/properties/packet_flow/items/properties"),
        ("[packets]\nzzz = 1", "/properties/packets/properties"),
        ("[packets]\ncoding = { zzz = 1 }", "/properties/packets/properties/coding/properties"),
        ("[[packets.at]]\nzzz = 1", "/properties/packets/properties/at/items/properties"),
        ("[[running.path]]\nzzz = 1", "/properties/running/properties/path/items/properties"),
    ];
    for (text, place) in sections {
        let message = read(text).unwrap_err().problem;
        let listed: BTreeSet<&str> = message.split('`').skip(3).step_by(2).collect();
        let keys = schema.pointer(place).and_then(serde_json::Value::as_object).unwrap();
        let keys: BTreeSet<&str> = keys.keys().map(String::as_str).collect();
        assert_eq!(listed, keys, "{text}: {message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn numbers_written_into_a_file_come_out_as_they_were(
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
fn what_leaves_a_region_is_capped_where_there_is_one() {
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
fn quick_start_is_on_where_the_most_exact_section_says_so() {
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
fn a_flow_leaves_its_running_path_only_where_that_is_worth_its_move() {
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

#[test]
fn tables_are_read_as_they_are_found() {
    let text = SMALL.replacen("budget_usd = 2.0", "rtt_tables = [\"t\"]\nrate_tables = [\"r\"]", 1);
    let text = text.split("[[pair]]").next().unwrap();
    let london = || relay("gcp:europe-west2");
    let legs = |rtts: &str, rates: &str| {
        let read = read_with(text, &[("t", rtts), ("r", rates)]).unwrap();
        let rtt = |from, to| leg(&read, from, to).rtt.as_micros();
        let cap = leg(&read, site("a"), london()).cap.map(|cap| cap.as_mbps());
        (rtt(site("a"), site("b")), rtt(site("a"), london()), rtt(london(), site("b")), cap)
    };
    let plain = "src,dst,rtt_ms\na,b,200\na,gcp:europe-west2,60.5\nb,gcp:europe-west2,140\n";
    let rates = "src,dst,mbps\na,gcp:europe-west2,250\n";
    let expected = (200_000, 60_500, 140_000, Some(250.0));
    assert_eq!(legs(plain, rates), expected);
    let quoted = "\"src\",\"dst\",\"rtt_ms\"\r\n\"a\",\"b\",\"200\"\r\n\
     a,\"gcp:europe-west2\",60.5\r\nb,gcp:europe-west2,140\r\n";
    assert_eq!(legs(quoted, rates), expected);
    let matrix = ",a,b,gcp:europe-west2\na,0,200,60.5\nb,,0,140\n";
    assert_eq!(legs(matrix, "src,gcp:europe-west2\na,250\n"), expected);
    // Columns of public grids, with places that the problem does not have.
    let grid = "src,dst,min_rtt_ms\na,b,200\na,gcp:europe-west2,60.5\nb,gcp:europe-west2,140\n\
     aws:here,moon,3\n";
    assert_eq!(legs(grid, "src,dst,gbps\na,gcp:europe-west2,0.25\n"), expected);
    let read = read_with(text, &[("t", grid), ("r", rates)]).unwrap();
    let [note] = &read.notes[..] else { panic!("{:?}", read.notes) };
    assert!(note.starts_with("t: 1 of 4 rows are about places"), "{note}");

    let priced = format!("{text}[egress]\ntables = [\"p\"]\n");
    let prices = "src,dst,usd_per_gb\ngcp:europe-west2,gcp:us-east4,0.07\nmoon:a,moon:b,1\n";
    let read = read_with(&priced, &[("t", plain), ("r", rates), ("p", prices)]).unwrap();
    let london: RegionId = "gcp:europe-west2".parse().unwrap();
    let there: RegionId = "gcp:us-east4".parse().unwrap();
    let price = read.inputs.prices.egress(&london, tradewind_model::Egress::Region(&there));
    assert!((price.unwrap().as_usd_per_gb() - 0.07).abs() < 1e-12);
    assert_eq!(read.notes.len(), 1, "{:?}", read.notes);
}

#[test]
fn public_grids_are_read_with_their_columns_tiers_and_zones() {
    let text = SMALL.replacen(
        "budget_usd = 2.0",
        "rtt_tables = [\"t\"]\nrate_tables = [\"r\"]\negress.tables = [\"p\"]",
        1,
    );
    let text = text.replace("gcp:europe-west2\"]", "gcp:europe-west2\", \"gcp:us-east4\"]");
    let across = |site: &str| {
        format!("\n[[pair]]\nbetween = [\"{site}\", \"gcp:us-east4\"]\nrtt = \"90 ms\"")
    };
    let rtt = format!("rtt = \"200 ms\"{}{}", across("a"), across("b"));
    let text = text.replacen("rtt = \"200 ms\"", &rtt, 1);
    let rtts = "src_region,src_tier,src_instance_class,dst_region,dst_tier,min_rtt,avg_rtt\n\
                gcp:europe-west2-a,PREMIUM,n2,gcp:us-east4-a,PREMIUM,76.5,77\n\
                gcp:europe-west2-a,PREMIUM,n2,gcp:us-east4-a,STANDARD,90,91\n\
                gcp:us-east4-a,PREMIUM,n2,gcp:europe-west2-a,PREMIUM,,\n\
                aws:us-east-1a,PREMIUM,m5,gcp:us-east4-a,PREMIUM,2,3\n";
    let rates = "src_region,dst_region,tag,throughput_sent,success\n\
                 gcp:europe-west2-a,gcp:us-east4-a,x,1250000000.5,True\n";
    let prices = "src,dest,src_tier,dest_tier,cost\n\
                  gcp:europe-west2-a,gcp:us-east4-a,PREMIUM,PREMIUM,0.07\n";
    let read = read_with(&text, &[("t", rtts), ("r", rates), ("p", prices)]).unwrap();
    let (london, ashburn) = (relay("gcp:europe-west2"), relay("gcp:us-east4"));
    let across = leg(&read, london, ashburn);
    assert_eq!(across.rtt.as_micros(), 76_500);
    assert_eq!(across.cap.map(|cap| cap.as_mbps().round()), Some(1250.0));
    let regions = &read.inputs.regions;
    let price =
        read.inputs.prices.egress(&regions[0], tradewind_model::Egress::Region(&regions[1]));
    assert!((price.unwrap().as_usd_per_gb() - 0.07).abs() < 1e-12);
    let notes = read.notes.join("\n");
    for told in [
        "t: left out: columns `src_instance_class`, `avg_rtt`; 1 row of another tier than premium; \
         1 row without a value",
        "r: left out: columns `tag`, `success`",
    ] {
        assert!(notes.contains(told), "{told}: {notes}");
    }
    assert!(!notes.contains("p: "), "{notes}");
}

#[test]
fn times_that_are_not_told_exactly_are_known() {
    let slow = SMALL.replacen("rtt = \"200 ms\"", "rtt = \"200 ms\"\nrate = \"1 bit/s\"", 1);
    let beyond = |text: &str| {
        let problem = Problem::new(read(text).unwrap().inputs).unwrap();
        problem.beyond_telling().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(beyond(&slow), ["a-b"], "2 GB at a bit a second take five hundred years");
    assert!(beyond(SMALL).is_empty());
}

#[test]
fn impossible_figures_are_told() {
    let lost = |loss: &str| {
        SMALL.replacen("rtt = \"200 ms\"", &format!("rtt = \"200 ms\"\nloss = {loss}"), 1)
    };
    let error = read(&lost("1.0")).unwrap_err().to_string();
    assert!(error.starts_with("line 14: loss: a share below 1"), "{error}");
    assert!(read(&lost("0.99")).is_ok());
    let section = read(&format!("{SMALL}[leg.all]\nloss = 1\n")).unwrap_err().to_string();
    assert!(section.starts_with("line 21: loss: a share below 1"), "{section}");

    let placed = |rtt: &str| {
        SMALL
            .replacen(
                "id = \"a\"",
                "id = \"a\"\nlocation = { latitude = 35.7, longitude = 139.7 }",
                1,
            )
            .replacen("rtt = \"60 ms\"", &format!("rtt = \"{rtt}\""), 1)
    };
    assert_eq!(read(&placed("220 ms")).unwrap().notes, Vec::<String>::new());
    let notes = read(&placed("0.22 ms")).unwrap().notes;
    assert!(
        notes[0].contains("shorter than light takes") && notes[0].contains("0.220 ms"),
        "{notes:?}"
    );
}

#[test]
fn a_region_that_is_misspelt_is_suggested() {
    let named = |name: &str| {
        read(&SMALL.replacen("[\"gcp:europe-west2\"]", &format!("[\"{name}\"]"), 1))
            .unwrap_err()
            .to_string()
    };
    assert!(
        named("gcp:europe-wset2").ends_with("did you mean `gcp:europe-west2`?"),
        "{}",
        named("gcp:europe-wset2")
    );
    assert!(!named("gcp:mars").contains("did you mean"), "{}", named("gcp:mars"));
    let site = SMALL.replacen("[\"b\", \"gcp:europe-west2\"]", "[\"b\", \"europe-west2\"]", 1);
    let error = read(&site).unwrap_err().to_string();
    assert!(error.ends_with("did you mean `gcp:europe-west2`?"), "{error}");
}

#[test]
fn errors_of_types_are_in_plain_words() {
    let error = read(&SMALL.replacen("budget_usd = 2.0", "budget_usd = \"two\"", 1))
        .unwrap_err()
        .to_string();
    assert!(!error.contains("f64"), "{error}");
    let error = read(&SMALL.replacen("budget_usd = 2.0", "max_relays = \"two\"", 1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("a whole number from 0"), "{error}");
}

#[test]
fn relay_types_have_hours_and_places() {
    let text = SMALL
        .replacen("[\"gcp:europe-west2\"]", "[\"gcp:europe-west2\", \"aws:us-east-1\"]", 1)
        .replacen(
            "budget_usd = 2.0",
            "budget_usd = 2.0\nassume_rtt_from_distance = true\nperiod = \"90 min\"",
            1,
        );
    let placed = |site: &str, text: &str| {
        text.replacen(
            &format!("id = \"{site}\""),
            &format!("id = \"{site}\"\nlocation = {{ latitude = 50, longitude = 0 }}"),
            1,
        )
    };
    let text = placed("a", &placed("b", &text));
    let text = format!(
        "{text}[[relay_type]]\nid = \"big\"\ncapacity = \"2 Gbit/s\"\nset_up_usd = 0.1\n\
         usd_per_hour = 0.3\nclouds = [\"aws\"]\nmost = 2\n\
         [[relay_type]]\nid = \"small\"\ncapacity = \"1 Gbit/s\"\n\
         usd_per_hour = 0.2\nregions = [\"gcp:europe-west2\"]\n"
    );
    let read = read(&text).unwrap();
    assert_eq!(read.paid_hours, Some(2));
    let set_up: Vec<f64> =
        read.inputs.relay_types.iter().map(|known| known.set_up.as_usd()).collect();
    assert_eq!(set_up, [0.7, 0.4]);
    assert!(read.inputs.hourly.is_empty());
    let problem = Problem::new(read.inputs).unwrap();
    for offer in problem.offers() {
        let is_there = (offer.region.cloud() == "aws") == (offer.relay_type.id.as_str() == "big");
        assert_eq!(offer.is_offered, is_there, "{offer:?}");
        let is_big = offer.relay_type.id.as_str() == "big";
        assert_eq!(offer.most, is_big.then_some(2), "{offer:?}");
    }
    let passed = |candidate: &tradewind_plan::Candidate| {
        candidate.relays.iter().all(|relay| problem.offers()[*relay].is_offered)
    };
    assert!(problem.candidates(0).iter().all(passed));
    assert!(problem.candidates(0).len() > 1, "some relay is had");
    let many = refusal_of_too_many(&text);
    assert!(many.contains("0 to 10000, not 20000"), "{many}");
}

fn refusal_of_too_many(text: &str) -> String {
    read(&text.replacen("most = 2\n", "most = 20000\n", 1)).unwrap_err().to_string()
}

#[test]
fn hours_without_a_period_are_those_of_the_plan() {
    let text = format!(
        "{SMALL}[[relay_type]]\nid = \"big\"\ncapacity = \"2 Gbit/s\"\nset_up_usd = 0.1\n\
         usd_per_hour = 0.3\n[[relay_type]]\nid = \"own\"\ncapacity = \"1 Gbit/s\"\n"
    );
    let inputs = read(&text).unwrap().inputs;
    assert_eq!(inputs.relay_types[0].set_up.as_usd(), 0.1);
    let hourly: Vec<_> =
        inputs.hourly.iter().map(|(id, price)| (id.as_str(), price.as_usd())).collect();
    assert_eq!(hourly, [("big", 0.3)]);
    assert_eq!(read(&text).unwrap().paid_hours, None);
}
