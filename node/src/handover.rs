//! What one process leaves to the next: sockets that others know, and TUN devices, by name. Nobody has to learn a new address, and what comes while
//! neither reads waits in them.
//!
//! The next one reads nothing before the one before has ended: an answer to one that the other fetches is lost. It knows by a pipe of which the one before
//! has the other end.

use std::io::PipeWriter;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use tradewind_net::NetError;
use tradewind_net::epoll::Epoll;
use tradewind_net::tun::{Offloads, Tun};
use tradewind_net::udp::{UdpOptions, UdpPort};
use tradewind_units::Duration;

/// The beginning of all names.
pub const PREFIX: &str = "packets ";
/// What the pipe is called: its end comes with the node's.
const END: &str = "packets end";
/// Longest wait for the end of the one before. Chosen: a worker looks whether it is to end twenty times a second.
const MOST_WAIT: Duration = Duration::from_secs(2);

/// A socket or device, and what it is called.
pub type Named = (String, OwnedFd);

/// What was left, as far as it is not taken yet, and what is to be left.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    inherited: Vec<Named>,
    left: Vec<Named>,
    /// Sockets at ports that the system chose: of them only their order is known.
    unnumbered: usize,
}

impl Handover {
    pub(crate) fn of(inherited: Vec<Named>) -> Self {
        Self { inherited, ..Self::default() }
    }

    /// A worker's socket where neighbours reach it, which share `listen`; `address` is the same with the port that the first of them got.
    pub(crate) fn neighbours(
        &mut self,
        listen: SocketAddr,
        address: SocketAddr,
        options: &UdpOptions,
    ) -> Result<UdpPort, NetError> {
        self.open(format!("{PREFIX}{listen}"), address, options)
    }

    /// Where applications write to, or where their datagrams are led.
    pub(crate) fn applications(
        &mut self,
        address: SocketAddr,
        options: &UdpOptions,
    ) -> Result<UdpPort, NetError> {
        let name = if address.port() == 0 {
            self.unnumbered += 1;
            format!("{PREFIX}applications {} {address}", self.unnumbered)
        } else {
            format!("{PREFIX}applications {address}")
        };
        self.open(name, address, options)
    }

    pub(crate) fn device(&mut self, name: &str) -> Result<Tun, NetError> {
        let called = format!("{PREFIX}tun {name}");
        let device = match self.take(&called) {
            Some(device) => Tun::adopt(device, name, Offloads::None)?,
            None => Tun::create(name, Offloads::None)?,
        };
        let held = device.hold().map_err(|error| NetError::system("hold a TUN device", error))?;
        self.left.push((called, held));
        Ok(device)
    }

    /// What the next process is to get, and what the node keeps until it ends, and of the one before what tells of its end. What nobody took of that
    /// one is closed.
    pub(crate) fn finish(mut self) -> std::io::Result<(Vec<Named>, PipeWriter, Option<Before>)> {
        let before = self.take(END).map(Before);
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

/// The node of the process before this one.
#[derive(Debug)]
pub(crate) struct Before(OwnedFd);

impl Before {
    /// Waits until it has ended, or takes too long for that.
    pub(crate) fn wait(self) -> Result<(), NetError> {
        let mut epoll = Epoll::new()?;
        epoll.watch(&self.0, 0)?;
        if epoll.wait(Some(MOST_WAIT))?.next().is_none() {
            tracing::warn!("the packets of the process before this one do not end");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(handover: &mut Handover, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        let options = UdpOptions::default();
        let open = |address: &SocketAddr| handover.applications(*address, &options).unwrap();
        addresses.iter().map(open).map(|port| port.address()).collect()
    }

    #[test]
    fn the_next_process_has_the_same_addresses_also_where_the_system_chose_them() {
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let options = UdpOptions { reuse_port: true, ..UdpOptions::default() };
        let neighbours = |handover: &mut Handover| {
            let first = handover.neighbours(any, any, &options).unwrap().address();
            [first, handover.neighbours(any, first, &options).unwrap().address()]
        };
        let mut handover = Handover::default();
        let (applications, shared) = (ports(&mut handover, &[any, any]), neighbours(&mut handover));
        assert_ne!(applications[0], applications[1]);
        assert_eq!(shared[0], shared[1]);
        // Twice, for who has inherited hands on as well.
        for _ in 0..2 {
            handover = Handover::of(handover.finish().unwrap().0);
            assert_eq!(ports(&mut handover, &[any, any]), applications);
            assert_eq!(neighbours(&mut handover), shared);
        }
    }

    #[test]
    fn what_nobody_takes_is_closed() {
        let mut handover = Handover::default();
        let address = ports(&mut handover, &[([127, 0, 0, 1], 0).into()])[0];
        assert!(UdpPort::bind(address, &UdpOptions::default()).is_err(), "it is held");
        let next = Handover::of(handover.finish().unwrap().0);
        assert_eq!(next.finish().unwrap().0.len(), 1, "its own end");
        assert!(UdpPort::bind(address, &UdpOptions::default()).is_ok());
    }

    #[test]
    fn the_next_one_waits_until_the_one_before_has_ended() {
        let (left, life, before) = Handover::default().finish().unwrap();
        assert!(before.is_none());
        let before = Handover::of(left).finish().unwrap().2.unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                before.wait().unwrap();
                tell.send("waited").unwrap();
            });
            assert!(told.try_recv().is_err());
            drop(life);
            assert_eq!(told.recv(), Ok("waited"));
        });
    }
}
