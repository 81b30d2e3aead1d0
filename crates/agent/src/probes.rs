//! Measurements that the controller asks for, and the responder of those of other hosts.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tradewind_control::learner::JumpArm;
use tradewind_control::message::{Probe, ProbeKind, ProbeOutcome, ProbeResult};
use tradewind_control::transfers::TransferTime;
use tradewind_net::initial_window::{InitialWindow, InitialWindows};
use tradewind_probe::window::BoundBy;
use tradewind_probe::{
    ProbeError, RateOptions, RateReport, Responder, ResponderConfig, RttOptions, rate, rtt,
    transfer,
};
use tradewind_stream::clock::unix_now;
use tradewind_units::{Bandwidth, Duration, Segments};

/// Most probes at once; the controller takes further ones for lost. Chosen: several times what it
/// asks for, so that a stolen one makes no flood of them.
const MAX_PROBES: usize = 64;

/// The probes that run, each in a task.
#[derive(Debug)]
pub struct Probes {
    running: BTreeSet<u64>,
    /// The rate test that was started last.
    rate_test: Option<AbortHandle>,
    results: mpsc::UnboundedSender<ProbeResult>,
}

impl Probes {
    /// Creates none yet; results go to `results`.
    #[must_use]
    pub const fn new(results: mpsc::UnboundedSender<ProbeResult>) -> Self {
        Self { running: BTreeSet::new(), rate_test: None, results }
    }

    /// Starts a probe, unless it runs already or its result waits to be acknowledged; returns
    /// whether it did. `window` is the learned initial window of connections to its target, if
    /// there is one.
    pub fn start(&mut self, probe: Probe, window: Option<Segments>) -> bool {
        if self.running.len() >= MAX_PROBES || !self.running.insert(probe.id) {
            return false;
        }
        let results = self.results.clone();
        let is_rate_test = matches!(probe.kind, ProbeKind::Rate { .. });
        let task = tokio::spawn(async move {
            let outcome = measure(&probe, window).await.unwrap_or_else(|error| failed(&error));
            // The agent ends.
            let _nobody_waits = results.send(result(probe, outcome));
        });
        if is_rate_test {
            self.rate_test = Some(task.abort_handle());
        }
        true
    }

    /// Returns whether the rate test that was started last still runs.
    pub fn tests_rate(&self) -> bool {
        self.rate_test.as_ref().is_some_and(|test| !test.is_finished())
    }

    /// Reports a probe that is not allowed here as failed.
    pub fn refuse(&mut self, probe: Probe, reason: String) {
        if self.running.len() < MAX_PROBES && self.running.insert(probe.id) {
            tracing::warn!("{reason}");
            // The agent ends.
            let _nobody_waits = self.results.send(result(probe, ProbeOutcome::Failed { reason }));
        }
    }

    /// Forgets a probe whose result was acknowledged.
    pub fn forget(&mut self, id: u64) {
        self.running.remove(&id);
    }
}

fn result(probe: Probe, outcome: ProbeOutcome) -> ProbeResult {
    let measured_unix_ms = unix_now().as_nanos() / 1_000_000;
    ProbeResult { id: probe.id, to: probe.to, measured_unix_ms, outcome }
}

fn failed(error: &ProbeError) -> ProbeOutcome {
    ProbeOutcome::Failed { reason: error.to_string() }
}

async fn measure(probe: &Probe, window: Option<Segments>) -> Result<ProbeOutcome, ProbeError> {
    let target = probe.target.to_string();
    match probe.kind {
        ProbeKind::Rtt { samples, interval_ms } => {
            let interval = Duration::from_millis(interval_ms);
            let options = RttOptions { samples, interval, ..RttOptions::default() };
            let report = rtt::measure(&target, &options).await?;
            Ok(ProbeOutcome::Rtt {
                min_ms: report.rtt_min_ms,
                median_ms: report.rtt_median_ms,
                spread_ms: report.rtt_spread_ms,
                samples: report.samples,
            })
        }
        ProbeKind::Rate { connections, duration_ms, max_rate_mbps } => {
            let max_rate = max_rate_mbps.map(Bandwidth::from_mbps).transpose();
            let max_rate = match max_rate {
                Ok(rate) => rate,
                Err(error) => return Ok(ProbeOutcome::Failed { reason: error.to_string() }),
            };
            let duration = Duration::from_millis(duration_ms);
            let options = RateOptions { connections, duration, max_rate, ..RateOptions::default() };
            Ok(rate_outcome(&rate::measure(&target, &options).await?, connections))
        }
        ProbeKind::Transfers { sizes } => transfers(probe.target, sizes, window).await,
    }
}

/// Times a transfer of each size by the kernel's own first window, and with `window` where this
/// agent may set it. One after the other, so that none takes its share of the path from another.
async fn transfers(
    target: SocketAddr,
    sizes: [u32; 3],
    window: Option<Segments>,
) -> Result<ProbeOutcome, ProbeError> {
    let windows = window.and_then(|window| Some((InitialWindows::attach().ok()?, window)));
    let mut times = Vec::new();
    for size_bytes in sizes {
        let time = |arm, took: Duration| {
            let seconds = took.as_secs_f64();
            TransferTime { arm, size_bytes, seconds }
        };
        let took = transfer::measure(target, size_bytes, |_| Ok(())).await?;
        times.push(time(JumpArm::Control, took));
        if let Some((program, segments)) = &windows {
            let window = InitialWindow { segments: *segments, rate: None };
            let set = |socket: &TcpSocket| program.set(socket, window);
            let took = transfer::measure(target, size_bytes, set).await?;
            times.push(time(JumpArm::Jumped, took));
        }
    }
    Ok(ProbeOutcome::Transfers { times })
}

/// Returns the figures of a rate test. The window is included only where it bound the rate:
/// otherwise a larger one would not have helped.
fn rate_outcome(report: &RateReport, connections: u32) -> ProbeOutcome {
    let window = report.window_effective_bytes / u64::from(connections.max(1));
    let segments = report.total_bytes / u64::from(report.mss_bytes.max(1));
    let retransmitted = report.retransmits as f64 / segments as f64;
    ProbeOutcome::Rate {
        rate_mbps: report.rate_mbps,
        connections,
        window_bytes: (report.window.bound_by == BoundBy::Window).then_some(window),
        retransmitted: (segments > 0).then_some(retransmitted),
        still_grew: report.window.bound_by == BoundBy::Growth,
        bytes: report.total_bytes,
    }
}

/// The responder of rate tests, on the port that the document names. It sends no payload: agents
/// test towards each other alone, and strangers reach it, too.
#[derive(Debug, Default)]
pub struct ResponderHere {
    /// The port, and what ends the responder when it is dropped.
    open: Option<(u16, oneshot::Sender<()>)>,
}

impl ResponderHere {
    /// Listens on `port`, and no longer on another; on none for port 0.
    ///
    /// # Errors
    /// When the port is taken; the next call tries again.
    pub async fn listen(&mut self, port: u16) -> Result<(), ProbeError> {
        if self.open.as_ref().is_some_and(|(open, _)| *open == port) {
            return Ok(());
        }
        self.open = None;
        if port == 0 {
            return Ok(());
        }
        let at = |address| ResponderConfig { sends: false, ..ResponderConfig::new(address) };
        let both = Responder::bind(at((Ipv6Addr::UNSPECIFIED, port).into()));
        let responder = match both.await {
            Ok(responder) => responder,
            // A host without IPv6.
            Err(_) => {
                let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
                Responder::bind(at(v4)).await?
            }
        };
        let (end, ended) = oneshot::channel();
        tokio::spawn(responder.run(async move {
            // Either way it ends.
            let _dropped = ended.await;
        }));
        self.open = Some((port, end));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tradewind_probe::rate::Direction;

    use super::*;

    #[tokio::test]
    async fn responder_of_an_agent_sends_no_payload_to_strangers() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = free.local_addr().unwrap();
        drop(free);
        let mut responder = ResponderHere::default();
        responder.listen(target.port()).await.unwrap();
        let options = RateOptions { direction: Direction::Download, ..RateOptions::default() };
        let refused = rate::measure(&target.to_string(), &options).await.unwrap_err();
        assert!(refused.to_string().contains("it sends no payload"), "{refused}");
    }
}
