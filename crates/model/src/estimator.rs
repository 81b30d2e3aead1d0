//! CDD's estimate of the gain of a third relay over two, from RTTs alone [CDD, "Is RTT a Good
//! Proxy"].
//!
//! It answers one question only: given two split relays near the ends, is a third one between them
//! worth it? For the choice between direct and a relay it fails, as the paper says; that choice is
//! made on completion times.

use tradewind_units::Duration;

/// Returns the factor by which a download gets shorter when a relay is put between two relays.
///
/// `between` is the RTT of the two relays, `first` and `second` the RTTs of the legs by way of the
/// third. `None` when both inner legs take no time, where the ratio has no meaning.
#[must_use]
pub fn gain_of_third_relay(between: Duration, first: Duration, second: Duration) -> Option<f64> {
    let slowest = first.max(second);
    (!slowest.is_zero()).then(|| between.as_secs_f64() / slowest.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn gain_is_the_old_leg_over_the_slower_new_one() {
        assert_eq!(gain_of_third_relay(ms(246), ms(123), ms(110)), Some(2.0));
        assert_eq!(gain_of_third_relay(ms(100), ms(150), ms(10)).map(|g| g < 1.0), Some(true));
        assert_eq!(gain_of_third_relay(ms(100), ms(0), ms(0)), None);
    }
}
