//! TLS by identities: each end shows the raw public key (RFC 7250) that belongs to its identity
//! (`grant::signing`), and signs the handshake with it. There are no certificates, names or
//! authorities.
//!
//! The dialling side expects one identity, and refuses any other key in the handshake. The
//! accepting side learns there which identity dials, and refuses a header or hello that names
//! another neighbour.
//!
//! TLS 1.3 alone, key agreement by X25519 every time, no early data: TLS gives no means to replay a
//! header, and a later theft of an identity reveals no connection's keys.
//!
//! Neighbours that have authenticated resume: the accepting side sends a ticket, and by it the next
//! connection has the same identities without a signature on either side. Tickets are encrypted
//! with a secret of this process, which changes every six hours; a ticket of a process that is gone
//! is ignored, and both sides sign again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime, alg_id::ED25519,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, UnbufferedServerConnection};
use rustls::sign::{CertifiedKey, Signer, SigningKey, public_key_to_spki};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    ServerConfig, SignatureAlgorithm, SignatureScheme,
};
use tradewind_grant::{IdentityKey, IdentitySigner, PublicIdentity};

use super::tickets::Tickets;
use crate::StreamError;

/// Most neighbours whose tickets are stored. Chosen: more than a relay dials; beyond, the first in
/// order is dropped.
const MAX_NEIGHBOURS: usize = 1024;

/// The TLS configuration of this process's identity.
#[derive(Debug)]
pub struct Tls {
    provider: Arc<CryptoProvider>,
    key: Arc<CertifiedKey>,
    accepting: Arc<ServerConfig>,
    /// The client configurations and tickets, by the identity to be dialled.
    dialling: Mutex<BTreeMap<PublicIdentity, Arc<ClientConfig>>>,
    known: Arc<Known>,
}

/// The identities by the keys that they showed: to find an identity from its key takes a third of a
/// handshake's time.
#[derive(Debug, Default)]
struct Known(Mutex<BTreeMap<Vec<u8>, PublicIdentity>>);

impl Known {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, PublicIdentity>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identity whose key was shown; `None` if it is no identity's.
    fn identity_of(&self, shown: &CertificateDer<'_>) -> Option<PublicIdentity> {
        let known = self.lock().get(shown.as_ref()).copied();
        known.or_else(|| identity_of(shown))
    }

    /// Does the same for a key that has signed, and keeps it: a peer that only shows keys evicts
    /// none.
    fn identity_of_signer(&self, shown: &CertificateDer<'_>) -> Option<PublicIdentity> {
        let identity = self.identity_of(shown)?;
        let mut known = self.lock();
        if known.len() >= MAX_NEIGHBOURS && !known.contains_key(shown.as_ref()) {
            known.pop_first();
        }
        known.insert(shown.to_vec(), identity);
        Some(identity)
    }
}

impl Tls {
    /// Prepares `identity`.
    ///
    /// # Errors
    /// When the library and its cipher suites do not match: a bug.
    pub fn new(identity: &IdentityKey) -> Result<Self, StreamError> {
        let mut provider = ring::default_provider();
        // The cheapest on a processor with AES, and as strong as the key agreement.
        provider.cipher_suites = vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        provider.kx_groups = vec![ring::kx_group::X25519];
        let provider = Arc::new(provider);
        let signing = Arc::new(identity.signer());
        let spki = public_key_to_spki(&ED25519, signing.verifying_key());
        let shown = vec![CertificateDer::from(spki.to_vec())];
        let key = Arc::new(CertifiedKey::new(shown, Arc::new(HandshakeKey { signing, spki })));
        let known = Arc::new(Known::default());
        let mut accepting = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| StreamError::Tls(error.to_string()))?
            .with_client_cert_verifier(Arc::new(AnyIdentity {
                provider: Arc::clone(&provider),
                known: Arc::clone(&known),
            }))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&key))));
        accepting.send_tls13_tickets = 1;
        accepting.ticketer =
            ring::Ticketer::new().map_err(|error| StreamError::Tls(error.to_string()))?;
        let dialling = Mutex::default();
        Ok(Self { provider, key, accepting: Arc::new(accepting), dialling, known })
    }

    /// Returns this process's side of a connection that it has accepted.
    pub(super) fn accept(&self) -> Result<UnbufferedServerConnection, Error> {
        UnbufferedServerConnection::new(Arc::clone(&self.accepting))
    }

    /// Returns the proved identity of the peer of `end`, whose handshake is over.
    pub(super) fn peer(&self, end: &rustls::CommonState) -> Option<PublicIdentity> {
        self.known.identity_of_signer(end.peer_certificates()?.first()?)
    }

    /// Returns this process's side of a connection that it has dialled to `expected`.
    pub(super) fn dial(
        &self,
        expected: PublicIdentity,
    ) -> Result<UnbufferedClientConnection, Error> {
        // Required by the interface, and neither sent nor checked: the key is the name.
        let name = ServerName::try_from("relay.invalid").expect("a name");
        UnbufferedClientConnection::new(self.towards(expected)?, name)
    }

    /// Returns the configuration for dialling `expected`.
    fn towards(&self, expected: PublicIdentity) -> Result<Arc<ClientConfig>, Error> {
        let mut dialling = self.dialling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = dialling.get(&expected) {
            return Ok(Arc::clone(known));
        }
        let verifier = ThisIdentity {
            expected,
            provider: Arc::clone(&self.provider),
            known: Arc::clone(&self.known),
        };
        let resolver = AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&self.key));
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(resolver));
        config.resumption = Resumption::store(Arc::new(Tickets::default()));
        config.enable_sni = false;
        let config = Arc::new(config);
        if dialling.len() >= MAX_NEIGHBOURS {
            dialling.pop_first();
        }
        dialling.insert(expected, Arc::clone(&config));
        Ok(config)
    }
}

/// Returns the identity whose key was shown; `None` if it is no identity's.
fn identity_of(shown: &CertificateDer<'_>) -> Option<PublicIdentity> {
    let key = shown.last_chunk::<32>()?;
    let expected = public_key_to_spki(&ED25519, key);
    (expected.as_ref() == shown.as_ref()).then(|| PublicIdentity::of_verifying_key(key))?
}

/// The error for a handshake's key that is not the one expected.
#[derive(Debug, thiserror::Error)]
#[error("it proves to be {}, not {expected}", name(*.found))]
pub(super) struct OtherIdentity {
    found: Option<PublicIdentity>,
    expected: PublicIdentity,
}

fn name(found: Option<PublicIdentity>) -> String {
    found.map_or_else(|| "nobody".to_owned(), |identity| identity.to_string())
}

/// This process's own key.
#[derive(Debug, Clone)]
struct HandshakeKey {
    signing: Arc<IdentitySigner>,
    spki: SubjectPublicKeyInfoDer<'static>,
}

impl SigningKey for HandshakeKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as _)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.spki.clone())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for HandshakeKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.signing.sign(message).to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

fn verify(
    provider: &CryptoProvider,
    message: &[u8],
    shown: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
    let algorithms = &provider.signature_verification_algorithms;
    verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
}

/// Returns an error: TLS 1.2 is never negotiated.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
}

/// The verifier that accepts this identity alone.
#[derive(Debug)]
struct ThisIdentity {
    expected: PublicIdentity,
    provider: Arc<CryptoProvider>,
    known: Arc<Known>,
}

impl ServerCertVerifier for ThisIdentity {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (found, expected) = (self.known.identity_of(shown), self.expected);
        if found == Some(expected) {
            return Ok(ServerCertVerified::assertion());
        }
        let other = OtherError(Arc::new(OtherIdentity { found, expected }));
        Err(Error::InvalidCertificate(CertificateError::Other(other)))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(&self.provider, message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The verifier that accepts any proved identity; its header shows whether it is authorized.
#[derive(Debug)]
struct AnyIdentity {
    provider: Arc<CryptoProvider>,
    known: Arc<Known>,
}

impl ClientCertVerifier for AnyIdentity {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.known.identity_of(shown) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(Error::InvalidCertificate(CertificateError::BadEncoding)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(&self.provider, message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
