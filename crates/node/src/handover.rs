//! Handover of sockets with known addresses, and of TUN devices, from one process to the next, by
//! name. So no address changes, and datagrams that come while neither process reads wait in the
//! sockets.
//!
//! The next process reads nothing before the previous one has ended: a reply to one of them would
//! be lost if the other received it. It waits on a pipe of which the previous process holds the
//! other end.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::PipeWriter;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use tradewind_net::epoll::Epoll;
use tradewind_net::tun::{Offloads, Tun};
use tradewind_net::udp::{UdpOptions, UdpPort};
use tradewind_net::{NetError, clock};
use tradewind_units::Duration;

/// The prefix of all names.
pub const PREFIX: &str = "packets ";
/// The name of the pipe, which closes when the node ends.
const END: &str = "packets end";
/// Longest wait for the end of the previous process. Chosen: its workers end within a twentieth of
/// a second, and removing rules takes programs.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// A socket or device, with its name.
pub type Named = (String, OwnedFd);

/// The inherited descriptors that are not in use yet, and those for the next process.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    inherited: Vec<Named>,
    left: Vec<Named>,
    /// The number of sockets of each name at ports that the system chose.
    nameless: BTreeMap<String, usize>,
}

impl Handover {
    pub(crate) fn of(inherited: Vec<Named>) -> Self {
        Self { inherited, ..Self::default() }
    }

    /// Opens a worker's socket for neighbours; the workers share `listen`. `address` is the same
    /// with the port that the first of them got.
    pub(crate) fn neighbours(
        &mut self,
        listen: SocketAddr,
        address: SocketAddr,
        options: &UdpOptions,
    ) -> Result<UdpPort, NetError> {
        self.open(format!("{PREFIX}{listen}"), address, options)
    }

    /// Opens a socket that applications write to, or to which their datagrams are redirected, for
    /// the destination `to`: at a port that the system chooses, the socket is named by that.
    pub(crate) fn applications(
        &mut self,
        (address, to): (SocketAddr, impl Display),
        options: &UdpOptions,
    ) -> Result<UdpPort, NetError> {
        let mut name = format!("{PREFIX}applications {address}");
        if address.port() == 0 {
            name = format!("{name} {to}");
            let before = self.nameless.entry(name.clone()).or_default();
            *before += 1;
            name = format!("{name} {before}");
        }
        self.open(name, address, options)
    }

    pub(crate) fn device(&mut self, name: &str) -> Result<Tun, NetError> {
        let called = format!("{PREFIX}tun {name}");
        let left = self.take(&called).map(|device| Tun::adopt(device, name, Offloads::None));
        let device = match left {
            Some(Ok(device)) => device,
            // It was removed: an upgrade is one way to have it again.
            Some(Err(error)) => {
                tracing::warn!(%error, "a TUN device is made anew");
                Tun::create(name, Offloads::None)?
            }
            None => Tun::create(name, Offloads::None)?,
        };
        let held = device.hold().map_err(|error| NetError::system("hold a TUN device", error))?;
        self.left.push((called, held));
        Ok(device)
    }

    /// Returns the descriptors for the next process, the pipe's end that the node keeps until it
    /// ends, and the handle of the previous process. Unused descriptors of that one are closed.
    pub(crate) fn finish(
        mut self,
    ) -> std::io::Result<(Vec<Named>, PipeWriter, Option<Predecessor>)> {
        let before = self.take(END).map(Predecessor);
        let (end, life) = std::io::pipe()?;
        self.left.push((END.to_owned(), end.into()));
        Ok((self.left, life, before))
    }

    fn open(
        &mut self,
        name: String,
        address: SocketAddr,
        options: &UdpOptions,
    ) -> Result<UdpPort, NetError> {
        let port = match self.take(&name) {
            Some(socket) => UdpPort::adopt(socket, options)?,
            None => UdpPort::bind(address, options)?,
        };
        let held = port.hold().map_err(|error| NetError::system("hold a socket", error))?;
        self.left.push((name, held));
        Ok(port)
    }

    fn take(&mut self, name: &str) -> Option<OwnedFd> {
        let at = self.inherited.iter().position(|(called, _)| called == name)?;
        Some(self.inherited.remove(at).1)
    }
}

/// The node of the previous process.
#[derive(Debug)]
pub(crate) struct Predecessor(OwnedFd);

impl Predecessor {
    /// Waits until it has ended, up to a limit.
    pub(crate) fn wait(self) {
        if let Err(error) = self.wait_for(MAX_WAIT) {
            tracing::warn!(%error, "the packets of the process before this one do not end");
        }
    }

    fn wait_for(&self, span: Duration) -> Result<(), NetError> {
        let mut epoll = Epoll::new()?;
        epoll.watch(&self.0, 0)?;
        let begun = clock::monotonic();
        loop {
            let left = span.saturating_sub(clock::monotonic().since(begun));
            // A signal ends a wait early.
            if epoll.wait(Some(left))?.next().is_some() {
                return Ok(());
            }
            if left.is_zero() {
                let source = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(NetError::system("wait for their end", source));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// Returns the addresses of the sockets for the destinations `whose`.
    fn ports(handover: &mut Handover, whose: &[u8]) -> Vec<SocketAddr> {
        let options = UdpOptions::default();
        let open = |to: &u8| handover.applications((ANY, to), &options).unwrap();
        whose.iter().map(open).map(|port| port.address()).collect()
    }

    #[test]
    fn addresses_survive_handover() {
        let options = UdpOptions { reuse_port: true, ..UdpOptions::default() };
        let neighbours = |handover: &mut Handover| {
            let first = handover.neighbours(ANY, ANY, &options).unwrap().address();
            [first, handover.neighbours(ANY, first, &options).unwrap().address()]
        };
        let mut handover = Handover::default();
        let (applications, shared) = (ports(&mut handover, &[1, 2, 2]), neighbours(&mut handover));
        assert_ne!(applications[1], applications[2]);
        assert_eq!(shared[0], shared[1]);
        // Twice, since one that has inherited hands over as well.
        for _ in 0..2 {
            handover = Handover::of(handover.finish().unwrap().0);
            assert_eq!(ports(&mut handover, &[1, 2, 2]), applications);
            assert_eq!(neighbours(&mut handover), shared);
        }
    }

    #[test]
    fn sockets_match_their_destination() {
        let mut handover = Handover::default();
        let before = ports(&mut handover, &[1, 2]);
        let mut handover = Handover::of(handover.finish().unwrap().0);
        let after = ports(&mut handover, &[2, 3]);
        assert_eq!(after[0], before[1]);
        assert_ne!(after[1], before[0]);
    }

    #[test]
    fn unclaimed_sockets_are_closed() {
        let mut handover = Handover::default();
        let address = ports(&mut handover, &[1])[0];
        assert!(UdpPort::bind(address, &UdpOptions::default()).is_err(), "it is held");
        let next = Handover::of(handover.finish().unwrap().0);
        assert_eq!(next.finish().unwrap().0.len(), 1, "its own end");
        assert!(UdpPort::bind(address, &UdpOptions::default()).is_ok());
    }

    #[test]
    fn successor_waits_for_predecessor() {
        let (left, life, before) = Handover::default().finish().unwrap();
        assert!(before.is_none());
        let before = Handover::of(left).finish().unwrap().2.unwrap();
        let early = before.wait_for(Duration::from_millis(1)).unwrap_err().to_string();
        assert!(early.contains("timed out"), "{early}");
        drop(life);
        before.wait_for(Duration::ZERO).unwrap();
    }
}
