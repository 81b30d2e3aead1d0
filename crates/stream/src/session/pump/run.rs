//! A session's pump: both directions until they have ended, or one fails.

use super::*;

/// A session that moves bytes.
pub(crate) struct Pump<'a> {
    pub(crate) session: Box<Session>,
    pub(crate) worker: &'a Worker,
    pub(crate) session_settings: &'a SessionSettings,
}

/// The state of a pump between two moves.
struct Progress<'a> {
    idle: IdleWatch<'a>,
    ramps: Option<Box<PacingRamps>>,
    settled: bool,
}

impl Pump<'_> {
    /// Moves both directions until both have ended in order, or a leg is striped.
    ///
    /// # Errors
    /// With the first error of either socket, or when nothing moves for longer than allowed.
    #[expect(clippy::manual_async_fn, reason = "an async function holds its arguments twice")]
    pub(crate) fn run(&mut self) -> impl Future<Output = Result<Stopped, Broken>> + Send {
        async move {
            let answers = !self.session.down.answer.is_empty();
            let first = self.session_settings.timeouts.idle().first(answers);
            let timer = pin!(tokio::time::sleep(first));
            let idle = IdleWatch::new(self.session_settings.timeouts.idle(), timer, answers);
            let ramps = self.session_settings.legs.ramps(&self.session.downstream);
            let mut progress = Progress { idle, ramps, settled: false };
            poll_fn(|cx| self.poll(cx, &mut progress)).await
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        progress: &mut Progress<'_>,
    ) -> Poll<Result<Stopped, Broken>> {
        let Progress { idle, ramps, settled } = progress;
        let Session { up, down, upstream, downstream, memory, offers, .. } = &mut *self.session;
        let memory = memory.as_ref();
        let ending = Ending::after(down);
        let io_context = self.worker.up_context().within(memory);
        let up_ended = up.poll_move(cx, upstream, downstream, io_context, ending);
        let up_ended = up_ended.map_err(MoveError::of_up)?.is_ready();
        let ending = Ending::after(up);
        let was_paused = downstream.is_read_paused();
        let io_context = self.worker.down_context().within(memory);
        let down_ended = down.poll_move(cx, downstream, upstream, io_context, ending);
        let down_ended = down_ended.map_err(MoveError::of_down)?.is_ready();
        if downstream.is_read_paused() != was_paused && up.load_waits() {
            // It was registered anew, and has lost that the other direction waits for space there.
            cx.waker().wake_by_ref();
        }
        if up_ended && down_ended {
            return Poll::Ready(Ok(Stopped::Over));
        }
        if let Some(due) = ramps
            && !due.poll(cx, (upstream, down.moved), (downstream, up.moved))
        {
            *ramps = None;
        }
        let moved = down.moved + up.moved;
        if let Some(offers) = offers
            && offers.poll(cx, moved, memory).is_ready()
        {
            return Poll::Ready(Ok(Stopped::Joined));
        }
        if !*settled && (up.bulky() || down.bulky()) {
            *settled = true;
            self.settle()?;
        }
        match idle.poll(cx, moved, up_ended || down_ended) {
            Poll::Pending => {}
            Poll::Ready(IdleEvent::Silent(limit)) => return Poll::Ready(Err(Broken::Idle(limit))),
            Poll::Ready(IdleEvent::AnswerIsDue) => {
                self.session.down.answer_alone();
                cx.waker().wake_by_ref();
            }
            Poll::Ready(IdleEvent::NoLongerYoung) => {
                if !std::mem::replace(settled, true) {
                    self.settle()?;
                }
                self.pause_reads_at_end()?;
                // The timer was set anew, and must be polled again.
                cx.waker().wake_by_ref();
            }
        }
        self.poll_reset(cx).map(Err)
    }

    /// Pauses the read interest of sides that have ended, so that only a reset wakes them.
    fn pause_reads_at_end(&mut self) -> Result<(), Broken> {
        let Session { up, down, upstream, downstream, .. } = &mut *self.session;
        if up.ended {
            upstream.pause_reads().map_err(Broken::Upstream)?;
        }
        if down.ended {
            downstream.pause_reads().map_err(Broken::Downstream)?;
        }
        Ok(())
    }

    /// Ready when a side that has ended, and is no longer read, was reset.
    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<Broken> {
        if self.session.up.ended {
            return self.session.upstream.poll_failure(cx).map(Broken::Upstream);
        }
        if self.session.down.ended {
            return self.session.downstream.poll_failure(cx).map(Broken::Downstream);
        }
        Poll::Pending
    }

    /// Sets the options that only a session longer than a short exchange needs: the profile's on
    /// the dialled socket, immediate acknowledgements on both.
    fn settle(&self) -> Result<(), Broken> {
        let Session { upstream, downstream, .. } = &*self.session;
        let settled = self.session_settings.legs.of(downstream).settled.apply(downstream);
        settled.map_err(|error| Broken::Downstream(error.source))?;
        tcp::acknowledge_at_once(downstream).map_err(Broken::Downstream)?;
        tcp::acknowledge_at_once(upstream).map_err(Broken::Upstream)
    }
}
