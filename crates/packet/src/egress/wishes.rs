//! Requests of receivers and their answers, remembered as long as anything that could answer them
//! is kept.

use std::collections::{BTreeMap, VecDeque};

use tradewind_units::{Duration, Timestamp};

use crate::id::{PacketId, Peer, Tenant};

/// Most requests that are remembered. Chosen: all losses of a second at 1 % of a million packets a
/// second, six times.
pub const MOST_ASKED: usize = 65_536;
/// Most requests for one tenant's flows, once half of all are taken. Chosen: eight times the burst
/// of a receiver.
pub const MOST_ASKED_OF_ONE: usize = 8192;

/// A packet, and a receiver that wants it.
pub(super) type Wish = (PacketId, Peer);

/// All requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Wishes {
    known: BTreeMap<Wish, Asked>,
    /// The number of requests by tenant.
    of_tenants: BTreeMap<Tenant, usize>,
    order: VecDeque<(Timestamp, Wish)>,
    /// The number of requests that wait: seldom any, and then no search is needed when a packet
    /// arrives.
    waiting: usize,
}

/// The state of a request.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// The owner of the packet's flow.
    tenant: Tenant,
    answers: u8,
    /// The end of the wait for packets that have not arrived.
    waits_until: Option<Timestamp>,
}

impl Wishes {
    /// Remembers a request; returns `false` when there are too many.
    pub(super) fn remember(&mut self, now: Timestamp, tenant: Tenant, wish: Wish) -> bool {
        if self.known.contains_key(&wish) {
            return true;
        }
        let of_tenant = self.of_tenants.entry(tenant).or_default();
        let is_tight = self.known.len() >= MOST_ASKED / 2;
        let is_shared_out = is_tight && *of_tenant >= MOST_ASKED_OF_ONE;
        if self.known.len() >= MOST_ASKED || is_shared_out {
            return false;
        }
        *of_tenant += 1;
        self.known.insert(wish, Asked { tenant, answers: 0, waits_until: None });
        self.order.push_back((now, wish));
        true
    }

    /// Returns how often a request was answered; `None` when it is not remembered.
    pub(super) fn answers(&self, wish: Wish) -> Option<u8> {
        self.known.get(&wish).map(|asked| asked.answers)
    }

    pub(super) fn count_answer(&mut self, wish: Wish) {
        self.set_wait(wish, None);
        if let Some(asked) = self.known.get_mut(&wish) {
            asked.answers += 1;
        }
    }

    /// Returns until when a request waits, if it does.
    pub(super) fn waits_until(&self, wish: Wish) -> Option<Timestamp> {
        self.known.get(&wish).and_then(|asked| asked.waits_until)
    }

    /// Sets until when a request waits; `None`: it waits no more.
    pub(super) fn set_wait(&mut self, wish: Wish, until: Option<Timestamp>) {
        let Some(asked) = self.known.get_mut(&wish) else { return };
        let before = std::mem::replace(&mut asked.waits_until, until);
        self.waiting += usize::from(until.is_some());
        self.waiting -= usize::from(before.is_some());
    }

    /// Returns the waiting requests for a packet.
    pub(super) fn waiting_for(&self, packet: PacketId) -> Vec<Wish> {
        if self.waiting == 0 {
            return Vec::new();
        }
        let first = (packet, Peer(u32::MIN));
        let all = self.known.range(first..).take_while(|(wish, _)| wish.0 == packet);
        all.filter(|(_, asked)| asked.waits_until.is_some()).map(|(wish, _)| *wish).collect()
    }

    /// Forgets requests that are older than `age`.
    pub(super) fn forget_older_than(&mut self, now: Timestamp, age: Duration) {
        while let Some((at, wish)) = self.order.front().copied() {
            if now.since(at) <= age {
                break;
            }
            self.order.pop_front();
            self.set_wait(wish, None);
            let gone = self.known.remove(&wish);
            if let Some(many) = gone.and_then(|asked| self.of_tenants.get_mut(&asked.tenant)) {
                *many -= 1;
            }
        }
        self.of_tenants.retain(|_, many| *many > 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::FlowNumber;
    use proptest::prelude::*;

    proptest! {
        /// The count of waiting requests is right: a lookup finds the same as a search through all.
        #[test]
        fn what_waits_is_found(steps in prop::collection::vec((0..5_u8, 0..8_u64, 0..3_u32),
            1..200)) {
            let (mut wishes, mut now) = (Wishes::default(), Timestamp::ZERO);
            for (step, sequence, receiver) in steps {
                let wish = (PacketId { flow: FlowNumber(1), sequence }, Peer(receiver));
                now = now + Duration::from_millis(1);
                match step {
                    0 => assert!(wishes.remember(now, Tenant(receiver), wish)),
                    1 => wishes.set_wait(wish, Some(now)),
                    2 => wishes.set_wait(wish, None),
                    3 => wishes.count_answer(wish),
                    _ => wishes.forget_older_than(now, Duration::from_millis(20)),
                }
                let waits = |asked: &Asked| asked.waits_until.is_some();
                let all = wishes.known.iter().filter(|(_, asked)| waits(asked));
                prop_assert_eq!(wishes.waiting, all.clone().count());
                let found = (0..8).flat_map(|sequence| {
                    wishes.waiting_for(PacketId { flow: FlowNumber(1), sequence })
                });
                prop_assert_eq!(found.collect::<Vec<_>>(), all.map(|(wish, _)| *wish)
                    .collect::<Vec<_>>());
            }
        }
    }
}
