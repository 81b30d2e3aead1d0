//! The other side of flows: a program that links this crate and to which others' conversations are
//! delivered.
//!
//! What [`Node::register`] is to who sends, [`Node::listen`] is to who receives. The program is its
//! own far endpoint: who sends holds a grant that covers the destination, and the node's policy
//! covers it, too. Nothing need listen there, and the address may be one that no host has.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tradewind_grant::PublicIdentity;
use tradewind_net::clock;
use tradewind_net::epoll::Waker;
use tradewind_units::Duration;

use crate::flow::Flow;
use crate::mailbox::{Desk, Order};
use crate::worker::Outside;
use crate::{FlowError, Node, NodeError};

/// Flows that may wait to be accepted. Chosen; who comes later is not answered, and tries again.
const MOST_WAITING: usize = 64;

/// A flow that somebody else has begun.
#[derive(Debug)]
pub struct Accepted {
    /// What it sends goes back to who began it.
    pub flow: Flow,
    /// The endpoint that began it, as its session proves.
    pub from: PublicIdentity,
}

/// Flows that begin at one destination; ends when it is dropped. Flows that were accepted go on.
#[derive(Debug)]
pub struct Listener {
    to: SocketAddr,
    number: u64,
    queue: Arc<Queue>,
    desk: Arc<Desk>,
}

/// Flows that wait to be accepted.
#[derive(Debug)]
pub(crate) struct Queue {
    inside: Mutex<Inside>,
    changed: Condvar,
    /// Rung while one waits.
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

    /// Of the worker: whether another flow may wait.
    pub(crate) fn has_room(&self) -> bool {
        let inside = self.lock();
        inside.end.is_none() && inside.waiting.len() < MOST_WAITING
    }

    /// Of the worker: a flow has begun.
    pub(crate) fn put(&self, accepted: Accepted) {
        let mut inside = self.lock();
        inside.waiting.push_back(accepted);
        self.waker.ring();
        self.changed.notify_all();
    }

    /// Nobody begins a flow here any more.
    fn end(&self, why: &'static str) {
        let mut inside = self.lock();
        inside.end = Some(why);
        // Flows that nobody accepts end.
        let unaccepted = std::mem::take(&mut inside.waiting);
        drop(inside);
        drop(unaccepted);
        self.waker.ring();
        self.changed.notify_all();
    }
}

/// The worker's hold on a listener: whatever ends the worker ends it.
#[derive(Debug)]
pub(crate) struct HeldQueue(pub(crate) Arc<Queue>);

impl Drop for HeldQueue {
    fn drop(&mut self) {
        self.0.end("its node has ended, or another listens there");
    }
}

impl Node {
    /// Has conversations with `destination` end in this program from now on, instead of being
    /// delivered to whoever is there. The one that listened there before ends.
    ///
    /// # Errors
    /// When the node trusts no operator's grants, its policy does not cover `destination`, or it
    /// has several workers.
    pub fn listen(&self, destination: SocketAddr) -> Result<Listener, NodeError> {
        let refused = |key, problem: &str| Err(NodeError::Config { key, problem: problem.into() });
        let [Outside { desk, .. }] = &self.outsides[..] else {
            return refused("workers", "a node with flows of its own has one worker");
        };
        if self.config.operators.is_empty() {
            return refused("operators", "missing; those who begin flows show their grants");
        }
        let mut rules = self.config.policy.destinations.iter();
        if !rules.any(|rule| rule.covers_address(destination)) {
            return refused("destinations", "none covers what is listened to");
        }
        let (queue, desk) = (Arc::new(Queue::new()?), Arc::clone(desk));
        let number = Flow::next_number();
        let held = HeldQueue(Arc::clone(&queue));
        desk.order(Order::Listen { number, to: destination, queue: held });
        Ok(Listener { to: destination, number, queue, desk })
    }
}

impl Listener {
    /// Where flows begin that it accepts.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.to
    }

    /// The next flow that somebody has begun, once there is one, within `timeout`; `None` when
    /// there is none. Its first datagrams wait in it. With no patience at all it does not wait, for
    /// those who wait by the descriptor ([`AsFd`]), which has input while a flow is there.
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
        self.desk.order(Order::Leave { number: self.number, to: self.to });
    }
}
