//! The connection on which probes go to the next relay, one after the other.

use std::time::Duration;

use tokio::time::Instant;
use tradewind_grant::reply::REPLY_LIMIT;
use tradewind_grant::{Hop, PublicIdentity, Reply, SealedHeader, Status};

use crate::connection::Connection;
use crate::connection::head::{HeadError, ReadAhead};
use crate::dial::{Dialler, Speaker};
use crate::failure::{Failure, plain};
use crate::session::buffer_pool::BufferPool;
use crate::session::opening::reply_bytes;

/// Probes after which a connection is to be replaced, so that the relay's listener is probed too
/// and a draining relay is left soon. Chosen: six seconds' worth.
pub(crate) const PROBES_A_CONNECTION: u32 = 16;

/// Probes that one connection takes at most. Chosen: time enough for another to be dialled
/// meanwhile.
const MAX_PROBES: u32 = 2 * PROBES_A_CONNECTION;

/// A connection to the next relay that has carried a probe.
pub struct ProbeLeg {
    from: PublicIdentity,
    hop: Hop,
    connection: Connection,
    read_ahead: ReadAhead,
    asked: u32,
}

/// One probe for the next relay.
pub struct Ask<'a> {
    /// The next relay.
    pub hop: Hop,
    /// The header for it.
    pub header: &'a SealedHeader,
}

/// The next relay's answer.
pub struct Answer {
    /// The reply.
    pub reply: Reply,
    /// The time from sending the header to the reply.
    pub waited: Duration,
}

impl ProbeLeg {
    /// Returns true if another connection is to replace it.
    pub const fn is_old(&self) -> bool {
        self.asked >= PROBES_A_CONNECTION
    }

    /// Sends a probe on the connection in `slot` and waits for its answer; dials if there is none,
    /// or if it was closed while idle. After a failure the slot is empty.
    pub async fn ask(
        slot: &mut Option<Self>,
        dialler: &Dialler,
        buffer_pool: &BufferPool,
        ask: &Ask<'_>,
    ) -> Result<Answer, Failure> {
        let fit = |leg: &Self| {
            leg.hop == ask.hop && leg.from == ask.header.from && leg.asked < MAX_PROBES
        };
        if let Some(leg) = slot.take().filter(fit)
            && let Ok(answer) = leg.carry(slot, buffer_pool, ask).await
        {
            return answer;
        }
        let connection = dialler.dial(&ask.header.from, &ask.hop, Speaker::Us).await?;
        let leg = Self {
            from: ask.header.from,
            hop: ask.hop,
            connection,
            read_ahead: ReadAhead::default(),
            asked: 0,
        };
        match leg.carry(slot, buffer_pool, ask).await {
            Ok(answer) => answer,
            Err(cause) => {
                let message = format!("next relay {}: {cause}", ask.hop.address);
                Err(Failure::new(Status::NextHopFailed, message))
            }
        }
    }

    /// The outer error is the connection's, which says nothing about the path if the connection was
    /// idle before.
    async fn carry(
        mut self,
        slot: &mut Option<Self>,
        buffer_pool: &BufferPool,
        ask: &Ask<'_>,
    ) -> Result<Result<Answer, Failure>, String> {
        let sent = Instant::now();
        self.connection.write_all(&ask.header.bytes).await.map_err(|error| plain(&error))?;
        let read = self
            .read_ahead
            .read_head(&self.connection, buffer_pool, REPLY_LIMIT, reply_bytes)
            .await;
        let bytes = read.map_err(|error| match error {
            HeadError::Ended(_) => "ended the connection without a reply".to_owned(),
            other => format!("{other} before a reply"),
        })?;
        let waited = sent.elapsed();
        let reply = match ask.header.downstream.open(&bytes) {
            Ok(reply) => reply,
            Err(error) => return Ok(Err(Failure::new(Status::NextHopFailed, error.to_string()))),
        };
        if reply.status == Status::Ok {
            self.asked += 1;
            *slot = Some(self);
        }
        Ok(Ok(Answer { reply, waited }))
    }
}
