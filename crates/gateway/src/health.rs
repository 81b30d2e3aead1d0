//! The health of a path: a state machine that decides by the results of probes and sessions whether
//! new sessions use the path.
//!
//! Pure: the time is an argument, so the tests run in virtual time. Probes are sent along the path
//! in [`LANES`] lanes, each on a connection of its own, one probe every [`INTERVAL`] in all.
//!
//! ```text
//!            answered                    slow                       silent, or failed
//! Unproven ----------> Good ----------------------> Slow    any ----------------------> Dead
//!                       ^                            |                                   |
//!                       +-- good answers for a while +-----------------------------------+
//! ```
//!
//! A path is *silent* if a probe has waited for longer than the probe timeout and no probe sent
//! later has been answered: one connection that hangs by itself proves nothing. It is *slow* if its
//! last three round trips are all well above its own minimum, or far above an alternative's; to be
//! good again they must come well below that. A path that was slow or dead must do well for
//! [`FIRST_PROOF`] before it is good again, and for twice as long each time it fails again soon
//! after: a flapping path is soon avoided.

use std::collections::VecDeque;
use std::fmt;

use tradewind_units::time::as_millis_f64;
use tradewind_units::{Duration, Timestamp};

/// The number of connections that carry probes at the same time.
pub(super) const LANES: usize = 2;
/// Interval between two probes of one path. Chosen: with the least probe timeout it makes 0.95 s,
/// so that a path is known to be dead within a second.
pub(super) const INTERVAL: Duration = Duration::from_millis(200);
/// Least wait before an unanswered probe counts. Chosen: above Linux's least retransmission timeout
/// and a few round trips, so that a lost packet is no outage.
const MIN_PROBE_TIMEOUT: Duration = Duration::from_millis(750);
/// Probe timeout before the first answer, when no round trip is known. Chosen.
const FIRST_PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Least dial limit for a relay while there is another path. Chosen: as fast as a dead path is to
/// be left.
const MIN_DIAL: Duration = Duration::from_secs(1);
/// Number of consecutive round trips above the limit that make a path slow. Chosen: a lost packet
/// delays one or two.
const SLOW_SAMPLES: usize = 3;
/// Percentage of the least round trip above which, with [`SLOW_FLOOR`] added, a path is slow; it is
/// good again half way back. Chosen.
const SLOW_PERCENT: u32 = 150;
/// Least increase over the least round trip that makes a path slow: a relay that is scheduled late
/// does not. Chosen.
const SLOW_FLOOR: Duration = Duration::from_millis(20);
/// Multiple of an alternative's round trip above which a path is slow as well. Chosen: the planner
/// may prefer a longer path for its shorter legs, but not by as much.
const SLOW_TIMES_ALTERNATIVE: u32 = 3;
/// Time for which a path must do well to become good again. Chosen: ten probes.
const FIRST_PROOF: Duration = Duration::from_secs(2);
/// The longest such time. Chosen.
const MAX_PROOF: Duration = Duration::from_secs(60);
/// A path that fails within so many of these times of becoming good became good too early.
const RELAPSE_PROOFS: u32 = 5;
/// The least round trip is measured over the last one to two of these spans, so that a path whose
/// route has become longer is not slow for ever. Chosen.
const LOW_SPAN: Duration = Duration::from_secs(300);

/// The state of a path, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// Nothing is known yet; the path is used, since otherwise nothing would be.
    Unproven,
    /// Its probes are answered in the usual time.
    Good,
    /// Its probes are answered late.
    Slow,
    /// Its probes are not answered, or it has failed.
    Dead,
}

impl State {
    pub(super) const ALL: [Self; 4] = [Self::Unproven, Self::Good, Self::Slow, Self::Dead];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Unproven => "unproven",
            Self::Good => "good",
            Self::Slow => "slow",
            Self::Dead => "dead",
        }
    }

    /// Returns the rank among alternatives: usable paths first, in the order of the table, then
    /// slow ones, then dead ones.
    pub(super) const fn rank(self) -> u8 {
        match self {
            Self::Unproven | Self::Good => 0,
            Self::Slow => 1,
            Self::Dead => 2,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The health of one path.
#[derive(Debug, Clone)]
pub(super) struct Health {
    state: State,
    cause: String,
    since: Timestamp,
    /// Time at which its probes began, all over fresh connections.
    begun: Timestamp,
    /// Time since which each lane has waited for an answer.
    waiting: [Option<Timestamp>; LANES],
    /// Send time of the latest probe, by send time, that has been answered.
    answered: Option<Timestamp>,
    legs: Vec<Duration>,
    recent: VecDeque<Duration>,
    low: Low,
    alternative: Option<Duration>,
    good_since: Option<Timestamp>,
    proof: Duration,
    came_back: Option<Timestamp>,
}

/// The least round trip of the last one to two [`LOW_SPAN`]s.
#[derive(Debug, Clone, Default)]
struct Low {
    begun: Timestamp,
    before: Option<Duration>,
    now: Option<Duration>,
}

impl Low {
    fn add(&mut self, now: Timestamp, rtt: Duration) {
        if now.since(self.begun) >= LOW_SPAN {
            (self.begun, self.before, self.now) = (now, self.now, None);
        }
        self.now = Some(self.now.map_or(rtt, |low| low.min(rtt)));
    }

    fn get(&self) -> Option<Duration> {
        self.before.into_iter().chain(self.now).min()
    }
}

impl Health {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            state: State::Unproven,
            cause: "no probe has been answered yet".to_owned(),
            since: now,
            begun: now,
            waiting: [None; LANES],
            answered: None,
            legs: Vec::new(),
            recent: VecDeque::with_capacity(SLOW_SAMPLES),
            low: Low::default(),
            alternative: None,
            good_since: None,
            proof: FIRST_PROOF,
            came_back: None,
        }
    }

    /// Begins probing, either for the first time or anew after earlier probes were given up.
    pub(super) fn begin(&mut self, now: Timestamp) {
        (self.begun, self.waiting) = (now, [None; LANES]);
    }

    /// Notes that a probe is due on `lane`.
    pub(super) fn due(&mut self, lane: usize, now: Timestamp) {
        self.waiting[lane].get_or_insert(now);
    }

    /// Notes that the probe on `lane` was not sent, by this host's own fault: no answer is awaited.
    pub(super) fn not_sent(&mut self, lane: usize) {
        self.waiting[lane] = None;
    }

    /// Notes the answer to the probe on `lane` that was sent at `sent`.
    pub(super) fn answered(
        &mut self,
        lane: usize,
        sent: Timestamp,
        now: Timestamp,
        legs: Vec<Duration>,
    ) {
        self.waiting[lane] = None;
        self.answered = self.answered.max(Some(sent));
        let rtt = legs.iter().sum();
        self.legs = legs;
        self.low.add(now, rtt);
        if self.recent.len() == SLOW_SAMPLES {
            self.recent.pop_front();
        }
        self.recent.push_back(rtt);
        self.weigh(now);
    }

    /// Notes a failure of a probe or session that can only be the path's fault.
    pub(super) fn failed(&mut self, now: Timestamp, cause: &str) {
        self.good_since = None;
        self.turn(now, State::Dead, || cause.to_owned());
    }

    /// Sets the least round trip of the other good paths to the same destinations.
    pub(super) fn set_alternative(&mut self, rtt: Option<Duration>) {
        self.alternative = rtt;
    }

    /// Returns the state now. Silence is detected here, since nothing else happens when no answer
    /// arrives.
    pub(super) fn state(&mut self, now: Timestamp) -> State {
        if let Some(silence) = self.silence(now) {
            self.good_since = None;
            self.turn(now, State::Dead, || {
                format!("no answer for {:.0} ms", as_millis_f64(silence))
            });
        }
        self.state
    }

    /// Returns the reason for its state.
    pub(super) fn cause(&self) -> &str {
        &self.cause
    }

    /// Returns the time since which it has been in its state.
    pub(super) const fn since(&self) -> Timestamp {
        self.since
    }

    /// Returns the round trips of the legs, as the last probe measured them.
    pub(super) fn legs(&self) -> &[Duration] {
        &self.legs
    }

    /// Returns the round trip of all legs together, as the last probe measured it.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.recent.back().copied()
    }

    /// Returns the least recent round trip.
    pub(super) fn low(&self) -> Option<Duration> {
        self.low.get()
    }

    /// Returns the dial limit for the first relay while there is another path.
    pub(super) fn dial_limit(&self) -> Duration {
        self.legs.first().map_or(MIN_DIAL, |leg| MIN_DIAL.max(*leg * 3))
    }

    /// Returns the limit for the dials between relays of the path while there is another path, by
    /// the same rule as for the first relay.
    pub(super) fn inner_dial_limit(&self) -> Duration {
        let longest = self.legs.iter().skip(1).max();
        longest.map_or(MIN_DIAL, |leg| MIN_DIAL.max(*leg * 3))
    }

    /// Returns the probe timeout: with the interval, a dead path is known after one second or three
    /// round trips.
    pub(super) fn probe_timeout(&self) -> Duration {
        match self.low() {
            None => FIRST_PROBE_TIMEOUT,
            Some(low) => MIN_PROBE_TIMEOUT.max((low * 3).saturating_sub(INTERVAL)),
        }
    }

    /// Returns the wait of the oldest unanswered probe, if that exceeds the probe timeout and no
    /// probe sent later has been answered.
    fn silence(&self, now: Timestamp) -> Option<Duration> {
        let begun = |since: &Timestamp| self.answered.is_none_or(|answered| answered < *since);
        let oldest = self.waiting.iter().flatten().filter(|since| begun(since)).min()?;
        let is_first = oldest.since(self.begun) < INTERVAL * LANES as u32;
        let dial = self.low().filter(|_| is_first).unwrap_or_default() * 2;
        let probe_timeout = self.probe_timeout() + dial;
        Some(now.since(*oldest)).filter(|waited| *waited > probe_timeout)
    }

    /// Updates the state after an answer: to slow, or to good if the path has done well for long
    /// enough.
    fn weigh(&mut self, now: Timestamp) {
        let (Some(low), Some(rtt)) = (self.low(), self.rtt()) else { return };
        let is_slow = self.recent.len() == SLOW_SAMPLES
            && self.recent.iter().all(|rtt| *rtt > slow_above(low, self.alternative));
        if is_slow && self.state <= State::Good {
            let alternative = self.alternative;
            self.turn(now, State::Slow, || slow_cause(rtt, low, alternative));
        }
        if rtt > good_below(slow_above(low, self.alternative), low) {
            self.good_since = None;
            return;
        }
        let good_for = now.since(*self.good_since.get_or_insert(now));
        match self.state {
            State::Good => {}
            State::Unproven => self.turn(now, State::Good, || "it answers".to_owned()),
            State::Slow | State::Dead if good_for >= self.proof => {
                self.came_back = Some(now);
                self.turn(now, State::Good, || "it has proven itself".to_owned());
            }
            State::Slow | State::Dead => {}
        }
    }

    fn turn(&mut self, now: Timestamp, state: State, cause: impl FnOnce() -> String) {
        if state == self.state {
            return;
        }
        if state > State::Good && self.state <= State::Good {
            let too_early =
                self.came_back.is_some_and(|back| now.since(back) < self.proof * RELAPSE_PROOFS);
            self.proof = if too_early { (self.proof * 2).min(MAX_PROOF) } else { FIRST_PROOF };
        }
        if state > State::Good {
            self.good_since = None;
        }
        (self.state, self.since, self.cause) = (state, now, cause());
    }
}

fn slow_above(low: Duration, alternative: Option<Duration>) -> Duration {
    let own = low * SLOW_PERCENT / 100 + SLOW_FLOOR;
    match alternative {
        None => own,
        Some(alternative) => own.min(alternative * SLOW_TIMES_ALTERNATIVE + SLOW_FLOOR),
    }
}

/// Returns the point half way from the least round trip to the limit of slow. If an alternative
/// sets that limit below the path's own minimum, the limit itself is returned.
fn good_below(slow_above: Duration, low: Duration) -> Duration {
    if slow_above > low { low + (slow_above - low) / 2 } else { slow_above }
}

fn slow_cause(rtt: Duration, low: Duration, alternative: Option<Duration>) -> String {
    let ms = as_millis_f64;
    match alternative {
        Some(other) if slow_above(low, None) > slow_above(low, alternative) => {
            format!("round trip {:.1} ms, an alternative's {:.1} ms", ms(rtt), ms(other))
        }
        _ => format!("round trip {:.1} ms, at best {:.1} ms", ms(rtt), ms(low)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path in virtual time: probes leave every interval, on the lanes in turn, and are answered
    /// after the round trip of the moment, or never.
    struct Path {
        health: Health,
        now: Timestamp,
        due: [Timestamp; LANES],
        flying: [Option<(Timestamp, Option<Duration>)>; LANES],
    }

    const STEP: Duration = Duration::from_millis(5);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    impl Path {
        fn new() -> Self {
            let due = std::array::from_fn(|lane| Timestamp::ZERO + INTERVAL * lane as u32);
            Self {
                health: Health::new(Timestamp::ZERO),
                now: Timestamp::ZERO,
                due,
                flying: [None; LANES],
            }
        }

        /// Advances one step, with the round trip that a packet takes now; `None` if nothing
        /// arrives.
        fn step(&mut self, rtt: Option<Duration>) -> State {
            self.now = self.now + STEP;
            for lane in 0..LANES {
                if let Some((sent, answer)) = self.flying[lane] {
                    if answer.is_some_and(|rtt| self.now >= sent + rtt) && rtt.is_some() {
                        self.health.answered(lane, sent, self.now, vec![answer.unwrap()]);
                        self.flying[lane] = None;
                        self.due[lane] = self.now.max(sent + INTERVAL * LANES as u32);
                    } else if self.now.since(sent) >= self.health.probe_timeout() * 2 {
                        self.flying[lane] = None;
                        self.due[lane] = self.now;
                    }
                }
                if self.flying[lane].is_none() && self.now >= self.due[lane] {
                    self.health.due(lane, self.now);
                    self.flying[lane] = Some((self.now, rtt));
                }
            }
            self.health.state(self.now)
        }

        fn run(&mut self, span: Duration, rtt: Option<Duration>) -> State {
            let end = self.now + span;
            while self.now < end {
                self.step(rtt);
            }
            self.health.state(self.now)
        }

        /// Returns the time until the path is in `state`.
        fn until(&mut self, state: State, rtt: Option<Duration>) -> Duration {
            let begun = self.now;
            while self.step(rtt) != state {
                assert!(self.now.since(begun) < Duration::from_secs(200), "never {state}");
            }
            self.now.since(begun)
        }
    }

    #[test]
    fn dead_path_is_detected_in_time() {
        for rtt in [1, 20, 100, 200, 300, 333, 400, 600, 1000] {
            for phase in 0..40 {
                let mut path = Path::new();
                assert_eq!(path.run(ms(5000 + phase * 10), Some(ms(rtt))), State::Good, "{rtt} ms");
                let found = path.until(State::Dead, None);
                let bar = ms(1000).max(ms(rtt) * 3);
                assert!(found <= bar + STEP * 2, "{rtt} ms, phase {phase}: {found:?}");
            }
        }
    }

    #[test]
    fn slow_path_is_detected_in_time() {
        for low in [1, 20, 100, 200, 300] {
            for phase in 0..40 {
                let mut path = Path::new();
                path.run(ms(5000 + phase * 10), Some(ms(low)));
                let slow = ms(low * 2 + 50);
                let found = path.until(State::Slow, Some(slow));
                assert!(found <= ms(2000), "{low} ms, phase {phase}: {found:?}");
                assert!(path.health.cause().starts_with("round trip "), "{}", path.health.cause());
            }
        }
    }

    #[test]
    fn lone_stall_and_spike_are_ignored() {
        let mut health = Health::new(Timestamp::ZERO);
        let at = |millis| Timestamp::ZERO + ms(millis);
        health.due(0, at(0));
        for turn in 0..50 {
            let sent = at(100 + turn * 400);
            health.due(1, sent);
            let rtt = if turn % 3 == 0 { ms(300) } else { ms(30) };
            health.answered(1, sent, sent + rtt, vec![rtt]);
            if turn > 0 {
                assert_eq!(
                    health.state(sent + ms(399)),
                    State::Good,
                    "turn {turn}: {}",
                    health.cause()
                );
            }
        }
    }

    #[test]
    fn restarted_probes_wait_for_their_dials() {
        let mut health = Health::new(Timestamp::ZERO);
        let at = |millis| Timestamp::ZERO + ms(millis);
        health.due(0, at(0));
        health.answered(0, at(0), at(400), vec![ms(400)]);
        // Other probes were under way and have been given up.
        health.due(0, at(400));
        health.begin(at(1000));
        health.due(0, at(1000));
        health.due(1, at(1200));
        assert_eq!(health.state(at(2200)), State::Good, "three round trips: {}", health.cause());
        assert_eq!(health.state(at(2900)), State::Dead);
        health.answered(0, at(1000), at(2900), vec![ms(400)]);
        health.answered(1, at(1200), at(2900), vec![ms(400)]);
        health.due(0, at(6000));
        assert_eq!(health.state(at(7001)), State::Dead, "and no longer for later ones");
    }

    #[test]
    fn unsent_probes_are_ignored() {
        let mut health = Health::new(Timestamp::ZERO);
        let at = |millis| Timestamp::ZERO + ms(millis);
        health.due(0, at(0));
        health.answered(0, at(0), at(50), vec![ms(50)]);
        for turn in 1..50 {
            let lane = turn as usize % LANES;
            health.due(lane, at(turn * 200));
            health.not_sent(lane);
            assert_eq!(health.state(at(turn * 200 + 199)), State::Good, "{}", health.cause());
        }
        health.due(0, at(10_000));
        assert_eq!(health.state(at(12_000)), State::Dead);
    }

    #[test]
    fn flapping_path_recovers_ever_later() {
        let mut path = Path::new();
        path.run(ms(5000), Some(ms(50)));
        let mut proofs = Vec::new();
        for _ in 0..7 {
            path.until(State::Dead, None);
            path.run(ms(1000), None);
            proofs.push(path.until(State::Good, Some(ms(50))).as_secs());
        }
        assert!(proofs.is_sorted(), "{proofs:?}");
        assert!((2..=4).contains(&proofs[0]) && (60..70).contains(&proofs[6]), "{proofs:?}");
        assert_eq!(path.run(Duration::from_secs(400), Some(ms(50))), State::Good);
        path.until(State::Dead, None);
        let again = path.until(State::Good, Some(ms(50)));
        assert!(again < ms(4500), "what is long past is forgotten: {again:?}");
    }

    #[test]
    fn between_slow_and_good_nothing_changes() {
        let mut path = Path::new();
        path.run(ms(5000), Some(ms(100)));
        path.until(State::Slow, Some(ms(200)));
        assert_eq!(path.run(Duration::from_secs(20), Some(ms(150))), State::Slow, "still too slow");
        assert_eq!(path.run(Duration::from_secs(5), Some(ms(110))), State::Good);
        assert_eq!(path.run(Duration::from_secs(20), Some(ms(150))), State::Good, "not slow yet");
    }

    #[test]
    fn path_far_above_alternative_is_slow() {
        let mut path = Path::new();
        path.health.set_alternative(Some(ms(50)));
        path.until(State::Slow, Some(ms(300)));
        assert!(
            path.health.cause().contains("an alternative's 50.0 ms"),
            "{}",
            path.health.cause()
        );
        path.health.set_alternative(None);
        assert_eq!(path.run(ms(5000), Some(ms(300))), State::Good);
    }

    #[test]
    fn probe_dial_timeout_follows_the_leg() {
        let mut health = Health::new(Timestamp::ZERO);
        assert_eq!((health.dial_limit(), health.inner_dial_limit()), (ms(1000), ms(1000)));
        health.due(0, Timestamp::ZERO);
        let legs = vec![ms(20), ms(200), ms(450)];
        health.answered(0, Timestamp::ZERO, Timestamp::ZERO + ms(670), legs);
        assert_eq!((health.dial_limit(), health.inner_dial_limit()), (ms(1000), ms(1350)));
    }

    #[test]
    fn longer_route_is_not_slow_for_ever() {
        let mut path = Path::new();
        path.run(ms(5000), Some(ms(50)));
        path.health.failed(path.now, "dial 192.0.2.1:7000: connection refused");
        assert_eq!(path.health.state(path.now), State::Dead);
        assert_eq!(path.run(ms(5000), Some(ms(50))), State::Good);
        path.until(State::Slow, Some(ms(150)));
        assert_eq!(path.run(LOW_SPAN * 3, Some(ms(150))), State::Good);
    }
}
