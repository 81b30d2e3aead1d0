//! A session's two directions while at least one of its legs is striped.
//!
//! As in the pump, each direction holds at most one piece, and reads more only when the other side
//! has space: a slow side stops the fast one. One task does all of it, and is woken by any of the
//! connections.

mod linger;

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::time::{Instant, Sleep};
use tradewind_units::Timestamp;

use super::{End, LOOK};
use crate::access_log::Follower;
use crate::counts::StripeCounts;
use crate::limits::memory::{Memory, Reservation};
use crate::limits::quota::Meter;
use crate::process::worker::Worker;
use crate::session::SessionSettings;
use crate::session::buffer_pool::BUFFER_BYTES;
use crate::session::pump::{Broken, IdleLimits, IoContext, MoveError, StoppedDirection};

/// Rounds before other sessions get their turn; in each, a direction moves at most [`PIECES`]
/// pieces.
const ROUNDS: usize = 2;
const PIECES: usize = 16;

/// One direction.
#[derive(Debug)]
struct DirectionState {
    /// Data read, and not accepted by the other side.
    piece: Bytes,
    meter: Option<Box<Meter>>,
    /// The record of its session; absent without an access log.
    follower: Option<Follower>,
    moved: u64,
    /// Set once the end of file was read.
    ended: bool,
    /// Set once it was passed on.
    over: bool,
    /// Set if nothing had arrived at the last read.
    starved: bool,
}

impl DirectionState {
    fn new(stopped: StoppedDirection) -> Self {
        let moved = stopped.bytes_read();
        let StoppedDirection { meter, follower, ended, over, .. } = stopped;
        Self { piece: Bytes::new(), meter, follower, moved, ended, over, starved: false }
    }

    /// Moves the data that can be moved now, some pieces at most. Returns true if it moved any.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut End,
        to: &mut End,
        io_context: IoContext<'_>,
    ) -> Result<bool, MoveError> {
        let mut moved = false;
        for _ in 0..PIECES {
            if self.over {
                break;
            }
            let step = if !self.piece.is_empty() {
                let written = to.poll_write(cx, &mut self.piece).map_err(MoveError::Giving)?;
                written.map(|count| {
                    self.moved += count as u64;
                    self.follower.iter().for_each(|follower| follower.moved(count as u64));
                    io_context.counts.moved(count);
                })
            } else if self.ended {
                let finished = to.poll_finish(cx).map_err(MoveError::Giving)?;
                finished.map(|()| {
                    self.over = true;
                    self.follower.iter().for_each(Follower::ended);
                })
            } else {
                self.poll_take(cx, from, to.free(io_context.memory), io_context)
                    .map_err(MoveError::Taking)?
            };
            if step.is_pending() {
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut End,
        free: usize,
        io_context: IoContext<'_>,
    ) -> Poll<io::Result<()>> {
        self.starved = false;
        let mut most = io_context.memory.map_or(usize::MAX, |memory| memory.most());
        most = most.min(free).min(BUFFER_BYTES);
        if most == 0 {
            // The task is woken when there is space.
            return Poll::Pending;
        }
        if let Some(meter) = &mut self.meter {
            match meter.poll_booked(cx, || io_context.counts.throttled()) {
                Poll::Ready(booked) => most = most.min(booked),
                Poll::Pending => return Poll::Pending,
            }
        }
        let read = from.poll_read(cx, most);
        self.starved = read.is_pending();
        let count = match &read {
            Poll::Ready(Ok(Some(bytes))) => bytes.len(),
            _ => 0,
        };
        if let Some(meter) = &mut self.meter {
            meter.settle(count);
        }
        read.map_ok(|bytes| match bytes {
            Some(bytes) => self.piece = bytes,
            None => self.ended = true,
        })
    }
}

/// A session of which at least one leg is striped.
pub(crate) struct Carry<'a> {
    upstream: End,
    downstream: End,
    up: DirectionState,
    down: DirectionState,
    worker: &'a Worker,
    /// Its idle limits, as they were when it was striped.
    limits: IdleLimits,
    /// The session's memory limit, if there is one.
    memory: Option<&'a Arc<Memory>>,
    start: Instant,
    held: Option<Reservation>,
    counted: Counted<'a>,
    /// The bytes moved at the last sign of progress, and the time of that.
    alive: (u64, Instant),
}

impl<'a> Carry<'a> {
    /// Continues from the state that the pump passes on: each direction's remaining data, and the
    /// two sides.
    pub(crate) fn new(
        (upstream, up): (End, StoppedDirection),
        (downstream, down): (End, StoppedDirection),
        worker: &'a Worker,
        session_settings: &'a SessionSettings,
        memory: Option<&'a Arc<Memory>>,
    ) -> Self {
        let (up, down) = (DirectionState::new(up), DirectionState::new(down));
        let start = Instant::now();
        let alive = (up.moved + down.moved, start);
        let counts = &worker.counts.stripes;
        let counted = Counted { counts, legs: 0, connections: 0, reordering: 0, resent: 0 };
        let held = None;
        Self {
            upstream,
            downstream,
            up,
            down,
            worker,
            limits: session_settings.timeouts.idle(),
            memory,
            start,
            held,
            counted,
            alive,
        }
    }

    /// Moves both directions until both have ended in order.
    ///
    /// # Errors
    /// With the first error of either side, or when nothing moves for longer than allowed.
    pub(crate) async fn run(mut self) -> Result<(), Broken> {
        let mut timer = pin!(tokio::time::sleep(LOOK));
        let mut look_at = self.start + LOOK;
        if let Err(error) = poll_fn(|cx| self.poll(cx, timer.as_mut(), &mut look_at)).await {
            self.linger(&error).await;
            let broken_off = poll_fn(|cx| {
                self.upstream.break_off(cx);
                self.downstream.break_off(cx);
                Poll::Ready(())
            });
            broken_off.await;
            return Err(error);
        }
        self.counted.follow(&self.upstream, &self.downstream);
        let (upstream, downstream) = tokio::join!(self.upstream.close(), self.downstream.close());
        upstream.map_err(Broken::Upstream)?;
        downstream.map_err(Broken::Downstream)
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.start.elapsed()
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut timer: Pin<&mut Sleep>,
        look_at: &mut Instant,
    ) -> Poll<Result<(), Broken>> {
        for _ in 0..ROUNDS {
            let moved = self.round(cx)?;
            let directions_over = self.up.over && self.down.over;
            if directions_over && self.upstream.is_over() && self.downstream.is_over() {
                return Poll::Ready(Ok(()));
            }
            if moved {
                continue;
            }
            let due = [self.upstream.poll_timeout(), self.downstream.poll_timeout()];
            let due = due.into_iter().flatten().min();
            let due = due.map_or(*look_at, |due| self.start + due.since(Timestamp::ZERO));
            timer.as_mut().reset(due.min(*look_at));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = self.now();
            self.upstream.handle_timeout(now);
            self.downstream.handle_timeout(now);
            if Instant::now() >= *look_at {
                *look_at = Instant::now() + LOOK;
                self.look(now)?;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Runs one round: receives, moves between the sides, sends.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, Broken> {
        let now = self.now();
        let Self { upstream, downstream, up, down, worker, memory, .. } = self;
        let mut moved = upstream.drive_in(cx, now).map_err(Broken::Upstream)?;
        moved |= downstream.drive_in(cx, now).map_err(Broken::Downstream)?;
        let went_up = up.poll_move(cx, upstream, downstream, worker.up_context().within(*memory));
        moved |= went_up.map_err(MoveError::of_up)?;
        let went_down =
            down.poll_move(cx, downstream, upstream, worker.down_context().within(*memory));
        moved |= went_down.map_err(MoveError::of_down)?;
        // One leg is striped, the other may be striped only after more has moved.
        let carried = up.moved + down.moved;
        upstream.begin(carried, *memory);
        downstream.begin(carried, *memory);
        moved |= upstream.drive_out(cx, now).map_err(Broken::Upstream)?;
        moved |= downstream.drive_out(cx, now).map_err(Broken::Downstream)?;
        self.account();
        self.counted.follow(&self.upstream, &self.downstream);
        Ok(moved)
    }

    /// Counts the held bytes against the memory limit, and bounds the windows by the rest of it.
    fn account(&mut self) {
        let Some(memory) = self.memory else { return };
        let striped = self.upstream.held() + self.downstream.held();
        let pieces = self.up.piece.len() + self.down.piece.len();
        let held = usize::try_from(striped).unwrap_or(usize::MAX).saturating_add(pieces);
        // The old count is dropped first, so that it does not reduce the free memory.
        self.held = None;
        let most = memory.most();
        self.held = (held > 0).then(|| memory.hold(held));
        self.upstream.bound(most);
        self.downstream.bound(most);
    }

    /// Checks for silence, and for conditions that wake no task.
    fn look(&mut self, now: Timestamp) -> Result<(), Broken> {
        let moved = self.up.moved + self.down.moved;
        self.upstream.look(now, moved).map_err(Broken::Upstream)?;
        self.downstream.look(now, moved).map_err(Broken::Downstream)?;
        if moved != self.alive.0 {
            self.alive = (moved, Instant::now());
            return Ok(());
        }
        let half_closed = self.up.over || self.down.over;
        let limit = if half_closed { self.limits.half_closed } else { self.limits.open };
        match limit.filter(|limit| self.alive.1.elapsed() >= *limit) {
            Some(limit) => Err(Broken::Idle(limit)),
            None => Ok(()),
        }
    }
}

/// The amounts that a session has added to the worker's counters; gauges are reduced again when it
/// is over.
struct Counted<'a> {
    counts: &'a StripeCounts,
    legs: usize,
    connections: usize,
    reordering: u64,
    resent: u64,
}

impl Counted<'_> {
    fn follow(&mut self, upstream: &End, downstream: &End) {
        let ends = [upstream, downstream];
        let striped = || ends.iter().filter(|end| end.is_striped());
        let legs = striped().count();
        let connections = striped().map(|end| end.connections()).sum();
        let reordering = striped().map(|end| end.counts().reordering).sum();
        let resent = striped().map(|end| end.counts().resent).sum();
        self.set(legs, connections, reordering);
        self.counts.resent.fetch_add(resent - self.resent, Relaxed);
        self.resent = resent;
    }

    fn set(&mut self, legs: usize, connections: usize, reordering: u64) {
        let counts = self.counts;
        // Wrapping: a negative difference subtracts.
        counts.legs.fetch_add(legs.wrapping_sub(self.legs), Relaxed);
        counts.connections.fetch_add(connections.wrapping_sub(self.connections), Relaxed);
        counts.reordering.fetch_add(reordering.wrapping_sub(self.reordering), Relaxed);
        (self.legs, self.connections, self.reordering) = (legs, connections, reordering);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.set(0, 0, 0);
    }
}
