//! The accepting side of flows: a program that links this crate and to which others' conversations
//! are delivered.
//!
//! It is the counterpart of [`Node::register`] at the sender. The program is its own remote
//! endpoint: the sender holds a grant that covers the destination, and the node's policy covers it,
//! too. No socket need listen there, and the address may be one that no host has.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tradewind_grant::PublicIdentity;
use tradewind_net::clock;
use tradewind_net::epoll::Waker;
use tradewind_units::Duration;

use crate::flow::Flow;
use crate::mailbox::{Command, CommandQueue};
use crate::worker::Outside;
use crate::{FlowError, Node, NodeError};

/// Most flows that wait to be accepted. Chosen; later ones are not answered, and try again.
const MAX_WAITING: usize = 64;

/// A flow that another endpoint has begun.
#[derive(Debug)]
pub struct Accepted {
    /// The flow; its datagrams go back to the endpoint that began it.
    pub flow: Flow,
    /// The endpoint that began it, as its session proves.
    pub from: PublicIdentity,
}

/// Flows that begin at one destination; ends when it is dropped. Accepted flows go on.
#[derive(Debug)]
pub struct Listener {
    to: SocketAddr,
    number: u64,
    queue: Arc<Queue>,
    commands: Arc<CommandQueue>,
}

/// Flows that wait to be accepted.
#[derive(Debug)]
pub(crate) struct Queue {
    inside: Mutex<Inside>,
    changed: Condvar,
    /// Signalled while one waits.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Inside {
    waiting: VecDeque<Accepted>,
    end: Option<&'static str>,
}

impl Queue {
    pub(crate) fn new() -> Result<Self, NodeError> {
        Ok(Self { inside: Mutex::default(), changed: Condvar::new(), waker: Waker::new()? })
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether another flow may wait; for the worker.
    pub(crate) fn has_capacity(&self) -> bool {
        let inside = self.lock();
        inside.end.is_none() && inside.waiting.len() < MAX_WAITING
    }

    /// Adds a flow that has begun; for the worker.
    pub(crate) fn put(&self, accepted: Accepted) {
        let mut inside = self.lock();
        inside.waiting.push_back(accepted);
        self.waker.ring();
        self.changed.notify_all();
    }

    /// Ends the queue.
    fn end(&self, why: &'static str) {
        let mut inside = self.lock();
        inside.end = Some(why);
        // Flows that were not accepted end.
        let unaccepted = std::mem::take(&mut inside.waiting);
        drop(inside);
        drop(unaccepted);
        self.waker.ring();
        self.changed.notify_all();
    }
}

/// The worker's hold on a listener, which ends with the worker, however that ends.
#[derive(Debug)]
pub(crate) struct QueueGuard(pub(crate) Arc<Queue>);

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.0.end("its node has ended, or another listens there");
    }
}

impl Node {
    /// Has conversations with `destination` end in this program from now on, instead of being
    /// delivered to a socket there. A previous listener at it ends.
    ///
    /// # Errors
    /// When the node trusts no operator's grants, its policy does not cover `destination`, or it
    /// has several workers.
    pub fn listen(&self, destination: SocketAddr) -> Result<Listener, NodeError> {
        let refused = |key: &str, problem: &str| {
            Err(NodeError::Config { key: key.into(), problem: problem.into() })
        };
        let [Outside { commands, .. }] = &self.outsides[..] else {
            return refused("workers", "a node with flows of its own has one worker");
        };
        if self.config.operators.is_empty() {
            return refused("operators", "missing; those who begin flows show their grants");
        }
        let mut rules = self.config.policy.destinations.iter();
        if !rules.any(|rule| rule.covers_address(destination)) {
            return refused("destinations", "none covers what is listened to");
        }
        let (queue, commands) = (Arc::new(Queue::new()?), Arc::clone(commands));
        let number = Flow::next_number();
        let held = QueueGuard(Arc::clone(&queue));
        commands.send(Command::Listen { number, to: destination, queue: held });
        Ok(Listener { to: destination, number, queue, commands })
    }
}

impl Listener {
    /// Returns the destination of the flows that it accepts.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.to
    }

    /// Returns the next flow, once there is one, within `timeout`; `None` when there is none. Its
    /// first datagrams wait in it. With a timeout of zero it does not block, for callers that wait
    /// by the descriptor ([`AsFd`]), which is readable while a flow is there.
    ///
    /// # Errors
    /// [`FlowError::Ended`].
    pub fn accept(&self, timeout: Duration) -> Result<Option<Accepted>, FlowError> {
        let begun = clock::monotonic();
        let mut inside = self.queue.lock();
        loop {
            if let Some(accepted) = inside.waiting.pop_front() {
                if inside.waiting.is_empty() && inside.end.is_none() {
                    self.queue.waker.silence();
                }
                return Ok(Some(accepted));
            }
            if let Some(why) = inside.end {
                return Err(FlowError::Ended(why));
            }
            let left = timeout.saturating_sub(clock::monotonic().since(begun));
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.queue.changed.wait_timeout(inside, left);
            inside = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.waker.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.commands.send(Command::Leave { number: self.number, to: self.to });
    }
}
