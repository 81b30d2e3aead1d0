//! One destination: a round's observations, the learned value, and the setting in force.

use std::collections::VecDeque;

use ipnet::IpNet;
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Bandwidth, Duration, Segments, Timestamp};

use crate::config::{Config, Control, History, Mode};
use crate::explain::Explanation;
use crate::guard::Guard;
use crate::hint::{Hint, Order};
use crate::learner::{Change, Reason, Setting};
use crate::paced::rate_of_window;
use crate::riptide::Weighted;
use crate::start::Loans;
use crate::strict::JUMP_SHARE;

/// Rounds after which a setting that is not in force is issued again. Chosen: the obstacle, such as
/// a link that was down, may be gone, and one attempt in ten rounds costs nothing.
const RETRY_ROUNDS: u8 = 10;

/// Observations of one round.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) windows: Weighted,
    pub(crate) rates: Weighted,
    pub(crate) rtt: Option<Duration>,
    pub(crate) mss: f64,
    pub(crate) lost: u32,
    pub(crate) clean: u32,
    /// The window that other hosts have learned, and the time until which it counts.
    pub(crate) shared: Option<(Segments, Timestamp)>,
    /// True if a rate-limited connection showed that the path still carries its limit.
    pub(crate) confirmed: bool,
}

impl Group {
    /// Returns the counts of first flights alone, without the round's samples.
    pub(crate) fn flights(&self) -> Self {
        Self { lost: self.lost, clean: self.clean, ..Self::default() }
    }
}

/// A value with its history.
#[derive(Debug, Default)]
struct Remembered {
    value: Option<f64>,
    rounds: VecDeque<f64>,
}

impl Remembered {
    /// Updates the value with a round's `new` one; returns whether it fell so far that history was
    /// left out.
    fn update(&mut self, config: &Config, new: f64) -> bool {
        let before = self.value.unwrap_or(new);
        let fell = config.fall_below.is_some_and(|share| new < before * share.as_f64());
        if fell {
            self.rounds.clear();
        }
        self.value = Some(match config.history {
            _ if fell => new,
            History::Weight(weight) => weight.as_f64() * before + (1.0 - weight.as_f64()) * new,
            History::Rounds(_) => new,
        });
        if let History::Rounds(most) = config.history {
            self.rounds.push_back(new);
            while self.rounds.len() > usize::from(most) {
                self.rounds.pop_front();
            }
            self.value = Some(self.rounds.iter().sum::<f64>() / self.rounds.len() as f64);
        }
        fell
    }

    /// Clamps the value to the bounds, within which history remembers it; see the module `learner`.
    fn bound(&mut self, min: f64, max: f64) {
        self.value = self.value.map(|value| value.clamp(min, max));
        if let Some(newest) = self.rounds.back_mut() {
            *newest = newest.clamp(min, max);
        }
    }
}

/// State of a destination.
#[derive(Debug)]
pub(crate) struct Destination {
    windows: Remembered,
    rates: Remembered,
    pub(crate) rtt: Option<Duration>,
    pub(crate) mss: f64,
    guard: Guard,
    samples: u32,
    average: f64,
    bound: Option<&'static str>,
    reason: Reason,
    pub(crate) window: Segments,
    pub(crate) pacing: Option<Bandwidth>,
    pub(crate) expires: Timestamp,
    /// True while the value is one of other hosts, because no connection of this one shows any.
    pub(crate) is_shared: bool,
    renewed: bool,
    /// The last change that was issued.
    given: Option<(Segments, Option<Bandwidth>)>,
    pub(crate) in_force: bool,
    /// The outcome of that change, as its actuator reported it.
    pub(crate) outcome: Option<&'static str>,
    /// Rounds since it was found not to be in force.
    rounds_out: u8,
    pub(crate) control: bool,
    starts: u32,
    pub(crate) loans: Loans,
}

impl Destination {
    /// Creates a destination from its first round; `None` when that shows nothing.
    pub(crate) fn new(config: &Config, now: Timestamp, group: &Group) -> Option<Self> {
        let is_shared = group.windows.count() == 0;
        if is_shared && group.shared.is_none() {
            return None;
        }
        let mut new = Self {
            windows: Remembered::default(),
            rates: Remembered::default(),
            rtt: None,
            mss: group.mss,
            guard: Guard::default(),
            samples: 0,
            average: 0.0,
            bound: None,
            reason: Reason::New,
            window: config.window_min,
            pacing: None,
            expires: now,
            is_shared,
            renewed: false,
            given: None,
            in_force: false,
            outcome: None,
            rounds_out: 0,
            control: false,
            starts: 0,
            loans: Loans::default(),
        };
        new.learn(config, now, group);
        new.reason = Reason::New;
        Some(new)
    }

    /// Learns from a round. Losses count even where the round shows no value.
    pub(crate) fn learn(&mut self, config: &Config, now: Timestamp, group: &Group) {
        if config.mode == Mode::Paced {
            self.guard = self.guard.after(group.lost, group.clean);
        }
        if group.lost > 0 && config.mode == Mode::Paced {
            self.reason = Reason::FirstFlightLost;
        }
        if group.confirmed {
            (self.expires, self.renewed) = (now + config.ttl, true);
        }
        let (average, expires) = match (group.windows.combined(config.combine), group.shared) {
            (Some(average), _) => (average, now + config.ttl),
            (None, Some((window, until))) if self.is_shared || self.expires <= now => {
                (window.as_u32().into(), until)
            }
            (None, _) => return,
        };
        let before = self.windows.value;
        let is_shared = group.windows.count() == 0;
        if is_shared || self.is_shared {
            // Others' windows are no history of this host's.
            self.windows = Remembered::default();
        }
        self.is_shared = is_shared;
        let fell = self.windows.update(config, average);
        let value = self.windows.value.unwrap_or(average);
        let (min, max) = (config.window_min.as_u32().into(), config.window_max.as_u32().into());
        self.bound = bound_of(value, min, max);
        self.windows.bound(min, max);
        if let Some(rate) = group.rates.combined(config.combine) {
            self.rates.update(config, rate);
        }
        self.rtt = group.rtt.or(self.rtt);
        self.mss = if group.mss > 0.0 { group.mss } else { self.mss };
        (self.samples, self.average) = (group.windows.count(), average);
        (self.expires, self.renewed) = (expires, true);
        if self.reason != Reason::FirstFlightLost || group.lost == 0 {
            self.reason = match before {
                _ if fell => Reason::FellAtOnce,
                Some(before) if value < before => Reason::Lowered,
                Some(before) if value > before => Reason::Raised,
                _ => self.reason,
            };
        }
    }

    /// Returns whether the learned value is more than this window and this rate of a connection
    /// show.
    pub(crate) fn exceeds(&self, config: &Config, window: f64, rate_bps: f64) -> bool {
        let (known, shown) = match config.mode {
            Mode::Riptide => return false,
            Mode::Paced => (self.rates.value, rate_bps),
            Mode::Strict => (self.windows.value, window),
        };
        known.is_some_and(|known| known > shown)
    }

    /// Derives the setting to be in force from the learned value.
    pub(crate) fn settle(&mut self, config: &Config, prefix: &IpNet, hints: &[Hint]) {
        let learned = self.windows.value.unwrap_or_default();
        let share = match config.mode {
            Mode::Riptide => 1.0,
            Mode::Paced => self.guard.share(),
            Mode::Strict => JUMP_SHARE,
        };
        let hinted = || hints.iter().filter(|hint| hint.covers(prefix));
        let before = self.given.map_or(config.window_min, |given| given.0);
        let free = learned * share;
        let window = hinted().fold(free, |window, hint| hint.apply(window, before.as_u32().into()));
        let bounded = config.bounded(window);
        if self.given.is_some() && before != bounded && window != free {
            self.reason = Reason::Hinted;
        }
        self.window = bounded;
        let left = if free > 0.0 { window / free } else { 1.0 };
        let pacing = self.pacing_of(config, left);
        let is_frozen = hinted().any(|hint| hint.order == Order::Freeze);
        let most = self.given.and_then(|given| given.1).filter(|_| is_frozen);
        self.pacing = pacing.map(|rate| most.map_or(rate, |most| rate.min(most)));
    }

    /// Returns the rate for all connections that start at once, where hints leave `left` of the
    /// window.
    fn pacing_of(&self, config: &Config, left: f64) -> Option<Bandwidth> {
        let bps = match config.mode {
            Mode::Riptide => return None,
            Mode::Paced => self.rates.value? * self.guard.share() * left,
            Mode::Strict => rate_of_window(self.window.as_u32().into(), self.mss, self.rtt?),
        };
        Some(Bandwidth::saturating_from_bytes_per_s(bps * config.pacing_share.as_f64() / 8.0))
    }

    /// Returns the change that an actuator must make now, if any.
    pub(crate) fn take_change(&mut self, prefix: &IpNet) -> Option<Change> {
        let renewed = std::mem::take(&mut self.renewed);
        if self.control {
            return None;
        }
        let rate_moved = match (self.pacing, self.given.and_then(|given| given.1)) {
            (Some(new), Some(old)) => {
                new.as_mbps() < 0.95 * old.as_mbps() || new.as_mbps() > 1.05 * old.as_mbps()
            }
            (new, old) => new.is_some() != old.is_some(),
        };
        self.rounds_out = if self.in_force || !renewed { 0 } else { self.rounds_out + 1 };
        let retry = self.rounds_out >= RETRY_ROUNDS;
        if self.given.is_some_and(|given| given.0 == self.window) && !rate_moved && !retry {
            return renewed.then_some(Change::Renew { prefix: *prefix, expires: self.expires });
        }
        self.given = Some((self.window, self.pacing));
        (self.in_force, self.rounds_out) = (true, 0);
        Some(Change::Set(Setting {
            prefix: *prefix,
            window: self.window,
            pacing: self.pacing,
            rtt: self.rtt,
            expires: self.expires,
            reason: self.reason,
        }))
    }

    /// Returns the change that removes the setting; none when none was ever issued.
    pub(crate) fn removal(&self, prefix: &IpNet, reason: Reason) -> Option<Change> {
        self.given.map(|_| Change::Remove { prefix: *prefix, reason })
    }

    /// Returns whether the next connection belongs to the control group.
    pub(crate) fn is_controls_turn(&mut self, config: &Config) -> bool {
        let Control::Connections(share) = config.control else { return self.control };
        self.starts = self.starts.wrapping_add(1);
        let turns = |starts: u32| (f64::from(starts) * share.as_f64()).floor();
        turns(self.starts) > turns(self.starts - 1)
    }

    pub(crate) fn explain(
        &self,
        config: &Config,
        prefix: IpNet,
        hints: &[Hint],
        now: Timestamp,
    ) -> Explanation {
        let covering = hints.iter().filter(|hint| hint.covers(&prefix) && hint.until > now);
        Explanation {
            prefix,
            mode: config.mode,
            samples: self.samples,
            average_segments: self.average,
            learned_segments: self.windows.value.unwrap_or_default(),
            bound: self.bound,
            guard_ratio: self.guard.share(),
            hints: covering.map(|hint| hint.order.to_string()).collect(),
            window_segments: self.window.as_u32(),
            rate_mbps: self.rates.value.map(|bps| bps / 1e6),
            pacing_mbps: self.pacing.map(Bandwidth::as_mbps),
            lent_mbps: self.loans.lent_bps(now) / 1e6,
            rtt_ms: self.rtt.map(as_millis_f64),
            control: self.control,
            in_force: self.in_force,
            outcome: self.outcome,
            expires_in_s: self.expires.since(now).as_secs_f64(),
            reason: self.reason,
        }
    }
}

fn bound_of(value: f64, min: f64, max: f64) -> Option<&'static str> {
    if value < min {
        Some("c_min")
    } else if value > max {
        Some("c_max")
    } else {
        None
    }
}
