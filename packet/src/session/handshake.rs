//! Noise IK over crate `snow`: who speaks is known to the responder from the first message on.
//!
//! Ciphers and hashes are `ring`'s, the curve is `x25519-dalek`'s; the one random input, an ephemeral key, is an argument.

use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};
use tradewind_grant::{IdentityKey, PublicIdentity};
use zeroize::Zeroizing;

use super::cipher::Keys;

const NAME: &str = "Noise_IK_25519_AESGCM_SHA256";
const PROLOGUE: &[u8] = b"tradewind packet session v1\0";

/// Longest message: an initiation with the longest grant.
const MESSAGE_LIMIT: usize = 1024;

/// The library's primitives with the caller's randomness.
struct Primitives(Option<[u8; 32]>);

impl CryptoResolver for Primitives {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(self.0)))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        (*choice == DHChoice::Curve25519).then(|| Box::new(Curve::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        RingResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        RingResolver.resolve_cipher(choice)
    }
}

/// Randomness for one ephemeral key and nothing more.
struct Once(Option<[u8; 32]>);

impl Random for Once {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        let drawn = self.0.take().ok_or(Error::Rng)?;
        if out.len() != drawn.len() {
            return Err(Error::Rng);
        }
        out.copy_from_slice(&drawn);
        Ok(())
    }
}

/// X25519 by crate `x25519-dalek`, as `grant` uses it.
struct Curve {
    secret: Zeroizing<[u8; 32]>,
    public: [u8; 32],
}

impl Default for Curve {
    fn default() -> Self {
        Self { secret: Zeroizing::new([0; 32]), public: [0; 32] }
    }
}

impl Dh for Curve {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, secret: &[u8]) {
        self.secret.copy_from_slice(secret);
        self.public = x25519_dalek::x25519(*self.secret, x25519_dalek::X25519_BASEPOINT_BYTES);
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut secret = Zeroizing::new([0; 32]);
        random.try_fill_bytes(secret.as_mut_slice())?;
        self.set(secret.as_slice());
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.secret.as_slice()
    }

    /// Refuses points of low order, with which everybody shares the same secret.
    fn dh(&self, theirs: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let theirs = theirs.get(..32).and_then(|key| key.try_into().ok()).ok_or(Error::Dh)?;
        let shared = Zeroizing::new(x25519_dalek::x25519(*self.secret, theirs));
        if shared.iter().all(|byte| *byte == 0) {
            return Err(Error::Dh);
        }
        out[..32].copy_from_slice(shared.as_slice());
        Ok(())
    }
}

fn name() -> NoiseParams {
    NAME.parse().expect("a pattern, curve, cipher and hash that snow knows")
}

fn prologue(prefix: &[u8]) -> Vec<u8> {
    [PROLOGUE, prefix].concat()
}

/// A handshake whose response is awaited.
#[derive(Debug)]
pub(super) struct Initiator(HandshakeState);

impl Initiator {
    /// Writes the first message, with `payload` sealed inside, behind what `out` holds: the prefix.
    /// `None` only for a key that is no key.
    pub(super) fn start(
        mine: &IdentityKey,
        theirs: &PublicIdentity,
        ephemeral: [u8; 32],
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Self> {
        let secret = mine.to_secret_bytes();
        let prologue = prologue(out);
        let mut state = Builder::with_resolver(name(), Box::new(Primitives(Some(ephemeral))))
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

    /// Reads the response; `None`, and nothing changed, when it is not the responder's to this message.
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
    /// Who proved to have sent it.
    pub(super) initiator: PublicIdentity,
    /// What was sealed inside.
    pub(super) payload: Vec<u8>,
}

impl Responder {
    /// Opens a first message; `None` when nobody made it for this identity.
    pub(super) fn open(
        mine: &IdentityKey,
        ephemeral: [u8; 32],
        prefix: &[u8],
        message: &[u8],
    ) -> Option<Self> {
        let secret = mine.to_secret_bytes();
        let prologue = prologue(prefix);
        let mut state = Builder::with_resolver(name(), Box::new(Primitives(Some(ephemeral))))
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

    /// Writes the response behind what `out` holds.
    pub(super) fn respond(mut self, session: u32, out: &mut Vec<u8>) -> Option<Keys> {
        let mut message = [0; MESSAGE_LIMIT];
        let length = self.state.write_message(&session.to_be_bytes(), &mut message).ok()?;
        out.extend_from_slice(&message[..length]);
        let (to_responder, to_initiator) = self.state.dangerously_get_raw_split();
        Some(Keys::new(to_initiator, to_responder))
    }
}
