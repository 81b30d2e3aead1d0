//! Effects other than delay: content, changes, sizes, marks; and the record itself.

use std::thread;
use std::time::{Duration, Instant};

use tradewind_lab::{Lab, LabError, LabOptions};
use tradewind_net::sysctl;
use tradewind_units::HostId;
use tradewind_wan::{DropCause, PairChange, Tally};

use crate::common::check::{Bound, Figure, Findings};
use crate::common::traffic::{self, Train, Version};
use crate::common::{host, median, start, two_sites};

fn ends() -> (HostId, HostId) {
    (host("a"), host("b"))
}

/// Returns a figure that is 1 when `holds`.
pub(crate) fn truth(what: &str, holds: bool) -> Figure {
    Figure {
        what: what.to_owned(),
        expected: 1.0,
        measured: f64::from(u8::from(holds)),
        unit: "truth",
        bound: Bound::Within(0.0),
    }
}

/// Returns the counts of the network as a whole.
fn total(lab: &Lab) -> Result<Tally, LabError> {
    Ok(lab.counters()?.total)
}

/// Checks loss, reordering, duplication and a small queue: thousands of splits, and unchanged
/// content.
pub(crate) fn integrity() -> Result<Findings, LabError> {
    const VOLUME: usize = 16 << 20;
    let path = "rtt = \"4 ms\"\nrate = \"300 Mbit/s\"\nqueue = \"300 kB\"\nloss = 0.002\n\
                duplicate = 0.002\nreorder = { share = 0.002, late_by = \"1 ms\" }";
    let lab = start(&two_sites(path), &LabOptions::default())?;
    let (from, to) = ends();
    let mut figures = Vec::new();
    for (word, version) in [("IPv4", Version::V4), ("IPv6", Version::V6)] {
        let intact = traffic::arrives_intact(&lab, (&from, &to), version, VOLUME)?;
        figures.push(truth(&format!("SHA-256 of {} MiB over {word}", VOLUME >> 20), intact));
    }
    let lost = total(&lab)?.dropped(DropCause::Random);
    figures.push(Figure {
        what: "segments lost meanwhile".to_owned(),
        expected: 20.0,
        measured: lost as f64,
        unit: "segments",
        bound: Bound::AtLeast,
    });
    let errors = lab.enter(&to, tcp_checksum_errors)?;
    figures.push(Figure {
        what: "segments with a wrong checksum".to_owned(),
        expected: 0.0,
        measured: errors as f64,
        unit: "segments",
        bound: Bound::Within(0.0),
    });
    Ok(Findings { figures, records: vec![lab.validity()?] })
}

/// Returns the kernel's own count, on the host where this runs.
fn tcp_checksum_errors() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut pairs = names.split_whitespace().zip(values.split_whitespace());
    let count = pairs.find(|(name, _)| *name == "InCsumErrors");
    count.and_then(|(_, value)| value.parse().ok()).unwrap_or(u64::MAX)
}

pub(crate) fn changes() -> Result<Findings, LabError> {
    let lab = start(&two_sites("rtt = \"80 ms\""), &LabOptions::default())?;
    let (from, to) = ends();
    let mut figures = Vec::new();
    for rtt_ms in [80.0, 10.0, 150.0] {
        let setting = format!("rtt={rtt_ms}ms");
        lab.apply(&PairChange::parse("a,b", [setting.as_str()])?)?;
        let gap = Duration::from_millis(5);
        let trips = traffic::round_trips(&lab, (&from, &to), 9, gap)?;
        let millis: Vec<f64> = trips.iter().map(|trip| trip.as_secs_f64() * 1e3).collect();
        figures.push(Figure {
            what: format!("median round trip after set {setting}"),
            expected: rtt_ms,
            measured: median(&millis),
            unit: "ms",
            bound: Bound::Within(0.5),
        });
    }
    let train = Train { packets: 500, payload: 100, together: 1, gap: Duration::from_micros(200) };
    for (setting, expected) in [("loss=1", 0.0), ("loss=0", 500.0)] {
        lab.apply(&PairChange::parse("a->b", [setting])?)?;
        let arrived = traffic::udp_train(&lab, (&from, &to), train)?;
        figures.push(Figure {
            what: format!("packets of 500 that arrive after set {setting}"),
            expected,
            measured: arrived.iter().filter(|arrived| **arrived).count() as f64,
            unit: "packets",
            bound: Bound::Within(0.0),
        });
    }
    Ok(Findings { figures, records: vec![lab.validity()?] })
}

/// Checks a path narrower than the hosts' devices: the ICMP error must reach TCP.
pub(crate) fn path_mtu() -> Result<Findings, LabError> {
    let lab = start(&two_sites("rtt = \"10 ms\"\nmtu = \"1300 B\""), &LabOptions::default())?;
    let (from, to) = ends();
    let mut figures = Vec::new();
    for (word, version) in [("IPv4", Version::V4), ("IPv6", Version::V6)] {
        let intact = traffic::arrives_intact(&lab, (&from, &to), version, 1 << 20)?;
        figures.push(truth(&format!("1 MiB over {word} through an MTU of 1300"), intact));
    }
    let refused = total(&lab)?.dropped(DropCause::TooBig);
    figures.push(truth("larger packets were refused first", refused > 0));
    Ok(Findings { figures, records: vec![lab.validity()?] })
}

/// Checks that with ECN a queue marks, and nothing is lost.
pub(crate) fn marks() -> Result<Findings, LabError> {
    let path =
        "rtt = \"20 ms\"\nrate = \"100 Mbit/s\"\nqueue = \"2 MB\"\necn_threshold = \"500 kB\"";
    let lab = start(&two_sites(path), &LabOptions::default())?;
    let (from, to) = ends();
    for end in [&from, &to] {
        lab.enter(end, || sysctl::set("net.ipv4.tcp_ecn", "1"))??;
    }
    let span = Duration::from_secs(3);
    let rate = traffic::tcp_rate(&lab, (&from, &to), Duration::from_secs(3), span)?;
    let tally = total(&lab)?;
    let marked = lab.counters()?.links.iter().map(|link| link.tally.marked).sum::<u64>();
    let figures = vec![
        truth("segments were marked", marked > 0),
        truth("none was lost", tally.dropped_total() == 0),
        Figure {
            what: "rate of a lone cubic flow with ECN".to_owned(),
            expected: 100.0 * 1448.0 / 1500.0,
            measured: rate * 8.0 / 1e6,
            unit: "Mbit/s",
            bound: Bound::WithinShare(0.1),
        },
    ];
    Ok(Findings { figures, records: vec![lab.validity()?] })
}

/// Runs the negative control: a machine whose CPUs are all busy must not yield a valid record.
pub(crate) fn busy_machine() -> Result<Findings, LabError> {
    let lab = start(&two_sites("rtt = \"20 ms\"\nrate = \"50 Mbit/s\""), &LabOptions::default())?;
    let (from, to) = ends();
    let span = Duration::from_secs(3);
    let hogs = 2 * thread::available_parallelism().map_or(2, usize::from);
    lab.reset_validity()?;
    thread::scope(|scope| {
        let until = Instant::now() + span;
        for _ in 0..hogs {
            scope.spawn(move || while Instant::now() < until {});
        }
        traffic::tcp_rate(&lab, (&from, &to), Duration::ZERO, span)
    })?;
    let record = lab.validity()?;
    println!("       {record}");
    let figure = truth("the record of a run beside CPU hogs is invalid", !record.valid);
    Ok(Findings { figures: vec![figure], records: Vec::new() })
}
