//! One side of a session: a connection, which becomes a striped leg when others join it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tradewind_net::tcp;
use tradewind_stripe::frame::INITIAL_WINDOW;
use tradewind_stripe::{Config, Counts, FIRST_CONNECTION, Stripe};
use tradewind_units::Timestamp;

use super::link::{FramedConnection, Stop};
use super::offer::{Joined, Mute, Offer};
use super::{CHUNK, LOOK, MAX_WINDOW, STALL};
use crate::connection::Connection;
use crate::connection::side::Side;
use crate::dial::pacing_ramp::PacingRamp;
use crate::limits::memory::Memory;
use crate::session::pump::{StoppedDirection, acknowledged};

/// Longest time for the connections of a leg that is over to close in order.
const PARTING_TIME: Duration = Duration::from_secs(2);

/// One side of a session.
#[derive(Debug)]
pub(crate) struct End {
    /// The connection that the session began on, until it dies.
    first: Option<FramedConnection>,
    offer: Option<Offer>,
    striping: Option<Box<Striping>>,
    /// Bytes of the stream that were received on the first connection without frames.
    received: u64,
    /// Bytes of the stream that were written to it without frames, those in `raw` among them.
    given: u64,
    /// Data still to be written to it without frames.
    raw: Bytes,
    /// Data received in order, and not read yet.
    unread: Bytes,
    /// Set once the first connection's sending direction is shut.
    finished: bool,
    /// Set once the end of file of the first connection was read.
    ended: bool,
    /// The number of first round trips for which its connections keep their pacing caps.
    ramp: Option<u16>,
}

#[derive(Debug)]
struct Striping {
    stripe: Stripe,
    joined: BTreeMap<u32, FramedConnection>,
    /// Connections that take nothing more, while received data may still be in them, and the time
    /// since when.
    fading: Vec<(u32, FramedConnection, Timestamp)>,
    mute: Mute,
}

/// The state of a side when the pump passes it on.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) received: u64,
    /// Bytes of the stream that were written to it, including those in `raw`.
    pub(crate) given: u64,
    /// Data still to be written to it.
    pub(crate) raw: Bytes,
    pub(crate) finished: bool,
    pub(crate) ended: bool,
    /// The number of first round trips for which its connections keep their pacing caps.
    pub(crate) ramp: Option<u16>,
}

impl Left {
    /// Creates the state of the side from which `read` was read, and to which `written` was
    /// written.
    pub(crate) fn between(
        read: &StoppedDirection,
        written: &StoppedDirection,
        ramp: Option<u16>,
    ) -> Self {
        Self {
            received: read.bytes_read(),
            given: written.bytes_read(),
            raw: written.raw.clone(),
            finished: written.ended,
            ended: read.ended,
            ramp,
        }
    }
}

impl End {
    /// Creates a side from the state that the pump passes on.
    pub(crate) fn new(first: Connection, offer: Option<Offer>, left: Left) -> Self {
        let Left { received, given, raw, finished, ended, ramp } = left;
        Self {
            first: Some(FramedConnection::first(first)),
            offer,
            striping: None,
            received,
            given,
            raw,
            unread: Bytes::new(),
            finished,
            ended,
            ramp,
        }
    }

    /// Returns true if it is a striped leg.
    pub(super) const fn is_striped(&self) -> bool {
        self.striping.is_some()
    }

    /// Returns the number of connections that carry it.
    pub(super) fn connections(&self) -> usize {
        let joined = self.striping.as_ref().map_or(0, |striping| striping.joined.len());
        usize::from(self.first.is_some()) + joined
    }

    /// Returns its counters as a striped leg.
    pub(super) fn counts(&self) -> Counts {
        self.striping.as_ref().map_or_else(Counts::default, |striping| striping.stripe.counts())
    }

    /// Returns the bytes that it takes now; if memory is short, only up to those that it then
    /// holds.
    pub(super) fn free(&self, memory: Option<&Arc<Memory>>) -> usize {
        match &self.striping {
            Some(striping)
                if memory.is_some_and(|memory| memory.is_short())
                    && striping.stripe.counts().unacknowledged > 0 =>
            {
                0
            }
            Some(striping) => striping.stripe.free_capacity(),
            None if self.raw.is_empty() => usize::MAX,
            None => 0,
        }
    }

    /// Returns the bytes that count as held: those of the initial window always do, since it was
    /// advertised.
    pub(super) fn held(&self) -> u64 {
        let Some(striping) = &self.striping else { return 0 };
        let counts = striping.stripe.counts();
        let promised = if striping.stripe.is_settled() { 0 } else { INITIAL_WINDOW };
        let links = self.first.iter().chain(striping.joined.values());
        let partial: u64 = links.map(FramedConnection::partial).sum();
        let waiting = counts.unread.max(promised) + self.unread.len() as u64 + partial;
        counts.unacknowledged + counts.bookkeeping + waiting
    }

    /// Bounds the bytes that it may hold beyond a gap.
    pub(super) fn bound(&mut self, bytes: usize) {
        if let Some(striping) = &mut self.striping {
            striping.stripe.set_largest_window(MAX_WINDOW.min(bytes as u64));
        }
    }

    /// Returns true if nothing is left to do for it, once both ends of file have been passed on.
    pub(super) fn is_over(&self) -> bool {
        let is_over = |striping: &Striping| striping.stripe.is_over();
        self.raw.is_empty()
            && self.first.as_ref().is_none_or(FramedConnection::is_flushed)
            && (self.is_over_without_frames() || self.striping.as_deref().is_none_or(is_over))
    }

    /// Returns true if both directions have ended on the first connection: the other end may never
    /// have been striped, and be gone. A striped other end acknowledges the end of file, which may
    /// take long until it reads this one's there.
    fn is_over_without_frames(&self) -> bool {
        let is_complete = |striping: &Striping| {
            let has_begun = striping.stripe.other_start().is_some();
            !has_begun || striping.stripe.has_all() || striping.joined.is_empty()
        };
        self.finished && self.ended && self.striping.as_deref().is_none_or(is_complete)
    }

    /// Returns the time at which `handle_timeout` is to be called, if nothing is received.
    pub(super) fn poll_timeout(&self) -> Option<Timestamp> {
        self.striping.as_ref().and_then(|striping| striping.stripe.poll_timeout())
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        if let Some(striping) = &mut self.striping {
            striping.stripe.handle_timeout(now);
        }
    }

    /// Checks for conditions that wake no task. `carried` is the total of the session.
    pub(super) fn look(&mut self, now: Timestamp, carried: u64) -> io::Result<()> {
        let all = self.connections();
        if let Some(striping) = &mut self.striping {
            striping.fading.retain(|(_, _, since)| now.since(*since) < LOOK);
        }
        if let (Some(striping), Some(offer)) = (&self.striping, &mut self.offer) {
            offer.look(now, carried, striping.stripe.healthy(), all);
        }
        if let Some(rtts) = self.ramp {
            let striping = self.striping.iter_mut();
            let joined = striping.flat_map(|striping| striping.joined.values_mut());
            for link in self.first.iter_mut().chain(joined) {
                let ramp = link.ramp.get_or_insert_with(|| PacingRamp::new(rtts));
                let _again = ramp.look(&link.connection);
            }
        }
        self.judge();
        // While the other side takes nothing, or after its end of file, this one is not read.
        let first = self.first.as_ref();
        let error = first
            .filter(|_| !self.is_over_without_frames())
            .and_then(|first| first.connection.stream().take_error().transpose());
        match error.map(|error| error.unwrap_or_else(|error| error)) {
            Some(error) => self.lose_first(error, now),
            None => Ok(()),
        }
    }

    /// Updates the silence after which each connection counts as stalled.
    fn judge(&mut self) {
        let Some(striping) = &mut self.striping else { return };
        let Striping { stripe, joined, .. } = &mut **striping;
        if let Some(first) = &self.first {
            first.judge(FIRST_CONNECTION, stripe);
        }
        for (number, link) in joined {
            link.judge(*number, stripe);
        }
    }

    /// Handles the death of the first connection: an error only if it carries data that no other
    /// does.
    fn lose_first(&mut self, error: io::Error, now: Timestamp) -> io::Result<()> {
        let Some(striping) = &mut self.striping else { return Err(error) };
        let start = striping.stripe.other_start();
        let has_all = self.raw.is_empty() && start.is_some_and(|start| self.received >= start);
        if !has_all {
            return Err(error);
        }
        striping.stripe.remove(FIRST_CONNECTION);
        let first = self.first.take().map(|first| (FIRST_CONNECTION, first, now));
        striping.fading.extend(first);
        Ok(())
    }

    /// Returns true if all data written to it has been sent, and has arrived as far as frames tell.
    pub(super) fn is_delivered(&self) -> bool {
        let is_delivered = |striping: &Striping| striping.stripe.counts().unacknowledged == 0;
        self.raw.is_empty()
            && self.first.as_ref().is_none_or(FramedConnection::is_flushed)
            && self.striping.as_deref().is_none_or(is_delivered)
    }

    /// Waits until data sent without frames is acknowledged, as long as there is progress.
    pub(super) async fn acknowledged(&self) {
        if let Some(first) = &self.first {
            acknowledged(&Side::Lent(&first.connection)).await;
        }
    }

    /// Takes in joined connections and received data. Returns true if there was any.
    pub(super) fn drive_in(&mut self, cx: &mut Context<'_>, now: Timestamp) -> io::Result<bool> {
        let mut moved = self.welcome(cx);
        let Some(striping) = &mut self.striping else { return Ok(moved) };
        let Striping { stripe, joined, fading, .. } = &mut **striping;
        for (number, mut link, since) in std::mem::take(fading) {
            match link.receive(number, stripe, cx, now) {
                Ok(received) => {
                    moved |= received;
                    fading.push((number, link, since));
                }
                Err(Stop::Ended | Stop::Dead(_)) => moved = true,
                Err(Stop::Wrong(error)) => return Err(error),
            }
        }
        let mut dead = Vec::new();
        for (number, link) in joined.iter_mut() {
            match link.receive(*number, stripe, cx, now) {
                Ok(received) => moved |= received,
                Err(Stop::Ended | Stop::Dead(_)) => dead.push(*number),
                Err(Stop::Wrong(error)) => return Err(error),
            }
        }
        for number in dead {
            joined.remove(&number);
            stripe.remove(number);
        }
        let frames = stripe.other_start().is_some_and(|start| self.received >= start);
        if let Some(first) = self.first.as_mut().filter(|_| frames && !self.ended) {
            match first.receive(FIRST_CONNECTION, stripe, cx, now) {
                Ok(received) => moved |= received,
                // The other side ended this direction before it was striped there; the other
                // direction goes on here.
                Err(Stop::Ended) => {
                    self.ended = true;
                    moved = true;
                }
                Err(Stop::Dead(error)) => self.lose_first(error, now)?,
                Err(Stop::Wrong(error)) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Begins to stripe this leg, of a session that has `moved` so much, if that is enough and
    /// striping is configured.
    pub(super) fn begin(&mut self, moved: u64, memory: Option<&Arc<Memory>>) {
        if let Some(offer) = &mut self.offer {
            offer.begin(moved, memory);
        }
    }

    /// Adds joined connections; the first of them makes this a striped leg.
    fn welcome(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some(joined) = self.offer.as_mut().and_then(|offer| offer.take(cx)) {
            let Joined { number, connection, input, permit } = joined;
            let Ok(connection) = connection.wake() else { continue };
            self.be_striped();
            let Some(striping) = &mut self.striping else { continue };
            let link = FramedConnection::joined(connection, &input, permit);
            link.spread_evenly();
            striping.stripe.add(number, true);
            link.judge(number, &mut striping.stripe);
            striping.joined.insert(number, link);
            moved = true;
        }
        moved
    }

    fn be_striped(&mut self) {
        if self.striping.is_some() {
            return;
        }
        let config = Config { chunk: CHUNK, largest_window: MAX_WINDOW, stall: STALL };
        let mut stripe = Stripe::new(config, self.given);
        stripe.add(FIRST_CONNECTION, !self.finished);
        if self.finished {
            stripe.finish();
        }
        if let Some(first) = &self.first {
            first.spread_evenly();
            first.judge(FIRST_CONNECTION, &mut stripe);
        }
        let mute = Mute::default();
        self.striping =
            Some(Box::new(Striping { stripe, joined: BTreeMap::new(), fading: Vec::new(), mute }));
    }

    /// Reads at most `most` bytes of the stream; `None` is its end.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<io::Result<Option<Bytes>>> {
        if self.unread.is_empty() {
            let start = self.striping.as_ref().map(|striping| striping.stripe.other_start());
            // Without frames up to the offset that the other side announced; until it has, it sends
            // none here.
            let left =
                start.flatten().map_or(u64::MAX, |start| start.saturating_sub(self.received));
            if left > 0 && !self.ended {
                return self.poll_read_raw(cx, most, left);
            }
            let Some(striping) = &mut self.striping else { return Poll::Ready(Ok(None)) };
            match striping.stripe.read() {
                Some(bytes) => self.unread = bytes,
                None if striping.stripe.is_read_to_end() => return Poll::Ready(Ok(None)),
                None => return Poll::Pending,
            }
        }
        let count = self.unread.len().min(most);
        Poll::Ready(Ok(Some(self.unread.split_to(count))))
    }

    fn poll_read_raw(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
        left: u64,
    ) -> Poll<io::Result<Option<Bytes>>> {
        let Some(first) = &mut self.first else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let most = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        let bytes = ready!(first.poll_read(cx, most))?;
        if !bytes.is_empty() {
            self.received += bytes.len() as u64;
            return Poll::Ready(Ok(Some(bytes)));
        }
        self.ended = true;
        match &self.striping {
            None => Poll::Ready(Ok(None)),
            // The other side ended before it was striped, if it ever is. Frames that it may still
            // send carry no more data.
            Some(striping) if striping.stripe.other_start().is_none() => Poll::Ready(Ok(None)),
            Some(_) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Accepts as much of `bytes` as it has space for.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<io::Result<usize>> {
        if let Some(striping) = &mut self.striping {
            let count = striping.stripe.free_capacity().min(bytes.len());
            if count == 0 {
                return Poll::Pending;
            }
            striping.stripe.write(bytes.split_to(count));
            return Poll::Ready(Ok(count));
        }
        if !self.raw.is_empty() {
            return Poll::Pending;
        }
        let Some(first) = &mut self.first else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let written = ready!(first.poll_write(cx, bytes))?;
        self.given += written as u64;
        Poll::Ready(Ok(written))
    }

    /// Ends the direction that writes to it.
    pub(super) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(striping) = &mut self.striping {
            striping.stripe.finish();
            return Poll::Ready(Ok(()));
        }
        if !self.raw.is_empty() {
            return Poll::Pending;
        }
        self.finished = true;
        match &mut self.first {
            Some(first) => first.poll_shutdown(cx),
            None => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    /// Sends what the connections take. Returns true if there was anything.
    pub(super) fn drive_out(&mut self, cx: &mut Context<'_>, now: Timestamp) -> io::Result<bool> {
        let mut moved = false;
        if let Some(first) = self.first.as_mut() {
            while !self.raw.is_empty()
                && let Poll::Ready(written) = first.poll_write(cx, &mut self.raw)
            {
                written?;
                moved = true;
            }
            // Data that was enciphered without frames, here or by the pump. (Frames are sent
            // below.)
            if self.striping.is_none()
                && let Poll::Ready(sent) = first.poll_send(cx)
            {
                sent?;
            }
        }
        let Some(striping) = &mut self.striping else { return Ok(moved) };
        let Striping { stripe, joined, fading, .. } = &mut **striping;
        let mut first_died = None;
        if let Some(first) = self.first.as_mut().filter(|_| self.raw.is_empty()) {
            match first.transmit(FIRST_CONNECTION, stripe, cx, now) {
                Ok(sent) => moved |= sent,
                Err(error) => first_died = Some(error),
            }
        }
        let mut dead = Vec::new();
        for (number, link) in joined.iter_mut() {
            match link.transmit(*number, stripe, cx, now) {
                Ok(sent) => moved |= sent,
                Err(_) => dead.push(*number),
            }
        }
        for number in dead {
            stripe.remove(number);
            fading.extend(joined.remove(&number).map(|link| (number, link, now)));
            moved = true;
        }
        if let Some(error) = first_died {
            self.lose_first(error, now)?;
            moved = true;
        }
        self.check()?;
        Ok(moved)
    }

    /// Checks that the leg can go on.
    fn check(&mut self) -> io::Result<()> {
        let over_without_frames = self.is_over_without_frames();
        let Some(striping) = &mut self.striping else { return Ok(()) };
        if over_without_frames || striping.stripe.is_settled() {
            return Ok(());
        }
        let start = striping.stripe.other_start();
        if self.ended && start.is_some_and(|start| start != self.received) {
            let problem = "frames of a direction that had ended before";
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        if striping.stripe.is_cut() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "every connection of the striped leg is gone",
            ));
        }
        // A leg that has ended without frames, and receives none, has nothing to send.
        let is_mute = !striping.stripe.can_send() && (!self.finished || start.is_some());
        let hopeless = is_mute && self.offer.as_ref().is_none_or(|offer| !offer.is_open());
        if hopeless || striping.mute.for_good(is_mute) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no connection of the striped leg is left that the other end knows",
            ));
        }
        Ok(())
    }

    /// Closes the connections in order, now that both directions are over.
    pub(super) async fn close(mut self) -> io::Result<()> {
        if let Some(striping) = &mut self.striping {
            let mut links: Vec<_> = std::mem::take(&mut striping.joined).into_iter().collect();
            links.extend(self.first.take().map(|first| (FIRST_CONNECTION, first)));
            let stripe = &mut striping.stripe;
            let mut open: Vec<_> = links.iter_mut().map(|link| (link, false)).collect();
            let closing = poll_fn(|cx| {
                open.retain_mut(|((number, link), shut)| {
                    link.poll_close(*number, shut, stripe, cx).is_pending()
                });
                if open.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            });
            // An end that does not close in time has received everything.
            let _ended = timeout(PARTING_TIME, closing).await;
            for (_, link) in &links {
                tcp::end_in_order_on_close(&link.connection)?;
            }
        }
        match &self.first {
            Some(first) => tcp::end_in_order_on_close(&first.connection),
            None => Ok(()),
        }
    }

    /// Reports to the other end that the session is broken off, as far as that is possible at once;
    /// dropping the connections resets them.
    pub(super) fn break_off(&mut self, cx: &mut Context<'_>) {
        let Some(striping) = &mut self.striping else { return };
        for link in striping.joined.values_mut() {
            link.break_off(cx);
        }
    }
}

#[cfg(test)]
mod tests;
