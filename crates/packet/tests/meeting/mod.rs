//! A sender, a relay and a receiver of a rendezvous, and lossy access legs between them, in virtual
//! time.

#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;

use tradewind_grant::IdentityKey;
use tradewind_packet::message::Message;
use tradewind_packet::rendezvous::{
    Collector, Depositor, DepositorConfig, MessageStore, MessageStoreConfig, Opened, Opener, Sealer,
};
use tradewind_packet::session::Now;
use tradewind_units::{Bytes, Duration, Timestamp};

pub const STEP: Duration = Duration::from_millis(5);
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

pub fn identity(number: u8) -> IdentityKey {
    IdentityKey::from_entropy([number; 32])
}

pub fn now(at: Timestamp) -> Now {
    Now { steady: at, unix: at + EPOCH }
}

pub fn sealer(from: u8, to: u8, seed: u8) -> Sealer {
    let destination = ([192, 0, 2, 7], 5004).into();
    Sealer::new((identity(from), b"grant"), identity(to).public(), destination, [seed; 32])
}

/// Returns limits that suffice for any test, for an hour.
pub fn roomy() -> MessageStoreConfig {
    let (bytes, per_sender) = (Bytes::new(10_000_000), Bytes::new(5_000_000));
    MessageStoreConfig { bytes, per_sender, keep: Duration::from_secs(3600) }
}

pub fn patient() -> DepositorConfig {
    DepositorConfig { keep: Duration::from_secs(3600), bytes: Bytes::new(5_000_000) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Relay,
    Sender,
    Receiver,
}

/// The properties of access legs: of a hundred datagrams so many are lost and duplicated; the rest
/// takes up to `jitter` longer than the leg.
#[derive(Debug, Clone, Copy)]
pub struct Legs {
    pub lost: u64,
    pub doubled: u64,
    pub jitter_ms: u64,
}

pub struct World {
    pub at: Timestamp,
    pub sealer: Sealer,
    pub depositor: Depositor,
    pub message_store: MessageStore,
    pub collector: Collector,
    pub opener: Opener,
    /// The numbers in packets that were opened, in order of arrival.
    pub got: Vec<u64>,
    pub sender_is_online: bool,
    pub receiver_is_online: bool,
    /// The number of requests of the receiver.
    pub asked: u64,
    /// The longest message that legs take.
    pub longest: usize,
    /// The least delay of each leg.
    pub leg_ms: u64,
    legs: Legs,
    luck: u64,
    wire: BTreeMap<(Timestamp, u64), (Place, Place, Vec<u8>)>,
    sent: u64,
}

impl World {
    /// Returns endpoint 1, which sends to endpoint 4 by way of a relay.
    pub fn new(legs: Legs, seed: u64) -> Self {
        Self {
            at: Timestamp::from_nanos(1_000_000_000),
            sealer: sealer(1, 4, 9),
            depositor: Depositor::new(identity(4).public(), patient(), seed),
            message_store: MessageStore::new(roomy(), 77),
            collector: Collector::default(),
            opener: Opener::new(identity(4)),
            got: Vec::new(),
            sender_is_online: true,
            receiver_is_online: true,
            asked: 0,
            longest: usize::MAX,
            leg_ms: 10,
            legs,
            luck: seed,
            wire: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Sends a packet with this number.
    pub fn write(&mut self, number: u64) {
        let Self { sealer, depositor, at, .. } = self;
        let put = |stored_message| depositor.push(*at, stored_message);
        sealer.seal(now(*at), &number.to_be_bytes(), put).unwrap();
    }

    /// Sends a packet that is longer than others.
    pub fn write_long(&mut self) {
        let Self { sealer, depositor, at, .. } = self;
        sealer
            .seal(now(*at), &[0; 1000], |stored_message| depositor.push(*at, stored_message))
            .unwrap();
    }

    /// Restarts the receiver, which then knows nothing.
    pub fn restart_receiver(&mut self) {
        (self.collector, self.opener) = (Collector::default(), Opener::new(identity(4)));
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.luck = self.luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.luck >> 33) % below.max(1)
    }

    fn send(&mut self, from: Place, to: Place, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        let is_lost = self.draw(100) < self.legs.lost || bytes.len() > self.longest;
        let copies = if is_lost { 0 } else { 1 + u64::from(self.draw(100) < self.legs.doubled) };
        for _ in 0..copies {
            let delay = Duration::from_millis(self.leg_ms + self.draw(self.legs.jitter_ms + 1));
            self.sent += 1;
            self.wire.insert((self.at + delay, self.sent), (from, to, bytes.clone()));
        }
    }

    fn deliver(&mut self, from: Place, to: Place, bytes: &[u8]) {
        let message = Message::parse(bytes).unwrap();
        match (to, message) {
            (Place::Relay, Message::Deposit(deposit)) => {
                let deposited = self.message_store.deposit(self.at, identity(1).public(), &deposit);
                if let Some(deposited) = deposited {
                    self.send(Place::Relay, Place::Sender, &Message::Deposited(deposited));
                }
            }
            (Place::Relay, Message::Collect(collect)) => {
                let mut stored_messages = Vec::new();
                let remaining = self.message_store.collect(
                    self.at,
                    identity(4).public(),
                    &collect,
                    |stored_message| {
                        let mut bytes = Vec::new();
                        Message::StoredMessage(stored_message).write(&mut bytes);
                        stored_messages.push(bytes);
                    },
                );
                for stored_message in stored_messages {
                    self.send(
                        Place::Relay,
                        Place::Receiver,
                        &Message::parse(&stored_message).unwrap(),
                    );
                }
                if let Some(remaining) = remaining {
                    self.send(Place::Relay, Place::Receiver, &Message::Remaining(remaining));
                }
            }
            (Place::Sender, Message::Deposited(deposited)) if self.sender_is_online => {
                self.depositor.handle_deposited(self.at, &deposited);
            }
            (Place::Receiver, Message::StoredMessage(stored_message))
                if self.receiver_is_online =>
            {
                self.collector.handle_stored_message(self.at, &stored_message);
                self.open_all();
            }
            (Place::Receiver, Message::Remaining(remaining)) if self.receiver_is_online => {
                self.collector.handle_remaining(self.at, &remaining);
                self.open_all();
            }
            (Place::Sender | Place::Receiver, _) => {}
            (Place::Relay, other) => panic!("{from:?} says {other:?}"),
        }
    }

    fn open_all(&mut self) {
        while let Some(mut stored_message) = self.collector.poll_stored_message() {
            let unix = now(self.at).unix;
            let opened = self.opener.open(unix, &mut stored_message, |_| Some(unix + EPOCH));
            if let Ok(Opened::Packet { payload, .. }) = opened {
                self.got.push(u64::from_be_bytes(payload[..8].try_into().unwrap()));
            }
        }
    }

    /// Runs one step of virtual time.
    pub fn step(&mut self) {
        self.at = self.at + STEP;
        while let Some(first) = self.wire.first_entry() {
            if first.key().0 > self.at {
                break;
            }
            let (from, to, bytes) = first.remove();
            self.deliver(from, to, &bytes);
        }
        self.message_store.handle_timeout(self.at);
        if self.sender_is_online {
            let mut deposits = Vec::new();
            while let Some(deposit) = self.depositor.poll_deposit(self.at) {
                let mut bytes = Vec::new();
                Message::Deposit(deposit).write(&mut bytes);
                deposits.push(bytes);
            }
            for deposit in deposits {
                self.send(Place::Sender, Place::Relay, &Message::parse(&deposit).unwrap());
            }
        }
        if self.receiver_is_online
            && let Some(collect) = self.collector.poll_collect(self.at)
        {
            self.asked += 1;
            self.send(Place::Receiver, Place::Relay, &Message::Collect(collect));
        }
    }

    /// Steps until `holds`; returns whether it did within `recovery_deadline`.
    pub fn until(&mut self, recovery_deadline: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        let end = self.at + recovery_deadline;
        while self.at < end {
            if holds(self) {
                return true;
            }
            self.step();
        }
        holds(self)
    }
}
