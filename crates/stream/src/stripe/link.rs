//! One connection and the frames on it.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};
use tokio::sync::oneshot;
use tradewind_net::tcp::SocketOptions;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_stripe::stall::{Pace, stall_after};
use tradewind_stripe::{Frame, Stripe, StripeError};
use tradewind_units::Timestamp;

use super::{CHUNK, NOTSENT_LOWAT};
use crate::connection::Connection;
use crate::dial::pacing_ramp::PacingRamp;

/// Least bytes that a read asks for, and the size of a new buffer.
const MIN_READ: usize = 16 << 10;
const READ_BYTES: usize = 128 << 10;

/// Most buffers filled from one connection before the next one gets its turn.
const FILLS: usize = 2;

/// One connection and the frames on it.
#[derive(Debug)]
pub(super) struct FramedConnection {
    pub(super) connection: Connection,
    input: BytesMut,
    /// The head of the frame that is being sent, and the bytes of it already sent.
    head: Vec<u8>,
    head_sent: usize,
    payload: Bytes,
    /// The ramp of its pacing cap, if it has one.
    pub(super) ramp: Option<PacingRamp>,
    /// Its permit at the listener that accepted it, dropped with it.
    _permit: Option<oneshot::Sender<()>>,
}

/// The reason that nothing more is received on a connection.
pub(super) enum Stop {
    /// Its other end has ended it, after whole frames or before the first.
    Ended,
    /// It has died.
    Dead(io::Error),
    /// The received bytes are invalid: the leg is over.
    Wrong(io::Error),
}

impl FramedConnection {
    /// Creates the connection on which a session began.
    pub(super) fn first(connection: Connection) -> Self {
        Self::joined(connection, &[], None)
    }

    /// Creates a connection that has joined, on which `input` was received already.
    pub(super) fn joined(
        connection: Connection,
        input: &[u8],
        permit: Option<oneshot::Sender<()>>,
    ) -> Self {
        let (head, payload) = (Vec::new(), Bytes::new());
        let input = BytesMut::from(input);
        Self { connection, input, head, head_sent: 0, payload, ramp: None, _permit: permit }
    }

    /// Returns the received bytes of an incomplete frame.
    pub(super) fn partial(&self) -> u64 {
        self.input.len() as u64
    }

    /// Limits its unsent bytes, so that the connection which drains fastest gets most.
    pub(super) fn spread_evenly(&self) {
        let lowat = Some(NOTSENT_LOWAT);
        let little = SocketOptions { notsent_lowat: lowat, ..SocketOptions::default() };
        // A failure only makes the shares less even.
        let _applied = little.apply(&self.connection);
    }

    /// Sets the silence after which it counts as stalled, from the kernel's measurements.
    pub(super) fn judge(&self, number: u32, stripe: &mut Stripe) {
        // Without measurements the earlier value stays.
        let Ok(info) = TcpInfo::of(&self.connection) else { return };
        let Some(rtt) = info.rtt else { return };
        let rate = info.delivery_rate.filter(|_| !info.application_limited);
        let variation = info.rtt_variation.unwrap_or(rtt);
        stripe.set_stall(number, stall_after(Pace { rtt, variation, rate }, CHUNK));
    }

    /// Takes in received data. Returns true if there was any.
    pub(super) fn receive(
        &mut self,
        number: u32,
        stripe: &mut Stripe,
        cx: &mut Context<'_>,
        now: Timestamp,
    ) -> Result<bool, Stop> {
        let wrong = |error: StripeError| {
            let kind = match error {
                StripeError::Reset => io::ErrorKind::ConnectionReset,
                _ => io::ErrorKind::InvalidData,
            };
            Stop::Wrong(io::Error::new(kind, error))
        };
        let mut moved = false;
        for _ in 0..FILLS {
            while let Some(frame) =
                Frame::take(&mut self.input).map_err(|error| wrong(error.into()))?
            {
                stripe.handle(number, now, frame).map_err(wrong)?;
                moved = true;
            }
            match self.poll_fill(cx) {
                Poll::Pending => return Ok(moved),
                Poll::Ready(Ok(0)) if self.input.is_empty() => return Err(Stop::Ended),
                Poll::Ready(Ok(0)) => return Err(Stop::Dead(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(_)) => moved = true,
                Poll::Ready(Err(error)) => return Err(Stop::Dead(error)),
            }
        }
        Ok(moved)
    }

    /// Sends what it takes. Returns true if there was anything.
    pub(super) fn transmit(
        &mut self,
        number: u32,
        stripe: &mut Stripe,
        cx: &mut Context<'_>,
        now: Timestamp,
    ) -> io::Result<bool> {
        let mut moved = false;
        loop {
            match self.poll_flush(cx) {
                Poll::Pending => return Ok(moved),
                Poll::Ready(flushed) => flushed?,
            }
            let Some(frame) = stripe.poll_transmit(number, now) else { return Ok(moved) };
            self.put(frame);
            moved = true;
        }
    }

    /// Closes it: sends what remains and the end, and waits for the other's end. Ready when that
    /// has been received.
    pub(super) fn poll_close(
        &mut self,
        number: u32,
        shut: &mut bool,
        stripe: &mut Stripe,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if !*shut {
            match self.transmit(number, stripe, cx, Timestamp::FAR_FUTURE) {
                Err(_) => return Poll::Ready(()),
                Ok(_) if !self.is_clear() => {}
                // One that cannot be shut is shut already, or has died.
                Ok(_) => *shut = self.poll_shutdown(cx).is_ready(),
            }
        }
        // Data received now is not needed.
        while let Ok(bytes) = ready!(self.poll_read(cx, usize::MAX))
            && !bytes.is_empty()
        {}
        // The other's end does not stop what is still to be sent.
        if *shut { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns true if no data accepted without frames waits to be sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.connection.seal().is_none_or(|seal| seal.waits() == 0)
    }

    /// Reads more; zero bytes are the end of the connection.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < MIN_READ {
            self.input.reserve(READ_BYTES);
        }
        let read = pin!(self.connection.read_buf(&mut self.input)).poll(cx);
        if read.is_pending() && self.input.is_empty() {
            // A connection at rest holds no buffer.
            self.input = BytesMut::new();
        }
        read
    }

    /// Reads at most `most` unframed bytes; none are the end of the connection.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<io::Result<Bytes>> {
        if self.input.is_empty() {
            if self.input.capacity() < MIN_READ.min(most) {
                self.input.reserve(READ_BYTES);
            }
            let mut space = (&mut self.input).limit(most);
            let read = pin!(self.connection.read_buf(&mut space)).poll(cx);
            if read.is_pending() {
                self.input = BytesMut::new();
            }
            ready!(read)?;
        }
        let count = self.input.len().min(most);
        Poll::Ready(Ok(self.input.split_to(count).freeze()))
    }

    /// Returns true if no frame is being sent.
    fn is_clear(&self) -> bool {
        self.head.is_empty()
    }

    /// Sets the frame to be sent; there must be none.
    fn put(&mut self, frame: Frame) {
        frame.put_head(&mut self.head);
        self.payload = frame.into_payload();
    }

    /// Sends the frame; ready once it has all been written, or enciphered and sent.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_clear() {
            let parts = [IoSlice::new(&self.head[self.head_sent..]), IoSlice::new(&self.payload)];
            let connection = Pin::new(&mut self.connection);
            let written = ready!(connection.poll_write_vectored(cx, &parts))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_head = written.min(self.head.len() - self.head_sent);
            self.head_sent += of_head;
            self.payload.advance(written - of_head);
            if self.head_sent == self.head.len() && self.payload.is_empty() {
                self.head.clear();
                self.head_sent = 0;
                self.payload = Bytes::new();
            }
        }
        self.poll_send(cx)
    }

    /// Sends the enciphered bytes that wait.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    /// Reports to the other end that the session is broken off, if that can be sent at once.
    pub(super) fn break_off(&mut self, cx: &mut Context<'_>) {
        if self.is_clear() {
            self.put(Frame::Reset);
            let _flushed = self.poll_flush(cx);
        }
    }

    /// Writes unframed bytes, as many as the connection takes.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.connection).poll_write(cx, bytes))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        bytes.advance(written);
        Poll::Ready(Ok(written))
    }

    /// Ends the sending direction.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
