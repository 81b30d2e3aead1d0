//! The papers' orderings in the numeric experiments, at small sizes, and the checks of their
//! scenario files.
//!
//! The full runs report the same findings (papers/planner.md).

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::path::PathBuf;

use tradewind_output::chart;
use tradewind_papers::harness::{Observer, Record, RunOptions, Stop};
use tradewind_papers::list::{all, by_name};
use tradewind_papers::report;

struct Silent;

impl Observer for Silent {
    fn begin(&mut self, _step: &str, _total: u64) {}
    fn advance_to(&mut self, _done: u64) {}
}

/// A scenario file of a test, removed when dropped.
struct Given(PathBuf);

impl Given {
    fn new(test: &str, text: &str) -> Self {
        let name = format!("tradewind-{test}-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn options() -> RunOptions {
    RunOptions {
        scenario: None,
        rtt: None,
        seed: None,
        repeat: None,
        quick: false,
        first_part: false,
        program: PathBuf::new(),
        stop: Stop::default(),
    }
}

/// Runs an experiment on its built-in scenario with some of its text replaced.
fn changed(name: &str, changes: &[(&str, &str)], repeat: u32) -> Record {
    let experiment = by_name(name).unwrap();
    let mut text = experiment.scenario.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{name} has no `{from}`");
        text = text.replace(from, to);
    }
    let given = Given::new(name, &text);
    let options = RunOptions { scenario: Some(given.0.clone()), repeat: Some(repeat), ..options() };
    experiment.run(&options, &mut Silent).unwrap()
}

fn holds(record: &Record, paper: &str) -> bool {
    let finding = record.findings.iter().find(|finding| finding.paper.contains(paper));
    let finding = finding.unwrap_or_else(|| panic!("{}: nothing on `{paper}`", record.name));
    println!("{}: {}: {}", record.name, finding.paper, finding.ours);
    finding.holds
}

/// Returns the acceleration of an algorithm at a point.
fn acceleration(record: &Record, algorithm: &str, point: &str) -> f64 {
    let row = record.rows.iter().find(|row| {
        let at = row.at.as_ref().filter(|at| at.figure == 0);
        at.is_some_and(|at| at.line == algorithm && at.x_name == point)
    });
    row.unwrap_or_else(|| panic!("no {algorithm} at {point}")).ours
}

#[test]
fn first_part_is_for_lab_experiments_only() {
    let options = RunOptions { first_part: true, ..options() };
    let check = |name: &str| by_name(name).unwrap().check(&options);
    let refused = check("cp-cost").unwrap_err();
    assert!(refused.is_of_configuration() && refused.to_string().contains("--first-part"));
    check("cdd-hops").unwrap();
}

#[test]
fn sharing_relays_wins_for_each_number_of_flows() {
    let points = "points = [{ flows = 10 }, { flows = 20 }, { flows = 30 }, { flows = 40 }, \
                  { flows = 50 }, { flows = 60 }]";
    let record = changed("cp-flows", &[(points, "points = [{ flows = 8 }, { flows = 16 }]")], 6);
    assert!(holds(&record, "outperform the flow-greedy"));
    assert!(holds(&record, "more than 2x"));
    assert_eq!(record.figures.len(), 6);
}

#[test]
fn proxy_greedy_leads_at_small_budgets() {
    let mut changes = vec![("flows = 30", "flows = 10")];
    for budget in ["0.1", "0.3", "0.4", "0.6", "0.7", "0.9", "1.0", "1.2"] {
        let line = format!("  {{ budget_usd_per_flow = {budget} }},\n");
        changes.push((Box::leak(line.into_boxed_str()), ""));
    }
    let record = changed("cp-budget", &changes, 6);
    assert!(holds(&record, "ahead for low and medium"));
    assert!(holds(&record, "reaches the unlimited bound"));
    let at = |algorithm| acceleration(&record, algorithm, "$1.40 a flow");
    assert!(at("f-fct") > 0.999 * at("unlimited"));
    assert!(at("1-p") < 0.99 * at("f-fct") && at("f-cost") < 0.99 * at("f-fct"));
}

#[test]
fn free_set_up_and_free_transfer() {
    let record = changed("cp-cost", &[("flows = 30", "flows = 12")], 8);
    assert!(holds(&record, "without set-up cost"));
    assert!(holds(&record, "with free transfer"));
}

#[test]
fn faster_last_miles_leave_more_to_gain() {
    let changes = [("flows = 30", "flows = 10"), ("  { last_mile = \"10 Mbit/s\" },\n", "")];
    let record = changed("cp-lastmile", &changes, 3);
    assert!(holds(&record, "rises significantly"));
    assert!(holds(&record, "20 Gbit/s"));
}

#[test]
fn localized_use_case_gains_least() {
    let record = changed("cp-usecases", &[("flows = 60", "flows = 12")], 4);
    assert!(holds(&record, "less when localized"));
}

#[test]
fn formula_is_close_until_there_is_loss() {
    let record = changed("cp-model", &[("tuples = 25", "tuples = 3")], 2);
    assert!(holds(&record, "close to the real ones"));
    let lossless = acceleration(&record, "direct", "0 %");
    let lossy = acceleration(&record, "direct", "0.01 %");
    assert!(lossy > 3.0 * lossless, "{lossless} % and {lossy} % off");
}

#[test]
fn relays_help_default_tcp_and_not_tuned_tcp() {
    let changes = [
        (r#""aws:us-west-1", "aws:us-west-2", "#, ""),
        (r#"  "aws:ap-northeast-1", "aws:ap-northeast-2","#, r#"  "aws:ap-northeast-1","#),
        ("[1, 2, 4, 8, 16, 32, 64, 128]", "[1, 128]"),
    ];
    let record = changed("trn-scope", &changes, 1);
    assert!(holds(&record, "little is left"));
    assert!(holds(&record, "raised windows alone"));
    assert!(holds(&record, "the same for all pairs"));
}

#[test]
fn rtts_predict_forwarding_under_loss() {
    let azure_and_gcp = r#"  { from = "aws:ap-south-1", to = "aws:us-west-1", relays_of = "azure" },
  { from = "aws:us-east-1", to = "aws:us-west-1", relays_of = "azure" },
  { from = "aws:ap-south-1", to = "aws:us-west-1", relays_of = "gcp" },
  { from = "aws:us-east-1", to = "aws:us-west-1", relays_of = "gcp" },
"#;
    let changes = [(azure_and_gcp, ""), ("[0, 0.01, 0.1]", "[0, 0.1]")];
    let record = changed("cdd-rtt", &changes, 3);
    assert!(holds(&record, "three relays gain over two"));
    assert!(holds(&record, "a single split relay"));
}

#[test]
fn packet_services_arrive_in_the_papers_order() {
    let record = changed("jq-delay", &[("paths = 2000", "paths = 500")], 2);
    for row in record.other_rows() {
        println!("{}: {:.1} (paper {:?})", row.case, row.ours, row.paper);
    }
    assert!(holds(&record, "for a majority of paths"));
    assert!(holds(&record, "a long tail"));
    assert!(holds(&record, "caching recovers most packets"));
}

#[test]
fn coding_is_the_cheapest_packet_service_at_usual_losses() {
    let record = changed("jq-cost", &[], 1);
    for row in record.other_rows() {
        println!("{}: {:.2} (paper {:?})", row.case, row.ours, row.paper);
    }
    assert!(record.findings.iter().all(|finding| holds(&record, &finding.paper)));
    let paid = |case: &str| record.rows.iter().find(|row| row.case == case).unwrap();
    let row = paid("coding: ingress relay's traffic");
    assert!((row.ours - row.paper.unwrap()).abs() < 0.02, "{}", row.ours);
}

#[test]
fn open_costs_of_the_paper_are_reported() {
    let record = changed("jq-cost", &[], 1);
    let value = |case: &str| record.rows.iter().find(|row| row.case == case).unwrap().ours;
    // 1.5 Mbit/s for one of 730 hours at 10 dollars a month, at both relays, and two machines'
    // shares.
    let percentile = value("forwarding, by 95th percentile at 10 dollars a Mbit/s");
    assert!((percentile - (2.0 * 1.5 * 1000.0 / 730.0 + 0.19)).abs() < 0.001, "{percentile}");
    // 0.675 GB for an hour at two cents, and a fifth of it.
    assert!((value("caching: storage of packets kept for 3600 s") - 1.35).abs() < 0.001);
    assert!((value("coding: storage of packets kept for 3600 s") - 0.27).abs() < 0.001);
    // Forwarding has no second copy.
    let dear = value("forwarding, access link at 0.5 dollars a GB");
    assert!((dear - value("forwarding, access link at 0.05 dollars a GB")).abs() < 1e-9);
    let copies = value("coding, access link at 0.5 dollars a GB")
        - value("coding, access link at 0.05 dollars a GB");
    assert!((copies - 0.675 * 45.0).abs() < 0.001, "{copies}");
    // Traffic to another cloud costs as much as to the Internet: 11.4 cents per GB instead of 9.8.
    let [one, two] = ["aws:eu-west-1", "gcp:europe-west1"]
        .map(|to| value(&format!("caching, aws:ap-southeast-2 to {to}")));
    assert!((two - one - 0.675 * (11.4 - 9.8 + 0.01 * (12.0 - 9.0))).abs() < 0.01, "{one} {two}");
}

#[test]
fn records_depend_on_seed() {
    let run = |seed| {
        let small = by_name("cp-flows").unwrap().scenario.replace("flows = 60", "flows = 6");
        let small = small.replace(
            "{ flows = 10 }, { flows = 20 }, { flows = 30 }, { flows = 40 }, { flows = 50 }, ",
            "",
        );
        let given = Given::new(&format!("seed-{seed}"), &small);
        let scenario = Some(given.0.clone());
        let options = RunOptions { scenario, seed: Some(seed), repeat: Some(3), ..options() };
        by_name("cp-flows").unwrap().run(&options, &mut Silent).unwrap()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).rows, run(4).rows);
}

#[test]
fn output_formats_show_whole_record() {
    let record = changed("cp-lastmile", &[("flows = 30", "flows = 2")], 2);
    assert_eq!(record.schema_version, 1);
    let text = serde_json::to_string(&record).unwrap();
    let read = serde_json::from_str::<Record>(&text).unwrap();
    assert_eq!((&read.figures, &read.findings), (&record.figures, &record.findings));
    assert_eq!(read.rows.len(), record.rows.len());
    let svg = chart::svg(&record.charts());
    assert!(svg.contains("2 Gbit/s relays") && svg.matches("<polyline").count() == 4);
    let page = report::page(std::slice::from_ref(&record));
    assert!(page.contains("the paper says") && page.contains("seeds from 1 on"));
    for outside in ["https://", "<script", "<img", "<link", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for (title, table) in report::tables(&record) {
        assert!(table.rows.iter().all(|row| row.len() == table.heading.len()), "{title}");
    }
}

#[test]
fn bad_scenarios_are_refused_with_file_and_place() {
    let refused = |name: &str, from: &str, to: &str| {
        let text = by_name(name).unwrap().scenario;
        assert!(text.contains(from), "{name} has no `{from}`");
        let given = Given::new(&format!("bad-{name}"), &text.replacen(from, to, 1));
        let options = RunOptions { scenario: Some(given.0.clone()), ..options() };
        let error = by_name(name).unwrap().run(&options, &mut Silent).unwrap_err().to_string();
        assert!(error.starts_with(&given.0.display().to_string()), "{error}");
        assert!(!error.contains('\n'), "{error}");
        error
    };
    assert!(refused("cp-budget", "flows = 30", "flows = 0").contains("flows: 0 given"));
    assert!(refused("cp-budget", "\"2-p\"", "\"3-p\"").contains("no `3-p`"));
    assert!(refused("cp-budget", "near_rtt_ms = 40", "near_rtt_ms = nan").contains("near_rtt_ms"));
    assert!(refused("cp-budget", "gcp:us-west2", "gcp:moon1").contains("gcp:moon1"));
    assert!(refused("cp-budget", "last_mile", "last_milk").contains("last_milk"));
    assert!(refused("cp-budget", "volume = \"2 GB\"\n", "").contains("`volume` is missing"));
    assert!(refused("trn-scope", "gain = 1.5", "gain = 0").contains("gain: 0 given"));
    assert!(refused("trn-scope", "aws:us-east-1", "aws:us-west-1").contains("each once"));
    assert!(refused("cdd-rtt", "relays_of = \"aws\"", "relays_of = \"moon\"").contains("`moon`"));
    assert!(
        refused("jq-cost", "retention_s = [0.3,", "retention_s = [nan,")
            .contains("open.retention_s: NaN")
    );
    assert!(refused("jq-cost", "gcp:europe-west1", "gcp:moon1").contains("`gcp:moon1`"));
    assert!(refused("rt-model", "share = 0.54", "share = 0.1").contains("exceeding"));
    assert!(refused("rt-cmax", "senders = 34", "senders = 35").contains("senders: 35"));
    assert!(refused("rt-traffic", "[\"5 min\", \"2 h\"]", "[\"5 moons\"]").contains("keep_idle"));
    assert!(refused("rt-guard", "at_once = 8", "at_once = 0").contains("`eight at once`"));
    assert!(refused("rt-ramp", "bytes = \"1 MB\"", "bytes = \"4 MB\"").contains("3 MB"));
    assert!(refused("rt-probes", "aws:us-east-1", "aws:moon-1").contains("aws:moon-1"));
    assert!(refused("cdd-rtt", "[0.01, 1]", "[0, 1]").contains("own_loss_percent"));
}

#[test]
fn rtt_tables_are_refused_by_experiments_without_rtts() {
    let rtt = Some(PathBuf::from("none.csv"));
    for name in ["cp-flows", "cp-real"] {
        let options = RunOptions { rtt: rtt.clone(), ..options() };
        let error = by_name(name).unwrap().run(&options, &mut Silent).unwrap_err().to_string();
        assert!(error.contains("takes no table"), "{error}");
    }
    let options = RunOptions { rtt, ..options() };
    let error = by_name("cdd-rtt").unwrap().run(&options, &mut Silent).unwrap_err().to_string();
    assert!(error.starts_with("none.csv: "), "{error}");
}

#[test]
fn larger_initial_windows_save_round_trips() {
    // [RT II-B, Figs. 3 and 4]; the paper's times of Fig. 6 are not those of its median round trip.
    let record = changed("rt-model", &[("files = 20000", "files = 4000")], 2);
    for paper in ["all but 15 %", "between 15 KB and 1000 KB"] {
        assert!(holds(&record, paper), "{paper}");
    }
    // A log-normal distribution through the paper's two points gives 30.
    let more = |case: &str| record.rows.iter().find(|row| row.case == case).unwrap().ours;
    let points = more("through after 1, window 50") - more("through after 1, window 10");
    assert!((points - 30.0).abs() < 2.0, "{points}");
    assert!(!holds(&record, "over 280 ms longer"));
    let saved = "100 kB saved at the 50th percentile, stretched";
    let row = record.rows.iter().find(|row| row.case == saved).unwrap();
    assert!((row.ours - 250.0).abs() < 1e-6, "{}", row.ours);
}

#[test]
fn learning_bounds_show_in_the_windows() {
    // [RT Fig. 10], on two PoPs for minutes.
    let small = [
        ("senders = 34", "senders = 2"),
        ("length = \"2 h\"", "length = \"4 min\""),
        ("warm_up = \"10 min\"", "warm_up = \"3 min\""),
    ];
    let record = changed("rt-cmax", &small, 1);
    let value = |case: &str| record.rows.iter().find(|row| row.case == case).unwrap().ours;
    let at = |setting: &str| value(&format!("50th percentile, {setting}, Linux to 3.15"));
    assert!(at("c_max 50") > at("without Riptide"), "{}", at("c_max 50"));
    assert!(at("c_max 100") >= at("c_max 50") && at("c_max 250") >= at("c_max 100"));
    assert_eq!(record.charts().len(), 2);
}

#[test]
fn busy_pop_has_larger_windows() {
    // [RT Fig. 11]
    let small = [
        ("length = \"12 h\"", "length = \"10 min\""),
        ("warm_up = \"2 h\"", "warm_up = \"65 min\""),
        ("[600, 600]", "[60, 60]"),
    ];
    let record = changed("rt-traffic", &small, 1);
    assert!(holds(&record, "organic traffic has much larger windows"));
}

#[test]
fn stopped_run_ends_early() {
    let options = options();
    options.stop.set();
    for experiment in all().iter().filter(|experiment| !experiment.on_lab()) {
        let error = experiment.run(&options, &mut Silent).unwrap_err();
        assert_eq!(error.to_string(), "stopped", "{}", experiment.name);
    }
}

#[test]
fn day_with_the_controller_beats_its_morning_and_keeps_its_budget() {
    let changes = [("hour = \"1h\"", "hour = \"5min\"")];
    let record = changed("lab-day", &changes, 1);
    assert!(holds(&record, "gains as much as the morning's plan"));
    assert!(holds(&record, "80 % of the gain of hindsight"));
    assert!(holds(&record, "noise alone causes at most two"));
    assert!(holds(&record, "never passes the budget"));
}

#[test]
fn many_connections_make_rates_stable_and_relays_useless_all_day() {
    let record = changed("trn-day", &[], 1);
    assert!(holds(&record, "stable over time"));
    let row = |case: &str| record.rows.iter().find(|row| row.case == case).unwrap().ours;
    let even = |count: u32| {
        row(&format!("least over largest direct rate of the day, median, {count} connections"))
    };
    assert!(even(1) < even(64), "{} and {}", even(1), even(64));
    assert_eq!(row("pairs with a relay at 12:00, 64 connections"), 0.0);
}
