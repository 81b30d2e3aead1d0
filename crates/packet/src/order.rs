//! Packets of a flow put in order where they leave the overlay, as long as their latency budget
//! bears it.
//!
//! A packet that comes after a missing one waits until that has come, by whatever way, or until the
//! missing packet would come too late. Who was given up and comes all the same is released at once.
//!
//! Waiting packets are bounded: by packets of a flow, and in all by bytes. Where there is no room,
//! whoever has most bytes waiting has the flow released that waits longest.

use std::collections::BTreeMap;

use tradewind_units::{Duration, Timestamp};

/// Packets of one flow that wait. Chosen: those of 250 ms at 4,000 packets a second.
const MOST_OF_FLOW: usize = 1024;
/// What a packet takes beside its bytes.
const AROUND_PACKET: usize = 64;
/// Bytes of all packets that wait. Chosen: a gateway's sockets hold as much.
pub const MOST_WAITING_BYTES: usize = 16 << 20;

/// Puts packets of flows in order, by whose the flows are.
#[derive(Debug)]
pub struct Order<O, F> {
    limit_bytes: usize,
    flows: BTreeMap<(O, F), Flow>,
    bytes: usize,
    by_owner: BTreeMap<O, usize>,
    waited: u64,
    /// Released, to be taken.
    ready: Vec<(O, F, Vec<u8>)>,
}

#[derive(Debug)]
struct Flow {
    /// The lowest that has been neither released nor given up.
    next: u64,
    /// By sequence what waits, and when it came.
    waiting: BTreeMap<u64, (Timestamp, Vec<u8>)>,
    /// How long something waits at most.
    hold: Duration,
    /// When something that waits is released at the latest.
    due: Option<Timestamp>,
}

impl Flow {
    /// Works out when something is due: what is missing before a packet was sent before that one.
    fn look(&mut self) {
        let came = self.waiting.values().map(|(came, _)| *came).min();
        self.due = came.map(|came| came + self.hold);
    }
}

impl<O: Ord + Copy, F: Ord + Copy> Default for Order<O, F> {
    fn default() -> Self {
        Self::new(MOST_WAITING_BYTES)
    }
}

impl<O: Ord + Copy, F: Ord + Copy> Order<O, F> {
    /// Returns one in which nothing waits, and at most `limit_bytes` do.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let (flows, by_owner) = Default::default();
        Self { limit_bytes, flows, bytes: 0, by_owner, waited: 0, ready: Vec::new() }
    }

    /// Returns whether a packet is next in a flow in which nothing waits: then it is released, and
    /// the one after it is next. The first that comes of a flow begins the order.
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

    /// Takes a packet of a flow; one that waits already is left as it is. What it waits for it
    /// waits for `hold` at most.
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
            // Its turn is over: it is worth no less than without an order.
            self.ready.push((owner, flow, packet.to_vec()));
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

    /// Returns the time at which something is to be released, though others before it are missing.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        self.flows.values().filter_map(|flow| flow.due).min()
    }

    /// Releases what has waited long enough.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        let is_due = |flow: &Flow| flow.due.is_some_and(|due| due <= now);
        let due: Vec<(O, F)> =
            self.flows.iter().filter(|(_, flow)| is_due(flow)).map(|(key, _)| *key).collect();
        due.into_iter().for_each(|key| self.release(now, key));
    }

    /// Releases all that waits of a flow, and forgets it.
    pub fn end_flow(&mut self, owner: O, flow: F) {
        self.skip_to(&(owner, flow), u64::MAX);
        self.flows.remove(&(owner, flow));
    }

    /// Returns what was released, in order.
    pub fn take_ready(&mut self) -> Vec<(O, F, Vec<u8>)> {
        std::mem::take(&mut self.ready)
    }

    /// Returns the flows that are known.
    pub fn flows(&self) -> impl Iterator<Item = (O, F)> + '_ {
        self.flows.keys().copied()
    }

    /// Returns how many bytes wait, with what is kept beside them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Releases what is next, and what waits for nobody any more.
    fn release(&mut self, now: Timestamp, key: (O, F)) {
        let Some(flow) = self.flows.get(&key) else { return };
        let is_over = |came: Timestamp| now >= came + flow.hold;
        // The latest of those that have waited long enough: all before it are given up.
        let over = flow.waiting.iter().filter(|(_, (came, _))| is_over(*came));
        let given_up = over.map(|(sequence, _)| *sequence).next_back();
        let most = flow.waiting.len().checked_sub(MOST_OF_FLOW + 1);
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

    /// Releases what waits below `end`, and gives up what is missing there.
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
            self.ready.push((owner, number, packet));
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
