//! Sockets towards neighbours.

use std::ops::Range;
use std::sync::Arc;

use tradewind_net::udp::{SendBatch, Target, Train, UdpPort};
use tradewind_packet::session::AddressPair;

use crate::counts::{Counts, add};

/// Most trains that are gathered before they leave.
const GROUPS: usize = 64;
/// Datagrams from which a train is sent as one. Chosen: joining fewer with others saves more.
const MANY: usize = 16;

/// Bytes of the UDP and IP headers before a datagram, for IPv4 and for IPv6.
const HEADERS: [u64; 2] = [28, 48];

/// A socket towards neighbours and its send queue.
pub(super) struct Outlet {
    pub(super) port: UdpPort,
    out: SendBatch,
}

/// The sockets towards neighbours. Neighbours that connect to this worker come through the shared
/// address, where the kernel chose the worker; those that this worker connects to must answer to it
/// alone, which with several workers takes a socket of its own.
pub(super) struct Sockets {
    pub(super) shared: Outlet,
    pub(super) own: Option<Outlet>,
    pub(super) counts: Arc<Counts>,
    /// Bytes sent since the last call of `take_left`, with all headers.
    left: u64,
}

impl Sockets {
    pub(super) fn new(shared: Outlet, own: Option<Outlet>, counts: Arc<Counts>) -> Self {
        Self { shared, own, counts, left: 0 }
    }

    /// Returns the bytes sent since the last call, with all headers.
    pub(super) fn take_left(&mut self) -> u64 {
        std::mem::take(&mut self.left)
    }

    fn count_left(&mut self, to: AddressPair, datagrams: usize, bytes: usize) {
        let is_ipv6 = to.remote.ip().to_canonical().is_ipv6();
        self.left += HEADERS[usize::from(is_ipv6)] * datagrams as u64 + bytes as u64;
    }

    /// Returns room for a datagram of `length` bytes in the send queue.
    pub(super) fn reserve(
        &mut self,
        is_ours: bool,
        to: AddressPair,
        length: usize,
    ) -> Option<&mut [u8]> {
        self.count_left(to, 1, length);
        let to = target(to);
        let (outlet, counts) = self.outlet(is_ours);
        if outlet.out.is_full_for(to, length) {
            outlet.send(counts);
        }
        outlet.out.push(to, length)
    }

    /// Sends a datagram of `length` bytes, if `write` writes one.
    pub(super) fn put(
        &mut self,
        is_ours: bool,
        to: AddressPair,
        length: usize,
        write: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let target = target(to);
        let (outlet, counts) = self.outlet(is_ours);
        if outlet.out.is_full_for(target, length) {
            outlet.send(counts);
        }
        let is_put = outlet.out.push_if(target, length, write);
        if is_put {
            self.count_left(to, 1, length);
        }
        is_put
    }

    /// Sends a part of a train: many datagrams as one, if they are all of it; others are copied,
    /// and go with the queued ones.
    pub(super) fn send_train(
        &mut self,
        is_ours: bool,
        to: AddressPair,
        (train, part): (&mut Train<'_>, Range<usize>),
    ) {
        if train.count() >= MANY && part == (0..train.bytes().len()) {
            let (outlet, counts) = self.outlet(is_ours);
            if outlet.out.is_full() {
                outlet.send(counts);
            }
            let (datagrams, bytes) = (train.count(), train.bytes().len());
            if outlet.out.take(target(to), train) {
                return self.count_left(to, datagrams, bytes);
            }
        }
        let segment = train.segment();
        for datagram in train.bytes()[part].chunks(segment) {
            if let Some(buffer) = self.reserve(is_ours, to, datagram.len()) {
                buffer.copy_from_slice(datagram);
            }
        }
    }

    /// Returns the socket for a neighbour, by whether this node connects to it.
    fn outlet(&mut self, is_ours: bool) -> (&mut Outlet, &Counts) {
        let outlet = match &mut self.own {
            Some(own) if is_ours => own,
            _ => &mut self.shared,
        };
        (outlet, &self.counts)
    }

    pub(super) fn flush(&mut self) {
        self.shared.send(&self.counts);
        if let Some(own) = &mut self.own {
            own.send(&self.counts);
        }
    }
}

/// Returns a datagram's destination, and its source: the address that the neighbour writes to.
fn target(AddressPair { remote: to, local: from }: AddressPair) -> Target {
    Target { to, from }
}

impl Outlet {
    pub(super) fn new(port: UdpPort) -> Self {
        Self { port, out: SendBatch::new(GROUPS) }
    }

    fn send(&mut self, counts: &Counts) {
        if self.out.is_empty() {
            return;
        }
        let outcome = self.out.flush(&self.port);
        add(&counts.sent, outcome.sent);
        add(&counts.unsent, outcome.full + outcome.too_long + outcome.refused);
    }
}

#[cfg(test)]
mod tests;
