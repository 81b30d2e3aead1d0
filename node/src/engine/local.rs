//! Where datagrams of applications come from and go to.

use std::net::SocketAddr;

use tradewind_net::udp::{SendBatch, UdpOptions, UdpPort};

use crate::NodeError;
use crate::counts::{Counts, add};
use crate::mailbox::Held;

/// One place of an application.
pub(crate) enum Local {
    /// A UDP socket.
    Port(Box<Port>),
    /// A flow of an application that links this crate.
    Flow(Held),
}

/// A local socket and what waits to leave through it.
pub(crate) struct Port {
    port: UdpPort,
    out: SendBatch,
    waits: bool,
}

impl Local {
    pub(super) fn bind(address: SocketAddr) -> Result<Self, NodeError> {
        let port = UdpPort::bind(address, &UdpOptions::default())?;
        Ok(Self::Port(Box::new(Port { port, out: SendBatch::new(2), waits: false })))
    }

    /// The socket, if it is one.
    pub(crate) fn port(&self) -> Option<&UdpPort> {
        match self {
            Self::Port(local) => Some(&local.port),
            Self::Flow(_) => None,
        }
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.port().map(UdpPort::address)
    }

    pub(super) fn push(&mut self, counts: &Counts, to: SocketAddr, payload: &[u8]) {
        match self {
            Self::Port(local) => local.push(counts, to, payload),
            Self::Flow(held) => add(&counts.delivered, u64::from(held.0.deliver(payload))),
        }
    }

    pub(super) fn flush(&mut self, counts: &Counts) {
        if let Self::Port(local) = self {
            local.flush(counts);
        }
    }
}

impl Port {
    fn push(&mut self, counts: &Counts, to: SocketAddr, payload: &[u8]) {
        if self.out.is_full_for(to, payload.len()) {
            self.flush(counts);
        }
        if let Some(room) = self.out.push(to, payload.len()) {
            room.copy_from_slice(payload);
            self.waits = true;
        }
    }

    fn flush(&mut self, counts: &Counts) {
        if std::mem::take(&mut self.waits) {
            add(&counts.delivered, self.out.flush(&self.port).sent);
        }
    }
}
