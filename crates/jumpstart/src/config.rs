//! Configuration of the learner: the mode, the paper's variants and bounds `[RT Table I]`, and the
//! reason for each default.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::time::as_text;
use tradewind_units::{Duration, Ratio, Segments};

/// The quantity that is learned, and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Algorithm 1 of the paper: averages of congestion windows.
    #[default]
    Riptide,
    /// Delivery rate times least round-trip time; paced, shared, guarded.
    Paced,
    /// The limits of RFC 9959.
    Strict,
}

/// Combination of a round's values into one `[RT III-B, Combination Algorithm]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// Their mean.
    #[default]
    Mean,
    /// The greatest.
    Maximum,
    /// Their mean, weighted by the bytes that each connection has carried.
    Traffic,
}

/// Weight of earlier rounds `[RT III-B]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum History {
    /// A moving average with this weight on the value before, the rest on the new one. Zero: no
    /// history.
    Weight(Ratio),
    /// The mean of so many rounds: a longer memory that forgets completely.
    Rounds(u16),
}

/// The control group, which keeps the default window, so that the benefit is measured and not
/// assumed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Control {
    /// This share of destinations, always the same ones: for an actuator that sees destinations
    /// only.
    Destinations(Ratio),
    /// This share of connections: for an actuator that sees each connection.
    Connections(Ratio),
}

impl Control {
    /// Returns the share, of destinations or connections.
    #[must_use]
    pub const fn share(self) -> Ratio {
        let (Self::Destinations(share) | Self::Connections(share)) = self;
        share
    }
}

/// Settings of the learner; an absent one has the mode's default.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The quantity that is learned, and its use; `riptide` when absent.
    pub mode: Option<Mode>,
    /// The combination of a round's values into one `[RT III-B]`; `mean` when absent.
    pub combine: Option<Combine>,
    /// Weight on the value before, from 0 (no history) to below 1; 0.75 when absent: nine tenths of
    /// a lasting change in eight rounds, while one round's dip moves a quarter.
    pub history_weight: Option<Ratio>,
    /// Instead of `history_weight`: the mean of so many rounds, from 1 to 3600.
    #[schemars(range(min = 1, max = 3600))]
    pub history_rounds: Option<u16>,
    /// Least initial window; 10 when absent, the kernel's default.
    pub c_min: Option<Segments>,
    /// Greatest initial window, at most 65535 and at least `c_min`; 100 when absent `[RT IV-B1]`.
    pub c_max: Option<Segments>,
    /// Time to live of a value after the last round that confirmed it, at least two intervals; 90 s
    /// when absent `[RT III-B]`.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<tradewind_units::time::Written>")]
    pub ttl: Option<Duration>,
    /// Bits of an IPv4 address that tell destinations apart; 32 when absent: a host `[RT Fig. 8]`.
    #[schemars(range(max = 32))]
    pub prefix_length_ipv4: Option<u8>,
    /// Bits of an IPv6 address that tell destinations apart; 128 when absent.
    #[schemars(range(max = 128))]
    pub prefix_length_ipv6: Option<u8>,
    /// Known destinations, such as a PoP's `/30` `[RT III-B]`; the longest that holds an address
    /// counts.
    #[serde(default, deserialize_with = "crate::prefix::list")]
    #[schemars(with = "Vec<crate::prefix::Written>")]
    pub prefixes: Vec<IpNet>,
    /// Share that keeps the default window, to measure the benefit: of destinations, or of
    /// connections with `sockops`. 0.05 when absent; 0 for the paper's Algorithm 1.
    pub control_share: Option<Ratio>,
    /// Share of the value before below which a round's value replaces history `[RT V]`; when absent
    /// never in `riptide`, else 0.5.
    pub fall_below: Option<Ratio>,
    /// Share of the learned rate for all connections that start at once, in `paced` and `strict`;
    /// 0.85 when absent.
    pub pacing_share: Option<Ratio>,
    /// Most destinations, from 1 to 1000000; 100000 when absent, some 40 MB. Samples of further
    /// ones are counted (`refused_samples` of `status`).
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_destinations: Option<usize>,
}

/// Configuration, with every value decided and in its range.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The mode. Default `riptide`: the one that the paper measured.
    pub mode: Mode,
    /// The combination of a round's values. Default the mean `[RT III-B]`.
    pub combine: Combine,
    /// The weight of the past. The paper gives no value, and its Table I puts the weight alpha on
    /// the newest value where its text puts it on history; the text is followed. Default 0.75 on
    /// history (chosen: a lasting change is followed to nine tenths in eight rounds, well within
    /// the time to live, while one round's dip, as of a connection that just began, moves the value
    /// by a quarter).
    pub history: History,
    /// Least window, the paper's c_min. The paper gives no value. Default 10 (chosen: the kernel's
    /// own default, so that nothing learned makes a start slower than no learning).
    pub window_min: Segments,
    /// Greatest window, the paper's c_max. Default 100 `[RT IV-B1]`: the knee; more gains little
    /// and risks more.
    pub window_max: Segments,
    /// Time to live of a value after the last round that confirmed it. Default 90 s `[RT III-B]`.
    pub ttl: Duration,
    /// Bits of an IPv4 address that tell destinations apart. Default 32, a host `[RT Fig. 8]`.
    pub length_v4: u8,
    /// As `length_v4` for IPv6. Default 128.
    pub length_v6: u8,
    /// Destinations known by name, such as a PoP's `/30` `[RT III-B, Destinations as Routes]`; the
    /// longest that holds an address counts. Sorted by length, longest first. Default none.
    pub prefixes: Vec<IpNet>,
    /// The control group. Default 5 % (chosen: one in twenty shows a difference within a day and
    /// costs little); Algorithm 1 of the paper has none.
    pub control: Control,
    /// Share of the value before below which a round's value is used as it is, without history
    /// `[RT V]`. Default never in `riptide`, 0.5 in the other modes (chosen: CUBIC and Reno give
    /// back 30 to 50 % at an ordinary loss; more than half on the average of all connections is a
    /// change of the path).
    pub fall_below: Option<Ratio>,
    /// Share of the learned rate that all connections that start at once may use together, in
    /// `paced` and `strict`. Default 0.85 (chosen: leaves capacity for the connections that were
    /// measured, and for error).
    pub pacing_share: Ratio,
    /// Most destinations stored; further ones are counted and not learned. Default 100 000 (chosen:
    /// some 40 MB). From 1 to 1 000 000 (chosen: ten times as much; beyond that, prefixes serve
    /// better than hosts).
    pub max_destinations: usize,
}

/// An error in [`Settings`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Bounds in the wrong order.
    #[error("c_min: {min} segments, above c_max, {max}")]
    Bounds {
        /// The lower bound.
        min: u32,
        /// The upper bound.
        max: u32,
    },
    /// Two kinds of history.
    #[error("history_weight and history_rounds: give one of them")]
    TwoHistories,
    /// A value outside its range.
    #[error("{key}: {expected}, not {value}")]
    Range {
        /// The setting.
        key: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The given value.
        value: String,
    },
}

fn ratio(value: f64) -> Ratio {
    Ratio::new(value).expect("a share between 0 and 1")
}

fn segments(count: u32) -> Segments {
    Segments::new(count).expect("a window above zero")
}

impl Default for Config {
    fn default() -> Self {
        Self::of(Mode::Riptide)
    }
}

impl Config {
    /// Returns the defaults of `mode`.
    #[must_use]
    pub fn of(mode: Mode) -> Self {
        let to_the_letter = mode == Mode::Riptide;
        Self {
            mode,
            combine: Combine::Mean,
            history: History::Weight(ratio(0.75)),
            window_min: segments(10),
            window_max: segments(100),
            ttl: Duration::from_secs(90),
            length_v4: 32,
            length_v6: 128,
            prefixes: Vec::new(),
            control: Control::Destinations(ratio(0.05)),
            fall_below: (!to_the_letter).then(|| ratio(0.5)),
            pacing_share: ratio(0.85),
            max_destinations: 100_000,
        }
    }

    /// Resolves `settings` over the defaults of their mode.
    ///
    /// # Errors
    /// When a setting is out of range or contradicts another; the error names it.
    pub fn resolve(settings: &Settings) -> Result<Self, ConfigError> {
        let default = Self::of(settings.mode.unwrap_or_default());
        let history = match (settings.history_weight, settings.history_rounds) {
            (Some(_), Some(_)) => return Err(ConfigError::TwoHistories),
            (Some(weight), None) => History::Weight(weight),
            (None, Some(rounds)) => History::Rounds(rounds),
            (None, None) => default.history,
        };
        let mut prefixes = settings.prefixes.clone();
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.prefix_len()));
        let config = Self {
            mode: default.mode,
            combine: settings.combine.unwrap_or(default.combine),
            history,
            window_min: settings.c_min.unwrap_or(default.window_min),
            window_max: settings.c_max.unwrap_or(default.window_max),
            ttl: settings.ttl.unwrap_or(default.ttl),
            length_v4: settings.prefix_length_ipv4.unwrap_or(default.length_v4),
            length_v6: settings.prefix_length_ipv6.unwrap_or(default.length_v6),
            prefixes,
            control: Control::Destinations(
                settings.control_share.unwrap_or(default.control.share()),
            ),
            fall_below: settings.fall_below.or(default.fall_below),
            pacing_share: settings.pacing_share.unwrap_or(default.pacing_share),
            max_destinations: settings.max_destinations.unwrap_or(default.max_destinations),
        };
        config.checked()
    }

    fn checked(self) -> Result<Self, ConfigError> {
        let (min, max) = (self.window_min.as_u32(), self.window_max.as_u32());
        if min > max {
            return Err(ConfigError::Bounds { min, max });
        }
        let refuse = |key, expected, value: &dyn std::fmt::Display| {
            Err(ConfigError::Range { key, expected, value: value.to_string() })
        };
        match self.history {
            History::Weight(weight) if weight.as_f64() >= 1.0 => {
                return refuse("history_weight", "a share below 1, or nothing is learned", &weight);
            }
            History::Rounds(rounds) if !(1..=3600).contains(&rounds) => {
                return refuse("history_rounds", "1 to 3600 rounds", &rounds);
            }
            History::Weight(_) | History::Rounds(_) => {}
        }
        if self.window_max.as_u32() > 65_535 {
            return refuse("c_max", "at most 65535 segments", &max);
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&self.ttl) {
            return refuse("ttl", "a span from 1 s to 24 h", &format_args!("{:?}", self.ttl));
        }
        if !(8..=32).contains(&self.length_v4) {
            return refuse("prefix_length_ipv4", "8 to 32 bits", &self.length_v4);
        }
        if !(16..=128).contains(&self.length_v6) {
            return refuse("prefix_length_ipv6", "16 to 128 bits", &self.length_v6);
        }
        if !(1..=1_000_000).contains(&self.max_destinations) {
            return refuse("max_destinations", "1 to 1000000", &self.max_destinations);
        }
        if self.pacing_share == Ratio::ZERO {
            return refuse("pacing_share", "a share above 0", &self.pacing_share);
        }
        Ok(self)
    }

    /// Returns the configuration for an actuator that sees each connection: the control share is
    /// then one of connections.
    #[must_use]
    pub fn by_connection(mut self) -> Self {
        self.control = Control::Connections(self.control.share());
        self
    }

    /// Returns `window` clamped to the bounds, in whole segments.
    #[must_use]
    pub fn bounded(&self, window: f64) -> Segments {
        let (min, max) = (self.window_min.as_u32(), self.window_max.as_u32());
        segments((window.round() as u32).clamp(min, max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<Config, String> {
        let settings: Settings = toml::from_str(text).map_err(|error| error.to_string())?;
        Config::resolve(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_match_the_paper() {
        let config = resolved("").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!((config.window_max.as_u32(), config.ttl), (100, Duration::from_secs(90)));
        assert_eq!(config.fall_below, None);
    }

    #[test]
    fn settings_are_checked_and_the_error_names_the_key() {
        for (text, expected) in [
            ("c_min = 200", "c_min: 200 segments, above c_max, 100"),
            ("history_weight = 1.0", "history_weight: a share below 1"),
            ("history_weight = 0.5\nhistory_rounds = 5", "give one of them"),
            ("history_rounds = 0", "history_rounds: 1 to 3600"),
            ("ttl = \"0 s\"", "ttl: a span from 1 s"),
            ("prefix_length_ipv4 = 40", "8 to 32 bits, not 40"),
            ("prefix_length_ipv6 = 8", "16 to 128 bits, not 8"),
            ("c_max = 70000", "at most 65535"),
            ("max_destinations = 0", "max_destinations: 1 to 1000000, not 0"),
            ("max_destinations = 99999999999", "max_destinations: 1 to 1000000, not 99999999999"),
            ("c_maximum = 7", "unknown field `c_maximum`"),
            ("prefixes = [\"10.0.0.0/33\"]", "prefixes"),
            ("prefixes = [\"10.1.2.3/30\"]", "expected `10.1.2.0/30`, or `10.1.2.3/32`"),
        ] {
            let error = resolved(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn named_prefixes_stand_longest_first() {
        let config = resolved("prefixes = [\"10.0.0.0/8\", \"10.1.2.0/30\"]").unwrap();
        let shown: Vec<String> = config.prefixes.iter().map(IpNet::to_string).collect();
        assert_eq!(shown, ["10.1.2.0/30", "10.0.0.0/8"]);
    }
}
