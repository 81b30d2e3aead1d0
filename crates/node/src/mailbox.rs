//! Queues between flows of applications that link this crate and the worker that carries them.
//!
//! Neither side ever waits for the other: at a full queue a datagram is refused at the flow's side
//! and dropped at the worker's, as with a socket. A waker signals that a queue is no longer empty.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tradewind_config::packet::DeliveryPolicy;
use tradewind_net::clock;
use tradewind_net::epoll::Waker;
use tradewind_units::Duration;

use crate::NodeError;
use crate::config::NodeConfig;
use crate::listener::QueueGuard;
use crate::membership::Members;
use crate::status::FlowStatus;

/// Most datagrams in either queue of a flow. Chosen: 10 ms of 100,000 packets a second.
const MAX_DATAGRAMS: usize = 1024;

/// The two queues of a flow, and its status from the worker.
#[derive(Debug)]
pub(crate) struct Mailbox {
    inside: Mutex<Inside>,
    changed: Condvar,
    /// Signalled while a datagram waits for the flow.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Inside {
    /// To the application.
    incoming: VecDeque<Vec<u8>>,
    /// From it.
    outgoing: Vec<Outgoing>,
    /// Datagrams that were dropped since `incoming` was full.
    overrun: u64,
    /// Set while the session with the remote endpoint is open.
    is_open: bool,
    /// The reason why the flow has ended.
    end: Option<&'static str>,
    status: Vec<FlowStatus>,
}

/// A datagram of an application, on its way to the worker.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    /// Set if the application has marked it as high priority.
    pub(crate) is_high_priority: bool,
}

/// The result of queueing a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is queued; `is_first`: as the only one, so the worker has to be notified.
    Waits { is_first: bool },
    /// The queue is full.
    Full,
    /// The flow has ended.
    Ended(&'static str),
}

/// The result of receiving from a flow.
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

    /// Queues a datagram for the worker; for the flow.
    pub(crate) fn put(&self, datagram: &[u8], is_high_priority: bool) -> Put {
        let mut inside = self.lock();
        if let Some(why) = inside.end {
            return Put::Ended(why);
        }
        if inside.outgoing.len() == MAX_DATAGRAMS {
            return Put::Full;
        }
        inside.outgoing.push(Outgoing { bytes: datagram.to_vec(), is_high_priority });
        Put::Waits { is_first: inside.outgoing.len() == 1 }
    }

    /// Swaps the queue of sent datagrams with `emptied`; for the worker.
    pub(crate) fn collect(&self, emptied: &mut Vec<Outgoing>) {
        emptied.clear();
        std::mem::swap(&mut self.lock().outgoing, emptied);
    }

    /// Queues a datagram for the flow; `false` when it is full. For the worker.
    pub(crate) fn deliver(&self, datagram: &[u8]) -> bool {
        let mut inside = self.lock();
        if inside.incoming.len() == MAX_DATAGRAMS {
            inside.overrun += 1;
            return false;
        }
        inside.incoming.push_back(datagram.to_vec());
        self.wake(&inside);
        true
    }

    /// Returns the oldest datagram, once there is one, within `timeout`; for the flow.
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

    /// Returns whether the session with the remote endpoint is open, or opens within `timeout`; for
    /// the flow.
    pub(crate) fn wait_open(&self, timeout: Duration) -> Result<bool, &'static str> {
        let inside = self.wait(timeout, |inside| inside.is_open || inside.end.is_some());
        inside.end.map_or(Ok(inside.is_open), Err)
    }

    /// Sets whether the session with the remote endpoint is open; for the worker.
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

    /// Ends the flow; the last reason stays.
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

/// The worker's hold on a flow, which ends with the worker, however that ends.
#[derive(Debug)]
pub(crate) struct MailboxGuard(pub(crate) Arc<Mailbox>);

impl Drop for MailboxGuard {
    fn drop(&mut self) {
        self.0.end("its node has ended");
    }
}

/// A command to a worker.
#[derive(Debug)]
pub(crate) enum Command {
    /// Begin a flow, under a number that no other has, for a client of the program, if there is
    /// one.
    Register {
        flow: u64,
        client: Option<SocketAddr>,
        to: SocketAddr,
        delivery: Box<DeliveryPolicy>,
        mailbox: MailboxGuard,
    },
    /// Send a flow's queued datagrams.
    Collect { flow: u64 },
    /// End a flow.
    Close { flow: u64 },
    /// End conversations with an address in this program from now on.
    Listen { number: u64, to: SocketAddr, queue: QueueGuard },
    /// Stop doing so.
    Leave { number: u64, to: SocketAddr },
    /// Replace the members.
    Members(Box<Members>),
    /// Apply the rules and the grant of another configuration.
    Rules(Arc<NodeConfig>),
}

/// The queue of commands to one worker.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    /// `None` once the worker has ended.
    commands: Mutex<Option<Vec<Command>>>,
    waker: Waker,
}

impl CommandQueue {
    pub(crate) fn new() -> Result<Self, NodeError> {
        Ok(Self { commands: Mutex::new(Some(Vec::new())), waker: Waker::new()? })
    }

    /// Queues a command. After the worker's end it is dropped, which ends its flow.
    pub(crate) fn send(&self, command: Command) {
        if let Some(commands) = &mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner) {
            commands.push(command);
            self.waker.ring();
        }
    }

    /// Returns all queued commands; for the worker.
    pub(crate) fn take(&self) -> Vec<Command> {
        self.waker.silence();
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the queue; for the worker.
    pub(crate) fn close(&self) {
        *self.commands.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl AsFd for CommandQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
