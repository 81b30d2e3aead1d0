//! The local side of conversations: sockets, flows and devices of applications.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tradewind_net::interception::CARRIED_HOPS;
use tradewind_net::tun::Tun;
use tradewind_net::udp::{SendBatch, Target, UdpOptions, UdpPort};

use super::intercepted::InterceptedLocal;
use super::tunnel::{TunnelLocal, put_out};
use crate::NodeError;
use crate::counts::{Counts, add};
use crate::handover::Handover;
use crate::mailbox::MailboxGuard;

/// The local side of a conversation or route.
pub(crate) enum Local {
    /// A UDP socket.
    Port(Box<Port>),
    /// A flow of an application that links this crate.
    Flow(MailboxGuard),
    /// A listener for intercepted datagrams.
    Intercepted(Box<InterceptedLocal>),
    /// A TUN device into which packets to others are routed.
    Tunnel(Box<TunnelLocal>),
    /// The TUN device to which packets of others are delivered.
    Device(Arc<Tun>),
    /// None: a group's head has the one for all members.
    Nowhere,
}

/// A local socket and its queue of datagrams to send.
pub(crate) struct Port {
    port: UdpPort,
    out: SendBatch,
    waits: bool,
}

/// Returns the options of a socket for deliveries, which no gateway intercepts.
fn of_deliveries(mark: Option<u32>) -> UdpOptions {
    UdpOptions { mark, hops: Some(CARRIED_HOPS), ..UdpOptions::default() }
}

/// Returns the unspecified address of the same family.
pub(super) fn any_like(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

impl Local {
    /// Opens the configured socket at `address` that applications write to, for datagrams to `to`.
    /// It reports code points where they are needed.
    pub(super) fn open(
        handover: &mut Handover,
        (address, to): (SocketAddr, SocketAddr),
        tells_dscp: bool,
        mark: Option<u32>,
    ) -> Result<Self, NodeError> {
        let options = UdpOptions { tells_dscp, tells_age: true, ..of_deliveries(mark) };
        let port = handover.applications((address, to), &options)?;
        Ok(Self::Port(Box::new(Port::new(port))))
    }

    /// Opens a socket of one conversation, which marks what it sends.
    pub(super) fn bind(
        address: SocketAddr,
        tells_dscp: bool,
        mark: Option<u32>,
    ) -> Result<Self, NodeError> {
        let options = UdpOptions { tells_dscp, tells_age: true, ..of_deliveries(mark) };
        let port = UdpPort::bind(address, &options)?;
        Ok(Self::Port(Box::new(Port::new(port))))
    }

    /// Opens such a socket on another host's address, which exchanges datagrams with `to` alone.
    pub(super) fn bind_as(
        address: SocketAddr,
        to: SocketAddr,
        mark: Option<u32>,
    ) -> Result<Self, NodeError> {
        let (transparent, reuse_port, tells_age) = (true, true, true);
        let tells_hops = true;
        let more = of_deliveries(mark);
        let options = UdpOptions { transparent, reuse_port, tells_age, tells_hops, ..more };
        let port = UdpPort::bind(address, &options)?;
        port.connect(to)?;
        Ok(Self::Port(Box::new(Port::new(port))))
    }

    /// Returns whether datagrams there go to their own destinations.
    pub(super) fn is_intercepted(&self) -> bool {
        matches!(self, Self::Intercepted(_) | Self::Tunnel(_))
    }

    /// Returns whether it intercepts datagrams to `to`.
    pub(super) fn takes(&self, to: SocketAddr) -> bool {
        match self {
            Self::Intercepted(intercepted) => intercepted.takes(to),
            Self::Tunnel(tunnel) => tunnel.takes(to.ip()),
            Self::Port(_) | Self::Flow(_) | Self::Device(_) | Self::Nowhere => false,
        }
    }

    /// Begins a conversation with `to`; `None` when replies could not be sent.
    pub(super) fn begin(&mut self, to: SocketAddr) -> Option<()> {
        match self {
            Self::Intercepted(intercepted) => intercepted.begin(to),
            Self::Port(_) | Self::Flow(_) | Self::Tunnel(_) | Self::Device(_) | Self::Nowhere => {
                Some(())
            }
        }
    }

    /// Cleans up after the last conversation with `to`.
    pub(super) fn end(&mut self, to: SocketAddr) {
        if let Self::Intercepted(intercepted) = self {
            intercepted.end(to);
        }
    }

    /// Returns the socket, if it is one.
    pub(crate) fn port(&self) -> Option<&UdpPort> {
        match self {
            Self::Port(local) => Some(&local.port),
            Self::Intercepted(intercepted) => Some(&intercepted.listener),
            Self::Flow(_) | Self::Tunnel(_) | Self::Device(_) | Self::Nowhere => None,
        }
    }

    /// Returns the TUN device that packets are read from, if it is one.
    pub(crate) fn tunnel(&self) -> Option<&Arc<Tun>> {
        match self {
            Self::Tunnel(tunnel) => Some(&tunnel.device),
            Self::Port(_)
            | Self::Flow(_)
            | Self::Intercepted(_)
            | Self::Device(_)
            | Self::Nowhere => None,
        }
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.port().map(UdpPort::address)
    }

    /// Sends a datagram to `to`, from the address that `to` holds; a reply to an intercepted one
    /// leaves from the address `from`. A whole packet must be one between the two.
    pub(super) fn push(
        &mut self,
        counts: &Counts,
        from: Option<SocketAddr>,
        to: Target,
        payload: &[u8],
    ) {
        match self {
            Self::Intercepted(intercepted) => intercepted.push(counts, from, to.to, payload),
            Self::Port(local) => local.push(counts, to, payload),
            Self::Flow(held) => add(&counts.delivered, u64::from(held.0.deliver(payload))),
            Self::Tunnel(tunnel) => put_out(&tunnel.device, counts, (from, to.to), payload),
            Self::Device(device) => put_out(device, counts, (from, to.to), payload),
            Self::Nowhere => {}
        }
    }

    pub(super) fn flush(&mut self, counts: &Counts) {
        match self {
            Self::Port(local) => local.flush(counts),
            Self::Intercepted(intercepted) => intercepted.flush(counts),
            Self::Flow(_) | Self::Tunnel(_) | Self::Device(_) | Self::Nowhere => {}
        }
    }
}

impl Port {
    pub(super) fn new(port: UdpPort) -> Self {
        Self { port, out: SendBatch::new(2), waits: false }
    }

    pub(super) fn push(&mut self, counts: &Counts, to: impl Into<Target>, payload: &[u8]) {
        let to = to.into();
        if self.out.is_full_for(to, payload.len()) {
            self.flush(counts);
        }
        if let Some(buffer) = self.out.push(to, payload.len()) {
            buffer.copy_from_slice(payload);
            self.waits = true;
        }
    }

    pub(super) fn flush(&mut self, counts: &Counts) {
        if std::mem::take(&mut self.waits) {
            add(&counts.delivered, self.out.flush(&self.port).sent);
        }
    }
}
