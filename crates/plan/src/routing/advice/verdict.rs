//! The verdict, direct or relayed, and its reasons in words.

use tradewind_model::fct::path_rate;
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Bandwidth, Bytes, Duration};

use super::{Route, Settings, legs};

/// The least gain in completion time for which a relay is advised. Chosen: a relay costs money, and
/// completion times of equal transfers vary by as much.
pub const MIN_GAIN: f64 = 1.05;
/// The least time that a relay must save where dialling and slow start are most of a flow's time.
/// Chosen: for a small file between near cities the model lets relays save up to 50 ms, and CDD
/// measured them to be 30 % slower there; a relay's own delay at a session's start is not in the
/// model.
pub const MIN_SAVED: Duration = Duration::from_millis(100);
/// The share of the direct RTT above which a largest leg does not count as shorter. Chosen: within
/// the variation of RTTs.
const HARDLY_SHORTER: f64 = 0.9;

/// The decision for a flow.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Carry it over the route at this index, the fastest of all.
    Relay(usize),
    /// Carry it directly, for at least one reason.
    Direct(Vec<Reason>),
    /// No path is known.
    NoPath,
}

/// A reason for the direct path.
#[derive(Debug, Clone, PartialEq)]
pub enum Reason {
    /// No relays were allowed.
    NoneAsked,
    /// No relayed path has all its legs known.
    NoRelay,
    /// The flow ends before its rate matters: dialling and slow start are most of its time.
    Small {
        /// The flow's volume.
        volume: Bytes,
        /// The time of dialling and slow start on the direct path.
        start: Duration,
        /// The direct completion time.
        fct: Duration,
    },
    /// The direct path already runs at the rate of its ends' access \[TRN\].
    Tuned {
        /// That rate.
        rate: Bandwidth,
    },
    /// No relay is located so that the largest leg gets shorter.
    Near {
        /// RTT of the direct path.
        direct: Duration,
        /// The least largest leg over any relay.
        relayed: Duration,
    },
    /// The fastest relayed path gains less than [`MIN_GAIN`].
    LittleGain {
        /// Its gain.
        gain: f64,
    },
    /// The fastest relayed path saves less than [`MIN_SAVED`] of a small flow.
    LittleSaved {
        /// The time that it saves.
        saved: Duration,
    },
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoneAsked => {
                f.write_str("only the direct path was asked for: no relay on a path")
            }
            Self::NoRelay => f.write_str("no relayed path has all its legs known"),
            Self::Small { volume, start, fct } => write!(
                f,
                "{volume} is small: {:.0} of its {:.0} ms are dialling and slow start, and a \
                 relay must be dialled too",
                as_millis_f64(*start),
                as_millis_f64(*fct)
            ),
            Self::Tuned { rate } => write!(
                f,
                "the direct path already runs at {rate}, which its ends' access limits, not its \
                 window: shorter legs add nothing"
            ),
            Self::Near { direct, relayed } => write!(
                f,
                "no relay shortens the largest leg much: {:.1} ms direct, {:.1} ms over the best \
                 relays",
                as_millis_f64(*direct),
                as_millis_f64(*relayed)
            ),
            Self::LittleGain { gain } => {
                write!(f, "the fastest relayed path gains {gain:.2}x, and {MIN_GAIN:.2}x is asked")
            }
            Self::LittleSaved { saved } => write!(
                f,
                "the fastest relayed path saves {:.0} ms on paper, and below {:.0} ms a relay's \
                 own delays may eat it",
                as_millis_f64(*saved),
                as_millis_f64(MIN_SAVED)
            ),
        }
    }
}

/// Judges routes that are in the ranking's order.
pub(super) fn verdict(routes: &[Route], settings: &Settings) -> Verdict {
    let direct = routes.iter().find(|route| route.path.relays.is_empty());
    let relayed = || routes.iter().enumerate().filter(|(_, route)| !route.path.relays.is_empty());
    let fastest = relayed().min_by_key(|(index, route)| (route.fct(), route.cost(), *index));
    let (direct, (index, fastest)) = match (direct, fastest) {
        (None, None) => return Verdict::NoPath,
        (None, Some((index, _))) => return Verdict::Relay(index),
        (Some(_), None) if settings.most_relays == 0 => {
            return Verdict::Direct(vec![Reason::NoneAsked]);
        }
        (Some(_), None) => return Verdict::Direct(vec![Reason::NoRelay]),
        (Some(direct), Some(fastest)) => (direct, fastest),
    };
    let gain = fastest.gain.unwrap_or_default();
    let saved = direct.fct().saturating_sub(fastest.fct());
    let small = direct.completion.steady < direct.fct() / 2;
    if gain >= MIN_GAIN && (!small || saved >= MIN_SAVED) {
        return Verdict::Relay(index);
    }
    let mut reasons = Vec::new();
    if small {
        let start = direct.fct().saturating_sub(direct.completion.steady);
        reasons.push(Reason::Small { volume: settings.volume, start, fct: direct.fct() });
    } else if let [leg] = legs(&direct.path, settings)[..]
        && ["cap", "per-connection cap"].contains(&leg.bound_by())
    {
        reasons.push(Reason::Tuned { rate: path_rate(&[leg]) });
    }
    let shortest = relayed().map(|(_, route)| route.path.largest_leg()).min().unwrap_or_default();
    if shortest >= direct.path.largest_leg().mul_f64(HARDLY_SHORTER) {
        reasons.push(Reason::Near { direct: direct.path.largest_leg(), relayed: shortest });
    }
    let little = gain < MIN_GAIN;
    reasons.push(if little { Reason::LittleGain { gain } } else { Reason::LittleSaved { saved } });
    Verdict::Direct(reasons)
}
