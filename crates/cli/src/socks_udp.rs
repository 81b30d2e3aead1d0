//! UDP datagrams of SOCKS5 clients, carried by the packet plane.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use tradewind_gateway::{DatagramFlow, Datagrams};
use tradewind_node::{DeliveryPolicy, Flow, FlowError, FlowOpener};

/// The opener of flows of the packet plane, and the delivery policy of all these datagrams.
pub(crate) struct SocksUdp {
    pub(crate) flows: FlowOpener,
    pub(crate) delivery: DeliveryPolicy,
}

impl Datagrams for SocksUdp {
    fn open(&self, client: SocketAddr, to: SocketAddr) -> Result<Box<dyn DatagramFlow>, String> {
        let flow = self.flows.begin(client, to, self.delivery.clone());
        let flow = flow.map_err(|error| error.to_string())?;
        Ok(Box::new(Carried(flow)))
    }
}

/// One flow.
struct Carried(Flow);

impl AsFd for Carried {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl DatagramFlow for Carried {
    fn is_open(&self) -> Result<bool, String> {
        self.0.wait_open(Duration::ZERO).map_err(|error| error.to_string())
    }

    fn send(&self, datagram: &[u8]) -> Result<(), String> {
        match self.0.send(datagram) {
            // Dropped, as a socket would.
            Ok(()) | Err(FlowError::Full | FlowError::TooLong(_)) => Ok(()),
            Err(error @ FlowError::Ended(_)) => Err(error.to_string()),
        }
    }

    fn receive(&self) -> Result<Option<Vec<u8>>, String> {
        self.0.receive(Duration::ZERO).map_err(|error| error.to_string())
    }
}
