//! The validity record: evidence that a run's figures can be trusted.
//!
//! An emulator that shares its machine with the emulated programs is only correct while both get
//! enough CPU time. So every run keeps a record of what late deliveries and the programs' waits for
//! a CPU may have changed in its figures (see [`crate::lateness`]), and of what was lost for other
//! reasons than the topology's. A run that broke a bound is invalid, whatever it measured (the idea
//! of Mininet-HiFi, CoNEXT 2012). A record covers everything since the last reset.

use hdrhistogram::Histogram;
use tradewind_net::NetError;
use tradewind_net::clock::{self, Urgency};
use tradewind_net::counters::{self, MachineCpu, TcpMemory};
use tradewind_net::idle::WakefulCpus;
use tradewind_units::{Duration, HostId, Timestamp};
use tradewind_wan::{Counters, HostIndex};

use crate::driver::Measurement;
use crate::lateness::{Crossed, ErrorBound, LegMeters, LegRecord};
use crate::programs::ProgramUse;

/// The bounds of a valid run. Source of each: measured on two cores, 2026-11.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Bounds {
    /// The bound on the error that follows from late deliveries, as a share of the figure.
    pub error_ratio: f64,
    /// The bound on the longest time, in microseconds, between two checks of what is due: a quarter
    /// of TCP's shortest retransmission time-out.
    pub gap_us_max: f64,
    /// The bound on the emulator thread's share of one CPU: above it, its queues grow in bursts.
    pub emulator_cpu_ratio: f64,
    /// The busy share of all CPUs above which programs' waits for one count.
    pub machine_busy_ratio: f64,
    /// The bound on the share of the time in which one thread of a program ran or waited, on such a
    /// machine.
    pub program_cpu_ratio: f64,
}

/// The span below which shares of CPU time are meaningless: the kernel counts the machine's CPU
/// time in ticks of 10 ms.
const MIN_SPAN: Duration = Duration::from_millis(100);

impl Default for Bounds {
    fn default() -> Self {
        Self {
            error_ratio: 0.02,
            gap_us_max: 50_000.0,
            emulator_cpu_ratio: 0.7,
            machine_busy_ratio: 0.8,
            program_cpu_ratio: 0.7,
        }
    }
}

/// The record of one run, from the last reset to now.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ValidityRecord {
    /// `true` when all bounds held. The bounds on CPU shares do not apply to runs below 0.1 s.
    pub valid: bool,
    /// The bounds that were broken, each with its figure.
    pub reasons: Vec<String>,
    /// The duration of the run, in seconds.
    pub span_s: f64,
    /// Deliveries, each of one or more segments.
    pub deliveries: u64,
    /// Segments delivered.
    pub segments: u64,
    /// The median lateness of deliveries, in microseconds.
    pub lateness_us_p50: f64,
    /// The 99th percentile of lateness, in microseconds.
    pub lateness_us_p99: f64,
    /// The largest lateness, in microseconds.
    pub lateness_us_max: f64,
    /// The bound on the error, by late deliveries, of a figure that took the whole run.
    pub error: ErrorBound,
    /// The lateness of deliveries by leg, of all that carried any.
    pub legs: Vec<LegRecord>,
    /// The longest time between two checks of what is due, in microseconds.
    pub gap_us_max: f64,
    /// Packets lost between a host and the emulator, outside the topology's model.
    pub ring_drops: u64,
    /// Packets that a host's kernel dropped on arrival.
    pub receive_drops: u64,
    /// Deliveries that a host's device refused.
    pub write_errors: u64,
    /// Reads from a host's device that failed.
    pub read_errors: u64,
    /// Packets for no host of the lab (multicast, for one); not a fault.
    pub unroutable: u64,
    /// Frames that were no IP packet; not a fault.
    pub foreign_frames: u64,
    /// The emulator thread's share of one CPU.
    pub emulator_cpu_ratio: f64,
    /// The busy share of all CPUs, including the emulator's; time spent only to keep CPUs awake is
    /// left out.
    pub machine_busy_ratio: f64,
    /// The time, in microseconds, for which programs waited for a CPU, per delivery; `None` where
    /// the kernel does not count it.
    pub program_wait_us: Option<f64>,
    /// The share of the time in which the busiest thread of a program ran or waited for a CPU.
    pub program_cpu_ratio: Option<f64>,
    /// TCP's memory on the whole machine as a share of the threshold of memory pressure; `None`
    /// where it is not visible, for example inside a user namespace.
    pub tcp_memory_ratio: Option<f64>,
    /// Links whose counts of segments do not add up.
    pub unconserved_links: Vec<String>,
    /// Memory that holds packets in flight, in bytes.
    pub arena_bytes: u64,
    /// The scheduling class of the emulator's thread.
    pub urgency: Urgency,
    /// The bounds that were applied.
    pub bounds: Bounds,
}

impl ValidityRecord {
    /// Returns the bound on the error, by late deliveries, of a figure that took `took` over the
    /// legs between these hosts, given from end to end.
    #[must_use]
    pub fn error_over(&self, path: &[HostId], took: Duration) -> ErrorBound {
        ErrorBound::over_path(&self.legs, path, took.as_secs_f64(), self.wait_us())
    }

    /// Returns the reasons against such a figure: the broken bounds, with this error instead of
    /// the whole run's.
    #[must_use]
    pub fn reasons_over(&self, path: &[HostId], took: Duration) -> Vec<String> {
        broken_bounds(&Self { error: self.error_over(path, took), ..self.clone() })
    }

    /// Returns the programs' waits for a CPU per delivery, in microseconds, where they count: not
    /// on a machine with CPUs to spare.
    fn wait_us(&self) -> f64 {
        let is_busy = self.machine_busy_ratio > self.bounds.machine_busy_ratio;
        self.program_wait_us.filter(|_| is_busy || self.is_too_short()).unwrap_or_default()
    }

    /// Returns whether the run was too short for shares of CPU time.
    fn is_too_short(&self) -> bool {
        self.span_s < MIN_SPAN.as_secs_f64()
    }
}

impl std::fmt::Display for ValidityRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.valid && self.is_too_short() {
            let (segments, span) = (self.segments, self.span_s);
            return write!(f, "nothing measured yet: {segments} segments in {span:.3} s");
        }
        let word = if self.valid { "valid" } else { "INVALID" };
        write!(
            f,
            "{word}: error below {:.2} %; late p50 {:.0} us, p99 {:.0} us, max {:.1} ms; gap {:.1} \
             ms; emulator {:.0} % of a CPU, machine {:.0} % busy, programs waited {:.0} us per \
             delivery; {} segments in {:.1} s, {} ring drops",
            self.error.ratio * 100.0,
            self.lateness_us_p50,
            self.lateness_us_p99,
            self.lateness_us_max / 1e3,
            self.gap_us_max / 1e3,
            self.emulator_cpu_ratio * 100.0,
            self.machine_busy_ratio * 100.0,
            self.program_wait_us.unwrap_or_default(),
            self.segments,
            self.span_s,
            self.ring_drops,
        )?;
        if !self.valid {
            write!(f, "; because {}", self.reasons.join("; "))?;
        }
        Ok(())
    }
}

/// The emulator thread's measurements of itself.
#[derive(Debug, Clone)]
pub(crate) struct Meters {
    lateness_ns: Histogram<u64>,
    pub(crate) legs: LegMeters,
    segments: u64,
    gap: Duration,
    started: Timestamp,
    span: Duration,
    cpu: Duration,
    pub(crate) frames_read: u64,
    pub(crate) foreign_frames: u64,
    pub(crate) unroutable: u64,
    pub(crate) read_errors: u64,
    pub(crate) write_errors: u64,
}

/// The largest lateness that is recorded; it is kept in nanoseconds, with two digits.
const MAX_LATENESS_NS: u64 = 60_000_000_000;

impl Meters {
    /// Starts measuring; `cpu` is the thread's CPU time so far.
    pub(crate) fn start(cpu: Duration) -> Self {
        let lateness_ns =
            Histogram::new_with_bounds(1, MAX_LATENESS_NS, 2).expect("bounds in order");
        Self {
            lateness_ns,
            legs: LegMeters::default(),
            segments: 0,
            gap: Duration::ZERO,
            started: clock::monotonic(),
            span: Duration::ZERO,
            cpu,
            frames_read: 0,
            foreign_frames: 0,
            unroutable: 0,
            read_errors: 0,
            write_errors: 0,
        }
    }

    /// Ends measuring; `cpu` is the thread's CPU time by now.
    pub(crate) fn stop(&mut self, cpu: Duration) {
        self.span = clock::monotonic().since(self.started);
        self.cpu = cpu.saturating_sub(self.cpu);
    }

    /// Records a delivery.
    pub(crate) fn note_delivery(&mut self, crossed: &Crossed) {
        let nanos = u64::try_from(crossed.late.as_nanos()).unwrap_or(u64::MAX);
        self.lateness_ns.saturating_record(nanos);
        self.segments += crossed.segments;
        self.legs.note(crossed);
    }

    /// Records the time between two checks of what is due.
    pub(crate) fn note_gap(&mut self, gap: Duration) {
        self.gap = self.gap.max(gap);
    }

    fn lateness_us(&self, quantile: f64) -> f64 {
        self.lateness_ns.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// Packets lost at the hosts' devices, summed over all hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RingDrops {
    sent: u64,
    received: u64,
}

impl RingDrops {
    pub(crate) fn add(&mut self, sent: u64, received: u64) {
        self.sent += sent;
        self.received += received;
    }

    /// Returns the losses since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            received: self.received.saturating_sub(earlier.received),
        }
    }
}

/// The machine's CPU time at some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineMark {
    /// The time of its CPUs.
    pub(crate) cpu: MachineCpu,
    /// The part of that time that was spent only to keep CPUs awake.
    pub(crate) spun: Duration,
}

impl MachineMark {
    /// Takes the mark of this moment.
    pub(crate) fn set(wakeful_cpus: Option<&WakefulCpus>) -> Result<Self, NetError> {
        let spun = wakeful_cpus.map_or(Duration::ZERO, WakefulCpus::spun);
        Ok(Self { cpu: counters::machine_cpu()?, spun })
    }
}

/// The machine's resource use during the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MachineUse {
    pub(crate) before: MachineMark,
    pub(crate) after: MachineMark,
    pub(crate) tcp_memory: Option<TcpMemory>,
    pub(crate) programs: Option<ProgramUse>,
}

/// Builds the record and checks it against its bounds; `name` returns a host's name.
pub(crate) fn judge(
    measured: &Measurement,
    machine: &MachineUse,
    name: impl Fn(HostIndex) -> HostId,
) -> ValidityRecord {
    let meters = &measured.meters;
    let legs = meters.legs.records(name);
    let spun = machine.after.spun.saturating_sub(machine.before.spun);
    let memory_ratio = |memory: TcpMemory| memory.used as f64 / memory.pressure.max(1) as f64;
    let span_s = meters.span.as_secs_f64();
    let deliveries = meters.lateness_ns.len();
    let per_delivery = |used: ProgramUse| micros(used.waited) / deliveries.max(1) as f64;
    let mut record = ValidityRecord {
        valid: true,
        reasons: Vec::new(),
        span_s,
        deliveries,
        segments: meters.segments,
        lateness_us_p50: meters.lateness_us(0.5),
        lateness_us_p99: meters.lateness_us(0.99),
        lateness_us_max: meters.lateness_ns.max() as f64 / 1e3,
        error: ErrorBound::default(),
        legs,
        gap_us_max: micros(meters.gap),
        ring_drops: measured.ring_drops.sent,
        receive_drops: measured.ring_drops.received,
        write_errors: meters.write_errors,
        read_errors: meters.read_errors,
        unroutable: meters.unroutable,
        foreign_frames: meters.foreign_frames,
        emulator_cpu_ratio: meters.cpu.as_secs_f64() / span_s.max(1e-9),
        machine_busy_ratio: machine.after.cpu.busy_ratio_since(&machine.before.cpu, spun),
        program_wait_us: machine.programs.map(per_delivery),
        program_cpu_ratio: machine
            .programs
            .map(|used| used.busiest.as_secs_f64() / span_s.max(1e-9)),
        tcp_memory_ratio: machine.tcp_memory.map(memory_ratio),
        unconserved_links: unconserved(&measured.counters),
        arena_bytes: measured.arena_bytes as u64,
        urgency: measured.urgency,
        bounds: Bounds::default(),
    };
    record.error = ErrorBound::over(&record.legs, span_s, record.wait_us());
    record.reasons = broken_bounds(&record);
    record.valid = record.reasons.is_empty();
    record
}

fn unconserved(counters: &Counters) -> Vec<String> {
    let links = counters.links.iter().filter(|link| !link.tally.is_conserved());
    let mut names: Vec<String> = links.map(|link| link.name.to_string()).collect();
    if !counters.total.is_conserved() {
        names.push("the network as a whole".to_owned());
    }
    names
}

/// Returns a description of each bound that the record breaks.
fn broken_bounds(record: &ValidityRecord) -> Vec<String> {
    let bounds = &record.bounds;
    let mut reasons = Vec::new();
    let mut require = |holds: bool, reason: String| {
        if !holds {
            reasons.push(reason);
        }
    };
    let (error, most) = (record.error.ratio * 100.0, bounds.error_ratio * 100.0);
    let millis = record.error.error_ms;
    require(
        error <= most,
        format!(
            "late deliveries and waits for a CPU may change it by {error:.1} % ({millis:.1} ms) > \
             {most} %"
        ),
    );
    let (gap, most_gap) = (record.gap_us_max, bounds.gap_us_max);
    require(gap <= most_gap, format!("emulator stood still for {gap:.0} us > {most_gap:.0} us"));
    let too_short = record.is_too_short();
    let (cpu, most_cpu) = (record.emulator_cpu_ratio, bounds.emulator_cpu_ratio);
    require(too_short || cpu <= most_cpu, format!("emulator used {cpu:.2} of a CPU > {most_cpu}"));
    let (busy, most_busy) = (record.machine_busy_ratio, bounds.machine_busy_ratio);
    let waits = match record.program_cpu_ratio {
        Some(ratio) if ratio <= bounds.program_cpu_ratio => None,
        Some(ratio) => Some(format!("a program ran or waited {ratio:.2} of the time")),
        None => Some("the programs' waits are not known".to_owned()),
    };
    let is_short_of_cpus = !too_short && busy > most_busy && waits.is_some();
    let waits = waits.unwrap_or_default();
    require(!is_short_of_cpus, format!("machine was {busy:.2} busy > {most_busy}, and {waits}"));
    for (count, what) in [
        (record.ring_drops, "packets lost before the emulator"),
        (record.receive_drops, "packets lost in a host's kernel"),
        (record.write_errors, "deliveries refused by a device"),
        (record.read_errors, "reads refused by a device"),
    ] {
        require(count == 0, format!("{count} {what}"));
    }
    if let Some(ratio) = record.tcp_memory_ratio {
        require(ratio < 1.0, format!("TCP's memory at {ratio:.2} of its pressure limit"));
    }
    for link in &record.unconserved_links {
        require(false, format!("segments of {link} do not add up"));
    }
    reasons
}

fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a delivery of three segments over a leg of 20 ms.
    fn late_by(micros: u64) -> Crossed {
        Crossed {
            source: HostIndex(0),
            destination: HostIndex(1),
            transit: Duration::from_millis(10),
            late: Duration::from_micros(micros),
            segments: 3,
        }
    }

    fn quiet_run() -> (Measurement, MachineUse) {
        let mut meters = Meters::start(Duration::ZERO);
        for _ in 0..1000 {
            meters.note_delivery(&late_by(20));
        }
        meters.span = Duration::from_secs(10);
        meters.cpu = Duration::from_secs(2);
        let measurement = Measurement {
            meters,
            counters: Counters { total: Default::default(), links: Vec::new() },
            ring_drops: RingDrops::default(),
            urgency: Urgency::Ordinary,
            arena_bytes: 0,
        };
        let machine = MachineUse {
            before: MachineMark {
                cpu: MachineCpu { busy: 100, total: 1000 },
                spun: Duration::from_secs(1),
            },
            after: MachineMark {
                cpu: MachineCpu { busy: 1000, total: 2000 },
                spun: Duration::from_secs(5),
            },
            tcp_memory: Some(TcpMemory { used: 10, pressure: 100 }),
            programs: None,
        };
        (measurement, machine)
    }

    fn judge_run(measured: &Measurement, machine: &MachineUse) -> ValidityRecord {
        let name = |host: HostIndex| HostId::new(format!("h{}", host.0)).unwrap();
        judge(measured, machine, name)
    }

    #[test]
    fn quiet_run_is_valid_and_reports_figures() {
        let (measured, machine) = quiet_run();
        let record = judge_run(&measured, &machine);
        assert!(record.valid, "{record}");
        assert_eq!((record.deliveries, record.segments), (1000, 3000));
        assert_eq!((record.legs.len(), record.legs[0].there.deliveries), (1, 1000));
        assert!((record.lateness_us_p99 - 20.0).abs() < 0.5, "{}", record.lateness_us_p99);
        assert!((record.emulator_cpu_ratio - 0.2).abs() < 1e-9);
        assert!((record.machine_busy_ratio - 0.5).abs() < 1e-9);
    }

    #[test]
    fn each_broken_bound_makes_a_run_invalid_and_is_named() {
        type Spoil = fn(&mut Measurement, &mut MachineUse);
        let spoils: [(Spoil, &str); 8] = [
            (
                |m, _| (0..200).for_each(|_| m.meters.note_delivery(&late_by(3000))),
                "late deliveries",
            ),
            (|m, _| m.meters.note_gap(Duration::from_millis(60)), "stood still"),
            (|m, _| m.meters.cpu = Duration::from_secs(8), "of a CPU"),
            (|_, machine| machine.after.spun = Duration::from_secs(1), "busy"),
            (|m, _| m.ring_drops.add(3, 0), "3 packets lost before"),
            (|m, _| m.meters.write_errors = 2, "2 deliveries"),
            (|_, machine| machine.tcp_memory = Some(TcpMemory { used: 9, pressure: 9 }), "memory"),
            (|m, _| m.counters.total.entered = 5, "add up"),
        ];
        for (spoil, word) in spoils {
            let (mut measured, mut machine) = quiet_run();
            spoil(&mut measured, &mut machine);
            let record = judge_run(&measured, &machine);
            assert!(!record.valid && record.reasons.len() == 1, "{word}: {record}");
            assert!(record.reasons[0].contains(word), "{word}: {record}");
        }
    }

    #[test]
    fn busy_machine_is_judged_by_what_programs_waited() {
        let (measured, mut machine) = quiet_run();
        machine.after.spun = Duration::from_secs(1);
        let mut judge_waits = |waited_ms, busiest_s| {
            machine.programs = Some(ProgramUse {
                waited: Duration::from_millis(waited_ms),
                busiest: Duration::from_secs(busiest_s),
            });
            judge_run(&measured, &machine)
        };
        let quick = judge_waits(20, 6);
        assert!(quick.valid && quick.program_wait_us == Some(20.0), "{quick}");
        // Of the chain's 500 deliveries each is late by 20 us and eight waits.
        let deviation_ms = 0.16 * 500_f64.sqrt();
        assert!((quick.error.error_ms - 90.0 - 3.0 * deviation_ms).abs() < 1e-2, "{quick}");
        let slow = judge_waits(500, 6);
        assert!(slow.reasons[0].starts_with("late deliveries and waits for a CPU"), "{slow}");
        let bound_by_cpu = judge_waits(20, 8);
        assert!(bound_by_cpu.reasons[0].contains("ran or waited 0.80"), "{bound_by_cpu}");
        machine.after.spun = Duration::from_secs(5);
        let idle = judge_run(&measured, &machine);
        assert!(idle.valid && (idle.error.error_ms - 10.0).abs() < 1e-2, "{idle}");
    }

    #[test]
    fn short_run_is_judged_by_losses_only() {
        let (mut measured, mut machine) = quiet_run();
        measured.meters = Meters::start(Duration::ZERO);
        measured.meters.span = Duration::from_millis(7);
        measured.meters.cpu = Duration::from_millis(6);
        machine.after.cpu = MachineCpu { busy: 101, total: 1001 };
        let record = judge_run(&measured, &machine);
        assert!(record.valid, "{record}");
        assert!(record.to_string().starts_with("nothing measured yet: "), "{record}");
        measured.ring_drops.add(1, 0);
        let record = judge_run(&measured, &machine);
        assert!(record.to_string().starts_with("INVALID: "), "{record}");
    }
}
