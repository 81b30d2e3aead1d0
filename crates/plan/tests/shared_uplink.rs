//! Tests of `auto` on a slow uplink that copies share with the packets that they protect, compared
//! with each service by itself, over loads, losses and budgets.
//!
//! A host's packets leave through one bottleneck with a drop-tail queue, copies to the relay next
//! to the packets; after that the Internet loses some at random. Receivers' reports and round-trip
//! times follow from that.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tradewind_model::packet::{PacketPath, PacketService};
use tradewind_plan::packets::BlockCoding;
use tradewind_plan::service::{
    Cause, DETECTION, Demand, FlowCosts, Report, ServiceKeeper, StandingQueue, choose, offers,
};
use tradewind_units::{Duration, Ratio, Timestamp};

use PacketService::{Caching, Coding, Direct, Forwarding};

/// Bytes a second of the uplink: 2 Mbit/s.
const UPLINK: f64 = 250_000.0;
/// Sizes of a packet, its copy and a request, with all headers.
const PACKET: f64 = 1_050.0;
const COPY: f64 = 1_106.0;
const QUESTION: f64 = 80.0;
/// One-way delays in seconds.
const INTERNET: f64 = 0.050;
const ACCESS: f64 = 0.010;
const BETWEEN: f64 = 0.035;
/// Greatest number of times that a lost copy is sent again.
const MAX_REPEATS: u32 = 2;
/// Age of a report when it arrives.
const REPORTED_AFTER: usize = 1;
/// Seconds for which fixed services run, and `auto`, which needs longer for its tries.
const SECONDS: usize = 60;
const AUTO_SECONDS: usize = 900;
/// Seconds from which packets count.
const WARM: usize = 10;
const AUTO_WARM: usize = 30;

/// One point of the sweep.
#[derive(Debug, Clone, Copy)]
struct Point {
    /// Share of the uplink that packets use.
    load: f64,
    /// The loss ratio of the Internet.
    loss: f64,
    budget: f64,
    /// Bytes of the queue.
    queue: f64,
    /// Packets that the application writes at once, such as those of a video frame.
    at_once: usize,
    seed: u64,
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Totals {
    /// Percentages of packets that did not arrive, or not within the budget.
    lost: f64,
    missed: f64,
    median_ms: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Packet {
    sent: f64,
    /// Its arrival by the Internet.
    internet: Option<f64>,
    /// Its copy's arrival at the first relay.
    copied: Option<f64>,
    service: Option<PacketService>,
    /// Its arrival by the Internet without loss.
    expected: f64,
    /// The random draw for a recovery.
    is_solved: bool,
}

impl Packet {
    /// Returns its first arrival, on any path.
    fn came(&self) -> Option<f64> {
        let egress = self.copied.map(|at| at + BETWEEN);
        let asked = self.expected + DETECTION.as_secs_f64() + ACCESS;
        let back = match self.service {
            Some(Forwarding) => egress.map(|at| at + ACCESS),
            Some(Caching) => egress.map(|at| at.max(asked) + ACCESS),
            Some(Coding) => {
                egress.filter(|_| self.is_solved).map(|at| (at + 0.03).max(asked) + 3.0 * ACCESS)
            }
            _ => None,
        };
        [self.internet, back].into_iter().flatten().reduce(f64::min)
    }
}

/// Times in whole microseconds, so that they have an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Packet,
    Repeat(usize, u32),
    Question,
    Second,
}

/// The method that selects the service.
enum Chooser {
    Fixed(PacketService),
    Auto(Box<Auto>),
}

struct Auto {
    demand: Demand,
    keeper: ServiceKeeper,
    queue: StandingQueue,
    costs: FlowCosts,
    /// Round-trip times over the Internet and to the relay, smoothed as in gateways.
    round_trips: [f64; 2],
    changes: Vec<(usize, PacketService, Cause)>,
}

struct World {
    point: Point,
    chooser: Chooser,
    random: Pcg64Mcg,
    /// Time at which the last byte in the queue has left.
    free_at: f64,
    packets: Vec<Packet>,
    agenda: BinaryHeap<Reverse<(u64, Due)>>,
}

fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

/// Returns the path as gateways estimate it from round-trip times.
fn path([internet, access]: [f64; 2], queue: Duration) -> PacketPath {
    let overlay = internet - 2.0 * INTERNET + 2.0 * (2.0 * ACCESS + BETWEEN);
    let less = |round_trip: f64| seconds(round_trip).saturating_sub(queue) / 2;
    let access = less(access);
    PacketPath {
        internet: less(internet),
        source_access: access,
        between_relays: less(overlay).saturating_sub(access * 2),
        receiver_access: access,
        helper_access: access,
        detection: DETECTION,
        encoding: Duration::from_millis(30),
    }
}

impl Auto {
    fn new(budget: f64) -> Self {
        let demand =
            Demand { budget: seconds(budget), bearable: Ratio::new(BEARABLE / 100.0).unwrap() };

        let costs = FlowCosts::new(None, BlockCoding::default().rates());
        let round_trips = [2.0 * INTERNET, 2.0 * ACCESS];
        let chosen = choose(demand, &path(round_trips, Duration::ZERO), Ratio::ZERO, &costs.now());
        let mut queue = StandingQueue::default();
        queue.note(Timestamp::ZERO, seconds(round_trips[0]), seconds(round_trips[1]));
        let keeper = ServiceKeeper::new(demand, &chosen);
        Self { demand, keeper, queue, costs, round_trips, changes: Vec::new() }
    }

    /// Updates the keeper once a second.
    fn look(&mut self, second: usize, report: Report) {
        let now = Timestamp::ZERO + Duration::from_secs(second as u64);
        let [internet, access] = self.round_trips.map(seconds);
        let queue = self.queue.note(now, internet, access);
        let path = path(self.round_trips, queue);
        let offers = offers(self.demand, &path, self.costs.loss(), &self.costs.now());
        let looked = self.keeper.look(&offers, queue);
        self.costs.note_report(report);
        let observed = self.keeper.observe(report);
        let changes = looked.into_iter().chain(observed);
        self.changes.extend(changes.map(|change| (second, change.service, change.cause)));
    }
}

impl World {
    fn new(point: Point, service: Option<PacketService>) -> Self {
        let chooser = match service {
            Some(service) => Chooser::Fixed(service),
            None => Chooser::Auto(Box::new(Auto::new(point.budget))),
        };
        let agenda = [Due::Packet, Due::Question, Due::Second]
            .map(|due| Reverse((u64::from(due == Due::Second) * 1_000_000, due)));
        World {
            point,
            chooser,
            random: Pcg64Mcg::seed_from_u64(point.seed),
            free_at: 0.0,
            packets: Vec::new(),
            agenda: agenda.into(),
        }
    }

    fn chance(&mut self, share: f64) -> bool {
        (self.random.next_u32() as f64) < share * f64::from(u32::MAX)
    }

    /// Puts a datagram of so many bytes on the uplink; returns when it has left, or `None` if the
    /// queue is full.
    fn leave(&mut self, now: f64, bytes: f64) -> Option<f64> {
        let waiting = (self.free_at - now).max(0.0) * UPLINK;
        if waiting + bytes > self.point.queue {
            return None;
        }
        self.free_at = self.free_at.max(now) + bytes / UPLINK;
        Some(self.free_at)
    }

    fn service(&self) -> PacketService {
        match &self.chooser {
            Chooser::Fixed(service) => *service,
            Chooser::Auto(auto) => auto.keeper.service(),
        }
    }

    fn at(&mut self, due_at: f64, due: Due) {
        self.agenda.push(Reverse(((due_at * 1e6) as u64, due)));
    }

    /// Sends the packets that the application writes at once.
    fn send(&mut self, now: f64) {
        (0..self.point.at_once).for_each(|_| self.send_one(now));
        // A little jitter, so that it is not always the same packet that is dropped.
        let jitter = 0.8 + 0.4 * f64::from(self.random.next_u32()) / f64::from(u32::MAX);
        let bytes = PACKET * self.point.at_once as f64;
        self.at(now + jitter * bytes / (self.point.load * UPLINK), Due::Packet);
    }

    fn send_one(&mut self, now: f64) {
        let service = self.service();
        let (is_lost, is_solved) = (self.chance(self.point.loss), !self.chance(0.03));
        let number = self.packets.len();
        let service = Some(service);
        self.packets.push(Packet { sent: now, service, is_solved, ..Packet::default() });
        // Either may be the first to leave, and take the last space in the queue.
        let is_copied = service != Some(Direct);
        let is_copy_first = is_copied && self.chance(0.5);
        if is_copy_first {
            self.copy(now, number, 0);
        }
        let left = self.leave(now, PACKET);
        let waits = (self.free_at - now).max(0.0);
        let packet = &mut self.packets[number];
        packet.internet = left.filter(|_| !is_lost).map(|left| left + INTERNET);
        packet.expected = left.unwrap_or(now + waits) + INTERNET;
        if is_copied && !is_copy_first {
            self.copy(now, number, 0);
        }
    }

    /// Sends a copy to the relay, and again if it does not arrive there.
    fn copy(&mut self, now: f64, number: usize, repeats: u32) {
        let left = self.leave(now, COPY);
        let is_forwarded = self.packets[number].service == Some(Forwarding);
        if let Some(left) = left {
            self.packets[number].copied = Some(left + ACCESS);
        } else if repeats < MAX_REPEATS && !is_forwarded {
            let retry_after = 2.0 * ACCESS + (self.free_at - now).max(0.0) + 0.02;
            if now + retry_after - self.packets[number].sent < self.point.budget {
                self.at(now + retry_after, Due::Repeat(number, repeats + 1));
            }
        }
    }

    fn ask(&mut self, now: f64) {
        for (path, usual) in [2.0 * INTERNET, 2.0 * ACCESS].into_iter().enumerate() {
            let left = self.leave(now, QUESTION);
            if let (Chooser::Auto(auto), Some(left)) = (&mut self.chooser, left) {
                let smoothed = &mut auto.round_trips[path];
                *smoothed = (*smoothed * 7.0 + left - now + usual) / 8.0;
            }
        }
        self.at(now + 0.2, Due::Question);
    }

    /// Returns the receiver's report: a packet is late if it exceeds its expected arrival by more
    /// than the budget allows.
    fn report(&self, second: usize) -> Report {
        let span = (second - 1) as f64..second as f64;
        let internet = match &self.chooser {
            Chooser::Auto(auto) => auto.round_trips[0],
            Chooser::Fixed(_) => 2.0 * INTERNET,
        };
        let retry_after = (self.point.budget - internet / 2.0).max(0.0);
        let mut report = Report { expected: 0, in_time: 0, lost_by_internet: 0 };
        let first = self.packets.partition_point(|packet| packet.sent < span.start);
        for packet in self.packets[first..].iter().take_while(|packet| packet.sent < span.end) {
            report.expected += 1;
            report.lost_by_internet += u64::from(packet.internet.is_none());
            let is_in_time = packet.internet.is_some()
                || packet.came().is_some_and(|came| came <= packet.expected + retry_after);
            report.in_time += u64::from(is_in_time);
        }
        report
    }

    /// Returns the end of sending, and the time from which packets count.
    fn spans(&self) -> [usize; 2] {
        match &self.chooser {
            Chooser::Fixed(_) => [SECONDS, WARM],
            Chooser::Auto(_) => [AUTO_SECONDS, AUTO_WARM],
        }
    }

    fn run(mut self) -> (Totals, Vec<(usize, PacketService, Cause)>) {
        while let Some(Reverse((micros, due))) = self.agenda.pop() {
            let now = micros as f64 / 1e6;
            match due {
                Due::Packet => self.send(now),
                Due::Repeat(number, repeats) => self.copy(now, number, repeats),
                Due::Question => self.ask(now),
                Due::Second => {
                    let second = now as usize;
                    if second >= self.spans()[0] {
                        break;
                    }
                    if second > REPORTED_AFTER {
                        let report = self.report(second - REPORTED_AFTER);
                        if let Chooser::Auto(auto) = &mut self.chooser {
                            auto.look(second, report);
                        }
                    }
                    self.at(now + 1.0, Due::Second);
                }
            }
        }
        let changes = match &mut self.chooser {
            Chooser::Auto(auto) => std::mem::take(&mut auto.changes),
            Chooser::Fixed(_) => Vec::new(),
        };
        (self.outcome_of(), changes)
    }

    fn outcome_of(&self) -> Totals {
        let [until, from] = self.spans();
        let counted = from as f64..(until - 3) as f64;
        let sent = self.packets.iter().filter(|packet| counted.contains(&packet.sent));
        let delays: Vec<Option<f64>> =
            sent.map(|packet| Some(packet.came()? - packet.sent)).collect();
        let share = |is_counted: &dyn Fn(&Option<f64>) -> bool| {
            100.0 * delays.iter().filter(|delay| is_counted(delay)).count() as f64
                / delays.len() as f64
        };
        let mut came: Vec<f64> = delays.iter().flatten().copied().collect();
        came.sort_by(f64::total_cmp);
        Totals {
            lost: share(&|delay| delay.is_none()),
            missed: share(&|delay| delay.is_none_or(|delay| delay > self.point.budget)),
            median_ms: came.get(came.len() / 2).map_or(f64::INFINITY, |delay| delay * 1e3),
        }
    }
}

fn outcome_of(point: Point, service: PacketService) -> Totals {
    World::new(point, Some(service)).run().0
}

/// Returns the best fixed service: the fastest of those that meet the demand; if none does, the
/// fastest of those whose misses are within a percentage point of the least.
fn best(fixed: &[(PacketService, Totals)]) -> (PacketService, Totals) {
    let least = fixed.iter().map(|(_, outcome_of)| outcome_of.missed).fold(f64::INFINITY, f64::min);
    let most = if least <= BEARABLE { BEARABLE } else { least + POINT };
    let of = fixed.iter().filter(|(_, outcome_of)| outcome_of.missed <= most);
    *of.min_by(|one, other| one.1.median_ms.total_cmp(&other.1.median_ms)).unwrap()
}

/// Loss that the flow tolerates, in percent.
const BEARABLE: f64 = 0.1;
/// Tolerances by which `auto` may be worse: percentage points, and milliseconds.
const POINT: f64 = 1.0;
const DELAY_MS: f64 = 10.0;

fn points(queue: f64) -> Vec<Point> {
    let mut points = Vec::new();
    for load in [0.3, 0.45, 0.55, 0.7, 0.9, 1.1, 1.5] {
        for loss in [0.0, 0.01, 0.03] {
            for (budget, at_once) in [(0.15, 1), (0.15, 3), (1.0, 3)] {
                let seed = points.len() as u64 + 1;
                points.push(Point { load, loss, budget, queue, at_once, seed });
            }
        }
    }
    points
}

/// Returns a description of `auto`'s result, if it is worse than tolerated.
fn worse(point: Point) -> Option<String> {
    let fixed = [Direct, Coding, Caching, Forwarding].map(|of| (of, outcome_of(point, of)));
    let (auto, changes) = World::new(point, None).run();
    let (service, best) = best(&fixed);
    let is_as_good = auto.missed <= best.missed + POINT
        && auto.lost <= best.lost + POINT
        && auto.median_ms <= best.median_ms + DELAY_MS;
    let direct = fixed[0].1;
    let is_no_harm = auto.missed <= direct.missed + POINT;
    (!(is_as_good && is_no_harm)).then(|| {
        format!("{point:?}: auto {auto:?}, {service:?} {best:?}\n  {fixed:?}\n  {changes:?}\n")
    })
}

#[test]
fn auto_matches_best_service_on_shared_uplink() {
    // The queues are 600 and 100 ms of the uplink.
    for queue in [150_000.0, 25_000.0] {
        let worse: Vec<String> = points(queue).into_iter().filter_map(worse).collect();
        assert!(
            worse.is_empty(),
            "{} of {}:\n{}",
            worse.len(),
            points(queue).len(),
            worse.concat()
        );
    }
}
