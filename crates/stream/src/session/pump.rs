//! The pump: moves the two directions of a session until both have ended.
//!
//! Each direction holds at most one load between its sockets: bytes read and not yet accepted by
//! the other side, or the content of a pipe. While a load waits nothing more is read, so a slow
//! side stops the fast one through TCP's own window. A direction ends after the load with the end
//! of file that it read; the other goes on. Any error ends both.

mod batching;
mod broken;
mod ending;
mod idle;
mod io_context;
mod leave;
mod linger;
mod retained;
mod run;
mod yielding;

pub(crate) use run::Pump;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tradewind_net::splice::Pipe;
use tradewind_net::tcp;

use crate::access_log::{Follower, Goes, Record};
use crate::connection::Connection;
use crate::connection::side::Side;
use crate::dial::Speaker;
use crate::dial::pacing_ramp::PacingRamps;
use crate::limits::memory::{Memory, Reservation};
use crate::limits::quota::Meter;
use crate::process::worker::Worker;
use crate::session::buffer_pool::BUFFER_BYTES;
use crate::session::{Session, SessionSettings};
pub use broken::Broken;
pub(crate) use broken::MoveError;
pub(crate) use ending::Ending;
use ending::poll_end;
pub use idle::IdleLimits;
use idle::{IdleEvent, IdleWatch};
pub use io_context::IoContext;
pub(crate) use leave::{Stopped, StoppedDirection};
pub(crate) use linger::{LINGER_TIMEOUT, acknowledged};
use retained::Retained;
pub(crate) use yielding::Yielding;

/// A direction is bulky, and moves by splice, once it has moved this much. Chosen: eight times a
/// first flight of 10 segments; a session that stays below is over before a pipe has paid.
const BULKY_AFTER_BYTES: u64 = 128 * 1024;

/// A bulky direction whose last move was shorter than this reads and writes the next one: copying
/// so little costs less than handing pages over.
const SPLICE_AT_LEAST_BYTES: usize = 8 * 1024;

/// Most bytes that a direction moves before other sessions get their turn. Chosen: about a
/// millisecond of one core.
const BYTES_PER_TURN: usize = 4 << 20;

/// The data read from one socket and not yet written to the other.
#[derive(Debug)]
enum Load {
    Nothing,
    Bytes {
        buffer: Vec<u8>,
        given: usize,
    },
    Piped(Pipe),
    /// Data that the other connection has enciphered, and its socket has not accepted.
    Sealed,
    /// The end of file.
    End,
}

/// One direction of a session.
#[derive(Debug)]
pub struct Direction {
    load: Load,
    /// The reply that the path is open, which travels with the first data; empty once it has been
    /// written.
    answer: Vec<u8>,
    /// Bytes still to be written that are not the flow's own.
    overhead: usize,
    moved: u64,
    last_move: usize,
    /// The number of its last bulky move among those of its worker.
    last_bulky: u64,
    ended: bool,
    /// Set when a write has failed and it could be reported to no caller; the next write fails
    /// alike.
    failed: bool,
    /// Set when its session is over: it writes what has arrived, and no end of file.
    lingers: bool,
    /// Set while its rates let it take nothing.
    throttled: bool,
    /// The rates that bind it; absent when none does.
    meter: Option<Box<Meter>>,
    /// The load, where memory is limited.
    held: Option<Reservation>,
    retained: Option<Box<Retained>>,
    /// The record of its session; absent without an access log.
    follower: Option<Follower>,
}

impl Direction {
    /// Creates a direction that first writes `leading`, which was read ahead.
    pub fn new(leading: Vec<u8>) -> Self {
        let load = if leading.is_empty() {
            Load::Nothing
        } else {
            Load::Bytes { buffer: leading, given: 0 }
        };
        let (meter, held, retained, follower) = (None, None, None, None);
        let (overhead, moved, last_move, last_bulky) = (0, 0, 0, 0);
        let (ended, failed, lingers, throttled) = (false, false, false, false);
        Self {
            load,
            answer: Vec::new(),
            overhead,
            moved,
            last_move,
            last_bulky,
            ended,
            failed,
            lingers,
            throttled,
            meter,
            held,
            retained,
            follower,
        }
    }

    /// Creates a direction whose first data carries `answer` along, at once if there is any in
    /// `leading`.
    pub fn answering(answer: Vec<u8>, leading: Vec<u8>) -> Self {
        if leading.is_empty() {
            Self { overhead: answer.len(), answer, ..Self::new(leading) }
        } else {
            Self::after(&answer, leading)
        }
    }

    /// Creates a direction that first writes a header and what was read ahead, in one flight.
    pub fn after(header: &[u8], leading: Vec<u8>) -> Self {
        let overhead = header.len();
        Self { overhead, ..Self::new([header, &leading].concat()) }
    }

    /// Returns the side that speaks first on the connection that this direction writes to.
    pub const fn speaker(&self) -> Speaker {
        if self.load_waits() { Speaker::Us } else { Speaker::Unknown }
    }

    /// Sends what was read ahead in the packet that completes the handshake of `to`, which was
    /// dialled for [`Direction::speaker`].
    pub fn start(&mut self, to: &Connection, io_context: IoContext<'_>) -> io::Result<()> {
        let Load::Bytes { buffer, given } = &mut self.load else { return Ok(()) };
        let sent = unless_blocked(to.try_write(&buffer[*given..]))?;
        *given += sent;
        if *given == buffer.len() {
            self.load = Load::left_at(&Side::Lent(to));
        }
        self.count(sent, io_context);
        Ok(())
    }

    /// Writes the answer next, without data.
    fn answer_alone(&mut self) {
        if !self.answer.is_empty() {
            self.load = Load::Bytes { buffer: std::mem::take(&mut self.answer), given: 0 };
        }
    }

    /// Records that a write has failed, for the next one to return.
    pub(crate) const fn note_failure(&mut self) {
        self.failed = true;
    }

    /// Returns the bytes moved so far.
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }

    /// Limits the direction by `meter`.
    pub(crate) fn bind(&mut self, meter: Option<Meter>) {
        self.meter = meter.map(Box::new);
    }

    /// Counts what it moves in `record` as well, from its first byte on. It may have ended already,
    /// while the path was opened.
    pub(crate) fn record(&mut self, record: &Arc<Record>, goes: Goes) {
        let follower = Follower::new(record, goes, self.moved);
        if self.ended {
            follower.ended();
        }
        self.follower = Some(follower);
    }

    /// Returns true if it has moved enough for splice.
    const fn bulky(&self) -> bool {
        self.moved >= BULKY_AFTER_BYTES
    }

    /// Retains a copy of what it reads from now on, and reads no more than `Retained` allows.
    pub fn keep(&mut self) {
        self.retained = Some(Box::default());
    }

    /// Takes the retained copy; the direction keeps and holds back no more.
    pub fn take_retained(&mut self) -> Vec<u8> {
        self.retained.take().map(|retained| retained.into_bytes()).unwrap_or_default()
    }

    /// Returns true if its end of file has been passed on.
    pub(crate) const fn ended(&self) -> bool {
        self.ended
    }

    /// Returns true if it holds data that the other side has not accepted.
    const fn load_waits(&self) -> bool {
        !matches!(self.load, Load::Nothing)
    }

    /// Moves what can be moved now. Ready once the direction has ended, in order or by an error.
    pub(crate) fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Side<'_>,
        to: &Side<'_>,
        io_context: IoContext<'_>,
        ending: Ending,
    ) -> Poll<Result<(), MoveError>> {
        if self.failed {
            return Poll::Ready(Err(MoveError::Giving(io::ErrorKind::BrokenPipe.into())));
        }
        let mut left_this_turn = BYTES_PER_TURN;
        while !self.ended {
            let given = match self.load {
                Load::Nothing => ready!(self.poll_load(cx, from, to, io_context))?,
                Load::End if self.lingers => self.end_lingering(),
                Load::End => {
                    ready!(poll_end(cx, to, ending)).map_err(MoveError::Giving)?;
                    self.load = Load::Nothing;
                    self.ended = true;
                    self.follower.iter().for_each(Follower::ended);
                    0
                }
                _ => match self.poll_give(cx, to, io_context) {
                    Poll::Ready(given) => given.map_err(MoveError::Giving)?,
                    Poll::Pending => return self.poll_blocked(cx, from).map(Err),
                },
            };
            self.count(given, io_context);
            if let Some(memory) = io_context.memory {
                self.account(memory, to.waits());
            }
            left_this_turn = left_this_turn.saturating_sub(given);
            if left_this_turn == 0 || self.gives_way(given, from, io_context) {
                return end_turn(cx);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what it holds, and reads nothing more. Ready only with an error.
    pub(crate) fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        to: &Side<'_>,
        io_context: IoContext<'_>,
    ) -> Poll<Result<(), MoveError>> {
        while self.load_waits() {
            let given = ready!(self.poll_give(cx, to, io_context)).map_err(MoveError::Giving)?;
            self.count(given, io_context);
        }
        Poll::Pending
    }

    /// Yields if the move of `given` bytes was bulky. Returns true if other tasks have run, or data
    /// had time to gather.
    fn gives_way(&mut self, given: usize, from: &Side<'_>, io_context: IoContext<'_>) -> bool {
        let much_waits = || tcp::unread(from).is_ok_and(|unread| unread.as_u64() >= given as u64);
        let load_waits = self.load_waits();
        let is_behind = || load_waits || much_waits();
        let is_bulk = self.bulky() && given >= SPLICE_AT_LEAST_BYTES;
        is_bulk && io_context.yielding.moved(&mut self.last_bulky, is_behind)
    }

    /// Counts the load as held while it waits, and the retained copy; `waits` is the enciphered
    /// bytes.
    fn account(&mut self, memory: &Arc<Memory>, waits: usize) {
        self.retained.iter_mut().for_each(|retained| retained.account(memory));
        let held = match &self.load {
            Load::Nothing | Load::End => 0,
            Load::Bytes { buffer, .. } => buffer.len(),
            Load::Piped(pipe) => pipe.held(),
            Load::Sealed => waits,
        };
        match held {
            0 => self.held = None,
            _ if self.held.is_some() => {}
            held => self.held = Some(memory.hold(held)),
        }
    }

    /// Counts `given` bytes, except those that are not the flow's own.
    fn count(&mut self, given: usize, io_context: IoContext<'_>) {
        let overhead = self.overhead.min(given);
        self.overhead -= overhead;
        self.moved += (given - overhead) as u64;
        self.follower.iter().for_each(|follower| follower.moved((given - overhead) as u64));
        io_context.counts.moved(given - overhead);
    }

    /// Reads a load from `from` and writes at once what `to` takes of it. `None`: end of file.
    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Side<'_>,
        to: &Side<'_>,
        io_context: IoContext<'_>,
    ) -> Poll<Result<Option<usize>, MoveError>> {
        if self.retained.as_ref().is_some_and(|retained| retained.is_full(io_context.memory)) {
            // The caller that keeps a copy also ends that, and polls again.
            return Poll::Pending;
        }
        loop {
            self.throttled = false;
            ready!(from.poll_read_ready(cx)).map_err(MoveError::Taking)?;
            let mut most = io_context.memory.map_or(usize::MAX, |memory| memory.most());
            if let Some(meter) = &mut self.meter {
                match meter.poll_booked(cx, || io_context.counts.throttled()) {
                    Poll::Ready(booked) => most = most.min(booked),
                    Poll::Pending => {
                        self.throttled = true;
                        return self.poll_blocked(cx, from).map(Err);
                    }
                }
            }
            // A pipe has no length limit, and no copy is made of its content.
            let by_pipe = self.retained.is_none()
                && self.bulky()
                && self.last_move >= SPLICE_AT_LEAST_BYTES
                && from.seal().is_none()
                && to.seal().is_none();
            let outcome = if by_pipe && most > BUFFER_BYTES {
                self.take_by_pipe(cx, from, to, io_context, most)
            } else {
                self.take_by_copy(cx, from, to, io_context, most)
            };
            if let Some(meter) = &mut self.meter {
                meter.settle(if matches!(outcome, Ok(Some(_))) { self.last_move } else { 0 });
            }
            match outcome {
                Err(MoveError::Taking(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    from.enable_reads().map_err(MoveError::Taking)?;
                }
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    /// Reads a load into the shared buffer and writes it from there. Data behind which the sender
    /// has ended is sent together with the end of file, in one packet.
    fn take_by_copy(
        &mut self,
        cx: &mut Context<'_>,
        from: &Side<'_>,
        to: &Side<'_>,
        io_context: IoContext<'_>,
        most: usize,
    ) -> Result<Option<usize>, MoveError> {
        let answer = std::mem::take(&mut self.answer);
        // A limit that delays the next read would delay these bytes, too.
        let reads_on = self.meter.is_none() && self.retained.is_none();
        let outcome =
            io_context.buffer_pool.receive_behind(&answer, from, most, |bytes, received| {
                if received.bytes == 0 {
                    return Ok(None);
                }
                self.last_move = received.bytes;
                if let Some(retained) = &mut self.retained {
                    retained.add(bytes);
                }
                let given = if reads_on && received.has_emptied && from.is_ended(cx) {
                    to.try_write_with_next(bytes)
                } else {
                    to.try_write(bytes)
                };
                let given = unless_blocked(given)?;
                self.load = if given < bytes.len() {
                    Load::Bytes { buffer: bytes[given..].to_vec(), given: 0 }
                } else {
                    Load::left_at(to)
                };
                Ok(Some(given))
            });
        if !answer.is_empty() && !matches!(outcome, Ok(Ok(Some(_)))) {
            self.answer = answer;
            if matches!(outcome, Ok(Ok(None))) {
                self.answer_alone();
                return Ok(Some(0));
            }
        }
        outcome.map_err(MoveError::Taking)?.map_err(MoveError::Giving)
    }

    fn take_by_pipe(
        &mut self,
        cx: &mut Context<'_>,
        from: &Side<'_>,
        to: &Side<'_>,
        io_context: IoContext<'_>,
        most: usize,
    ) -> Result<Option<usize>, MoveError> {
        let Ok(mut pipe) = io_context.buffer_pool.take_pipe() else {
            // No descriptor is left for a pipe: a session that is open goes on by copying.
            return self.take_by_copy(cx, from, to, io_context, BUFFER_BYTES);
        };
        match from.try_fill(&mut pipe, most) {
            Ok(Some(1..)) => {}
            Ok(None) => {
                io_context.buffer_pool.put_pipe(pipe);
                return self.take_by_copy(cx, from, to, io_context, BUFFER_BYTES);
            }
            filled => {
                io_context.buffer_pool.put_pipe(pipe);
                return filled.map(|_| None).map_err(MoveError::Taking);
            }
        }
        self.last_move = pipe.held();
        let given = unless_blocked(give_piped(&mut pipe, to, io_context));
        self.keep_pipe(pipe, io_context);
        given.map(Some).map_err(MoveError::Giving)
    }

    /// Pauses the read interest in `from`; its failure is still reported.
    fn poll_blocked(&self, cx: &mut Context<'_>, from: &mut Side<'_>) -> Poll<MoveError> {
        if self.lingers {
            // It has failed.
            return Poll::Pending;
        }
        match from.pause_reads() {
            Ok(()) => from.poll_failure(cx).map(MoveError::Taking),
            Err(error) => Poll::Ready(MoveError::Taking(error)),
        }
    }

    /// Writes what `to` takes of the load.
    fn poll_give(
        &mut self,
        cx: &mut Context<'_>,
        to: &Side<'_>,
        io_context: IoContext<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            let attempt = match std::mem::replace(&mut self.load, Load::Nothing) {
                Load::Nothing => return Poll::Ready(Ok(0)),
                Load::Bytes { buffer, given } => {
                    let attempt = to.try_write(&buffer[given..]);
                    let given = given + *attempt.as_ref().unwrap_or(&0);
                    self.load = if given < buffer.len() {
                        Load::Bytes { buffer, given }
                    } else {
                        Load::left_at(to)
                    };
                    attempt
                }
                Load::Sealed => {
                    let attempt = to.try_flush().map(|()| 0);
                    if attempt.is_err() {
                        self.load = Load::Sealed;
                    }
                    attempt
                }
                Load::End => {
                    self.load = Load::End;
                    return Poll::Ready(Ok(0));
                }
                Load::Piped(mut pipe) => {
                    let attempt = give_piped(&mut pipe, to, io_context);
                    self.keep_pipe(pipe, io_context);
                    attempt
                }
            };
            match attempt {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                attempt => return Poll::Ready(attempt),
            }
        }
    }

    /// Keeps a pipe that holds something; an empty one goes back.
    fn keep_pipe(&mut self, pipe: Pipe, io_context: IoContext<'_>) {
        match pipe.held() {
            0 => io_context.buffer_pool.put_pipe(pipe),
            _ => self.load = Load::Piped(pipe),
        }
    }
}

impl Load {
    /// Returns what is left when `to` has accepted all of a load.
    fn left_at(to: &Side<'_>) -> Self {
        if to.waits() > 0 { Self::Sealed } else { Self::Nothing }
    }
}

/// Returns pending, and wakes the task once the runtime has polled other sessions and they had
/// their turn.
fn end_turn<T>(cx: &mut Context<'_>) -> Poll<T> {
    let others = pin!(tokio::task::yield_now());
    match others.poll(cx) {
        Poll::Pending => {}
        Poll::Ready(()) => cx.waker().wake_by_ref(),
    }
    Poll::Pending
}

fn give_piped(pipe: &mut Pipe, to: &Side<'_>, io_context: IoContext<'_>) -> io::Result<usize> {
    let given = to.try_write_by(|| pipe.drain_to(to))?;
    io_context.counts.spliced(given);
    Ok(given)
}

/// Returns zero bytes instead of `WouldBlock`.
fn unless_blocked(attempt: io::Result<usize>) -> io::Result<usize> {
    match attempt {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        attempt => attempt,
    }
}
