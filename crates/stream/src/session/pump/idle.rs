//! Timers of a session: its settling, its reply and its idle timeout.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Age at which a session is settled, unless it is bulky before. Chosen: a peer that vanishes is
/// detected after minutes anyway, and most sessions end earlier, so that they save the system
/// calls.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Age at which a half-closed session listens for a reset of the side that has ended, which is no
/// longer read. Chosen: most sessions end earlier, so that they save the system calls.
const LISTENS_AFTER: Duration = Duration::from_secs(1);

/// Longest time that the reply of an open path waits for the first data, to share its packet.
/// Chosen: as long as the kernel holds a short segment back (`MSG_MORE`), above the round trip to
/// most destinations.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

/// Interval of the timer of a session that may be silent for ever.
const NO_LIMIT: Duration = Duration::from_secs(86_400);

/// The longest silence of a session; `None` is for ever.
#[derive(Debug, Clone, Copy)]
pub struct IdleLimits {
    /// With both directions open.
    pub open: Option<Duration>,
    /// Once one direction has ended.
    pub half_closed: Option<Duration>,
}

impl IdleLimits {
    /// Returns the first interval of the timer: until an open path's reply is due, if there is one,
    /// else until the session is settled.
    pub(super) fn first(&self, answers: bool) -> Duration {
        let first = if answers { ANSWER_WITHIN } else { SETTLED_AFTER };
        self.open.map_or(first, |open| first.min(open))
    }
}

/// An event that the watch reports.
pub(super) enum IdleEvent {
    /// The reply has waited long enough for the first data.
    AnswerIsDue,
    /// The session has been open, or half-closed, for longer than most sessions are.
    NoLongerYoung,
    /// Nothing has moved for this long.
    Silent(Duration),
}

/// A watch that finds silence without reading the clock for each move: when its timer ends it
/// checks whether anything has moved since it was set, so silence ends a session after one to two
/// limits.
pub(super) struct IdleWatch<'a> {
    limits: IdleLimits,
    timer: Pin<&'a mut Sleep>,
    moved_before: u64,
    half_closed: bool,
    young: bool,
    answers: bool,
}

impl<'a> IdleWatch<'a> {
    pub(super) fn new(limits: IdleLimits, timer: Pin<&'a mut Sleep>, answers: bool) -> Self {
        Self { limits, timer, moved_before: 0, half_closed: false, young: true, answers }
    }

    /// Ready when there is an event; `moved` is the total that the session has moved.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        moved: u64,
        half_closed: bool,
    ) -> Poll<IdleEvent> {
        if half_closed && !self.half_closed {
            self.half_closed = true;
            self.young = true;
            self.restart(moved);
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if std::mem::take(&mut self.answers) {
                self.restart(moved);
                return Poll::Ready(IdleEvent::AnswerIsDue);
            }
            if std::mem::take(&mut self.young) {
                self.restart(moved);
                return Poll::Ready(IdleEvent::NoLongerYoung);
            }
            if moved == self.moved_before
                && let Some(limit) = self.silence()
            {
                return Poll::Ready(IdleEvent::Silent(limit));
            }
            self.restart(moved);
        }
    }

    fn restart(&mut self, moved: u64) {
        self.moved_before = moved;
        let deadline = Instant::now() + self.limit();
        self.timer.as_mut().reset(deadline);
    }

    const fn silence(&self) -> Option<Duration> {
        if self.half_closed { self.limits.half_closed } else { self.limits.open }
    }

    fn limit(&self) -> Duration {
        let limit = self.silence().unwrap_or(NO_LIMIT);
        let youth = if self.half_closed { LISTENS_AFTER } else { SETTLED_AFTER };
        match (self.answers, self.young) {
            (true, _) => limit.min(ANSWER_WITHIN),
            (false, true) => limit.min(youth),
            (false, false) => limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use tokio::time::sleep;

    use super::*;
    use crate::connection::tests::runtime;

    /// Returns the silence reported when the timer ends of a session that is no longer young, and
    /// has moved nothing since it was set.
    async fn reported(limits: IdleLimits, half_closed: bool) -> Option<Duration> {
        let mut timer = pin!(sleep(Duration::ZERO));
        timer.as_mut().await;
        let mut watch = IdleWatch::new(limits, timer, false);
        (watch.young, watch.half_closed) = (false, half_closed);
        match watch.poll(&mut Context::from_waker(Waker::noop()), 0, half_closed) {
            Poll::Ready(IdleEvent::Silent(limit)) => Some(limit),
            Poll::Ready(_) => panic!("something else"),
            Poll::Pending => None,
        }
    }

    #[test]
    fn no_idle_limit_ends_no_session() {
        let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
        runtime().block_on(async {
            let both = IdleLimits { open: Some(hour), half_closed: Some(minute) };
            assert_eq!(reported(both, false).await, Some(hour));
            assert_eq!(reported(both, true).await, Some(minute));
            let open = IdleLimits { open: Some(hour), half_closed: None };
            assert_eq!(
                (reported(open, false).await, reported(open, true).await),
                (Some(hour), None)
            );
            let off = IdleLimits { open: None, half_closed: None };
            assert_eq!((reported(off, false).await, reported(off, true).await), (None, None));
        });
    }
}
