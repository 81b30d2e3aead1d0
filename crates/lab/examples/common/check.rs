//! Checks of figures: each is tried up to three times and ends as pass, fail or invalid.

use std::fmt;
use std::time::Instant;

use tradewind_lab::{LabError, ValidityRecord};

/// The number of attempts of an invalid check.
const ATTEMPTS: usize = 3;

/// A figure and its bound.
pub struct Figure {
    pub what: String,
    pub expected: f64,
    pub measured: f64,
    pub unit: &'static str,
    pub bound: Bound,
}

/// The allowed deviation of a figure from its expected value.
#[derive(Clone, Copy)]
pub enum Bound {
    /// At most this much.
    Within(f64),
    /// At most this share of the expected value.
    WithinShare(f64),
    /// At least the expected value.
    AtLeast,
    /// At most the expected value, and this much more.
    AtMost(f64),
}

impl Figure {
    fn holds(&self) -> bool {
        match self.bound {
            Bound::Within(most) => (self.measured - self.expected).abs() <= most,
            Bound::WithinShare(share) => {
                (self.measured - self.expected).abs() <= share * self.expected.abs()
            }
            Bound::AtLeast => self.measured >= self.expected,
            Bound::AtMost(more) => self.measured <= self.expected + more,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.holds() { "ok  " } else { "FAIL" };
        let bound = match self.bound {
            Bound::Within(most) => format!("+-{most} {}", self.unit),
            Bound::WithinShare(share) => format!("+-{:.0} %", share * 100.0),
            Bound::AtLeast => "at least".to_owned(),
            Bound::AtMost(more) => format!("at most, +{more} {}", self.unit),
        };
        write!(
            f,
            "  {mark} {:<46} expected {:>10.3} measured {:>10.3} {:<8} ({bound})",
            self.what, self.expected, self.measured, self.unit
        )
    }
}

/// The results of a check.
pub struct Findings {
    pub figures: Vec<Figure>,
    /// The validity records of all labs of the check.
    pub records: Vec<ValidityRecord>,
}

/// A check: its name and its function.
#[derive(Clone, Copy)]
pub struct Check {
    pub name: &'static str,
    pub run: fn() -> Result<Findings, LabError>,
}

/// The result of one check or of all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Pass,
    Invalid,
    Fail,
}

impl Verdict {
    /// Returns the exit code that `make test-lab` evaluates: 0, 3 or 1.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Invalid => 3,
            Self::Fail => 1,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Invalid => "INVALID",
            Self::Fail => "FAIL",
        })
    }
}

/// Runs all checks whose name contains `filter`, and prints a table.
pub fn run_all(checks: &[Check], filter: &str) -> Verdict {
    let started = Instant::now();
    let chosen = checks.iter().filter(|check| check.name.contains(filter));
    let verdicts: Vec<(&str, Verdict)> = chosen.map(|check| (check.name, run_one(check))).collect();
    println!("\n{} checks in {:.0} s:", verdicts.len(), started.elapsed().as_secs_f64());
    for (name, verdict) in &verdicts {
        println!("  {verdict:<8} {name}");
    }
    verdicts.iter().map(|(_, verdict)| *verdict).max().unwrap_or(Verdict::Invalid)
}

fn run_one(check: &Check) -> Verdict {
    for attempt in 1..=ATTEMPTS {
        let started = Instant::now();
        println!("{}:", check.name);
        let findings = match (check.run)() {
            Ok(findings) => findings,
            Err(error) => {
                println!("  FAIL {error}");
                return Verdict::Fail;
            }
        };
        findings.figures.iter().for_each(|figure| println!("{figure}"));
        for record in &findings.records {
            println!("       {record}");
        }
        let all_hold = findings.figures.iter().all(Figure::holds);
        let all_valid = findings.records.iter().all(|record| record.valid);
        let seconds = started.elapsed().as_secs_f64();
        match (all_valid, all_hold) {
            (true, true) => return Verdict::Pass,
            (true, false) => return Verdict::Fail,
            (false, _) => {
                println!("  invalid run, attempt {attempt} of {ATTEMPTS}, {seconds:.0} s")
            }
        }
    }
    Verdict::Invalid
}
