//! Puts packets of a flow in order where they leave the overlay, within their latency budget.
//!
//! A packet that comes after a missing one waits until that has come, on any path, or until the
//! missing packet would be too late. A packet that was given up and comes all the same is released
//! at once.
//!
//! Waiting packets are bounded: by packets of a flow, and in all by bytes. Beyond that the flow
//! that waits longest, of the owner with most bytes waiting, is released.

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

/// The most packets of one flow that wait. Chosen: those of 250 ms at 4,000 packets a second.
const MAX_OF_FLOW: usize = 1024;
/// Bookkeeping bytes of a packet.
const AROUND_PACKET: usize = 64;
/// Bytes of all packets that wait. Chosen: a gateway's sockets hold as much.
pub const MAX_WAITING_BYTES: usize = 16 << 20;

/// Puts packets in order, by owner and flow.
#[derive(Debug)]
pub struct Order<O, F> {
    limit_bytes: usize,
    flows: BTreeMap<(O, F), Flow>,
    bytes: usize,
    by_owner: BTreeMap<O, usize>,
    waited: u64,
    /// Released packets, to be taken.
    ready: Vec<OrderedPacket<O, F>>,
}

/// A packet whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderedPacket<O, F> {
    /// The owner of its flow.
    pub owner: O,
    /// Its flow.
    pub flow: F,
    /// Its bytes.
    pub packet: Vec<u8>,
}

#[derive(Debug)]
struct Flow {
    /// The lowest that has been neither released nor given up.
    next: u64,
    /// The waiting packets by sequence, and when they came.
    waiting: BTreeMap<u64, (Timestamp, Vec<u8>)>,
    /// Longest that a packet waits.
    hold: Duration,
    /// When a waiting packet is released at the latest.
    due: Option<Timestamp>,
}

impl Flow {
    /// Computes the deadline: the packet missing before a waiting one was sent before it.
    fn look(&mut self) {
        let came = self.waiting.values().map(|(came, _)| *came).min();
        self.due = came.map(|came| came + self.hold);
    }
}

impl<O: Ord + Copy, F: Ord + Copy> Default for Order<O, F> {
    fn default() -> Self {
        Self::new(MAX_WAITING_BYTES)
    }
}

impl<O: Ord + Copy, F: Ord + Copy> Order<O, F> {
    /// Returns one without packets, in which at most `limit_bytes` may wait.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let (flows, by_owner) = Default::default();
        Self { limit_bytes, flows, bytes: 0, by_owner, waited: 0, ready: Vec::new() }
    }

    /// Returns whether a packet is next in a flow without waiting packets: then it counts as
    /// released, and the one after it is next. The first packet of a flow begins the order.
    pub fn pass(&mut self, key: (O, F), sequence: u64) -> bool {
        let begin =
            || Flow { next: sequence, waiting: BTreeMap::new(), hold: Duration::ZERO, due: None };
        let flow = self.flows.entry(key).or_insert_with(begin);
        let is_next = flow.next == sequence && flow.waiting.is_empty();
        flow.next += u64::from(is_next);
        is_next
    }

    /// Returns how many packets have waited so far.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.waited
    }

    /// Takes a packet of a flow, unless it waits already. The packets missing before it are waited
    /// for no longer than `hold`.
    pub fn add(
        &mut self,
        now: Timestamp,
        (owner, flow): (O, F),
        (sequence, packet): (u64, &[u8]),
        hold: Duration,
    ) {
        let begin = || Flow { next: sequence, waiting: BTreeMap::new(), hold, due: None };
        let known = self.flows.entry((owner, flow)).or_insert_with(begin);
        known.hold = hold;
        if sequence < known.next {
            // Its turn is over, so it is released at once, as without an order.
            self.ready.push(OrderedPacket { owner, flow, packet: packet.to_vec() });
            return;
        }
        if known.waiting.contains_key(&sequence) {
            return;
        }
        known.waiting.insert(sequence, (now, packet.to_vec()));
        let bytes = packet.len() + AROUND_PACKET;
        self.bytes += bytes;
        *self.by_owner.entry(owner).or_default() += bytes;
        self.release(now, (owner, flow));
        let known = self.flows.get(&(owner, flow));
        self.waited += u64::from(known.is_some_and(|it| it.waiting.contains_key(&sequence)));
        self.make_room(now);
    }

    /// Returns when a packet is to be released, though others before it are missing.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        self.flows.values().filter_map(|flow| flow.due).min()
    }

    /// Releases the packets that have waited long enough.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let is_due = |flow: &Flow| flow.due.is_some_and(|due| due <= now);
        let due: Vec<(O, F)> =
            self.flows.iter().filter(|(_, flow)| is_due(flow)).map(|(key, _)| *key).collect();
        due.into_iter().for_each(|key| self.release(now, key));
    }

    /// Releases all waiting packets of a flow, and forgets it.
    pub fn end_flow(&mut self, owner: O, flow: F) {
        self.skip_to(&(owner, flow), u64::MAX);
        self.flows.remove(&(owner, flow));
    }

    /// Returns the released packets, in order.
    pub fn take_ready(&mut self) -> Vec<OrderedPacket<O, F>> {
        std::mem::take(&mut self.ready)
    }

    /// Returns the flows that are known.
    pub fn flows(&self) -> impl Iterator<Item = (O, F)> + '_ {
        self.flows.keys().copied()
    }

    /// Returns how many bytes wait, with the bookkeeping.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Releases the packets that are next, and those whose wait is over.
    fn release(&mut self, now: Timestamp, key: (O, F)) {
        let Some(flow) = self.flows.get(&key) else { return };
        let is_over = |came: Timestamp| now >= came + flow.hold;
        // The latest of those that have waited long enough: all before it are given up.
        let over = flow.waiting.iter().filter(|(_, (came, _))| is_over(*came));
        let given_up = over.map(|(sequence, _)| *sequence).next_back();
        let most = flow.waiting.len().checked_sub(MAX_OF_FLOW + 1);
        let crowded = most.and_then(|at| flow.waiting.keys().nth(at).copied());
        let through = given_up.max(crowded);
        if let Some(through) = through {
            self.skip_to(&key, through + 1);
        }
        let Some(flow) = self.flows.get(&key) else { return };
        let run = flow.waiting.keys().zip(flow.next..);
        let many = run.take_while(|(sequence, next)| *sequence == next).count() as u64;
        let end = flow.next + many;
        self.skip_to(&key, end);
    }

    /// Releases the packets that wait below `end`, and gives up those that are missing there.
    fn skip_to(&mut self, key: &(O, F), end: u64) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let (owner, number) = *key;
        while let Some(first) = flow.waiting.first_entry().filter(|first| *first.key() < end) {
            let (_, packet) = first.remove();
            let bytes = packet.len() + AROUND_PACKET;
            self.bytes -= bytes;
            if let Some(theirs) = self.by_owner.get_mut(&owner) {
                *theirs -= bytes;
                if *theirs == 0 {
                    self.by_owner.remove(&owner);
                }
            }
            self.ready.push(OrderedPacket { owner, flow: number, packet });
        }
        flow.next = flow.next.max(end);
        flow.look();
    }

    fn make_room(&mut self, now: Timestamp) {
        while self.bytes > self.limit_bytes {
            let most = self.by_owner.iter().max_by_key(|(_, bytes)| **bytes);
            let Some(owner) = most.map(|(owner, _)| *owner) else { return };
            let theirs = self.flows.iter().filter(|((of, _), _)| *of == owner);
            let waits = |flow: &Flow| flow.due.unwrap_or(now);
            let longest = theirs
                .filter(|(_, flow)| !flow.waiting.is_empty())
                .min_by_key(|(_, flow)| waits(flow))
                .map(|(key, flow)| (*key, flow.waiting.keys().next_back().copied()));
            let Some((key, Some(last))) = longest else { return };
            self.skip_to(&key, last + 1);
        }
    }
}
