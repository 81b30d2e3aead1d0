//! The source of samples.

use std::net::IpAddr;

use tradewind_jumpstart::Sample;
use tradewind_net::NetError;
use tradewind_net::cgroup;
use tradewind_net::sock_diag::{Filter, SockDiag};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::{Bytes, Duration};

/// A source of samples, one of every observed connection each round.
pub trait Observer {
    /// Passes this round's samples to `each`.
    ///
    /// # Errors
    /// When the source cannot be read; the round is then skipped, whatever it has passed on.
    fn round(&mut self, each: &mut dyn FnMut(&Sample)) -> Result<(), NetError>;
}

/// The kernel's table of connections.
#[derive(Debug)]
pub struct SocketTable {
    diag: SockDiag,
    filter: Filter,
}

impl SocketTable {
    /// Opens the table of the calling thread's network namespace.
    ///
    /// # Errors
    /// When this kernel has none, or the filter's control group does not exist.
    pub fn open(filter: Filter) -> Result<Self, NetError> {
        if let Some(group) = &filter.cgroup {
            cgroup::numbers_below(group)?;
        }
        Ok(Self { diag: SockDiag::open()?, filter })
    }
}

impl Observer for SocketTable {
    fn round(&mut self, each: &mut dyn FnMut(&Sample)) -> Result<(), NetError> {
        self.diag.each(&self.filter, |connection| {
            let (cookie, remote) = (connection.cookie, connection.remote.ip());
            if let Some(sample) = sample_of(cookie, remote, &connection.info) {
                each(&sample);
            }
        })
    }
}

/// Makes a sample of the connection `cookie` to `remote` from `info`; none of a connection without
/// a window.
#[must_use]
pub fn sample_of(cookie: u64, remote: IpAddr, info: &TcpInfo) -> Option<Sample> {
    Some(Sample {
        connection: cookie,
        remote,
        window: info.congestion_window?,
        slow_start_threshold: info.slow_start_threshold,
        mss: info.send_mss,
        rtt_min: info.rtt_min.or(info.rtt),
        delivery_rate: info.delivery_rate,
        application_limited: info.application_limited,
        rate_limit: info.pacing_limit,
        acked: info.bytes_acked.unwrap_or(Bytes::ZERO),
        retransmitted_segments: info.retransmitted_segments,
        busy: info.busy.unwrap_or(Duration::ZERO),
    })
}
