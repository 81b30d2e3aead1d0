//! One seal for all members of a group: its sender seals a packet once, and relays send a copy to
//! each member [JQ 3.5, multicast].
//!
//! The sender draws a key and sends it to each member in the session between the two. Keys are
//! numbered by *epochs* and change while the group runs, so that a former member soon can open
//! nothing more. A sealed packet is the epoch, the ciphertext and the tag: AES-256-GCM of crate
//! `ring`, with the packet's sequence as nonce, over the flow's number and the epoch. A key is for
//! one flow, whose sequences never repeat.
//!
//! Any holder of the key could seal in the sender's name. That would need a relay that passes the
//! packet on, and relays take a flow from its sender alone.

use std::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::{Zeroize, Zeroizing};

use crate::id::{FlowNumber, PacketId};
use crate::message::Message;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes that a seal adds to a message: the epoch and the tag.
pub const SEAL_BYTES: usize = 1 + TAG_BYTES;

const TAG_BYTES: usize = 16;
const KEY_CONTEXT: &str = "tradewind 2026-11 packet group: sealed messages v1";

/// A key in plaintext; prints as `[secret]`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a [u8; KEY_BYTES]);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// The key of one epoch of a group's flow.
pub struct GroupKey {
    flow: FlowNumber,
    epoch: u8,
    secret: Zeroizing<[u8; KEY_BYTES]>,
    key: LessSafeKey,
}

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupKey({:?}, epoch {}, [secret])", self.flow, self.epoch)
    }
}

impl GroupKey {
    /// Returns the key for a secret that was drawn or received.
    #[must_use]
    pub fn new(flow: FlowNumber, epoch: u8, secret: Secret<'_>) -> Self {
        let mut derived = blake3::derive_key(KEY_CONTEXT, secret.0);
        let key = UnboundKey::new(&AES_256_GCM, &derived).expect("32 bytes are a key of AES-256");
        derived.zeroize();
        Self { flow, epoch, secret: Zeroizing::new(*secret.0), key: LessSafeKey::new(key) }
    }

    /// Returns the key's number among those of the flow.
    #[must_use]
    pub fn epoch(&self) -> u8 {
        self.epoch
    }

    /// Returns the secret, to be sent to a member.
    #[must_use]
    pub fn secret(&self) -> Secret<'_> {
        Secret(&self.secret)
    }

    /// Appends `message`, sealed as the packet with that sequence, which must be new.
    pub fn seal(&self, sequence: u64, message: &Message<'_>, out: &mut Vec<u8>) {
        out.push(self.epoch);
        let from = out.len();
        message.write(out);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(sequence), self.aad(), &mut out[from..])
            .expect("messages are shorter than what AES-GCM can seal");
        out.extend_from_slice(tag.as_ref());
    }

    fn open<'a>(&self, sequence: u64, sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let opened = self.key.open_in_place(nonce(sequence), self.aad(), sealed);
        opened.ok().map(|message| &*message)
    }

    fn aad(&self) -> Aad<[u8; 9]> {
        let mut bytes = [0; 9];
        bytes[..8].copy_from_slice(&self.flow.0.to_be_bytes());
        bytes[8] = self.epoch;
        Aad::from(bytes)
    }
}

/// The keys that a member has of one flow: the latest, and the one before it for packets that are
/// still on their way.
#[derive(Debug, Default)]
pub struct MemberKeys {
    last: Option<GroupKey>,
    before: Option<GroupKey>,
}

impl MemberKeys {
    /// Takes a key that was received.
    pub fn learn(&mut self, flow: FlowNumber, epoch: u8, secret: Secret<'_>) {
        let is_known = |key: &GroupKey| key.epoch == epoch && key.secret() == secret;
        if !self.last.as_ref().is_some_and(is_known) {
            self.before = self.last.replace(GroupKey::new(flow, epoch, secret));
        }
    }

    /// Opens a packet in `buffer`; returns `None` when it is not as its sender sealed it.
    #[must_use]
    pub fn open<'a>(
        &self,
        packet: PacketId,
        sealed: &[u8],
        buffer: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        let (epoch, sealed) = sealed.split_first()?;
        let keys = [self.last.as_ref(), self.before.as_ref()];
        let is_named = |key: &&GroupKey| key.epoch == *epoch && key.flow == packet.flow;
        let key = keys.into_iter().flatten().find(is_named)?;
        buffer.clear();
        buffer.extend_from_slice(sealed);
        key.open(packet.sequence, buffer)
    }
}

fn nonce(sequence: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&sequence.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: FlowNumber = FlowNumber(7);

    fn id(sequence: u64) -> PacketId {
        PacketId { flow: FLOW, sequence }
    }

    fn sealed(key: &GroupKey, sequence: u64) -> Vec<u8> {
        let mut sealed = Vec::new();
        key.seal(sequence, &Message::Datagram { conversation: 3, payload: b"word" }, &mut sealed);
        sealed
    }

    fn opens(keys: &MemberKeys, packet: PacketId, sealed: &[u8]) -> bool {
        let mut buffer = Vec::new();
        let opened = keys.open(packet, sealed, &mut buffer);
        opened.is_some_and(|message| {
            Message::parse(message) == Ok(Message::Datagram { conversation: 3, payload: b"word" })
        })
    }

    #[test]
    fn group_packet_opens_only_as_itself() {
        let key = GroupKey::new(FLOW, 0, Secret(&[1; KEY_BYTES]));
        let mut keys = MemberKeys::default();
        let packet = sealed(&key, 5);
        assert!(!opens(&keys, id(5), &packet), "no key was told");
        keys.learn(FLOW, 0, key.secret());
        assert!(opens(&keys, id(5), &packet));
        assert!(!opens(&keys, id(6), &packet));
        assert!(!opens(&keys, PacketId { flow: FlowNumber(8), sequence: 5 }, &packet));
        for place in 0..packet.len() {
            let mut altered = packet.clone();
            altered[place] ^= 1;
            assert!(!opens(&keys, id(5), &altered), "byte {place}");
            assert!(!opens(&keys, id(5), &packet[..place]), "{place} bytes");
        }
    }

    #[test]
    fn two_epochs_are_accepted() {
        let all: Vec<GroupKey> =
            (0..3_u8).map(|epoch| GroupKey::new(FLOW, epoch, Secret(&[epoch; 32]))).collect();
        let mut keys = MemberKeys::default();
        for key in &all {
            // A key is sent repeatedly until the member answers.
            keys.learn(FLOW, key.epoch(), key.secret());
            keys.learn(FLOW, key.epoch(), key.secret());
        }
        let open: Vec<bool> = all.iter().map(|key| opens(&keys, id(9), &sealed(key, 9))).collect();
        assert_eq!(open, [false, true, true]);
    }

    #[test]
    fn group_key_is_not_printed() {
        let key = GroupKey::new(FLOW, 0, Secret(&[0xab; KEY_BYTES]));
        let message = Message::GroupKey { flow: FLOW, epoch: 0, key: key.secret() };
        assert!(format!("{message:?}").contains("[secret]"));
        assert!(!format!("{message:?} {key:?}").contains("171"));
    }
}
