//! Datagrams between flows of applications that link this crate and the worker that carries them.
//!
//! Neither side ever waits for the other: what finds a queue full is refused at the flow's side and
//! dropped at the worker's, as a socket would do it. A bell tells whoever sleeps that a queue is no
//! longer empty.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tradewind_net::clock;
use tradewind_net::epoll::Waker;
use tradewind_units::Duration;

use crate::NodeError;
use crate::config::{DeliveryPolicy, NodeConfig};
use crate::listener::HeldQueue;
use crate::membership::Members;
use crate::status::FlowStatus;

/// Datagrams in either queue of a flow at most. Chosen: 10 ms of 100,000 packets a second.
const MOST_DATAGRAMS: usize = 1024;

/// The two queues of a flow, and what its worker tells of it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inside: Mutex<Inside>,
    changed: Condvar,
    /// Rung while something is there for the flow.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Inside {
    /// To the application.
    incoming: VecDeque<Vec<u8>>,
    /// From it.
    outgoing: Vec<Outgoing>,
    /// Those that found `incoming` full.
    overrun: u64,
    /// The far endpoint has agreed on keys.
    is_open: bool,
    /// Why nothing moves any more.
    end: Option<&'static str>,
    status: Vec<FlowStatus>,
}

/// A datagram of an application, on its way to the worker.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    /// The application has marked it.
    pub(crate) is_vital: bool,
}

/// What became of a datagram that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// It waits; `is_first`: as the only one, so the worker is to be told.
    Waits { is_first: bool },
    /// There is no room.
    Full,
    /// The flow has ended.
    Ended(&'static str),
}

/// What came for a flow.
pub(crate) enum Got {
    Datagram(Vec<u8>),
    Nothing,
    Ended(&'static str),
}

impl Mailbox {
    pub(crate) fn new() -> Result<Self, NodeError> {
        let (inside, changed) = (Mutex::default(), Condvar::new());
        Ok(Self { inside, changed, waker: Waker::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of the flow: hands a datagram to the worker.
    pub(crate) fn put(&self, datagram: &[u8], is_vital: bool) -> Put {
        let mut inside = self.lock();
        if let Some(why) = inside.end {
            return Put::Ended(why);
        }
        if inside.outgoing.len() == MOST_DATAGRAMS {
            return Put::Full;
        }
        inside.outgoing.push(Outgoing { bytes: datagram.to_vec(), is_vital });
        Put::Waits { is_first: inside.outgoing.len() == 1 }
    }

    /// Of the worker: exchanges all that the flow sends for `emptied`.
    pub(crate) fn collect(&self, emptied: &mut Vec<Outgoing>) {
        emptied.clear();
        std::mem::swap(&mut self.lock().outgoing, emptied);
    }

    /// Of the worker: hands a datagram to the flow; `false` when there was no room.
    pub(crate) fn deliver(&self, datagram: &[u8]) -> bool {
        let mut inside = self.lock();
        if inside.incoming.len() == MOST_DATAGRAMS {
            inside.overrun += 1;
            return false;
        }
        inside.incoming.push_back(datagram.to_vec());
        self.wake(&inside);
        true
    }

    /// Of the flow: the oldest datagram, once there is one, within `timeout`.
    pub(crate) fn get(&self, timeout: Duration) -> Got {
        let mut inside =
            self.wait(timeout, |inside| !inside.incoming.is_empty() || inside.end.is_some());
        let datagram = inside.incoming.pop_front();
        if inside.incoming.is_empty() && inside.end.is_none() {
            self.waker.silence();
        }
        match (datagram, inside.end) {
            (Some(datagram), _) => Got::Datagram(datagram),
            (None, Some(why)) => Got::Ended(why),
            (None, None) => Got::Nothing,
        }
    }

    /// Of the flow: whether the far endpoint has agreed on keys, or does within `timeout`.
    pub(crate) fn wait_open(&self, timeout: Duration) -> Result<bool, &'static str> {
        let inside = self.wait(timeout, |inside| inside.is_open || inside.end.is_some());
        inside.end.map_or(Ok(inside.is_open), Err)
    }

    /// Of the worker: whether the far endpoint has agreed on keys.
    pub(crate) fn set_open(&self, is_open: bool) {
        let mut inside = self.lock();
        if inside.is_open != is_open {
            inside.is_open = is_open;
            self.changed.notify_all();
        }
    }

    pub(crate) fn set_status(&self, status: &[FlowStatus]) {
        self.lock().status = status.to_vec();
    }

    pub(crate) fn status(&self) -> Vec<FlowStatus> {
        self.lock().status.clone()
    }

    pub(crate) fn overrun(&self) -> u64 {
        self.lock().overrun
    }

    /// Nothing moves any more; the last reason stays.
    pub(crate) fn end(&self, why: &'static str) {
        let mut inside = self.lock();
        inside.end = Some(why);
        self.wake(&inside);
    }

    fn wake(&self, _locked: &MutexGuard<'_, Inside>) {
        self.waker.ring();
        self.changed.notify_all();
    }

    fn wait(&self, timeout: Duration, holds: impl Fn(&Inside) -> bool) -> MutexGuard<'_, Inside> {
        let begun = clock::monotonic();
        let mut inside = self.lock();
        loop {
            let left = timeout.saturating_sub(clock::monotonic().since(begun));
            if holds(&inside) || left.is_zero() {
                return inside;
            }
            let waited = self.changed.wait_timeout(inside, left);
            inside = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// The worker's hold on a flow: whatever ends the worker ends the flow.
#[derive(Debug)]
pub(crate) struct Held(pub(crate) Arc<Mailbox>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.end("its node has ended");
    }
}

/// What a worker is told by flows.
#[derive(Debug)]
pub(crate) enum Order {
    /// A new flow, under a number that no other has, for a client of the program, if there is one.
    Register {
        flow: u64,
        client: Option<SocketAddr>,
        to: SocketAddr,
        delivery: Box<DeliveryPolicy>,
        mailbox: Held,
    },
    /// A flow has something to send.
    Collect { flow: u64 },
    /// A flow is gone.
    Close { flow: u64 },
    /// Conversations with an address end in this program from now on.
    Listen { number: u64, to: SocketAddr, queue: HeldQueue },
    /// They do no more.
    Leave { number: u64, to: SocketAddr },
    /// Who is there from now on.
    Members(Box<Members>),
    /// Another configuration, of which rules and grant count from now on.
    Rules(Arc<NodeConfig>),
}

/// Where orders to one worker wait.
#[derive(Debug)]
pub(crate) struct Desk {
    /// `None` once the worker has ended.
    orders: Mutex<Option<Vec<Order>>>,
    waker: Waker,
}

impl Desk {
    pub(crate) fn new() -> Result<Self, NodeError> {
        Ok(Self { orders: Mutex::new(Some(Vec::new())), waker: Waker::new()? })
    }

    /// Leaves an order; what comes after the worker's end is dropped, which ends the flow that it
    /// is of.
    pub(crate) fn order(&self, order: Order) {
        if let Some(orders) = &mut *self.orders.lock().unwrap_or_else(PoisonError::into_inner) {
            orders.push(order);
            self.waker.ring();
        }
    }

    /// Of the worker: all orders so far.
    pub(crate) fn take(&self) -> Vec<Order> {
        self.waker.silence();
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Of the worker: it takes no more.
    pub(crate) fn close(&self) {
        *self.orders.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl AsFd for Desk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
