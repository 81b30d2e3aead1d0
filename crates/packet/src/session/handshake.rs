//! Noise IK over crate `snow`: the responder knows the initiator's identity from the first message
//! on.
//!
//! The primitives, and the one random input, are those of `noise`.

use snow::{Builder, HandshakeState};
use tradewind_grant::{IdentityKey, PublicIdentity};

use super::cipher::Keys;
use crate::noise;

const NAME: &str = "Noise_IK_25519_AESGCM_SHA256";
const PROLOGUE: &[u8] = b"tradewind packet session v1\0";

/// The longest message: an initiation with the longest grant.
const MESSAGE_LIMIT: usize = 1024;

fn prologue(prefix: &[u8]) -> Vec<u8> {
    [PROLOGUE, prefix].concat()
}

/// A handshake whose response is awaited.
#[derive(Debug)]
pub(super) struct Initiator(HandshakeState);

impl Initiator {
    /// Writes the first message, with `payload` sealed inside, behind the prefix in `out`. Returns
    /// `None` only for an invalid key.
    pub(super) fn start(
        mine: &IdentityKey,
        theirs: &PublicIdentity,
        ephemeral: [u8; 32],
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Self> {
        let secret = mine.to_secret_bytes();
        let prologue = prologue(out);
        let mut state = noise::builder(NAME, Some(ephemeral))
            .local_private_key(secret.as_slice())
            .and_then(|builder| builder.remote_public_key(theirs.as_bytes()))
            .and_then(|builder| builder.prologue(&prologue))
            .and_then(Builder::build_initiator)
            .ok()?;
        let mut message = [0; MESSAGE_LIMIT];
        let length = state.write_message(payload, &mut message).ok()?;
        out.extend_from_slice(&message[..length]);
        Some(Self(state))
    }

    /// Reads the response; returns `None`, with nothing changed, when it is not the responder's to
    /// this message.
    pub(super) fn finish(&mut self, response: &[u8]) -> Option<(u32, Keys)> {
        let mut payload = [0; 64];
        let length = self.0.read_message(response, &mut payload).ok()?;
        let responder = u32::from_be_bytes(payload.get(..length)?.try_into().ok()?);
        let (to_responder, to_initiator) = self.0.dangerously_get_raw_split();
        Some((responder, Keys::new(to_responder, to_initiator)))
    }
}

/// A first message that was opened.
pub(super) struct Responder {
    state: HandshakeState,
    /// The initiator, as proven by the message.
    pub(super) initiator: PublicIdentity,
    /// The sealed payload of the message.
    pub(super) payload: Vec<u8>,
}

impl Responder {
    /// Opens a first message; returns `None` when it was not made for this identity.
    pub(super) fn open(
        mine: &IdentityKey,
        ephemeral: [u8; 32],
        prefix: &[u8],
        message: &[u8],
    ) -> Option<Self> {
        let secret = mine.to_secret_bytes();
        let prologue = prologue(prefix);
        let mut state = noise::builder(NAME, Some(ephemeral))
            .local_private_key(secret.as_slice())
            .and_then(|builder| builder.prologue(&prologue))
            .and_then(Builder::build_responder)
            .ok()?;
        let mut payload = vec![0; MESSAGE_LIMIT];
        let length = state.read_message(message, &mut payload).ok()?;
        payload.truncate(length);
        let initiator = PublicIdentity::from_bytes(state.get_remote_static()?.try_into().ok()?);
        Some(Self { state, initiator, payload })
    }

    /// Writes the response behind the contents of `out`.
    pub(super) fn respond(mut self, session: u32, out: &mut Vec<u8>) -> Option<Keys> {
        let mut message = [0; MESSAGE_LIMIT];
        let length = self.state.write_message(&session.to_be_bytes(), &mut message).ok()?;
        out.extend_from_slice(&message[..length]);
        let (to_responder, to_initiator) = self.state.dangerously_get_raw_split();
        Some(Keys::new(to_initiator, to_responder))
    }
}
