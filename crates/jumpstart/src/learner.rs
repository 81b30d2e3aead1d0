//! The rounds: samples become a value for each destination, which is removed when no round confirms
//! it for its time to live `[RT Algorithm 1]`.
//!
//! ```text
//! each update interval:   observe(sample) for every open connection, then decide(now):
//!   group by destination -> combine -> moving average with history -> bounds -> initial window
//!   values that no round has confirmed for their time to live are removed
//! ```
//!
//! The value that history remembers is the one within the bounds: "the result is then bound ...
//! this final value is stored" `[RT III-B]`. A window far above the upper bound therefore does not
//! linger.

mod shared;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use tradewind_units::{Bandwidth, Duration, Segments, Timestamp};

use self::shared::SharedWindows;
use crate::arms::{Arm, Arms};
use crate::config::{Config, Control, Mode};
use crate::connections::{Begun, Connections};
use crate::destination::{Destination, Group};
use crate::explain::Explanation;
use crate::guard::FirstFlight;
use crate::hint::Hint;
use crate::paced::{Evidence, rate_of_window};
use crate::sample::Sample;
use crate::start::Start;
use crate::strict;

/// Setting for the next connections to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The destination.
    pub prefix: IpNet,
    /// Initial congestion window.
    pub window: Segments,
    /// Rate that all connections that start at once may use together; none in mode `riptide`.
    pub pacing: Option<Bandwidth>,
    /// Least round-trip time that was learned; none in mode `riptide`.
    pub rtt: Option<Duration>,
    /// Its expiry, for an actuator that can apply one by itself.
    pub expires: Timestamp,
    /// Reason for its value.
    pub reason: Reason,
}

/// A change that an actuator must make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Start connections with this setting from now on.
    Set(Setting),
    /// Keep the setting for longer.
    Renew {
        /// The destination.
        prefix: IpNet,
        /// Its new expiry.
        expires: Timestamp,
    },
    /// Start connections with the default again.
    Remove {
        /// The destination.
        prefix: IpNet,
        /// The reason.
        reason: Reason,
    },
}

/// Reason for a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// First seen.
    New,
    /// The average rose.
    Raised,
    /// The average fell.
    Lowered,
    /// The round's value fell so far that history was left out.
    FellAtOnce,
    /// A first flight was lost.
    FirstFlightLost,
    /// A hint began or ended.
    Hinted,
    /// Not confirmed for its time to live.
    Expired,
    /// Removed by [`Learner::flush`].
    Flushed,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::New => "first seen",
            Self::Raised => "the average rose",
            Self::Lowered => "the average fell",
            Self::FellAtOnce => "a sudden fall: history left out",
            Self::FirstFlightLost => "a first flight was lost",
            Self::Hinted => "an outside hint",
            Self::Expired => "not confirmed within its time to live",
            Self::Flushed => "told to forget",
        })
    }
}

/// Learns initial congestion windows. See the module's text.
#[derive(Debug)]
pub struct Learner {
    config: Config,
    observed: BTreeMap<IpNet, Group>,
    /// Number of `observed` that are not among `destinations`.
    new: usize,
    destinations: BTreeMap<IpNet, Destination>,
    connections: Connections,
    reports_each: bool,
    hints: Vec<Hint>,
    shared: SharedWindows,
    refused: u64,
}

impl Learner {
    /// Creates a learner that knows nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            observed: BTreeMap::new(),
            new: 0,
            destinations: BTreeMap::new(),
            connections: Connections::default(),
            reports_each: false,
            hints: Vec::new(),
            shared: SharedWindows::default(),
            refused: 0,
        }
    }

    /// Returns the configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Adds a sample of one connection to this round's observations.
    ///
    /// # Cost
    /// Logarithmic in destinations and connections.
    pub fn observe(&mut self, sample: &Sample) {
        let prefix = self.prefix_of(sample.remote);
        if !self.has_capacity_for(&prefix) {
            self.refused += 1;
            return;
        }
        let (acked_before, flight) = self.track(&prefix, sample);
        let group = self.observed.entry(prefix).or_default();
        match flight {
            Some(FirstFlight::Lost) => group.lost += 1,
            Some(FirstFlight::Arrived) => group.clean += 1,
            Some(FirstFlight::Open) | None => {}
        }
        let bytes = sample.acked.as_u64() as f64;
        let window = f64::from(sample.window.as_u32());
        group.mss = group.mss.max(sample.mss.as_u64() as f64);
        if self.config.mode == Mode::Riptide {
            group.windows.add(window, bytes);
            return;
        }
        let Some(evidence) = Evidence::of(sample, acked_before) else { return };
        let window = match self.config.mode {
            Mode::Strict => window.min(sample.acked_segments()),
            Mode::Paced | Mode::Riptide => evidence.window,
        };
        let known = self.destinations.get(&prefix);
        if evidence.is_held_back
            && known.is_some_and(|known| known.exceeds(&self.config, window, evidence.rate_bps))
        {
            group.confirmed = true;
            return;
        }
        group.windows.add(window, bytes);
        group.rates.add(evidence.rate_bps, bytes);
        group.rtt = Some(group.rtt.map_or(evidence.rtt, |rtt| rtt.min(evidence.rtt)));
    }

    /// Returns whether `prefix` is known or there is capacity for it; it then counts as one of this
    /// round's new ones.
    fn has_capacity_for(&mut self, prefix: &IpNet) -> bool {
        if self.destinations.contains_key(prefix) || self.observed.contains_key(prefix) {
            return true;
        }
        let is_free = self.destinations.len() + self.new < self.config.max_destinations;
        self.new += usize::from(is_free);
        is_free
    }

    fn track(&mut self, prefix: &IpNet, sample: &Sample) -> (u64, Option<FirstFlight>) {
        let guess = || match self.destinations.get(prefix) {
            _ if self.reports_each => (Arm::Unlearned, 0),
            Some(known) if known.control => (Arm::Control, 0),
            Some(known) if known.in_force => (Arm::Jumped, known.window.as_u32()),
            Some(_) | None => (Arm::Unlearned, 0),
        };
        self.connections.see(sample, guess)
    }

    /// Declares that an actuator will report each connection that it acted on ([`Learner::began`]),
    /// so that none is inferred to have jumped.
    pub fn expect_reports(&mut self) {
        self.reports_each = true;
    }

    /// Records how a connection began. Must be called between [`Learner::observe`] and
    /// [`Learner::decide`] of a round.
    pub fn began(&mut self, connection: u64, begun: Begun) {
        self.connections.began(connection, begun);
    }

    /// Records that part of a connection's first flight towards `prefix` was lost, as an actuator
    /// that sees it at once reports; the same loss in a sample is not counted again. Must be called
    /// as [`Learner::began`].
    pub fn first_flight_lost(&mut self, connection: u64, prefix: IpNet) {
        if self.connections.lost(connection) && self.destinations.contains_key(&prefix) {
            self.observed.entry(prefix).or_default().lost += 1;
        }
    }

    /// Ends a round; returns the changes since the last one. Must be called once an update
    /// interval, after [`Learner::observe`] was called for every open connection.
    pub fn decide(&mut self, now: Timestamp) -> Vec<Change> {
        let mut changes = Vec::new();
        self.observe_shared(now);
        for (prefix, group) in std::mem::take(&mut self.observed) {
            self.learn(now, prefix, &group, &mut changes);
        }
        self.settle(now, &mut changes);
        self.connections.end_round();
        changes
    }

    /// Skips a round whose sampling failed: nothing is learned of its samples, and connections that
    /// it missed do not count as ended. Values still expire, hints still begin and end, and the
    /// states of first flights are retained for the next round. Called in place of
    /// [`Learner::decide`].
    pub fn leave_out(&mut self, now: Timestamp) -> Vec<Change> {
        let mut changes = Vec::new();
        self.settle(now, &mut changes);
        let known = &self.destinations;
        self.observed.retain(|prefix, group| {
            *group = group.flights();
            known.contains_key(prefix)
        });
        changes
    }

    /// Applies expiry and hints, and adds the changes that follow.
    fn settle(&mut self, now: Timestamp, changes: &mut Vec<Change>) {
        self.new = 0;
        self.expire(now, changes);
        self.hints.retain(|hint| hint.until > now);
        for (prefix, destination) in &mut self.destinations {
            destination.settle(&self.config, prefix, &self.hints);
            changes.extend(destination.take_change(prefix));
        }
    }

    fn learn(&mut self, now: Timestamp, prefix: IpNet, group: &Group, changes: &mut Vec<Change>) {
        if self.config.mode == Mode::Strict && group.lost > 0 {
            if let Some(lost) = self.destinations.remove(&prefix) {
                changes.extend(lost.removal(&prefix, Reason::FirstFlightLost));
            }
            return;
        }
        if let Some(known) = self.destinations.get_mut(&prefix) {
            known.learn(&self.config, now, group);
        } else if let Some(mut new) = Destination::new(&self.config, now, group) {
            new.control = self.is_control(&prefix);
            self.destinations.insert(prefix, new);
        }
    }

    fn expire(&mut self, now: Timestamp, changes: &mut Vec<Change>) {
        self.destinations.retain(|prefix, destination| {
            let alive = destination.expires > now;
            if !alive {
                changes.extend(destination.removal(prefix, Reason::Expired));
            }
            alive
        });
    }

    /// Records the outcome of a [`Change::Set`], in a word, and whether it is in force: connections
    /// to the destination count as having jumped only while it is.
    pub fn record_outcome(&mut self, prefix: &IpNet, outcome: &'static str, in_force: bool) {
        if let Some(destination) = self.destinations.get_mut(prefix) {
            (destination.outcome, destination.in_force) = (Some(outcome), in_force);
        }
    }

    /// Adds a hint, which takes effect with the next [`Learner::decide`] and replaces one for the
    /// same prefix, unless that is a standing one.
    pub fn hint(&mut self, hint: Hint) {
        self.hints.retain(|other| other.within != hint.within || other.stands());
        self.hints.push(hint);
    }

    /// Replaces the standing hints; those with an end are retained.
    pub fn stand(&mut self, hints: impl IntoIterator<Item = Hint>) {
        self.hints.retain(|hint| !hint.stands());
        let standing = |hint| Hint { until: Timestamp::FAR_FUTURE, ..hint };
        self.hints.extend(hints.into_iter().map(standing));
    }

    /// Forgets what was learned of all destinations inside `within`, or of all; returns the
    /// removals.
    pub fn flush(&mut self, within: Option<IpNet>) -> Vec<Change> {
        self.shared.forget(within.as_ref());
        let mut changes = Vec::new();
        self.destinations.retain(|prefix, destination| {
            let keep = within.is_some_and(|within| !within.contains(prefix));
            if !keep {
                changes.extend(destination.removal(prefix, Reason::Flushed));
            }
            keep
        });
        changes
    }

    /// Returns the start of a connection to `remote` that is about to send; `None` for the default:
    /// the connection belongs to the control group, nothing is known, no rate is left to share, or
    /// the handshake's round-trip time `rtt` is another path's. For actuators that can set a window
    /// and a rate for each connection; others follow [`Learner::decide`].
    pub fn start(
        &mut self,
        now: Timestamp,
        remote: IpAddr,
        rtt: Option<Duration>,
    ) -> Option<Start> {
        let prefix = self.prefix_of(remote);
        let config = &self.config;
        let known = self.destinations.get_mut(&prefix).filter(|known| known.expires > now)?;
        if known.is_controls_turn(config) {
            return None;
        }
        let Some(rate) = known.pacing else {
            return Some(Start { window: known.window, pacing: None, until: now });
        };
        let learned = known.rtt?;
        if rtt.is_some_and(|rtt| !strict::same_path(rtt, learned)) {
            return None;
        }
        let least = rate_of_window(f64::from(config.window_min.as_u32()), known.mss, learned);
        let at_once = (config.mode == Mode::Strict).then_some(1);
        let share = known.loans.lend(now, learned, rate.as_bps() as f64, least, at_once)?;
        let pacing = Bandwidth::saturating_from_bytes_per_s(share / 8.0);
        let until = now + learned.saturating_mul(crate::start::LOAN_RTTS);
        Some(Start { window: known.window, pacing: Some(pacing), until })
    }

    /// Explains the value of `remote`; `None` when nothing is known of it.
    #[must_use]
    pub fn explain(&self, remote: IpAddr, now: Timestamp) -> Option<Explanation> {
        let prefix = self.prefix_of(remote);
        Some(self.destinations.get(&prefix)?.explain(&self.config, prefix, &self.hints, now))
    }

    /// Explains all destinations, by address.
    #[must_use]
    pub fn explain_all(&self, now: Timestamp) -> Vec<Explanation> {
        let explain = |(prefix, known): (&IpNet, &Destination)| {
            known.explain(&self.config, *prefix, &self.hints, now)
        };
        self.destinations.iter().map(explain).collect()
    }

    /// Returns the totals of ended connections, by arm.
    #[must_use]
    pub const fn arms(&self) -> &Arms {
        self.connections.arms()
    }

    /// Returns the number of destinations that have a value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.destinations.len()
    }

    /// Returns whether no destination has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.destinations.is_empty()
    }

    /// Returns the number of samples left out because there were too many destinations.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the destination that `remote` belongs to: the longest named prefix that holds it,
    /// else the address cut to the configured length.
    #[must_use]
    pub fn prefix_of(&self, remote: IpAddr) -> IpNet {
        let remote = remote.to_canonical();
        if let Some(named) = self.config.prefixes.iter().find(|prefix| prefix.contains(&remote)) {
            return *named;
        }
        let length = match remote {
            IpAddr::V4(_) => self.config.length_v4,
            IpAddr::V6(_) => self.config.length_v6,
        };
        IpNet::new(remote, length).map_or_else(|_| IpNet::from(remote), |prefix| prefix.trunc())
    }

    /// Returns whether a destination keeps the default window: by its address alone, so that this
    /// does not change.
    fn is_control(&self, prefix: &IpNet) -> bool {
        let Control::Destinations(share) = self.config.control else { return false };
        (fingerprint(prefix) as f64) < share.as_f64() * f64::from(u32::MAX)
    }
}

/// Computes FNV-1a over the text of a prefix, folded: even enough over neighbouring addresses.
fn fingerprint(prefix: &IpNet) -> u32 {
    let hash = prefix.to_string().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9) as u32
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod tests_support;
