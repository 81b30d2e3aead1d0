//! Metrics of warm pools.

use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::dial::pool::Pools;

/// The metrics of a process's pools, which are set once its listeners are open.
#[derive(Debug, Clone)]
pub struct PoolCollector {
    /// The program, which prefixes names.
    pub program: &'static str,
    /// The pools, once there are any.
    pub pools: Arc<OnceLock<Arc<Pools>>>,
}

impl Collector for PoolCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(counts) = self.pools.get().map(|pools| pools.counts()) else { return Ok(()) };
        let name = |what: &str| format!("{}_{what}", self.program);
        let help = "Connections to next relays that are ready for a session";
        let resting = i64::try_from(counts.resting).unwrap_or(i64::MAX);
        let gauge = MetricType::Gauge;
        let resting_name = name("warm_resting");
        let place = encoder.encode_descriptor(&resting_name, help, None, gauge)?;
        ConstGauge::new(resting).encode(place)?;
        for (what, help, value) in [
            ("warm_hits", "Sessions that found a connection ready", counts.hits),
            ("warm_misses", "Sessions that found none, where some are kept", counts.misses),
        ] {
            let counter = MetricType::Counter;
            let name = name(what);
            let place = encoder.encode_descriptor(&name, help, None, counter)?;
            ConstCounter::new(value).encode(place)?;
        }
        Ok(())
    }
}
