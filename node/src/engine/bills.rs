//! What the relays of a flow say that they have sent for it.

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

use crate::status::Billed;

/// The interval over which a rate is told. Chosen: relays tell once a second.
const INTERVAL: Duration = Duration::from_secs(10);

/// Bills of a flow's relays, whom `K` tells apart; each tells sums since it began to serve the flow.
#[derive(Debug, Clone)]
pub(super) struct Bills<K> {
    /// The last of each relay.
    last: BTreeMap<K, (u64, u64)>,
    bytes: u64,
    nano_usd: u64,
    /// When the interval began, and what had been billed then.
    since: Option<(Timestamp, u64)>,
    usd_per_hour: Option<f64>,
}

impl<K> Default for Bills<K> {
    fn default() -> Self {
        Self { last: BTreeMap::new(), bytes: 0, nano_usd: 0, since: None, usd_per_hour: None }
    }
}

impl<K: Ord> Bills<K> {
    pub(super) fn take(&mut self, now: Timestamp, from: K, (bytes, nano_usd): (u64, u64)) {
        let last = self.last.entry(from).or_default();
        // A relay that starts again counts from zero.
        let since = |new: u64, old: u64| if new >= old { new - old } else { new };
        self.bytes = self.bytes.saturating_add(since(bytes, last.0));
        self.nano_usd = self.nano_usd.saturating_add(since(nano_usd, last.1));
        *last = (bytes, nano_usd);
        let (begun, billed) = *self.since.get_or_insert((now, self.nano_usd));
        let passed = now.since(begun);
        if passed >= INTERVAL {
            let usd = (self.nano_usd - billed) as f64 / 1e9;
            self.usd_per_hour = Some(usd / passed.as_secs_f64() * 3600.0);
            self.since = Some((now, self.nano_usd));
        }
    }

    pub(super) fn told(&self) -> Billed {
        let usd = self.nano_usd as f64 / 1e9;
        Billed { bytes: self.bytes, usd, usd_per_hour: self.usd_per_hour }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn both_relays_are_added_up_and_one_that_starts_again_goes_on() {
        let mut bills = Bills::default();
        bills.take(at(0), false, (1000, 500));
        bills.take(at(1), true, (100, 50));
        bills.take(at(2), false, (1500, 750));
        assert_eq!((bills.told().bytes, bills.told().usd), (1600, 800e-9));
        bills.take(at(3), false, (200, 100));
        assert_eq!(bills.told().bytes, 1800);
        assert_eq!(bills.told().usd_per_hour, None);
        // 1,000 nano-dollars more than at the first bill, in ten seconds.
        bills.take(at(10), false, (1400, 700));
        assert_eq!(bills.told().usd_per_hour, Some(1000e-9 / 10.0 * 3600.0));
    }
}
