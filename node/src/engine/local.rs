//! Sockets towards applications.

use std::net::SocketAddr;

use tradewind_net::udp::{SendBatch, UdpOptions, UdpPort};

use crate::NodeError;
use crate::counts::{Counts, add};

/// A local socket and what waits to leave through it.
pub(crate) struct Local {
    pub(crate) port: UdpPort,
    out: SendBatch,
    waits: bool,
}

impl Local {
    pub(super) fn bind(address: SocketAddr) -> Result<Self, NodeError> {
        let port = UdpPort::bind(address, &UdpOptions::default())?;
        Ok(Self { port, out: SendBatch::new(2), waits: false })
    }

    pub(super) fn push(&mut self, counts: &Counts, to: SocketAddr, payload: &[u8]) {
        if self.out.is_full_for(to, payload.len()) {
            self.flush(counts);
        }
        if let Some(room) = self.out.push(to, payload.len()) {
            room.copy_from_slice(payload);
            self.waits = true;
        }
    }

    pub(super) fn flush(&mut self, counts: &Counts) {
        if std::mem::take(&mut self.waits) {
            add(&counts.delivered, self.out.flush(&self.port).sent);
        }
    }
}
