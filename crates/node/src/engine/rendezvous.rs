//! The rendezvous with its sockets and sessions: applications' packets are deposited at a relay, a
//! relay stores them, and waiting packets are collected and delivered `[JQ 3.5]`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_config::packet::{Deposits, Recipient};
use tradewind_grant::{IdentityKey, PublicIdentity, SignedGrant, Target, Trust};
use tradewind_net::entropy;
use tradewind_net::udp::UdpPort;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Collect, Deposit, Deposited, Message};
use tradewind_packet::rendezvous::{
    Collector, DepositCounts, Depositor, DepositorConfig, Head, Opened, Opener, Refused, Sealer,
};
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::{Bytes, Duration, Timestamp};

use super::access::Access;
use super::context::Context;
use super::conversations::{IDLE, MAX};
use super::identities;
use super::local::{Local, any_like};
use super::neighbours::{MemberTable, Neighbours};
use crate::NodeError;
use crate::config::NodeConfig;
use crate::counts::{Counts, add};
use crate::handover::Handover;
use crate::status::{Direction, FlowStatus};

/// Interval of pings to a relay, to check that it still knows the session. Chosen: that of the
/// requests for packets.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Most bytes of one path that wait before their relay has them. Chosen: a relay's storage for a
/// sender.
const MAX_WAITING: Bytes = Bytes::new(32_000_000);

/// One worker's part in rendezvous.
pub(crate) struct Rendezvous {
    lines: Vec<Line>,
    collections: Vec<Collection>,
    opener: Opener,
    /// Sockets from which flows are delivered.
    ends: BTreeMap<FlowNumber, End>,
    /// Replies to the deposits in this batch of datagrams.
    answers: BTreeMap<(PeerId, u64), Deposited>,
    next_ping: Timestamp,
    /// Number of packets that came again.
    pub(super) replayed: u64,
}

/// A path with deposits at a relay.
struct Line {
    deposits: Deposits,
    local: Local,
    relay: PeerId,
    /// Set if its session was open at the last check.
    is_open: bool,
    sender: Option<Sender>,
    packets: u64,
    bytes: u64,
}

/// The sealer and depositor of one receiver's packets.
struct Sender {
    to: PublicIdentity,
    sealer: Sealer,
    depositor: Depositor,
    /// The depositor's counts that are in the metrics already.
    counted: DepositCounts,
}

/// A relay where packets for this node may wait.
struct Collection {
    relay: PeerId,
    is_open: bool,
    collector: Collector,
}

struct End {
    local: Local,
    used: Timestamp,
}

impl Rendezvous {
    pub(super) fn new(config: &NodeConfig) -> Self {
        let mut opener = Opener::new(config.identity.clone());
        opener.set_identities(identities(config));
        Self {
            lines: Vec::new(),
            collections: Vec::new(),
            opener,
            ends: BTreeMap::new(),
            answers: BTreeMap::new(),
            next_ping: Timestamp::ZERO,
            replayed: 0,
        }
    }

    /// Collects the packets for any of `identities`.
    pub(super) fn set_identities(&mut self, identities: Vec<IdentityKey>) {
        self.opener.set_identities(identities);
    }

    /// Returns whether packets are deposited there or collected from there.
    pub(super) fn is_with(&self, peer: PeerId) -> bool {
        self.lines.iter().any(|line| line.relay == peer)
            || self.collections.iter().any(|collection| collection.relay == peer)
    }

    pub(super) fn flush(&mut self, counts: &Counts) {
        self.ends.values_mut().for_each(|end| end.local.flush(counts));
    }

    /// Resumes deposits, since a session with a relay is open again.
    pub(super) fn relay_is_back(&mut self, relay: PeerId) {
        let lines = self.lines.iter_mut().filter(|line| line.relay == relay);
        lines
            .filter_map(|line| line.sender.as_mut())
            .for_each(|sender| sender.depositor.relay_is_back());
    }
}

impl Line {
    /// Seals a packet and queues it for deposit; `None` when it is too long, or the receiver is not
    /// known.
    fn seal(&mut self, now: Now, payload: &[u8]) -> Option<()> {
        let Sender { sealer, depositor, .. } = self.sender.as_mut()?;
        sealer
            .seal(now, payload, |stored_message| depositor.push(now.steady, stored_message))
            .ok()?;
        self.packets += 1;
        self.bytes += payload.len() as u64;
        Some(())
    }
}

impl Sender {
    fn new(config: &NodeConfig, to: PublicIdentity, deposits: &Deposits) -> Option<Self> {
        let own = (config.identity.clone(), config.grant.as_ref()?.as_bytes());
        let sealer = Sealer::new(own, to, deposits.to, entropy::bytes().ok()?);
        let stream = u64::from_be_bytes(entropy::bytes().ok()?);
        let limits = DepositorConfig { keep: deposits.keep, bytes: MAX_WAITING };
        let (depositor, counted) = (Depositor::new(to, limits, stream), DepositCounts::default());
        Some(Self { to, sealer, depositor, counted })
    }
}

/// Returns the expiry of the grant in a stored message's header, if this node delivers the
/// destination under that grant.
fn judge(
    (access, trust): (&Access, &Trust),
    unix: Timestamp,
    head: &Head<'_>,
) -> Option<Timestamp> {
    let signed = SignedGrant::from_bytes(head.grant).ok()?;
    // Comparing the claimed sender is cheap; verifying the signature is not.
    if signed.unverified().gateway != head.sender {
        return None;
    }
    let verified = signed.into_verified(trust.operators()).ok()?;
    trust.check(&verified).ok()?;
    let grant = &verified.grant;
    grant.check_expiry(unix).ok()?;
    access.allows(Some(grant), Target::Address(head.to)).ok()?;
    Some(grant.expires)
}

impl Rendezvous {
    /// Opens the ports of paths with deposits, and begins sessions with the relays.
    pub(super) fn add_configured(
        &mut self,
        context: &mut Context,
        neighbours: &mut Neighbours,
        now: Now,
        handover: &mut Handover,
    ) -> Result<(), NodeError> {
        let full =
            || NodeError::Config { key: "rendezvous".into(), problem: "too many relays".into() };
        let config = context.config.rendezvous.clone();
        for deposits in config.deposits {
            let hop = deposits.relay;
            let relay = neighbours.leg_to(context, now, hop).ok_or_else(full)?;
            let ends = (deposits.listen, deposits.to);
            let local = Local::open(handover, ends, false, context.config.delivery_mark())?;
            let (is_open, sender, packets, bytes) = (false, None, 0, 0);
            let line = Line { deposits, local, relay, is_open, sender, packets, bytes };
            self.lines.push(line);
        }
        for hop in config.relays {
            let relay = neighbours.leg_to(context, now, hop).ok_or_else(full)?;
            let collector = Collector::default();
            self.collections.push(Collection { relay, is_open: false, collector });
        }
        self.name_recipients(context, &neighbours.members);
        Ok(())
    }

    /// Returns the sockets that applications write to, by number.
    pub(crate) fn deposit_ports(&self) -> impl Iterator<Item = &UdpPort> {
        self.lines.iter().filter_map(|line| line.local.port())
    }

    /// Updates the receivers: members may come, go and change their identity.
    fn name_recipients(&mut self, context: &Context, members: &MemberTable) {
        for line in &mut self.lines {
            let identity = match &line.deposits.remote {
                Recipient::Identity(identity) => Some(*identity),
                Recipient::Member(name) => members.identity_of(name),
            };
            let is_another =
                |to: &PublicIdentity| line.sender.as_ref().is_none_or(|sender| sender.to != *to);
            if let Some(to) = identity.filter(is_another) {
                line.sender = Sender::new(&context.config, to, &line.deposits);
            }
        }
    }

    /// Seals and deposits a datagram that an application wrote to socket `at`.
    pub(super) fn take_deposit(&mut self, context: &Context, now: Now, at: usize, payload: &[u8]) {
        let line = self.lines.get_mut(at);
        match line.and_then(|line| line.seal(now, payload)) {
            Some(()) => add(&context.counts.accepted, 1),
            None => add(&context.counts.refused, 1),
        }
    }

    /// Handles a message of a rendezvous.
    pub(super) fn handle_message(
        &mut self,
        context: &mut Context,
        now: Now,
        from: PeerId,
        message: Message<'_>,
    ) {
        match message {
            Message::Deposit(deposit) => self.store_deposit(context, now, from, &deposit),
            Message::Collect(collect) => hand_out(context, now, from, &collect),
            Message::Deposited(deposited) => {
                let lines = self.lines.iter_mut().filter(|line| line.relay == from);
                for sender in lines.filter_map(|line| line.sender.as_mut()) {
                    sender.depositor.handle_deposited(now.steady, &deposited);
                }
            }
            Message::StoredMessage(_) | Message::Remaining(_) => {
                self.take_collected(context, now, from, message)
            }
            _ => add(&context.counts.dropped, 1),
        }
    }

    fn take_collected(&mut self, context: &Context, now: Now, from: PeerId, message: Message<'_>) {
        let known = self.collections.iter().position(|known| known.relay == from);
        let Some(at) = known else { return add(&context.counts.dropped, 1) };
        let collector = &mut self.collections[at].collector;
        match message {
            Message::StoredMessage(stored_message) => {
                collector.handle_stored_message(now.steady, &stored_message)
            }
            Message::Remaining(remaining) => collector.handle_remaining(now.steady, &remaining),
            _ => {}
        }
        while let Some(mut stored_message) = self.collections[at].collector.poll_stored_message() {
            self.open_stored_message(context, now, &mut stored_message);
        }
    }

    fn open_stored_message(&mut self, context: &Context, now: Now, stored_message: &mut [u8]) {
        let Self { opener, ends, replayed, .. } = self;
        let rules = (&context.access, &*context.trust);
        let opened = opener.open(now.unix, stored_message, |head| judge(rules, now.unix, head));
        match opened {
            Ok(Opened::StoredHeader) => {}
            Ok(Opened::Packet { flow, to, payload }) => {
                let mark = context.config.delivery_mark();
                match end_of(ends, now, flow, (to, mark)) {
                    Some(local) => local.push(&context.counts, None, to.into(), payload),
                    None => add(&context.counts.dropped, 1),
                }
            }
            Err(Refused::Replayed) => *replayed += 1,
            Err(refusal) => {
                tracing::debug!(%refusal, "stored message refused");
                add(&context.counts.dropped, 1);
            }
        }
    }

    /// Checks the senders of packets that have waited again, by the current rules.
    pub(super) fn judge_senders_again(&mut self, context: &Context, now: Now) {
        let rules = (&context.access, &*context.trust);
        self.opener.judge_again(|head| judge(rules, now.unix, head));
    }

    /// Uses the current grant in deposits from now on.
    pub(super) fn deposit_under_grant(&mut self, context: &Context) {
        let Some(grant) = &context.config.grant else { return };
        let senders = self.lines.iter_mut().filter_map(|line| line.sender.as_mut());
        senders.for_each(|sender| sender.sealer.set_grant(grant.as_bytes()));
    }

    /// Stores a packet, at a relay.
    fn store_deposit(&mut self, context: &Context, now: Now, from: PeerId, deposit: &Deposit<'_>) {
        let answer = match (context.shared.message_store(), granted(context, from)) {
            (Some(mut message_store), Some(sender)) => {
                message_store.deposit(now.steady, sender, deposit)
            }
            _ => None,
        };
        match answer {
            Some(deposited) => {
                self.answers.insert((from, deposited.stream), deposited);
            }
            None => add(&context.counts.dropped, 1),
        }
    }

    /// Sends the replies, deposits and requests that are due.
    pub(super) fn drive(&mut self, context: &mut Context, now: Now) {
        for ((peer, _), deposited) in std::mem::take(&mut self.answers) {
            context.send_message(peer, &Message::Deposited(deposited));
        }
        for line in self.lines.iter_mut().filter(|line| line.is_open) {
            let Some(sender) = &mut line.sender else { continue };
            while let Some(deposit) = sender.depositor.poll_deposit(now.steady) {
                context.send_message(line.relay, &Message::Deposit(deposit));
            }
        }
        for collection in self.collections.iter_mut().filter(|known| known.is_open) {
            if let Some(collect) = collection.collector.poll_collect(now.steady) {
                context.send_message(collection.relay, &Message::Collect(collect));
            }
        }
    }

    /// Does the periodic work: receivers, expiry, counts, sockets.
    pub(super) fn maintain(&mut self, context: &mut Context, members: &MemberTable, now: Now) {
        maintain_store(context, now);
        self.name_recipients(context, members);
        let is_due = now.steady >= self.next_ping;
        for line in &mut self.lines {
            line.is_open = context.sessions.is_open(line.relay);
            let Some(sender) = &mut line.sender else { continue };
            sender.depositor.handle_timeout(now.steady);
            let counts = sender.depositor.counts();
            let before = std::mem::replace(&mut sender.counted, counts);
            add(&context.counts.deposited, counts.deposited - before.deposited);
            add(&context.counts.expired, counts.expired - before.expired);
        }
        for collection in &mut self.collections {
            collection.is_open = context.sessions.is_open(collection.relay);
        }
        self.ends.retain(|_, end| now.steady.since(end.used) < IDLE);
        if is_due {
            self.next_ping = now.steady + PING_INTERVAL;
            self.ping_relays(context, now);
        }
    }

    /// Pings the relays: one that has restarted does not know the session, which shows when it does
    /// not answer.
    fn ping_relays(&self, context: &mut Context, now: Now) {
        let waits =
            |line: &&Line| line.sender.as_ref().is_some_and(|sender| !sender.depositor.is_empty());
        let lines = self.lines.iter().filter(waits).map(|line| line.relay);
        let collections = self.collections.iter().map(|known| known.relay);
        for relay in lines.chain(collections) {
            context.ping(now, relay);
        }
    }

    /// Returns the status of the paths with deposits; what becomes of packets once the relay has
    /// them is not reported.
    pub(super) fn report(&self) -> impl Iterator<Item = FlowStatus> {
        self.lines.iter().map(|line| {
            let (why, resent) = match &line.sender {
                None => ("the members do not know the remote gateway", 0),
                Some(sender) if !line.is_open || sender.depositor.is_unanswered() => {
                    ("the relay does not answer", sender.depositor.counts().resent)
                }
                Some(sender) => ("as configured", sender.depositor.counts().resent),
            };
            let remote = line.sender.as_ref().map(|sender| sender.to.to_string());
            FlowStatus {
                direction: Direction::Sent,
                remote: remote.unwrap_or_default(),
                listen: line.local.address(),
                to: Some(line.deposits.to),
                service: "rendezvous".to_owned(),
                why: why.to_owned(),
                packets: line.packets,
                bytes: line.bytes,
                copies: 0,
                resent,
                statistics: None,
                internet_loss: None,
                longest: None,
                billed: None,
            }
        })
    }
}

/// Returns the socket from which a flow is delivered, which marks what it sends.
fn end_of(
    ends: &mut BTreeMap<FlowNumber, End>,
    now: Now,
    flow: FlowNumber,
    (to, mark): (SocketAddr, Option<u32>),
) -> Option<&mut Local> {
    if !ends.contains_key(&flow) && ends.len() < MAX {
        let end = End { local: Local::bind(any_like(to), false, mark).ok()?, used: now.steady };
        ends.insert(flow, end);
    }
    let end = ends.get_mut(&flow)?;
    end.used = now.steady;
    Some(&mut end.local)
}

/// Returns the neighbour's identity if it has shown a grant: it may deposit packets here, and
/// collect its own.
fn granted(context: &Context, peer: PeerId) -> Option<PublicIdentity> {
    context.sessions.grant_of(peer).and_then(|_| context.sessions.identity_of(peer))
}

/// Sends a receiver its stored packets, at a relay.
fn hand_out(context: &mut Context, now: Now, from: PeerId, collect: &Collect) {
    let (mut messages, mut ends) = (Vec::new(), Vec::new());
    let remaining = match (context.shared.message_store(), granted(context, from)) {
        (Some(mut message_store), Some(owner)) => {
            message_store.collect(now.steady, owner, collect, |stored_message| {
                Message::StoredMessage(stored_message).write(&mut messages);
                ends.push(messages.len());
            })
        }
        _ => None,
    };
    let Some(remaining) = remaining else { return add(&context.counts.dropped, 1) };
    // The store is unlocked for other threads while these are sealed.
    let mut begin = 0;
    for end in ends {
        let message = &messages[std::mem::replace(&mut begin, end)..end];
        context.post(from, message);
    }
    context.send_message(from, &Message::Remaining(remaining));
}

fn maintain_store(context: &Context, now: Now) {
    let Some(mut message_store) = context.shared.idle_store() else { return };
    message_store.handle_timeout(now.steady);
    let tally = message_store.take_tally();
    add(&context.counts.deposited, tally.deposited);
    add(&context.counts.collected, tally.collected);
    add(&context.counts.expired, tally.expired);
    add(&context.counts.evicted, tally.evicted);
}
