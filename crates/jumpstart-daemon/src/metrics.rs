//! Metrics. No label holds an address, so the number of series does not grow with destinations.

use std::sync::atomic::AtomicU64;

use tradewind_jumpstart::{Arm, Learner, Totals};
use tradewind_net::jumpstart::ProgramEvent;
use tradewind_telemetry::Registry;
use tradewind_telemetry::client::metrics::counter::Counter;
use tradewind_telemetry::client::metrics::family::Family;
use tradewind_telemetry::client::metrics::gauge::Gauge;
use tradewind_telemetry::client::registry::Unit;

use crate::actuate::Outcome;

type Labels = Vec<(&'static str, &'static str)>;

/// The outcomes of changes, and the events that the program in the kernel reports.
const OUTCOMES: [&str; 6] = ["done", "unneeded", "foreign", "unreachable", "shown", "failed"];
const EVENTS: [&str; 5] = ["jumped", "control", "first_flight_lost", "lost_events", "unremembered"];

/// The counters and gauges.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) rounds: Counter,
    pub(crate) failed_rounds: Counter,
    pub(crate) samples: Gauge,
    pub(crate) round_seconds: Gauge<f64, AtomicU64>,
    pub(crate) destinations: Gauge,
    pub(crate) off: Gauge,
    outcomes: Family<Labels, Counter>,
    events: Family<Labels, Counter>,
    connections: Family<Labels, Counter>,
    acked: Family<Labels, Counter>,
    retransmitted: Family<Labels, Counter>,
    busy: Family<Labels, Counter<f64, AtomicU64>>,
}

impl Metrics {
    /// Registers them, with a series for each value that a label can have: a rate begins at 0.
    pub(crate) fn register(&self, registry: &Registry) {
        for arm in [Arm::Jumped, Arm::Control, Arm::Unlearned, Arm::Earlier] {
            let labels = vec![("arm", name(arm))];
            for family in [&self.connections, &self.acked, &self.retransmitted] {
                let _zero = family.get_or_create(&labels);
            }
            let _zero = self.busy.get_or_create(&labels);
        }
        for outcome in OUTCOMES {
            let _zero = self.outcomes.get_or_create(&vec![("outcome", outcome)]);
        }
        for event in EVENTS {
            let _zero = self.events.get_or_create(&vec![("what", event)]);
        }
        self.register_all(registry);
    }

    fn register_all(&self, registry: &Registry) {
        registry.register(|all| {
            let all = all.sub_registry_with_prefix("jumpstart");
            all.register("rounds", "Looks at the table of connections", self.rounds.clone());
            let help = "Looks that failed";
            all.register("failed_rounds", help, self.failed_rounds.clone());
            all.register("samples", "Connections seen in the last round", self.samples.clone());
            let help = "Time that the last round took";
            all.register("round_seconds", help, self.round_seconds.clone());
            let help = "Destinations with a learned value";
            all.register("destinations", help, self.destinations.clone());
            let help = "Changes, by what became of them";
            all.register("changes", help, self.outcomes.clone());
            all.register("off", "1 while the kill switch is turned", self.off.clone());
            let help = "Reports of the program in the kernel about connections";
            all.register("starts", help, self.events.clone());
            let help = "Ended connections, by how they began";
            all.register("connections", help, self.connections.clone());
            let help = "Payload acknowledged on ended connections, by how they began";
            all.register("acked_bytes", help, self.acked.clone());
            let help = "Segments sent again on ended connections, by how they began";
            all.register("retransmitted_segments", help, self.retransmitted.clone());
            let help = "Time with something to send on ended connections, by how they began";
            all.register_with_unit("busy", help, Unit::Seconds, self.busy.clone());
        });
    }

    pub(crate) fn count(&self, outcome: Option<Outcome>) {
        let name = outcome.map_or("failed", Outcome::name);
        self.outcomes.get_or_create(&vec![("outcome", name)]).inc();
    }

    pub(crate) fn count_event(&self, event: ProgramEvent) {
        let name = match event {
            ProgramEvent::Jumped { .. } => "jumped",
            ProgramEvent::Control { .. } => "control",
            ProgramEvent::FirstFlightLost { .. } => "first_flight_lost",
        };
        self.events.get_or_create(&vec![("what", name)]).inc();
    }

    /// Raises the counter of events that the program in the kernel lost to `total`.
    pub(crate) fn count_lost_events(&self, total: u64) {
        catch_up(&self.events, &vec![("what", "lost_events")], total);
    }

    /// Raises the counter of the process's own sockets that it could not record to `total`.
    pub(crate) fn count_unremembered(&self, total: u64) {
        catch_up(&self.events, &vec![("what", "unremembered")], total);
    }

    /// Raises the arms' counters to the learner's totals.
    pub(crate) fn catch_up(&self, learner: &Learner) {
        for (arm, totals) in learner.arms() {
            let labels: Labels = vec![("arm", name(*arm))];
            let Totals { connections, acked, retransmitted_segments, busy, sizes: _ } = *totals;
            let counted = self.busy.get_or_create(&labels);
            counted.inc_by((busy.as_secs_f64() - counted.get()).max(0.0));
            drop(counted);
            for (family, total) in [
                (&self.connections, connections),
                (&self.acked, acked.as_u64()),
                (&self.retransmitted, retransmitted_segments),
            ] {
                catch_up(family, &labels, total);
            }
        }
    }
}

fn catch_up(family: &Family<Labels, Counter>, labels: &Labels, total: u64) {
    let counter = family.get_or_create(labels);
    counter.inc_by(total.saturating_sub(counter.get()));
}

const fn name(arm: Arm) -> &'static str {
    match arm {
        Arm::Jumped => "jumped",
        Arm::Control => "control",
        Arm::Unlearned => "unlearned",
        Arm::Earlier => "earlier",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_jumpstart::{Begun, Config, Sample};
    use tradewind_units::{Bytes, Duration, Segments, Timestamp};

    fn seen(connection: u64) -> Sample {
        Sample {
            connection,
            remote: "10.0.0.1".parse().unwrap(),
            window: Segments::new(50).unwrap(),
            slow_start_threshold: None,
            mss: Bytes::new(1000),
            rtt_min: None,
            delivery_rate: None,
            application_limited: false,
            rate_limit: None,
            acked: Bytes::new(9000),
            retransmitted_segments: 3,
            busy: Duration::from_millis(250),
        }
    }

    #[test]
    fn documented_series_are_served_with_their_counts() {
        let (metrics, registry) = (Metrics::default(), Registry::new("jumpstart", "0"));
        metrics.register(&registry);
        let mut learner = Learner::new(Config::default());
        let _none_open = learner.decide(Timestamp::ZERO);
        let window = Segments::new(50).unwrap();
        learner.began(1, Begun::Jumped(window));
        learner.began(2, Begun::Control);
        [1, 2].iter().for_each(|number| learner.observe(&seen(*number)));
        for _ended in 0..2 {
            let _changes = learner.decide(Timestamp::ZERO);
        }
        // Counters follow totals, however often.
        (0..2).for_each(|_| metrics.catch_up(&learner));
        metrics.rounds.inc();
        metrics.count(Some(Outcome::Done));
        metrics.count(None);
        metrics.count_event(ProgramEvent::Jumped { connection: 1, window: 50 });
        metrics.count_event(ProgramEvent::FirstFlightLost { connection: 1, prefix: None });
        (0..2).for_each(|_| metrics.count_lost_events(5));
        metrics.count_unremembered(7);
        let text = registry.encode();
        for series in [
            "rounds_total 1",
            "failed_rounds_total 0",
            "samples 0",
            "round_seconds 0",
            "destinations 0",
            "off 0",
            "changes_total{outcome=\"done\"} 1",
            "changes_total{outcome=\"failed\"} 1",
            "changes_total{outcome=\"foreign\"} 0",
            "starts_total{what=\"jumped\"} 1",
            "starts_total{what=\"first_flight_lost\"} 1",
            "starts_total{what=\"lost_events\"} 5",
            "starts_total{what=\"unremembered\"} 7",
            "connections_total{arm=\"jumped\"} 1",
            "connections_total{arm=\"control\"} 1",
            "connections_total{arm=\"earlier\"} 0",
            "acked_bytes_total{arm=\"jumped\"} 9000",
            "retransmitted_segments_total{arm=\"jumped\"} 3",
            "busy_seconds_total{arm=\"jumped\"} 0.25",
        ] {
            let line = format!("\ntradewind_jumpstart_{series}");
            assert!(text.contains(&line), "{series} in {text}");
        }
    }
}
