//! The packets of packet flows: a gateway's own counters, read at its metrics port, and added to
//! what waits for the controller.
//!
//! The first counters that are read are the base of what follows: those of before may have been
//! reported by the agent before.

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
use tradewind_node::PacketReport;
use tradewind_node::status::{Direction, FlowStatus};
use tradewind_units::{Duration, Money};

use crate::sessions::{Sessions, Tallies};

/// Time between two looks at the counters. Chosen: that between two reports.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest wait for a page, and most bytes of it. Chosen: a gateway of 1,000 flows writes 1 MB.
const PAGE_LIMIT: Duration = Duration::from_secs(3);
const MOST_BYTES: u64 = 16 << 20;
/// Processes whose counters are known: one, and its successor at an upgrade.
const PROCESSES: usize = 2;

/// The counters of a gateway's flows, as they were read last.
#[derive(Debug, Default)]
pub struct Counters {
    /// By process, the oldest first.
    known: Vec<(u32, BTreeMap<SocketAddr, PacketCounts>)>,
}

impl Counters {
    /// Returns what has been counted since the report before of the same process; all that a
    /// successor has counted, and nothing of the very first report.
    pub fn take(&mut self, report: &PacketReport) -> Vec<PacketTally> {
        let sums = sums(report);
        let at = self.known.iter().position(|(process, _)| *process == report.process);
        let before = match at {
            Some(at) => self.known.remove(at).1,
            None if self.known.is_empty() => sums.clone().into_iter().map(counts_of).collect(),
            None => BTreeMap::new(),
        };
        let since = |(listen, tally): (SocketAddr, PacketTally)| {
            let before = before.get(&listen).copied().unwrap_or_default();
            PacketTally { counts: tally.counts.since(before), ..tally }
        };
        let new = sums.clone().into_iter().map(since);
        let new = new.filter(|tally| tally.counts != PacketCounts::default()).collect();
        self.known.push((report.process, sums.into_iter().map(counts_of).collect()));
        if self.known.len() > PROCESSES {
            self.known.remove(0);
        }
        new
    }
}

fn counts_of((listen, tally): (SocketAddr, PacketTally)) -> (SocketAddr, PacketCounts) {
    (listen, tally.counts)
}

/// Returns the counters of the flows that are sent from here, by the address that applications
/// write to.
fn sums(report: &PacketReport) -> BTreeMap<SocketAddr, PacketTally> {
    let mut sums: BTreeMap<SocketAddr, PacketTally> = BTreeMap::new();
    for flow in report.flows.iter().filter(|flow| flow.direction == Direction::Sent) {
        let Some(listen) = flow.listen else { continue };
        let before = sums.get(&listen).map(|tally| tally.counts).unwrap_or_default();
        let (service, why) = (flow.service.clone(), flow.why.clone());
        let counts = before.plus(counts(flow));
        sums.insert(listen, PacketTally { listen, service, why, counts });
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
pub struct Packets(Option<(SocketAddr, AbortHandle)>);

impl Packets {
    /// Reads the counters of a document's gateway from now on, if it sends packet flows.
    pub fn watch(&mut self, document: &Document, sessions: &Sessions) {
        let address = metrics_of(document);
        if self.0.as_ref().map(|(address, _)| *address) == address {
            return;
        }
        self.0.iter().for_each(|(_, reader)| reader.abort());
        self.0 = address.map(|address| {
            let reader = tokio::spawn(read_all(address, sessions.shared()));
            (address, reader.abort_handle())
        });
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        self.0.iter().for_each(|(_, reader)| reader.abort());
    }
}

/// Returns the metrics address of a document's gateway that sends packet flows.
fn metrics_of(document: &Document) -> Option<SocketAddr> {
    let gateway = document.processes.iter().find(|process| process.kind == Kind::Gateway)?;
    // The ceiling has read it already.
    let config = GatewayConfig::parse(&gateway.config).ok()?;
    config.metrics.filter(|_| !config.packet.is_empty())
}

async fn read_all(address: SocketAddr, tallies: Arc<Mutex<Tallies>>) {
    let mut counters = Counters::default();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        // It starts, or has ended: the agent says so of the process.
        let Ok(Ok(report)) = timeout(PAGE_LIMIT, read(address)).await else { continue };
        let mut tallies = tallies.lock().unwrap_or_else(PoisonError::into_inner);
        counters.take(&report).into_iter().for_each(|tally| tallies.add_packets(tally));
    }
}

async fn read(address: SocketAddr) -> io::Result<PacketReport> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /packets HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut answer).await?;
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
        assert_eq!(packets(&counters.take(&report(1, 1000))), []);
        assert_eq!(packets(&counters.take(&report(1, 1200))), [(200, 20)]);
        assert_eq!(packets(&counters.take(&report(1, 1200))), []);
        // The successor begins anew, while the one before still answers.
        let begun = counters.take(&report(2, 50));
        assert_eq!(packets(&begun), [(50, 5)]);
        assert_eq!((begun[0].counts.usd.as_usd(), begun[0].service.as_str()), (5e-5, "caching"));
        assert_eq!(packets(&counters.take(&report(1, 1210))), [(10, 1)]);
        assert_eq!(packets(&counters.take(&report(2, 80))), [(30, 3)]);
        assert_eq!(packets(&counters.take(&report(3, 10))), [(10, 1)]);
        assert_eq!(packets(&counters.take(&report(3, 30))), [(20, 2)]);
    }

    #[test]
    fn what_was_counted_waits_in_one_batch() {
        let mut counters = Counters::default();
        counters.take(&report(1, 0));
        let mut tallies = Tallies::new(1);
        for packets in [10, 30] {
            counters.take(&report(1, packets)).into_iter().for_each(|it| tallies.add_packets(it));
        }
        let batch = tallies.batch().unwrap();
        assert_eq!((packets(&batch.packets), batch.tallies.len()), (vec![(30, 3)], 0));
        tallies.acknowledge();
        assert!(tallies.batch().is_none());
    }
}
