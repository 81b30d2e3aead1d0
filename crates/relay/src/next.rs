//! The connection to the next relay of a session: warm or fresh, and the retry that its reply
//! allows.

use std::io;
use std::time::Duration;

use tradewind_grant::{DialLimit, OpenHeader, Reply, SealedHeader, Status};
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::ReadAhead;
use tradewind_stream::counts::Outcome;
use tradewind_stream::dial::pool::Warm;
use tradewind_stream::dial::{Dialler, Speaker};
use tradewind_stream::failure::Failure;
use tradewind_stream::process::worker::Worker;
use tradewind_stream::session::authorization::Dialled;
use tradewind_stream::session::opening::{NextRelay, Waited};
use tradewind_stream::session::pump::Direction;

use super::admission::Admission;
use super::refusals::Dial;

/// The next relay's reply, and the connection that it arrived on.
pub(super) struct Opened {
    pub(super) downstream: Connection,
    pub(super) up: Direction,
    pub(super) reply: Reply,
    pub(super) read_ahead: ReadAhead,
}

/// The reason that one connection to the next relay did not open the path.
enum NotOpened {
    /// The relay has acknowledged no byte of the session.
    Untouched {
        /// The data for it beyond the first flight, to be sent again.
        resend: Vec<u8>,
        /// True if nothing at all was received, so that its acknowledgement may have been lost.
        was_silent: bool,
    },
    Closed(Closed),
}

/// The reason that the path is not open over any connection.
pub(super) enum Closed {
    Failed(Failure, Dial),
    UpstreamGone(io::Error),
    /// The rules that admitted the session have changed meanwhile.
    Refused(Outcome),
}

impl From<Closed> for NotOpened {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

/// The leg to the next relay of a session that is being opened.
pub(super) struct NextLeg<'a> {
    pub(super) dialler: &'a Dialler,
    pub(super) admission: &'a Admission,
    pub(super) upstream: &'a Connection,
    pub(super) worker: &'a Worker,
    pub(super) header: &'a OpenHeader,
    /// The header for that relay.
    pub(super) next: &'a SealedHeader,
}

impl NextLeg<'_> {
    /// Opens the path over `pooled`, a warm connection, if there is one; otherwise, or if that
    /// proves dead, over a fresh one.
    ///
    /// Silence does not tell whether the next relay has the header. It accepts a header only once,
    /// but it may already have dialled what another path's relays would dial.
    pub(super) async fn open(
        &self,
        mut leading: Vec<u8>,
        mut pooled: Option<Warm>,
    ) -> Result<Opened, Closed> {
        let (mut may_have_it, mut has_asked) = (false, false);
        loop {
            let warm = pooled.take();
            let is_warm = warm.is_some();
            let flight = if is_warm { leading.clone() } else { std::mem::take(&mut leading) };
            match self.open_over(flight, warm).await {
                Ok(mut opened) => {
                    // A relay that reports a replay has received it before, and its acknowledgement
                    // was lost.
                    let has_it = has_asked && opened.reply.status == Status::Replayed;
                    opened.reply.dialled |= may_have_it || has_it;
                    return Ok(opened);
                }
                Err(NotOpened::Untouched { resend, was_silent }) => {
                    leading.extend(resend);
                    (may_have_it, has_asked) = (was_silent, true);
                }
                Err(NotOpened::Closed(Closed::Failed(failure, _))) if may_have_it => {
                    return Err(Closed::Failed(failure, Dial::PerhapsBegun));
                }
                Err(NotOpened::Closed(closed)) => return Err(closed),
            }
        }
    }

    /// Sends the header to the next relay, over `warm` or a fresh connection, and waits for the
    /// reply.
    async fn open_over(&self, leading: Vec<u8>, warm: Option<Warm>) -> Result<Opened, NotOpened> {
        let Self { dialler, admission, upstream, worker, header, next } = *self;
        let hop = header.route.hops()[header.hop + 1];
        let address = hop.address;
        let (fresh, warm) = match warm {
            Some(warm) => (None, Some(warm)),
            None => {
                // A gateway with another path must learn of a dead leg in time to use that.
                let wanted = header.terms.dial_limit.map_or(Duration::MAX, DialLimit::duration);
                let dialling = dialler.dial_within(&next.from, &hop, Speaker::Us, wanted);
                let dialled =
                    upstream.unless_reset(dialling).await.map_err(Closed::UpstreamGone)?;
                let fresh = dialled.map_err(|failure| Closed::Failed(failure, Dial::NotBegun))?;
                let checked = admission.check_dialled(worker, header, Dialled::NextHop(address));
                checked.map_err(Closed::Refused)?;
                (Some(fresh), None)
            }
        };
        let downstream = warm.as_ref().map(|warm| &warm.connection).or(fresh.as_ref());
        let downstream = downstream.expect("the one or the other");
        let mut up = Direction::after(&next.bytes, leading);
        if warm.is_some() {
            up.keep();
        }
        // If this fails, so will the wait for the reply, which reports the reason.
        let _started = up.start(downstream, worker.up_context());
        let opening = NextRelay { connection: downstream, address, key: &next.downstream };
        let legs_left = header.route.hops().len() - header.hop;
        let limit = dialler.limit() * u32::try_from(legs_left).unwrap_or(u32::MAX);
        let reply = opening.reply(Some(upstream), &mut up, worker, limit);
        let waited = match &warm {
            Some(warm) => warm.unless_silent(warm.reply_timeout(), address, reply).await,
            None => reply.await,
        };
        match waited {
            Waited::Replied(reply, read_ahead) => {
                drop(up.take_retained());
                let connection = fresh.or(warm.map(|warm| warm.connection));
                let downstream = connection.expect("the one or the other");
                Ok(Opened { downstream, up, reply, read_ahead })
            }
            Waited::Failed(failure) => match warm.filter(Warm::is_untouched) {
                Some(_) => Err(NotOpened::Untouched {
                    resend: up.take_retained(),
                    was_silent: failure.status == Status::TimedOut,
                }),
                // The header was sent; whether it arrived is unknown.
                None => Err(Closed::Failed(failure, Dial::PerhapsBegun).into()),
            },
            Waited::UpstreamGone(error) => Err(Closed::UpstreamGone(error).into()),
        }
    }
}
