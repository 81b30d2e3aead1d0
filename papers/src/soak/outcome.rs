//! Results of a soak: the ends of sessions, the faults that explain them, and the resources of
//! processes after each round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tradewind_output::chart::Scale;

use super::faults::Past;
use super::process::{Sample, gateway_of};
use super::scenario::{Chain, Scenario, What};
use super::session::{End, Ended, Kind, QUIET};
use crate::harness::{Figure, Finding, Record, Row, Spot};

/// The time for which a fault may have effects: by then gateways and TCP have detected it.
const AFTERMATH: Duration = Duration::from_secs(5);
/// The largest distance between the begins of a session and of an outage for which the header may
/// arrive over a warm connection while its acknowledgement is lost.
const OPENING: Duration = Duration::from_millis(500);
/// The number of sessions broken without a fault that are reported.
const SHOWN: usize = 5;
/// Memory that a process may gain from the second rest to the last: a share, and bytes beyond it.
const GAIN: f64 = 0.1;
const GAIN_BYTES: f64 = 4e6;
/// Descriptors that a process may gain beyond those of idle connections and pipes, which it
/// reports. Chosen: a handful, so that a leak of one every few minutes shows.
const GAIN_DESCRIPTORS: u64 = 32;

/// A round and the following rest.
pub(super) struct Round {
    /// Its sessions.
    pub(super) ended: Vec<Ended>,
    /// The resources of processes in that rest.
    pub(super) rest: Vec<Sample>,
}

/// A whole soak.
pub(super) struct Soaked {
    /// Its chains.
    pub(super) chains: Vec<Chain>,
    /// Its rounds.
    pub(super) rounds: Vec<Round>,
    /// Its faults.
    pub(super) faults: Vec<Past>,
    /// Uploads that ended early at the server, and those altered there.
    pub(super) server: (u64, u64),
}

impl Soaked {
    fn sessions(&self) -> impl Iterator<Item = &Ended> {
        self.rounds.iter().flat_map(|round| &round.ended)
    }

    fn count(&self, end: End) -> usize {
        self.sessions().filter(|session| session.end == end).count()
    }

    /// Returns whether a fault that may break sessions occurred during this one.
    fn explains(&self, session: &Ended) -> bool {
        self.faults.iter().any(|fault| {
            let may_break = fault.what.may_break()
                && fault.chain.is_none_or(|chain| chain == session.chain)
                && session.begun <= fault.ended + AFTERMATH
                && session.ended >= fault.began;
            may_break || self.is_cut_off(session, fault)
        })
    }

    /// Returns whether an outage occurred while a header was sent over a warm connection: the
    /// header may have arrived and its acknowledgement been lost, so that its repetition is
    /// refused.
    fn is_cut_off(&self, session: &Ended, fault: &Past) -> bool {
        let apart = session.begun.max(fault.began) - session.begun.min(fault.began);
        fault.what == What::Outage && self.chains[session.chain].is_warm() && apart <= OPENING
    }

    /// Describes a session, and the last fault that began before it ended.
    fn describe(&self, session: &Ended) -> String {
        let lasted = (session.ended - session.begun).as_secs_f64();
        let what = format!(
            "{} over the {} chain, {lasted:.1} s long",
            session.kind.name(),
            self.chains[session.chain].name
        );
        let before = self.faults.iter().rfind(|fault| fault.began <= session.ended);
        match before {
            None => format!("{what}, before any fault"),
            Some(fault) => {
                let after = (session.ended - fault.began).as_secs_f64();
                format!("{what}, ended {after:.1} s after `{}` had begun", fault.what.name())
            }
        }
    }
}

/// Returns the record of a soak. It asserts no times, so the lab's lateness does not matter to it.
pub(super) fn record(scenario: &Scenario, soaked: &Soaked) -> Record {
    let mut rows = session_rows(soaked);
    rows.extend(fault_rows(soaked));
    rows.extend(held_rows(soaked));
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(format!(
        "{} sessions at once, {} rounds; a session may break while a relay of its chain is killed \
         or has no descriptors, and {} s after, and one that opens over a warm connection just \
         when an outage begins",
        scenario.sessions,
        soaked.rounds.len(),
        AFTERMATH.as_secs()
    ));
    let figure = |title: &str, y_label: &str| Figure {
        title: title.to_owned(),
        x_label: "round".to_owned(),
        y_label: y_label.to_owned(),
        scale: Scale::Linear,
    };
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, findings(soaked)));
    let figures =
        vec![figure("memory at rest", "MB"), figure("descriptors at rest", "descriptors")];
    Record { figures, ..tables }
}

fn session_rows(soaked: &Soaked) -> Vec<Row> {
    let mut ends: BTreeMap<Kind, BTreeMap<End, usize>> = BTreeMap::new();
    for session in soaked.sessions() {
        *ends.entry(session.kind).or_default().entry(session.end).or_default() += 1;
    }
    ends.into_iter()
        .map(|(kind, ends)| {
            let all: usize = ends.values().sum();
            let failures = ends.iter().filter(|(end, _)| **end != End::Done);
            let failures: Vec<String> =
                failures.map(|(end, count)| format!("{count} {}", end.name())).collect();
            let note = failures.join(", ");
            Row::of(&format!("sessions: {}", kind.name()), None, &[all as f64], "", &note)
        })
        .collect()
}

fn fault_rows(soaked: &Soaked) -> Vec<Row> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in &soaked.faults {
        *counts.entry(fault.what.name()).or_default() += 1;
    }
    let row = |(name, count): (&str, usize)| {
        Row::of(&format!("faults: {name}"), None, &[count as f64], "", "")
    };
    counts.into_iter().map(row).collect()
}

fn held_rows(soaked: &Soaked) -> Vec<Row> {
    let mut rows = Vec::new();
    for (round, held) in soaked.rounds.iter().enumerate() {
        for sample in &held.rest {
            let round = round + 1;
            let spot = |figure| Spot {
                figure,
                line: sample.name.clone(),
                x: round as f64,
                x_name: format!("round {round}"),
            };
            let note = format!("process {}; {} warm to it rest", sample.process, sample.resting);
            let row = |what: &str, value: f64, unit: &str, figure: usize| {
                let case = format!("round {round}: {}: {what}", sample.name);
                Row::of(&case, None, &[value], unit, &note).drawn_at(spot(figure))
            };
            rows.push(row("memory", sample.memory as f64 / 1e6, "MB", 0));
            rows.push(row("descriptors", sample.descriptors_in_use() as f64, "", 1));
        }
    }
    rows
}

fn findings(soaked: &Soaked) -> Vec<Finding> {
    let all = soaked.sessions().count();
    let (server_early, server_altered) = soaked.server;
    let early = soaked.count(End::Early) as u64 + server_early;
    let altered = soaked.count(End::Altered) as u64 + server_altered;
    let stuck = soaked.count(End::Stuck);
    let broken: Vec<&Ended> =
        soaked.sessions().filter(|session| session.end == End::Broken).collect();
    let unexplained: Vec<String> = (broken.iter().filter(|session| !soaked.explains(session)))
        .map(|session| soaked.describe(session))
        .collect();
    let without = unexplained.len();
    let few: String =
        unexplained.iter().take(SHOWN).map(|session| format!("; {session}")).collect();
    let of_all = |count: u64| format!("{count} of {all} sessions");
    vec![
        Finding::new("no byte is altered", altered == 0 && all > 0, of_all(altered)),
        Finding::new(
            "no stream ends before all has come",
            early == 0,
            format!("{}, {server_early} of them at the server", of_all(early)),
        ),
        Finding::new(
            "no session stands still for longer than a lost reset takes to be noticed",
            stuck == 0,
            format!("{} for {} s", of_all(stuck as u64), QUIET.as_secs()),
        ),
        Finding::new(
            "sessions break only by what may break them",
            without == 0,
            format!("{} of {all} broke, {without} without such a fault{few}", broken.len()),
        ),
        accounted(soaked),
        flat(
            "descriptors do not grow",
            soaked,
            |sample| sample.descriptors_in_use() as f64,
            |first| first + GAIN_DESCRIPTORS as f64,
        ),
        flat(
            "memory does not grow",
            soaked,
            |sample| sample.memory as f64,
            |first| first * (1.0 + GAIN) + GAIN_BYTES,
        ),
    ]
}

/// Returns the finding that every accepted connection has an outcome, and that gateways count as
/// many sessions as were opened.
fn accounted(soaked: &Soaked) -> Finding {
    let mut wrong = Vec::new();
    let mut opened = vec![0_u64; soaked.chains.len()];
    for round in &soaked.rounds {
        for session in &round.ended {
            opened[session.chain] += 1;
        }
        for sample in &round.rest {
            if !sample.is_accounted() {
                let Sample { name, counts, resting, .. } = sample;
                wrong.push(format!("{name}: {counts:?}, {resting} rest"));
            }
        }
        for (chain, opened) in soaked.chains.iter().zip(&opened) {
            let chain = &chain.name;
            let gateway = round.rest.iter().find(|sample| sample.name == gateway_of(chain));
            let accepted = gateway.map_or(0, |sample| sample.counts.accepted);
            if accepted != *opened {
                wrong.push(format!("{chain}: {opened} opened, {accepted} accepted"));
            }
        }
    }
    let all: u64 = opened.iter().sum();
    let ours = match wrong.first() {
        None => format!("{all} sessions, each with one outcome at each process"),
        Some(first) => format!("{} times not, first {first}", wrong.len()),
    };
    Finding::new("every session is accounted for", wrong.is_empty(), ours)
}

/// Returns the finding that no process holds more at its last rest than `most` allows for its
/// second one (its first when there are but two). Each relay and gateway must have had a process
/// with two rests.
fn flat(paper: &str, soaked: &Soaked, held: fn(&Sample) -> f64, most: fn(f64) -> f64) -> Finding {
    let mut by_process: BTreeMap<(&str, u32), Vec<f64>> = BTreeMap::new();
    for sample in soaked.rounds.iter().flat_map(|round| &round.rest) {
        by_process.entry((&sample.name, sample.process)).or_default().push(held(sample));
    }
    let names: BTreeSet<&str> = by_process.keys().map(|(name, _)| *name).collect();
    let (mut judged, mut worst) = (BTreeSet::new(), None::<(f64, String)>);
    let mut holds = true;
    for ((name, _), values) in by_process {
        let [first, .., last] = values[..] else { continue };
        judged.insert(name);
        let first = if values.len() > 2 { values[1] } else { first };
        holds &= last <= most(first);
        let gain = last / first.max(1.0);
        if worst.as_ref().is_none_or(|(most, _)| gain > *most) {
            worst = Some((gain, format!("{name}: {first:.0}, at last {last:.0}")));
        }
    }
    if let Some(name) = names.difference(&judged).next() {
        return Finding::new(paper, false, format!("no process of {name} rested twice"));
    }
    let ours = worst.map_or_else(|| "nothing ran".to_owned(), |(_, text)| text);
    Finding::new(paper, holds && !names.is_empty(), format!("largest gain: {ours}"))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn outage_explains_session_opening_over_warm_connection() {
        let text = include_str!("../../scenarios/soak.toml");
        let chains = Scenario::parse(text).unwrap().chains;
        let place = |name: &str| chains.iter().position(|chain| chain.name == name).unwrap();
        let (warm, plain) = (place("warm"), place("plain"));
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let fault = |what, chain, began| Past { what, chain, began, ended: began + ms(2000) };
        let faults = vec![
            fault(What::Outage, None, now + ms(2000)),
            fault(What::Kill, Some(plain), now + ms(30_000)),
        ];
        let soaked = Soaked { chains, rounds: Vec::new(), faults, server: (0, 0) };
        let explained = |chain, begun_ms| {
            let (kind, end) = (Kind::Fetch, End::Broken);
            let begun = now + ms(begun_ms);
            soaked.explains(&Ended { kind, chain, begun, ended: begun + ms(2200), end })
        };
        assert!(explained(warm, 1900) && explained(warm, 2100));
        assert!(!explained(warm, 1000) && !explained(warm, 3000), "not while it opened");
        assert!(!explained(plain, 1900), "nothing arrives unseen where nothing rests");
        assert!(explained(plain, 29_000) && !explained(warm, 29_000), "another chain's relay");
    }
}
