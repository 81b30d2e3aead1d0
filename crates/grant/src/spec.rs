//! The grant as an operator writes it in TOML, for `tradewind grant issue`.
//!
//! ```toml
//! gateway = "twid_..."                                     # who may use it
//! destinations = ["10.0.0.0/8:443", "*.example.com:443"]   # what it opens
//! relays = ["twid_...", "twid_..."]                        # or "any"
//! expires = "720 h"                                        # or 2027-01-31T00:00:00Z
//! not_before = 2026-12-01T00:00:00Z                        # optional: from now on
//! sessions = 1000                                          # optional: no limit
//! sources = ["10.1.0.0/16"]                                # optional: source addresses of packets
//! session_max_age = "24 h"                                 # optional: until the grant ends
//! ```

use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::Error;
use tradewind_units::time::{as_text, parse_duration};
use tradewind_units::{Duration, Timestamp};

use crate::date::from_date;
use crate::token::{BACKDATED, Extensions};
use crate::{DestinationRule, Grant, GrantError, PublicIdentity, Relays, SourceRange};

/// A grant's specification.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantSpec {
    /// The gateway that may use it.
    pub gateway: PublicIdentity,
    /// The destinations that it covers.
    pub destinations: Vec<DestinationRule>,
    /// The relays that may carry it.
    pub relays: RelaySpec,
    /// End of its validity.
    pub expires: TimeSpec,
    /// Begin of its validity; shortly before its issue when absent.
    pub not_before: Option<TimeSpec>,
    /// Most sessions at a time at each relay.
    pub sessions: Option<NonZeroU32>,
    /// Longest that a session may be open.
    #[serde(default, with = "as_text::option")]
    pub session_max_age: Option<Duration>,
    /// Source addresses of packets beside the gateway's own.
    #[serde(default)]
    pub sources: Vec<SourceRange>,
}

/// `"any"` or a list of public identities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelaySpec {
    /// Every relay that trusts the operator.
    Any,
    /// These relays.
    Listed(Vec<PublicIdentity>),
}

/// A point in time as written: a date, or a span from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSpec {
    /// A time after the issue.
    After(Duration),
    /// A date.
    At(Timestamp),
}

impl GrantSpec {
    /// Parses a specification.
    ///
    /// # Errors
    /// [`GrantError::Spec`]: one line with the place and what is wrong.
    pub fn parse(text: &str) -> Result<Self, GrantError> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            let place = line.map_or(String::new(), |line| format!("line {line}: "));
            let problem = error.message().replace('\n', " ");
            GrantError::Spec(format!("{place}{problem}"))
        })
    }

    /// Creates the grant, issued at `now`.
    ///
    /// # Errors
    /// When it would end before it begins or before now, or covers nothing.
    pub fn issue(&self, now: Timestamp) -> Result<Grant, GrantError> {
        let not_before = match self.not_before {
            None => {
                Timestamp::from_nanos(now.as_nanos().saturating_sub(BACKDATED.as_nanos() as u64))
            }
            Some(time) => time.resolve(now),
        };
        let expires = self.expires.resolve(now);
        let refused = |problem: &str| Err(GrantError::Spec(problem.to_owned()));
        if expires <= now {
            return refused(
                "`expires` is in the past; expected a later date or a span such as `720 h`",
            );
        }
        if expires <= not_before {
            return refused("`expires` comes before `not_before`; expected a later date");
        }
        if self.destinations.is_empty() {
            return refused("`destinations` is empty; expected rules such as `10.0.0.0/8:443`");
        }
        if matches!(&self.relays, RelaySpec::Listed(relays) if relays.is_empty()) {
            return refused("`relays` is empty; expected \"any\" or public identities (twid_...)");
        }
        Ok(Grant {
            gateway: self.gateway,
            not_before,
            expires,
            sessions: self.sessions,
            relays: match &self.relays {
                RelaySpec::Any => Relays::Any,
                RelaySpec::Listed(relays) => Relays::listed(relays),
            },
            destinations: self.destinations.clone(),
            extensions: Extensions {
                session_max_age: self.session_max_age,
                // Otherwise it follows from the begin.
                issued_at: self.not_before.map(|_| now),
                sources: self.sources.clone(),
            },
        })
    }
}

impl TimeSpec {
    fn resolve(self, now: Timestamp) -> Timestamp {
        match self {
            Self::After(span) => now + span,
            Self::At(time) => time,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(date) => from_date(&date).map(Self::At),
            Err(_) => parse_duration(text).ok().map(Self::After),
        }
    }
}

/// Parses a date with time and zone.
///
/// # Errors
/// [`GrantError::Invalid`].
pub fn parse_moment(text: &str) -> Result<Timestamp, GrantError> {
    let expected = "a date with time and zone such as 2027-01-31T00:00:00Z";
    let date = text.parse().ok().and_then(|date| from_date(&date));
    date.ok_or_else(|| GrantError::invalid("time", text, expected))
}

impl<'de> Deserialize<'de> for TimeSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let read = match &value {
            toml::Value::String(text) => Self::parse(text),
            toml::Value::Datetime(date) => from_date(date).map(Self::At),
            _ => None,
        };
        read.ok_or_else(|| {
            let expected = "a date with time and zone such as 2027-01-31T00:00:00Z, \
                            or a span of at most a year such as \"720 h\"";
            D::Error::custom(format!("expected {expected}, not `{value}`"))
        })
    }
}

impl<'de> Deserialize<'de> for RelaySpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let refused = |value: &toml::Value| {
            let expected = "\"any\" or a list of public identities (twid_...)";
            D::Error::custom(format!("expected {expected}, not `{value}`"))
        };
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) if text == "any" => Ok(Self::Any),
            toml::Value::Array(values) => {
                let read = |value: &toml::Value| match value {
                    toml::Value::String(text) => text.parse().map_err(D::Error::custom),
                    other => Err(refused(other)),
                };
                values.iter().map(read).collect::<Result<_, _>>().map(Self::Listed)
            }
            other => Err(refused(&other)),
        }
    }
}
