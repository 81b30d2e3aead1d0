//! `rt-ramp`: the time of 1 MB, compared with a round trip and its time on the wire.
//!
//! Windows on SYN and SYN-ACK are not scaled: a sender that dials knows 64 KB of the receiver's
//! window until the first acknowledgement, however large its own initial window is. Only when the
//! receiver dials, with a buffer that is large before, can a first flight be as large as the path.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use serde::Deserialize;
use tradewind_lab::{LabError, LabOptions};
use tradewind_net::initial_window::InitialWindows;
use tradewind_net::pacing;
use tradewind_net::tcp::SocketOptions;
use tradewind_units::time::{as_millis_f64, as_text};
use tradewind_units::{Bandwidth, Bytes, Segments};

use super::arm::{Arm, Start, one};
use super::{host, site_text, topology, unprepare};
use crate::harness::carry::{CarryError, Watch, carry};
use crate::harness::checked::Checked;
use crate::harness::{
    Experiment, ExperimentError, Finding, LabContext, Observer, ProcessError, Record, Row,
    RunOptions, Runs, ScenarioError, from_toml, mean, repeats,
};

/// Bytes on the wire for each byte of payload: a packet of 1500 bytes carries 1448.
const WIRE_SHARE: f64 = 1500.0 / 1448.0;
/// Share of the ideal within which a jump must come.
const WITHIN: f64 = 0.15;
/// Bytes of the connection that is learned from: some fifteen seconds at the path's rate, a dozen
/// samples and more, after which little is left of what slow start showed.
const TRAIN_BYTES: u64 = 360_000_000;
/// Time between two samples of it: the daemon's default.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const SETTLE: Duration = Duration::from_millis(300);
/// Longest silence of a transfer.
const QUIET: Duration = Duration::from_secs(20);

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    rate: Bandwidth,
    #[serde(with = "as_text")]
    rtt: Duration,
    bytes: Bytes,
    c_max: Segments,
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        if !(1..=3_000_000).contains(&scenario.bytes.as_u64()) || scenario.rtt.is_zero() {
            let what = "bytes: 1 B to 3 MB, written at once; rtt: above zero".to_owned();
            return Err(ScenarioError::Inconsistent { what });
        }
        Ok(scenario)
    }

    /// Returns the milliseconds of a round trip and the time on the wire.
    fn ideal_ms(&self) -> f64 {
        as_millis_f64(self.rtt) + self.wire_ms()
    }

    fn wire_ms(&self) -> f64 {
        self.bytes.as_u64() as f64 * WIRE_SHARE / self.rate.as_bytes_per_s() * 1e3
    }
}

/// Receivers: with large buffers, and with Linux's own.
const RECEIVERS: [&str; 2] = ["prepared", "unprepared"];

/// Measured cases, in order.
const CASES: [&str; 5] = [
    "receiver dials, prepared, paced",
    "receiver dials, prepared, default window",
    "receiver dials, unprepared, paced",
    "sender dials, prepared, paced",
    "sender dials, prepared, default window",
];

/// Milliseconds from the end of the handshake, by case.
struct Found {
    ms: [f64; 5],
    learned_mbps: f64,
    /// Window, in segments, and rate, in Mbit/s, of the connection that was learned from, at the
    /// last sample.
    trained: [f64; 2],
}

/// Runs the experiment.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let windows = InitialWindows::attach().map_err(LabError::from).map_err(ProcessError::from)?;
    let seeds = scenario.runs.seeds(options);
    let step = "five methods of starting";
    let completed = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        once(&scenario, &windows, *seed, options, checked)
    })?;
    Ok(completed.record(|all, options| {
        let Scenario { name, assumptions, runs, .. } = &scenario;
        let mut record = Record::of_runs(name, assumptions, runs, options);
        rows(&scenario, all, &mut record);
        record
    }))
}

fn once(
    scenario: &Scenario,
    windows: &InitialWindows,
    seed: u64,
    options: &RunOptions,
    checked: &mut Checked,
) -> Result<Found, ProcessError> {
    let text = text(scenario, seed);
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let topology = topology(&text, &scenario.name)?;
    let context = LabContext::start(&topology, &lab, &options.program, &options.stop)?;
    unprepare(&context.lab, &host(RECEIVERS[1]))?;
    context.lab.reset_validity()?;
    let arm = |start, to| {
        let ends = (host("sender"), host(to));
        Arm::new(&context, windows, start, scenario.c_max, ends)
    };
    let bytes = scenario.bytes.as_u64();
    let rtt_ms = as_millis_f64(scenario.rtt);
    let pull = |arm: &mut Arm<'_>| -> Result<f64, ProcessError> {
        let done = one(arm.burst(bytes, &[Duration::ZERO], SETTLE)?);
        Ok(as_millis_f64(done.fct) - rtt_ms)
    };
    let mut paced = arm(Start::Paced, RECEIVERS[0])?;
    // The path to the unprepared receiver is like the prepared one's, and is learned as well: any
    // difference is due to its receiver.
    let mut unprepared = arm(Start::Paced, RECEIVERS[1])?;
    let last = paced.train_by_bulk(TRAIN_BYTES, LOOK_EVERY, &mut unprepared, SETTLE)?;
    let window = last.and_then(|info| info.congestion_window).map_or(0, Segments::as_u32);
    let rate = last.and_then(|info| info.delivery_rate).map_or(0.0, Bandwidth::as_mbps);
    let mut default = arm(Start::Default, RECEIVERS[0])?;
    let learned_mbps = paced.learned_mbps().unwrap_or(0.0);
    let ms = [
        pull(&mut paced)?,
        pull(&mut default)?,
        pull(&mut unprepared)?,
        push(&context, windows, &mut paced, bytes)? - rtt_ms,
        push(&context, windows, &mut default, bytes)? - rtt_ms,
    ];
    let trained = [f64::from(window), rate];
    checked.add(&format!("seed {seed}"), context.lab.validity()?.reasons);
    Ok(Found { ms, learned_mbps, trained })
}

fn text(scenario: &Scenario, seed: u64) -> String {
    let (rtt, rate) = (as_millis_f64(scenario.rtt), scenario.rate);
    let mut text = format!("seed = {seed}\n[default.host]\ncongestion_control = \"cubic\"\n");
    for name in ["sender", RECEIVERS[0], RECEIVERS[1]] {
        text += &site_text(name);
    }
    for receiver in RECEIVERS {
        text += &format!(
            "[[pair]]\nbetween = [\"sender\", \"{receiver}\"]\n\
             rtt = \"{rtt} ms\"\nrate = \"{rate}\"\n"
        );
    }
    text
}

/// Sends when the sender dials; returns the milliseconds from `connect` to the last byte.
fn push(
    context: &LabContext,
    windows: &InitialWindows,
    arm: &mut Arm<'_>,
    bytes: u64,
) -> Result<f64, ProcessError> {
    let given = arm.give();
    let address = SocketAddr::new(IpAddr::V4(context.lab.address_v4(&arm.to)?), 0);
    let failed = |what, source| {
        let source = CarryError::Io { what, address, source };
        ProcessError::Carry { flow: "push".to_owned(), source }
    };
    let listener = context.lab.enter(&arm.to, || TcpListener::bind(address))?;
    let listener = listener.map_err(|source| failed("listen at", source))?;
    let to = listener.local_addr().map_err(|source| failed("listen at", source))?;
    let new = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = context.lab.enter(&arm.from, new)?;
    let socket = socket.map_err(|source| failed("make a socket for", source))?;
    let initial_window = given.window.map(|window| (windows.clone(), window));
    let options = SocketOptions { initial_window, ..SocketOptions::default() };
    options.apply(&socket).map_err(|refused| failed("set up", std::io::Error::other(refused)))?;
    if let Some((rate, _)) = given.paced {
        pacing::cap(&socket, rate).map_err(|source| failed("pace", source))?;
    }
    let carried = carry(socket, to, &listener, bytes, 1, QUIET, &Watch::default())
        .map_err(|source| ProcessError::Carry { flow: "push".to_owned(), source })?;
    std::thread::sleep(SETTLE);
    Ok(as_millis_f64(carried.fct))
}

fn rows(scenario: &Scenario, all: &[Found], record: &mut Record) {
    let values = |case: usize| all.iter().map(|found| found.ms[case]).collect::<Vec<f64>>();
    for (case, name) in CASES.iter().enumerate() {
        let note = match case {
            0..=2 => "ideal: a round trip and the time on the wire",
            _ => "ideal: half a round trip and the time on the wire",
        };
        record.rows.push(Row::of(name, None, &values(case), "ms", note));
    }
    let learned: Vec<f64> = all.iter().map(|found| found.learned_mbps).collect();
    record.rows.push(Row::of(
        "learned rate",
        None,
        &learned,
        "Mbit/s",
        "payload; 0.85 of it is used",
    ));
    for (place, what, unit) in [(0, "window", "segments"), (1, "rate", "Mbit/s")] {
        let values: Vec<f64> = all.iter().map(|found| found.trained[place]).collect();
        let case = format!("{what} of the connection that was learned from");
        record.rows.push(Row::of(&case, None, &values, unit, "at the last look"));
    }
    let ideal = scenario.ideal_ms();
    let half = ideal - as_millis_f64(scenario.rtt) / 2.0;
    record.rows.push(Row::of("ideal, receiver dials", None, &[ideal], "ms", "RTT + size/rate"));
    record.rows.push(Row::of("ideal, sender dials", None, &[half], "ms", "RTT/2 + size/rate"));
    let [pulled, by_default, unprepared, pushed, _] =
        [0, 1, 2, 3, 4].map(|case| mean(&values(case)));
    record.findings.push(Finding::new(
        "both sides prepared and the receiver dialling: within 15 % of RTT + size/rate",
        pulled <= ideal * (1.0 + WITHIN),
        format!(
            "{pulled:.0} ms, {:.1} % above {ideal:.1} ms; by the default window {by_default:.0} ms",
            100.0 * (pulled / ideal - 1.0)
        ),
    ));
    let rtt = as_millis_f64(scenario.rtt);
    record.findings.push(Finding::new(
        "where the sender dials, its first flight ends at 64 KB: a round trip more",
        pushed - half > 0.7 * rtt,
        format!(
            "{pushed:.0} ms where {half:.0} would be ideal: {:.1} round trips more",
            (pushed - half) / rtt
        ),
    ));
    record.findings.push(Finding::new(
        "an unprepared receiver holds the first flight to 64 KB, too",
        unprepared - ideal > 0.7 * rtt,
        format!("{unprepared:.0} ms: {:.1} round trips more", (unprepared - ideal) / rtt),
    ));
}
