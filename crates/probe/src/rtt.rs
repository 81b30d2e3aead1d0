//! Round-trip times by TCP handshake: from SYN to SYN-ACK, to any open port. [CDD V]
//!
//! CDD sends 20 SYNs, 0.1 s apart, and takes the minimum; ICMP may be filtered, and applications
//! use TCP. Each sample here opens a connection and resets it. Two clocks time the handshake:
//!
//! - the kernel's own (`TCP_INFO`), which stamps the SYN as it leaves and the SYN-ACK as it is
//!   processed: it excludes the delay of a busy host until this process runs again;
//! - this process's, around `connect`: reported beside it, and used where the kernel gives none.
//!
//! A SYN that was lost and sent again does not measure the round trip: such samples are counted as
//! `retransmitted` and left out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::time::{as_millis_f64, duration_from_millis};

use crate::connect::{open, resolve, unix_time_s};
use crate::error::in_words;
use crate::statistics::{ascending, quantile};
use crate::{ProbeError, SCHEMA_VERSION};

/// Options of round-trip measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RttOptions {
    /// Handshakes for each target, 1 to 10,000; 20 as in [CDD V].
    pub samples: u32,
    /// Time from one handshake's start to the next's; 0.1 s as in [CDD V].
    pub interval: Duration,
    /// Longest wait for one handshake (and for the resolver). Chosen: 3 s, so that one lost SYN,
    /// sent again after 1 s, is still answered and not mistaken for a silent target.
    pub timeout: Duration,
    /// Targets measured at once. Chosen: 64.
    pub concurrency: usize,
}

impl Default for RttOptions {
    fn default() -> Self {
        Self {
            samples: 20,
            interval: Duration::from_millis(100),
            timeout: Duration::from_secs(3),
            concurrency: 64,
        }
    }
}

/// The clock that timed the handshakes of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RttMethod {
    /// The kernel's own timestamps, read from `TCP_INFO`.
    TcpHandshakeKernel,
    /// The duration of `connect` in this process.
    TcpHandshakeConnect,
}

/// The round-trip time to one target. The `rtt_*` fields are by `method`, of at least one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RttReport {
    /// The schema version.
    pub schema_version: u32,
    /// The target as given.
    pub target: String,
    /// The address that was measured.
    pub address: SocketAddr,
    /// Time when the measurement began, in seconds since the Unix epoch.
    pub measured_at_unix_s: f64,
    /// The clock that the `rtt_*` figures come from.
    pub method: RttMethod,
    /// Handshakes attempted.
    pub attempts: u32,
    /// Handshakes that count: `attempts` less `retransmitted` less `failures`.
    pub samples: u32,
    /// Handshakes that needed a second SYN.
    pub retransmitted: u32,
    /// Handshakes that failed.
    pub failures: u32,
    /// The last failure.
    pub last_failure: Option<String>,
    /// Least round-trip time: the estimate of the path's propagation. [CDD V]
    pub rtt_min_ms: f64,
    /// Median round-trip time.
    pub rtt_median_ms: f64,
    /// Spread: the 90th less the 10th percentile.
    pub rtt_spread_ms: f64,
    /// Greatest round-trip time.
    pub rtt_max_ms: f64,
    /// Least duration of `connect` in this process.
    pub connect_min_ms: f64,
    /// Median duration of `connect` in this process.
    pub connect_median_ms: f64,
}

impl RttReport {
    /// Returns the least round-trip time.
    ///
    /// # Errors
    /// When an imported report holds an invalid number.
    pub fn rtt_min(&self) -> Result<Duration, tradewind_units::UnitError> {
        duration_from_millis(self.rtt_min_ms)
    }
}

/// Most handshakes for one target. Chosen: a quarter of an hour at the usual spacing.
pub const MAX_SAMPLES: u32 = 10_000;

/// Measures the round-trip time to `target`, a `host:port` with a listener.
///
/// Takes `samples` times `interval` and one round trip more (a `timeout` more when the target is
/// silent): the next SYN does not wait for the response to the last.
///
/// # Errors
/// When the target cannot be resolved, or when no handshake counted.
pub async fn measure(target: &str, options: &RttOptions) -> Result<RttReport, ProbeError> {
    check(options)?;
    let address = resolve(target, options.timeout).await?;
    let measured_at_unix_s = unix_time_s();
    let start = Instant::now();
    let mut running = JoinSet::new();
    for index in 0..options.samples {
        sleep_until(start + options.interval * index).await;
        running.spawn(handshake(address, options.timeout));
    }
    let mut tally = Tally::default();
    running.join_all().await.into_iter().for_each(|result| tally.add(result));
    tally.report(target, address, measured_at_unix_s)
}

/// Measures all `targets`, at most `options.concurrency` at once; the results keep their order.
///
/// Starts are spread over one interval, so that the SYNs do not leave in one burst.
pub async fn measure_all(
    targets: &[String],
    options: &RttOptions,
) -> Vec<Result<RttReport, ProbeError>> {
    let slots = Arc::new(Semaphore::new(options.concurrency.max(1)));
    let count = u32::try_from(targets.len()).unwrap_or(u32::MAX).max(1);
    let mut running = JoinSet::new();
    for (index, target) in targets.iter().enumerate() {
        let (slots, target, options) = (Arc::clone(&slots), target.clone(), options.clone());
        let offset = options.interval / count * u32::try_from(index).unwrap_or(0);
        running.spawn(async move {
            let slot = slots.acquire_owned().await;
            tokio::time::sleep(offset).await;
            let result = measure(&target, &options).await;
            drop(slot);
            (index, result)
        });
    }
    let mut results = running.join_all().await;
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn check(options: &RttOptions) -> Result<(), ProbeError> {
    if !(1..=MAX_SAMPLES).contains(&options.samples) {
        let value = options.samples.to_string();
        let expected = format!("1 to {MAX_SAMPLES}");
        return Err(ProbeError::Option { option: "samples", expected, value });
    }
    if options.timeout.is_zero() {
        let value = format!("{:?}", options.timeout);
        let expected = "more than zero".to_owned();
        return Err(ProbeError::Option { option: "timeout", expected, value });
    }
    Ok(())
}

/// One handshake as timed by both clocks.
struct Sample {
    connect: Duration,
    kernel: Option<Duration>,
    retransmitted: bool,
}

async fn handshake(address: SocketAddr, limit: Duration) -> std::io::Result<Sample> {
    let start = Instant::now();
    let stream = open(address, limit).await?;
    let connect = start.elapsed();
    let info = TcpInfo::of(&stream)?;
    Ok(Sample {
        connect,
        kernel: info.rtt_min.or(info.rtt),
        retransmitted: info.retransmitted_segments > 0,
    })
}

#[derive(Default)]
struct Tally {
    attempts: u32,
    retransmitted: u32,
    failures: u32,
    last_failure: Option<String>,
    good: Vec<Sample>,
}

impl Tally {
    fn add(&mut self, result: std::io::Result<Sample>) {
        self.attempts += 1;
        match result {
            Ok(sample) if sample.retransmitted => self.retransmitted += 1,
            Ok(sample) => self.good.push(sample),
            Err(error) => {
                self.failures += 1;
                self.last_failure = Some(in_words(&error));
            }
        }
    }

    fn report(
        self,
        target: &str,
        address: SocketAddr,
        measured_at_unix_s: f64,
    ) -> Result<RttReport, ProbeError> {
        let connects = ascending(self.good.iter().map(|sample| as_millis_f64(sample.connect)));
        // The samples are comparable only when each has the kernel's figure.
        let kernel: Option<Vec<f64>> =
            self.good.iter().map(|sample| sample.kernel.map(as_millis_f64)).collect();
        let (method, times) = match kernel {
            Some(kernel) => (RttMethod::TcpHandshakeKernel, ascending(kernel)),
            None => (RttMethod::TcpHandshakeConnect, connects.clone()),
        };
        let nothing = || ProbeError::Connect {
            target: target.to_owned(),
            cause: match &self.last_failure {
                Some(failure) => format!("{failure} ({} of {})", self.failures, self.attempts),
                None => format!("every one of {} SYNs had to be sent again", self.attempts),
            },
        };
        let at = |q: f64| quantile(&times, q).ok_or_else(nothing);
        Ok(RttReport {
            schema_version: SCHEMA_VERSION,
            target: target.to_owned(),
            address,
            measured_at_unix_s,
            method,
            attempts: self.attempts,
            samples: u32::try_from(times.len()).unwrap_or(u32::MAX),
            retransmitted: self.retransmitted,
            failures: self.failures,
            rtt_min_ms: at(0.0)?,
            rtt_median_ms: at(0.5)?,
            rtt_spread_ms: at(0.9)? - at(0.1)?,
            rtt_max_ms: at(1.0)?,
            connect_min_ms: quantile(&connects, 0.0).ok_or_else(nothing)?,
            connect_median_ms: quantile(&connects, 0.5).ok_or_else(nothing)?,
            last_failure: self.last_failure.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "192.0.2.1:80";

    fn sample(connect_ms: u64, kernel_ms: Option<u64>, retransmitted: bool) -> Sample {
        let kernel = kernel_ms.map(Duration::from_millis);
        Sample { connect: Duration::from_millis(connect_ms), kernel, retransmitted }
    }

    fn report(results: Vec<std::io::Result<Sample>>) -> Result<RttReport, ProbeError> {
        let mut tally = Tally::default();
        results.into_iter().for_each(|result| tally.add(result));
        tally.report("there:80", ADDRESS.parse().unwrap(), 0.0)
    }

    #[test]
    fn kernel_clock_is_preferred() {
        let report = report(vec![
            Ok(sample(35, Some(30), false)),
            Ok(sample(33, Some(31), false)),
            Ok(sample(50, Some(40), false)),
        ])
        .unwrap();
        assert_eq!(report.method, RttMethod::TcpHandshakeKernel);
        assert_eq!((report.rtt_min_ms, report.rtt_median_ms), (30.0, 31.0));
        assert_eq!((report.connect_min_ms, report.connect_median_ms), (33.0, 35.0));
        assert!((report.rtt_spread_ms - 8.0).abs() < 1e-9);
    }

    #[test]
    fn without_the_kernels_clock_connect_times_count() {
        let report = report(vec![Ok(sample(35, None, false)), Ok(sample(36, Some(30), false))]);
        let report = report.unwrap();
        assert_eq!(report.method, RttMethod::TcpHandshakeConnect);
        assert_eq!(report.rtt_min_ms, 35.0);
    }

    #[test]
    fn retransmitted_and_failed_handshakes_are_left_out() {
        let refused = std::io::ErrorKind::ConnectionRefused;
        let report = report(vec![
            Ok(sample(1030, Some(1030), true)),
            Err(refused.into()),
            Ok(sample(31, Some(30), false)),
        ])
        .unwrap();
        assert_eq!((report.attempts, report.samples), (3, 1));
        assert_eq!((report.retransmitted, report.failures), (1, 1));
        assert_eq!(report.last_failure.as_deref(), Some("connection refused"));
        assert_eq!(report.rtt_max_ms, 30.0);
    }

    #[test]
    fn no_valid_samples_is_an_error() {
        let error = report(vec![Err(std::io::ErrorKind::TimedOut.into())]).unwrap_err();
        assert_eq!(error.to_string(), "probe of there:80: no answer in time (1 of 1)");
        let error = report(vec![Ok(sample(1030, None, true))]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "probe of there:80: every one of 1 SYNs had to be sent again"
        );
    }
}
