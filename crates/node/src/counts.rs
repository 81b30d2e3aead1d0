//! What happened, for metrics: one set of counters a worker, so that no two threads write to one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

        /// Counters at one time.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Snapshot { $($(#[$doc])* pub $name: u64),+ }

        impl Counts {
            /// The counters now.
            #[must_use]
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }

        impl Snapshot {
            /// The sums.
            #[must_use]
            pub fn plus(self, other: Self) -> Self {
                Self { $($name: self.$name + other.$name),+ }
            }

            /// Names and values.
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
    /// Packets passed on from one neighbour to the next.
    forwarded,
    /// Packets of applications that were sealed for a far endpoint.
    taken,
    /// Packets of applications that could not be sent: no session yet, too many flows, or too long.
    refused,
    /// Packets of applications that this node had delivered, and that came back to be delivered
    /// again: they are dropped.
    looped,
    /// Packets of applications that are longer than any way to their far endpoint takes.
    too_long,
    /// Datagrams of applications that were cut into pieces, and those joined from such.
    cut,
    /// See `cut`.
    joined,
    /// Datagrams of which a piece did not come in time, or that had to go for room.
    unjoined,
    /// Packets that were put in order: they waited for others before them.
    reordered,
    /// Packets that had waited here, to be fetched, for longer than their latency budget, at a
    /// relay for longer than a second, and were dropped.
    stale,
    /// Packets handed to applications.
    delivered,
    /// Copies of packets that had arrived before, and replays.
    duplicates,
    /// Packets dropped that came under addresses which this node keeps, and which their sender's
    /// grant does not cover.
    foreign_sources,
    /// Datagrams dropped for another reason.
    dropped,
    /// Copies sent to an ingress relay, and sent again.
    copied,
    /// Packets asked for at an egress relay.
    asked,
    /// Packets that came back from what an egress relay had kept.
    recovered_cache,
    /// Packets solved for with repair packets of their own flow.
    recovered_in_stream,
    /// Packets that an egress relay solved for with helpers' packets.
    recovered_cross_stream,
    /// Packets that came later than their latency budget allows.
    late,
    /// Packets that did not come in their budget.
    lost,
    /// Packets lent to others.
    lent,
    /// Packets kept as an egress relay.
    kept,
    /// Repair packets made as an ingress relay.
    repairs,
    /// Requests answered as an egress relay.
    answered,
    /// Packets of a rendezvous that a relay has: those that it began to keep, those that it has
    /// acknowledged to this gateway.
    deposited,
    /// Packets that were kept until their receiver had them.
    collected,
    /// Packets of a rendezvous that were given up as too old: waiting at this relay, or at this
    /// gateway for its relay.
    expired,
    /// Packets that were kept and had to go for room.
    evicted,
    /// Conversations that were let go for the room of others.
    conversations_evicted,
    /// Overlay paths that answer, as of the last second.
    paths_up,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    // One thread writes: no need for a locked addition.
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// Adds the workers up when it is scraped.
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
