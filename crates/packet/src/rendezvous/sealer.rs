//! Makes stored messages for a receiver that may be offline: a one-way handshake seals a key, the
//! key seals packets.
//!
//! Noise's pattern X: the stored header's one message proves the sender to the receiver, and nobody
//! else learns the sender's identity. Its handshake yields a key that only the two know; packets
//! are sealed under it with their sequence as nonce. A key is used for ten minutes or a million
//! packets.

use std::net::SocketAddr;

use ring::aead::{Aad, LessSafeKey};
use snow::Builder;
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_units::{Duration, Timestamp};

use super::{
    CONTENT_BYTES, NAME, PACKET, PACKET_HEADER_BYTES, PROLOGUE, STORED_HEADER,
    STORED_MESSAGE_OVERHEAD, key_of,
};
use crate::id::FlowNumber;
use crate::message::{MAX_PAYLOAD_BYTES, put_address};
use crate::noise;
use crate::session::Now;
use crate::session::cipher::nonce;
use crate::session::random::Randomness;

/// The lifetime of a key, in time and in packets. Chosen: little is lost with one key when a relay
/// restarts, and stored headers are few.
const KEY_TIME: Duration = Duration::from_secs(600);
const KEY_PACKETS: u64 = 1 << 20;
/// The longest stored header: keys, contents, grant, tags.
const MAX_HEADER: usize = 32 + 48 + CONTENT_BYTES + tradewind_grant::token::GRANT_LIMIT + 16;

/// The reason why a packet is not sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealRefused {
    /// It does not fit into a message.
    #[error("{0} bytes in one packet; expected at most 8967")]
    TooLong(usize),
    /// The receiver's identity is no key.
    #[error("the receiver's identity is no key")]
    Identity,
}

/// Seals the packets of one flow.
#[derive(Debug)]
pub struct Sealer {
    identity: IdentityKey,
    to: PublicIdentity,
    flow: FlowNumber,
    destination: SocketAddr,
    grant: Vec<u8>,
    randomness: Randomness,
    key: Option<Key>,
    next: u64,
}

#[derive(Debug)]
struct Key {
    key: LessSafeKey,
    first: u64,
    made: Timestamp,
}

impl Sealer {
    /// Returns a sealer for packets of `identity`, under its signed `grant`, to `destination`
    /// behind the endpoint `to`. `seed` is 32 bytes of the system's entropy that nothing else uses.
    #[must_use]
    pub fn new(
        (identity, grant): (IdentityKey, &[u8]),
        to: PublicIdentity,
        destination: SocketAddr,
        seed: [u8; 32],
    ) -> Self {
        let mut randomness = Randomness::new(seed);
        let (flow, grant) = (FlowNumber(randomness.draw_u64()), grant.to_vec());
        Self { identity, to, flow, destination, grant, randomness, key: None, next: 0 }
    }

    /// Uses another grant from the next packet on, if it differs.
    pub fn set_grant(&mut self, grant: &[u8]) {
        if self.grant != grant {
            self.grant = grant.to_vec();
            // The next packet gets a new stored header.
            self.key = None;
        }
    }

    /// Seals a packet; hands over its stored message, and before it a stored header when one is
    /// due.
    ///
    /// # Errors
    /// [`SealRefused`]; nothing is handed over.
    pub fn seal(
        &mut self,
        now: Now,
        payload: &[u8],
        mut put: impl FnMut(Vec<u8>),
    ) -> Result<(), SealRefused> {
        if payload.len() + STORED_MESSAGE_OVERHEAD > MAX_PAYLOAD_BYTES {
            return Err(SealRefused::TooLong(payload.len()));
        }
        let is_worn = |key: &Key| {
            now.steady.since(key.made) >= KEY_TIME || self.next - key.first >= KEY_PACKETS
        };
        if self.key.as_ref().is_none_or(is_worn) {
            let (stored_header, key) = self.stored_header(now).ok_or(SealRefused::Identity)?;
            self.key = Some(Key { key, first: self.next, made: now.steady });
            put(stored_header);
        }
        let Some(Key { key, .. }) = &self.key else { return Err(SealRefused::Identity) };
        let mut stored_message = Vec::with_capacity(payload.len() + STORED_MESSAGE_OVERHEAD);
        stored_message.push(PACKET);
        stored_message.extend_from_slice(&self.flow.0.to_be_bytes());
        stored_message.extend_from_slice(&self.next.to_be_bytes());
        stored_message.extend_from_slice(payload);
        let (header, body) = stored_message.split_at_mut(PACKET_HEADER_BYTES);
        let tag = key
            .seal_in_place_separate_tag(nonce(self.next), Aad::from(&*header), body)
            .expect("packets are shorter than what AES-GCM can seal");
        stored_message.extend_from_slice(tag.as_ref());
        self.next += 1;
        put(stored_message);
        Ok(())
    }

    fn stored_header(&mut self, now: Now) -> Option<(Vec<u8>, LessSafeKey)> {
        let made_ms = now.unix.as_nanos() / 1_000_000;
        let mut content = Vec::with_capacity(CONTENT_BYTES + self.grant.len());
        for number in [made_ms, self.flow.0, self.next] {
            content.extend_from_slice(&number.to_be_bytes());
        }
        put_address(&mut content, self.destination);
        content.extend_from_slice(&self.grant);
        let secret = self.identity.to_secret_bytes();
        let mut state = noise::builder(NAME, Some(self.randomness.draw()))
            .local_private_key(secret.as_slice())
            .and_then(|builder| builder.remote_public_key(self.to.as_bytes()))
            .and_then(|builder| builder.prologue(PROLOGUE))
            .and_then(Builder::build_initiator)
            .ok()?;
        let mut message = [0; MAX_HEADER];
        let length = state.write_message(&content, &mut message).ok()?;
        let stored_header = [&[STORED_HEADER], &message[..length]].concat();
        Some((stored_header, key_of(&mut state)))
    }
}
