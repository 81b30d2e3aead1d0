//! The traffic that the relays of a flow report to have sent for it.

use std::collections::BTreeMap;

use tradewind_plan::service::RelayUsage;
use tradewind_units::{Duration, Timestamp};

use crate::status::Billed;

/// The interval over which a rate is computed. Chosen: relays report once a second.
const INTERVAL: Duration = Duration::from_secs(10);

/// The role of a relay that reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// The one near the sender, or the only one.
    Ingress,
    Egress,
}

/// Reports of a flow's relays, which `K` distinguishes; each reports sums since it began to serve
/// the flow.
#[derive(Debug, Clone)]
pub(super) struct Accounting<K> {
    /// The last report of each relay.
    last: BTreeMap<(Role, K), RelayUsage>,
    /// The traffic of all relays of a role.
    sums: BTreeMap<Role, RelayUsage>,
    /// The beginning of the interval, and the sum billed by then.
    since: Option<(Timestamp, u64)>,
    usd_per_hour: Option<f64>,
}

impl<K> Default for Accounting<K> {
    fn default() -> Self {
        let (last, sums) = (BTreeMap::new(), BTreeMap::new());
        Self { last, sums, since: None, usd_per_hour: None }
    }
}

impl<K: Ord> Accounting<K> {
    pub(super) fn take(&mut self, now: Timestamp, (role, from): (Role, K), report: RelayUsage) {
        let last = self.last.entry((role, from)).or_default();
        // A relay that restarts counts from zero.
        let since = |new: u64, old: u64| if new >= old { new - old } else { new };
        let sum = self.sums.entry(role).or_default();
        sum.bytes = sum.bytes.saturating_add(since(report.bytes, last.bytes));
        sum.nano_usd = sum.nano_usd.saturating_add(since(report.nano_usd, last.nano_usd));
        *last = report;
        let nano_usd = self.all().nano_usd;
        let (begun, billed) = *self.since.get_or_insert((now, nano_usd));
        let passed = now.since(begun);
        if passed >= INTERVAL {
            let usd = (nano_usd - billed) as f64 / 1e9;
            self.usd_per_hour = Some(usd / passed.as_secs_f64() * 3600.0);
            self.since = Some((now, nano_usd));
        }
    }

    /// Returns the traffic of the relays of a role; `None` before the first report.
    pub(super) fn left(&self, role: Role) -> Option<RelayUsage> {
        self.sums.get(&role).copied()
    }

    fn all(&self) -> RelayUsage {
        self.sums.values().fold(RelayUsage::default(), |all, left| RelayUsage {
            bytes: all.bytes.saturating_add(left.bytes),
            nano_usd: all.nano_usd.saturating_add(left.nano_usd),
        })
    }

    pub(super) fn billed(&self) -> Billed {
        let RelayUsage { bytes, nano_usd } = self.all();
        Billed { bytes, usd: nano_usd as f64 / 1e9, usd_per_hour: self.usd_per_hour }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn bills_add_up_across_relay_restart() {
        let mut accounting = Accounting::default();
        let mut take = |seconds, role, (bytes, nano_usd)| {
            accounting.take(at(seconds), (role, ()), RelayUsage { bytes, nano_usd });
            accounting.billed()
        };
        take(0, Role::Ingress, (1000, 500));
        take(1, Role::Egress, (100, 50));
        let billed = take(2, Role::Ingress, (1500, 750));
        assert_eq!((billed.bytes, billed.usd), (1600, 800e-9));
        let billed = take(3, Role::Ingress, (200, 100));
        assert_eq!((billed.bytes, billed.usd_per_hour), (1800, None));
        // 1,000 nano-dollars more than at the first bill, in ten seconds.
        let billed = take(10, Role::Ingress, (1400, 700));
        assert_eq!(billed.usd_per_hour, Some(1000e-9 / 10.0 * 3600.0));
        let left = [Role::Ingress, Role::Egress].map(|role| accounting.left(role).unwrap().bytes);
        assert_eq!(left, [2900, 100]);
    }
}
