//! The interpretation of a topology file, and the errors for a wrong one.

mod common;

use common::*;
use tradewind_model::{Catalogue, RttModel};
use tradewind_units::{Bandwidth, Bytes, Duration, RegionId, Segments};
use tradewind_wan::topology::{CapFlavour, Direction, Pair};
use tradewind_wan::{SiteIndex, Topology};

fn pair(topology: &Topology, from: u16, to: u16) -> &Pair {
    topology.pair(SiteIndex(from), SiteIndex(to))
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn default_rtt_is_distance_plus_access_of_both_sites() {
    let topology = parse(
        "[[site]]\nregion = 'gcp:europe-north1'\naccess_rtt = '1 ms'\n\
         [[site]]\nid = 'nyc'\nlocation = { latitude = 40.7, longitude = -74 }\n\
         access_rtt = '7 ms'",
    )
    .unwrap();
    let catalogue = Catalogue::builtin();
    let hamina = catalogue.region(&RegionId::new("gcp:europe-north1").unwrap()).unwrap().location;
    let nyc = tradewind_model::Coordinates::new(40.7, -74.0).unwrap();
    let expected = RttModel::fitted().rtt_between(hamina, nyc) + ms(8);
    assert_eq!(pair(&topology, 0, 1).delay + pair(&topology, 1, 0).delay, expected);
    assert_eq!(topology.sites[0].id.as_str(), "gcp:europe-north1");
    assert_eq!(topology.hosts[0].id.as_str(), "gcp:europe-north1");
    assert_eq!(pair(&topology, 0, 0).delay * 2, Duration::from_micros(400));
}

#[test]
fn one_way_beats_both_ways_beats_the_default_key_by_key() {
    let topology = parse(
        "[default.pair]\nrtt = '10 ms'\nloss = 0.1\nmtu = '1400 B'\nrate = '1 Gbit/s'\n\
         [[site]]\nid = 'a'\n[[site]]\nid = 'b'\n\
         [[pair]]\nbetween = ['a', 'b']\nrtt = '20 ms'\nloss = 0.2\n\
         [[pair]]\nfrom = 'b'\nto = 'a'\ndelay = '30 ms'\nrate = 'none'",
    )
    .unwrap();
    let (there, back) = (pair(&topology, 0, 1), pair(&topology, 1, 0));
    assert_eq!((there.delay, back.delay), (ms(10), ms(30)));
    assert_eq!((there.loss.random.as_f64(), back.loss.random.as_f64()), (0.2, 0.2));
    assert_eq!((there.mtu, back.mtu), (Bytes::new(1400), Bytes::new(1400)));
    assert_eq!((there.rate, back.rate), (Bandwidth::from_mbps(1000.0).ok(), None));
    let within = pair(&topology, 0, 0);
    assert_eq!((within.loss.random.as_f64(), within.rate), (0.0, None));
}

#[test]
fn a_queue_is_a_bandwidth_delay_product_unless_stated() {
    let topology = two_sites("rtt = '80 ms'\nrate = '100 Mbit/s'");
    assert_eq!(pair(&topology, 0, 1).queue, Bytes::new(1_000_000));
    let small = two_sites("rtt = '1 ms'\nrate = '1 Mbit/s'");
    assert_eq!(pair(&small, 0, 1).queue, Bytes::new(150_000));
}

#[test]
fn links_on_the_way_back_come_in_reverse() {
    let topology = parse(
        "[default.pair]\nrtt = '1 ms'\n[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n\
         [[link]]\nname = 'x'\nrate = '1 Gbit/s'\n[[link]]\nname = 'y'\n\
         [[pair]]\nbetween = ['a', 'b']\nvia = ['x', '-y']",
    )
    .unwrap();
    let names = |from, to| -> Vec<(&str, Direction)> {
        let via = &pair(&topology, from, to).via;
        via.iter()
            .map(|(link, d)| (topology.links[usize::from(link.0)].name.as_str(), *d))
            .collect()
    };
    assert_eq!(names(0, 1), [("x", Direction::Forward), ("y", Direction::Backward)]);
    assert_eq!(names(1, 0), [("y", Direction::Forward), ("x", Direction::Backward)]);
}

#[test]
fn host_caps_come_from_key_then_machine_type_then_default() {
    let topology = parse(
        "[default.host]\ningress = '3 Gbit/s'\nvm = 'gcp:e2-medium'\ninitcwnd = 20\n\
         [default.pair]\nrtt = '9 ms'\n\
         [[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[site]]\nid = 'c'\nwindow = '2.875 MB'\n\
         [[host]]\nid = 'own'\nsite = 'a'\negress = '1 Gbit/s'\nper_connection = 'none'\n\
         cap = 'tail-drop'\n\
         [[host]]\nid = 'vm'\nsite = 'a'\nvm = 'aws:c5n.large'\n\
         [[host]]\nsite = 'b'\ncongestion_control = 'bbr'\n\
         [[host.route]]\nto = 'a'\ninitcwnd = 100\ncongestion_control = 'reno'",
    )
    .unwrap();
    let names: Vec<&str> = topology.hosts.iter().map(|host| host.id.as_str()).collect();
    assert_eq!(names, ["own", "vm", "b", "c"]);
    let gbps = |rate: f64| Bandwidth::from_mbps(rate * 1000.0).ok();
    let caps = |n: usize| {
        let host = &topology.hosts[n];
        (host.egress, host.ingress, host.per_connection)
    };
    assert_eq!(caps(0), (gbps(1.0), gbps(3.0), None));
    assert_eq!(caps(1), (gbps(5.0), gbps(10.0), gbps(5.0)));
    assert_eq!(caps(3), (gbps(2.0), gbps(3.0), gbps(1.75)));
    assert_eq!(topology.hosts[0].cap, CapFlavour::TailDrop);
    assert_eq!(topology.hosts[1].cap, CapFlavour::BackPressure);
    let [own, b, c] = ["own", "b", "c"].map(|name| host(&topology, name));
    let there = topology.route(b, own);
    assert_eq!(
        (there.congestion_control.as_str(), there.initcwnd),
        ("reno", Segments::new(100).ok())
    );
    let elsewhere = topology.route(b, c);
    assert_eq!(elsewhere.congestion_control, "bbr");
    assert_eq!(elsewhere.initcwnd, Segments::new(20).ok());
    // A site's window applies to connections in both directions.
    assert_eq!((elsewhere.window, there.window), (Some(Bytes::new(2_875_000)), None));
    assert_eq!(topology.route(c, own).window, Some(Bytes::new(2_875_000)));
}

/// Files with one error each: the text, the line, and a part of the expected message.
const WRONG: &[(&str, &str, &str)] = &[
    ("", "line 1", "no sites"),
    ("[[site]\n", "line 1", ""),
    ("[[site]]\nid = 'a'\ncolour = 'red'", "line 3", "unknown field `colour`, expected one of"),
    ("[[site]]\nregion = 'gcp:atlantis1'", "line 2", "`gcp:atlantis1` is not in the catalogue"),
    ("[[site]]\nregion = 'gcp:europe-wset2'", "line 2", "did you mean `gcp:europe-west2`?"),
    ("[[site]]\nregion = 'moon:base'", "line 2", "which has the clouds `aws`, "),
    ("[[site]]\nwindow = '1 MB'", "line 1", "give it an `id`"),
    ("[[site]]\nid = 'a'\n[[site]]\nid = 'a'", "line 4", "a second site `a`"),
    ("[[site]]\nid = 'a b'", "line 2", "not `a b`"),
    ("[[site]]\nid = 'a'\nwindow = '1 kB'", "line 3", "`3 kB`) at least, not `1 kB`"),
    ("[[site]]\nid = 'a'\nlocation = { latitude = 95, longitude = 0 }", "line 3", "not 95, 0"),
    ("[[site]]\nid = 'a'\naccess_rtt = '-1 ms'", "line 3", "not `-1 ms`"),
    ("[[site]]\nid = 'a'\n[[site]]\nid = 'b'", "pair `a`, `b`", "no round trip from `a` to `b`"),
    ("[[site]]\nid = 'a'\n[[host]]\nid = 'x'", "line 3", "needs the `site`"),
    ("[[site]]\nid = 'a'\n[[host]]\nsite = 'b'", "line 4", "no site `b`; the file has `a`"),
    (
        "[[site]]\nid = 'a'\n[[host]]\nid = 'x'\nsite = 'a'\n[[host]]\nid = 'x'\nsite = 'a'",
        "line 7",
        "a second host `x`",
    ),
    ("[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\nvm = 'vax'", "line 5", "no machine type `vax`"),
    (
        "[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\nvm = 'e2-medium'",
        "line 5",
        "did you mean `gcp:e2-medium`?",
    ),
    ("[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\ncap = 'soft'", "line 5", "unknown variant `soft`"),
    ("[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\nmtu = '9 B'", "line 5", "576 to 65535 bytes"),
    ("[[site]]\nid = 'a'\nwindow = '2 GiB'", "line 3", "at most 1 GiB, not `2.147 GB`"),
    ("[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\nburst = '2 GiB'", "line 5", "burst: a size of at"),
    (
        "[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\nreceive_buffer = '1000000 TB'",
        "line 5",
        "receive_buffer: a size of at most 1 GiB, not `",
    ),
    ("[default.host]\nsend_buffer = '2 GiB'\n[[site]]\nid = 'a'", "line 2", "send_buffer: a size"),
    ("[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\ninitcwnd = 0", "line 5", "1 to 1048576 segments"),
    (
        "[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\ncongestion_control = 'rm -r'",
        "line 5",
        "not `rm -r`",
    ),
    (
        "[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\nreceive_buffer = '0 B'",
        "line 5",
        "receive_buffer: a size of at least 4 KiB, not `0 B`",
    ),
    ("[default.host]\nsend_buffer = '1 B'\n[[site]]\nid = 'a'", "line 2", "at least 4 KiB, not"),
    (
        "[[site]]\nid = 'a'\n[[host]]\nsite = 'a'\n[[host.route]]\nto = 'a'",
        "line 6",
        "a route says what differs",
    ),
    (
        "[[site]]\nid = 'a'\n[[link]]\nname = 'x'\necn_threshold = '9 kB'",
        "line 5",
        "without a `rate`",
    ),
    ("[default.pair]\necn_threshold = '9 kB'\n[[site]]\nid = 'a'", "line 2", "without a `rate`"),
    ("seed = -1\n[[site]]\nid = 'a'", "line 1", "integer `-1`, expected a whole number from 0"),
    ("seed = 1.5\n[[site]]\nid = 'a'", "line 1", "expected a whole number from 0"),
    ("[default.host]\nid = 'x'\n[[site]]\nid = 'a'", "line 1", "have no default"),
    ("[default.pair]\nvia = []\n[[site]]\nid = 'a'", "line 1", "have no default"),
    ("[[site]]\nid = 'a'\n[[link]]\nname = '-x'", "line 4", "not `-x`"),
    ("[[site]]\nid = 'a'\n[[outage]]\nname = 'x'\nstart = '1 s'", "line 3", "either `start` and"),
    (
        "[[site]]\nid = 'a'\n[[outage]]\nname = 'x'\nstart = '1 s'\nlength = '1 s'",
        "line 3",
        "hits nothing",
    ),
    (
        "[[site]]\nid = 'a'\n[[outage]]\nname = 'x'\nstart = '1 s'\nlength = '3 s'\nevery = '2 s'\n\
         between = [['a', 'a']]",
        "line 3",
        "must exceed `length`",
    ),
];

/// Wrong keys of a pair: the text, the line, and a part of the expected message.
const WRONG_PAIRS: &[(&str, &str, &str)] = &[
    ("between = ['a', 'b']\nrtt = '-3 ms'", "line 7", "not `-3 ms`"),
    (
        "between = ['a', 'b']\nrtt = 3",
        "line 7",
        "integer `3`, expected text: a span such as `30 ms`",
    ),
    ("between = ['a', 'b']\nmtu = 1500", "line 7", "expected text: a size such as"),
    ("between = ['a', 'b']\nrate = 5", "line 7", "expected text: `none` or a rate such as"),
    ("between = ['a', 'b']\nicmp = 1", "line 7", "expected true or false"),
    ("between = ['a', 'b']\necn_threshold = '9 kB'", "line 7", "without a `rate`"),
    (
        "between = ['a', 'b']\n[[pair]]\nfrom = 'a'\nto = 'b'\necn_threshold = '9 kB'",
        "line 10",
        "without a `rate`",
    ),
    ("between = ['a', 'b']\nrtt = '2 h'", "line 7", "at most 1 min, not `7200 s`"),
    ("between = ['a', 'c']\nrtt = '1 ms'", "line 6", "no site `c`"),
    ("between = ['a']\nrtt = '1 ms'", "line 6", "length 1, expected a list of 2"),
    ("between = ['a', 'b']\ndelay = '1 ms'", "line 7", "`delay` is one-way"),
    ("from = 'a'\nto = 'b'\nrtt = '1 ms'", "line 8", "`rtt` is for both ways"),
    ("from = 'a'\nrtt = '1 ms'", "line 5", "a pair needs either"),
    ("between = ['a', 'b']\n[[pair]]\nbetween = ['b', 'a']", "line 8", "a second `[[pair]]`"),
    ("between = ['a', 'b']\nqueue = '100 B'", "line 7", "at least one packet of 1.5 kB"),
    ("between = ['a', 'b']\nqueue = '2000 GiB'", "line 7", "queue: a size of at most 1 TiB, not"),
    ("between = ['a', 'b']\nloss = 1.5", "line 7", "a share from 0 to 1, not `1.5`"),
    ("between = ['a', 'b']\nrate = '5 MB/s'", "line 7", "not `5 MB/s`"),
    ("between = ['a', 'b']\nvia = ['x']", "line 7", "no link `x`; the file has none"),
    (
        "between = ['a', 'b']\nburst_loss = { enter = 0.1, leave = 0 }",
        "line 7",
        "a burst that never ends",
    ),
    (
        "between = ['a', 'b']\nreorder = { share = 0.1, late_by = '0 ms' }",
        "line 7",
        "`late_by` above 0",
    ),
];

#[test]
fn every_error_is_one_line_with_place_and_expected_form() {
    let two = "[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[pair]]\n";
    let rest = "\n[default.pair]\nrtt = '5 ms'";
    let pairs =
        WRONG_PAIRS.iter().map(|(keys, place, says)| (format!("{two}{keys}{rest}"), place, says));
    let others = WRONG.iter().map(|(text, place, says)| ((*text).to_owned(), place, says));
    for (text, place, says) in pairs.chain(others) {
        let error = parse(&text).expect_err(&text);
        let message = error.to_string();
        assert_eq!(error.place, *place, "{message} for\n{text}");
        assert!(message.contains(says), "{message:?} does not say {says:?}");
        assert!(!message.contains('\n'), "{message:?}");
    }
}

#[test]
fn too_many_sites_are_refused_before_they_cost_memory() {
    let text: String = (0..300).map(|n| format!("[[site]]\nid = 's{n}'\n")).collect();
    assert!(parse(&text).unwrap_err().to_string().contains("more than 256 sites"));
}

#[test]
fn bundled_topologies_are_valid() {
    for text in [
        include_str!("../../../examples/two-sites.toml"),
        include_str!("../../../examples/cp-real-wan.toml"),
    ] {
        parse(text).unwrap();
    }
}

#[test]
fn documented_topologies_are_valid() {
    let text = include_str!("../../../docs/reference/topology.md");
    let examples: Vec<&str> = text
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect();
    assert!(examples.len() >= 2);
    for example in examples {
        parse(example).unwrap_or_else(|error| panic!("{error} in\n{example}"));
    }
}

#[test]
fn documentation_names_every_topology_key() {
    let text = include_str!("../../../docs/reference/topology.md");
    for section in ["site", "host", "link", "pair", "outage", "default", "host.route"] {
        let wrong = match section {
            "default" => "[default]\nnonsense = 1".to_owned(),
            "host.route" => "[[host]]\nsite = 'a'\n[[host.route]]\nnonsense = 1".to_owned(),
            _ => format!("[[{section}]]\nnonsense = 1"),
        };
        let message = parse(&wrong).unwrap_err().to_string();
        let (_, keys) = message.split_once("expected ").unwrap_or_else(|| panic!("{message}"));
        for key in keys.split('`').skip(1).step_by(2) {
            assert!(text.contains(&format!("`{key}`")), "{section}: {key} is not documented");
        }
    }
}
