//! Time until new sessions leave a path that dies or slows down: `stream-failover`.
//!
//! A client opens a session every few hundredths of a second; the server replies with the address
//! that the session came from, so that each session's path is known. The first path dies silently,
//! then the second as well, and both come back; the first one dies behind its first relay, comes
//! back, and slows down.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tradewind_desired::{Route, RouteTable};
use tradewind_grant::Destination;
use tradewind_lab::{LabError, LabOptions};
use tradewind_units::{FlowId, HostId, RelayId};
use tradewind_wan::{PairChange, Topology};

use crate::harness::carry::STOP_CHECK;
use crate::harness::checked::Checked;
use crate::harness::fetch::{FileServer, read_exactly};
use crate::harness::process::Service;
use crate::harness::service::{LegText, NewGateway, NewRelay};
use crate::harness::{
    Experiment, ExperimentError, Finding, LabContext, Observer, ProcessError, Record, Row,
    RunOptions, Runs, ScenarioError, from_toml, missing, repeats, round_trip, service, unusable,
};

/// Ports of the server and of the relays.
const SERVER_PORT: u16 = 8000;
const RELAY_PORT: u16 = 7001;
/// Timeout of a session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(5);
/// Least duration of a session that has waited for a dead relay: no gateway's dial timeout is
/// shorter.
const DEAD_DIAL: Duration = Duration::from_secs(1);
/// Time within which new sessions must avoid a dead path, or three round trips if that is more, and
/// a slow one.
const DEAD_WITHIN: Duration = Duration::from_secs(1);
const SLOW_WITHIN: Duration = Duration::from_secs(2);
/// Time before the next change within which sessions that begin may still be under way then, and
/// are left out.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// Sessions in a row over the first path after which it counts as used again.
const RETURNED: usize = 10;

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    topology: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    client: HostId,
    server: HostId,
    /// The gateway's paths, the best first; direct follows.
    paths: [Vec<HostId>; 2],
    every_s: f64,
    settle_s: f64,
    watch_s: f64,
    /// The same for the leg between relays, longer than a session's timeout: sessions that hang
    /// there must fail before it is repaired.
    inner_watch_s: f64,
    longest_return_s: f64,
    slow_rtt: String,
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let spans = [scenario.settle_s, scenario.watch_s, scenario.longest_return_s];
        let least_inner_s = (SESSION_TIMEOUT + UNDER_WAY).as_secs_f64();
        let what = if scenario.paths[0].len() < 2 || scenario.paths[1].is_empty() {
            "paths: two, the first over at least two relays, the second over at least one"
                .to_owned()
        } else if !(0.01..=1.0).contains(&scenario.every_s) {
            "every_s: 0.01 to 1".to_owned()
        } else if !(least_inner_s..=60.0).contains(&scenario.inner_watch_s) {
            format!("inner_watch_s: {least_inner_s} to 60")
        } else if !spans.iter().all(|span| (1.0..=60.0).contains(span)) {
            "settle_s, watch_s, longest_return_s: 1 to 60".to_owned()
        } else {
            match PairChange::parse("a,b", [scenario.rtt_setting().as_str()]) {
                Ok(_) => return Ok(scenario),
                Err(error) => format!("slow_rtt: {error}"),
            }
        };
        Err(ScenarioError::Inconsistent { what })
    }

    fn hosts(&self) -> impl Iterator<Item = &HostId> {
        [&self.client, &self.server].into_iter().chain(self.paths.iter().flatten())
    }

    fn rtt_setting(&self) -> String {
        format!("rtt={}", self.slow_rtt)
    }

    /// Returns the time within which the path must be left when it dies.
    fn dead_within(&self, topology: &Topology, path: usize) -> Duration {
        let stops: Vec<&HostId> = [&self.client].into_iter().chain(&self.paths[path]).collect();
        let rtt: Duration = stops.windows(2).map(|leg| round_trip(topology, leg[0], leg[1])).sum();
        DEAD_WITHIN.max(rtt * 3)
    }
}

/// One session.
#[derive(Debug, Clone, Copy)]
struct Session {
    /// Its begin, from the begin of the repeat.
    at: Duration,
    took: Duration,
    /// Address that the server saw; `None` when the session failed.
    from: Option<IpAddr>,
}

/// Effect of a change on new sessions.
#[derive(Debug, Clone, Copy)]
struct Left {
    /// Time from the change to the begin of the last session that had not left yet, in seconds.
    after_s: f64,
    /// Sessions since the change that failed.
    failed: usize,
    /// Failed sessions that had begun before the change, by [`UNDER_WAY`] at most.
    caught: usize,
    /// Sessions after that last one.
    since: usize,
}

/// Effect of one of the changes in a repeat.
type OfRepeat = fn(&Outcome) -> Left;

/// Results of a repeat.
struct Outcome {
    /// Sessions over the first path before anything broke: a path that is not used cannot be left.
    over_first: usize,
    first_dies: Left,
    both_dead: Left,
    middle_dies: Left,
    /// Time until the first path is used again after its first leg came back, and after its second
    /// one did, in seconds.
    returned_s: [Option<f64>; 2],
    slows: Left,
}

/// Runs the experiment.
///
/// # Errors
/// When the scenario makes no sense, the lab or a process on it fails, or the run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let lacks = |topology: &Topology| missing(topology, scenario.hosts());
    let topology = experiment.read_topology(options, &scenario.topology, lacks)?;
    let seeds = scenario.runs.seeds(options);
    let completed = repeats::each("break paths", &seeds, 1, options, observer, |seed, checked| {
        repeat(&scenario, &topology, options, *seed, checked)
    })?;
    Ok(completed.record(|repeats, options| record(&scenario, &topology, options, repeats)))
}

fn repeat(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    seed: u64,
    checked: &mut Checked,
) -> Result<Outcome, ProcessError> {
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(topology, &lab, &options.program, &options.stop)?;
    let server = FileServer::answering(&context, &scenario.server, SERVER_PORT, send_peer_address)?;
    let (dial_address, _services) = start(scenario, &context, server.address)?;
    let field = Field {
        scenario,
        topology,
        context: &context,
        dial_address,
        begun: Instant::now(),
        over: AtomicBool::new(false),
        sessions: Mutex::default(),
    };
    thread::scope(|scope| {
        let clients = scope.spawn(|| field.open_sessions());
        let played = field.play();
        field.over.store(true, Ordering::Relaxed);
        clients.join().expect("a client does not panic")?;
        let played = played?;
        checked.add(&format!("seed {seed}"), played.reasons.clone());
        played.outcome(&field)
    })
}

/// Replies with the peer's address.
fn send_peer_address(mut stream: TcpStream, stop: &AtomicBool) -> std::io::Result<()> {
    stream.set_read_timeout(Some(STOP_CHECK))?;
    read_exactly(&mut stream, &mut [0; 1], stop)?;
    let peer = stream.peer_addr()?;
    stream.write_all(peer.ip().to_string().as_bytes())
}

/// Starts the relays of both paths, and on the client's host a gateway with both paths and direct.
fn start(
    scenario: &Scenario,
    context: &LabContext,
    server: SocketAddr,
) -> Result<(SocketAddr, Vec<Service>), ProcessError> {
    let operator = service::operator()?;
    let destination = Destination::address(server)?;
    let rule = destination.as_rule();
    let leg = LegText::encrypted(None);
    let (mut services, mut routes, mut relays) = (Vec::new(), Vec::new(), Vec::new());
    for path in &scenario.paths {
        let mut hops = Vec::new();
        for host in path {
            let relay =
                NewRelay::new(context, RelayId::new(host.as_str())?, host.clone(), RELAY_PORT)?;
            services.push(relay.start(context, &operator, std::slice::from_ref(&rule), &leg)?);
            relays.push(relay.hop.identity);
            hops.push(relay.hop);
        }
        routes.push(Route::Relays(hops));
    }
    routes.push(Route::Direct);
    let table = RouteTable::with_fallbacks(vec![(rule, routes)], vec![Route::Refuse]);
    let table = table.map_err(|error| unusable("routes", &error))?;
    let flow = FlowId::new("failover")?;
    let gateway = NewGateway {
        name: "gateway",
        host: &scenario.client,
        forwards: vec![(&flow, &destination)],
        relays,
        routes: &table,
        intercepts: false,
        leg: &LegText { accept: None, ..leg },
        metrics: service::metrics_at(service::FIRST_GATEWAY),
    };
    let (gateway, listening) = gateway.start(context, &operator)?;
    services.push(gateway);
    Ok((listening.first().copied().expect("one port for one flow"), services))
}

/// The lab of a repeat, and its sessions.
struct Field<'a> {
    scenario: &'a Scenario,
    topology: &'a Topology,
    context: &'a LabContext,
    dial_address: SocketAddr,
    begun: Instant,
    over: AtomicBool,
    sessions: Mutex<Vec<Session>>,
}

/// Times of the changes.
struct Played {
    first_dies: Duration,
    both_dead: Duration,
    restored: Duration,
    middle_dies: Duration,
    middle_restored: Duration,
    /// Times of the first path's return, after the first and the second repair.
    returned: [Option<Duration>; 2],
    slows: Duration,
    end: Duration,
    reasons: Vec<String>,
}

impl Field<'_> {
    fn sessions(&self) -> MutexGuard<'_, Vec<Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens sessions until the repeat is over.
    fn open_sessions(&self) -> Result<(), ProcessError> {
        let namespace = self.context.lab.namespace(&self.scenario.client)?;
        thread::scope(|scope| {
            let mut due = self.begun.elapsed();
            while !self.over.load(Ordering::Relaxed) {
                scope.spawn(|| {
                    let at = self.begun.elapsed();
                    let asked = namespace.run(|| ask(self.dial_address));
                    let from = asked.ok().and_then(Result::ok);
                    self.sessions().push(Session { at, took: self.begun.elapsed() - at, from });
                });
                due += Duration::from_secs_f64(self.scenario.every_s);
                thread::sleep(due.saturating_sub(self.begun.elapsed()));
            }
        });
        Ok(())
    }

    /// Breaks and repairs paths, one after the other.
    fn play(&self) -> Result<Played, ProcessError> {
        let scenario = self.scenario;
        self.wait(scenario.settle_s)?;
        self.context.lab.reset_validity()?;
        let [first, other] = scenario.paths.each_ref().map(|path| [&scenario.client, &path[0]]);
        let middle = [&scenario.paths[0][0], &scenario.paths[0][1]];
        let first_dies = self.alter(first, "loss=1")?;
        self.wait(scenario.watch_s)?;
        let both_dead = self.alter(other, "loss=1")?;
        self.wait(scenario.watch_s)?;
        self.alter(other, "loss=0")?;
        let restored = self.alter(first, "loss=0")?;
        let returned = self.wait_for_return(restored)?;
        let middle_dies = self.alter(middle, "loss=1")?;
        self.wait(scenario.inner_watch_s)?;
        let middle_restored = self.alter(middle, "loss=0")?;
        let returned = [returned, self.wait_for_return(middle_restored)?];
        let slows = self.alter(first, &scenario.rtt_setting())?;
        self.wait(scenario.watch_s)?;
        let (end, reasons) = (self.begun.elapsed(), self.context.lab.validity()?.reasons);
        Ok(Played {
            first_dies,
            both_dead,
            restored,
            middle_dies,
            middle_restored,
            returned,
            slows,
            end,
            reasons,
        })
    }

    fn wait(&self, seconds: f64) -> Result<(), ProcessError> {
        self.context.wait(Duration::from_secs_f64(seconds))
    }

    /// Waits for the return of the first path; returns the begin of the sessions over it that no
    /// other interrupts.
    fn wait_for_return(&self, since: Duration) -> Result<Option<Duration>, ProcessError> {
        let first = self.seen_from(0)?;
        let limit = since + Duration::from_secs_f64(self.scenario.longest_return_s);
        while self.begun.elapsed() < limit {
            self.wait(self.scenario.every_s)?;
            let sessions = self.sessions();
            let back = sessions.iter().rev().take_while(|session| session.from == Some(first));
            let back: Vec<Duration> = back.map(|session| session.at).collect();
            if back.len() >= RETURNED && back.iter().all(|at| *at >= since) {
                return Ok(back.into_iter().min());
            }
        }
        Ok(None)
    }

    /// Alters the leg between two hosts; returns the time of that.
    fn alter(&self, leg: [&HostId; 2], setting: &str) -> Result<Duration, ProcessError> {
        let site = |host: &HostId| {
            let index = self.topology.host(host).expect("the scenario was checked");
            let site = self.topology.hosts[usize::from(index.0)].site;
            self.topology.sites[usize::from(site.0)].id.clone()
        };
        let [from, to] = leg.map(site);
        let change = PairChange::parse(&format!("{from},{to}"), [setting]);
        self.context.lab.apply(&change.map_err(LabError::from)?)?;
        Ok(self.begun.elapsed())
    }

    /// Returns the address that the server sees when a session uses a path; direct comes after the
    /// paths.
    fn seen_from(&self, path: usize) -> Result<IpAddr, ProcessError> {
        let last = self.scenario.paths.get(path).and_then(|relays| relays.last());
        let host = last.unwrap_or(&self.scenario.client);
        Ok(IpAddr::V4(self.context.lab.address_v4(host)?))
    }
}

impl Played {
    fn outcome(self, field: &Field<'_>) -> Result<Outcome, ProcessError> {
        let (first, other, direct) =
            (field.seen_from(0)?, field.seen_from(1)?, field.seen_from(2)?);
        let sessions = field.sessions();
        let quickly = |session: &Session| session.took < DEAD_DIAL;
        let over = |to: IpAddr| move |session: &Session| session.from == Some(to);
        let takes = |to| move |session: &Session| over(to)(session) && quickly(session);
        let until = |at: Option<Duration>, since| at.map(|at| (at - since).as_secs_f64());
        let left = |from, to, has_left: &dyn Fn(&Session) -> bool| {
            left_after(&sessions, from..to, has_left)
        };
        let over_first = sessions.iter().filter(|session| session.at < self.first_dies);
        Ok(Outcome {
            over_first: over_first.filter(|session| over(first)(session)).count(),
            first_dies: left(self.first_dies, self.both_dead, &takes(other)),
            both_dead: left(self.both_dead, self.restored, &takes(direct)),
            middle_dies: left(self.middle_dies, self.middle_restored, &takes(other)),
            returned_s: [
                until(self.returned[0], self.restored),
                until(self.returned[1], self.middle_restored),
            ],
            slows: left(self.slows, self.end, &|session| {
                session.from.is_some() && !over(first)(session)
            }),
        })
    }
}

/// Returns the effect of the change at the begin of `span` on the sessions that began within it.
fn left_after(
    sessions: &[Session],
    span: std::ops::Range<Duration>,
    has_left: &dyn Fn(&Session) -> bool,
) -> Left {
    let begin = span.start..span.end.saturating_sub(UNDER_WAY);
    let within: Vec<&Session> =
        sessions.iter().filter(|session| begin.contains(&session.at)).collect();
    let last = within.iter().filter(|session| !has_left(session)).map(|session| session.at).max();
    let before = span.start.saturating_sub(UNDER_WAY)..span.start;
    let caught = sessions.iter().filter(|it| before.contains(&it.at) && it.from.is_none()).count();
    Left {
        after_s: last.map_or(0.0, |at| (at - span.start).as_secs_f64()),
        caught,
        failed: within.iter().filter(|session| session.from.is_none()).count(),
        since: within.iter().filter(|session| last.is_none_or(|last| session.at > last)).count(),
    }
}

/// Asks the server for the address that it sees.
fn ask(dial_address: SocketAddr) -> std::io::Result<IpAddr> {
    let mut stream = TcpStream::connect_timeout(&dial_address, SESSION_TIMEOUT)?;
    stream.set_read_timeout(Some(SESSION_TIMEOUT))?;
    stream.write_all(&[1])?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    answer.parse().map_err(|_| std::io::ErrorKind::InvalidData.into())
}

fn record(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    repeats: &[Outcome],
) -> Record {
    let (mut rows, mut findings, mut all_failed) = (Vec::new(), Vec::new(), Vec::new());
    let dead = |path| scenario.dead_within(topology, path);
    let middle = "the first dies behind its first relay, the second takes over";
    let changes: [(&str, Duration, OfRepeat); 4] = [
        ("the first path dies, the second takes over", dead(0), |it| it.first_dies),
        ("the second dies as well, sessions go direct", dead(1), |it| it.both_dead),
        (middle, dead(0), |it| it.middle_dies),
        ("the first path slows down", SLOW_WITHIN, |it| it.slows),
    ];
    for (name, within, of) in changes {
        let lefts: Vec<Left> = repeats.iter().map(of).collect();
        let after: Vec<f64> = lefts.iter().map(|left| left.after_s).collect();
        let sum = |of: fn(&Left) -> usize| lefts.iter().map(of).sum::<usize>();
        let (failed, caught) = (sum(|left| left.failed), sum(|left| left.caught));
        let latest = after.iter().copied().fold(f64::NAN, f64::max);
        let note = format!(
            "{failed} sessions failed that began after it, {caught} that were opening when it came"
        );
        rows.push(Row::of_median(&format!("{name}: left after"), None, &after, "s", &note));
        let within_s = within.as_secs_f64();
        let holds = latest <= within_s && lefts.iter().all(|left| left.since >= RETURNED);
        let claim = format!("{name}: new sessions avoid it within {within_s:.1} s");
        findings.push(Finding::new(&claim, holds, format!("within {latest:.2} s at the latest")));
        all_failed.push(failed);
    }
    let claim = "no session fails that begins after a path has died or slowed down";
    let ours = format!("by change, in their order: {all_failed:?} sessions");
    findings.push(Finding::new(claim, all_failed.iter().all(|failed| *failed == 0), ours));
    let over_first = repeats.iter().map(|repeat| repeat.over_first).min().unwrap_or(0);
    let claim = "before anything breaks, sessions come over the first path";
    findings
        .insert(0, Finding::new(claim, over_first >= RETURNED, format!("{over_first} at least")));
    let (more_rows, finding) = returned(repeats);
    rows.extend(more_rows);
    findings.push(finding);
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(scenario.runs.describe_medians(options));
    Record::of_tables(&scenario.name, assumptions, (rows, findings))
}

/// Returns rows and a finding on the time until the first path is used again, each time that it has
/// come back.
fn returned(repeats: &[Outcome]) -> ([Row; 2], Finding) {
    let times = |time: usize| -> Vec<f64> {
        repeats.iter().filter_map(|repeat| repeat.returned_s[time]).collect()
    };
    let both = [times(0), times(1)];
    let row = |what: &str, times: &[f64]| {
        Row::of_median(&format!("{what}: the first is taken again after"), None, times, "s", "")
    };
    let rows = [row("both come back", &both[0]), row("its second leg comes back", &both[1])];
    let latest = both.iter().flatten().copied().fold(f64::NAN, f64::max);
    let holds = both.iter().all(|times| times.len() == repeats.len());
    let claim = "once it has proven itself, the first path is taken again";
    (rows, Finding::new(claim, holds, format!("after {latest:.2} s at the latest")))
}

#[cfg(test)]
mod tests {
    use tradewind_model::Catalogue;

    use super::*;

    const TEXT: &str = include_str!("../../scenarios/stream-failover.toml");

    #[test]
    fn built_in_scenario_is_consistent() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let topology = include_str!("../../scenarios/stream-wan.toml");
        let topology = Topology::parse(topology, &Catalogue::builtin()).unwrap();
        assert!(scenario.hosts().all(|host| topology.host(host).is_some()));
        assert_eq!(scenario.dead_within(&topology, 0), Duration::from_secs(1));
        let short = TEXT.replace("[\"relay-near\", \"relay-remote\"]", "[\"relay-near\"]");
        let error = Scenario::parse(&short).unwrap_err().to_string();
        assert!(error.contains("at least two relays"), "{error}");
        let short = TEXT.replace("inner_watch_s = 7", "inner_watch_s = 5");
        let error = Scenario::parse(&short).unwrap_err().to_string();
        assert!(error.contains("inner_watch_s: 6 to 60"), "{error}");
        let altered = TEXT.replace("420 ms", "420");
        let error = Scenario::parse(&altered).unwrap_err().to_string();
        assert!(error.contains("slow_rtt"), "{error}");
    }

    #[test]
    fn leaving_time_is_that_of_the_last_session() {
        let ms = Duration::from_millis;
        let session = |at, alive: bool| Session {
            at: ms(at),
            took: ms(10),
            from: alive.then_some(IpAddr::from([10, 0, 0, 1])),
        };
        let sessions =
            [session(900, false), session(1000, true), session(1400, false), session(1500, true)];
        let left = left_after(&sessions, ms(1000)..ms(3000), &|session| session.from.is_some());
        assert_eq!((left.after_s, left.failed, left.caught, left.since), (0.4, 1, 1, 1));
        let left = left_after(&sessions, ms(1450)..ms(3000), &|session| session.from.is_some());
        assert_eq!((left.after_s, left.failed, left.since), (0.0, 0, 1));
    }
}
