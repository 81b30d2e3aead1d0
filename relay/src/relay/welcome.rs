//! How a relay meets who dials it: in TLS, unless the listener says otherwise.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tradewind_desired::Encryption;
use tradewind_grant::GrantError;
use tradewind_net::tcp;

use super::RelayService;
use crate::connection::{Connection, TLS_WANTED, is_tls};
use crate::counts::Outcome;
use crate::failure::plain;
use crate::opening::part;
use crate::worker::Worker;

impl RelayService {
    /// Encrypts a connection that was accepted, or lets it be plain where the listener allows both; also
    /// tells how much of the time for a header is left.
    pub(super) async fn welcome(
        &self,
        stream: TcpStream,
        wanted: Encryption,
        worker: &Worker,
    ) -> Result<(Connection, Duration), Outcome> {
        let begin = Instant::now();
        let welcome = timeout(self.header_limit, self.encrypt(stream, wanted, worker)).await;
        let connection = welcome.unwrap_or_else(|_| {
            tracing::debug!("refused: no TLS handshake within {:?}", self.header_limit);
            Err(Outcome::NoHeader)
        })?;
        Ok((connection, self.header_limit.saturating_sub(begin.elapsed())))
    }

    async fn encrypt(
        &self,
        stream: TcpStream,
        wanted: Encryption,
        worker: &Worker,
    ) -> Result<Connection, Outcome> {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1..) => {}
            Ok(0) => return Err(Outcome::NoHeader),
            Err(error) => {
                tracing::debug!("refused: {}", plain(&error));
                return Err(Outcome::NoHeader);
            }
        }
        let peer = tcp::peer(&stream);
        if is_tls(first[0]) {
            return self.tls.seal_accepted(stream).await.map_err(|error| {
                let peer = peer.map_or_else(String::new, |peer| peer.to_string());
                self.complaints.say(|| format!("refused: {peer} {error}"));
                Outcome::TlsFailed
            });
        }
        let connection = Connection::plain(stream);
        if wanted == Encryption::Either {
            return Ok(connection);
        }
        self.complaints.say(|| {
            let told =
                "speaks no TLS, which this listener wants; set the same `encryption` on both sides";
            format!("refused: {} {told}", name(&connection))
        });
        part(connection, worker, &TLS_WANTED).await;
        Err(Outcome::NoTls)
    }

    /// Tells why a header or hello was not believed. A peer without a name is no news.
    pub(super) fn complain(&self, connection: &Connection, cause: &GrantError) {
        match connection.peer() {
            None => tracing::debug!("refused: {cause}"),
            Some(peer) => {
                self.complaints
                    .say(|| format!("refused: {}, who is {peer}: {cause}", name(connection)));
            }
        }
    }
}

/// Where a connection comes from.
pub(super) fn name(connection: &Connection) -> String {
    tcp::peer(connection).map_or_else(|| "a peer".to_owned(), |peer| peer.to_string())
}

/// Warnings of which strangers may cause as many as they like: one a second is told, the rest for
/// debugging only.
#[derive(Debug, Default)]
pub(super) struct Rarely(Mutex<Option<Instant>>);

impl Rarely {
    /// Chosen: few enough for any log.
    const PAUSE: Duration = Duration::from_secs(1);

    pub(super) fn say(&self, line: impl FnOnce() -> String) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= Self::PAUSE) {
            *last = Some(Instant::now());
            tracing::warn!("{}", line());
        } else {
            tracing::debug!("{}", line());
        }
    }
}
