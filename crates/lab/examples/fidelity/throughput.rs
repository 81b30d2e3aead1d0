//! Times and rates.

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use tradewind_lab::{Lab, LabError, LabOptions, Passage};
use tradewind_units::HostId;

use crate::common::check::{Bound, Figure, Findings};
use crate::common::{host, median, start, traffic};

/// Payload of a full packet: 1500 bytes less the headers of IP and of TCP with time stamps.
const MSS: f64 = 1448.0;
const PACKET: f64 = 1500.0;

/// Returns sites `a0`, `b0`, `a1`, ... with a path between each `a` and its `b`, described by
/// `pair`.
fn disjoint_pairs(settings: &str, count: usize, pair: impl Fn(usize) -> String) -> String {
    let mut text = format!("[default.pair]\nrtt = \"100 ms\"\n{settings}");
    for index in 0..count {
        let path = pair(index);
        write!(
            text,
            "\n[[site]]\nid = \"a{index}\"\n[[site]]\nid = \"b{index}\"\n\
             [[pair]]\nbetween = [\"a{index}\", \"b{index}\"]\n{path}\n"
        )
        .expect("strings take all");
    }
    text
}

/// Returns a section by which only the direction from `a` to `b` is lossy: data is lost, no
/// acknowledgements are.
fn lossy_there(index: usize, loss: f64) -> String {
    format!("[[pair]]\nfrom = \"a{index}\"\nto = \"b{index}\"\nloss = {loss}\n")
}

fn pair(index: usize) -> (HostId, HostId) {
    (host(&format!("a{index}")), host(&format!("b{index}")))
}

fn pairs(count: usize) -> Vec<(HostId, HostId)> {
    (0..count).map(pair).collect()
}

pub(crate) fn round_trips() -> Result<Findings, LabError> {
    const RTT_MS: [u64; 7] = [1, 5, 20, 50, 100, 200, 300];
    let path = |index: usize| format!("rtt = \"{} ms\"", RTT_MS[index]);
    let lab = start(&disjoint_pairs("", RTT_MS.len(), path), &LabOptions::default())?;
    let gap = Duration::from_millis(11);
    let measure = |(from, to): (HostId, HostId)| traffic::round_trips(&lab, (&from, &to), 25, gap);
    let trips = in_parallel(pairs(RTT_MS.len()), &measure)?;
    let figures = trips.iter().zip(RTT_MS).map(|(trips, rtt_ms)| {
        let millis: Vec<f64> = trips.iter().map(|trip| trip.as_secs_f64() * 1e3).collect();
        Figure {
            what: format!("median round trip of {} handshakes", trips.len()),
            expected: rtt_ms as f64,
            measured: median(&millis),
            unit: "ms",
            bound: Bound::Within(0.5),
        }
    });
    Ok(Findings { figures: figures.collect(), records: vec![lab.validity()?] })
}

pub(crate) fn rates() -> Result<Findings, LabError> {
    const RATE_MBPS: [f64; 4] = [10.0, 50.0, 200.0, 100.0];
    // The last one is capped by its own host, by back-pressure.
    let path = |index: usize| match index {
        3 => "rtt = \"20 ms\"".to_owned(),
        _ => format!("rtt = \"20 ms\"\nrate = \"{} Mbit/s\"", RATE_MBPS[index]),
    };
    let host = "[[host]]\nid = \"a3\"\nsite = \"a3\"\negress = \"100 Mbit/s\"\n";
    let lab = start(&disjoint_pairs(host, RATE_MBPS.len(), path), &LabOptions::default())?;
    let span = Duration::from_secs(5);
    let rates = traffic::tcp_rates(&lab, &pairs(4), Duration::from_secs(3), span)?;
    let figures = rates.iter().zip(RATE_MBPS).enumerate().map(|(index, (rate, mbps))| Figure {
        what: match index {
            3 => "IP bytes behind a host's back-pressure cap".to_owned(),
            _ => "IP bytes of a lone cubic flow".to_owned(),
        },
        expected: mbps,
        measured: rate * 8.0 / 1e6 * PACKET / MSS,
        unit: "Mbit/s",
        bound: Bound::WithinShare(0.03),
    });
    Ok(Findings { figures: figures.collect(), records: vec![lab.validity()?] })
}

pub(crate) fn windows() -> Result<Findings, LabError> {
    // Window in bytes and RTT in ms; the second is CloudPilot's.
    const CASES: [(f64, f64); 4] =
        [(500e3, 50.0), (2.875e6, 100.0), (2.875e6, 250.0), (200e3, 40.0)];
    // The rate is far above what the windows allow; without one, whole windows would come at once.
    let mut text = "[default.pair]\nrtt = \"20 ms\"\nrate = \"1 Gbit/s\"\n\
                    [default.host]\ncongestion_control = \"reno\"\n"
        .to_owned();
    for (index, (window, rtt)) in CASES.iter().enumerate() {
        write!(
            text,
            "[[site]]\nid = \"a{index}\"\nwindow = \"{window} B\"\n[[site]]\nid = \"b{index}\"\n\
             [[pair]]\nbetween = [\"a{index}\", \"b{index}\"]\nrtt = \"{rtt} ms\"\n"
        )
        .expect("strings take all");
    }
    let lab = start(&text, &LabOptions::default())?;
    // Windows arrive as bursts, one per round trip: one burst more or less must not matter.
    let (warm_up, span) = (Duration::from_secs(3), Duration::from_secs(7));
    let forward = traffic::tcp_rates(&lab, &pairs(CASES.len()), warm_up, span)?;
    let swapped: Vec<_> = pairs(CASES.len()).into_iter().map(|(from, to)| (to, from)).collect();
    let backward = traffic::tcp_rates(&lab, &swapped, warm_up, span)?;
    let directions = [("from", forward), ("to", backward)];
    let figures = directions.iter().flat_map(|(word, rates)| {
        rates.iter().zip(CASES).map(move |(rate, (window, rtt))| Figure {
            what: format!("{word} a site with {:.3} MB, {rtt} ms", window / 1e6),
            expected: window / rtt * 1e3 * 8.0 / 1e6,
            measured: rate * 8.0 / 1e6,
            unit: "Mbit/s",
            bound: Bound::WithinShare(0.03),
        })
    });
    Ok(Findings { figures: figures.collect(), records: vec![lab.validity()?] })
}

/// Mathis et al. 1997: a reno flow that acknowledges each packet has `sqrt(3/2) * MSS / (RTT *
/// sqrt(p))`.
pub(crate) fn mathis() -> Result<Findings, LabError> {
    // Loss and RTT in ms; several flows each, because the formula gives their mean. Only the ACKs
    // spread a window's packets, so on short paths the flows' bursts would coincide.
    const CASES: [(f64, f64); 3] = [(0.004, 100.0), (0.004, 200.0), (0.012, 100.0)];
    const FLOWS: usize = 6;
    let path = |index: usize| {
        let (loss, rtt) = CASES[index / FLOWS];
        format!("rtt = \"{rtt} ms\"\n{}", lossy_there(index, loss))
    };
    let reno = "[default.host]\ncongestion_control = \"reno\"\n";
    let lab = start(&disjoint_pairs(reno, CASES.len() * FLOWS, path), &LabOptions::default())?;
    let (warm_up, span) = (Duration::from_secs(4), Duration::from_secs(16));
    let rates = traffic::tcp_rates(&lab, &pairs(CASES.len() * FLOWS), warm_up, span)?;
    let figures = rates.chunks(FLOWS).zip(CASES).map(|(rates, (loss, rtt))| Figure {
        what: format!("mean of {FLOWS} flows, loss {loss}, {rtt} ms"),
        expected: 1.5f64.sqrt() * MSS * 8.0 / (rtt * loss.sqrt()) / 1e3,
        measured: rates.iter().sum::<f64>() / FLOWS as f64 * 8.0 / 1e6,
        unit: "Mbit/s",
        bound: Bound::WithinShare(0.2),
    });
    Ok(Findings { figures: figures.collect(), records: vec![lab.validity()?] })
}

/// Compares the same seeds with super-packets and with single packets.
pub(crate) fn single_packets() -> Result<Findings, LabError> {
    const FLOWS: usize = 9;
    let path =
        |index| format!("rtt = \"60 ms\"\nrate = \"30 Mbit/s\"\n{}", lossy_there(index, 0.001));
    let topology = disjoint_pairs("[default.host]\ncongestion_control = \"reno\"\n", FLOWS, path);
    let run = |passage| -> Result<_, LabError> {
        let options = LabOptions { passage, seed: Some(11), ..LabOptions::default() };
        let lab: Lab = start(&topology, &options)?;
        let (warm_up, span) = (Duration::ZERO, Duration::from_secs(12));
        let rates = traffic::tcp_rates(&lab, &pairs(FLOWS), warm_up, span)?;
        Ok((rates, lab.validity()?))
    };
    let (super_rates, super_record) = run(Passage::Super)?;
    let (single_rates, single_record) = run(Passage::Single)?;
    let ratios: Vec<f64> =
        super_rates.iter().zip(&single_rates).map(|(many, one)| many / one).collect();
    let figure = Figure {
        what: format!("median of {FLOWS} paired seeds, reno, loss 0.001"),
        expected: 1.0,
        measured: median(&ratios),
        unit: "ratio",
        bound: Bound::Within(0.02),
    };
    Ok(Findings { figures: vec![figure], records: vec![super_record, single_record] })
}

/// Does `work` for each of `items` at once, and returns the results in their order.
fn in_parallel<I: Send, T: Send>(
    items: Vec<I>,
    work: &(impl Fn(I) -> Result<T, LabError> + Sync),
) -> Result<Vec<T>, LabError> {
    thread::scope(|scope| {
        let running: Vec<_> =
            items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        running.into_iter().map(|worker| worker.join().expect("workers do not panic")).collect()
    })
}
