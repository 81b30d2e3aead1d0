//! Joins at a relay: connections of striped legs that neighbours dial join a session that is open
//! here.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::time::{Instant, timeout};
use tradewind_grant::OpenHeader;
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::{Progress, ReadAhead};
use tradewind_stream::counts::Outcome;
use tradewind_stream::process::worker::Permit;
use tradewind_stream::stripe::{Member, NotAdmitted, Offer, Sessions};
use tradewind_stripe::frame::START_BYTES;

use super::{RelayService, most_sessions, silent};

/// Lets connections join the session of `header`, before the path is reported open to its
/// neighbour.
pub(super) fn offer(joinable: &Arc<Sessions>, header: &OpenHeader) -> Option<Offer> {
    let offer = || {
        let (grant, most) = (header.grant_id, most_sessions(header));
        let member = Member { gateway: header.grant.gateway, grant, most };
        joinable.offer(&header.upstream, header.neighbour(), member)
    };
    header.terms.may_stripe.then(offer)
}

impl RelayService {
    /// Passes a connection that joins a session to it, on whichever worker it is, and waits until
    /// it is over.
    pub(super) async fn join(
        &self,
        connection: Connection,
        bytes: &[u8],
        mut read_ahead: ReadAhead,
        permit: &mut Permit,
        deadline: Instant,
    ) -> Outcome {
        let admitted = match self.onward.joinable.admit(bytes, connection.peer()) {
            Ok(admitted) => admitted,
            // It may have ended a moment ago: that is not logged, and is no attack.
            Err(NotAdmitted::NoSession) => {
                return silent(&connection, Outcome::NoSession, deadline).await;
            }
            Err(NotAdmitted::Full) => return Outcome::Full,
            Err(NotAdmitted::Forged(cause)) => {
                tracing::debug!("refused: {cause}");
                return silent(&connection, Outcome::Forged, deadline).await;
            }
        };
        let _place = match self.places.join(permit, admitted.member) {
            Ok(place) => place,
            Err(refusal) => return refusal,
        };
        if !permit.worker().may_stripe() {
            return Outcome::Full;
        }
        if connection.write_all(&admitted.welcome).await.is_err() {
            return Outcome::Ended;
        }
        // Until the neighbour has sent the offset of its frames the session goes on without it.
        let reading =
            read_ahead.read_head(&connection, &permit.worker().buffer_pool, START_BYTES, start);
        match timeout(self.session_settings.timeouts.header(), reading).await {
            Ok(Ok(mut input)) => {
                input.extend(read_ahead.into_bytes());
                match admitted.hand_over(connection, input).await {
                    Ok(()) => Outcome::Joined,
                    Err(_) => Outcome::Broken,
                }
            }
            _ => Outcome::Ended,
        }
    }
}

/// Splits off the first frame on a connection that has joined.
fn start(bytes: &[u8]) -> Result<Progress<Vec<u8>>, Infallible> {
    Ok(match bytes.get(..START_BYTES) {
        Some(frame) => Progress::Complete(frame.to_vec(), START_BYTES),
        None => Progress::Incomplete,
    })
}
