//! The wait for the path: the reply of the next relay, while data already goes to it.
//!
//! A hop header and the data after it travel in one flight, so a session moves upstream data on
//! from the moment its next connection stands. Data the other way follows the reply.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;
use tradewind_grant::reply::{REPLY_LIMIT, REPLY_PREFIX_BYTES, reply_length};
use tradewind_grant::{GrantError, Reply, ReplyKey, Status};
use tradewind_net::tcp;

use crate::connection::head::{HeadError, Progress, ReadAhead};
use crate::connection::side::Side;
use crate::connection::{Connection, is_tls};
use crate::failure::{Failure, plain};
use crate::process::worker::Worker;
use crate::session::buffer_pool::BUFFER_BYTES;
use crate::session::pump::{Direction, Ending, MoveError};

/// Longest time that a refused connection may take to read the reason, and most bytes that it may
/// still send meanwhile: data that is unread when a socket is closed turns the close into a reset,
/// which can overtake the reason.
const PARTING_TIME: Duration = Duration::from_secs(2);
const MAX_PARTING_BYTES: usize = 1 << 20;

/// The connection to the next relay, its header sent.
pub struct NextRelay<'a> {
    /// The connection to it.
    pub connection: &'a Connection,
    /// Its address.
    pub address: SocketAddr,
    /// The key that its reply is proved by.
    pub key: &'a ReplyKey,
}

/// The result of a wait for a reply.
pub enum Waited {
    /// The next relay answered.
    Replied(Reply, ReadAhead),
    /// It did not.
    Failed(Failure),
    /// The upstream connection has failed.
    UpstreamGone(io::Error),
}

impl NextRelay<'_> {
    /// Waits for the reply for at most `limit`, moving `up` meanwhile: all that `upstream` sends,
    /// or if that is absent what `up` holds already.
    pub async fn reply(
        &self,
        upstream: Option<&Connection>,
        up: &mut Direction,
        worker: &Worker,
        limit: Duration,
    ) -> Waited {
        let mut read_ahead = ReadAhead::default();
        let waited = async {
            let waiting = self.reply_or_gone(upstream, up, worker, &mut read_ahead);
            match upstream {
                Some(upstream) => upstream.unless_reset(waiting).await?,
                None => waiting.await,
            }
        };
        let waited = timeout(limit, waited).await;
        let address = self.address;
        let failed = |status, cause: String| {
            Waited::Failed(Failure::new(status, format!("next relay {address}: {cause}")))
        };
        let bytes = match waited {
            Err(_) => return failed(Status::TimedOut, "no reply in time".to_owned()),
            Ok(Err(gone)) => return Waited::UpstreamGone(gone),
            Ok(Ok(Err(HeadError::Ended(_)))) => {
                return failed(
                    Status::NextHopFailed,
                    "ended the connection without a reply; it refuses the header or is no relay"
                        .to_owned(),
                );
            }
            Ok(Ok(Err(HeadError::Io(error)))) => {
                return failed(
                    Status::NextHopFailed,
                    format!(
                        "{} before a reply; it refuses the header or has no room",
                        plain(&error)
                    ),
                );
            }
            Ok(Ok(Err(error))) => return failed(Status::NextHopFailed, error.to_string()),
            Ok(Ok(Ok(bytes))) => bytes,
        };
        match self.key.open(&bytes) {
            Ok(reply) => Waited::Replied(reply, read_ahead),
            Err(error) => failed(Status::NextHopFailed, error.to_string()),
        }
    }

    async fn reply_or_gone(
        &self,
        upstream: Option<&Connection>,
        up: &mut Direction,
        worker: &Worker,
        read_ahead: &mut ReadAhead,
    ) -> Result<Result<Vec<u8>, HeadError<NoReply>>, io::Error> {
        let io_context = worker.up_context();
        let mut reply = pin!(read_ahead.read_head(
            self.connection,
            &worker.buffer_pool,
            REPLY_LIMIT,
            reply_bytes
        ));
        let mut blocked = false;
        let (mut from, to) = (upstream.map(Side::Lent), Side::Lent(self.connection));
        poll_fn(|cx| {
            if !blocked && !up.ended() {
                let moved = match &mut from {
                    Some(from) => up.poll_move(cx, from, &to, io_context, Ending::Shut),
                    None => up.poll_rest(cx, &to, io_context),
                };
                match moved {
                    Poll::Ready(Err(MoveError::Taking(error))) => {
                        return Poll::Ready(Err(error));
                    }
                    // The next relay takes no more; its reply gives the reason.
                    Poll::Ready(Err(MoveError::Giving(_))) => {
                        up.note_failure();
                        blocked = true;
                    }
                    _ => {}
                }
            }
            reply.as_mut().poll(cx).map(Ok)
        })
        .await
    }
}

pub(crate) fn reply_bytes(bytes: &[u8]) -> Result<Progress<Vec<u8>>, NoReply> {
    if bytes.first().is_some_and(|first| is_tls(*first)) {
        return Err(NoReply::Tls);
    }
    if bytes.len() < REPLY_PREFIX_BYTES {
        return Ok(Progress::Incomplete);
    }
    let length = reply_length(bytes)?;
    match bytes.get(..length) {
        Some(reply) => Ok(Progress::Complete(reply.to_vec(), length)),
        None => Ok(Progress::Incomplete),
    }
}

/// The bytes received instead of a reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoReply {
    /// A TLS record.
    #[error(
        "wants TLS, which this side does not speak to it; set the same `encryption` on both sides"
    )]
    Tls,
    /// Something else.
    #[error(transparent)]
    Malformed(#[from] GrantError),
}

/// Sends a last message and closes `connection` such that the message arrives.
pub async fn close_with(connection: Connection, worker: &Worker, word: &[u8]) {
    let parting = async {
        connection.write_all(word).await?;
        tcp::end_in_order_on_close(&connection)?;
        connection.end().await?;
        let mut left = MAX_PARTING_BYTES;
        while left > 0 {
            connection.readable().await?;
            match worker.buffer_pool.receive(&Side::Lent(&connection), BUFFER_BYTES, <[u8]>::len) {
                Ok(0) => break,
                Ok(read) => left = left.saturating_sub(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok::<_, io::Error>(())
    };
    // Whether the message arrived or not, the connection ends here.
    let _result = timeout(PARTING_TIME, parting).await;
}
