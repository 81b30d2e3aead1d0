//! Checks of the validity record's bound: transfers with added lateness, and beside programs that
//! use all CPU time.

use std::fmt::Write;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_lab::{AddedLateness, Lab, LabError, LabOptions, ValidityRecord};
use tradewind_units::HostId;

use crate::common::check::{Bound, Figure, Findings};
use crate::common::{host, start};

/// Transfers of each case; the fastest counts, so that a late wake-up of a program does not.
const REPEATS: usize = 3;
/// The error of the time without added lateness. Chosen: a wake-up of a program on a busy CPU.
const OF_THE_MACHINE_MS: f64 = 4.0;

/// A path of one leg, or of two over a relay that copies bytes.
#[derive(Clone, Copy)]
struct Case {
    /// The round-trip times of its legs, in milliseconds.
    rtts_ms: &'static [u64],
    /// Bytes to carry.
    bytes: usize,
}

/// Short and long transfers over short and long paths: slow start alone, and many full windows.
/// The last two hide lateness: the first leg waits for the second.
const CASES: [Case; 6] = [
    Case { rtts_ms: &[10], bytes: 30_000 },
    Case { rtts_ms: &[10], bytes: 8_000_000 },
    Case { rtts_ms: &[50], bytes: 8_000_000 },
    Case { rtts_ms: &[200], bytes: 2_000_000 },
    Case { rtts_ms: &[10, 80], bytes: 200_000 },
    Case { rtts_ms: &[10, 80], bytes: 8_000_000 },
];

/// Numbers of programs that want a CPU beside a transfer.
const HOGS: [usize; 3] = [1, 2, 4];

/// Lateness to add: evenly to all deliveries, and much of it to a few.
const ADDED: [(f64, u64, u64); 4] =
    [(1.0, 1000, 1000), (1.0, 0, 3000), (0.02, 4000, 8000), (1.0, 3000, 6000)];

/// A transfer's time, and its validity record.
#[derive(Clone)]
struct Carried {
    millis: f64,
    record: ValidityRecord,
}

impl Carried {
    fn took(&self) -> Duration {
        Duration::from_secs_f64(self.millis / 1e3)
    }

    /// Returns the bound on the error that the record says.
    fn said_ms(&self, case: &Case) -> f64 {
        self.record.error_over(&hosts(case), self.took()).error_ms
    }

    /// Returns the record, judged by all but that error.
    fn apart_from_the_error(self) -> ValidityRecord {
        let reasons = self.record.reasons_over(&[], self.took());
        ValidityRecord { valid: reasons.is_empty(), reasons, ..self.record }
    }
}

/// Checks that added lateness changes a transfer's time by no more than the validity record says.
pub(crate) fn late_deliveries() -> Result<Findings, LabError> {
    let mut found = Findings { figures: Vec::new(), records: Vec::new() };
    for case in &CASES {
        let in_time = fastest(case, None)?;
        for (share, least, most) in ADDED {
            let [least_late, most_late] = [least, most].map(Duration::from_micros);
            let added = AddedLateness { share, least: least_late, most: most_late };
            let late = fastest(case, Some(added))?;
            found.figures.push(Figure {
                what: format!(
                    "{} kB, {:?} ms, {share} late by {:.1}-{:.1} ms",
                    case.bytes / 1000,
                    case.rtts_ms,
                    least as f64 / 1e3,
                    most as f64 / 1e3
                ),
                expected: late.said_ms(case),
                measured: late.millis - in_time.millis,
                unit: "ms",
                bound: Bound::AtMost(OF_THE_MACHINE_MS),
            });
        }
        found.records.push(in_time.apart_from_the_error());
    }
    Ok(found)
}

/// Checks that beside CPU hogs a transfer takes no longer than its record says. Leaves out records
/// that are invalid for another reason, and those of a machine with CPUs to spare.
pub(crate) fn waits_for_a_cpu() -> Result<Findings, LabError> {
    let mut found = Findings { figures: Vec::new(), records: Vec::new() };
    for case in &CASES {
        let in_time = fastest(case, None)?;
        for number in HOGS {
            let hogs = Hogs::start(number);
            let beside = carry_once(case, 1, None)?;
            drop(hogs);
            println!("       {}", beside.record);
            let judged = beside.clone().apart_from_the_error();
            if !judged.valid || judged.machine_busy_ratio <= judged.bounds.machine_busy_ratio {
                println!("       left out: {number} hogs; {}", judged.reasons.join("; "));
                continue;
            }
            found.figures.push(Figure {
                what: format!(
                    "{} kB, {:?} ms, beside {number} hogs",
                    case.bytes / 1000,
                    case.rtts_ms
                ),
                expected: beside.said_ms(case),
                measured: beside.millis - in_time.millis,
                unit: "ms",
                bound: Bound::AtMost(OF_THE_MACHINE_MS),
            });
        }
    }
    Ok(found)
}

/// Processes that use all CPU time they get; dropping them ends them.
struct Hogs(Vec<Child>);

impl Hogs {
    fn start(number: usize) -> Self {
        let hog = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Self((0..number).map(hog).map(|hog| hog.expect("a shell")).collect())
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            hog.kill().expect("it runs until now");
            hog.wait().expect("it was killed");
        }
    }
}

/// Carries a case's bytes a few times, each time in a lab of its own; returns the fastest.
fn fastest(case: &Case, late: Option<AddedLateness>) -> Result<Carried, LabError> {
    let carried = (0..REPEATS as u64).map(|seed| carry_once(case, seed, late));
    let carried = carried.collect::<Result<Vec<Carried>, LabError>>()?;
    let fastest = carried.into_iter().min_by(|a, b| a.millis.total_cmp(&b.millis));
    Ok(fastest.expect("there are repeats"))
}

fn hosts(case: &Case) -> Vec<HostId> {
    (0..=case.rtts_ms.len()).map(|place| host(&format!("h{place}"))).collect()
}

fn carry_once(case: &Case, seed: u64, late: Option<AddedLateness>) -> Result<Carried, LabError> {
    let options = LabOptions { seed: Some(seed), late, ..LabOptions::default() };
    let lab = start(&topology(case), &options)?;
    let path = hosts(case);
    let listeners: Vec<TcpListener> =
        path[1..].iter().map(|host| listen(&lab, host)).collect::<Result<_, _>>()?;
    lab.reset_validity()?;
    let begun = Instant::now();
    let end = thread::scope(|scope| {
        for (at, ends) in path[1..].iter().zip(listeners.windows(2)) {
            let lab = &lab;
            scope.spawn(move || relay(lab, at, &ends[0], &ends[1]));
        }
        let last = listeners.last().expect("a path has a leg");
        let receiver = scope.spawn(|| receive(last, case.bytes));
        let mut sender = connect(&lab, &path[0], &listeners[0]);
        sender.write_all(&vec![0x5a; case.bytes]).expect("the next host reads");
        drop(sender);
        receiver.join().expect("the receiver does not panic")
    });
    let millis = end.duration_since(begun).as_secs_f64() * 1e3;
    Ok(Carried { millis, record: lab.validity()? })
}

/// Returns a chain of sites with a window like a paper's, and a rate above what it allows.
fn topology(case: &Case) -> String {
    let mut text = "[default.pair]\nrtt = \"100 ms\"\nrate = \"1 Gbit/s\"\n".to_owned();
    for place in 0..=case.rtts_ms.len() {
        write!(text, "[[site]]\nid = \"h{place}\"\nwindow = \"500 kB\"\n").expect("text");
    }
    for (place, rtt) in case.rtts_ms.iter().enumerate() {
        let next = place + 1;
        write!(text, "[[pair]]\nbetween = [\"h{place}\", \"h{next}\"]\nrtt = \"{rtt} ms\"\n")
            .expect("text");
    }
    text
}

fn connect(lab: &Lab, from: &HostId, to: &TcpListener) -> TcpStream {
    let there = to.local_addr().expect("it is bound");
    let stream = lab.enter(from, || TcpStream::connect(there)).expect("the host is there");
    stream.expect("it listens")
}

/// Copies one connection to the next host.
fn relay(lab: &Lab, at: &HostId, own: &TcpListener, next: &TcpListener) {
    let (mut from, _) = own.accept().expect("a sender connects");
    let mut to = connect(lab, at, next);
    std::io::copy(&mut from, &mut to).expect("both ends go on to the end");
}

fn listen(lab: &Lab, at: &HostId) -> Result<TcpListener, LabError> {
    let place = SocketAddr::new(lab.address(at)?, 0);
    Ok(lab.enter(at, || TcpListener::bind(place))?.expect("a free port"))
}

/// Returns the time at which all bytes have arrived.
fn receive(listener: &TcpListener, bytes: usize) -> Instant {
    let (mut stream, _) = listener.accept().expect("a sender connects");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out above zero");
    let mut buffer = vec![0; 256 << 10];
    let mut left = bytes;
    while left > 0 {
        left -= stream.read(&mut buffer).expect("the sender sends to the end");
    }
    Instant::now()
}
