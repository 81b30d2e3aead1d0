//! Grouping of transfers that may run at once without changing each other: they leave capacity on
//! every host they share, and one machine can carry them all through the emulator.

use std::collections::BTreeMap;

use tradewind_units::{Bandwidth, HostId};

/// The resources that a transfer occupies.
#[derive(Debug, Clone)]
pub struct Work {
    /// The sending host.
    pub source: HostId,
    /// The receiving host.
    pub destination: HostId,
    /// Its largest rate on its hosts.
    pub peak: Bandwidth,
    /// Its average load on the emulator: its rate, times the legs it crosses.
    pub load: Bandwidth,
}

/// Largest sum of concurrent peaks on a shared host, in bit/s. Chosen: well below the gigabit of
/// the demo's sites, so that no transfer queues behind another.
const MAX_SHARED_BPS: u64 = 800_000_000;
/// Largest concurrent load on the emulator, in bit/s. Chosen: half of what two cores carried with a
/// valid record (`make bench`), so that programs on the hosts have the other half.
const MAX_LOAD_BPS: u64 = 2_000_000_000;

/// Splits the work into groups, each to be run at once; every index appears once.
///
/// Greedy, highest peak first: a transfer joins the first group with enough capacity left.
#[must_use]
pub fn groups(work: &[Work]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..work.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(work[*index].peak));
    let mut groups: Vec<Group> = Vec::new();
    for index in order {
        match groups.iter_mut().find(|group| group.has_capacity_for(&work[index])) {
            Some(group) => group.add(index, &work[index]),
            None => {
                let mut group = Group::default();
                group.add(index, &work[index]);
                groups.push(group);
            }
        }
    }
    groups.into_iter().map(|group| group.members).collect()
}

#[derive(Default)]
struct Group<'a> {
    members: Vec<usize>,
    sent_bps: BTreeMap<&'a HostId, u64>,
    received_bps: BTreeMap<&'a HostId, u64>,
    load_bps: u64,
}

impl<'a> Group<'a> {
    fn has_capacity_for(&self, work: &Work) -> bool {
        let fits = |used: Option<&u64>| {
            used.is_none_or(|used| used + work.peak.as_bps() <= MAX_SHARED_BPS)
        };
        self.load_bps + work.load.as_bps() <= MAX_LOAD_BPS
            && fits(self.sent_bps.get(&work.source))
            && fits(self.received_bps.get(&work.destination))
    }

    fn add(&mut self, index: usize, work: &'a Work) {
        self.members.push(index);
        *self.sent_bps.entry(&work.source).or_default() += work.peak.as_bps();
        *self.received_bps.entry(&work.destination).or_default() += work.peak.as_bps();
        self.load_bps += work.load.as_bps();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(source: &str, destination: &str, mbps: f64) -> Work {
        let host = |name| HostId::new(name).unwrap();
        let load = Bandwidth::from_mbps(mbps).unwrap();
        Work { source: host(source), destination: host(destination), peak: load, load }
    }

    #[test]
    fn transfers_that_fill_a_shared_host_are_separated() {
        let all = [
            work("a", "b", 500.0),
            work("a", "c", 400.0),
            work("c", "b", 300.0),
            work("b", "a", 900.0),
        ];
        assert_eq!(groups(&all), [vec![3, 0, 2], vec![1]]);
    }

    #[test]
    fn groups_respect_the_load_limit_except_single_transfers() {
        let all = [work("a", "b", 1500.0), work("b", "a", 600.0), work("c", "d", 3000.0)];
        let groups = groups(&all);
        assert_eq!(groups, [vec![2], vec![0], vec![1]]);
    }
}
