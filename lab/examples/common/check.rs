//! Checks of figures: each ends as pass, fail or invalid, and is tried three times.

use std::fmt;
use std::time::Instant;

use tradewind_lab::{LabError, ValidityRecord};

/// How often an invalid check is tried.
const ATTEMPTS: usize = 3;

/// One figure and the bound that it must keep.
pub struct Figure {
    pub what: String,
    pub expected: f64,
    pub measured: f64,
    pub unit: &'static str,
    pub bound: Bound,
}

/// How far a figure may be from what is expected.
#[derive(Clone, Copy)]
pub enum Bound {
    /// By this much.
    Within(f64),
    /// By this share of what is expected.
    WithinShare(f64),
    /// It must be at least what is expected.
    AtLeast,
}

impl Figure {
    fn holds(&self) -> bool {
        match self.bound {
            Bound::Within(most) => (self.measured - self.expected).abs() <= most,
            Bound::WithinShare(share) => {
                (self.measured - self.expected).abs() <= share * self.expected.abs()
            }
            Bound::AtLeast => self.measured >= self.expected,
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
        };
        write!(
            f,
            "  {mark} {:<46} expected {:>10.3} measured {:>10.3} {:<8} ({bound})",
            self.what, self.expected, self.measured, self.unit
        )
    }
}

/// What a check found.
pub struct Findings {
    pub figures: Vec<Figure>,
    /// The record of every lab that took part.
    pub records: Vec<ValidityRecord>,
}

/// A check's name and how it is done.
pub struct Check {
    pub name: &'static str,
    pub run: fn() -> Result<Findings, LabError>,
}

/// How a check, or all of them, ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Pass,
    Invalid,
    Fail,
}

impl Verdict {
    /// 0, 3 or 1: what `make test-lab` looks at.
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

/// Does all checks whose name holds `filter`, and prints a table.
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
