//! Lingering: what a peer had sent before its connection failed still arrives.
//!
//! A server that answers early and resets is the usual case: its answer, which holds the reason, is
//! in the socket's receive queue, which Linux keeps readable after a reset. The other side gets it,
//! and is reset once it has acknowledged it, since a reset discards unsent data and may overtake
//! data in flight.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};
use tradewind_net::tcp;

use super::{Direction, Ending, IoContext, Load, MoveError};
use crate::connection::side::Side;

/// Time for which a session whose one side has failed goes on while the other takes nothing.
/// Chosen: a few of a remote peer's retransmission timeouts.
pub(crate) const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// First interval at which acknowledged bytes are polled, since no event reports them. Chosen: the
/// round trip of a short path.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(50);

impl Direction {
    /// Reads a load from `from`, and returns how much `to` took of it at once; or finds the end of
    /// the readable data.
    pub(super) fn poll_load(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Side<'_>,
        to: &Side<'_>,
        io_context: IoContext<'_>,
    ) -> Poll<Result<usize, MoveError>> {
        match self.poll_take(cx, from, to, io_context) {
            Poll::Ready(Ok(Some(given))) => return Poll::Ready(Ok(given)),
            Poll::Pending if !self.lingers || self.throttled => return Poll::Pending,
            Poll::Ready(Err(MoveError::Taking(_))) if self.lingers => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending | Poll::Ready(Ok(None)) => {}
        }
        self.load = Load::End;
        Poll::Ready(Ok(0))
    }

    /// Ends without an end of file to the other side, once that has the reply that waited for data.
    pub(super) fn end_lingering(&mut self) -> usize {
        self.load = Load::Nothing;
        self.answer_alone();
        self.ended = !self.load_waits();
        0
    }

    /// Writes to `to` all that has arrived from `from`, whose session is over, and waits until it
    /// is acknowledged. Ends early when `to` fails or takes nothing for [`LINGER_TIMEOUT`].
    pub(crate) async fn linger(
        &mut self,
        from: &mut Side<'_>,
        to: &mut Side<'_>,
        io_context: IoContext<'_>,
    ) {
        // The runtime's readiness of `from` may be older than the failure.
        yield_now().await;
        self.lingers = true;
        let mut timer = pin!(sleep(LINGER_TIMEOUT));
        let mut seen = self.moved;
        let delivered = poll_fn(|cx| {
            if let Poll::Ready(moved) = self.poll_move(cx, from, to, io_context, Ending::Close) {
                return Poll::Ready(moved.is_ok());
            }
            if std::mem::replace(&mut seen, self.moved) != self.moved {
                timer.as_mut().reset(Instant::now() + LINGER_TIMEOUT);
            }
            timer.as_mut().poll(cx).map(|()| false)
        });
        if delivered.await {
            acknowledged(to).await;
        }
    }
}

/// Waits until the peer of `to` has acknowledged all that was written to it, as long as it makes
/// progress.
pub(crate) async fn acknowledged(to: &Side<'_>) {
    to.send_held_back();
    let unacknowledged = || match to {
        Side::Lost => 0,
        _ if tcp::is_closed(to) => 0,
        _ => tcp::unacknowledged(to).map_or(0, |left| left.as_u64() + to.waits() as u64),
    };
    let (mut left, mut pause) = (unacknowledged(), FIRST_LOOK);
    let mut deadline = Instant::now() + LINGER_TIMEOUT;
    while left > 0 && Instant::now() < deadline {
        sleep_until((Instant::now() + pause).min(deadline)).await;
        if to.waits() > 0 {
            // If that fails, nothing is left to wait for.
            let _sent = to.try_flush();
        }
        let now_left = unacknowledged();
        if now_left < left {
            deadline = Instant::now() + LINGER_TIMEOUT;
        }
        (left, pause) = (now_left, (pause * 2).min(LAST_LOOK));
    }
}
