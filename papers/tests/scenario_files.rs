//! Scenario files of the numeric experiments with errors of all kinds: each is accepted, or refused
//! in one line, and never causes a panic.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use tradewind_papers::harness::Random;
use tradewind_papers::list::all;

/// Values that replace those of a file.
const VALUES: [&str; 16] = [
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e300",
    "-0.0",
    "99999999999999999999",
    "4294967295",
    "true",
    "\"\"",
    "\"moon\"",
    "[]",
    "{}",
    "'0 B'",
    "'\u{fffd}'",
];

/// The number of faulty texts for each file.
const EACH: u64 = 400;

#[test]
fn faulty_scenarios_are_refused_in_one_line() {
    let mut refused = 0;
    for experiment in all() {
        let Some(built_in) = experiment.check_text(experiment.scenario) else { continue };
        assert!(built_in.is_ok(), "{}: {built_in:?}", experiment.name);
        for seed in 0..EACH {
            let text = spoilt(experiment.scenario, &mut Random::new(seed));
            let Some(Err(error)) = experiment.check_text(&text) else { continue };
            refused += 1;
            let line = error.to_string();
            assert!(!line.contains('\n') && line.starts_with("scenario: "), "{line:?}\n{text}");
        }
    }
    assert!(refused > 2_000, "{refused}");
}

#[test]
fn error_names_the_line() {
    for (name, from, to, expected) in [
        ("cp-flows", "count = 30", "count = 0", "number of runs from 1 to 10000"),
        ("cp-flows", "count = 30", "count = 4294967295", "number of runs from 1 to 10000"),
        ("trn-scope", "count = 10", "sail = 10", "unknown field `sail`"),
    ] {
        let experiment = all().iter().find(|experiment| experiment.name == name).unwrap();
        let line = 1 + experiment.scenario.lines().position(|line| line.contains(from)).unwrap();
        let error = experiment.check_text(&experiment.scenario.replacen(from, to, 1)).unwrap();
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(&format!("scenario: line {line}: ")), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

/// Returns the text with one to three errors.
fn spoilt(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..=random.draw(3) {
        let at = random.draw(lines.len());
        match random.draw(7) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => lines.insert(at, "colour = 'red'".to_owned()),
            3 => lines[at] = lines[at].chars().rev().collect(),
            4 => {
                let length = random.draw(lines[at].chars().count() + 1);
                lines[at] = lines[at].chars().take(length).collect();
            }
            _ => lines[at] = with_value(&lines[at], VALUES[random.draw(VALUES.len())], random),
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.join("\n")
}

/// Returns the line with one of its values, or a neighbouring token, replaced.
fn with_value(line: &str, value: &str, random: &mut Random) -> String {
    let mut parts: Vec<&str> = line.split_inclusive(&['=', ',', '[', '{'][..]).collect();
    let at = random.draw(parts.len().max(1));
    let Some(part) = parts.get_mut(at) else { return value.to_owned() };
    let end = part.find([',', ']', '}', '[', '{', '=']).unwrap_or(part.len());
    let replaced = format!("{value}{}", &part[end..]);
    *part = &replaced;
    parts.concat()
}
