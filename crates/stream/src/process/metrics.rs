//! The metrics of a process's counters, summed over its workers at each scrape.

use std::fmt;
use std::sync::Arc;

use tradewind_telemetry::client::collector::Collector;
use tradewind_telemetry::client::encoding::{DescriptorEncoder, EncodeMetric};
use tradewind_telemetry::client::metrics::MetricType;
use tradewind_telemetry::client::metrics::counter::ConstCounter;
use tradewind_telemetry::client::metrics::gauge::ConstGauge;
use tradewind_telemetry::client::registry::Unit;

use crate::counts::{Snapshot, outcome_names};
use crate::process::worker::Worker;

/// Adds the workers up when it is scraped.
pub(crate) struct CountsCollector {
    /// `relay` or `gateway`.
    pub(crate) program: &'static str,
    pub(crate) workers: Vec<Arc<Worker>>,
}

impl fmt::Debug for CountsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CountsCollector({})", self.program)
    }
}

impl CountsCollector {
    /// Encodes the counters of striped legs.
    fn encode_stripes(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        sum: &Snapshot,
    ) -> Result<(), fmt::Error> {
        let name = |what: &str| format!("{}_{what}", self.program);
        let counter = MetricType::Counter;
        for (what, help, value) in [
            ("striped_legs", "Legs that run over several connections", sum.striped_legs),
            ("striped_connections", "Connections of striped legs", sum.striped_connections),
        ] {
            let text = name(what);
            let metric = ConstGauge::new(value as f64);
            metric.encode(encoder.encode_descriptor(&text, help, None, MetricType::Gauge)?)?;
        }
        let text = name("reordering");
        let help = "Bytes that wait at striped legs for some that come before them";
        let metric = ConstGauge::new(sum.reordering_bytes as f64);
        let (unit, gauge) = (Some(&Unit::Bytes), MetricType::Gauge);
        metric.encode(encoder.encode_descriptor(&text, help, unit, gauge)?)?;
        let text = name("resent");
        let help = "Bytes that striped legs have sent more than once";
        let metric = ConstCounter::new(sum.resent_bytes);
        metric.encode(encoder.encode_descriptor(&text, help, Some(&Unit::Bytes), counter)?)
    }
}

impl Collector for CountsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let sum = Snapshot::of(self.workers.iter().map(|worker| &worker.counts));
        let name = |what: &str| format!("{}_{what}", self.program);
        let counter = MetricType::Counter;

        for (what, help, value) in [
            ("accepted", "Connections accepted", sum.accepted),
            ("shed", "Connections closed at once because no descriptor was left", sum.shed),
            (
                "udp_flows_evicted",
                "Flows of UDP associations that left for others",
                sum.udp_flows_evicted,
            ),
            ("throttled", "Reads that waited for a limit of the rate", sum.throttled),
        ] {
            let text = name(what);
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(&text, help, None, counter)?)?;
        }

        if let Some(held) = self.workers.first().and_then(|worker| worker.held_bytes()) {
            let text = name("held");
            let help = "Bytes that one side has given and the other has not taken";
            let (unit, gauge) = (Some(&Unit::Bytes), MetricType::Gauge);
            let metric = ConstGauge::new(held as f64);
            metric.encode(encoder.encode_descriptor(&text, help, unit, gauge)?)?;
        }

        let text = name("open_sessions");
        let help = "Connections being served";
        let metric = ConstGauge::new(sum.open as f64);
        metric.encode(encoder.encode_descriptor(&text, help, None, MetricType::Gauge)?)?;

        let text = name("resting_pipes");
        let help = "Pipes that rest until a stream is spliced, two descriptors each";
        let pipes: usize =
            self.workers.iter().map(|worker| worker.buffer_pool.resting_pipes()).sum();
        let metric = ConstGauge::new(pipes as f64);
        metric.encode(encoder.encode_descriptor(&text, help, None, MetricType::Gauge)?)?;

        self.encode_stripes(&mut encoder, &sum)?;

        let text = name("sessions");
        let help = "Connections by what became of them";
        let mut family = encoder.encode_descriptor(&text, help, None, counter)?;
        for (_, outcome) in outcome_names() {
            let labels = [("outcome", outcome)];
            ConstCounter::new(sum.outcome(outcome)).encode(family.encode_family(&labels)?)?;
        }

        let text = name("moved");
        let help = "Bytes given to the receiving side";
        let mut family = encoder.encode_descriptor(&text, help, Some(&Unit::Bytes), counter)?;
        for (direction, bytes) in [("up", sum.bytes_up), ("down", sum.bytes_down)] {
            let labels = [("direction", direction)];
            ConstCounter::new(bytes).encode(family.encode_family(&labels)?)?;
        }

        let text = name("spliced");
        let help = "Of these, bytes that moved by splice";
        let metric = ConstCounter::new(sum.bytes_spliced);
        metric.encode(encoder.encode_descriptor(&text, help, Some(&Unit::Bytes), counter)?)
    }
}
