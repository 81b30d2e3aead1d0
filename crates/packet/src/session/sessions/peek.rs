//! Opens datagrams without changing state, to check that a payload that others kept or solved is
//! what its sender sealed.

use super::super::event::Opened;
use super::super::peer::Phase;
use super::super::wire::{self, DATA, Datagram, HEADER_BYTES};
use super::Sessions;

impl Sessions {
    /// Opens a copy of a data datagram, in `copy`; returns `None` when it is not what a neighbour
    /// sealed.
    ///
    /// The replay window is not changed: [`Sessions::handle_datagram`] accepts the datagram
    /// afterwards.
    #[must_use]
    pub fn peek(&self, datagram: &[u8], copy: &mut Vec<u8>) -> Option<Opened> {
        let Some(Datagram::Sealed { receiver, counter }) = wire::cut(datagram) else { return None };
        let session = self.sessions.get(receiver).filter(|_| datagram[0] == DATA)?;
        let Phase::Open { keys, .. } = &session.phase else { return None };
        copy.clear();
        copy.extend_from_slice(datagram);
        let length = keys.open(counter, copy)?;
        Some(Opened { peer: session.peer, payload: HEADER_BYTES..HEADER_BYTES + length })
    }
}
