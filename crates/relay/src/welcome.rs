//! The start of accepted connections: in TLS, unless the listener says otherwise, and in silence
//! until the peer has proved that it knows this relay.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tradewind_desired::Encryption;
use tradewind_grant::first_flight::{HELLO_LIMIT, PROOF_BYTES, is_plain};
use tradewind_grant::{GrantError, warm};
use tradewind_net::tcp;
use tradewind_stream::connection::{Connection, NO_TLS, TLS_WANTED};
use tradewind_stream::counts::Outcome;
use tradewind_stream::failure::plain;
use tradewind_stream::keys::own_identities::{OwnIdentities, OwnIdentity};
use tradewind_stream::process::worker::{Cause, Permit};
use tradewind_stream::session::opening::close_with;
use tradewind_telemetry::limited;

use super::judgement::HeaderVerifier;

/// An accepted connection: plain and not read yet, or encrypted after its handshake.
pub(super) struct Welcomed {
    pub(super) connection: Connection,
    /// True if it is plain at a listener that demands TLS: a peer that proves to know this relay
    /// gets the reason.
    pub(super) must_be_tls: bool,
}

/// Encrypts a connection that was accepted, or lets it be plain; until `deadline`. Sends
/// nothing to a peer that has not proved that it knows this relay.
pub(super) async fn welcome(
    own: &OwnIdentities,
    stream: TcpStream,
    wanted: Encryption,
    permit: &Permit,
    deadline: Instant,
) -> Result<Welcomed, Outcome> {
    let (lines, cause) = (permit.worker().lines(), Cause::Source(permit.source()));
    let mut bytes = Vec::new();
    let flight = timeout_at(deadline, first_flight(own, &stream, &mut bytes)).await;
    match flight.unwrap_or(Ok(Flight::None)) {
        Ok(Flight::Plain) => {
            let must_be_tls = wanted == Encryption::Tls;
            Ok(Welcomed { connection: Connection::plain(stream), must_be_tls })
        }
        Ok(Flight::Hello(_)) if wanted == Encryption::None => {
            limited!(
                warn,
                lines,
                cause,
                "refused: {} begins with TLS, which this listener does not speak; set the \
                 same `encryption` on both sides",
                peer_of(&stream)
            );
            close_with(Connection::plain(stream), permit.worker(), &NO_TLS).await;
            Err(Outcome::TlsUnwanted)
        }
        Ok(Flight::Hello(own)) => {
            let peer = peer_of(&stream);
            let hello = &bytes[PROOF_BYTES..];
            let sealing = Box::pin(own.tls.seal_accepted(stream, hello));
            let sealed = timeout_at(deadline, sealing).await;
            let connection = sealed.map_err(|_| Outcome::NoHeader)?.map_err(|error| {
                limited!(warn, lines, cause, "refused: {peer} {error}");
                Outcome::TlsFailed
            })?;
            Ok(Welcomed { connection, must_be_tls: false })
        }
        Ok(Flight::None) => {
            tracing::debug!("refused: {}: no first flight to this relay", peer_of(&stream));
            let outcome = if bytes.is_empty() { Outcome::NoHeader } else { Outcome::Forged };
            stay_silent(&stream, deadline).await;
            Err(outcome)
        }
        Err(error) => {
            tracing::debug!("refused: {}: {}", peer_of(&stream), plain(&error));
            let _reset = tcp::end_in_order_on_close(&stream);
            Err(Outcome::NoHeader)
        }
    }
}

/// Reads the first flight of an encrypted connection into `bytes`; reads nothing from a plain
/// one.
async fn first_flight(
    own: &OwnIdentities,
    stream: &TcpStream,
    bytes: &mut Vec<u8>,
) -> io::Result<Flight> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if is_plain(first[0]) {
        return Ok(Flight::Plain);
    }
    bytes.reserve_exact(PROOF_BYTES + HELLO_LIMIT);
    loop {
        match own.find_addressed(bytes) {
            Ok(Some(own)) => return Ok(Flight::Hello(own)),
            Err(_) => return Ok(Flight::None),
            Ok(None) => {}
        }
        stream.readable().await?;
        match stream.try_read_buf(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Refuses a plain connection. If the sender of `bytes`, a header or hello, knows this relay,
/// it gets the reply that TLS is required.
pub(super) async fn refuse_plain(
    verifier: &HeaderVerifier,
    connection: Connection,
    bytes: &[u8],
    permit: &Permit,
    deadline: Instant,
) -> Outcome {
    let is_proven = if warm::is_hello(bytes) {
        verifier.open_hello(bytes, None).is_ok()
    } else {
        match verifier.verify(bytes, None, deadline).await {
            Ok(_) => true,
            Err(refusal) => refusal.upstream.is_some(),
        }
    };
    if !is_proven {
        stay_silent(connection.stream(), deadline).await;
        return Outcome::Forged;
    }
    limited!(
        warn,
        permit.worker().lines(),
        Cause::Source(permit.source()),
        "refused: {} speaks no TLS, which this listener wants; set the same `encryption` on \
         both sides",
        connection.remote()
    );
    close_with(connection, permit.worker(), &TLS_WANTED).await;
    Outcome::NoTls
}

/// Logs why a header or hello was refused. Peers without a proved identity are not logged.
pub(super) fn complain(permit: &Permit, connection: &Connection, cause: &GrantError) {
    match connection.peer() {
        None => tracing::debug!("refused: {cause}"),
        Some(peer) => limited!(
            warn,
            permit.worker().lines(),
            Cause::Source(permit.source()),
            "refused: {}, who is {peer}: {cause}",
            connection.remote()
        ),
    }
}

/// The beginning of a connection.
enum Flight {
    /// Plain bytes; they were not read.
    Plain,
    /// The proof that the peer knows this relay, by this identity, and a ClientHello.
    Hello(Arc<OwnIdentity>),
    /// Neither, or not in time.
    None,
}

/// Sends nothing until `deadline`, and lets the connection be closed in order then: a scanner
/// learns only that something listens here.
pub(super) async fn stay_silent(stream: &TcpStream, deadline: Instant) {
    /// Most bytes read; beyond them the close is a reset. Chosen: above any honest first flight.
    const MAX_BYTES: usize = 1 << 16;
    let _reset = tcp::end_in_order_on_close(stream);
    let mut left = MAX_BYTES;
    let read = async {
        // On the heap, so that admitted connections hold no such memory.
        let mut buffer = vec![0; 2048];
        while left > 0 && stream.readable().await.is_ok() {
            match stream.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => left = left.saturating_sub(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        std::future::pending().await
    };
    let _time_is_over = timeout_at(deadline, read).await;
}

fn peer_of(stream: &TcpStream) -> String {
    tcp::peer(stream).map_or_else(|| "a peer".to_owned(), |peer| peer.to_string())
}

/// Ends with `outcome` a connection that has not proved to know this relay: a plain one gets no
/// answer. On an encrypted one the peer has proved it already.
pub(super) async fn silent(
    connection: &Connection,
    outcome: Outcome,
    deadline: Instant,
) -> Outcome {
    if connection.seal().is_none() {
        stay_silent(connection.stream(), deadline).await;
    }
    outcome
}
