//! Passive measurement: the figures of this host's connections to its neighbours, read from the
//! kernel every second, at no cost.
//!
//! A rate counts only where the network alone limited it, so that more traffic would not have gone
//! faster: every connection to the neighbour had data in flight and more waiting all the time, was
//! held up neither by the receiver's window nor by its own send buffer, and was past slow start.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use ipnet::IpNet;
use tradewind_control::message::{PassiveLeg, Watched};
use tradewind_net::sock_diag::{Connection, Filter, SockDiag};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Bytes, Duration, SiteId, Timestamp};

use crate::AgentError;
use crate::trouble::Trouble;

/// Least time between two looks. Chosen: many round trips, and little work.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pauses are at least so many times as long as the look before, as that takes longer on hosts
/// with many connections. Chosen: at most a twentieth of one core.
const PAUSE_PER_LOOK: u32 = 19;
/// Share of an interval in which the network must have limited a connection.
const LIMITED_SHARE: f64 = 0.9;
/// Round trips with data after which slow start has ended, if the rate does not grow either.
const SLOW_START_RTTS: u32 = 10;
/// Growth of the rate from one interval to the next below which it does not grow.
const GROWTH: f64 = 1.25;
/// Connections with less than this share of an interval's bytes neither carry its rate nor spoil
/// it. Chosen: probes of a path's health and other sparse messages.
const LITTLE: f64 = 0.01;

/// A connection as it was at the last look.
#[derive(Debug, Clone, Copy)]
struct Seen {
    info: TcpInfo,
    /// The first look at which it had been busy.
    busy_since: Option<Timestamp>,
    /// Its rate over the last interval, in bytes a second.
    rate: Option<f64>,
}

/// The traffic of one connection over an interval.
#[derive(Debug, Clone, Copy)]
struct Interval {
    acked: u64,
    is_limited_by_network: bool,
}

/// The figures of all connections to one place.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Leg {
    /// The greatest rate, in bytes a second, and its connections.
    rate: Option<(f64, u32)>,
    sent: u64,
    retransmitted: u64,
    rtt: Option<Duration>,
    acked: u64,
}

impl Leg {
    fn merge(&mut self, other: &Self) {
        if other.rate.is_some_and(|(rate, _)| self.rate.is_none_or(|(known, _)| rate > known)) {
            self.rate = other.rate;
        }
        self.sent += other.sent;
        self.retransmitted += other.retransmitted;
        self.rtt = self.rtt.into_iter().chain(other.rtt).min();
        self.acked += other.acked;
    }

    fn report(&self, to: &SiteId) -> PassiveLeg {
        let again = self.retransmitted as f64 / self.sent as f64;
        PassiveLeg {
            to: to.clone(),
            rate_mbps: self.rate.map(|(rate, _)| rate * 8.0 / 1e6),
            connections: self.rate.map_or(0, |(_, connections)| connections),
            retransmitted: (self.sent > 0).then_some(again),
            rtt_ms: self.rtt.map(as_millis_f64),
            bytes: self.acked,
        }
    }
}

/// An observer of connections, which is told of them and of the time.
#[derive(Debug, Default)]
pub struct Observer {
    sites: BTreeMap<IpAddr, SiteId>,
    /// The port of rate tests and of handshakes that measure, which are no traffic.
    responder_port: u16,
    /// The time of the last look.
    looked: Option<Timestamp>,
    /// The connections then, by their cookies: a new one of the same addresses has another.
    seen: BTreeMap<(SiteId, u64), Seen>,
    /// The figures since the last report.
    legs: BTreeMap<SiteId, Leg>,
    /// The figures in the report that is on its way.
    reported: BTreeMap<SiteId, Leg>,
}

impl Observer {
    /// Watches these neighbours from now on, except connections from or to `responder_port`.
    pub fn watch(&mut self, watched: &[Watched], responder_port: u16) {
        let sites = watched.iter().map(|it| (it.address.to_canonical(), it.site.clone())).collect();
        if (&self.sites, self.responder_port) != (&sites, responder_port) {
            (self.sites, self.responder_port) = (sites, responder_port);
            self.forget();
        }
    }

    /// Takes what the next look finds for what was there before.
    fn forget(&mut self) {
        self.looked = None;
        self.seen.clear();
    }

    /// Returns the connections that it wants to see; `None` for none at all.
    #[must_use]
    pub fn filter(&self) -> Option<Filter> {
        let within: Vec<IpNet> = self.sites.keys().copied().map(IpNet::from).collect();
        (!within.is_empty()).then(|| Filter { within, ..Filter::default() })
    }

    /// Looks at all connections as they are at `now`; nothing is concluded from looks within less
    /// than a second.
    pub fn look(&mut self, now: Timestamp, connections: &[Connection]) {
        let span = self.looked.map(|looked| now.since(looked));
        if span.is_some_and(|span| span < LOOK_EVERY) {
            return;
        }
        self.looked = Some(now);
        let mut before = std::mem::take(&mut self.seen);
        let mut intervals: BTreeMap<SiteId, Vec<Interval>> = BTreeMap::new();
        for connection in connections {
            let ports = [connection.local.port(), connection.remote.port()];
            let Some(site) = self.sites.get(&connection.remote.ip().to_canonical()) else {
                continue;
            };
            if self.responder_port != 0 && ports.contains(&self.responder_port) {
                continue;
            }
            let key = (site.clone(), connection.cookie);
            let last = before.remove(&key).filter(|last| follows(&last.info, &connection.info));
            let mut seen = Seen::first(now, &connection.info);
            if let Some(span) = span {
                let interval = seen.after(last.as_ref(), now, span);
                let leg = self.legs.entry(site.clone()).or_default();
                leg.merge(&sum(last.as_ref().map(|last| &last.info), &connection.info));
                intervals.entry(site.clone()).or_default().push(interval);
            }
            self.seen.insert(key, seen);
        }
        // One that has ended sent an unknown share of the interval's bytes: as before, perhaps.
        for ((site, _), ended) in before {
            let acked = ended.rate.zip(span).map_or(0.0, |(rate, span)| rate * span.as_secs_f64());
            let interval = Interval { acked: acked as u64, is_limited_by_network: false };
            intervals.entry(site).or_default().push(interval);
        }
        for (site, intervals) in intervals {
            let rate = span.and_then(|span| rate(&intervals, span));
            self.legs.entry(site).or_default().merge(&Leg { rate, ..Leg::default() });
        }
    }

    /// Returns what was seen since the last report that was acknowledged, for another report.
    pub fn report(&mut self) -> Vec<PassiveLeg> {
        for (site, leg) in std::mem::take(&mut self.legs) {
            self.reported.entry(site).or_default().merge(&leg);
        }
        let legs = self.reported.iter().filter(|(_, leg)| leg.acked > 0);
        legs.map(|(site, leg)| leg.report(site)).collect()
    }

    /// Forgets what was in the last report, which was acknowledged; of others the next one has it.
    pub fn acknowledge(&mut self) {
        self.reported.clear();
    }
}

impl Seen {
    fn first(now: Timestamp, info: &TcpInfo) -> Self {
        let is_busy = info.busy.is_some_and(|busy| busy > Duration::ZERO);
        Self { info: *info, busy_since: is_busy.then_some(now), rate: None }
    }

    /// Takes over what was known of the connection, and returns what it did since.
    fn after(&mut self, last: Option<&Self>, now: Timestamp, span: Duration) -> Interval {
        let Some(last) = last else {
            return Interval { acked: bytes(self.info.bytes_acked), is_limited_by_network: false };
        };
        self.busy_since = last.busy_since.or(self.busy_since);
        let acked = delta(last.info.bytes_acked, self.info.bytes_acked);
        let rate = acked as f64 / span.as_secs_f64();
        self.rate = Some(rate);
        let grows = last.rate.is_none_or(|before| rate > before * GROWTH);
        let is_limited_by_network = is_limited_by_network(&last.info, &self.info, span)
            && (has_left_slow_start(&self.info) || (!grows && self.is_old(now)));
        Interval { acked, is_limited_by_network }
    }

    fn is_old(&self, now: Timestamp) -> bool {
        let age = self.busy_since.map(|since| now.since(since));
        age.zip(self.info.rtt).is_some_and(|(age, rtt)| age >= rtt * SLOW_START_RTTS)
    }
}

/// Returns whether the figures `now` can be later ones of the same connection.
fn follows(before: &TcpInfo, now: &TcpInfo) -> bool {
    now.bytes_acked >= before.bytes_acked && now.busy >= before.busy
}

/// Returns whether the network alone limited a connection between two looks.
fn is_limited_by_network(before: &TcpInfo, now: &TcpInfo, span: Duration) -> bool {
    let time =
        |field: fn(&TcpInfo) -> Option<Duration>| Some(field(now)?.saturating_sub(field(before)?));
    let busy = time(|info| info.busy);
    let waited = time(|info| info.receive_window_limited)
        .zip(time(|info| info.send_buffer_limited))
        .map(|(receiver, buffer)| receiver + buffer);
    let of_network = busy.zip(waited).map(|(busy, waited)| busy.saturating_sub(waited));
    let is_limited = of_network.is_some_and(|time| time >= span.mul_f64(LIMITED_SHARE));
    // Sparse messages keep a connection busy as well, if one is sent in each round trip.
    is_limited && [before, now].into_iter().all(has_more_than_the_window)
}

/// Returns whether data waits that the congestion window does not let go, or fills it.
fn has_more_than_the_window(info: &TcpInfo) -> bool {
    let fills = info.congestion_window.is_some_and(|it| info.unacked_segments >= it.as_u32());
    fills || info.unsent.is_some_and(|unsent| unsent > Bytes::ZERO)
}

fn has_left_slow_start(info: &TcpInfo) -> bool {
    let windows = info.congestion_window.zip(info.slow_start_threshold);
    windows.is_some_and(|(window, threshold)| window >= threshold)
}

/// Returns what a connection adds to its leg beside the rate; all that it did if it is new.
fn sum(before: Option<&TcpInfo>, now: &TcpInfo) -> Leg {
    let of = |field: fn(&TcpInfo) -> Option<Bytes>| match before {
        Some(before) => delta(field(before), field(now)),
        None => bytes(field(now)),
    };
    let sent = of(|info| info.bytes_sent);
    Leg {
        rate: None,
        sent,
        retransmitted: of(|info| info.bytes_retransmitted),
        rtt: now.rtt.filter(|_| sent > 0),
        acked: of(|info| info.bytes_acked),
    }
}

/// Returns the rate of an interval in bytes a second, and its connections, if the network limited
/// all that sent more than a little.
fn rate(intervals: &[Interval], span: Duration) -> Option<(f64, u32)> {
    let all: u64 = intervals.iter().map(|interval| interval.acked).sum();
    let counts = |interval: &&Interval| interval.acked as f64 > all as f64 * LITTLE;
    let mut carrying = intervals.iter().filter(counts).peekable();
    carrying.peek()?;
    let (mut acked, mut connections) = (0, 0);
    for interval in carrying {
        if !interval.is_limited_by_network {
            return None;
        }
        (acked, connections) = (acked + interval.acked, connections + 1);
    }
    Some((acked as f64 / span.as_secs_f64(), connections))
}

fn bytes(count: Option<Bytes>) -> u64 {
    count.map_or(0, Bytes::as_u64)
}

fn delta(before: Option<Bytes>, now: Option<Bytes>) -> u64 {
    bytes(now).saturating_sub(bytes(before))
}

/// An observer on a thread of its own, which ends when this is dropped.
#[derive(Debug)]
pub struct Passive(Arc<Mutex<Observer>>);

impl Passive {
    /// Starts the thread. It looks at nothing yet.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start() -> Result<Self, AgentError> {
        let observer = Arc::new(Mutex::new(Observer::default()));
        let theirs = Arc::downgrade(&observer);
        let thread = thread::Builder::new().name("passive".to_owned());
        thread.spawn(move || observe(&theirs)).map_err(AgentError::system("a thread"))?;
        Ok(Self(observer))
    }

    /// Returns the observer. The thread holds it for a moment after each look.
    pub fn observer(&self) -> MutexGuard<'_, Observer> {
        lock(&self.0)
    }
}

fn lock(observer: &Mutex<Observer>) -> MutexGuard<'_, Observer> {
    observer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at connections until nobody else holds the observer.
fn observe(observer: &Weak<Mutex<Observer>>) {
    let (begun, mut trouble, mut pause) = (Instant::now(), Trouble::default(), LOOK_EVERY);
    let mut diag: Option<SockDiag> = None;
    let mut connections = Vec::new();
    loop {
        thread::sleep(pause);
        pause = LOOK_EVERY;
        let Some(observer) = observer.upgrade() else { return };
        let Some(filter) = lock(&observer).filter() else { continue };
        let look_begun = Instant::now();
        connections.clear();
        let looked = diag.take().map_or_else(SockDiag::open, Ok).and_then(|mut diag| {
            diag.each(&filter, |it| connections.push(*it))?;
            Ok(diag)
        });
        match looked {
            Ok(open) => diag = Some(open),
            Err(error) => {
                trouble.say(format!("connections to neighbours are not watched: {error}"));
                lock(&observer).forget();
                continue;
            }
        }
        lock(&observer).look(Timestamp::ZERO + begun.elapsed(), &connections);
        pause = pause.max(look_begun.elapsed() * PAUSE_PER_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::process;

    use tradewind_net::iproute::{Tool, batch};
    use tradewind_net::netns::Namespace;
    use tradewind_net::{NetError, sysctl};
    use tradewind_units::Segments;

    use super::*;

    const NEIGHBOUR: &str = "198.51.100.2:7000";
    const MEGABYTE: u64 = 1_000_000;

    /// A connection that tests have send.
    #[derive(Debug, Clone, Copy)]
    struct Sender(Connection);

    impl Sender {
        /// Returns one past slow start, with more to send than its window lets go.
        fn new(cookie: u64) -> Self {
            let none = TcpInfo::parse(&[0; 280]).unwrap();
            let info = TcpInfo {
                rtt: Some(Duration::from_millis(40)),
                congestion_window: Segments::new(120).ok(),
                slow_start_threshold: Segments::new(100).ok(),
                unsent: Some(Bytes::new(50_000)),
                ..none
            };
            let local = SocketAddr::from(([192, 0, 2, 1], 40_000));
            Self(Connection { cookie, local, remote: NEIGHBOUR.parse().unwrap(), info })
        }

        /// Sends for a second, busy all the time; a hundredth is sent again.
        fn sends(&mut self, bytes: u64) -> &mut TcpInfo {
            let info = &mut self.0.info;
            let add = |count: &mut Option<Bytes>, more| {
                *count = count.map(|count| count.saturating_add(Bytes::new(more)));
            };
            add(&mut info.bytes_acked, bytes);
            add(&mut info.bytes_sent, bytes + bytes / 100);
            add(&mut info.bytes_retransmitted, bytes / 100);
            wait(&mut info.busy, 1000);
            info
        }
    }

    fn all_send(senders: &mut [Sender]) {
        for sender in senders {
            sender.sends(MEGABYTE);
        }
    }

    fn wait(time: &mut Option<Duration>, ms: u64) {
        *time = time.map(|time| time + Duration::from_millis(ms));
    }

    fn watching() -> Observer {
        let mut observer = Observer::default();
        let address = NEIGHBOUR.parse::<SocketAddr>().unwrap().ip();
        let site = "aws:eu-north-1".parse().unwrap();
        observer.watch(&[Watched { site, address }], 7001);
        observer
    }

    fn look(observer: &mut Observer, second: u64, senders: &[Sender]) {
        let connections: Vec<_> = senders.iter().map(|sender| sender.0).collect();
        observer.look(Timestamp::ZERO + Duration::from_secs(second), &connections);
    }

    /// Returns the only leg of a report.
    fn leg(observer: &mut Observer) -> PassiveLeg {
        let mut legs = observer.report();
        assert_eq!(legs.len(), 1, "{legs:?}");
        legs.remove(0)
    }

    #[test]
    fn greatest_rate_of_the_network_is_reported_until_acknowledged() {
        let (mut observer, mut sender) = (watching(), Sender::new(1));
        sender.sends(99 * MEGABYTE);
        look(&mut observer, 0, &[sender]);
        assert_eq!(observer.report(), [], "what was before the first look is unknown");
        for (second, megabytes) in [(1, 10), (2, 12), (3, 11)] {
            sender.sends(megabytes * MEGABYTE);
            look(&mut observer, second, &[sender]);
        }
        let first = leg(&mut observer);
        assert_eq!(first.to.as_str(), "aws:eu-north-1");
        assert_eq!((first.rate_mbps, first.connections), (Some(96.0), 1));
        assert_eq!((first.bytes, first.rtt_ms), (33 * MEGABYTE, Some(40.0)));
        let again = first.retransmitted.unwrap();
        assert!((again - 0.01 / 1.01).abs() < 1e-6, "{again}");
        sender.sends(MEGABYTE).rtt = Some(Duration::from_millis(35));
        look(&mut observer, 4, &[sender]);
        let both = leg(&mut observer);
        assert_eq!((both.rate_mbps, both.rtt_ms), (Some(96.0), Some(35.0)));
        assert_eq!(both.bytes, 34 * MEGABYTE, "the answer was lost");
        observer.acknowledge();
        assert_eq!(observer.report(), []);
        sender.sends(MEGABYTE);
        look(&mut observer, 5, &[sender]);
        assert_eq!(leg(&mut observer).rate_mbps, Some(8.0));
    }

    #[test]
    fn rates_that_something_else_limits_do_not_count() {
        type Change = fn(&mut TcpInfo);
        let cases: [(&str, Change, Option<f64>); 8] = [
            ("the network", |_| {}, Some(8.0)),
            ("an application that pauses", |info| info.busy = Some(Duration::ZERO), None),
            ("messages of less than a window", |info| info.unsent = Some(Bytes::ZERO), None),
            (
                "a full window and nothing beyond it",
                |info| (info.unsent, info.unacked_segments) = (Some(Bytes::ZERO), 120),
                Some(8.0),
            ),
            ("the receiver", |info| wait(&mut info.receive_window_limited, 200), None),
            ("its buffer", |info| wait(&mut info.send_buffer_limited, 200), None),
            ("hardly the receiver", |info| wait(&mut info.receive_window_limited, 50), Some(8.0)),
            ("an old kernel", |info| info.busy = None, None),
        ];
        for (name, change, expected) in cases {
            let (mut observer, mut sender) = (watching(), Sender::new(1));
            change(&mut sender.0.info);
            look(&mut observer, 0, &[sender]);
            for second in 1..4 {
                change(sender.sends(MEGABYTE));
                look(&mut observer, second, &[sender]);
            }
            let leg = leg(&mut observer);
            assert_eq!(leg.rate_mbps, expected, "{name}");
            assert_eq!((leg.bytes, leg.connections), (3 * MEGABYTE, expected.is_some().into()));
        }
    }

    #[test]
    fn slow_start_is_left_out_until_the_rate_stays() {
        let (mut observer, mut sender) = (watching(), Sender::new(1));
        sender.0.info.slow_start_threshold = None;
        look(&mut observer, 0, &[sender]);
        for (second, megabytes) in [(1, 1), (2, 2), (3, 4)] {
            sender.sends(megabytes * MEGABYTE);
            look(&mut observer, second, &[sender]);
        }
        assert_eq!(leg(&mut observer).rate_mbps, None);
        sender.sends(5 * MEGABYTE);
        look(&mut observer, 4, &[sender]);
        assert_eq!(leg(&mut observer).rate_mbps, Some(40.0));
        // Fewer than ten round trips show nothing.
        let (mut observer, mut sender) = (watching(), Sender::new(1));
        (sender.0.info.slow_start_threshold, sender.0.info.rtt) =
            (None, Some(Duration::from_millis(600)));
        look(&mut observer, 0, &[sender]);
        for second in 1..7 {
            sender.sends(MEGABYTE);
            look(&mut observer, second, &[sender]);
        }
        assert_eq!(leg(&mut observer).rate_mbps, None, "five seconds since it was found busy");
        sender.sends(MEGABYTE);
        look(&mut observer, 7, &[sender]);
        assert_eq!(leg(&mut observer).rate_mbps, Some(8.0));
    }

    #[test]
    fn rate_is_of_all_connections_that_carry_it() {
        let rate_with = |change: fn(&mut Vec<Sender>)| {
            let mut observer = watching();
            let mut senders = vec![Sender::new(1), Sender::new(2)];
            look(&mut observer, 0, &senders);
            all_send(&mut senders);
            // The next interval is the one in question.
            look(&mut observer, 1, &senders);
            observer.report();
            observer.acknowledge();
            all_send(&mut senders);
            change(&mut senders);
            look(&mut observer, 2, &senders);
            let leg = leg(&mut observer);
            (leg.rate_mbps, leg.connections, leg.bytes)
        };
        assert_eq!(rate_with(|_| {}), (Some(16.0), 2, 2 * MEGABYTE));
        let of_application = |senders: &mut Vec<Sender>| senders[0].0.info.unsent = None;
        assert_eq!(rate_with(of_application), (None, 0, 2 * MEGABYTE));
        let ends = |senders: &mut Vec<Sender>| senders.truncate(1);
        assert_eq!(rate_with(ends), (None, 0, MEGABYTE), "it sent something before it ended");
        // The same addresses, and another connection, whose counters begin anew.
        let begins_anew = |senders: &mut Vec<Sender>| {
            senders[0] = Sender::new(3);
            senders[0].sends(MEGABYTE / 2);
        };
        assert_eq!(rate_with(begins_anew), (None, 0, MEGABYTE + MEGABYTE / 2));
        let has_probes = |senders: &mut Vec<Sender>| {
            senders.push(Sender::new(3));
            senders[2].sends(100).busy = Some(Duration::ZERO);
        };
        assert_eq!(rate_with(has_probes), (Some(16.0), 2, 2 * MEGABYTE + 100));
    }

    #[test]
    fn measurements_and_others_are_no_traffic() {
        let mut observer = watching();
        let mut senders = [1, 2, 3, 4].map(Sender::new);
        senders[0].0.remote.set_port(7001);
        senders[1].0.local.set_port(7001);
        senders[2].0.remote = "198.51.100.3:7000".parse().unwrap();
        senders[3].0.remote = "[::ffff:198.51.100.2]:7000".parse().unwrap();
        look(&mut observer, 0, &senders);
        all_send(&mut senders);
        observer.look(Timestamp::ZERO + Duration::from_millis(999), &[senders[3].0]);
        look(&mut observer, 1, &senders);
        let seen = leg(&mut observer);
        assert_eq!((seen.rate_mbps, seen.bytes), (Some(8.0), MEGABYTE));
        observer.watch(&[], 7001);
        assert_eq!(observer.filter(), None);
    }

    /// Joins two hosts by a router that lets 40 Mbit/s through, after a queue of 40 ms.
    fn hosts_around_a_bottleneck() -> Result<[Namespace; 3], NetError> {
        let hosts = [Namespace::create()?, Namespace::create()?, Namespace::create()?];
        let path = |host: &Namespace| format!("/proc/{}/fd/{}", process::id(), host.as_raw_fd());
        let [near, router, far] = &hosts;
        let links = [(near, "near", 1), (far, "far", 2)];
        for (host, name, net) in links {
            let link = format!("link add {name} type veth peer name outside netns {}", path(host));
            let address = |ip: u8, name: &str| {
                let address = format!("addr add 10.78.{net}.{ip}/24 dev {name}");
                [address, format!("link set {name} up")]
            };
            batch(router, Tool::Ip, &[&[link][..], &address(1, name)].concat())?;
            let route = format!("route add default via 10.78.{net}.1");
            batch(host, Tool::Ip, &[&address(2, "outside")[..], &[route]].concat())?;
        }
        router.run(|| sysctl::set("net.ipv4.ip_forward", "1"))??;
        let shaper = "qdisc add dev far root tbf rate 40mbit burst 20kb limit 200kb".to_owned();
        batch(router, Tool::Tc, &[shaper])?;
        Ok(hosts)
    }

    #[test]
    fn rate_of_a_bottleneck_is_found() {
        let hosts = match hosts_around_a_bottleneck() {
            Ok(hosts) => hosts,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        let [near, _router, far] = &hosts;
        let listener = far.run(|| TcpListener::bind("10.78.2.2:0").unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let reader = thread::spawn(move || drain(listener));
        let seen = near.run(|| transfer_until(address, |leg| leg.rate_mbps.is_some())).unwrap();
        let rate = seen.rate_mbps.unwrap();
        // Headers take a twentieth of it.
        assert!((30.0..41.0).contains(&rate) && seen.connections == 1, "{seen:?}");
        assert!(seen.rtt_ms.unwrap() > 1.0, "the queue counts: {seen:?}");
        reader.join().unwrap();
    }

    /// Reads all that one connection sends.
    fn drain(listener: TcpListener) {
        let (mut accepted, _) = listener.accept().unwrap();
        let mut buffer = [0; 1 << 16];
        while accepted.read(&mut buffer).is_ok_and(|read| read > 0) {}
    }

    /// Sends until an observer of this host has seen what `is_enough`, and returns that.
    fn transfer_until(address: SocketAddr, is_enough: impl Fn(&PassiveLeg) -> bool) -> PassiveLeg {
        let passive = Passive::start().unwrap();
        let site = "here".parse().unwrap();
        passive.observer().watch(&[Watched { site, address: address.ip() }], 7001);
        let mut stream = TcpStream::connect(address).unwrap();
        let begun = Instant::now();
        loop {
            stream.write_all(&[7; 1 << 16]).unwrap();
            let seen = passive.observer().report();
            if let Some(leg) = seen.into_iter().find(&is_enough) {
                return leg;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "never seen");
        }
    }

    #[test]
    fn transfer_on_sockets_is_seen() {
        let listener = TcpListener::bind("127.0.0.9:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reader = thread::spawn(move || drain(listener));
        let seen = transfer_until(address, |_| true);
        assert!(seen.bytes >= 1 << 16 && seen.rtt_ms.is_some_and(|ms| ms > 0.0), "{seen:?}");
        assert_eq!(seen.to.as_str(), "here");
        reader.join().unwrap();
    }
}
