//! The paths of one run: their delays and their losses.

use std::fmt::Write;

use tradewind_model::RttModel;
use tradewind_units::Duration;
use tradewind_wan::Topology;

use super::Scenario;
use crate::harness::{NumericError, Random, catalogue};

/// A flow's path with its relays.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    /// Index of its group in the scenario: flows between the same relays.
    pub(crate) group: usize,
    /// One-way delay over the Internet.
    pub(crate) internet: Duration,
    /// One-way delay from the sender to its relay.
    pub(super) source_access: Duration,
    /// One-way delay from the receiver's relay to it.
    pub(super) receiver_access: Duration,
    /// Offset in a packet's interval at which it sends.
    pub(crate) phase: Duration,
    wide: Wide,
    /// Share of packets that the access paths lose together with whatever else is sent there at the
    /// time.
    access_loss: f64,
}

#[cfg(test)]
impl Path {
    /// Creates a path with this one-way delay over the Internet, without losses.
    pub(crate) fn plain(internet: Duration) -> Self {
        let wide = Wide { random: 0.0, bursts: 0.0, outages: 0.0 };
        let (source_access, receiver_access, phase) = <_>::default();
        Self { group: 0, internet, source_access, receiver_access, phase, wide, access_loss: 0.0 }
    }
}

/// Losses of a path between the access paths, as shares of its packets.
#[derive(Debug, Clone, Copy)]
struct Wide {
    random: f64,
    bursts: f64,
    outages: f64,
}

/// Draws all paths, and makes the emulated network of them.
///
/// # Errors
/// When that network makes no sense.
pub(crate) fn network(
    scenario: &Scenario,
    access: f64,
    random: &mut Random,
) -> Result<(Vec<Path>, Topology), NumericError> {
    let paths = draw(scenario, access, random);
    let topology = Topology::parse(&topology(scenario, &paths), catalogue())
        .map_err(|error| NumericError::Nothing { what: format!("the network: {error}") })?;
    Ok((paths, topology))
}

/// Draws all paths; `access` is the share of all losses that happens on access paths.
fn draw(scenario: &Scenario, access: f64, random: &mut Random) -> Vec<Path> {
    let mut paths = Vec::new();
    let count: usize = scenario.groups.iter().map(|group| group.paths).sum();
    // Lossy paths, and paths with outages: exact shares, in any order.
    let lossy = random.permutation(count);
    let broken = random.permutation(count);
    let among = |place: usize, share: f64| (place as f64) < share * count as f64;
    for (index, group) in scenario.groups.iter().enumerate() {
        for _ in 0..group.paths {
            let place = paths.len();
            let [low, middle, high] = scenario.loss_percent.map(|percent| percent / 100.0);
            let loss = if among(lossy[place], scenario.lossy_share) {
                random.log_uniform(middle, high)
            } else {
                random.log_uniform(low, middle)
            };
            let has_outages = among(broken[place], scenario.outage_paths);
            let wide = loss * (1.0 - access);
            let outages = if has_outages { wide * scenario.outage_share } else { 0.0 };
            let bursts = wide * scenario.burst_share;
            let mut one_way = || {
                let millis = scenario.access_least_ms + random.exponential(scenario.access_more_ms);
                Duration::from_secs_f64(millis.min(scenario.access_most_ms) / 1e3)
            };
            let (source_access, receiver_access) = (one_way(), one_way());
            let factor = random.laplace(scenario.internet_spread).exp().clamp(0.7, 1.6);
            let between = between_relays(scenario, index);
            paths.push(Path {
                group: index,
                internet: source_access + between.mul_f64(factor) + receiver_access,
                source_access,
                receiver_access,
                phase: scenario.interval().mul_f64(random.fraction()),
                wide: Wide { random: wide - outages - bursts, bursts, outages },
                access_loss: loss * access,
            });
        }
    }
    paths
}

/// Returns the one-way delay between a group's relays: half the modelled round trip.
pub(super) fn between_relays(scenario: &Scenario, group: usize) -> Duration {
    let [a, b] = scenario.groups[group]
        .regions
        .each_ref()
        .map(|id| catalogue().region(id).expect("the scenario's regions were looked up").location);
    RttModel::fitted().rtt_between(a, b) / 2
}

/// Returns the emulated network: for each group an ingress and an egress relay, for each path a
/// sender and a receiver.
fn topology(scenario: &Scenario, paths: &[Path]) -> String {
    let mut text = String::from("[default.pair]\nrtt = \"100 ms\"\n");
    let millis = |span: Duration| format!("{:.6} ms", span.as_secs_f64() * 1e3);
    for group in 0..scenario.groups.len() {
        let delay = millis(between_relays(scenario, group) * 2);
        write!(
            text,
            "[[site]]\nid = \"in-{group}\"\n[[site]]\nid = \"out-{group}\"\n\
             [[pair]]\nbetween = [\"in-{group}\", \"out-{group}\"]\nrtt = \"{delay}\"\n"
        )
        .expect("text takes text");
    }
    for (index, path) in paths.iter().enumerate() {
        let group = path.group;
        let [internet, up, down] = [path.internet, path.source_access, path.receiver_access]
            .map(|one_way| millis(one_way * 2));
        let jitter = millis(scenario.jitter());
        let Wide { random, bursts, .. } = path.wide;
        // Bursts of so many packets begin often enough to lose the wanted share.
        let leave = 1.0 / scenario.burst_packets;
        let enter = bursts / scenario.burst_packets / (1.0 - bursts);
        write!(
            text,
            "[[site]]\nid = \"s{index}\"\n[[site]]\nid = \"r{index}\"\n\
             [[pair]]\nbetween = [\"s{index}\", \"r{index}\"]\nrtt = \"{internet}\"\n\
             [[pair]]\nfrom = \"s{index}\"\nto = \"r{index}\"\njitter = \"{jitter}\"\n\
             loss = {random:.9}\n\
             burst_loss = {{ enter = {enter:.9}, leave = {leave:.6} }}\n\
             [[pair]]\nbetween = [\"s{index}\", \"in-{group}\"]\nrtt = \"{up}\"\n\
             [[pair]]\nbetween = [\"r{index}\", \"out-{group}\"]\nrtt = \"{down}\"\n"
        )
        .expect("text takes text");
        outages(scenario, index, path, &mut text);
    }
    text
}

/// Adds outages of the wide area, and short ones of the access paths, which hit everything sent
/// there at that time.
fn outages(scenario: &Scenario, index: usize, path: &Path, text: &mut String) {
    let interval = scenario.interval().as_secs_f64();
    let mut outage = |name: &str, share: f64, span_ms: [f64; 2], lost: f64, pairs: String| {
        if share <= 0.0 {
            return;
        }
        // So many packets an outage, often enough to lose the wanted share.
        let mean_gap = lost * interval / share;
        let [shortest, longest] = span_ms;
        write!(
            text,
            "[[outage]]\nname = \"{name}-{index}\"\nmean_gap = \"{mean_gap:.6} s\"\n\
             shortest = \"{shortest} ms\"\nlongest = \"{longest} ms\"\nfrom_to = [{pairs}]\n"
        )
        .expect("text takes text");
    };
    let mean = |span: [f64; 2]| (span[0] + span[1]) / 2.0 / 1e3 / interval;
    let group = path.group;
    let wide = scenario.outage_ms;
    let direct = format!("[\"s{index}\", \"r{index}\"]");
    outage("wide", path.wide.outages, wide, mean(wide), direct.clone());
    let access = scenario.access_outage_ms;
    let (up, down) = (scenario.access_source_share, 1.0 - scenario.access_source_share);
    let with = |other: String| format!("{direct}, {other}");
    let up_pairs = with(format!("[\"s{index}\", \"in-{group}\"]"));
    outage("up", path.access_loss * up, access, mean(access), up_pairs);
    let down_pairs = with(format!("[\"out-{group}\", \"r{index}\"]"));
    outage("down", path.access_loss * down, access, mean(access), down_pairs);
}
