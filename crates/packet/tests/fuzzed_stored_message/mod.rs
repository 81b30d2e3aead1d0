//! The rendezvous under any script: stored messages are altered, truncated, repeated and given to
//! others; deposits, requests and answers are invented. In any case a receiver opens messages that
//! were sealed for it, each packet once; a relay gives a receiver the messages that were left for
//! it, within its bounds; a refusal changes no state.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::{BTreeMap, BTreeSet};

use tradewind_packet::message::{
    Acknowledgement, Collect, Deposit, Deposited, Remaining, StoredMessage,
};
use tradewind_packet::rendezvous::{
    Collector, Depositor, MessageStore, MessageStoreConfig, Opened, Opener, Refused, Sealer,
};
use tradewind_units::{Bytes, Duration, Timestamp};

use crate::meeting::{identity, now, patient, roomy, sealer};
use crate::script::Script;

/// The most operations of one script.
const MAX_OPERATIONS: usize = 200;
const RECEIVERS: [u8; 2] = [4, 5];
/// The senders and their receivers: a place in [`RECEIVERS`].
const SEALERS: [(u8, usize); 3] = [(1, 0), (2, 0), (1, 1)];
const EPOCH: u64 = 77;
/// The most stored messages of one answer, whatever is requested.
const MAX_CREDIT: usize = 64;

/// A stored message as it was sealed, its receiver, and its packet's number; a stored header has
/// none.
struct Sealed {
    receiver: usize,
    number: Option<u64>,
    bytes: Vec<u8>,
}

struct World {
    at: Timestamp,
    sealers: Vec<Sealer>,
    openers: Vec<Opener>,
    message_store: MessageStore,
    most: u64,
    depositor: Depositor,
    collector: Collector,
    sealed: Vec<Sealed>,
    /// The packets that have been opened.
    opened: BTreeSet<u64>,
    /// The messages that anybody left at the relay for each receiver.
    left: BTreeMap<usize, BTreeSet<Vec<u8>>>,
    /// The messages that the collector received, and those that the depositor was given.
    came: BTreeSet<Vec<u8>>,
    pushed: BTreeSet<Vec<u8>>,
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let config = match script.byte() % 2 {
            0 => roomy(),
            _ => MessageStoreConfig {
                bytes: Bytes::new(9_000),
                per_sender: Bytes::new(6_000),
                keep: Duration::from_secs(20),
            },
        };
        let to = identity(RECEIVERS[0]).public();
        Self {
            at: Timestamp::from_nanos(1_000_000_000),
            sealers: (9..)
                .zip(SEALERS)
                .map(|(seed, (from, to))| sealer(from, RECEIVERS[to], seed))
                .collect(),
            openers: RECEIVERS.map(|number| Opener::new(identity(number))).into(),
            message_store: MessageStore::new(config, EPOCH),
            most: config.bytes.as_u64(),
            depositor: Depositor::new(to, patient(), 1),
            collector: Collector::default(),
            sealed: Vec::new(),
            opened: BTreeSet::new(),
            left: BTreeMap::new(),
            came: BTreeSet::new(),
            pushed: BTreeSet::new(),
        }
    }

    fn operate(&mut self, script: &mut Script<'_>) {
        match script.below(10) {
            0 | 1 => self.seal(script),
            2 | 3 => self.open(script),
            4 => self.open_noise(script),
            5 | 6 => self.deposit(script),
            7 => self.collect(script),
            8 => self.meet_ends(script),
            _ => {
                // From milliseconds to an hour and more.
                let (span, scale) = (script.byte() as u64, [1, 100, 20_000][script.below(3)]);
                self.at = self.at + Duration::from_millis(span * scale);
                self.message_store.handle_timeout(self.at);
            }
        }
        assert!(
            self.message_store.cost() <= self.most,
            "{} bytes are kept",
            self.message_store.cost()
        );
    }

    fn seal(&mut self, script: &mut Script<'_>) {
        let which = script.below(SEALERS.len());
        let number = self.sealed.len() as u64;
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(8 + 8 * script.byte(), 7);
        let mut stored_messages = Vec::new();
        let put = |stored_message| stored_messages.push(stored_message);
        self.sealers[which].seal(now(self.at), &payload, put).unwrap();
        for bytes in stored_messages {
            let receiver = SEALERS[which].1;
            let number = (bytes[0] == 2).then_some(number);
            if receiver == 0 {
                self.pushed.insert(bytes.clone());
                self.depositor.push(self.at, bytes.clone());
            }
            self.sealed.push(Sealed { receiver, number, bytes });
        }
    }

    /// Returns a stored message of the script's choice.
    fn pick(&self, script: &mut Script<'_>) -> Option<&Sealed> {
        let place = script.byte();
        (!self.sealed.is_empty()).then(|| &self.sealed[place % self.sealed.len()])
    }

    fn open(&mut self, script: &mut Script<'_>) {
        let Some(Sealed { receiver, number, bytes }) = self.pick(script) else { return };
        let (owner, number, mut bytes) = (*receiver, *number, bytes.clone());
        let (receiver, change) = (script.byte() % 2, script.byte() % 4);
        match change {
            0 => {
                let place = script.below(bytes.len());
                bytes[place] ^= script.byte().max(1) as u8;
            }
            1 => bytes.truncate(script.below(bytes.len())),
            _ => {}
        }
        let is_as_sealed = change > 1 && receiver == owner;
        let may = !script.byte().is_multiple_of(4);
        let opened = self.try_to_open(receiver, &mut bytes, may);
        match opened {
            Ok(found) => {
                assert!(is_as_sealed, "an altered stored message, or another's, was opened");
                assert_eq!(found, number);
                if let Some(number) = number {
                    assert!(self.opened.insert(number), "packet {number} was opened twice");
                }
            }
            Err(refused) if is_as_sealed => {
                let has_a_reason = match refused {
                    Refused::Malformed => false,
                    // Its stored header has not come, but an earlier one of the flow.
                    Refused::NotGenuine => number.is_some(),
                    Refused::NotGranted => true,
                    Refused::Stale => number.is_none(),
                    Refused::NoStoredHeader => number.is_some(),
                    Refused::Replayed => number.is_some_and(|number| self.opened.contains(&number)),
                };
                assert!(has_a_reason, "{refused:?}");
            }
            Err(_) => {}
        }
    }

    /// Opens a stored message; returns a packet's number, or none for a stored header. A refusal
    /// changes nothing.
    fn try_to_open(
        &mut self,
        receiver: usize,
        stored_message: &mut [u8],
        may: bool,
    ) -> Result<Option<u64>, Refused> {
        let unix = now(self.at).unix;
        let opener = &mut self.openers[receiver];
        let before = format!("{opener:?}");
        let ends = unix + Duration::from_secs(3_600);
        let opened = opener.open(unix, stored_message, |head| {
            assert_eq!(head.grant, b"grant");
            may.then_some(ends)
        });
        let found = match opened {
            Ok(Opened::StoredHeader) => Ok(None),
            Ok(Opened::Packet { payload, .. }) => {
                Ok(Some(u64::from_be_bytes(payload[..8].try_into().unwrap())))
            }
            Err(refused) => Err(refused),
        };
        if found.is_err() {
            assert_eq!(format!("{opener:?}"), before, "{found:?}");
        }
        found
    }

    fn open_noise(&mut self, script: &mut Script<'_>) {
        let (receiver, length) = (script.byte() % 2, script.byte());
        let mut noise = script.bytes(length).to_vec();
        assert!(self.try_to_open(receiver, &mut noise, true).is_err());
    }

    fn deposit(&mut self, script: &mut Script<'_>) {
        let (from, form) = (1 + script.byte() % 3, script.byte());
        let number = match script.byte() as u64 {
            255 => (1 << 63) - 1,
            number => number % 32,
        };
        let receiver = form % 2;
        let stored_message = match self.pick(script) {
            Some(sealed) if form & 2 == 0 => sealed.bytes.clone(),
            _ => vec![1 + (form / 4 % 3) as u8; 1 + 8 * script.byte()],
        };
        let deposit = Deposit {
            stream: (form / 16 % 4) as u64,
            begins: form & 8 == 0,
            number,
            keep_s: script.byte() as u32,
            to: identity(RECEIVERS[receiver]).public(),
            stored_message: &stored_message,
        };
        let deposited =
            self.message_store.deposit(self.at, identity(from as u8).public(), &deposit);
        self.left.entry(receiver).or_default().insert(stored_message.clone());
        if let Some(Deposited { epoch, stream, .. }) = deposited {
            assert_eq!((epoch, stream), (EPOCH, deposit.stream));
        }
    }

    fn collect(&mut self, script: &mut Script<'_>) {
        let (receiver, form) = (script.byte() % 2, script.byte());
        let epoch = if form & 1 == 0 { EPOCH } else { 0 };
        let seen = seen_of(script);
        let collect = Collect { epoch, ask: form as u64, credit: script.byte() as u16, seen };
        let mut given = Vec::new();
        let give = |stored_message: StoredMessage<'_>| {
            given.push((
                stored_message.since,
                stored_message.position,
                stored_message.stored_message.to_vec(),
            ))
        };
        let owner = identity(RECEIVERS[receiver]).public();
        let remaining = self.message_store.collect(self.at, owner, &collect, give);
        assert!(given.len() <= usize::from(collect.credit).min(MAX_CREDIT));
        assert!(remaining.is_some() || given.is_empty());
        assert!(given.iter().all(|(since, position, _)| since <= position));
        assert!(given.is_sorted_by(|before, after| before.1 < after.1));
        let is_below = |position: u64| epoch == EPOCH && position < seen.next;
        for (since, position, bytes) in given {
            assert!(!is_below(position), "position {position} had come");
            let left = self.left.get(&receiver);
            assert!(left.is_some_and(|left| left.contains(&bytes)), "nobody left that");
            let stored_message =
                StoredMessage { epoch: EPOCH, since, position, stored_message: &bytes };
            self.came.insert(bytes.clone());
            self.collector.handle_stored_message(self.at, &stored_message);
        }
        if let Some(remaining) = remaining {
            self.collector.handle_remaining(self.at, &remaining);
        }
        self.hand_on();
    }

    /// Checks that the collector releases only messages that it received.
    fn hand_on(&mut self) {
        while let Some(bytes) = self.collector.poll_stored_message() {
            assert!(self.came.contains(&bytes), "nobody gave that");
        }
    }

    /// Sends answers that no relay gave to depositor and collector.
    fn meet_ends(&mut self, script: &mut Script<'_>) {
        let form = script.byte();
        let mut deposits = 0;
        while let Some(deposit) = self.depositor.poll_deposit(self.at) {
            assert!(self.pushed.contains(deposit.stored_message), "nobody pushed that");
            deposits += 1;
            // As many as may be in flight at once: those that an acknowledgement covers.
            assert!(deposits <= 256, "deposits without end");
        }
        let question = self.collector.poll_collect(self.at);
        assert!(self.collector.poll_collect(self.at).is_none(), "two questions at a time");
        let epoch = if form & 1 == 0 { EPOCH } else { form as u64 };
        match form / 2 % 3 {
            0 => {
                let (stream, seen) = (1 + (form / 64) as u64, seen_of(script));
                let deposited = Deposited { epoch, stream, is_known: form & 8 == 0, seen };
                self.depositor.handle_deposited(self.at, &deposited);
            }
            1 => {
                let position = seen_of(script).next;
                let since = position.saturating_sub(script.byte() as u64);
                let noise = vec![form as u8; 1 + script.byte()];
                self.came.insert(noise.clone());
                let stored_message =
                    StoredMessage { epoch, since, position, stored_message: &noise };
                self.collector.handle_stored_message(self.at, &stored_message);
            }
            _ => {
                let ask = question.map_or(1, |question| question.ask);
                self.collector
                    .handle_remaining(self.at, &Remaining { epoch, ask, left: form as u32 });
            }
        }
        self.hand_on();
    }
}

fn seen_of(script: &mut Script<'_>) -> Acknowledgement {
    let next = match script.byte() as u64 {
        255 => (1 << 63) - 1,
        next => next % 40,
    };
    let beyond = [script.byte() as u64, 0, 0, (script.byte() as u64) << 56];
    Acknowledgement { next, beyond }
}

/// Checks the properties at the top of this file under any script.
pub(crate) fn stored_messages(data: &[u8]) {
    let mut script = Script(data);
    let mut world = World::new(&mut script);
    for _ in 0..MAX_OPERATIONS {
        if script.is_over() {
            break;
        }
        world.operate(&mut script);
    }
}
