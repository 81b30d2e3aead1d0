//! The bars: required figures, compared with the measured ones.

use crate::loops::Loop;
use crate::services::{Carried, Feed};
use crate::traffic::Traffic;
use crate::{Line, Subject};

/// The paper's rates per thread for packets of 512 bytes, in packets a second [JQ B]: forwarding
/// and caching, and coding.
const PAPERS: [(Carried, f64); 3] =
    [(Carried::Forwarding, 170_000.0), (Carried::Caching, 170_000.0), (Carried::Coding, 65_000.0)];
const PAPERS_BYTES: usize = 512;
/// Required ratios: to the paper's rate; to a bare loop, and to one that opens and seals; of each
/// of two workers to one that works alone. Chosen.
const TIMES_PAPERS: f64 = 2.0;
const OF_BARE: f64 = 0.9;
const OF_SEALING: f64 = 0.9;
const OF_ONE_WORKER: f64 = 0.9;
/// Required packets a second that a core codes when it does nothing else.
pub(crate) const CODED_ALONE: f64 = 8e6;

pub(crate) fn tell(what: &str, least: f64, found: f64, digits: usize) {
    let is_met = if found >= least { "met" } else { "missed" };
    println!("bar: {what}: at least {least:.digits$}, found {found:.digits$}: {is_met}");
}

/// Prints a line for each bar. A bar over several loads is judged by the worst of them.
pub(crate) fn judge(lines: &[Line]) {
    for feed in [Feed::Gateway, Feed::Straight, Feed::Apart] {
        for (carried, papers) in PAPERS {
            let subject = Subject::Relay(carried, feed);
            if !lines.iter().any(|line| line.subject == subject) {
                continue;
            }
            let theirs = |line: &&Line| line.subject == subject && line.bytes == PAPERS_BYTES;
            let least = |of: fn(&Line) -> f64| {
                lines.iter().filter(theirs).map(of).fold(f64::INFINITY, f64::min)
            };
            let (name, bar) = (subject.name(), TIMES_PAPERS * papers);
            let handled = least(|line| line.medians.handled_a_cpu_second);
            tell(&format!("{name}, {PAPERS_BYTES} bytes, by a second of CPU"), bar, handled, 0);
            let arrived = least(|line| line.medians.arrived_a_second);
            tell(&format!("{name}, {PAPERS_BYTES} bytes, arrived a second"), bar, arrived, 0);
        }
    }
    for line in lines {
        let Subject::Relay(_, feed) = line.subject else { continue };
        let what = format!("{}, {} bytes, {:?}", line.subject.name(), line.bytes, line.traffic);
        // A relay fed one by one receives no trains, while the loop does.
        let is_alike = feed != Feed::Apart || line.traffic == Traffic::Singles;
        if is_alike && !matches!(feed, Feed::TwoGateways | Feed::SealedWhole) {
            tell(&format!("{what}, of a bare loop"), OF_BARE, line.of_bare, 2);
        }
        let of = |wanted: Subject| {
            let is_peer = |other: &&Line| {
                other.subject == wanted
                    && (other.bytes, other.traffic) == (line.bytes, line.traffic)
            };
            let peer = lines.iter().find(is_peer)?;
            Some(line.medians.handled_a_cpu_second / peer.medians.handled_a_cpu_second)
        };
        let one = Subject::Relay(Carried::Forwarding, Feed::Gateway);
        if feed == Feed::TwoGateways
            && let Some(found) = of(one)
        {
            tell(&format!("{what}, by a second of CPU, of one worker"), OF_ONE_WORKER, found, 2);
        }
        let sealing = Subject::Loop(Loop::TrainsSealed);
        // A relay receives single datagrams as trains, the loop does not.
        if feed == Feed::SealedWhole
            && line.traffic == Traffic::Trains
            && let Some(found) = of(sealing)
        {
            tell(&format!("{what}, of a loop that opens and seals"), OF_SEALING, found, 2);
        }
    }
}
