//! Requests of receivers and their answers, remembered as long as anything that could answer them
//! is kept.

use std::collections::{BTreeMap, VecDeque};

use tradewind_units::{Duration, Timestamp};

use crate::id::{PacketId, Peer, Tenant};

/// Most requests that are remembered. Chosen: all losses of a second at 1 % of a million packets a
/// second, six times.
pub const MAX_ASKED: usize = 65_536;
/// Most requests for one tenant's flows, once half of all are in use. Chosen: eight times the burst
/// of a receiver.
pub const MAX_ASKED_OF_ONE: usize = 8192;

/// A packet, and a receiver that wants it.
pub(super) type Request = (PacketId, Peer);

/// All requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests {
    known: BTreeMap<Request, Asked>,
    /// The number of requests by tenant.
    of_tenants: BTreeMap<Tenant, usize>,
    order: VecDeque<(Timestamp, Request)>,
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

impl Requests {
    /// Remembers a request; returns `false` when there are too many.
    pub(super) fn remember(&mut self, now: Timestamp, tenant: Tenant, request: Request) -> bool {
        if self.known.contains_key(&request) {
            return true;
        }
        let of_tenant = self.of_tenants.entry(tenant).or_default();
        let is_tight = self.known.len() >= MAX_ASKED / 2;
        let is_shared_out = is_tight && *of_tenant >= MAX_ASKED_OF_ONE;
        if self.known.len() >= MAX_ASKED || is_shared_out {
            return false;
        }
        *of_tenant += 1;
        self.known.insert(request, Asked { tenant, answers: 0, waits_until: None });
        self.order.push_back((now, request));
        true
    }

    /// Returns how often a request was answered; `None` when it is not remembered.
    pub(super) fn answers(&self, request: Request) -> Option<u8> {
        self.known.get(&request).map(|asked| asked.answers)
    }

    pub(super) fn count_answer(&mut self, request: Request) {
        self.set_wait(request, None);
        if let Some(asked) = self.known.get_mut(&request) {
            asked.answers += 1;
        }
    }

    /// Returns until when a request waits, if it does.
    pub(super) fn waits_until(&self, request: Request) -> Option<Timestamp> {
        self.known.get(&request).and_then(|asked| asked.waits_until)
    }

    /// Sets until when a request waits; `None`: it waits no more.
    pub(super) fn set_wait(&mut self, request: Request, until: Option<Timestamp>) {
        let Some(asked) = self.known.get_mut(&request) else { return };
        let before = std::mem::replace(&mut asked.waits_until, until);
        self.waiting += usize::from(until.is_some());
        self.waiting -= usize::from(before.is_some());
    }

    /// Returns the waiting requests for a packet.
    pub(super) fn waiting_for(&self, packet: PacketId) -> Vec<Request> {
        if self.waiting == 0 {
            return Vec::new();
        }
        let first = (packet, Peer(u32::MIN));
        let all = self.known.range(first..).take_while(|(request, _)| request.0 == packet);
        all.filter(|(_, asked)| asked.waits_until.is_some()).map(|(request, _)| *request).collect()
    }

    /// Forgets requests that are older than `age`.
    pub(super) fn forget_older_than(&mut self, now: Timestamp, age: Duration) {
        while let Some((at, request)) = self.order.front().copied() {
            if now.since(at) <= age {
                break;
            }
            self.order.pop_front();
            self.set_wait(request, None);
            let gone = self.known.remove(&request);
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
        fn waiting_requests_are_found(steps in prop::collection::vec((0..5_u8, 0..8_u64, 0..3_u32),
            1..200)) {
            let (mut requests, mut now) = (Requests::default(), Timestamp::ZERO);
            for (step, sequence, receiver) in steps {
                let request = (PacketId { flow: FlowNumber(1), sequence }, Peer(receiver));
                now = now + Duration::from_millis(1);
                match step {
                    0 => assert!(requests.remember(now, Tenant(receiver), request)),
                    1 => requests.set_wait(request, Some(now)),
                    2 => requests.set_wait(request, None),
                    3 => requests.count_answer(request),
                    _ => requests.forget_older_than(now, Duration::from_millis(20)),
                }
                let waits = |asked: &Asked| asked.waits_until.is_some();
                let all = requests.known.iter().filter(|(_, asked)| waits(asked));
                prop_assert_eq!(requests.waiting, all.clone().count());
                let found = (0..8).flat_map(|sequence| {
                    requests.waiting_for(PacketId { flow: FlowNumber(1), sequence })
                });
                prop_assert_eq!(found.collect::<Vec<_>>(), all.map(|(request, _)| *request)
                    .collect::<Vec<_>>());
            }
        }
    }
}
