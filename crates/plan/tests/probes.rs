//! Tests of reports of `tradewind probe` in problem files, valid and invalid.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use tradewind_model::Catalogue;
use tradewind_plan::file::{self, FileError, ProblemFile};
use tradewind_plan::{LegEnd, Problem};
use tradewind_units::{Duration, RegionId, SiteId};

const PROBLEM: &str = r#"regions = ["gcp:europe-west2"]
site = [{ id = "a" }, { id = "b" }]
flow = [{ from = "a", to = "b", volume = "2 GB" }]
[[probes]]
from = "a"
reports = ["report"]
targets = { "203.0.113.7" = "gcp:europe-west2" }
[[pair]]
between = ["b", "gcp:europe-west2"]
rtt = "140 ms"
"#;

/// Output of `tradewind probe rtt b:443 203.0.113.7:443 -o json`, shortened; fields may be added at
/// any time.
const RTTS: &str = r#"[
  {
    "schema_version": 1,
    "target": "b:443",
    "rtt_min_ms": 200.5,
    "rtt_median_ms": 201.0,
    "rtt_spread_ms": 10.0,
    "a_later_field": [1, 2]
  },
  {
    "schema_version": 1,
    "target": "203.0.113.7:443",
    "rtt_min_ms": 60.0,
    "rtt_spread_ms": 1.5
  }
]"#;

const RATE: &str = r#"{
  "schema_version": 1,
  "target": "b:7000",
  "direction": "download",
  "rate_mbps": 90.0,
  "rate_spread_mbps": 15.0
}"#;

fn read(text: &str, report: &str) -> Result<ProblemFile, FileError> {
    let mut load = |name: &str| match name {
        "rate" => Ok(RATE.to_owned()),
        _ => Ok(report.to_owned()),
    };
    file::parse(text, &Catalogue::builtin(), &mut load)
}

fn site(name: &str) -> LegEnd {
    LegEnd::Site(SiteId::new(name).unwrap())
}

fn relay() -> LegEnd {
    LegEnd::Relay(RegionId::new("gcp:europe-west2").unwrap())
}

#[test]
fn round_trips_are_minima_of_reports() {
    let read = read(PROBLEM, RTTS).unwrap();
    let rtt = |from: LegEnd, to: LegEnd| read.inputs.legs[&(from, to)].rtt;
    assert_eq!(rtt(site("a"), site("b")), Duration::from_micros(200_500));
    assert_eq!(rtt(site("a"), relay()), Duration::from_millis(60));
    assert_eq!(read.tables["report"], RTTS, "the plan's file keeps what it rests on");
    Problem::new(read.inputs).unwrap();
}

#[test]
fn robust_option_takes_the_measured_spread() {
    let text =
        format!("robust = 2.0\n{}", PROBLEM.replace("[\"report\"]", "[\"report\", \"rate\"]"));
    let text = text.replace("{ from = \"a\", to = \"b\"", "{ from = \"b\", to = \"a\"");
    let read = read(&text, RTTS).unwrap();
    let leg = read.inputs.legs[&(site("b"), site("a"))];
    assert_eq!(leg.rtt, Duration::from_micros(220_500));
    assert_eq!(leg.cap.unwrap().as_mbps(), 60.0, "downloads come from the target");
}

#[test]
fn errors_are_one_line_with_file_line_and_field() {
    let version =
        |v: u32| RTTS.replacen("\"schema_version\": 1", &format!("\"schema_version\": {v}"), 2);
    let cases: &[(&str, &str, &str)] = &[
        (PROBLEM, "", "report: line 1: a report of `tradewind probe .. -o json` is expected: EOF"),
        (PROBLEM, "[{\n]", "report: line 2: a report of"),
        (PROBLEM, "[]", "report: line 1: no reports"),
        (PROBLEM, "[3]", "report: line 1: a report, or a list of reports"),
        (PROBLEM, "{}", "report: line 1: schema_version: reports of version 1 are read, not none"),
        (
            PROBLEM,
            &version(2),
            "report: line 4: schema_version: reports of version 1 are read, not 2",
        ),
        (
            PROBLEM,
            &RTTS.replace("203.0.113.7", "203.0.113.8"),
            "report: line 12: target: no site and no region of the catalogue is called \
             `203.0.113.8`; \
             say which place it is: `targets = { \"203.0.113.8:443\" = \"..\" }`",
        ),
        (PROBLEM, &RTTS.replace("b:443", "a:443"), "report: line 4: target: site a is where"),
        (PROBLEM, &RTTS.replace("203.0.113.7", "b"), "report: line 12: rtt_min_ms: a second one"),
        (PROBLEM, &RTTS.replace("60.0", "0"), "report: line 12: rtt_min_ms: "),
        (PROBLEM, &RTTS.replace("1.5", "-1.5"), "report: line 12: rtt_spread_ms: "),
        (PROBLEM, &RTTS.replace("60.0", "\"60\""), "report: line 12: rtt_min_ms: a number is"),
        (PROBLEM, &RATE.replace("download", "sideways"), "report: line 3: direction: `upload` or"),
        (PROBLEM, &RATE.replace("90.0", "0.0"), "report: line 3: rate_mbps: "),
        (&PROBLEM.replace("from = \"a\"\nrep", "from = \"x\"\nrep"), RTTS, "line 5: from: no site"),
        (&PROBLEM.replace("\"gcp:europe-west2\" }", "\"x\" }"), RTTS, "line 7: "),
        (
            PROBLEM,
            RATE,
            "line 3: from: no round-trip time from site a to site b: state it in a table",
        ),
    ];
    for (text, report, expected) in cases {
        let message = read(text, report).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message:?} for {report}");
        assert!(!message.contains('\n'), "{message:?}");
    }
    let robust = format!("robust = 7.0\n{PROBLEM}");
    let message = read(&robust, RATE).unwrap_err().to_string();
    assert_eq!(
        message,
        "report: line 3: rate_spread_mbps: 7 times the spread leaves nothing of 90 Mbit/s"
    );
}
