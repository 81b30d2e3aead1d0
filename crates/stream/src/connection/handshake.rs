//! The start of an encrypted connection: TLS handshakes, and peers that differ in their use of TLS.
//!
//! The first byte tells a plain connection from an encrypted one. The dialling side of an encrypted
//! leg first proves that it knows which relay it dials (`grant::first_flight`); before such a
//! proof, or that of a hop header, a relay sends nothing at all. A process that receives TLS where
//! it expects none, or the reverse, together with such a proof, logs that once and answers with a
//! TLS alert in the clear, which both kinds of peer can read: the sender of a header as an invalid
//! reply, a TLS peer as an alert. It never falls back to the peer's choice.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};
use tokio::net::TcpStream;
use tradewind_grant::{FirstFlightKey, PublicIdentity};

use super::Connection;
use super::identities::{OtherIdentity, Tls};
use super::seal::Seal;

/// The kinds of TLS records (RFC 8446, 5.1). No header, hello or reply begins with one of them.
const RECORD_KINDS: std::ops::RangeInclusive<u8> = 20..=23;
/// The answer to TLS where none is expected: a fatal alert, `protocol_version`, in a record of its
/// own.
pub const NO_TLS: [u8; 7] = [21, 3, 3, 0, 2, 2, 70];
/// The answer to a plain peer where TLS is required: likewise, `insufficient_security`.
pub const TLS_WANTED: [u8; 7] = [21, 3, 3, 0, 2, 2, 71];

/// Returns true if a connection that begins with `byte` is TLS.
pub(crate) fn is_tls(byte: u8) -> bool {
    RECORD_KINDS.contains(&byte)
}

/// The reason that a connection was not encrypted, in a message that follows the peer's name.
#[derive(Debug, thiserror::Error)]
pub enum NotSealed {
    /// The connection failed.
    #[error("{} in the TLS handshake", crate::failure::plain(.0))]
    Io(#[from] io::Error),
    /// It ended before the handshake did.
    #[error("ended the connection in the TLS handshake")]
    Ended,
    /// It answered nothing, as a relay does to a peer that expects another identity.
    #[error("ends the connection without an answer: it is not {0}, or no relay, or has no room")]
    Silent(PublicIdentity),
    /// No randomness was left.
    #[error("entropy: {}", crate::failure::plain(.0))]
    Entropy(io::Error),
    /// The peer speaks no TLS.
    #[error("speaks no TLS, which this side wants; set the same `encryption` on both sides")]
    NoTls,
    /// The peer has another key.
    #[error("is not who it should be: {0}")]
    Other(String),
    /// The peer refuses this process's key, since it expects another.
    #[error("does not take this side's identity")]
    Refused,
    /// Whatever else went wrong.
    #[error("TLS handshake: {0}")]
    Tls(Error),
}

impl From<Error> for NotSealed {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidMessage(_) | Error::AlertReceived(AlertDescription::ProtocolVersion) => {
                Self::NoTls
            }
            Error::AlertReceived(
                AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::AccessDenied,
            ) => Self::Refused,
            Error::InvalidCertificate(CertificateError::Other(other)) => {
                match other.0.downcast_ref::<OtherIdentity>() {
                    Some(other) => Self::Other(other.to_string()),
                    None => Self::Other(other.to_string()),
                }
            }
            other => Self::Tls(other),
        }
    }
}

impl Tls {
    /// Encrypts a connection that was dialled to `expected`. The last part of the handshake leaves
    /// with the first data written.
    pub async fn seal_dialled(
        &self,
        stream: TcpStream,
        expected: PublicIdentity,
    ) -> Result<Connection, NotSealed> {
        let seal = Seal::dialled(self.dial(expected)?);
        seal.shake()?;
        let entropy = tradewind_net::entropy::bytes().map_err(NotSealed::Entropy)?;
        seal.prove_first(|hello| FirstFlightKey::of(&expected).prove(entropy, hello));
        let mut received = 0;
        let shaken = self.shake(stream, seal, &mut received).await;
        let is_end = |error: &NotSealed| match error {
            NotSealed::Ended => true,
            NotSealed::Io(error) => error.kind() == io::ErrorKind::ConnectionReset,
            _ => false,
        };
        shaken.map_err(|error| match received {
            0 if is_end(&error) => NotSealed::Silent(expected),
            _ => error,
        })
    }

    /// Encrypts an accepted connection on which `hello`, a complete ClientHello, was received. The
    /// identity of the peer is [`Connection::peer`].
    pub async fn seal_accepted(
        &self,
        stream: TcpStream,
        hello: &[u8],
    ) -> Result<Connection, NotSealed> {
        let seal = Seal::accepted(self.accept()?);
        seal.take_in(|space| {
            let space = space.get_mut(..hello.len()).ok_or(io::ErrorKind::InvalidData)?;
            space.copy_from_slice(hello);
            Ok(hello.len())
        })?;
        self.shake(stream, seal, &mut 0).await
    }

    /// Runs the handshake; `received` counts the bytes received.
    async fn shake(
        &self,
        stream: TcpStream,
        mut seal: Seal,
        received: &mut usize,
    ) -> Result<Connection, NotSealed> {
        loop {
            let shaken = seal.shake();
            match shaken {
                Ok(true) => {
                    seal.recognize(self);
                    return Ok(Connection::from_parts(stream, Some(Box::new(seal))));
                }
                Ok(false) => {}
                Err(error) => {
                    // The peer gets the alert, if it reads at all.
                    let _flushed = seal.flush(|bytes| stream.try_write(bytes));
                    let _ended = tradewind_net::tcp::end_in_order_on_close(&stream);
                    return Err(error.into());
                }
            }
            while let Err(error) = seal.flush(|bytes| stream.try_write(bytes)) {
                if error.kind() != io::ErrorKind::WouldBlock {
                    return Err(error.into());
                }
                stream.writable().await?;
            }
            loop {
                stream.readable().await?;
                match seal.take_in(|space| stream.try_read(space)) {
                    Ok(0) => return Err(NotSealed::Ended),
                    Ok(count) => {
                        *received += count;
                        break;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}
