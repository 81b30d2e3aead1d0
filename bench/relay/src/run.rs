//! The order of the benchmark: the sweeps of HAProxy's settings and of ours, then rounds of
//! measurements in turns.

use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tradewind_model::statistics::{RatioEstimate, median, ratio};
use tradewind_net::{affinity, capability};

use crate::access::Keys;
use crate::measure::Measurement;
use crate::place::Place;
use crate::server::{self, Counts};
use crate::subject::{
    Group, HaproxySettings, Programs, RelaySettings, Running, Settings, Start, Subject,
};

/// CPU pinning of proxy and load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Load on the first CPU, the proxy on the second.
    Pinned,
    /// The kernel chooses.
    Unpinned,
}

/// The number and length of the measurements.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Plan {
    rounds: u32,
    stream_window_s: f64,
    connect_window_s: f64,
    exchanges: usize,
    idle_sessions: usize,
    /// The number of tries of each setting; the next field is the length of each.
    sweep_turns: u32,
    sweep_window_s: f64,
}

impl Plan {
    pub(crate) fn new(quick: bool, rounds: Option<u32>, window_s: Option<f64>) -> Self {
        if quick {
            Self {
                rounds: rounds.unwrap_or(3),
                stream_window_s: window_s.unwrap_or(0.4),
                connect_window_s: window_s.unwrap_or(0.4),
                exchanges: 1000,
                idle_sessions: 200,
                sweep_turns: 1,
                sweep_window_s: 0.3,
            }
        } else {
            Self {
                rounds: rounds.unwrap_or(10),
                stream_window_s: window_s.unwrap_or(1.5),
                connect_window_s: window_s.unwrap_or(1.5),
                exchanges: 5000,
                idle_sessions: 1000,
                sweep_turns: 3,
                sweep_window_s: 1.0,
            }
        }
    }
}

/// The number of streams in measurements of several.
const STREAMS: usize = 8;

/// Divisor of the number of exchanges beside streams: each takes many times as long as on an idle
/// proxy.
const EXCHANGES_BESIDE_SHARE: usize = 5;

/// One kind of measurement; each starts its subjects anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Task {
    /// Throughput of one stream.
    Stream,
    /// Throughput of eight streams.
    Streams,
    /// Short sessions.
    Connect,
    /// Latency of exchanges.
    Exchange,
    /// Latency of exchanges beside eight streams.
    Beside,
    /// Memory of idle sessions.
    Idle,
    /// Answers that come early, of a server that resets while its client still uploads.
    #[value(name = "early-answer")]
    EarlyAnswer,
}

const TASKS: [Task; 7] = [
    Task::Stream,
    Task::Streams,
    Task::Connect,
    Task::Exchange,
    Task::Beside,
    Task::Idle,
    Task::EarlyAnswer,
];

impl Task {
    /// Returns whether it is measured of a subject.
    fn is_of(self, subject: Subject) -> bool {
        match subject {
            Subject::ChainTraced => self == Self::Connect,
            _ => subject.group() != Group::Three || self == Self::EarlyAnswer,
        }
    }
}

/// One figure of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    ThroughputOneGbps,
    CpuOneSPerGb,
    ThroughputEightGbps,
    CpuEightSPerGb,
    ConnectionsPerS,
    CpuUsPerConnection,
    ExchangeP50Us,
    ExchangeP99Us,
    AddedP50Us,
    AddedP99Us,
    BesideP50Us,
    BesideP99Us,
    IdleMemoryMbPer1000,
    EarlyAnswers,
}

impl Figure {
    /// All figures in the order of the table.
    pub(crate) const ALL: [Self; 14] = [
        Self::ThroughputOneGbps,
        Self::CpuOneSPerGb,
        Self::ThroughputEightGbps,
        Self::CpuEightSPerGb,
        Self::ConnectionsPerS,
        Self::CpuUsPerConnection,
        Self::ExchangeP50Us,
        Self::ExchangeP99Us,
        Self::AddedP50Us,
        Self::AddedP99Us,
        Self::BesideP50Us,
        Self::BesideP99Us,
        Self::IdleMemoryMbPer1000,
        Self::EarlyAnswers,
    ];

    /// Returns the label in the table, with its unit.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::ThroughputOneGbps => "throughput, 1 stream, Gbit/s",
            Self::CpuOneSPerGb => "  CPU s per GB",
            Self::ThroughputEightGbps => "throughput, 8 streams, Gbit/s",
            Self::CpuEightSPerGb => "  CPU s per GB",
            Self::ConnectionsPerS => "short sessions per s",
            Self::CpuUsPerConnection => "  CPU us per session",
            Self::ExchangeP50Us => "64 B exchange p50, us",
            Self::ExchangeP99Us => "64 B exchange p99, us",
            Self::AddedP50Us => "  added to direct, p50, us",
            Self::AddedP99Us => "  added to direct, p99, us",
            Self::BesideP50Us => "64 B beside 8 streams p50, us",
            Self::BesideP99Us => "64 B beside 8 streams p99, us",
            Self::IdleMemoryMbPer1000 => "PSS of 1,000 idle sessions, MB",
            Self::EarlyAnswers => "early answers seen, of 20",
        }
    }
}

/// All values of one figure of one subject in one mode, by round.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) mode: Mode,
    pub(crate) figure: Figure,
    pub(crate) subject: Subject,
    pub(crate) median: f64,
    pub(crate) values: Vec<f64>,
}

/// The ratio of one subject's figure to that of the subject that it is compared with.
#[derive(Debug, Serialize)]
pub(crate) struct Comparison {
    pub(crate) mode: Mode,
    pub(crate) figure: Figure,
    pub(crate) subject: Subject,
    #[serde(flatten)]
    pub(crate) estimate: RatioEstimate,
}

/// A proxy's settings and their results in the sweep: medians of the turns.
#[derive(Debug, Serialize)]
pub(crate) struct Swept<S> {
    pub(crate) mode: Mode,
    settings: S,
    stream_1_gbps: f64,
    stream_8_gbps: f64,
    connections_per_s: f64,
}

/// A measurement that failed; its round is discarded for all subjects.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    mode: Mode,
    pub(crate) subject: Subject,
    task: Task,
    round: u32,
    error: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mode, subject, task, round, error } = self;
        write!(f, "{mode:?}, round {round}: {task:?} by way of {} failed: {error}", subject.name())
    }
}

/// The results of the whole benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    schema_version: u32,
    pub(crate) kernel: String,
    pub(crate) cpus: usize,
    pub(crate) programs: Vec<String>,
    pub(crate) plan: Plan,
    pub(crate) modes: Vec<Mode>,
    /// Subjects that could not take part, and the reasons.
    pub(crate) absent: Vec<(Subject, String)>,
    /// HAProxy's settings that were tried.
    pub(crate) haproxy_sweep: Vec<Swept<HaproxySettings>>,
    /// The best of them by mode: for one stream, for eight, and for all else.
    pub(crate) haproxy_best: Vec<(Mode, [HaproxySettings; 3])>,
    /// The same for our relay.
    pub(crate) relay_sweep: Vec<Swept<RelaySettings>>,
    pub(crate) relay_best: Vec<(Mode, [RelaySettings; 3])>,
    /// Measurements that failed.
    pub(crate) failures: Vec<Failure>,
    pub(crate) series: Vec<Series>,
    pub(crate) ratios_to_haproxy: Vec<Comparison>,
    /// The ratios of the encrypted and of the traced chain's figures to the plain chain's.
    pub(crate) ratios_to_plain: Vec<Comparison>,
}

impl Results {
    /// Returns whether subjects of this table took part.
    pub(crate) fn have(&self, group: Group) -> bool {
        self.series.iter().any(|series| series.subject.group() == group)
    }
}

impl Plan {
    /// Returns the number of rounds.
    pub(crate) const fn rounds(&self) -> u32 {
        self.rounds
    }
}

/// Runs the plan in each of `modes`; all tasks when none is named.
pub(crate) fn run(
    plan: &Plan,
    modes: &[Mode],
    tasks: &[Task],
    programs: &Programs,
) -> anyhow::Result<Results> {
    let cpus = affinity::allowed()?;
    let missing = |subject: Subject| Some((subject, programs.missing(subject)?.to_owned()));
    let absent: Vec<_> = Subject::ALL.into_iter().filter_map(missing).collect();
    for (subject, why) in &absent {
        eprintln!("{} is absent: {why}", subject.name());
    }
    let mut results = Results {
        schema_version: 1,
        kernel: capability::kernel_release(),
        cpus: cpus.len(),
        programs: programs.versions(),
        plan: *plan,
        modes: modes.to_vec(),
        absent,
        haproxy_sweep: Vec::new(),
        haproxy_best: Vec::new(),
        relay_sweep: Vec::new(),
        relay_best: Vec::new(),
        failures: Vec::new(),
        series: Vec::new(),
        ratios_to_haproxy: Vec::new(),
        ratios_to_plain: Vec::new(),
    };
    for &mode in modes {
        let (load_cpus, proxy_cpus) = match (mode, cpus.as_slice()) {
            (Mode::Pinned, [first, second, ..]) => (vec![*first], vec![*second]),
            (Mode::Pinned, _) => anyhow::bail!("pinning needs two CPUs, {} are there", cpus.len()),
            (Mode::Unpinned, all) => (all.to_vec(), all.to_vec()),
        };
        affinity::restrict(&load_cpus)?;
        let place = Place::new()?;
        let stage = Stage {
            plan: *plan,
            mode,
            counts: server::start(&place.server)?,
            place,
            keys: Keys::new()?,
            programs,
            tasks: if tasks.is_empty() { &TASKS } else { tasks },
            proxy_cpus,
        };
        stage.run(&mut results).with_context(|| format!("{mode:?}"))?;
        affinity::restrict(&cpus)?;
    }
    Ok(results)
}

/// Everything that the measurements of one mode need.
struct Stage<'a> {
    plan: Plan,
    mode: Mode,
    place: Place,
    counts: std::sync::Arc<Counts>,
    keys: Keys,
    programs: &'a Programs,
    tasks: &'a [Task],
    proxy_cpus: Vec<usize>,
}

/// The figures of one measurement of one subject.
type Values = Vec<(Figure, f64)>;

impl Stage<'_> {
    fn run(&self, results: &mut Results) -> anyhow::Result<()> {
        let present = |subject: &Subject| self.programs.missing(*subject).is_none();
        let subjects: Vec<Subject> = Subject::ALL.into_iter().filter(present).collect();
        let best = self.sweep(results)?;
        let mut collected: Vec<(Subject, Figure, Vec<f64>)> = Vec::new();
        for round in 0..self.plan.rounds {
            eprintln!("{:?}: round {} of {}", self.mode, round + 1, self.plan.rounds);
            for &task in self.tasks {
                let takes_part = |subject: &Subject| task.is_of(*subject);
                let mut turn: Vec<_> = subjects.iter().copied().filter(takes_part).collect();
                let length = turn.len().max(1);
                turn.rotate_left(round as usize % length);
                match self.take_turns(&turn, task, best[class(task)]) {
                    Ok(mut values) => {
                        add_latency(&mut values);
                        collect(&mut collected, values);
                    }
                    // The values of a round are compared in pairs, so one that is missing discards
                    // the others.
                    Err((subject, error)) => {
                        let failure = Failure {
                            mode: self.mode,
                            subject,
                            task,
                            round: round + 1,
                            error: format!("{error:#}"),
                        };
                        eprintln!("{failure}");
                        results.failures.push(failure);
                    }
                }
            }
        }
        self.conclude(collected, results);
        Ok(())
    }

    /// Takes one measurement of each subject in `turn`.
    fn take_turns(
        &self,
        turn: &[Subject],
        task: Task,
        settings: Settings,
    ) -> Result<Vec<(Subject, Values)>, (Subject, anyhow::Error)> {
        let one = |&subject: &Subject| {
            let values = self.measure(subject, task, settings).map_err(|error| (subject, error))?;
            Ok((subject, values))
        };
        turn.iter().map(one).collect()
    }

    /// Tries settings of the proxies that are swept, and keeps the best for each class of tasks.
    fn sweep(&self, results: &mut Results) -> anyhow::Result<[Settings; 3]> {
        let mut best = [Settings::usual(self.proxy_cpus.len()); 3];
        if self.tasks == [Task::EarlyAnswer] {
            // It asks for no speed.
            return Ok(best);
        }
        if self.programs.missing(Subject::Haproxy).is_none() {
            let tried = self.try_all(Subject::Haproxy, HaproxySettings::all(), |settings| {
                Settings { haproxy: settings, ..best[0] }
            })?;
            let found = best_of(&tried);
            best.iter_mut().zip(found).for_each(|(best, found)| best.haproxy = found);
            results.haproxy_best.push((self.mode, found));
            results.haproxy_sweep.extend(tried);
        }
        if self.programs.missing(Subject::Tradewind).is_none() {
            let all = (1..=self.proxy_cpus.len()).map(|workers| RelaySettings { workers });
            let tried = self.try_all(Subject::Tradewind, all, |settings| Settings {
                relay: settings,
                ..best[0]
            })?;
            let found = best_of(&tried);
            best.iter_mut().zip(found).for_each(|(best, found)| best.relay = found);
            results.relay_best.push((self.mode, found));
            results.relay_sweep.extend(tried);
        }
        Ok(best)
    }

    /// Measures one proxy with each of its settings.
    fn try_all<S: Copy>(
        &self,
        subject: Subject,
        all: impl Iterator<Item = S>,
        with: impl Fn(S) -> Settings,
    ) -> anyhow::Result<Vec<Swept<S>>> {
        eprintln!("{:?}: trying settings of {}", self.mode, subject.name());
        let all: Vec<S> = all.collect();
        let mut turns: Vec<Vec<[f64; 3]>> = vec![Vec::new(); all.len()];
        for _ in 0..self.plan.sweep_turns {
            for (&settings, turns) in all.iter().zip(&mut turns) {
                turns.push(self.try_once(subject, with(settings))?);
            }
        }
        let swept = |(settings, turns): (S, Vec<[f64; 3]>)| {
            let of = |task: usize| median(&turns.iter().map(|turn| turn[task]).collect::<Vec<_>>());
            Swept {
                mode: self.mode,
                settings,
                stream_1_gbps: of(0),
                stream_8_gbps: of(1),
                connections_per_s: of(2),
            }
        };
        Ok(all.into_iter().zip(turns).map(swept).collect())
    }

    /// Measures one proxy: Gbit/s of one stream and of several, and connections a second.
    fn try_once(&self, subject: Subject, settings: Settings) -> anyhow::Result<[f64; 3]> {
        let window = Duration::from_secs_f64(self.plan.sweep_window_s);
        let running = Running::start(subject, settings, self.start())?;
        let bench = self.bench(&running);
        // Settings with which a session breaks off count as zero.
        Ok([
            bench.stream(1, window).map_or(0.0, |streamed| streamed.gbps),
            bench.stream(STREAMS, window).map_or(0.0, |streamed| streamed.gbps),
            bench.connect(window).map_or(0.0, |connected| connected.per_s),
        ])
    }

    fn start(&self) -> Start<'_> {
        Start {
            programs: self.programs,
            place: &self.place,
            keys: &self.keys,
            cpus: &self.proxy_cpus,
        }
    }

    fn bench<'a>(&'a self, running: &'a Running) -> Measurement<'a> {
        Measurement { place: &self.place, keys: &self.keys, counts: &self.counts, running }
    }

    fn measure(&self, subject: Subject, task: Task, settings: Settings) -> anyhow::Result<Values> {
        let running = Running::start(subject, settings, self.start())?;
        let bench = self.bench(&running);
        let mut values = Values::new();
        match task {
            Task::Stream | Task::Streams => {
                let (streams, rate, cpu) = match task {
                    Task::Stream => (1, Figure::ThroughputOneGbps, Figure::CpuOneSPerGb),
                    _ => (STREAMS, Figure::ThroughputEightGbps, Figure::CpuEightSPerGb),
                };
                let window = Duration::from_secs_f64(self.plan.stream_window_s);
                let streamed = bench.stream(streams, window)?;
                values.push((rate, streamed.gbps));
                values.extend(streamed.cpu_s_per_gb.map(|value| (cpu, value)));
            }
            Task::Connect => {
                let window = Duration::from_secs_f64(self.plan.connect_window_s);
                let connected = bench.connect(window)?;
                values.push((Figure::ConnectionsPerS, connected.per_s));
                values.extend(connected.cpu_us.map(|value| (Figure::CpuUsPerConnection, value)));
            }
            Task::Exchange => {
                let exchanged = bench.exchange(self.plan.exchanges)?;
                values.push((Figure::ExchangeP50Us, exchanged.p50_us));
                values.push((Figure::ExchangeP99Us, exchanged.p99_us));
            }
            Task::Beside => {
                let exchanges = self.plan.exchanges / EXCHANGES_BESIDE_SHARE;
                let exchanged = bench.exchange_beside(STREAMS, exchanges)?;
                values.push((Figure::BesideP50Us, exchanged.p50_us));
                values.push((Figure::BesideP99Us, exchanged.p99_us));
            }
            Task::Idle => {
                let memory = bench.idle_memory(self.plan.idle_sessions)?;
                let mb = memory.map(|bytes| bytes.as_u64() as f64 / 1e6);
                values.extend(mb.map(|value| (Figure::IdleMemoryMbPer1000, value)));
            }
            Task::EarlyAnswer => {
                values.push((Figure::EarlyAnswers, bench.early_answers()? as f64));
            }
        }
        Ok(values)
    }

    fn conclude(&self, collected: Vec<(Subject, Figure, Vec<f64>)>, results: &mut Results) {
        for figure in Figure::ALL {
            let of = |wanted: Subject| {
                let found = collected.iter().find(|(s, f, _)| (*s, *f) == (wanted, figure));
                found.map(|(_, _, values)| values.as_slice())
            };
            for (subject, base) in [
                (Subject::Tradewind, Subject::Haproxy),
                (Subject::ChainTls, Subject::Chain),
                (Subject::ChainTraced, Subject::Chain),
            ] {
                // A count, which may be none, has no ratio.
                let pair = of(subject).zip(of(base)).filter(|_| figure != Figure::EarlyAnswers);
                if let Some(estimate) = pair.and_then(|(ours, theirs)| ratio(ours, theirs)) {
                    let ratios = match base {
                        Subject::Haproxy => &mut results.ratios_to_haproxy,
                        _ => &mut results.ratios_to_plain,
                    };
                    ratios.push(Comparison { mode: self.mode, figure, subject, estimate });
                }
            }
        }
        for (subject, figure, values) in collected {
            let median = median(&values);
            results.series.push(Series { mode: self.mode, figure, subject, median, values });
        }
    }
}

/// Returns the class of a task: one stream, eight, or all else. Each class has settings of its own.
const fn class(task: Task) -> usize {
    match task {
        Task::Stream => 0,
        Task::Streams | Task::Beside => 1,
        Task::Connect | Task::Exchange | Task::Idle | Task::EarlyAnswer => 2,
    }
}

/// Returns the settings with the best results, by class.
fn best_of<S: Copy>(tried: &[Swept<S>]) -> [S; 3] {
    let reached: [fn(&Swept<S>) -> f64; 3] =
        [|s| s.stream_1_gbps, |s| s.stream_8_gbps, |s| s.connections_per_s];
    reached.map(|reached| {
        let best = tried.iter().max_by(|a, b| reached(a).total_cmp(&reached(b)));
        best.expect("some settings are tried").settings
    })
}

/// Adds each proxy's latency above the bare path's of the same round.
fn add_latency(values: &mut [(Subject, Values)]) {
    let look = |values: &Values, wanted: Figure| {
        values.iter().find(|(figure, _)| *figure == wanted).map(|(_, value)| *value)
    };
    let direct = values
        .iter()
        .find(|(subject, _)| *subject == Subject::Direct)
        .map(|(_, v)| (look(v, Figure::ExchangeP50Us), look(v, Figure::ExchangeP99Us)));
    let Some((Some(p50), Some(p99))) = direct else { return };
    for (subject, values) in values {
        if *subject == Subject::Direct {
            continue;
        }
        for (from, to, base) in [
            (Figure::ExchangeP50Us, Figure::AddedP50Us, p50),
            (Figure::ExchangeP99Us, Figure::AddedP99Us, p99),
        ] {
            let added = look(values, from).map(|value| (to, value - base));
            values.extend(added);
        }
    }
}

fn collect(collected: &mut Vec<(Subject, Figure, Vec<f64>)>, measured: Vec<(Subject, Values)>) {
    for (subject, values) in measured {
        for (figure, value) in values {
            match collected.iter_mut().find(|(s, f, _)| (*s, *f) == (subject, figure)) {
                Some((_, _, series)) => series.push(value),
                None => collected.push((subject, figure, vec![value])),
            }
        }
    }
}
