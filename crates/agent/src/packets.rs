//! The packets of packet flows: a gateway's own counters, read at its metrics port, and added to
//! what waits for the controller.
//!
//! The first counters that are read of a process that ran before the agent are the base of what
//! follows: the agent before has reported them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tradewind_config::{GatewayConfig, Kind};
use tradewind_control::message::Document;
use tradewind_control::packet_flow::{PacketCounts, PacketTally};
use tradewind_net::processes::Running;
use tradewind_node::PacketReport;
use tradewind_node::status::{Direction, FlowStatus};
use tradewind_units::{Duration, Money};

use crate::sessions::{Sessions, Tallies};

/// Time between two looks at the counters. Chosen: that between two reports.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest wait for a page, and most bytes of it. Chosen: a gateway of 1,000 flows writes 1 MB.
const PAGE_LIMIT: Duration = Duration::from_secs(3);
const MAX_BYTES: u64 = 16 << 20;
/// Processes whose counters are known: one, and its successor at an upgrade.
const PROCESSES: usize = 2;

/// The counters of a gateway's flows, as they were read last.
#[derive(Debug, Default)]
pub struct Counters {
    /// By process, the oldest first.
    known: Vec<(u32, BTreeMap<SocketAddr, PacketCounts>)>,
}

impl Counters {
    /// Returns what has been counted since the report before of the same process. Of the first
    /// report of one it is all that a process has counted that started after this agent; one that
    /// ran before was reported by the agent before, and nothing counts.
    pub fn take(&mut self, report: &PacketReport, ran_before: bool) -> Vec<PacketTally> {
        let sums = sums(report);
        let counts = || sums.iter().map(|(listen, (tally, _))| (*listen, tally.counts)).collect();
        let at = self.known.iter().position(|(process, _)| *process == report.process);
        let before: BTreeMap<SocketAddr, PacketCounts> = match at {
            Some(at) => self.known.remove(at).1,
            None if ran_before => counts(),
            None => BTreeMap::new(),
        };
        let new = charged_once(&sums, &before);
        let new = new.into_iter().filter(|tally| tally.counts != PacketCounts::default()).collect();
        self.known.push((report.process, counts()));
        if self.known.len() > PROCESSES {
            self.known.remove(0);
        }
        new
    }
}

/// Returns what each flow has counted more. A flow's part of what relays bill for all that they
/// forward to one remote gateway moves to other flows as these send more; of the parts that have
/// grown only so much counts as the whole bill has.
fn charged_once(
    sums: &BTreeMap<SocketAddr, (PacketTally, String)>,
    before: &BTreeMap<SocketAddr, PacketCounts>,
) -> Vec<PacketTally> {
    let mut remotes: BTreeMap<&str, [PacketCounts; 3]> = BTreeMap::new();
    let counted = |listen: &SocketAddr, tally: &PacketTally| {
        let before = before.get(listen).copied().unwrap_or_default();
        (before, tally.counts.since(before))
    };
    for (listen, (tally, remote)) in sums {
        let (then, more) = counted(listen, tally);
        let [all, all_then, all_more] = remotes.entry(remote).or_default();
        (*all, *all_then) = (all.plus(tally.counts), all_then.plus(then));
        *all_more = all_more.plus(more);
    }
    let tally_of = |(listen, (tally, remote)): (&SocketAddr, &(PacketTally, String))| {
        let (_, more) = counted(listen, tally);
        let [all, all_then, all_more] = remotes[remote.as_str()];
        let whole = all.since(all_then);
        let bytes = whole.relay_bytes as f64 / all_more.relay_bytes.max(1) as f64;
        let usd = whole.usd.as_usd() / all_more.usd.as_usd().max(f64::MIN_POSITIVE);
        let counts = PacketCounts {
            relay_bytes: if bytes < 1.0 {
                (more.relay_bytes as f64 * bytes).round() as u64
            } else {
                more.relay_bytes
            },
            usd: match Money::from_usd(more.usd.as_usd() * usd) {
                Ok(part) if usd < 1.0 => part,
                _ => more.usd,
            },
            ..more
        };
        PacketTally { counts, ..tally.clone() }
    };
    sums.iter().map(tally_of).collect()
}

/// Returns the counters of the flows that are sent from here, by the address that applications
/// write to, with their remote gateways.
fn sums(report: &PacketReport) -> BTreeMap<SocketAddr, (PacketTally, String)> {
    let mut sums: BTreeMap<SocketAddr, (PacketTally, String)> = BTreeMap::new();
    for flow in report.flows.iter().filter(|flow| flow.direction == Direction::Sent) {
        let Some(listen) = flow.listen else { continue };
        let before = sums.get(&listen).map(|(tally, _)| tally.counts).unwrap_or_default();
        let (service, why) = (flow.service.clone(), flow.why.clone());
        let counts = before.plus(counts(flow));
        let tally = PacketTally { listen, service, why, counts };
        sums.insert(listen, (tally, flow.remote.clone()));
    }
    sums
}

fn counts(flow: &FlowStatus) -> PacketCounts {
    let statistics = flow.statistics.unwrap_or_default();
    let billed = flow.billed.unwrap_or_default();
    PacketCounts {
        packets: flow.packets,
        bytes: flow.bytes,
        copies: flow.copies,
        expected: statistics.expected,
        in_time: statistics.in_time,
        late: statistics.late,
        lost: statistics.lost,
        lost_by_internet: statistics.lost_by_internet,
        recovered_cache: statistics.recovered_cache,
        recovered_in_stream: statistics.recovered_in_stream,
        recovered_cross_stream: statistics.recovered_cross_stream,
        relay_bytes: billed.bytes,
        usd: Money::from_usd(billed.usd).unwrap_or_default(),
    }
}

/// The reader of a gateway's counters.
#[derive(Debug, Default)]
pub struct Packets {
    reader: Option<(SocketAddr, AbortHandle)>,
    /// They outlast a reader: a process may move its metrics to another port.
    counters: Arc<Mutex<Counters>>,
}

impl Packets {
    /// Reads the counters of a document's gateway from now on, if it sends packet flows.
    pub fn watch(&mut self, document: &Document, sessions: &Sessions) {
        let address = metrics_of(document);
        if self.reader.as_ref().map(|(address, _)| *address) == address {
            return;
        }
        self.reader.iter().for_each(|(_, reader)| reader.abort());
        self.reader = address.map(|address| {
            let counters = Arc::clone(&self.counters);
            let reader = tokio::spawn(read_all(address, counters, sessions.shared()));
            (address, reader.abort_handle())
        });
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        self.reader.iter().for_each(|(_, reader)| reader.abort());
    }
}

/// Returns the metrics address of a document's gateway that sends packet flows.
fn metrics_of(document: &Document) -> Option<SocketAddr> {
    let gateway = document.processes.iter().find(|process| process.kind == Kind::Gateway)?;
    // The ceiling has read it already.
    let config = GatewayConfig::parse(&gateway.config).ok()?;
    config.metrics.filter(|_| !config.packet.is_empty())
}

async fn read_all(
    address: SocketAddr,
    counters: Arc<Mutex<Counters>>,
    tallies: Arc<Mutex<Tallies>>,
) {
    // A process that has ended meanwhile ran before as well.
    let began = Running::of(std::process::id());
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        // It starts, or has ended: the agent says so of the process.
        let Ok(Ok(report)) = timeout(PAGE_LIMIT, read(address)).await else { continue };
        let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tallies = tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let ran_before = began.is_none_or(|began| Running::of(report.process) <= Some(began));
        counters.take(&report, ran_before).into_iter().for_each(|tally| tallies.add_packets(tally));
    }
}

async fn read(address: SocketAddr) -> io::Result<PacketReport> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /packets HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MAX_BYTES).read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    Ok(serde_json::from_str(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the report of a process that has sent so many packets, a tenth of which the Internet
    /// lost and the cache recovered.
    fn report(process: u32, packets: u64) -> PacketReport {
        let report = serde_json::json!({
            "schema_version": 1, "process": process,
            "flows": [{
                "direction": "sent", "remote": "twid_x", "listen": "127.0.0.1:16000",
                "to": "192.0.2.7:5004", "service": "caching", "why": "cheapest",
                "packets": packets, "bytes": packets * 200, "copies": packets, "resent": 0,
                "billed": { "bytes": packets * 300, "usd": packets as f64 * 1e-6 },
                "statistics": {
                    "expected": packets, "in_time": packets, "late": 0, "lost": 0,
                    "lost_by_internet": packets / 10, "recovered_cache": packets / 10,
                    "recovered_in_stream": 0, "recovered_cross_stream": 0,
                },
            }, {
                "direction": "received", "remote": "twid_x", "listen": "127.0.0.1:16000",
                "to": "192.0.2.7:5004", "service": "caching", "why": "", "packets": 7, "bytes": 7,
                "copies": 0, "resent": 0,
            }],
        });
        serde_json::from_value(report).unwrap()
    }

    fn packets(tallies: &[PacketTally]) -> Vec<(u64, u64)> {
        tallies.iter().map(|tally| (tally.counts.packets, tally.counts.recovered())).collect()
    }

    #[test]
    fn packets_count_once_over_an_upgrade() {
        let mut counters = Counters::default();
        assert_eq!(packets(&counters.take(&report(1, 1000), true)), []);
        assert_eq!(packets(&counters.take(&report(1, 1200), false)), [(200, 20)]);
        assert_eq!(packets(&counters.take(&report(1, 1200), false)), []);
        // The successor begins anew, while the one before still answers.
        let begun = counters.take(&report(2, 50), false);
        assert_eq!(packets(&begun), [(50, 5)]);
        assert_eq!((begun[0].counts.usd.as_usd(), begun[0].service.as_str()), (5e-5, "caching"));
        assert_eq!(packets(&counters.take(&report(1, 1210), false)), [(10, 1)]);
        assert_eq!(packets(&counters.take(&report(2, 80), false)), [(30, 3)]);
        assert_eq!(packets(&counters.take(&report(3, 10), false)), [(10, 1)]);
        assert_eq!(packets(&counters.take(&report(3, 30), false)), [(20, 2)]);
    }

    #[test]
    fn what_was_counted_waits_in_one_batch() {
        let mut counters = Counters::default();
        counters.take(&report(1, 0), true);
        let mut tallies = Tallies::new(1);
        for packets in [10, 30] {
            counters
                .take(&report(1, packets), false)
                .into_iter()
                .for_each(|it| tallies.add_packets(it));
        }
        let batch = tallies.batch().unwrap();
        assert_eq!((packets(&batch.packets), batch.tallies.len()), (vec![(30, 3)], 0));
        tallies.acknowledge();
        assert!(tallies.batch().is_none());
    }

    #[test]
    fn agent_that_starts_during_an_upgrade_counts_nothing_twice() {
        let mut counters = Counters::default();
        // Both processes ran before it, and the agent before has told all of this.
        assert_eq!(packets(&counters.take(&report(1, 1000), true)), []);
        assert_eq!(packets(&counters.take(&report(2, 50), true)), []);
        assert_eq!(packets(&counters.take(&report(2, 70), true)), [(20, 2)]);
        // None ran before the first agent of a host.
        assert_eq!(packets(&Counters::default().take(&report(3, 10), false)), [(10, 1)]);
    }

    /// Returns a report of flows to one remote, with their parts of what relays billed in bytes.
    fn billed(parts: [u64; 2]) -> PacketReport {
        let mut report = report(1, 1000);
        let mut flow = report.flows.swap_remove(0);
        report.flows.clear();
        for (port, part) in (16_000..).zip(parts) {
            flow.listen = Some(([127, 0, 0, 1], port).into());
            let billed = flow.billed.as_mut().unwrap();
            (billed.bytes, billed.usd) = (part, part as f64 * 1e-6);
            report.flows.push(flow.clone());
        }
        report
    }

    #[test]
    fn parts_of_a_bill_that_move_between_flows_are_charged_once() {
        let mut counters = Counters::default();
        let bytes = |tallies: &[PacketTally]| -> u64 {
            tallies.iter().map(|tally| tally.counts.relay_bytes).sum()
        };
        let usd = |tallies: &[PacketTally]| -> f64 {
            tallies.iter().map(|tally| tally.counts.usd.as_usd()).sum()
        };
        let mut all = 0;
        // The bill grows from 1,000 to 1,500, and comes to the second flow, and back.
        for (parts, whole) in [([1000, 0], 1000), ([600, 600], 1200), ([1000, 300], 1300)] {
            let new = counters.take(&billed(parts), false);
            all += bytes(&new);
            assert_eq!(all, whole);
            assert!((usd(&new) - bytes(&new) as f64 * 1e-6).abs() < 1e-9);
        }
        assert_eq!(bytes(&counters.take(&billed([700, 600]), false)), 0);
        assert_eq!(bytes(&counters.take(&billed([800, 700]), false)), 200);
    }

    #[test]
    fn each_service_in_turn_has_a_tally_of_its_own() {
        let mut tallies = Tallies::new(1);
        let add = |tallies: &mut Tallies, service: &str, packets: u64| {
            let counts = PacketCounts { packets, ..PacketCounts::default() };
            let (listen, service) = (([127, 0, 0, 1], 16_000).into(), service.to_owned());
            tallies.add_packets(PacketTally { listen, service, why: String::new(), counts });
        };
        for (service, packets) in [("direct", 1), ("direct", 2), ("caching", 4), ("direct", 8)] {
            add(&mut tallies, service, packets);
        }
        let batch = tallies.batch().unwrap();
        let told = |tally: &PacketTally| (tally.service.clone(), tally.counts.packets);
        let told: Vec<_> = batch.packets.iter().map(told).collect();
        let expected = [("direct", 3), ("caching", 4), ("direct", 8)];
        assert_eq!(told, expected.map(|(service, packets)| (service.to_owned(), packets)));
        // However often it changes, there are so many and no packet is lost.
        tallies.acknowledge();
        (0..100).for_each(|at| add(&mut tallies, ["direct", "caching"][at % 2], 1));
        let packets = tallies.batch().unwrap().packets;
        assert_eq!(packets.len(), 16);
        assert_eq!(packets.iter().map(|tally| tally.counts.packets).sum::<u64>(), 100);
    }
}
