//! Changes to a pair of sites while traffic flows: `hamina,tokyo` `rtt=30ms` `loss=0.01`.

use std::collections::BTreeSet;

use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, SiteId};

use crate::{
    link::Link,
    segment::{Nanos, nanos},
    topology::{Limit, limits},
};

/// New values for one pair of sites; `None` leaves a value unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct PairChange {
    /// The site that sends.
    pub from: SiteId,
    /// The site that receives.
    pub to: SiteId,
    /// `true` when the change also applies to the opposite direction.
    pub both_ways: bool,
    /// One-way delay, each way.
    pub delay: Option<Duration>,
    /// Largest extra delay.
    pub jitter: Option<Duration>,
    /// Rate in IP bytes; `Some(None)` removes the limit.
    pub rate: Option<Option<Bandwidth>>,
    /// Capacity of the queue before the rate.
    pub queue: Option<Bytes>,
    /// Largest IP packet.
    pub mtu: Option<Bytes>,
    /// Share of segments lost at random.
    pub loss: Option<Ratio>,
    /// Share of segments that arrive twice.
    pub duplicate: Option<Ratio>,
}

/// The reason why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The text names no pair.
    #[error("`{0}` is no pair of sites: write `a,b` (both ways) or `a->b` (one way)")]
    Pair(String),
    /// The topology has no such site.
    #[error("no site `{0}` in this topology")]
    UnknownSite(SiteId),
    /// The text is no `key=value` of a known key.
    #[error(
        "`{0}` cannot be set: write `key=value` with rtt, delay, jitter, rate, queue, mtu, loss \
         or duplicate as the key"
    )]
    Setting(String),
    /// The setting repeats an earlier one, by the same key or by `rtt` and `delay`.
    #[error("`{0}` sets what an earlier setting has set: give each once, and `rtt` or `delay`")]
    Twice(String),
    /// The value is out of range or malformed.
    #[error("{key}: {reason}")]
    Value {
        /// The key that was set.
        key: &'static str,
        /// The error in its value, and the expected form.
        reason: String,
    },
}

/// Keys of a topology's pairs that cannot change while the lab runs.
const FIXED: [&str; 6] = ["reorder", "burst_loss", "ecn_threshold", "icmp", "via", "outage"];

impl ChangeError {
    fn value(key: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Value { key, reason: reason.to_string() }
    }
}

impl PairChange {
    /// Returns a change without settings.
    #[must_use]
    pub fn new(from: SiteId, to: SiteId, both_ways: bool) -> Self {
        Self {
            from,
            to,
            both_ways,
            delay: None,
            jitter: None,
            rate: None,
            queue: None,
            mtu: None,
            loss: None,
            duplicate: None,
        }
    }

    /// Parses `pair` (`a,b` for both ways, `a->b` for one) and settings such as `rtt=30 ms`,
    /// `rate=none`, `loss=0.01`.
    ///
    /// # Errors
    /// When the pair, a key or a value is malformed; the topology is not consulted.
    pub fn parse<'a>(
        pair: &str,
        settings: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, ChangeError> {
        let (from, to, both_ways) = match (pair.split_once("->"), pair.split_once(',')) {
            (Some((from, to)), _) => (from, to, false),
            (None, Some((from, to))) => (from, to, true),
            (None, None) => return Err(ChangeError::Pair(pair.to_owned())),
        };
        let site =
            |name: &str| SiteId::new(name.trim()).map_err(|_| ChangeError::Pair(pair.to_owned()));
        let mut change = Self::new(site(from)?, site(to)?, both_ways);
        let mut keys = BTreeSet::new();
        for setting in settings {
            let (key, value) =
                setting.split_once('=').ok_or_else(|| ChangeError::Setting(setting.to_owned()))?;
            change.set(key.trim(), value.trim(), setting)?;
            // Half of an `rtt` is the `delay`.
            let means = if key.trim() == "rtt" { "delay" } else { key.trim() };
            if !keys.insert(means) {
                return Err(ChangeError::Twice(setting.to_owned()));
            }
        }
        Ok(change)
    }

    fn set(&mut self, key: &str, value: &str, setting: &str) -> Result<(), ChangeError> {
        let span =
            |key, longest| limits::span(value, longest).map_err(|e| ChangeError::value(key, e));
        match key {
            "rtt" if !self.both_ways => {
                let reason = "an rtt needs both ways: write the pair as `a,b`, or set `delay`";
                return Err(ChangeError::value("rtt", reason));
            }
            "rtt" => self.delay = Some(span("rtt", limits::MAX_RTT)? / 2),
            "delay" => self.delay = Some(span("delay", limits::MAX_RTT)?),
            "jitter" => self.jitter = Some(span("jitter", limits::MAX_JITTER)?),
            "rate" => self.rate = Some(read::<Limit>("rate", value)?.0),
            "queue" => self.queue = Some(read("queue", value)?),
            "mtu" => {
                let mtu = read("mtu", value)?;
                limits::mtu(mtu).map_err(|reason| ChangeError::value("mtu", reason))?;
                self.mtu = Some(mtu);
            }
            "loss" => self.loss = Some(read("loss", value)?),
            "duplicate" => self.duplicate = Some(read("duplicate", value)?),
            _ => {
                let why =
                    "it holds for as long as the lab runs: state it in the topology and start anew";
                let fixed = FIXED.iter().find(|fixed| **fixed == key);
                let other = || ChangeError::Setting(setting.to_owned());
                return Err(fixed.map_or_else(other, |key| ChangeError::value(key, why)));
            }
        }
        Ok(())
    }

    /// Refuses a queue that could not hold a packet; `mtu` and `link` are the pair's current ones.
    pub(crate) fn check(&self, mtu: Bytes, link: &Link) -> Result<(), ChangeError> {
        let mtu = self.mtu.unwrap_or(mtu);
        limits::mtu(mtu).map_err(|reason| ChangeError::value("mtu", reason))?;
        let current = link.queue.is_limited().then(|| link.queue.room());
        match self.queue.or(current) {
            Some(queue) if queue < mtu => Err(ChangeError::value(
                "queue",
                format!("room for at least one packet of {mtu}, not `{queue}`"),
            )),
            _ => Ok(()),
        }
    }

    /// Applies the change to one direction at `now`; returns the new time of the queue's head, if
    /// it has one.
    pub(crate) fn alter(&self, link: &mut Link, now: Nanos) -> Option<Nanos> {
        if let Some(delay) = self.delay {
            link.wire.delay = nanos(delay);
        }
        if let Some(jitter) = self.jitter {
            link.wire.set_jitter(nanos(jitter));
        }
        if let (Some(share), Some(faults)) = (self.loss, &mut link.faults) {
            faults.set_random_loss(share);
        }
        if let (Some(share), Some(faults)) = (self.duplicate, &mut link.faults) {
            faults.set_duplicate(share);
        }
        if let Some(queue) = self.queue {
            link.queue.set_room(queue);
        }
        let rate = self.rate?;
        if let (Some(rate), None, false) = (rate, self.queue, link.queue.is_limited()) {
            let rtt = Duration::from_nanos(link.wire.delay.saturating_mul(2));
            link.queue.set_room(limits::default_queue(rate, rtt));
        }
        link.queue.set_rate(now, rate)
    }
}

fn read<T: std::str::FromStr<Err = tradewind_units::UnitError>>(
    key: &'static str,
    value: &str,
) -> Result<T, ChangeError> {
    value.parse().map_err(|error| ChangeError::value(key, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_and_one_way_are_told_apart() {
        let both = PairChange::parse("a,b", ["rtt=30 ms", "loss = 1 %"]).unwrap();
        assert!(both.both_ways);
        assert_eq!(both.delay, Some(Duration::from_millis(15)));
        assert_eq!(both.loss, Some(Ratio::new(0.01).unwrap()));
        let one = PairChange::parse("gcp:x->b", ["delay=7ms", "rate=none"]).unwrap();
        assert!(!one.both_ways);
        assert_eq!((one.delay, one.rate), (Some(Duration::from_millis(7)), Some(None)));
    }

    #[test]
    fn invalid_changes_are_refused_in_one_line() {
        for (pair, setting, tells) in [
            ("ab", "loss=0.1", "is no pair of sites"),
            ("a,b/c", "loss=0.1", "is no pair of sites"),
            ("a,b", "loss", "cannot be set"),
            ("a,b", "colour=red", "`colour=red` cannot be set"),
            ("a,b", "loss=2", "loss: ratio"),
            ("a,b", "rtt=-3 ms", "rtt: "),
            ("a,b", "rtt=2 h", "at most 1 min"),
            ("a->b", "rtt=3 ms", "both ways"),
            ("a,b", "mtu=20 B", "mtu: "),
            ("a,b", "reorder=1 %", "reorder: it holds for as long as the lab runs"),
            ("a,b", "burst_loss=1 %", "state it in the topology"),
            ("a,b", "outage=5 s", "outage: it holds for as long as the lab runs"),
        ] {
            let message = PairChange::parse(pair, [setting]).unwrap_err().to_string();
            assert!(message.contains(tells), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
