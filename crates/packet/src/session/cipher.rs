//! Seals and opens datagrams: AES-256-GCM of crate `ring`, in place, nothing allocated.
//!
//! The nonce is four zeros and the counter; a key is new with every handshake, so no nonce comes
//! twice.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

use super::passed::HeaderKey;
use super::wire::{HEADER_BYTES, TAG_BYTES};

const KEY_CONTEXT: &str = "tradewind 2026-11 packet session: sealed datagrams v1";

/// The keys of one session, one for each direction.
#[derive(Debug)]
pub(super) struct Keys {
    send: LessSafeKey,
    receive: LessSafeKey,
    /// The keys for datagrams of which the header alone is sealed.
    pub(super) send_header: HeaderKey,
    pub(super) receive_header: HeaderKey,
}

impl Keys {
    /// Derives the keys from the handshake's secrets of the two directions.
    pub(super) fn new(mut send: [u8; 32], mut receive: [u8; 32]) -> Self {
        let keys = Self {
            send: key(KEY_CONTEXT, &send),
            receive: key(KEY_CONTEXT, &receive),
            send_header: HeaderKey::new(&send),
            receive_header: HeaderKey::new(&receive),
        };
        send.zeroize();
        receive.zeroize();
        keys
    }

    /// Seals `datagram` under `counter`: header, payload, and space for the tag.
    pub(super) fn seal(&self, counter: u64, datagram: &mut [u8]) {
        let (header, rest) = datagram.split_at_mut(HEADER_BYTES);
        let payload_end = rest.len() - TAG_BYTES;
        let (payload, tag) = rest.split_at_mut(payload_end);
        let sealed = self
            .send
            .seal_in_place_separate_tag(nonce(counter), Aad::from(&*header), payload)
            .expect("datagrams are shorter than what AES-GCM can seal");
        tag.copy_from_slice(sealed.as_ref());
    }

    /// Opens `datagram` in place; returns the payload's length, or `None` when its tag is wrong.
    pub(super) fn open(&self, counter: u64, datagram: &mut [u8]) -> Option<usize> {
        let (header, sealed) = datagram.split_at_mut(HEADER_BYTES);
        let opened = self.receive.open_in_place(nonce(counter), Aad::from(&*header), sealed);
        opened.ok().map(|payload| payload.len())
    }
}

/// Derives a key for the purpose that `context` names.
pub(crate) fn key(context: &str, secret: &[u8; 32]) -> LessSafeKey {
    let mut derived = blake3::derive_key(context, secret);
    let key = UnboundKey::new(&AES_256_GCM, &derived).expect("32 bytes are a key of AES-256");
    derived.zeroize();
    LessSafeKey::new(key)
}

/// Returns the nonce of a counter, which must be unique.
pub(crate) fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}
