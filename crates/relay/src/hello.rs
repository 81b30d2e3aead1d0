//! Warm connections that neighbours keep here: a hello, an idle time, and then the header of a
//! session.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tokio::time::timeout;
use tradewind_config::Share;
use tradewind_grant::header::HEADER_LIMIT;
use tradewind_grant::{PublicIdentity, Reply, Status, warm};
use tradewind_net::tcp;
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::ReadAhead;
use tradewind_stream::counts::Outcome;
use tradewind_stream::dial::pool::MAX_WAIT;
use tradewind_stream::limits::quota::Members;
use tradewind_stream::process::shutdown::Phase;
use tradewind_stream::process::worker::Permit;

use super::first_bytes::header_bytes;
use super::judgement::HeaderVerifier;
use super::welcome::complain;

/// The warm connections that rest here.
pub(super) struct WarmConnections {
    /// Neighbours, each of which has a share of them.
    resting: Arc<Members<PublicIdentity>>,
    /// The most of one neighbour.
    most: AtomicU32,
    /// The phase of the shutdown, with whose first step they end.
    phase: OnceLock<watch::Receiver<Phase>>,
}

impl WarmConnections {
    /// Creates a place where `most` of each neighbour may rest.
    pub(super) fn new(most: u32) -> Self {
        let resting = Members::new(Share::default());
        Self { resting, most: AtomicU32::new(most), phase: OnceLock::new() }
    }

    pub(super) fn set_most(&self, most: u32) {
        self.most.store(most, Relaxed);
    }

    /// Makes them end with the first step of a shutdown. A relay runs once, so this is set once.
    pub(super) fn end_with(&self, phase: watch::Receiver<Phase>) {
        let _first = self.phase.set(phase);
    }

    /// Answers the hello in `bytes`, and waits for the header.
    pub(super) async fn header(
        &self,
        verifier: &HeaderVerifier,
        stream: &Connection,
        bytes: &[u8],
        read_ahead: &mut ReadAhead,
        permit: &mut Permit,
    ) -> Result<Vec<u8>, Outcome> {
        let key = verifier.open_hello(bytes, stream.peer()).map_err(|cause| {
            complain(permit, stream, &cause);
            Outcome::Forged
        })?;
        let neighbour = warm::sender(bytes).ok_or(Outcome::Malformed)?;
        // An idle connection without a place could not get one for its session, even if there is
        // capacity then. It may be evicted for a session, which is worth more than a connection
        // that may be needed later.
        let rest = permit.rest().map_err(|refusal| (refusal, refusal.rejection())).and_then(|()| {
            let place = self.resting.enter(neighbour, Some(self.most.load(Relaxed)));
            place.ok_or((Outcome::Full, "too many warm connections rest"))
        });
        let _rests = match rest {
            Ok(place) => place,
            Err((outcome, why)) => {
                let refused = Reply::failed(Status::Overloaded, 0, why);
                // The neighbour dials anew for each session then, whether it gets the reason or
                // not.
                let _written = stream.write_all(&key.seal(&refused.before_dial())).await;
                let _ended = tcp::end_in_order_on_close(stream);
                return Err(outcome);
            }
        };
        stream.write_all(&key.seal(&Reply::ok(0))).await.map_err(|_| Outcome::Ended)?;
        let header = self.later_header(stream, read_ahead, permit).await.ok_or(Outcome::Ended)?;
        // The neighbour may try the next path when a warm connection fails that has acknowledged
        // nothing. The acknowledgement is sent before anything is dialled, so that the neighbour
        // knows that the session was here, even if this process dies.
        let _gone = tcp::acknowledge_at_once(stream);
        Ok(header)
    }

    /// Reads the header that follows a hello; `None` if the neighbour does not need the connection
    /// after all, or this relay is about to end.
    async fn later_header(
        &self,
        stream: &Connection,
        read_ahead: &mut ReadAhead,
        permit: &Permit,
    ) -> Option<Vec<u8>> {
        let mut phase = self.phase.get()?.clone();
        let reading =
            read_ahead.read_head(stream, &permit.worker().buffer_pool, HEADER_LIMIT, header_bytes);
        let read = tokio::select! {
            biased;
            read = timeout(MAX_WAIT, reading) => read.ok()?.ok(),
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => None,
        };
        read.filter(|bytes| !warm::is_hello(bytes))
    }
}
