//! `tradewind route`: its advice, and its refusals in one line.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::Files;

/// A folder for `tradewind route` with a table `rtt.csv` of these rows.
struct Routes(Files);

impl Routes {
    fn new(test: &str, rows: &str) -> Self {
        let files = Files::new(&format!("route-{test}"));
        files.write("rtt.csv", format!("src,dst,rtt_ms\n{rows}"));
        Self(files)
    }

    fn prints(&self, arguments: &[&str]) -> String {
        self.0.prints(&[&["route"][..], arguments].concat())
    }

    fn answer(&self, arguments: &[&str]) -> serde_json::Value {
        self.0.json(&[&["route"][..], arguments, &["-o", "json"]].concat())
    }

    fn refused(&self, arguments: &[&str], expected: &str) {
        self.0.refuses(&[&["route"][..], arguments].concat(), expected);
    }
}

#[test]
fn remote_pair_is_relayed_and_near_one_direct() {
    let routes = Routes::new("remote", "");
    let remote = routes.answer(&["aws:ap-south-1", "37.77,-122.42", "--clouds", "aws"]);
    assert_eq!(
        (remote["schema_version"].as_u64(), remote["verdict"].as_str()),
        (Some(1), Some("relay"))
    );
    assert!(remote["rtt_source"].as_str().unwrap().starts_with("guessed by distance"));
    let largest: Vec<f64> = remote["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| route["largest_leg_ms"].as_f64().unwrap())
        .collect();
    assert!(largest.is_sorted(), "{largest:?}");

    assert!(remote.get("prices_dated").is_none(), "flat prices have no date");
    let listed = ["aws:ap-south-1", "37.77,-122.42", "--clouds", "aws", "--prices", "catalogue"];
    let dated = routes.answer(&listed)["prices_dated"].as_str().unwrap().to_owned();
    let table = routes.prints(&listed);
    assert!(
        table.ends_with(&format!(
            "egress prices of the catalogue: aws of {dated}
"
        )),
        "{table}"
    );

    let near = routes.answer(&["40.71,-74.01", "37.77,-122.42", "--volume", "18 kB"]);
    assert_eq!(near["verdict"], "direct");
    assert!(near["reasons"][0].as_str().unwrap().starts_with("18 kB is small"));
    assert_eq!(near["path"].as_array().unwrap().len(), 0);
}

#[test]
fn pair_with_raised_windows_goes_direct() {
    let pair = ["aws:ap-south-1", "-23.5,-46.6", "--window", "64 MB", "--volume", "20 GB"];
    let text = Routes::new("windows", "").prints(&pair);
    assert!(
        text.contains("direct is best:\n  - the direct path already runs at 1 Gbit/s"),
        "{text}"
    );
}

#[test]
fn measured_times_go_before_guesses() {
    let routes =
        Routes::new("measured", "here,there,200\nhere,x:a,100\nx:a,there,100\nx:a,x:b,10\n");
    let answered = routes.answer(&["here", "there", "--rtt", "rtt.csv", "--loss", "0.01 %"]);
    assert_eq!(answered["rtt_source"], "measured, from the table");
    assert_eq!(answered["path"], serde_json::json!(["x:a"]));
    assert_eq!(answered["routes"].as_array().unwrap().len(), 2, "x:b has no leg to either end");
}

#[test]
fn invalid_arguments_are_refused_in_one_line() {
    let routes = Routes::new("refused", "here,there,200\nhere,x:a,1e99\n");
    routes.refused(&["aws:ap-south-1", "aws:ap-south-1"], "the same place");
    routes.refused(
        &["aws:nowhere", "aws:ap-south-1"],
        "`aws:nowhere`: a region of the catalogue or LAT",
    );
    routes.refused(&["aws:ap-suoth-1", "1,2"], "did you mean `aws:ap-south-1`?");
    routes.refused(&["91,0", "aws:ap-south-1"], "a latitude from -90 to 90");
    routes.refused(&["1,2", "aws:ap-south-1", "--clouds", "moon"], "no region of a cloud `moon`");
    routes.refused(&["1,2", "aws:ap-south-1", "--relays", "5"], "--relays");
    routes.refused(&["1,2", "aws:ap-south-1", "--volume", "0 B"], "--volume");
    routes.refused(&["1,2", "aws:ap-south-1", "--window", "1 B"], "--window");
    routes.refused(&["here", "there", "--rtt", "rtt.csv"], "line 3: rtt_ms");
    routes.refused(&["here", "there", "--rtt", "/no/such/file"], "/no/such/file: No such file");
    let routes = Routes::new("unknown", "here,there,200\n");
    routes.refused(&["here", "moon", "--rtt", "rtt.csv"], "the table has no place `moon`");
}
