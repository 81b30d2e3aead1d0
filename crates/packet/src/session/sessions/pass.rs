//! Forwards packets along overlay paths, by the train: checks the headers that a neighbour wrote,
//! and writes those for the next one.

use super::super::event::{DropReason, Now, SealError};
use super::super::passed::{Fate, alike, has_room};
use super::super::peer::{PeerId, Phase, Session};
use super::super::{Link, passed::Shared};
use super::{REJECT_COUNT, Sessions};

/// The first datagrams of a train, which have the same fate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Their length in bytes.
    pub bytes: usize,
    /// Their number.
    pub datagrams: usize,
    /// The neighbour that sent them and the label that they carry; `None` when they were dropped
    /// ([`Sessions::drops`]).
    pub from: Option<(PeerId, u32)>,
}

impl Sessions {
    /// Checks datagrams that came over `link` one behind the other, of `segment` bytes each but for
    /// the last, the first of which is a passed one. Returns how many of them belong together; the
    /// rest is for the next call.
    ///
    /// Returns `None` when the first is no passed datagram: it is one for
    /// [`Sessions::handle_datagram`].
    pub fn handle_passed(
        &mut self,
        now: Now,
        link: Link,
        train: &[u8],
        segment: usize,
    ) -> Option<Run> {
        let segment = segment.max(1);
        let (shared, bytes) = alike(train, segment)?;
        let run = self.admit(now, link, shared, (&train[..bytes], segment));
        Some(run.unwrap_or_else(|(reason, datagrams)| {
            self.drops[reason as usize] += datagrams as u64;
            Run { bytes: bytes.min(datagrams * segment), datagrams, from: None }
        }))
    }

    /// Admits the datagrams of a run; the error holds how many are dropped.
    fn admit(
        &mut self,
        now: Now,
        link: Link,
        shared: Shared,
        (train, segment): (&[u8], usize),
    ) -> Result<Run, (DropReason, usize)> {
        let (all, id) = (train.len().div_ceil(segment), shared.receiver);
        let Some(Session { phase: Phase::Open { keys, .. }, window, .. }) =
            self.sessions.get_mut(id)
        else {
            return Err((DropReason::UnknownSession, all));
        };
        let before = window.next();
        let (fate, datagrams) =
            keys.receive_header.check(shared, (train, segment), window, &mut self.tags);
        match fate {
            Fate::Admitted => {}
            Fate::Forged => return Err((DropReason::AuthenticationFailed, datagrams)),
            Fate::Replayed => return Err((DropReason::Replayed, datagrams)),
        }
        let is_newest = window.next() > before;
        let peer = self.note_arrival(now, (link, id), is_newest, train.len().min(segment));
        let peer = peer.map_err(|reason| (reason, datagrams))?;
        let bytes = train.len().min(datagrams * segment);
        Ok(Run { bytes, datagrams, from: Some((peer, shared.label)) })
    }

    /// Writes the headers of datagrams that a neighbour is to forward under `label`, one behind the
    /// other, of `segment` bytes each but for the last:
    /// [`PASSED_BYTES`](super::super::PASSED_BYTES) to be written, then the body. Returns the link
    /// to the neighbour.
    ///
    /// # Errors
    /// [`SealError::NoSession`] before a handshake and when keys have expired;
    /// [`SealError::Length`] when a datagram has no body.
    pub fn pass(
        &mut self,
        peer: PeerId,
        label: u32,
        train: &mut [u8],
        segment: usize,
    ) -> Result<Link, SealError> {
        if !has_room(train, segment) {
            return Err(SealError::Length(train.len().min(segment)));
        }
        let peer = self.peers.get(peer.0).ok_or(SealError::NoSession)?;
        let session = peer.sending.and_then(|id| self.sessions.get_mut(id));
        let count = train.len().div_ceil(segment) as u64;
        let session = session.filter(|session| session.sealed + count <= REJECT_COUNT);
        let Some(Session { phase: Phase::Open { theirs, keys }, sealed, .. }) = session else {
            return Err(SealError::NoSession);
        };
        let shared = Shared { receiver: *theirs, label };
        keys.send_header.stamp(shared, *sealed, (train, segment), &mut self.tags);
        *sealed += count;
        Ok(peer.link)
    }
}
