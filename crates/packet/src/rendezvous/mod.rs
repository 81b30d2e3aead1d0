//! The rendezvous: packets wait at a relay until their receiver is online, even if the sender no
//! longer is `[JQ 3.5]`.
//!
//! | machine | where | does |
//! |---|---|---|
//! | [`Sealer`] | sender | makes *stored messages* of packets: sealed for a receiver that may be offline |
//! | [`Depositor`] | sender | keeps stored messages until the relay has them, and sends them again |
//! | [`MessageStore`] | relay | keeps stored messages for their receivers, in order, bounded |
//! | [`Collector`] | receiver | requests the waiting messages from the relay, and acknowledges them |
//! | [`Opener`] | receiver | opens stored messages, each once |
//!
//! A stored message is a *stored header* or a packet. A stored header holds a fresh key,
//! the sender's grant, and the packets' destination; the packets after it, up to the next one, are
//! sealed under its key. So every queue of stored messages keeps the stored header that its first
//! packet needs for as long as that packet waits.
//!
//! Losses of either access leg are repaired between its two ends: the relay acknowledges numbered
//! deposits to the sender, and the receiver acknowledges positions. A relay that has restarted
//! knows nothing: senders notice, and begin a new *stream* of deposits with all messages that were
//! not acknowledged.

mod collector;
mod depositor;
mod message_store;
mod opener;
mod sealer;
mod stored_messages;

pub use collector::Collector;
pub use depositor::{DepositCounts, Depositor, DepositorConfig};
pub use message_store::{MessageStore, MessageStoreConfig, Tally};
pub use opener::{Head, Opened, Opener, Refused};
pub use sealer::{SealRefused, Sealer};

use ring::aead::LessSafeKey;
use snow::HandshakeState;
use tradewind_units::Duration;
use zeroize::Zeroize;

use crate::session::cipher;

/// The longest that a packet may wait, and that a stored header is accepted. Chosen.
pub const MAX_KEPT: Duration = Duration::from_secs(24 * 3600);
/// The bytes that sealing adds to a packet.
pub const STORED_MESSAGE_OVERHEAD: usize = PACKET_HEADER_BYTES + crate::session::TAG_BYTES;

/// The first byte of a stored message.
const STORED_HEADER: u8 = 1;
const PACKET: u8 = 2;
/// A packet's first byte, flow and sequence.
const PACKET_HEADER_BYTES: usize = 17;
/// The contents of a stored header before the grant: its time, the flow, the first sequence, the
/// address and port.
const CONTENT_BYTES: usize = 8 + 8 + 8 + 18;
/// The handshake that seals a stored header, and its contexts.
const NAME: &str = "Noise_X_25519_AESGCM_SHA256";
const PROLOGUE: &[u8] = b"tradewind rendezvous v1\0";
const KEY_CONTEXT: &str = "tradewind 2026-11 rendezvous: packets v1";

/// Returns the key that a stored header's handshake has yielded.
fn key_of(stored_header: &mut HandshakeState) -> LessSafeKey {
    let (mut secret, mut unused) = stored_header.dangerously_get_raw_split();
    let key = cipher::key(KEY_CONTEXT, &secret);
    secret.zeroize();
    unused.zeroize();
    key
}

/// Returns whether a stored message is a stored header, which relays can see.
fn is_header(stored_message: &[u8]) -> bool {
    stored_message.first() == Some(&STORED_HEADER)
}
