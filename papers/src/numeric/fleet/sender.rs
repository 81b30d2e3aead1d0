//! One PoP that sends: its connections to all other PoPs, and the learner that decides their
//! initial windows.
//!
//! Riptide acts on the sender's side alone `[RT IV-A]`, so PoPs are simulated one by one. A virtual
//! second is a round: the requests that arrive in it are served, idle connections end, then the
//! learner samples all open ones. A transfer takes its time, but its effect on the window is
//! immediate.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use tradewind_jumpstart::{Change, Config, IpNet, Learner, Sample};
use tradewind_units::{Bytes, Duration, RegionId, Segments, Timestamp};

use super::super::pops::{pops, rtt_between};
use super::connection::{Connection, Growth, Path};
use super::traffic::Traffic;
use crate::harness::Random;

/// The kernel's own initial window [RFC 6928].
const DEFAULT_WINDOW: f64 = 10.0;
/// Payload of a segment with time stamps.
pub const MSS: Bytes = Bytes::new(1448);

/// Settings of a PoP's simulated day.
#[derive(Debug, Clone)]
pub struct Day {
    /// The learner's configuration; none: a control without Riptide.
    pub learn: Option<Config>,
    /// Condition for the growth of windows.
    pub growth: Growth,
    /// Time before the first sample of windows.
    pub warm_up: Duration,
    /// Time from then on.
    pub length: Duration,
}

/// A destination of a sender.
struct Destination {
    address: IpAddr,
    path: Path,
    next_request: Duration,
    next_probe: Duration,
    open: Vec<Connection>,
    /// Initial window of new connections.
    initial_window: f64,
    /// Source of requests and losses, which are the same whatever is learned.
    random: Random,
}

/// A PoP that sends.
pub struct Sender<'a> {
    traffic: &'a Traffic,
    /// Requests an hour from each other PoP; zero: probes alone.
    requests_per_hour: f64,
    destinations: Vec<Destination>,
    connections: u64,
}

impl<'a> Sender<'a> {
    /// Creates the PoP at `place`, of this seed. The same seed gives the same requests, whatever is
    /// learned.
    #[must_use]
    pub fn new(
        traffic: &'a Traffic,
        place: &RegionId,
        requests_per_hour: f64,
        random: &mut Random,
    ) -> Self {
        let others = pops().all().filter(|pop| *pop != place);
        let destinations = others
            .enumerate()
            .filter_map(|(index, pop)| {
                let rtt = rtt_between(place, pop)?;
                let [least, most] = traffic.loss_percent;
                let loss = random.log_uniform(least, most) / 100.0;
                let mut own = Random::new((random.fraction() * 1e15) as u64);
                let most = f64::from(traffic.window_most.as_u32());
                Some(Destination {
                    address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, u8::try_from(index + 1).ok()?)),
                    path: Path { rtt, loss, most },
                    next_request: traffic.next_request(requests_per_hour, &mut own),
                    next_probe: traffic.probe_every.mul_f64(own.fraction()),
                    open: Vec::new(),
                    initial_window: DEFAULT_WINDOW,
                    random: own,
                })
            })
            .collect();
        Self { traffic, requests_per_hour, destinations, connections: 0 }
    }

    /// Simulates a day; returns the windows of all open connections, sampled each minute `[RT
    /// IV-B1]`.
    #[must_use]
    pub fn live(mut self, day: &Day) -> Vec<f64> {
        let mut learner = day.learn.clone().map(Learner::new);
        let (mut windows, mut now) = (Vec::new(), Duration::ZERO);
        let mut next_look = day.warm_up;
        while now < day.warm_up + day.length {
            let end = now + Duration::from_secs(1);
            for destination in &mut self.destinations {
                let before = self.connections;
                self.connections = serve(
                    destination,
                    self.traffic,
                    self.requests_per_hour,
                    end,
                    day.growth,
                    before,
                );
                let timeout = self.traffic.keep_idle;
                destination.open.retain(|open| end < open.busy_until + timeout);
            }
            now = end;
            if let Some(learner) = &mut learner {
                self.learn(learner, now);
            }
            if now >= next_look {
                next_look += Duration::from_secs(60);
                windows.extend(
                    self.destinations.iter().flat_map(|to| &to.open).map(|open| open.window),
                );
            }
        }
        windows
    }

    /// Runs a round of the learner.
    fn learn(&mut self, learner: &mut Learner, now: Duration) {
        for destination in &self.destinations {
            for open in &destination.open {
                learner.observe(&sample(open, destination));
            }
        }
        let changes = learner.decide(Timestamp::ZERO + now);
        if changes.is_empty() {
            return;
        }
        let mut set: BTreeMap<IpNet, f64> = BTreeMap::new();
        for change in changes {
            match change {
                Change::Set(setting) => {
                    set.insert(setting.prefix, f64::from(setting.window.as_u32()));
                }
                Change::Remove { prefix, .. } => {
                    set.insert(prefix, DEFAULT_WINDOW);
                }
                Change::Renew { .. } => {}
            }
        }
        for destination in &mut self.destinations {
            if let Some(window) = set.get(&IpNet::from(destination.address)) {
                destination.initial_window = *window;
            }
        }
    }
}

/// Serves the requests and probes before `end`; takes and returns the number of connections opened
/// so far.
fn serve(
    to: &mut Destination,
    traffic: &Traffic,
    requests_per_hour: f64,
    end: Duration,
    growth: Growth,
    mut connections: u64,
) -> u64 {
    while to.next_request < end {
        let (at, size) = (to.next_request, traffic.size(&mut to.random));
        connections = request(to, at, size, growth, connections);
        to.next_request = at + traffic.next_request(requests_per_hour, &mut to.random);
    }
    if to.next_probe < end {
        let at = to.next_probe;
        // All at once: each takes a connection of its own.
        for size in &traffic.probes {
            connections = request(to, at, *size, growth, connections);
        }
        to.next_probe = at + traffic.probe_every;
    }
    connections
}

/// Serves one request at `at`, over the idle connection that was used last, or over a new one.
fn request(to: &mut Destination, at: Duration, size: Bytes, growth: Growth, opened: u64) -> u64 {
    let idle = to.open.iter_mut().filter(|open| open.busy_until <= at);
    let segments = size.as_u64().div_ceil(MSS.as_u64());
    if let Some(open) = idle.max_by_key(|open| (open.busy_until, open.id)) {
        open.restart(at, to.initial_window, &to.path);
        open.transfer(at, segments, &to.path, growth, &mut to.random);
        return opened;
    }
    let mut new = Connection::open(opened + 1, to.initial_window, at + to.path.rtt);
    new.transfer(at, segments, &to.path, growth, &mut to.random);
    to.open.push(new);
    opened + 1
}

fn sample(open: &Connection, to: &Destination) -> Sample {
    let segments = |count: f64| Segments::new((count as u32).max(1)).expect("above zero");
    Sample {
        connection: open.id,
        remote: to.address,
        window: segments(open.window),
        slow_start_threshold: open.threshold.map(segments),
        mss: MSS,
        rtt_min: Some(to.path.rtt),
        delivery_rate: None,
        application_limited: false,
        rate_limit: None,
        acked: Bytes::new(open.acked * MSS.as_u64()),
        retransmitted_segments: open.lost,
        busy: Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::fleet::traffic::tests_support::traffic;

    fn median_of(learn: Option<Config>, seed: u64) -> f64 {
        let traffic = traffic();
        let day = Day {
            learn,
            growth: Growth::WhileFull,
            warm_up: Duration::from_secs(300),
            length: Duration::from_secs(600),
        };
        let place = pops().all().next().unwrap();
        let sender = Sender::new(&traffic, place, 60.0, &mut Random::new(seed));
        crate::harness::quantile(&sender.live(&day), 0.5)
    }

    #[test]
    fn learning_raises_windows_and_is_reproducible() {
        let (control, learned) = (median_of(None, 3), median_of(Some(Config::default()), 3));
        assert!(learned > control, "{learned} against {control}");
        assert_eq!(learned, median_of(Some(Config::default()), 3));
    }
}
