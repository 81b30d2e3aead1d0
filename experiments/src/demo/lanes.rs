//! Which transfers may run at once without changing each other: those that share no sending and no receiving host, as
//! long as one machine can carry them all through the emulator.

use std::collections::BTreeSet;

use tradewind_units::{Bandwidth, SiteId};

/// What a transfer occupies.
#[derive(Debug, Clone)]
pub(super) struct Work {
    /// Who sends.
    pub(super) source: SiteId,
    /// Who receives.
    pub(super) destination: SiteId,
    /// What it is expected to put on the emulator: its rate, times the legs it crosses.
    pub(super) load: Bandwidth,
}

/// Most that the emulator is given at once, in bit/s. Chosen: half of what two cores carried with a
/// valid record (`make bench`), so that programs on the hosts have the other half.
const MOST_LOAD_BPS: u64 = 2_000_000_000;

/// Splits the work into groups, each to be run at once; every index appears once.
///
/// Greedy, largest load first: a transfer joins the first group that has room for it.
pub(super) fn groups(work: &[Work]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..work.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(work[*index].load));
    let mut groups: Vec<Group> = Vec::new();
    for index in order {
        match groups.iter_mut().find(|group| group.has_room_for(&work[index])) {
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
    sources: BTreeSet<&'a SiteId>,
    destinations: BTreeSet<&'a SiteId>,
    load_bps: u64,
}

impl<'a> Group<'a> {
    fn has_room_for(&self, work: &Work) -> bool {
        self.load_bps + work.load.as_bps() <= MOST_LOAD_BPS
            && !self.sources.contains(&work.source)
            && !self.destinations.contains(&work.destination)
    }

    fn add(&mut self, index: usize, work: &'a Work) {
        self.members.push(index);
        self.sources.insert(&work.source);
        self.destinations.insert(&work.destination);
        self.load_bps += work.load.as_bps();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(source: &str, destination: &str, mbps: f64) -> Work {
        let site = |name| SiteId::new(name).unwrap();
        let load = Bandwidth::from_mbps(mbps).unwrap();
        Work { source: site(source), destination: site(destination), load }
    }

    #[test]
    fn who_shares_a_sender_or_a_receiver_waits() {
        let all =
            [work("a", "b", 1.0), work("a", "c", 1.0), work("c", "b", 1.0), work("b", "a", 1.0)];
        let groups = groups(&all);
        assert_eq!(groups, [vec![0, 3], vec![1, 2]]);
    }

    #[test]
    fn the_machine_is_not_given_more_than_it_can_carry_unless_one_transfer_needs_it() {
        let all = [work("a", "b", 1500.0), work("b", "a", 600.0), work("c", "d", 3000.0)];
        let groups = groups(&all);
        assert_eq!(groups, [vec![2], vec![0], vec![1]]);
    }
}
