//! Counters for metrics: one set a worker, so that no two threads write to one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tradewind_packet::event::{Arrival, Event};
use tradewind_telemetry::client::collector::Collector;
use tradewind_telemetry::client::encoding::{DescriptorEncoder, EncodeMetric};
use tradewind_telemetry::client::metrics::MetricType;
use tradewind_telemetry::client::metrics::counter::ConstCounter;
use tradewind_telemetry::client::metrics::gauge::ConstGauge;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// One worker's counters.
        #[derive(Debug, Default)]
        pub struct Counts { $($(#[$doc])* pub(crate) $name: AtomicU64),+ }

        /// The counters' values at one time.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Snapshot { $($(#[$doc])* pub $name: u64),+ }

        impl Counts {
            /// Returns the current values.
            #[must_use]
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }

        impl Snapshot {
            /// Returns the sums of both.
            #[must_use]
            pub fn plus(self, other: Self) -> Self {
                Self { $($name: self.$name + other.$name),+ }
            }

            /// Returns names and values.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Datagrams from neighbours.
    received,
    /// Datagrams to neighbours.
    sent,
    /// Datagrams to neighbours that did not leave: buffer full, too long, or no route.
    unsent,
    /// Datagrams that the kernel dropped because they were not fetched in time.
    overrun,
    /// Packets forwarded from one neighbour to the next.
    forwarded,
    /// Packets of applications that were sealed for a remote endpoint.
    accepted,
    /// Packets of applications that could not be sent: no open session, too many flows, or too
    /// long.
    refused,
    /// Packets of applications that are longer than every path to their remote endpoint allows.
    too_long,
    /// Datagrams of applications that were fragmented.
    cut,
    /// Datagrams of applications that were reassembled.
    joined,
    /// Datagrams that were not reassembled: a fragment was late, or was evicted.
    unjoined,
    /// Packets that were reordered: they waited for others before them.
    reordered,
    /// Packets dropped because they had waited to be fetched for longer than their latency budget,
    /// at a relay for longer than a second.
    stale,
    /// Packets handed to applications.
    delivered,
    /// Copies of packets that had arrived before, and replays.
    duplicates,
    /// Packets dropped because their sender's grant does not cover their source, which this node
    /// preserves.
    foreign_sources,
    /// Datagrams dropped for other reasons.
    dropped,
    /// Copies sent to an ingress relay, first transmissions and retransmissions.
    copied,
    /// Packets requested from an egress relay.
    asked,
    /// Packets recovered from an egress relay's cache.
    recovered_cache,
    /// Packets decoded with repair packets of their own flow.
    recovered_in_stream,
    /// Packets that an egress relay decoded with helpers' packets.
    recovered_cross_stream,
    /// Packets that came later than their latency budget allows.
    late,
    /// Packets that did not come within their budget.
    lost,
    /// Packets lent to others for cooperative recovery.
    lent,
    /// Packets cached as an egress relay.
    cached,
    /// Repair packets made as an ingress relay.
    repairs,
    /// Requests answered as an egress relay.
    answered,
    /// Packets of a rendezvous that a relay stores: those that this relay began to store, or those
    /// that a relay has acknowledged to this gateway.
    deposited,
    /// Packets that were stored until their receiver had them.
    collected,
    /// Packets of a rendezvous that expired while they waited at this relay, or at this gateway for
    /// its relay.
    expired,
    /// Stored packets that were evicted.
    evicted,
    /// Conversations that were evicted to make room for others.
    conversations_evicted,
    /// Overlay paths that answer, as of the last second.
    paths_up,
}

impl Counts {
    /// Counts an event of a service; the metrics are based on events alone.
    pub(crate) fn count(&self, event: Event) {
        let one = |counter| add(counter, 1);
        match event {
            Event::Delivered { arrival, is_late, .. } => {
                if is_late {
                    one(&self.late);
                }
                match arrival {
                    Arrival::Internet | Arrival::Overlay => {}
                    Arrival::Cache => one(&self.recovered_cache),
                    Arrival::InStream => one(&self.recovered_in_stream),
                    Arrival::CrossStream => one(&self.recovered_cross_stream),
                }
            }
            Event::Lost(_) => one(&self.lost),
            Event::CopySent { .. } => one(&self.copied),
            Event::NackSent { items, .. } => add(&self.asked, items.into()),
            Event::Answered { .. } => one(&self.answered),
            Event::Helped(_) => one(&self.lent),
            Event::Cached(_) => one(&self.cached),
            Event::BlockClosed { repairs, .. } => add(&self.repairs, repairs.into()),
            Event::Dropped(_) => one(&self.dropped),
            _ => {}
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    // One thread writes: no need for a locked addition.
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// A collector that adds up the workers' counters at each scrape.
#[derive(Debug)]
pub(crate) struct CountsCollector(pub(crate) Vec<Arc<Counts>>);

impl Collector for CountsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let all = self.0.iter().map(|counts| counts.snapshot());
        let sum = all.fold(Snapshot::default(), Snapshot::plus);
        let help = "Datagrams and packets of the packet plane by what became of them";
        let mut family =
            encoder.encode_descriptor("packet_datagrams", help, None, MetricType::Counter)?;
        let is_datagrams = |name: &str| !["paths_up", "conversations_evicted"].contains(&name);
        for (name, count) in sum.entries().filter(|(name, _)| is_datagrams(name)) {
            ConstCounter::new(count).encode(family.encode_family(&[("outcome", name)])?)?;
        }
        let help = "Conversations that were let go for the room of others";
        let metric = ConstCounter::new(sum.conversations_evicted);
        metric.encode(encoder.encode_descriptor(
            "packet_conversations_evicted",
            help,
            None,
            MetricType::Counter,
        )?)?;
        let help = "Overlay paths of packets that answer";
        let metric = ConstGauge::new(sum.paths_up as f64);
        metric.encode(encoder.encode_descriptor(
            "packet_paths_up",
            help,
            None,
            MetricType::Gauge,
        )?)
    }
}
