//! The rendezvous: packets wait at a relay until their receiver is online, whether or not the
//! sender still is `[JQ 3.5]`.
//!
//! | machine | where | does |
//! |---|---|---|
//! | [`Sealer`] | sender | makes *stored messages* of packets: sealed for a receiver that need not be there |
//! | [`Depositor`] | sender | keeps stored messages until the relay has them, and sends them again |
//! | [`MessageStore`] | relay | keeps stored messages for their receivers, in order, bounded |
//! | [`Collector`] | receiver | asks the relay for what waits, and tells it what has come |
//! | [`Opener`] | receiver | opens stored messages, each once |
//!
//! A stored message is an *envelope* or a packet. An envelope holds a fresh key, the sender's
//! grant, and where packets go; the packets after it, up to the next one, are sealed under its key.
//! So every queue in which stored messages wait keeps the envelope that its first packet needs for
//! as long as that packet waits.
//!
//! Losses of either access leg are made good between its two ends: the sender has numbered deposits
//! acknowledged, the receiver says which positions it has. A relay that has started again knows
//! nothing: senders notice and begin a new *stream* of deposits with all that was not acknowledged.

mod collector;
mod depositor;
mod message_store;
mod opener;
mod sealer;
mod stored_messages;

pub use collector::Collector;
pub use depositor::{Depositor, DepositorConfig};
pub use message_store::{MessageStore, MessageStoreConfig, Tally};
pub use opener::{Head, Opened, Opener, Refused};
pub use sealer::{SealRefused, Sealer};

use ring::aead::LessSafeKey;
use snow::HandshakeState;
use tradewind_units::Duration;
use zeroize::Zeroize;

use crate::session::cipher;

/// Longest that a packet may wait, and that an envelope is taken. Chosen.
pub const MOST_KEPT: Duration = Duration::from_secs(24 * 3600);
/// What sealing adds to a packet.
pub const PARCEL_OVERHEAD: usize = PACKET_HEADER_BYTES + crate::session::TAG_BYTES;

/// The first byte of a stored message.
const ENVELOPE: u8 = 1;
const PACKET: u8 = 2;
/// A packet's first byte, flow and sequence.
const PACKET_HEADER_BYTES: usize = 17;
/// An envelope's contents before the grant: when it was made, flow, first sequence, address and
/// port.
const CONTENT_BYTES: usize = 8 + 8 + 8 + 18;
/// How an envelope is sealed, and what for.
const NAME: &str = "Noise_X_25519_AESGCM_SHA256";
const PROLOGUE: &[u8] = b"tradewind rendezvous v1\0";
const KEY_CONTEXT: &str = "tradewind 2026-11 rendezvous: packets v1";

/// The key that an envelope's handshake has yielded.
fn key_of(stored_header: &mut HandshakeState) -> LessSafeKey {
    let (mut secret, mut unused) = stored_header.dangerously_get_raw_split();
    let key = cipher::key(KEY_CONTEXT, &secret);
    secret.zeroize();
    unused.zeroize();
    key
}

/// Whether a stored message is an envelope; relays see that.
fn is_envelope(stored_message: &[u8]) -> bool {
    stored_message.first() == Some(&ENVELOPE)
}
