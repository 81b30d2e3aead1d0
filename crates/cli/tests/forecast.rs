//! `tradewind forecast`: its predictions, and its refusals in one line.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::Files;

const HEADER: &str = "time_s,source,destination,volume\n";

/// A log, removed with the test.
struct Log(Files);

impl Log {
    fn new(test: &str, log: &str) -> Self {
        let files = Files::new(&format!("log-{test}"));
        files.write("log.csv", log);
        Self(files)
    }

    fn prints(&self, options: &str) -> String {
        self.0.prints(&format!("forecast log.csv {options}"))
    }

    fn refused(&self, options: &[&str], expected: &str) {
        self.0.refuses(&[&["forecast", "log.csv"][..], options].concat(), expected);
    }
}

/// Writes twelve hours of a log, alternating between much and little.
fn rhythm(test: &str) -> Log {
    let row = |hour: u64| {
        format!("{},shop,store,{} GB\n", hour * 3600, if hour.is_multiple_of(2) { 9 } else { 1 })
    };
    Log::new(test, &format!("{HEADER}{}", (0..12).map(row).collect::<String>()))
}

#[test]
fn season_is_continued() {
    let log = rhythm("rhythm");
    let answer: serde_json::Value =
        serde_json::from_str(&log.prints("--period 1h -o json")).unwrap();
    assert_eq!(answer["predictor"], serde_json::json!({"kind": "seasonal", "periods": 2}));
    assert_eq!((&answer["begins_s"], &answer["tested_periods"]), (&43200.0.into(), &6.into()));
    let flow = serde_json::json!(
        [{"source": "shop", "destination": "store", "volume_bytes": 9_000_000_000_u64}]
    );
    assert_eq!(answer["flows"], flow);

    let text = log.prints("--period 1h");
    for expected in
        ["periods: 12; pairs of sites: 1", "last period", "weighted", "seasonal, 2 periods", "9 GB"]
    {
        assert!(text.contains(expected), "expected `{expected}` in {text}");
    }
}

#[test]
fn invalid_logs_are_refused_in_one_line() {
    Log::new("empty", "").refused(&["--period", "1h"], "line 1: the header");
    Log::new("bare", HEADER).refused(&["--period", "1h"], "line 2: at least one flow");
    let ragged = Log::new("ragged", &format!("{HEADER}1,a,b,1 GB\n2,a,b\n"));
    ragged.refused(&["--period", "1h"], "line 3: four fields are expected, not 3");
    let log = rhythm("refused");
    log.refused(&["--period", "1"], "--period");
    log.refused(&["--period", "0 s"], "period: a span above zero is expected");
    log.refused(&["--period", "1 ns"], "a longer period is needed");
    log.refused(&["--period", "1h", "--season", "7"], "season: 2 to 6 periods can be tested");
    log.refused(&[], "--period");
}
