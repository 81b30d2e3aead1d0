//! One end of a striped leg: both directions, and the connections between the two ends.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tradewind_units::Timestamp;

use crate::StripeError;
use crate::frame::{Ack, Frame, MAX_PAYLOAD};
use crate::receiver::Receiver;
use crate::sender::Sender;

/// The connection on which the session began.
pub const FIRST_CONNECTION: u32 = 0;

/// Settings of a striped leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Most bytes of one frame, at most [`MAX_PAYLOAD`].
    pub chunk: usize,
    /// Largest window of each direction, in bytes: in the receiving direction, bytes received but
    /// not read; in the sending direction, bytes that the peer has not acknowledged. At least
    /// [`INITIAL_WINDOW`](crate::frame::INITIAL_WINDOW) each.
    pub largest_window: u64,
    /// Time without acknowledged frames after which a connection that carries some is stalled: its
    /// frames are sent over others as well, and it gets no new ones until one of them arrives.
    /// [`Stripe::set_stall`] sets it for each connection.
    pub stall: Duration,
}

/// The bytes that a striped leg holds and has resent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes written and not known to have arrived.
    pub unacknowledged: u64,
    /// Bytes that have arrived and have not been read.
    pub unread: u64,
    /// Those of the unread bytes that lie beyond a gap.
    pub reordering: u64,
    /// Bytes sent again over the life of the leg.
    pub resent: u64,
    /// Memory that the bookkeeping of these frames and pieces takes, however short they are.
    pub bookkeeping: u64,
}

/// Bookkeeping of a frame that is not acknowledged, or of a piece beyond a gap, in bytes. Chosen:
/// an allocation, a tree node and a list entry.
const BOOKKEEPING: u64 = 128;

/// One end of a striped leg.
#[derive(Debug)]
pub struct Stripe {
    config: Config,
    sender: Sender,
    receiver: Receiver,
    links: BTreeMap<u32, MemberConnection>,
    /// True once the peer knows where frames begin on the first connection.
    other_knows: bool,
}

/// The state of one connection.
#[derive(Debug)]
struct MemberConnection {
    /// Offsets of the DATA and END frames that it carries and that are not known to have arrived,
    /// in order.
    carried: VecDeque<u64>,
    /// The number of its frames known to have arrived.
    arrived: u64,
    /// The time when the last of them was known to arrive, or when the first of those carried was
    /// sent.
    progress: Timestamp,
    /// Time without progress after which it is stalled.
    stall_timeout: Duration,
    stalled: bool,
    /// The number of DATA and END frames received on it.
    received: u64,
    ack_due: bool,
    start_due: bool,
    known_due: bool,
    /// False once this end cannot write to it.
    writes: bool,
}

impl Stripe {
    /// Creates an end whose bytes before `start` are sent on the first connection without frames.
    #[must_use]
    pub fn new(config: Config, start: u64) -> Self {
        let config = Config { chunk: config.chunk.clamp(1, MAX_PAYLOAD), ..config };
        Self {
            config,
            sender: Sender::new(start, config.largest_window),
            receiver: Receiver::new(config.largest_window),
            links: BTreeMap::new(),
            other_knows: false,
        }
    }

    /// Adds a connection: the first one, or one that has joined under a new number. `writes` is
    /// false when this end has shut its sending direction.
    pub fn add(&mut self, connection: u32, writes: bool) {
        let joined = connection != FIRST_CONNECTION;
        let link = MemberConnection {
            carried: VecDeque::new(),
            arrived: 0,
            progress: Timestamp::ZERO,
            stall_timeout: self.config.stall,
            stalled: false,
            received: 0,
            ack_due: joined && self.receiver.start().is_some(),
            start_due: joined,
            known_due: joined && self.receiver.start().is_some(),
            writes,
        };
        self.links.insert(connection, link);
    }

    /// Sets the time without progress after which a connection is stalled.
    pub fn set_stall(&mut self, connection: u32, after: Duration) {
        if let Some(link) = self.links.get_mut(&connection) {
            link.stall_timeout = after;
        }
    }

    /// Removes a connection that has died. Its frames are sent over the others.
    pub fn remove(&mut self, connection: u32) {
        let Some(link) = self.links.remove(&connection) else { return };
        for at in link.carried {
            self.sender.dropped(at, connection);
        }
        // Its pending acknowledgements, and those lost with it, are sent on other connections.
        let begun = self.receiver.start().is_some();
        for other in self.links.values_mut() {
            other.ack_due |= begun;
            other.known_due |= begun;
        }
    }

    /// Returns whether no connection is left.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.links.is_empty()
    }

    /// Returns the number of connections that are not stalled.
    #[must_use]
    pub fn healthy(&self) -> usize {
        self.links.values().filter(|link| !link.stalled).count()
    }

    /// Returns the offset where the peer's frames begin on the first connection, once the peer has
    /// sent it.
    #[must_use]
    pub fn other_start(&self) -> Option<u64> {
        self.receiver.start()
    }

    /// Returns the number of bytes that may be written now; the caller keeps the rest.
    #[must_use]
    pub fn free_capacity(&self) -> usize {
        // Data that no connection can take yet is better left with the caller.
        let queue = (self.config.chunk * (self.links.len() + 1)) as u64;
        let room = self.sender.free_capacity().min(queue.saturating_sub(self.sender.queued()));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Queues bytes for sending, at most [`Stripe::free_capacity`] of them. Nothing may follow
    /// [`Stripe::finish`].
    pub fn write(&mut self, bytes: Bytes) {
        self.sender.write(bytes);
    }

    /// Ends the sending direction after the bytes written so far.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// Returns whether [`Stripe::finish`] was called.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.sender.is_finished()
    }

    /// Returns the next bytes in order.
    pub fn read(&mut self) -> Option<Bytes> {
        let (bytes, limit_moved) = self.receiver.read()?;
        if limit_moved {
            self.tell_all();
        }
        Some(bytes)
    }

    /// Returns whether [`Stripe::read`] would return something.
    #[must_use]
    pub fn has_bytes(&self) -> bool {
        self.receiver.has_bytes()
    }

    /// Returns whether everything of the receiving direction has been read, to its end.
    #[must_use]
    pub fn is_read_to_end(&self) -> bool {
        self.receiver.is_over()
    }

    /// Returns whether all of the receiving direction has arrived, its end included.
    #[must_use]
    pub fn has_all(&self) -> bool {
        self.receiver.has_all()
    }

    /// Returns whether both directions are over: all written bytes have arrived, all received ones
    /// were read.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.sender.is_over() && self.receiver.is_over()
    }

    /// Returns whether nothing more is expected from the peer: all written bytes have arrived
    /// there, and all of the other direction here.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.sender.is_over() && self.receiver.has_all()
    }

    /// Returns whether a connection is left that frames can be sent on.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.links.keys().any(|connection| self.may_write(*connection))
    }

    /// Sets the largest receiving window, e.g. while memory is short. Limits already granted stay
    /// valid.
    pub const fn set_largest_window(&mut self, bytes: u64) {
        self.receiver.set_largest(bytes);
    }

    /// Returns the leg's counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            unacknowledged: self.sender.held(),
            unread: self.receiver.held(),
            reordering: self.receiver.beyond_a_gap(),
            resent: self.sender.resent(),
            bookkeeping: BOOKKEEPING * (self.sender.frames() + self.receiver.pieces()) as u64,
        }
    }

    /// Returns the next frame for `connection`, which has room for one.
    pub fn poll_transmit(&mut self, connection: u32, now: Timestamp) -> Option<Frame> {
        let may_write = self.may_write(connection);
        let link = self.links.get_mut(&connection).filter(|_| may_write)?;
        if std::mem::take(&mut link.start_due) {
            return Some(Frame::Start(self.sender.start()));
        }
        if std::mem::take(&mut link.known_due) {
            return Some(Frame::Known);
        }
        if let Some(ack) = self.due_ack(connection) {
            return Some(Frame::Ack(ack));
        }
        let link = self.links.get_mut(&connection).filter(|link| !link.stalled)?;
        if let Some(limit) = self.sender.full() {
            return Some(Frame::Full(limit));
        }
        let (at, frame) = self.sender.next(connection, now, self.config.chunk)?;
        if link.carried.is_empty() {
            link.progress = now;
        }
        link.carried.push_back(at);
        Some(frame)
    }

    /// Returns whether frames may be sent on `connection`: on the first one only once the peer
    /// knows where they begin.
    fn may_write(&self, connection: u32) -> bool {
        let known = connection != FIRST_CONNECTION || self.other_knows;
        known && self.links.get(&connection).is_some_and(|link| link.writes)
    }

    /// Returns an acknowledgement for `connection` to carry: its own, or that of the first
    /// connection while no frames may be sent on it.
    fn due_ack(&mut self, connection: u32) -> Option<Ack> {
        self.receiver.start()?;
        let first_is_mute = !self.may_write(FIRST_CONNECTION);
        let mut candidates =
            [connection].into_iter().chain(first_is_mute.then_some(FIRST_CONNECTION));
        let of = candidates.find(|of| self.links.get(of).is_some_and(|link| link.ack_due))?;
        let link = self.links.get_mut(&of)?;
        link.ack_due = false;
        Some(Ack {
            connection: of,
            frames: link.received,
            cumulative: self.receiver.cumulative(),
            limit: self.receiver.limit(),
        })
    }

    fn tell_all(&mut self) {
        self.links.values_mut().for_each(|link| link.ack_due = true);
    }

    /// Handles a frame received on `connection`.
    ///
    /// # Errors
    /// When the peer contradicts itself, exceeds its limit, or has sent RESET. The leg is over
    /// then.
    pub fn handle(
        &mut self,
        connection: u32,
        now: Timestamp,
        frame: Frame,
    ) -> Result<(), StripeError> {
        match frame {
            Frame::Start(offset) => self.begin(offset),
            Frame::Known => {
                self.other_knows = true;
                Ok(())
            }
            Frame::Data { offset, payload } => {
                self.receiver.take(offset, &payload)?;
                self.count_received(connection);
                Ok(())
            }
            Frame::End(total) => {
                self.receiver.end(total)?;
                self.count_received(connection);
                // The last acknowledgement must not be lost with a connection.
                self.tell_all();
                Ok(())
            }
            Frame::Ack(ack) => self.acknowledged(now, ack),
            Frame::Full(limit) => {
                if self.receiver.full(limit) {
                    self.tell_all();
                }
                Ok(())
            }
            Frame::Reset => Err(StripeError::Reset),
        }
    }

    fn begin(&mut self, offset: u64) -> Result<(), StripeError> {
        let is_news = self.receiver.start().is_none();
        self.receiver.begin(offset)?;
        if is_news {
            self.tell_all();
            self.links.iter_mut().for_each(|(number, link)| {
                link.known_due = *number != FIRST_CONNECTION;
            });
        }
        Ok(())
    }

    fn count_received(&mut self, connection: u32) {
        if let Some(link) = self.links.get_mut(&connection) {
            link.received += 1;
            link.ack_due = true;
        }
    }

    fn acknowledged(&mut self, now: Timestamp, ack: Ack) -> Result<(), StripeError> {
        if let Some(link) = self.links.get_mut(&ack.connection) {
            let news = ack.frames.saturating_sub(link.arrived);
            if news > link.carried.len() as u64 {
                return Err(StripeError::Contradiction("acknowledgement of what was not sent"));
            }
            if news > 0 {
                (link.arrived, link.progress, link.stalled) = (ack.frames, now, false);
                link.carried.drain(..news as usize).for_each(|at| self.sender.arrived(at));
            }
        }
        self.sender.confirm(ack.cumulative, ack.limit)
    }

    /// Finds stalled connections, and the frame that blocks all others.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        for link in self.links.values_mut() {
            let idle = link.stalled || link.carried.is_empty();
            if !idle && now.since(link.progress) >= link.stall_timeout {
                link.stalled = true;
                link.carried.iter().for_each(|at| self.sender.send_again(*at));
            }
        }
        if let Some((at, due)) = self.first_is_due()
            && now >= due
        {
            self.sender.send_again(at);
        }
    }

    /// Returns the time at which [`Stripe::handle_timeout`] has work to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let waiting = |link: &&MemberConnection| !link.stalled && !link.carried.is_empty();
        let links =
            self.links.values().filter(waiting).map(|link| link.progress + link.stall_timeout);
        links.chain(self.first_is_due().map(|(_, due)| due)).min()
    }

    /// Returns the frame that blocks all others, and when it is due to be sent over another
    /// connection as well.
    fn first_is_due(&self) -> Option<(u64, Timestamp)> {
        let item = self.sender.blocking_item()?;
        let link = item.carrier.and_then(|carrier| self.links.get(&carrier));
        let stall_timeout = link.map_or(self.config.stall, |link| link.stall_timeout);
        Some((item.offset, item.sent_at + stall_timeout))
    }
}
