//! Lingering of a striped session: data that a side had sent before it failed still arrives, as in
//! [`crate::session::pump`].

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};

use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::{Carry, DirectionState};
use crate::session::pump::{Broken, IoContext, LINGER_TIMEOUT};
use crate::stripe::End;

impl DirectionState {
    /// Writes the received data; ready once none is left, or the other side has failed.
    fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut End,
        to: &mut End,
        io_context: IoContext<'_>,
    ) -> Poll<bool> {
        loop {
            if !self.piece.is_empty() {
                match to.poll_write(cx, &mut self.piece) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(_)) => return Poll::Ready(false),
                    Poll::Ready(Ok(count)) => {
                        self.moved += count as u64;
                        self.follower.iter().for_each(|follower| follower.moved(count as u64));
                        io_context.counts.moved(count);
                    }
                }
            } else if self.ended || self.over {
                return Poll::Ready(true);
            } else {
                match self.poll_take(cx, from, to.free(io_context.memory), io_context) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Pending if !self.starved => return Poll::Pending,
                    Poll::Pending | Poll::Ready(Err(_)) => return Poll::Ready(true),
                }
            }
        }
    }
}

impl Carry<'_> {
    /// Delivers all that the failed side had sent to the other, as long as that takes it.
    pub(super) async fn linger(&mut self, error: &Broken) {
        if matches!(error, Broken::Idle(_)) {
            return;
        }
        // The runtime's readiness of the sockets may be older than the failure.
        yield_now().await;
        let mut timer = pin!(sleep(LINGER_TIMEOUT));
        let (mut seen, mut deadline) = (None, Instant::now() + LINGER_TIMEOUT);
        let delivered = poll_fn(|cx| {
            loop {
                let (delivered, progress) = match self.linger_round(cx, error) {
                    Some(round) => round,
                    None => return Poll::Ready(false),
                };
                if delivered {
                    return Poll::Ready(true);
                }
                if seen.replace(progress) != Some(progress) {
                    deadline = Instant::now() + LINGER_TIMEOUT;
                    continue;
                }
                let (start, now) = (self.start, self.now());
                let to = self.other_than_failed(error);
                let due = to
                    .poll_timeout()
                    .map(|due| start + due.since(tradewind_units::Timestamp::ZERO));
                timer.as_mut().reset(due.unwrap_or(deadline).min(deadline));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                if Instant::now() >= deadline {
                    return Poll::Ready(false);
                }
                to.handle_timeout(now);
            }
        });
        if delivered.await {
            self.other_than_failed(error).acknowledged().await;
        }
    }

    fn other_than_failed(&mut self, error: &Broken) -> &mut End {
        match error {
            Broken::Upstream(_) => &mut self.downstream,
            _ => &mut self.upstream,
        }
    }

    /// Runs one round; returns whether all has been delivered, and the progress. `None` if the
    /// other side has failed as well.
    fn linger_round(&mut self, cx: &mut Context<'_>, error: &Broken) -> Option<(bool, (u64, u64))> {
        let now = self.now();
        let Self { upstream, downstream, up, down, worker, memory, .. } = self;
        let (direction, from, to, io_context) = match error {
            Broken::Upstream(_) => (up, upstream, downstream, worker.up_context()),
            _ => (down, downstream, upstream, worker.down_context()),
        };
        // It has failed; data that its connections still hold is delivered.
        while matches!(from.drive_in(cx, now), Ok(true)) {}
        to.drive_in(cx, now).ok()?;
        let rest = direction.poll_rest(cx, from, to, io_context.within(*memory));
        if rest == Poll::Ready(false) {
            return None;
        }
        to.drive_out(cx, now).ok()?;
        let progress = (direction.moved, to.counts().unacknowledged);
        let delivered = rest.is_ready() && to.is_delivered();
        self.account();
        Some((delivered, progress))
    }
}
