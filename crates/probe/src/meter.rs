//! One side of a running transfer: moves the bytes of its connections and measures them.
//!
//! Both sides run the same code: the receiver's intervals give the rate, the sender's the windows.
//! Intervals are measured by the clock of the side that counts, with their true length, so a late
//! wake-up shifts bytes between neighbouring intervals but loses none.

use std::io;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tradewind_net::congestion;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::Segments;

use crate::protocol::{ConnectionTotals, Record, SenderSample};
use crate::stream::Data;

/// Least number of samples of the sender's windows in each interval. Chosen.
const LOOKS_PER_INTERVAL: u32 = 16;
/// Shortest time between two samples. Chosen: a sample costs a system call per connection.
const MIN_LOOK: Duration = Duration::from_millis(2);

/// The side of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends the payload.
    Sender,
    /// Receives the payload.
    Receiver,
}

/// An event of a transfer.
#[derive(Debug)]
pub(crate) enum Event {
    /// An interval has passed.
    Interval(Record),
    /// All shares are complete.
    Complete,
    /// A connection broke.
    Lost(io::Error),
}

/// A running transfer on this side. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Transfer {
    role: Role,
    connections: Vec<Data>,
    movers: JoinSet<io::Result<()>>,
    start: Instant,
    interval_start: Instant,
    interval: Interval,
    look: Interval,
    bytes_before: u64,
    in_flight_max: u64,
    seen: Vec<Seen>,
}

/// The figures that sampling of one sending connection has found.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    in_flight_max: u64,
    /// Least round-trip time before the first retransmission: after one, the kernel also takes
    /// samples from TCP timestamps, which are cut to whole milliseconds.
    rtt_min: Option<Duration>,
    retransmits_at_start: u32,
}

impl Transfer {
    /// Starts to transfer bytes on `connections`, with a record every `interval`.
    pub(crate) fn start(role: Role, connections: Vec<Data>, interval: Duration) -> Self {
        let mut movers = JoinSet::new();
        for connection in &connections {
            match role {
                Role::Sender => movers.spawn(connection.clone().send()),
                Role::Receiver => movers.spawn(connection.clone().receive()),
            };
        }
        let start = Instant::now();
        let look = (interval / LOOKS_PER_INTERVAL).max(MIN_LOOK);
        Self {
            role,
            movers,
            start,
            interval_start: start,
            interval: ticks(start, interval),
            look: ticks(start, look),
            bytes_before: 0,
            in_flight_max: 0,
            seen: connections.iter().map(Seen::at_start).collect(),
            connections,
        }
    }

    /// Returns the time since the transfer began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the payload transferred so far on all connections.
    pub(crate) fn bytes(&self) -> u64 {
        self.connections.iter().map(Data::moved).sum()
    }

    /// Waits for the next event. Safe to cancel. After [`Event::Complete`] or [`Event::Lost`]:
    /// [`Transfer::end`].
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                biased;
                _ = self.interval.tick() => return Event::Interval(self.cut_interval()),
                _ = self.look.tick(), if self.role == Role::Sender => self.look_at_windows(),
                done = self.movers.join_next() => match done {
                    None => return Event::Complete,
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(error))) => return Event::Lost(error),
                    Some(Err(error)) => return Event::Lost(io::Error::other(error)),
                },
            }
        }
    }

    /// Ends the transfer at once; returns the rest of the current interval, if it holds anything.
    pub(crate) fn end(&mut self) -> Option<Record> {
        self.movers.abort_all();
        let rest = self.cut_interval();
        (rest.bytes > 0).then_some(rest)
    }

    /// Returns this side's figures of each connection.
    pub(crate) fn totals(&self) -> Vec<ConnectionTotals> {
        let connections = self.connections.iter().zip(&self.seen);
        connections.map(|(data, seen)| totals(data, seen)).collect()
    }

    fn cut_interval(&mut self) -> Record {
        let now = Instant::now();
        let bytes = self.bytes();
        let record = Record {
            end_us: micros(now - self.start),
            span_us: micros(now - self.interval_start),
            bytes: bytes - self.bytes_before,
            sender: (self.role == Role::Sender).then(|| self.sender_sample()),
        };
        self.interval_start = now;
        self.bytes_before = bytes;
        self.in_flight_max = 0;
        record
    }

    fn look_at_windows(&mut self) {
        let mut sum = 0;
        for (data, seen) in self.connections.iter().zip(&mut self.seen) {
            let Ok(info) = TcpInfo::of(&*data.socket) else { continue };
            seen.take(&info);
            sum += info.in_flight().as_u64();
        }
        self.in_flight_max = sum.max(self.in_flight_max);
    }

    fn sender_sample(&mut self) -> SenderSample {
        self.look_at_windows();
        let infos = self.infos();
        let count = u32::try_from(infos.len()).unwrap_or(u32::MAX).max(1);
        let sum = |figure: fn(&TcpInfo) -> Option<Duration>| -> Duration {
            infos.iter().filter_map(figure).sum()
        };
        SenderSample {
            in_flight_max_bytes: self.in_flight_max,
            congestion_window_bytes: infos
                .iter()
                .map(|info| info.congestion_window_payload().as_u64())
                .sum(),
            rtt_smoothed_us: micros(sum(|info| info.rtt) / count),
            rtt_min_us: self.seen.iter().filter_map(|seen| seen.rtt_min).min().map_or(0, micros),
            retransmits: self.retransmits(&infos),
            busy_us: micros(sum(|info| info.busy)),
            receive_window_limited_us: micros(sum(|info| info.receive_window_limited)),
            send_buffer_limited_us: micros(sum(|info| info.send_buffer_limited)),
        }
    }

    fn retransmits(&self, infos: &[TcpInfo]) -> u64 {
        let now: u64 = infos.iter().map(|info| u64::from(info.retransmitted_segments)).sum();
        let before: u64 = self.seen.iter().map(|seen| u64::from(seen.retransmits_at_start)).sum();
        now.saturating_sub(before)
    }

    fn infos(&self) -> Vec<TcpInfo> {
        self.connections.iter().filter_map(|data| TcpInfo::of(&*data.socket).ok()).collect()
    }
}

impl Seen {
    fn at_start(data: &Data) -> Self {
        let Ok(info) = TcpInfo::of(&*data.socket) else { return Self::default() };
        let retransmits_at_start = info.retransmitted_segments;
        Self { retransmits_at_start, rtt_min: info.rtt_min, in_flight_max: 0 }
    }

    fn take(&mut self, info: &TcpInfo) {
        self.in_flight_max = self.in_flight_max.max(info.in_flight().as_u64());
        if info.retransmitted_segments == self.retransmits_at_start {
            self.rtt_min = info.rtt_min;
        }
    }
}

fn totals(data: &Data, seen: &Seen) -> ConnectionTotals {
    let info = TcpInfo::of(&*data.socket).ok();
    let figure = |figure: fn(&TcpInfo) -> u64| info.as_ref().map_or(0, figure);
    ConnectionTotals {
        bytes: data.moved(),
        retransmits: figure(|info| info.retransmitted_segments.into()),
        retransmitted_bytes: figure(|info| info.bytes_retransmitted.unwrap_or_default().as_u64()),
        rtt_min_us: seen.rtt_min.map_or(0, micros),
        mss_bytes: info.map_or(0, |i| u32::try_from(i.send_mss.as_u64()).unwrap_or(0)),
        congestion_window_segments: info
            .and_then(|info| info.congestion_window)
            .map_or(0, Segments::as_u32),
        in_flight_max_bytes: seen.in_flight_max,
        timestamps: info.is_some_and(|info| info.timestamps),
        congestion_control: congestion::of(&*data.socket).unwrap_or_default(),
    }
}

fn ticks(start: Instant, period: Duration) -> Interval {
    let mut ticks = interval_at(start + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
