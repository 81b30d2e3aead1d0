//! A session's pump: both directions until they have ended, or one fails.

use super::*;

/// A session's two sockets, and its two directions.
pub(crate) struct Pump<'a> {
    pub(crate) upstream: &'a mut Side<'static>,
    pub(crate) downstream: &'a mut Side<'static>,
    pub(crate) up: &'a mut Direction,
    pub(crate) down: &'a mut Direction,
    pub(crate) worker: &'a Worker,
    pub(crate) keeping: &'a Keeping,
    /// The memory that binds the session, where that is limited.
    pub(crate) memory: Option<&'a Arc<Memory>>,
    /// Legs that may be striped.
    pub(crate) offers: Option<&'a mut Offers>,
}

impl Pump<'_> {
    /// Moves both directions until both have ended in order, or a leg is striped.
    ///
    /// # Errors
    /// With the first error of either socket, or when nothing moves for longer than allowed.
    pub(crate) async fn run(mut self) -> Result<Stopped, Broken> {
        let up_means = self.worker.means_up().within(self.memory);
        let down_means = self.worker.means_down().within(self.memory);
        let limits = self.keeping.timeouts.idle();
        let answers = !self.down.answer.is_empty();
        let first = if answers { ANSWER_WITHIN } else { SETTLED_AFTER };
        let timer = pin!(tokio::time::sleep(limits.open.map_or(first, |open| first.min(open))));
        let mut idle = IdleWatch::new(limits, timer, answers);
        let mut settled = false;
        let mut lifts = self.keeping.legs.lifts(self.downstream);
        poll_fn(|cx| {
            let ending = Ending::after(self.down);
            let up = self.up.poll_move(cx, self.upstream, self.downstream, up_means, ending);
            let up = up.map_err(MoveError::of_up)?;
            let ending = Ending::after(self.up);
            let was_deaf = self.downstream.is_deaf();
            let down = self.down.poll_move(cx, self.downstream, self.upstream, down_means, ending);
            let down = down.map_err(MoveError::of_down)?;
            if self.downstream.is_deaf() != was_deaf && self.up.load_waits() {
                // It was registered anew, and knows no more that the other direction waits for
                // room there.
                cx.waker().wake_by_ref();
            }
            if up.is_ready() && down.is_ready() {
                return Poll::Ready(Ok(Stopped::Over));
            }
            let given = [self.down.moved, self.up.moved];
            if let Some(due) = &mut lifts
                && !due.poll(cx, (self.upstream, given[0]), (self.downstream, given[1]))
            {
                lifts = None;
            }
            let moved = given[0] + given[1];
            if let Some(offers) = &mut self.offers
                && offers.poll(cx, moved, self.memory).is_ready()
            {
                return Poll::Ready(Ok(Stopped::Joined));
            }
            if !settled && (self.up.bulky() || self.down.bulky()) {
                settled = true;
                self.settle()?;
            }
            let half_closed = up.is_ready() || down.is_ready();
            match idle.poll(cx, moved, half_closed) {
                Poll::Pending => {}
                Poll::Ready(Told::Silent(limit)) => return Poll::Ready(Err(Broken::Idle(limit))),
                Poll::Ready(Told::AnswerIsDue) => {
                    self.down.answer_alone();
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(Told::NoLongerYoung) => {
                    if !std::mem::replace(&mut settled, true) {
                        self.settle()?;
                    }
                    if self.up.ended {
                        self.upstream.deafen().map_err(Broken::Upstream)?;
                    }
                    if self.down.ended {
                        self.downstream.deafen().map_err(Broken::Downstream)?;
                    }
                    // The timer runs on, and must be asked again.
                    cx.waker().wake_by_ref();
                }
            }
            self.poll_reset(cx).map(Err)
        })
        .await
    }

    /// Ready when a side that has ended, and is read no more, was reset.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<Broken> {
        if self.up.ended {
            return self.upstream.poll_failure(cx).map(Broken::Upstream);
        }
        if self.down.ended {
            return self.downstream.poll_failure(cx).map(Broken::Downstream);
        }
        Poll::Pending
    }

    /// Gives the sockets what only a session needs that is more than a short exchange: the dialled
    /// one
    /// its options, both acknowledgements without delay.
    fn settle(&self) -> Result<(), Broken> {
        let settled = self.keeping.legs.of(self.downstream).settled.apply(self.downstream);
        settled.map_err(|error| Broken::Downstream(error.source))?;
        tcp::acknowledge_at_once(self.downstream).map_err(Broken::Downstream)?;
        tcp::acknowledge_at_once(self.upstream).map_err(Broken::Upstream)
    }
}
