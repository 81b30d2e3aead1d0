//! The primitives under the Noise framework (crate `snow`), for all handshakes of this crate.
//!
//! Ciphers and hashes are `ring`'s, the curve is `x25519-dalek`'s; the one random input, an
//! ephemeral key, is an argument.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error};
use zeroize::Zeroizing;

/// Starts a handshake of the pattern `name` with the ephemeral key `ephemeral`; `None` for a side
/// that sends none.
pub(crate) fn builder<'a>(name: &str, ephemeral: Option<[u8; 32]>) -> Builder<'a> {
    let params = name.parse().expect("a pattern, curve, cipher and hash that snow knows");
    Builder::with_resolver(params, Box::new(Primitives(ephemeral)))
}

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

/// Randomness for one ephemeral key only.
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

    /// Refuses points of low order, with which every key yields the same secret.
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
