//! The echo of a probe: the round-trip time of every leg that it crossed.
//!
//! Each relay that receives a reply subtracts the time that the next one spent from the time that
//! it waited: the difference is the round trip of the leg between the two, whether or not a
//! connection had to be dialled behind it. It prepends this leg to the others and adds the time
//! that it spent itself. So the gateway, which does the same, knows every leg and needs no clock
//! but its own.
//!
//! As text, whole microseconds, ten of which fit into a reply's message: `spent leg leg ...`.

use std::fmt;
use std::time::Duration;

use crate::GrantError;
use crate::header::HOP_LIMIT;

/// The echo of a probe from one relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Echo {
    /// Time from the arrival of the probe at this relay to its reply.
    pub spent: Duration,
    /// Round trips of the legs behind this relay, the nearest first; none at the last.
    pub legs: Vec<Duration>,
}

impl Echo {
    /// Returns the echo of the last relay.
    #[must_use]
    pub const fn last(spent: Duration) -> Self {
        Self { spent, legs: Vec::new() }
    }

    /// Returns all legs from here, given the time that this side waited for the echo.
    #[must_use]
    pub fn legs_after(&self, waited: Duration) -> Vec<Duration> {
        let leg = waited.saturating_sub(self.spent);
        [leg].into_iter().chain(self.legs.iter().copied()).collect()
    }

    /// Parses an echo from a reply's message.
    ///
    /// # Errors
    /// [`GrantError::Malformed`] when it is none.
    pub fn parse(message: &str) -> Result<Self, GrantError> {
        let malformed = || GrantError::Malformed { what: "probe's echo", at: 0 };
        let span = |word: &str| {
            let micros = word.parse::<u32>().map_err(|_| malformed())?;
            Ok(Duration::from_micros(micros.into()))
        };
        let mut words = message.split(' ');
        let spent = span(words.next().unwrap_or_default())?;
        let legs = words.map(span).collect::<Result<Vec<_>, _>>()?;
        if legs.len() >= HOP_LIMIT {
            return Err(malformed());
        }
        Ok(Self { spent, legs })
    }
}

impl fmt::Display for Echo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |span: &Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
        write!(f, "{}", micros(&self.spent))?;
        self.legs.iter().try_for_each(|leg| write!(f, " {}", micros(leg)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_relay_adds_its_leg_to_the_echo() {
        let ms = Duration::from_millis;
        let last = Echo::last(ms(1));
        let middle = Echo { spent: ms(250), legs: last.legs_after(ms(101)) };
        assert_eq!(middle.legs, [ms(100)]);
        let read = Echo::parse(&middle.to_string()).unwrap();
        assert_eq!(read, middle);
        assert_eq!(read.legs_after(ms(280)), [ms(30), ms(100)]);
        assert_eq!(read.legs_after(ms(200)), [ms(0), ms(100)], "a clock that jumped");
    }

    #[test]
    fn longest_echo_fits_into_a_reply() {
        let longest = Echo { spent: Duration::MAX, legs: vec![Duration::MAX; HOP_LIMIT - 1] };
        assert!(longest.to_string().len() <= crate::reply::MESSAGE_LIMIT);
        assert!(Echo::parse(&longest.to_string()).is_ok());
        for text in ["", "x", "1 ", "1  2", "-1", "1 2 3 4 5 6 7 8 9", "4294967296"] {
            assert!(Echo::parse(text).is_err(), "{text}");
        }
    }
}
