//! Refusals: the replies to a neighbour whose session is not carried, and their log lines.

use tokio::time::Instant;
use tradewind_grant::{GrantError, OpenHeader, Refusal, Reply, Status};
use tradewind_stream::access_log::note;
use tradewind_stream::connection::Connection;
use tradewind_stream::counts::Outcome;
use tradewind_stream::failure::Failure;
use tradewind_stream::process::worker::{Cause, Permit, Worker};
use tradewind_stream::session::opening::close_with;
use tradewind_telemetry::limited;

use super::welcome::{complain, silent};

/// The knowledge about the dial of the destination when a session failed, here or further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dial {
    /// The destination was not dialled.
    NotBegun,
    /// The destination may have been dialled.
    PerhapsBegun,
}

/// Refuses a header: with a reply if the neighbour is authenticated, otherwise in silence.
pub(super) async fn refuse(
    stream: Connection,
    permit: &mut Permit,
    refusal: Box<Refusal>,
    deadline: Instant,
) -> Outcome {
    let failure = Failure::from(refusal.cause.clone());
    let (Some(key), Some(hop)) = (refusal.upstream, refusal.hop) else {
        complain(permit, &stream, &refusal.cause);
        let outcome = match refusal.cause {
            GrantError::Malformed { .. } | GrantError::TooLong { .. } => Outcome::Malformed,
            _ => Outcome::Forged,
        };
        return silent(&stream, outcome, deadline).await;
    };
    limited!(
        info,
        permit.worker().lines(),
        Cause::Source(permit.source()),
        "refused: {}: {}",
        stream.remote(),
        failure.message
    );
    let reply = Reply::failed(failure.status, hop, &failure.message).before_dial();
    close_with(stream, permit.worker(), &key.seal(&reply)).await;
    Outcome::Failed(failure.status)
}

/// Reports to the neighbour that the path could not be opened from here on.
pub(super) async fn fail(
    stream: Connection,
    worker: &Worker,
    header: &OpenHeader,
    failure: Failure,
    dial: Dial,
) -> Outcome {
    let failed = Reply::failed(failure.status, header.hop, failure.peer_message());
    let reply = match dial {
        Dial::NotBegun => failed.before_dial(),
        Dial::PerhapsBegun => failed,
    };
    end_with(stream, worker, header, &reply, &failure.message).await
}

/// Passes the reply of the hop at which the path could not be opened to the neighbour; `why` is
/// for this host's logs.
pub(super) async fn end_with(
    stream: Connection,
    worker: &Worker,
    header: &OpenHeader,
    reply: &Reply,
    why: &str,
) -> Outcome {
    let is_own = reply.hop == header.hop;
    let hop = if is_own { String::new() } else { format!("hop {}: ", reply.hop + 1) };
    limited!(
        info,
        worker.lines(),
        Cause::Gateway(header.grant.gateway),
        flow = %header.flow,
        "flow to {} by {}: {hop}{why}",
        header.destination,
        stream.remote()
    );
    note(|facts| facts.failed(reply.status, why));
    close_with(stream, worker, &header.upstream.seal(reply)).await;
    Outcome::Failed(reply.status)
}

/// Reports to the neighbour that there is no capacity, and for whom.
pub(super) async fn turn_away(
    stream: Connection,
    worker: &Worker,
    header: &OpenHeader,
    refusal: Outcome,
) -> Outcome {
    let failure = Failure::new(Status::Overloaded, refusal.rejection());
    fail(stream, worker, header, failure, Dial::NotBegun).await;
    refusal
}
