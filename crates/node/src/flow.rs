//! Flows of applications that link this crate: datagrams to a destination behind a remote endpoint,
//! within a latency budget. The other side is an unmodified application there, or a program that
//! accepts flows (`listener`).
//!
//! A [`Flow`] is for the application what `[[packet]]` with `service = "auto"` is for an unmodified
//! one: the same worker carries it, by the cheapest service that meets its budget, and over the
//! Internet alone while the relays do not answer. It behaves as a UDP socket does: a datagram
//! arrives whole or not at all, in any order, and sending never blocks.
//!
//! Its *congestion signal* reports what recovery hides. A packet that a relay recovered was lost on
//! the Internet nevertheless; a sender that adapts its rate must take it into account, or it would
//! push others aside.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tradewind_config::packet::{Assumed, Chosen, DeliveryPolicy, Remote, Via, budget_ms, max_loss};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::{Duration, Ratio};

use crate::mailbox::{Command, CommandQueue, Got, Mailbox, MailboxGuard, Put};
use crate::status::{Direction, FlowStatus};
use crate::worker::Outside;
use crate::{Node, NodeError};

/// Longest datagram of a flow: what UDP over IPv4 carries.
const MAX_BYTES: usize = 65_507;

/// The number of the next flow in this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The remote endpoint and relays of a flow, and the choice of its service.
#[derive(Debug, Clone)]
pub struct FlowOptions {
    /// The remote endpoint, which delivers.
    pub remote: Remote,
    /// One relay or two before it, in order (forwarding takes more), or the nearest; without any,
    /// the flow is direct.
    pub relays: Via,
    /// The service; `None`: the cheapest that meets the budget, which changes when receivers report
    /// loss.
    pub service: Option<Service>,
    /// Share of packets that may be late or lost, when the service is chosen.
    pub max_loss: Ratio,
    /// The assumptions of the choice.
    pub assumed: Assumed,
    /// The packets that are copied to the relays, beside those that are sent with high priority
    /// ([`Flow::send_high_priority`]); `None`: all.
    pub copies: Option<Chosen>,
    /// The classifier of each packet that is sent, where packets are chosen: high priority or not.
    pub judge: Option<Judge>,
}

type IsHighPriority = dyn Fn(&[u8]) -> bool + Send + Sync;

/// A classifier of datagrams: high priority or not.
#[derive(Clone)]
pub struct Judge(Arc<IsHighPriority>);

impl Judge {
    /// Returns one that calls `is_high_priority`, in the thread that sends.
    pub fn new(is_high_priority: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_high_priority))
    }
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Judge")
    }
}

impl FlowOptions {
    /// Returns options for `remote` over `relays`, by whichever service meets the budget, with at
    /// most 0.1 % late or lost.
    #[must_use]
    pub fn new(remote: impl Into<Remote>, relays: impl Into<Via>) -> Self {
        let (remote, relays) = (remote.into(), relays.into());
        let (service, max_loss) = (None, max_loss());
        let assumed = Assumed::default();
        Self { remote, relays, service, max_loss, assumed, copies: None, judge: None }
    }

    fn delivery(self, budget: Duration) -> Result<DeliveryPolicy, NodeError> {
        let Self { remote, relays, service, max_loss, assumed, copies, judge } = self;
        let mut copies = copies.or_else(|| judge.map(|_| Chosen::default()));
        copies.iter_mut().for_each(|chosen| chosen.rules.marked = true);
        let is_auto = service.is_none() && !relays.is_empty();
        let service = service.unwrap_or(Service::Direct);
        let carriage = Carriage {
            service,
            paths: Paths::Both,
            budget_ms: budget_ms(budget)?,
            in_order: false,
            fragment: false,
        };
        let max_loss = is_auto.then_some(max_loss);
        let delivery = DeliveryPolicy { remote, relays, carriage, max_loss, copies, assumed };
        delivery.check()?;
        delivery.copies.iter().try_for_each(|chosen| chosen.check(false))?;
        Ok(delivery)
    }
}

/// The reason why a flow cannot send or receive a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The queue is full, since the worker is behind: the datagram was dropped.
    #[error("the flow's queue is full; expected fewer datagrams at once, or a pause")]
    Full,
    /// The datagram is too long.
    #[error("{0} bytes in one datagram; expected at most 65507")]
    TooLong(usize),
    /// The flow has ended.
    #[error("the flow has ended: {0}")]
    Ended(&'static str),
}

/// The Internet's loss of a flow, recovered packets included, by which a sender should adapt its
/// rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Congestion {
    /// Packets that should have come, since the flow began.
    pub expected: u64,
    /// Those of them that the Internet lost.
    pub lost_by_internet: u64,
    /// The share in the receiver's last report interval, about a second.
    pub share: Option<Ratio>,
}

/// Datagrams to one destination, and its replies; the flow ends when it is dropped.
#[derive(Debug)]
pub struct Flow {
    number: u64,
    mailbox: Arc<Mailbox>,
    commands: Arc<CommandQueue>,
    judge: Option<Judge>,
}

impl Node {
    /// Begins a flow to `destination`, which the remote endpoint of `options` delivers to, whose
    /// packets are to arrive within `budget`.
    ///
    /// It returns at once; datagrams sent before the remote endpoint has answered are lost
    /// ([`Flow::wait_open`]).
    ///
    /// # Errors
    /// When the node has no grant or several workers, or `options` contradict themselves.
    pub fn register(
        &self,
        destination: SocketAddr,
        budget: Duration,
        options: FlowOptions,
    ) -> Result<Flow, NodeError> {
        let judge = options.judge.clone();
        let delivery = options.delivery(budget)?;
        self.flow_opener()?.begin_judged((None, destination), delivery, judge)
    }

    /// Returns an opener, which begins flows of this node from any thread, also while it starts or
    /// ends.
    ///
    /// # Errors
    /// When the node has several workers, or no grant.
    pub fn flow_opener(&self) -> Result<FlowOpener, NodeError> {
        let refused = |key: &str, problem: &str| {
            Err(NodeError::Config { key: key.into(), problem: problem.into() })
        };
        let [Outside { commands, .. }] = &self.outsides[..] else {
            return refused("workers", "a node with flows of its own has one worker");
        };
        if self.config.grant.is_none() {
            return refused("grant", "missing, and there are flows");
        }
        let (commands, has_members) = (Arc::clone(commands), self.config.members.is_some());
        Ok(FlowOpener { commands, has_members })
    }
}

/// A handle that begins flows of a node; clones begin flows of the same node.
#[derive(Debug, Clone)]
pub struct FlowOpener {
    commands: Arc<CommandQueue>,
    has_members: bool,
}

impl FlowOpener {
    /// Begins a flow for `client` with a policy from a configuration
    /// (`socks5_udp` of a gateway). With a node that has ended, the flow never opens.
    ///
    /// # Errors
    /// As [`Node::register`].
    pub fn begin(
        &self,
        client: SocketAddr,
        destination: SocketAddr,
        delivery: DeliveryPolicy,
    ) -> Result<Flow, NodeError> {
        self.begin_judged((Some(client), destination), delivery, None)
    }

    fn begin_judged(
        &self,
        (client, destination): (Option<SocketAddr>, SocketAddr),
        delivery: DeliveryPolicy,
        judge: Option<Judge>,
    ) -> Result<Flow, NodeError> {
        // The engine looks up the name, once it has read the members.
        let any = |_: &str| true;
        delivery.check_members(self.has_members.then_some(&any))?;
        let (mailbox, commands) = (Arc::new(Mailbox::new()?), Arc::clone(&self.commands));
        let number = Flow::next_number();
        commands.send(Command::Register {
            flow: number,
            client,
            to: destination,
            delivery: Box::new(delivery),
            mailbox: MailboxGuard(Arc::clone(&mailbox)),
        });
        Ok(Flow { number, mailbox, commands, judge })
    }
}

impl Flow {
    /// Returns a number that no other flow or listener has.
    pub(crate) fn next_number() -> u64 {
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a flow that another endpoint has begun.
    pub(crate) fn of_another(mailbox: Arc<Mailbox>, commands: Arc<CommandQueue>) -> Self {
        Self { number: Self::next_number(), mailbox, commands, judge: None }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Waits until the session with the remote endpoint is open, `timeout` at most; returns whether
    /// it is.
    ///
    /// # Errors
    /// [`FlowError::Ended`].
    pub fn wait_open(&self, timeout: Duration) -> Result<bool, FlowError> {
        self.mailbox.wait_open(timeout).map_err(FlowError::Ended)
    }

    /// Sends a datagram; never blocks.
    ///
    /// # Errors
    /// [`FlowError`]; the datagram was dropped.
    pub fn send(&self, datagram: &[u8]) -> Result<(), FlowError> {
        let is_high_priority = self.judge.as_ref().is_some_and(|judge| judge.0(datagram));
        self.hand_over(datagram, is_high_priority)
    }

    /// Sends a datagram with high priority: where not all are copied to the relays, it is
    /// ([`FlowOptions::copies`]).
    ///
    /// # Errors
    /// As [`Flow::send`].
    pub fn send_high_priority(&self, datagram: &[u8]) -> Result<(), FlowError> {
        self.hand_over(datagram, true)
    }

    fn hand_over(&self, datagram: &[u8], is_high_priority: bool) -> Result<(), FlowError> {
        if datagram.len() > MAX_BYTES {
            return Err(FlowError::TooLong(datagram.len()));
        }
        match self.mailbox.put(datagram, is_high_priority) {
            Put::Waits { is_first: true } => {
                self.commands.send(Command::Collect { flow: self.number })
            }
            Put::Waits { is_first: false } => {}
            Put::Full => return Err(FlowError::Full),
            Put::Ended(why) => return Err(FlowError::Ended(why)),
        }
        Ok(())
    }

    /// Returns the next datagram of the destination, once there is one, within `timeout`; `None`
    /// when there is none. With a timeout of zero it does not block, for callers that wait by the
    /// descriptor ([`AsFd`]), which is readable while a datagram is there.
    ///
    /// # Errors
    /// [`FlowError::Ended`], after the last datagram.
    pub fn receive(&self, timeout: Duration) -> Result<Option<Vec<u8>>, FlowError> {
        match self.mailbox.get(timeout) {
            Got::Datagram(datagram) => Ok(Some(datagram)),
            Got::Nothing => Ok(None),
            Got::Ended(why) => Err(FlowError::Ended(why)),
        }
    }

    /// Returns the status of one direction, as of the last second: service and its reason,
    /// recovered, late and lost packets, bills. `None` in the first second, and for received
    /// packets without numbers (direct).
    #[must_use]
    pub fn status(&self, direction: Direction) -> Option<FlowStatus> {
        self.mailbox.status().into_iter().find(|status| status.direction == direction)
    }

    /// Returns the Internet's loss of the sent packets, recovered or not; `None` before the
    /// receiver's first report, and where packets are not numbered.
    #[must_use]
    pub fn congestion(&self) -> Option<Congestion> {
        let status = self.status(Direction::Sent)?;
        let statistics = status.statistics?;
        let (expected, lost_by_internet) = (statistics.expected, statistics.lost_by_internet);
        (expected > 0).then_some(Congestion {
            expected,
            lost_by_internet,
            share: status.internet_loss,
        })
    }

    /// Returns the longest datagram that the Internet path takes at any time, once that is known.
    /// Longer ones are lost: all of them while the remote endpoint does not know the flow, later
    /// those more than 22 bytes longer.
    #[must_use]
    pub fn longest(&self) -> Option<usize> {
        usize::try_from(self.status(Direction::Sent)?.longest?).ok()
    }

    /// Returns the number of datagrams dropped at a full queue, because nobody received.
    #[must_use]
    pub fn overrun(&self) -> u64 {
        self.mailbox.overrun()
    }
}

impl AsFd for Flow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mailbox.as_fd()
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.commands.send(Command::Close { flow: self.number });
    }
}
