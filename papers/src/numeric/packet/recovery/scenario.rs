//! The scenario of `jq-recovery`, as its file states it.

use serde::Deserialize;
use tradewind_units::{Duration, RegionId, time::duration_from_millis};

use crate::harness::{Record, Runs, ScenarioError, catalogue, from_toml, within};

/// Flows between the same relays.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name for people, such as `US-EU`.
    pub name: String,
    /// The ingress relay's and the egress relay's region.
    pub regions: [RegionId; 2],
    /// Number of paths.
    pub paths: usize,
}

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// Number of runs, and their seeds.
    pub runs: Runs,
    /// The paths by group.
    pub groups: Vec<Group>,
    /// Time for which senders send at a time.
    pub on_s: f64,
    /// The same in a quick run.
    pub on_quick_s: f64,
    /// Mean pause in between, exponential.
    pub off_mean_s: f64,
    /// Number of times that each path sends.
    pub cycles: u32,
    /// Interval between packets.
    pub interval_ms: f64,
    /// Bytes of a packet's payload.
    pub payload_bytes: usize,
    /// r: repair packets for so many packets, k.
    pub cross_stream: [u8; 2],
    /// s: repair packets for so many packets.
    pub in_stream: [u8; 2],
    /// Least one-way delay between clients and relays.
    pub access_least_ms: f64,
    /// Mean of the delay on top of it, exponential.
    pub access_more_ms: f64,
    /// Largest such delay.
    pub access_most_ms: f64,
    /// Spread of the Internet's delays around the relays': half of all paths are within this, in
    /// natural logarithms.
    pub internet_spread: f64,
    /// Largest jitter of the Internet's delay.
    pub jitter_ms: f64,
    /// Losses of paths in per cent: the least, the limit between usual paths and lossy ones, the
    /// largest; equal factors are equally likely.
    pub loss_percent: [f64; 3],
    /// Share of lossy paths.
    pub lossy_share: f64,
    /// Share of paths with outages.
    pub outage_paths: f64,
    /// Share of their wide-area losses that are outages.
    pub outage_share: f64,
    /// Durations of outages, uniform.
    pub outage_ms: [f64; 2],
    /// Share of wide-area losses that are bursts.
    pub burst_share: f64,
    /// Packets of a burst, geometric.
    pub burst_packets: f64,
    /// Durations of access losses, uniform; they hit packets that a client sends to the receiver
    /// and to the relay alike.
    pub access_outage_ms: [f64; 2],
    /// Share of access losses on the senders' side.
    pub access_source_share: f64,
    /// Share of all losses that happen on access paths, at which everything else is reported.
    pub access_share: f64,
    /// The same, swept.
    pub access_sweep: Vec<f64>,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        let ranges = [
            ("on_s", scenario.on_s, 0.1, 86_400.0),
            ("on_quick_s", scenario.on_quick_s, 0.1, 86_400.0),
            ("off_mean_s", scenario.off_mean_s, 0.0, 86_400.0),
            ("interval_ms", scenario.interval_ms, 0.1, 10_000.0),
            ("payload_bytes", scenario.payload_bytes as f64, 16.0, 1_300.0),
            ("access_least_ms", scenario.access_least_ms, 0.01, 1_000.0),
            ("access_more_ms", scenario.access_more_ms, 0.0, 1_000.0),
            ("access_most_ms", scenario.access_most_ms, scenario.access_least_ms, 1_000.0),
            ("internet_spread", scenario.internet_spread, 0.0, 1.0),
            ("jitter_ms", scenario.jitter_ms, 0.0, 1_000.0),
            ("lossy_share", scenario.lossy_share, 0.0, 1.0),
            ("outage_paths", scenario.outage_paths, 0.0, 1.0),
            ("outage_share + burst_share", scenario.outage_share + scenario.burst_share, 0.0, 1.0),
            ("burst_packets", scenario.burst_packets, 1.0, 1_000.0),
            ("access_source_share", scenario.access_source_share, 0.0, 1.0),
            ("access_share", scenario.access_share, 0.0, 1.0),
        ];
        let [least, middle, most] = scenario.loss_percent;
        let losses = [("least", least, 1e-6), ("middle", middle, least), ("most", most, middle)];
        let losses = losses.map(|(_, value, from)| ("loss_percent", value, from, 50.0));
        let sweep = scenario.access_sweep.iter().map(|share| ("access_sweep", *share, 0.0, 1.0));
        let spans = [scenario.outage_ms, scenario.access_outage_ms];
        let spans = spans.into_iter().flat_map(|[shortest, longest]| {
            [("outage_ms", shortest, 0.001, 1e6), ("outage_ms", longest, shortest, 1e6)]
        });
        within(ranges.into_iter().chain(losses).chain(sweep).chain(spans))?;
        let [repairs, packets] = scenario.cross_stream;
        let [own_repairs, own_packets] = scenario.in_stream;
        if !(1..=8).contains(&repairs) || !(1..=32).contains(&packets) {
            return wrong("cross_stream: 1 to 8 repair packets for 1 to 32 packets".to_owned());
        }
        if own_repairs > 8 || !(1..=32).contains(&own_packets) {
            return wrong("in_stream: at most 8 repair packets for 1 to 32 packets".to_owned());
        }
        let paths: usize = scenario.groups.iter().map(|group| group.paths).sum();
        if !(1..=100).contains(&paths) || scenario.groups.len() > 20 || scenario.cycles == 0 {
            return wrong(
                "groups: 1 to 20, of 1 to 100 paths in all; cycles: 1 or more".to_owned(),
            );
        }
        let regions = scenario.groups.iter().flat_map(|group| &group.regions);
        if let Some(id) = regions.into_iter().find(|id| catalogue().region(id).is_none()) {
            return wrong(format!(
                "groups: `{id}` is not in the catalogue{}",
                catalogue().did_you_mean(id.as_str())
            ));
        }
        Ok(scenario)
    }

    /// Shortens a quick run, and records for how long its paths send.
    pub(super) fn shorten(&mut self, is_quick: bool, record: &mut Record) {
        let long = self.on_s;
        if is_quick {
            self.on_s = self.on_quick_s;
        }
        let paths: usize = self.groups.iter().map(|group| group.paths).sum();
        let (cycles, span) = (self.cycles, self.on_s);
        let each = self.on().as_nanos() / self.interval().as_nanos();
        let packets = each * paths as u128 * u128::from(cycles);
        let times = if cycles == 1 { "once".to_owned() } else { format!("{cycles} times") };
        let quick = if is_quick { format!(" (quick: instead of {long} s)") } else { String::new() };
        record.assumptions.push(format!(
            "in each run each path sends {times} for {span} s{quick}, {packets} packets in all; \
             the paper's sent so once an hour for 3 to 5 weeks"
        ));
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval_ms / 1e3)
    }

    pub(crate) fn on(&self) -> Duration {
        Duration::from_secs_f64(self.on_s)
    }

    pub(super) fn jitter(&self) -> Duration {
        duration_from_millis(self.jitter_ms).unwrap_or_default()
    }

    /// Returns r + s.
    pub(super) fn overhead(&self) -> f64 {
        let rate = |[repairs, packets]: [u8; 2]| f64::from(repairs) / f64::from(packets);
        rate(self.cross_stream) + rate(self.in_stream)
    }
}
