//! Sockets towards neighbours.

use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_net::udp::{SendBatch, UdpPort};

use crate::counts::{Counts, add};

/// Trains that are gathered before they leave.
const GROUPS: usize = 64;

/// A socket towards neighbours and what waits to leave through it.
pub(super) struct Outlet {
    pub(super) port: UdpPort,
    out: SendBatch,
}

/// Who connects to this worker comes through the shared address, where the kernel chose the worker; who this worker
/// connects to must answer to it alone, so with several workers that takes a socket of its own.
pub(super) struct Sockets {
    pub(super) shared: Outlet,
    pub(super) own: Option<Outlet>,
    pub(super) counts: Arc<Counts>,
}

impl Sockets {
    /// Room for a datagram of `length` bytes.
    pub(super) fn room(
        &mut self,
        is_ours: bool,
        to: SocketAddr,
        length: usize,
    ) -> Option<&mut [u8]> {
        let outlet = match &mut self.own {
            Some(own) if is_ours => own,
            _ => &mut self.shared,
        };
        if outlet.out.is_full_for(to, length) {
            outlet.send(&self.counts);
        }
        outlet.out.push(to, length)
    }

    pub(super) fn flush(&mut self) {
        self.shared.send(&self.counts);
        if let Some(own) = &mut self.own {
            own.send(&self.counts);
        }
    }
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
