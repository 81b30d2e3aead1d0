//! Opens stored messages: each once, for flows whose senders have a grant.
//!
//! A flow belongs to its first sender as long as it is known. A stored header is accepted within
//! [`MAX_KEPT`] after its time, and never again once its flow was forgotten; packets pass a replay
//! window for each flow. So a relay that repeats, holds back or reorders messages can change the
//! order alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ring::aead::{Aad, LessSafeKey};
use snow::Builder;
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_units::{Duration, Timestamp};

use super::{
    CONTENT_BYTES, MAX_KEPT, NAME, PACKET, PACKET_HEADER_BYTES, PROLOGUE, STORED_HEADER, key_of,
};
use crate::id::FlowNumber;
use crate::noise;
use crate::session::cipher::nonce;
use crate::session::{ReplayWindow, TAG_BYTES};

/// The most flows known at a time, and those of one sender. Chosen: a sender has a flow for each
/// path, and another whenever it restarts; gateways have no more paths to one receiver.
const MAX_FLOWS: usize = 1024;
const MAX_FLOWS_EACH: usize = 16;
/// The most keys of a flow, the newest. Chosen: packets come nearly in order.
const MAX_KEYS: usize = 16;
/// The longest that a sender's clock may be ahead. Source: the same as for sessions.
const MAX_AHEAD: Duration = tradewind_grant::replay::SKEW;

/// The claims of a stored header, for the decision whether its packets may be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The sender, as proven by the handshake.
    pub sender: PublicIdentity,
    /// The destination of the packets.
    pub to: SocketAddr,
    /// The sender's signed grant, not verified yet.
    pub grant: &'a [u8],
}

/// The content of a stored message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened<'a> {
    /// A key.
    StoredHeader,
    /// A packet.
    Packet {
        /// Its flow.
        flow: FlowNumber,
        /// Its destination.
        to: SocketAddr,
        /// The application's payload.
        payload: &'a [u8],
    },
}

/// The reason why a stored message was dropped; no state has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is no stored message.
    #[error("no stored message of this version")]
    Malformed,
    /// It was not sealed for this receiver, or not by the sender of the flow's stored headers, or
    /// was altered.
    #[error("not what its sender sealed for this endpoint")]
    NotGenuine,
    /// The stored header is too old, too new, or perhaps one of a flow that was forgotten.
    #[error("made too long ago, or by a clock that is ahead")]
    Stale,
    /// The sender may not send to this destination.
    #[error("no grant, or none for this destination")]
    NotGranted,
    /// No stored header of this flow has come, or none for that sequence.
    #[error("no stored header for it has come")]
    NoStoredHeader,
    /// It came before, or is too old to be recognized.
    #[error("came before")]
    Replayed,
}

/// Opens the stored messages of one receiver.
#[derive(Debug)]
pub struct Opener {
    /// The identities for which stored messages may be sealed.
    own: Vec<IdentityKey>,
    flows: BTreeMap<FlowNumber, Flow>,
    /// The time of the newest stored header of a sender's forgotten flows: an unknown flow of the
    /// sender must begin with a newer one.
    floors: BTreeMap<PublicIdentity, Timestamp>,
    /// The same for all senders, in place of the entries of `floors` that were too many.
    floor_of_all: Timestamp,
}

#[derive(Debug)]
struct Flow {
    sender: PublicIdentity,
    to: SocketAddr,
    /// The time of the newest stored header, the grant in it, and when that ends.
    made: Timestamp,
    grant: Vec<u8>,
    ends: Timestamp,
    /// The keys by the first sequence that each seals.
    keys: BTreeMap<u64, LessSafeKey>,
    window: ReplayWindow,
}

/// A stored header that was opened.
struct OpenedHeader {
    sender: PublicIdentity,
    made: Timestamp,
    flow: FlowNumber,
    first: u64,
    to: SocketAddr,
    grant: Vec<u8>,
    key: LessSafeKey,
}

impl Opener {
    /// Returns an opener of messages sealed for `identity`.
    #[must_use]
    pub fn new(identity: IdentityKey) -> Self {
        let (flows, floors) = (BTreeMap::new(), BTreeMap::new());
        Self { own: vec![identity], flows, floors, floor_of_all: Timestamp::ZERO }
    }

    /// Opens messages sealed for any of `identities` from now on.
    pub fn set_identities(&mut self, identities: impl IntoIterator<Item = IdentityKey>) {
        self.own = identities.into_iter().collect();
    }

    /// Opens a stored message in place, at `now` since the Unix epoch. `judge` returns when the
    /// grant in a stored header ends, or `None` when its packets may not be delivered.
    ///
    /// # Errors
    /// [`Refused`]; nothing changed.
    pub fn open<'a>(
        &mut self,
        now: Timestamp,
        stored_message: &'a mut [u8],
        judge: impl FnOnce(&Head<'_>) -> Option<Timestamp>,
    ) -> Result<Opened<'a>, Refused> {
        match stored_message.first() {
            Some(&STORED_HEADER) => {
                let opened = self.unseal(&stored_message[1..])?;
                self.learn(now, opened, judge).map(|()| Opened::StoredHeader)
            }
            Some(&PACKET) => self.open_packet(now, stored_message),
            _ => Err(Refused::Malformed),
        }
    }

    /// Judges the senders of all known flows anew, as in [`Opener::open`]. A flow that is refused
    /// now stays refused until a stored header of it is accepted.
    pub fn judge_again(&mut self, judge: impl Fn(&Head<'_>) -> Option<Timestamp>) {
        for flow in self.flows.values_mut() {
            let head = Head { sender: flow.sender, to: flow.to, grant: &flow.grant };
            flow.ends = judge(&head).unwrap_or(Timestamp::ZERO);
        }
    }

    fn unseal(&self, message: &[u8]) -> Result<OpenedHeader, Refused> {
        let mut refused = Err(Refused::NotGenuine);
        for own in &self.own {
            match unseal(own, message) {
                Err(Refused::NotGenuine) => {}
                unsealed => {
                    refused = unsealed;
                    break;
                }
            }
        }
        refused
    }

    fn learn(
        &mut self,
        now: Timestamp,
        opened: OpenedHeader,
        judge: impl FnOnce(&Head<'_>) -> Option<Timestamp>,
    ) -> Result<(), Refused> {
        let OpenedHeader { sender, made, flow: number, first, to, grant, key } = opened;
        if now.since(made) > MAX_KEPT || made.since(now) > MAX_AHEAD {
            return Err(Refused::Stale);
        }
        let known = self.flows.get(&number);
        if known.is_some_and(|flow| flow.sender != sender || flow.to != to) {
            return Err(Refused::NotGenuine);
        }
        let floor = self.floors.get(&sender).copied().unwrap_or_default().max(self.floor_of_all);
        if known.is_none() && made <= floor {
            return Err(Refused::Stale);
        }
        let ends = judge(&Head { sender, to, grant: &grant }).ok_or(Refused::NotGranted)?;
        if !self.flows.contains_key(&number) {
            self.make_room(now, sender);
        }
        let flow = self.flows.entry(number).or_insert_with(|| Flow {
            sender,
            to,
            made,
            grant: Vec::new(),
            ends,
            keys: BTreeMap::new(),
            window: ReplayWindow::default(),
        });
        if made >= flow.made {
            (flow.made, flow.grant, flow.ends) = (made, grant, ends);
        }
        flow.keys.entry(first).or_insert(key);
        if flow.keys.len() > MAX_KEYS {
            flow.keys.pop_first();
        }
        Ok(())
    }

    /// Forgets flows whose stored headers are all stale, and for a new one of `sender` the oldest:
    /// its own when it has too many, otherwise, at the limit of all, that of a sender with most
    /// flows. So other senders lose a flow only if none has more flows than they.
    fn make_room(&mut self, now: Timestamp, sender: PublicIdentity) {
        let is_fresh = |made: Timestamp| now.since(made) <= MAX_KEPT;
        if self.flows.len() >= MAX_FLOWS {
            self.flows.retain(|_, flow| is_fresh(flow.made));
            self.floors.retain(|_, made| is_fresh(*made));
        }
        let theirs = self.flows.values().filter(|flow| flow.sender == sender).count();
        if theirs >= MAX_FLOWS_EACH {
            self.forget_oldest(|of| of == sender);
        } else if self.flows.len() >= MAX_FLOWS {
            let mut counts: BTreeMap<PublicIdentity, usize> = BTreeMap::new();
            self.flows.values().for_each(|flow| *counts.entry(flow.sender).or_default() += 1);
            let most = counts.values().max().copied();
            self.forget_oldest(|of| counts.get(&of).copied() == most);
        }
    }

    /// Forgets the flow that has had no new stored header for longest, so that nothing of it is
    /// ever accepted again.
    fn forget_oldest(&mut self, is_whose: impl Fn(PublicIdentity) -> bool) {
        let theirs = self.flows.iter().filter(|(_, flow)| is_whose(flow.sender));
        let oldest = theirs.min_by_key(|(_, flow)| flow.made).map(|(number, _)| *number);
        let Some(flow) = oldest.and_then(|number| self.flows.remove(&number)) else { return };
        let floor = self.floors.entry(flow.sender).or_insert(flow.made);
        *floor = (*floor).max(flow.made);
        if self.floors.len() > MAX_FLOWS {
            let lowest = self.floors.iter().min_by_key(|(_, made)| **made);
            if let Some((sender, made)) = lowest.map(|(sender, made)| (*sender, *made)) {
                self.floors.remove(&sender);
                self.floor_of_all = self.floor_of_all.max(made);
            }
        }
    }

    fn open_packet<'a>(
        &mut self,
        now: Timestamp,
        stored_message: &'a mut [u8],
    ) -> Result<Opened<'a>, Refused> {
        if stored_message.len() < PACKET_HEADER_BYTES + TAG_BYTES {
            return Err(Refused::Malformed);
        }
        let (header, sealed) = stored_message.split_at_mut(PACKET_HEADER_BYTES);
        let number =
            |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().expect("8 of 17 bytes"));
        let (flow_number, sequence) = (FlowNumber(number(1)), number(9));
        let flow = self.flows.get_mut(&flow_number).ok_or(Refused::NoStoredHeader)?;
        if now >= flow.ends {
            return Err(Refused::NotGranted);
        }
        let key = flow.keys.range(..=sequence).next_back().ok_or(Refused::NoStoredHeader)?.1;
        let payload = key
            .open_in_place(nonce(sequence), Aad::from(&*header), sealed)
            .map_err(|_| Refused::NotGenuine)?;
        if !flow.window.admit(sequence) {
            return Err(Refused::Replayed);
        }
        Ok(Opened::Packet { flow: flow_number, to: flow.to, payload })
    }
}

/// Opens a stored header that was sealed for `own`.
fn unseal(own: &IdentityKey, message: &[u8]) -> Result<OpenedHeader, Refused> {
    let secret = own.to_secret_bytes();
    let mut state = noise::builder(NAME, None)
        .local_private_key(secret.as_slice())
        .and_then(|builder| builder.prologue(PROLOGUE))
        .and_then(Builder::build_responder)
        .map_err(|_| Refused::Malformed)?;
    let mut content = vec![0; message.len()];
    let length = state.read_message(message, &mut content).map_err(|_| Refused::NotGenuine)?;
    let sender = state.get_remote_static().and_then(|key| key.try_into().ok());
    let sender = PublicIdentity::from_bytes(sender.ok_or(Refused::NotGenuine)?);
    let key = key_of(&mut state);
    let content = content.get(..length).unwrap_or_default();
    let (fixed, grant) = content.split_at_checked(CONTENT_BYTES).ok_or(Refused::Malformed)?;
    let number =
        |at: usize| u64::from_be_bytes(fixed[at..at + 8].try_into().expect("8 of 42 bytes"));
    let made = number(0).checked_mul(1_000_000).ok_or(Refused::Malformed)?;
    let ip: [u8; 16] = fixed[24..40].try_into().expect("16 of 42 bytes");
    let port = u16::from_be_bytes([fixed[40], fixed[41]]);
    Ok(OpenedHeader {
        sender,
        made: Timestamp::from_nanos(made),
        flow: FlowNumber(number(8)),
        first: number(16),
        to: SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port),
        grant: grant.to_vec(),
        key,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::Sealer;
    use crate::session::Now;

    fn sender(number: u16) -> PublicIdentity {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        PublicIdentity::from_bytes(bytes)
    }

    fn at(second: u64) -> Timestamp {
        Timestamp::from_nanos((1_800_000_000 + second) * 1_000_000_000)
    }

    /// Begins a flow of which a stored header came in the given second.
    fn begin(opener: &mut Opener, of: u16, second: u64) {
        let (sender, to, made) = (sender(of), ([192, 0, 2, 7], 5004).into(), at(second));
        opener.make_room(made, sender);
        let (keys, window) = (BTreeMap::new(), ReplayWindow::default());
        let (grant, ends) = (Vec::new(), Timestamp::FAR_FUTURE);
        let flow = Flow { sender, to, made, grant, ends, keys, window };
        opener.flows.insert(FlowNumber(second), flow);
        assert!(opener.flows.len() <= MAX_FLOWS && opener.floors.len() <= MAX_FLOWS);
    }

    fn known(opener: &Opener, of: u16) -> usize {
        opener.flows.values().filter(|flow| flow.sender == sender(of)).count()
    }

    #[test]
    fn full_flow_table_accepts_new_sender() {
        let own = |number| IdentityKey::from_entropy([number; 32]);
        let mut opener = Opener::new(own(4));
        // One sender has a flow, 62 have as many as they may, one has fewer, one has more and more.
        begin(&mut opener, 0, 0);
        (1..=992).for_each(|second| begin(&mut opener, 1 + (second % 62) as u16, second));
        (993..=1023).for_each(|second| begin(&mut opener, 100 + (second % 2) as u16, second));
        assert_eq!((opener.flows.len(), known(&opener, 0), known(&opener, 100)), (1024, 1, 15));
        begin(&mut opener, 101, 1101);
        assert_eq!((known(&opener, 2), known(&opener, 101)), (16, 16));
        // Another one comes: the oldest flow of those with most is forgotten.
        let (mut sealed, now) = (Vec::new(), Now { steady: at(1200), unix: at(1200) });
        let to = ([192, 0, 2, 7], 5004).into();
        let mut sealer = Sealer::new((own(1), b"grant"), own(4).public(), to, [9; 32]);
        sealer
            .seal(now, b"first", |stored_message| sealed.push(stored_message))
            .expect("a short packet");
        let open = |opener: &mut Opener, stored_message: usize| {
            let mut bytes = sealed[stored_message].clone();
            let opened = opener.open(now.unix, &mut bytes, |_| Some(Timestamp::FAR_FUTURE));
            opened.map(|opened| opened != Opened::StoredHeader)
        };
        assert_eq!((open(&mut opener, 0), open(&mut opener, 1)), (Ok(false), Ok(true)));
        assert_eq!((opener.flows.len(), known(&opener, 0), known(&opener, 2)), (1024, 1, 15));
        assert!(!opener.flows.contains_key(&FlowNumber(1)));
        // More senders than are known come and go within a day: nothing of the old ones is accepted
        // again.
        (2000..5000).for_each(|second| begin(&mut opener, second as u16, second));
        assert_eq!((open(&mut opener, 0), open(&mut opener, 1)), {
            (Err(Refused::Stale), Err(Refused::NoStoredHeader))
        });
        assert!(opener.floor_of_all > now.unix);
    }
}
