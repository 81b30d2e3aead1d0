//! The encryption of a connection: TLS records in memory, between the bytes of sessions and those
//! of a socket. It does no I/O and never waits: the caller passes functions to receive and to send.
//!
//! An idle connection holds no buffer. While data moves, all connections of a thread share the
//! buffer that they read and write through; each keeps only an incomplete record (16 KiB at most),
//! the deciphered bytes not read yet, and what the socket did not take of 64 KiB.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::Error;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};
use tradewind_grant::PublicIdentity;
use tradewind_grant::first_flight::PROOF_BYTES;

use super::identities::Tls;

/// Most bytes that one record carries (RFC 8446, 5.1), and what a record adds to them: its head,
/// its kind and the proof.
const RECORD_BYTES: usize = 16 * 1024;
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// Most bytes that one write takes. Chosen: as many as one read of a socket gives.
const MAX_WRITE_BYTES: usize = 64 * 1024;
/// Most unsent bytes with which more is accepted: the last part of a handshake leaves with the data
/// that follows it.
const MAX_WAITING_BYTES: usize = 4096;
/// The size of the shared buffer: a whole write with its records' overhead after the bytes that may
/// wait, and some small messages of TLS itself.
const BUFFER_BYTES: usize = MAX_WRITE_BYTES + MAX_WAITING_BYTES + 4096;
/// Most bytes of an incomplete handshake. Chosen: several times those of ours, and the size of the
/// reads of a header.
const HANDSHAKE_BYTES: usize = 4096;

thread_local! {
    /// A buffer of [`BUFFER_BYTES`] that is not in use, or nothing.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

fn take_buffer() -> Vec<u8> {
    let spare = SPARE.take();
    if spare.is_empty() { vec![0; BUFFER_BYTES] } else { spare }
}

fn give_back(buffer: Vec<u8>) {
    if buffer.len() == BUFFER_BYTES {
        SPARE.set(buffer);
    }
}

/// The state of TLS on one connection. The lock is for the two directions of a session, which one
/// thread moves, so it is never contended.
#[derive(Debug)]
pub struct Seal {
    state: Mutex<State>,
    /// The identity that the peer has proved; `None` during the handshake.
    peer: Option<PublicIdentity>,
}

#[derive(Debug)]
struct State {
    end: End,
    /// Received bytes of an incomplete record.
    incoming: Vec<u8>,
    /// Deciphered bytes that are not read yet.
    opened: Vec<u8>,
    /// The number of bytes of `opened` that have been read.
    given: usize,
    outgoing: Outgoing,
    /// Set once the other side has ended its direction.
    peer_ended: bool,
    /// Set once this side has.
    ended: bool,
}

/// The TLS state machine of this end of the connection.
enum End {
    Dialled(UnbufferedClientConnection),
    Accepted(UnbufferedServerConnection),
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dialled(_) => "Dialled",
            Self::Accepted(_) => "Accepted",
        })
    }
}

impl std::ops::Deref for End {
    type Target = rustls::CommonState;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Dialled(end) => end,
            Self::Accepted(end) => end,
        }
    }
}

/// The bytes that are enciphered and not sent yet.
#[derive(Debug, Default)]
struct Outgoing {
    buffer: Vec<u8>,
    filled: usize,
    sent: usize,
}

/// The work of a turn beside processing received records.
#[derive(Clone, Copy)]
enum Want<'a> {
    Nothing,
    Send(&'a [u8]),
    End,
}

impl Seal {
    /// Creates the seal of a connection that was dialled, before its handshake.
    pub(super) fn dialled(end: UnbufferedClientConnection) -> Self {
        Self::new(End::Dialled(end))
    }

    /// Creates the seal of a connection that was accepted, before its handshake.
    pub(super) fn accepted(end: UnbufferedServerConnection) -> Self {
        Self::new(End::Accepted(end))
    }

    fn new(end: End) -> Self {
        let state = State {
            end,
            incoming: Vec::new(),
            opened: Vec::new(),
            given: 0,
            outgoing: Outgoing::default(),
            peer_ended: false,
            ended: false,
        };
        Self { state: Mutex::new(state), peer: None }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Continues the handshake as far as the received bytes allow; returns true if it is over.
    pub(super) fn shake(&self) -> Result<bool, Error> {
        let mut state = self.lock();
        let mut incoming = std::mem::take(&mut state.incoming);
        let done = state.turn(&mut incoming, &mut [], Want::Nothing);
        state.keep(&incoming, done.as_ref().map_or(0, |turned| turned.used));
        done.map(|_| !state.end.is_handshaking())
    }

    /// Inserts the proof that `prove` returns for the waiting bytes, a complete ClientHello, before
    /// them.
    pub(super) fn prove_first(&self, prove: impl FnOnce(&[u8]) -> [u8; PROOF_BYTES]) {
        let mut state = self.lock();
        let outgoing = &mut state.outgoing;
        let proof = prove(&outgoing.buffer[outgoing.sent..outgoing.filled]);
        outgoing.put_first(&proof);
    }

    /// Receives more of a handshake. `Ok(0)`: the connection has ended.
    pub(super) fn take_in(
        &self,
        receive: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut state = self.lock();
        let mut buffer = [0; HANDSHAKE_BYTES];
        let space = HANDSHAKE_BYTES.saturating_sub(state.incoming.len());
        if space == 0 {
            return Err(io::Error::other("a handshake longer than any of ours"));
        }
        let received = receive(&mut buffer[..space])?;
        state.incoming.extend_from_slice(&buffer[..received]);
        Ok(received)
    }

    /// Sets the identity that the peer has proved, found by `tls`, after the handshake.
    pub(super) fn recognize(&mut self, tls: &Tls) {
        let peer = tls.peer(&self.lock().end);
        self.peer = peer;
    }

    /// Returns the identity that the peer has proved; `None` during the handshake.
    pub(super) const fn peer(&self) -> Option<PublicIdentity> {
        self.peer
    }

    /// Returns true if it was resumed from an earlier connection.
    #[cfg(test)]
    pub(super) fn is_resumed(&self) -> bool {
        matches!(self.lock().end.handshake_kind(), Some(rustls::HandshakeKind::Resumed))
    }

    /// Returns true if a read returns something without receiving.
    pub(crate) fn has_arrived(&self) -> bool {
        let state = self.lock();
        state.given < state.opened.len() || state.peer_ended
    }

    /// Returns the number of bytes that are enciphered and not sent yet.
    pub(crate) fn waits(&self) -> usize {
        self.lock().outgoing.waits()
    }

    /// Reads into `buffer`, receiving as needed. `Ok(0)`: the other side has ended in order.
    ///
    /// # Errors
    /// `WouldBlock` when no complete record was received; `UnexpectedEof` when the connection ended
    /// without `close_notify`, which may be a truncation; any other error for bytes that cannot be
    /// from the other side.
    pub(crate) fn read(
        &self,
        buffer: &mut [u8],
        receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.lock().read(buffer, receive)
    }

    /// Enciphers as much of `bytes` as it takes, and sends as much of that as the socket takes.
    ///
    /// # Errors
    /// `WouldBlock` when too much waits already; any other error is the connection's.
    pub(crate) fn write(
        &self,
        bytes: &[u8],
        send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.write_parts(&[IoSlice::new(bytes)], send)
    }

    /// As [`Seal::write`], with several parts, which leave together.
    ///
    /// # Errors
    /// As [`Seal::write`].
    pub(crate) fn write_parts(
        &self,
        parts: &[IoSlice<'_>],
        mut send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut state = self.lock();
        if state.ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if state.outgoing.waits() > MAX_WAITING_BYTES {
            state.outgoing.flush(&mut send)?;
        }
        let mut accepted = 0;
        for part in parts {
            let space = MAX_WRITE_BYTES - accepted;
            state.put(Want::Send(&part[..part.len().min(space)]))?;
            accepted += part.len().min(space);
        }
        match state.outgoing.flush(&mut send) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(accepted),
        }
    }

    /// Sends the waiting bytes.
    ///
    /// # Errors
    /// `WouldBlock` when the socket does not take all of it; any other error is the connection's.
    pub(crate) fn flush(&self, send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        self.lock().outgoing.flush(send)
    }

    /// Sends the end of this side's direction.
    ///
    /// # Errors
    /// As [`Seal::flush`]; to be called again then.
    pub(crate) fn end(&self, send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        let mut state = self.lock();
        if !state.ended {
            state.put(Want::End)?;
            state.ended = true;
        }
        state.outgoing.flush(send)
    }
}

/// The result of a turn.
struct Turned {
    /// Bytes used of those received.
    used: usize,
    /// Bytes deciphered into the reader's buffer.
    opened: usize,
}

impl State {
    fn read(
        &mut self,
        buffer: &mut [u8],
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let given = self.give(buffer);
            if given > 0 || self.peer_ended {
                return Ok(given);
            }
            let mut through = take_buffer();
            let read = self.receive(&mut through, buffer, &mut receive);
            give_back(through);
            match read? {
                0 => {}
                opened => return Ok(opened),
            }
        }
    }

    /// Copies the deciphered bytes that are there already.
    fn give(&mut self, buffer: &mut [u8]) -> usize {
        let left = &self.opened[self.given..];
        let given = left.len().min(buffer.len());
        buffer[..given].copy_from_slice(&left[..given]);
        self.given += given;
        if self.given == self.opened.len() {
            (self.opened, self.given) = (Vec::new(), 0);
        }
        given
    }

    /// Receives once and deciphers the complete records.
    fn receive(
        &mut self,
        through: &mut [u8],
        buffer: &mut [u8],
        receive: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let held = self.incoming.len();
        // A whole record, or as many as fit into `buffer` when deciphered.
        let end = through.len().min(buffer.len().max(RECORD_BYTES) + RECORD_OVERHEAD);
        if held >= end {
            return Err(io::Error::other("a message of TLS longer than any of ours"));
        }
        let received = receive(&mut through[held..end])?;
        if received == 0 {
            return Err(cut());
        }
        through[..held].copy_from_slice(&self.incoming);
        let whole = &mut through[..held + received];
        let turned = self.turn(whole, buffer, Want::Nothing).map_err(broken)?;
        self.keep(whole, turned.used);
        Ok(turned.opened)
    }

    /// Keeps the unused part of `received`.
    fn keep(&mut self, received: &[u8], used: usize) {
        self.incoming.clear();
        if used == received.len() {
            self.incoming = Vec::new();
        } else {
            self.incoming.extend_from_slice(&received[used..]);
        }
    }

    /// Enciphers something.
    fn put(&mut self, want: Want<'_>) -> io::Result<()> {
        let mut incoming = std::mem::take(&mut self.incoming);
        let turned = self.turn(&mut incoming, &mut [], want);
        self.keep(&incoming, turned.as_ref().map_or(0, |turned| turned.used));
        turned.map(drop).map_err(broken)
    }

    /// Processes all complete records in `received`: their data goes to `buffer`, and beyond its
    /// end to the bytes for the next read; then does the work in `want`.
    ///
    /// After an error, the TLS alert for the other side waits to be sent.
    fn turn(
        &mut self,
        received: &mut [u8],
        buffer: &mut [u8],
        want: Want<'_>,
    ) -> Result<Turned, Error> {
        let Self { end, opened, outgoing, peer_ended, .. } = self;
        let mut turned = Turned { used: 0, opened: 0 };
        let mut step = Step { buffer, turned: &mut turned, opened, outgoing, peer_ended, want };
        let result = loop {
            let rest = &mut received[step.turned.used..];
            let done = match end {
                End::Dialled(end) => step.take(end.process_tls_records(rest)),
                End::Accepted(end) => step.take(end.process_tls_records(rest)),
            };
            match done {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // After an error only its alert may be produced.
        while result.is_err() && end.wants_write() {
            let processed = match end {
                End::Dialled(end) => step.take(end.process_tls_records(&mut [])),
                End::Accepted(end) => step.take(end.process_tls_records(&mut [])),
            };
            if processed != Ok(false) {
                break;
            }
        }
        result.map(|()| turned)
    }
}

/// The buffers of one turn.
struct Step<'a> {
    buffer: &'a mut [u8],
    turned: &'a mut Turned,
    opened: &'a mut Vec<u8>,
    outgoing: &'a mut Outgoing,
    peer_ended: &'a mut bool,
    want: Want<'a>,
}

impl Step<'_> {
    /// Processes one state of TLS; returns true if nothing more can be done with the bytes
    /// received.
    fn take<Data>(&mut self, status: UnbufferedStatus<'_, '_, Data>) -> Result<bool, Error> {
        let UnbufferedStatus { mut discard, state } = status;
        let done = match state {
            Err(error) => {
                self.turned.used += discard;
                return Err(error);
            }
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    self.open(record.payload);
                }
                false
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                self.outgoing.put(|space| match data.encode(space) {
                    Ok(written) => Ok(written),
                    Err(EncodeError::InsufficientSize(size)) => Err(Some(size.required_size)),
                    Err(EncodeError::AlreadyEncoded) => Err(None),
                })?;
                false
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                false
            }
            Ok(ConnectionState::PeerClosed) => {
                *self.peer_ended = true;
                false
            }
            Ok(ConnectionState::WriteTraffic(traffic)) => {
                self.put(traffic)?;
                true
            }
            Ok(ConnectionState::BlockedHandshake | ConnectionState::Closed) => true,
            Ok(_) => return Err(Error::General("early data, which nobody allows".to_owned())),
        };
        self.turned.used += discard;
        Ok(done)
    }

    /// Takes the data of a record.
    fn open(&mut self, payload: &[u8]) {
        let space = &mut self.buffer[self.turned.opened..];
        let fit = if self.opened.is_empty() { payload.len().min(space.len()) } else { 0 };
        space[..fit].copy_from_slice(&payload[..fit]);
        self.turned.opened += fit;
        self.opened.extend_from_slice(&payload[fit..]);
    }

    /// Enciphers the wanted data, once.
    fn put<Data>(&mut self, mut traffic: WriteTraffic<'_, Data>) -> Result<(), Error> {
        let size = |error| match error {
            EncryptError::InsufficientSize(size) => Some(size.required_size),
            EncryptError::EncryptExhausted => None,
        };
        match std::mem::replace(&mut self.want, Want::Nothing) {
            Want::Nothing => Ok(()),
            Want::Send(bytes) => {
                self.outgoing.put(|space| traffic.encrypt(bytes, space).map_err(size))
            }
            Want::End => self.outgoing.put(|space| traffic.queue_close_notify(space).map_err(size)),
        }
    }
}

impl Outgoing {
    const fn waits(&self) -> usize {
        self.filled - self.sent
    }

    /// Appends the bytes that `write` puts into the buffer that it gets, which grows if it asks for
    /// more.
    fn put(
        &mut self,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
    ) -> Result<(), Error> {
        if self.buffer.len() < BUFFER_BYTES {
            let mut buffer = take_buffer();
            buffer[..self.waits()].copy_from_slice(&self.buffer[self.sent..self.filled]);
            (self.filled, self.sent) = (self.waits(), 0);
            self.buffer = buffer;
        }
        loop {
            match write(&mut self.buffer[self.filled..]) {
                Ok(written) => {
                    self.filled += written;
                    return Ok(());
                }
                Err(Some(size)) if self.buffer.len() < self.filled + size => {
                    self.buffer.resize(self.filled + size, 0);
                }
                Err(_) => return Err(Error::General("no more can be enciphered".to_owned())),
            }
        }
    }

    /// Inserts `bytes` before the waiting bytes.
    fn put_first(&mut self, bytes: &[u8]) {
        let all = [bytes, &self.buffer[self.sent..self.filled]].concat();
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(buffer.len().max(all.len()), 0);
        buffer[..all.len()].copy_from_slice(&all);
        *self = Self { buffer, filled: all.len(), sent: 0 };
    }

    /// Sends all, and keeps no more memory than the rest needs.
    fn flush(&mut self, mut send: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        while self.sent < self.filled {
            match send(&self.buffer[self.sent..self.filled]) {
                Ok(sent) => self.sent += sent,
                Err(error) => {
                    if self.waits() <= self.buffer.len() / 4 {
                        let left = self.buffer[self.sent..self.filled].to_vec();
                        (self.filled, self.sent) = (left.len(), 0);
                        give_back(std::mem::replace(&mut self.buffer, left));
                    }
                    return Err(error);
                }
            }
        }
        (self.filled, self.sent) = (0, 0);
        give_back(std::mem::take(&mut self.buffer));
        Ok(())
    }
}

/// Returns the error for a connection that ended without `close_notify`.
pub(super) fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "ended without a word: cut off")
}

fn broken(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
