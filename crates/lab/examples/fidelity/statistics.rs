//! Losses, counted with trains of UDP packets.

use std::time::Duration;

use tradewind_lab::{LabError, LabOptions};

use crate::common::check::{Bound, Figure, Findings};
use crate::common::traffic::{Train, losses, udp_train};
use crate::common::{host, start, two_sites};

/// The allowed deviation of a figure in standard errors: one false alarm in some ten thousand runs.
const SIGMAS: f64 = 4.0;
const PACKETS: u32 = 80_000;

/// The two methods by which programs pass packets to the kernel.
const TRAINS: [(&str, Train); 2] = [
    (
        "one by one",
        Train { packets: PACKETS, payload: 200, together: 1, gap: Duration::from_micros(50) },
    ),
    (
        "16 together",
        Train { packets: PACKETS, payload: 200, together: 16, gap: Duration::from_micros(400) },
    ),
];

pub(crate) fn random_loss() -> Result<Findings, LabError> {
    const LOSS: f64 = 0.01;
    let lab =
        start(&two_sites(&format!("rtt = \"10 ms\"\nloss = {LOSS}")), &LabOptions::default())?;
    let error = SIGMAS * (LOSS * (1.0 - LOSS) / f64::from(PACKETS)).sqrt();
    let mut figures = Vec::new();
    for (how, train) in TRAINS {
        let found = losses(&udp_train(&lab, (&host("a"), &host("b")), train)?);
        figures.push(Figure {
            what: format!("share of {PACKETS} packets lost, {how}"),
            expected: LOSS * 100.0,
            measured: found.share * 100.0,
            unit: "%",
            bound: Bound::Within(round_up(error * 100.0)),
        });
    }
    Ok(Findings { figures, records: vec![lab.validity()?] })
}

pub(crate) fn burst_loss() -> Result<Findings, LabError> {
    const ENTER: f64 = 0.002;
    const LEAVE: f64 = 0.25;
    let path = format!("rtt = \"10 ms\"\nburst_loss = {{ enter = {ENTER}, leave = {LEAVE} }}");
    let lab = start(&two_sites(&path), &LabOptions::default())?;
    let expected_loss = ENTER / (ENTER + LEAVE);
    let bursts = f64::from(PACKETS) * ENTER * (1.0 - expected_loss);
    // Lengths are geometric: mean 1/q, variance (1-q)/q^2. The share's error is that of the number
    // of bursts (Poisson) times that of their length.
    let length_error = (1.0 - LEAVE).sqrt() / LEAVE / bursts.sqrt();
    let share_error = expected_loss * ((2.0 - LEAVE) / bursts).sqrt();
    let mut figures = Vec::new();
    for (how, train) in TRAINS {
        let found = losses(&udp_train(&lab, (&host("a"), &host("b")), train)?);
        figures.push(Figure {
            what: format!("share of {PACKETS} packets lost, {how}"),
            expected: expected_loss * 100.0,
            measured: found.share * 100.0,
            unit: "%",
            bound: Bound::Within(round_up(SIGMAS * share_error * 100.0)),
        });
        figures.push(Figure {
            what: format!("mean length of a burst, {how}"),
            expected: 1.0 / LEAVE,
            measured: found.mean_burst,
            unit: "packets",
            bound: Bound::Within(round_up(SIGMAS * length_error)),
        });
    }
    Ok(Findings { figures, records: vec![lab.validity()?] })
}

/// Checks that a train sent at once fills the queue, and that the excess is lost.
pub(crate) fn overflow() -> Result<Findings, LabError> {
    const IP_BYTES: usize = 1000;
    const ROOM: u32 = 100;
    let queue = ROOM as usize * IP_BYTES;
    let path = format!("rtt = \"10 ms\"\nrate = \"1 Mbit/s\"\nqueue = \"{queue} B\"");
    let mut figures = Vec::new();
    let mut records = Vec::new();
    for (how, together) in [("one by one", 1), ("40 together", 40)] {
        let lab = start(&two_sites(&path), &LabOptions::default())?;
        let payload = IP_BYTES - 28;
        let train = Train { packets: 200, payload, together, gap: Duration::ZERO };
        let arrived = udp_train(&lab, (&host("a"), &host("b")), train)?;
        figures.push(Figure {
            what: format!("packets kept by a queue of {ROOM}, {how}"),
            expected: f64::from(ROOM),
            measured: arrived.iter().filter(|arrived| **arrived).count() as f64,
            unit: "packets",
            // At 8 ms a packet, one or two more have left before the whole train has entered.
            bound: Bound::Within(2.0),
        });
        records.push(lab.validity()?);
    }
    Ok(Findings { figures, records })
}

/// Rounds up to three decimals, which are enough for a bound.
fn round_up(value: f64) -> f64 {
    (value * 1e3).ceil() / 1e3
}
