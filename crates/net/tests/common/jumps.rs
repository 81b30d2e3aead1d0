//! Values for connections that jump, and reports of the kernel and the program about them.

use std::net::TcpStream;
use std::time::Duration;

use tradewind_net::clock::monotonic;
use tradewind_net::jumpstart::{JumpStarts, Options, ProgramEvent, Values};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::{Bandwidth, Segments};

use super::{Hosts, skipped};

/// Far beyond the duration of any test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

impl Hosts {
    /// Attaches the program for the near host's connections; reports if it cannot be attached.
    pub(crate) fn attach(&self, options: &Options) -> Option<JumpStarts> {
        match self.here.run(|| JumpStarts::attach(options)).unwrap() {
            Ok(program) => Some(program),
            Err(error) => {
                skipped(&error);
                None
            }
        }
    }
}

pub(crate) fn values(window: u32) -> Values {
    let window = Segments::new(window).unwrap();
    Values { window, rate: None, rtt: None, expires: monotonic() + LONG }
}

pub(crate) fn paced(window: u32, mbps: f64, rtt: Duration) -> Values {
    let rate = Some(Bandwidth::from_mbps(mbps).unwrap());
    Values { rate, rtt: Some(rtt), ..values(window) }
}

/// Returns the rate limit of a socket in bytes a second.
pub(crate) fn limit(stream: &TcpStream) -> u64 {
    let limit = TcpInfo::of(stream).unwrap().pacing_limit;
    limit.map_or(u64::MAX, |rate| rate.as_bps() / 8)
}

pub(crate) fn events(program: &mut JumpStarts) -> Vec<ProgramEvent> {
    let mut all = Vec::new();
    program.read_events(|event| all.push(event));
    all
}
