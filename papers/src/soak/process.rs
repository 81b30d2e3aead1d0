//! Resources of a soak's processes in idle state, and their metrics.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tradewind_lab::LabError;
use tradewind_net::{descriptors, usage};
use tradewind_units::HostId;

use super::scenario::Scenario;
use crate::harness::carry::CarryError;
use crate::harness::chain::SplitChain;
use crate::harness::{LabContext, ProcessError};

/// Longest time until ended sessions have ended everywhere. Chosen: above all time-outs of relays.
const MAX_REST: Duration = Duration::from_secs(60);
/// The interval of samples.
const LOOK: Duration = Duration::from_millis(200);

/// The resources of an idle process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    /// The role of the process.
    pub(super) name: String,
    /// The process id: a restarted process is another one.
    pub(super) process: u32,
    /// Descriptors.
    pub(super) descriptors: u64,
    /// Memory, in bytes.
    pub(super) memory: u64,
    /// Its metrics.
    pub(super) counts: ConnectionCounts,
    /// Idle connections to it, as reported by the previous process on the chain: a relay counts
    /// each as one that it serves.
    pub(super) resting: u64,
}

impl Sample {
    /// Returns the descriptors without those of idle connections, on either side, and of idle
    /// pipes.
    pub(super) const fn descriptors_in_use(&self) -> u64 {
        self.descriptors.saturating_sub(self.resting + self.counts.ready + 2 * self.counts.pipes)
    }

    /// Returns whether it has an outcome for each accepted connection that is not idle.
    pub(super) const fn is_accounted(&self) -> bool {
        self.counts.open == self.resting && self.counts.accepted == self.counts.ended + self.resting
    }
}

/// A process's metrics about its connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ConnectionCounts {
    /// Connections accepted since the start.
    pub(super) accepted: u64,
    /// Accepted connections with an outcome.
    pub(super) ended: u64,
    /// Connections in service, or idle.
    pub(super) open: u64,
    /// Idle connections to the next relay, ready for a session.
    pub(super) ready: u64,
    /// Idle pipes, retained for reuse.
    pub(super) pipes: u64,
}

impl ConnectionCounts {
    /// Parses a metrics page.
    fn read(page: &str) -> Self {
        let mut counts = Self::default();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let value = value.parse::<f64>().unwrap_or(0.0) as u64;
            let name = name.split('{').next().unwrap_or(name);
            if name.ends_with("_accepted_total") {
                counts.accepted += value;
            } else if name.ends_with("_sessions_total") {
                counts.ended += value;
            } else if name.ends_with("_open_sessions") {
                counts.open += value;
            } else if name.ends_with("_warm_resting") {
                counts.ready += value;
            } else if name.ends_with("_resting_pipes") {
                counts.pipes += value;
            }
        }
        counts
    }
}

/// A process of a chain.
struct Process<'a> {
    name: String,
    host: &'a HostId,
    process: u32,
    metrics: SocketAddr,
}

/// Waits until no session is open anywhere, and samples each process: by chain the gateway, then
/// its relays.
pub(super) fn at_rest(
    lab_context: &LabContext,
    scenario: &Scenario,
    chains: &[SplitChain],
) -> Result<Vec<Sample>, ProcessError> {
    let mut samples = Vec::new();
    for (chain, known) in chains.iter().zip(&scenario.chains) {
        let name = |what: &str| format!("{what}, {}", known.name);
        let mut processes = vec![Process {
            name: gateway_of(&known.name),
            host: &scenario.client,
            process: chain.gateway.process(),
            metrics: chain.metrics,
        }];
        for (place, relay) in chain.relays.iter().enumerate() {
            let Some(service) = &relay.service else { continue };
            processes.push(Process {
                name: name(["first relay", "second relay"][place]),
                host: &scenario.relays[place],
                process: service.process(),
                metrics: relay.relay.metrics(),
            });
        }
        samples.extend(settled(lab_context, &processes)?);
    }
    Ok(samples)
}

/// Returns the name of a chain's gateway.
pub(super) fn gateway_of(chain: &str) -> String {
    format!("gateway, {chain}")
}

/// Returns samples of a chain that no longer change, with no session open; or the last ones at the
/// time-out.
fn settled(lab_context: &LabContext, chain: &[Process<'_>]) -> Result<Vec<Sample>, ProcessError> {
    let began = Instant::now();
    let mut before: Vec<Sample> = Vec::new();
    loop {
        lab_context.stop.check()?;
        let now = samples(lab_context, chain)?;
        let is_same = |(one, other): (&Sample, &Sample)| {
            (one.counts, one.descriptors) == (other.counts, other.descriptors)
        };
        let is_quiet = before.len() == now.len() && before.iter().zip(&now).all(is_same);
        let is_at_rest = now.iter().all(|sample| sample.counts.open == sample.resting);
        if (is_quiet && is_at_rest) || began.elapsed() > MAX_REST {
            return Ok(now);
        }
        before = now;
        std::thread::sleep(LOOK);
    }
}

/// Samples the resources and the metrics of each process of a chain.
fn samples(lab_context: &LabContext, chain: &[Process<'_>]) -> Result<Vec<Sample>, ProcessError> {
    let (mut samples, mut resting) = (Vec::new(), 0);
    for Process { name, host, process, metrics } in chain {
        let counts = ConnectionCounts::read(&page(lab_context, host, *metrics)?);
        samples.push(Sample {
            name: name.clone(),
            process: *process,
            descriptors: descriptors::count(*process).map_err(LabError::from)?,
            memory: usage::memory(*process).map_err(LabError::from)?.resident.as_u64(),
            counts,
            resting,
        });
        resting = counts.ready;
    }
    Ok(samples)
}

/// Fetches the metrics page of a process on `host`.
fn page(
    lab_context: &LabContext,
    host: &HostId,
    address: SocketAddr,
) -> Result<String, ProcessError> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, MAX_REST)?;
        stream.set_read_timeout(Some(MAX_REST))?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok(page)
    };
    lab_context.lab.enter(host, get)?.map_err(|source| ProcessError::Carry {
        flow: format!("metrics of {host}"),
        source: CarryError::Io { what: "ask", address, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_page_is_summed_up() {
        let page = "HTTP/1.1 200 OK\r\n\r\n# HELP x_accepted Connections\nx_accepted_total 7\n\
                    x_sessions_total{outcome=\"ended\"} 4\nx_sessions_total{outcome=\"broken\"} 2\n\
                    x_open_sessions 1.0\nx_moved_bytes_total{direction=\"up\"} 99\n\
                    x_warm_resting 3\nx_resting_pipes 2.0\n";
        assert_eq!(
            ConnectionCounts::read(page),
            ConnectionCounts { accepted: 7, ended: 6, open: 1, ready: 3, pipes: 2 }
        );
    }

    #[test]
    fn idle_connections_are_accounted_for() {
        let sample = |counts, resting| Sample {
            name: "first relay, warm".to_owned(),
            process: 1,
            descriptors: 20,
            memory: 0,
            counts,
            resting,
        };
        let counts = ConnectionCounts { accepted: 9, ended: 7, open: 2, ready: 3, pipes: 4 };
        assert!(sample(counts, 2).is_accounted());
        assert_eq!(sample(counts, 2).descriptors_in_use(), 7);
        assert!(!sample(counts, 1).is_accounted());
        let lost = ConnectionCounts { ended: 6, ..counts };
        assert!(!sample(lost, 2).is_accounted());
    }
}
