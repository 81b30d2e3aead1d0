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
use super::conversations::{IDLE, MOST, any_like};
use super::local::Local;
use super::{Engine, identities};
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
const MOST_WAITING: Bytes = Bytes::new(32_000_000);

/// One worker's part in rendezvous.
pub(super) struct RendezvousClient {
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

impl RendezvousClient {
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
        let limits = DepositorConfig { keep: deposits.keep, bytes: MOST_WAITING };
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
    grant.check_time(unix).ok()?;
    access.allows(Some(grant), Target::Address(head.to)).ok()?;
    Some(grant.expires)
}

impl Engine {
    /// Opens the ports of paths with deposits, and begins sessions with the relays.
    pub(super) fn add_rendezvous(
        &mut self,
        now: Now,
        handover: &mut Handover,
    ) -> Result<(), NodeError> {
        let full =
            || NodeError::Config { key: "rendezvous".into(), problem: "too many relays".into() };
        let config = self.config.rendezvous.clone();
        for deposits in config.deposits {
            let hop = deposits.relay;
            let relay = self.leg_to(now, hop).ok_or_else(full)?;
            let ends = (deposits.listen, deposits.to);
            let local = Local::open(handover, ends, false, self.config.delivery_mark())?;
            let (is_open, sender, packets, bytes) = (false, None, 0, 0);
            let line = Line { deposits, local, relay, is_open, sender, packets, bytes };
            self.rendezvous_client.lines.push(line);
        }
        for hop in config.relays {
            let relay = self.leg_to(now, hop).ok_or_else(full)?;
            let collector = Collector::default();
            self.rendezvous_client.collections.push(Collection {
                relay,
                is_open: false,
                collector,
            });
        }
        self.name_recipients();
        Ok(())
    }

    /// Returns the sockets that applications write to, by number.
    pub(crate) fn deposit_ports(&self) -> impl Iterator<Item = &UdpPort> {
        self.rendezvous_client.lines.iter().filter_map(|line| line.local.port())
    }

    /// Updates the receivers: members may come, go and change their identity.
    fn name_recipients(&mut self) {
        for line in &mut self.rendezvous_client.lines {
            let identity = match &line.deposits.remote {
                Recipient::Identity(identity) => Some(*identity),
                Recipient::Member(name) => self.members.identity_of(name),
            };
            let is_another =
                |to: &PublicIdentity| line.sender.as_ref().is_none_or(|sender| sender.to != *to);
            if let Some(to) = identity.filter(is_another) {
                line.sender = Sender::new(&self.config, to, &line.deposits);
            }
        }
    }

    /// Seals and deposits a datagram that an application wrote to socket `at`.
    pub(crate) fn take_deposit(&mut self, now: Now, at: usize, payload: &[u8]) {
        let line = self.rendezvous_client.lines.get_mut(at);
        match line.and_then(|line| line.seal(now, payload)) {
            Some(()) => add(&self.counts.accepted, 1),
            None => add(&self.counts.refused, 1),
        }
    }

    /// Handles a message of a rendezvous.
    pub(super) fn take_rendezvous(&mut self, now: Now, from: PeerId, message: Message<'_>) {
        match message {
            Message::Deposit(deposit) => self.store_deposit(now, from, &deposit),
            Message::Collect(collect) => self.hand_out(now, from, &collect),
            Message::Deposited(deposited) => {
                let lines =
                    self.rendezvous_client.lines.iter_mut().filter(|line| line.relay == from);
                for sender in lines.filter_map(|line| line.sender.as_mut()) {
                    sender.depositor.handle_deposited(now.steady, &deposited);
                }
            }
            Message::StoredMessage(_) | Message::Remaining(_) => {
                self.take_collected(now, from, message)
            }
            _ => add(&self.counts.dropped, 1),
        }
    }

    fn take_collected(&mut self, now: Now, from: PeerId, message: Message<'_>) {
        let known = self.rendezvous_client.collections.iter().position(|known| known.relay == from);
        let Some(at) = known else { return add(&self.counts.dropped, 1) };
        let collector = &mut self.rendezvous_client.collections[at].collector;
        match message {
            Message::StoredMessage(stored_message) => {
                collector.handle_stored_message(now.steady, &stored_message)
            }
            Message::Remaining(remaining) => collector.handle_remaining(now.steady, &remaining),
            _ => {}
        }
        while let Some(mut stored_message) =
            self.rendezvous_client.collections[at].collector.poll_stored_message()
        {
            self.open_stored_message(now, &mut stored_message);
        }
    }

    fn open_stored_message(&mut self, now: Now, stored_message: &mut [u8]) {
        let RendezvousClient { opener, ends, replayed, .. } = &mut self.rendezvous_client;
        let rules = (&self.access, &*self.trust);
        let opened = opener.open(now.unix, stored_message, |head| judge(rules, now.unix, head));
        match opened {
            Ok(Opened::StoredHeader) => {}
            Ok(Opened::Packet { flow, to, payload }) => {
                let mark = self.config.delivery_mark();
                match end_of(ends, now, flow, (to, mark)) {
                    Some(local) => local.push(&self.counts, None, to.into(), payload),
                    None => add(&self.counts.dropped, 1),
                }
            }
            Err(Refused::Replayed) => *replayed += 1,
            Err(refusal) => {
                tracing::debug!(%refusal, "stored message refused");
                add(&self.counts.dropped, 1);
            }
        }
    }

    /// Checks the senders of packets that have waited again, by the current rules.
    pub(super) fn judge_senders_again(&mut self, now: Now) {
        let rules = (&self.access, &*self.trust);
        self.rendezvous_client.opener.judge_again(|head| judge(rules, now.unix, head));
    }

    /// Uses the current grant in deposits from now on.
    pub(super) fn deposit_under_grant(&mut self) {
        let Some(grant) = &self.config.grant else { return };
        let senders =
            self.rendezvous_client.lines.iter_mut().filter_map(|line| line.sender.as_mut());
        senders.for_each(|sender| sender.sealer.set_grant(grant.as_bytes()));
    }

    /// Returns the neighbour's identity if it has shown a grant: it may deposit packets here, and
    /// collect its own.
    fn granted(&self, peer: PeerId) -> Option<PublicIdentity> {
        self.sessions.grant_of(peer).and_then(|_| self.sessions.identity_of(peer))
    }

    /// Stores a packet, at a relay.
    fn store_deposit(&mut self, now: Now, from: PeerId, deposit: &Deposit<'_>) {
        let answer = match (self.shared.message_store(), self.granted(from)) {
            (Some(mut message_store), Some(sender)) => {
                message_store.deposit(now.steady, sender, deposit)
            }
            _ => None,
        };
        match answer {
            Some(deposited) => {
                self.rendezvous_client.answers.insert((from, deposited.stream), deposited);
            }
            None => add(&self.counts.dropped, 1),
        }
    }

    /// Sends a receiver its stored packets, at a relay.
    fn hand_out(&mut self, now: Now, from: PeerId, collect: &Collect) {
        let (mut messages, mut ends) = (Vec::new(), Vec::new());
        let remaining = match (self.shared.message_store(), self.granted(from)) {
            (Some(mut message_store), Some(owner)) => {
                message_store.collect(now.steady, owner, collect, |stored_message| {
                    Message::StoredMessage(stored_message).write(&mut messages);
                    ends.push(messages.len());
                })
            }
            _ => None,
        };
        let Some(remaining) = remaining else { return add(&self.counts.dropped, 1) };
        // The store is unlocked for other threads while these are sealed.
        let mut begin = 0;
        for end in ends {
            let message = &messages[std::mem::replace(&mut begin, end)..end];
            Self::post(&mut self.sockets, &mut self.sessions, from, message);
        }
        self.send_message(from, &Message::Remaining(remaining));
    }

    /// Sends the replies, deposits and requests that are due.
    pub(super) fn drive_rendezvous(&mut self, now: Now) {
        for ((peer, _), deposited) in std::mem::take(&mut self.rendezvous_client.answers) {
            self.send_message(peer, &Message::Deposited(deposited));
        }
        let Self { rendezvous_client, sockets, sessions, scratch, .. } = self;
        let mut post = |relay: PeerId, message: &Message<'_>| {
            scratch.clear();
            message.write(scratch);
            Self::post(sockets, sessions, relay, scratch);
        };
        for line in rendezvous_client.lines.iter_mut().filter(|line| line.is_open) {
            let Some(sender) = &mut line.sender else { continue };
            while let Some(deposit) = sender.depositor.poll_deposit(now.steady) {
                post(line.relay, &Message::Deposit(deposit));
            }
        }
        for collection in rendezvous_client.collections.iter_mut().filter(|known| known.is_open) {
            if let Some(collect) = collection.collector.poll_collect(now.steady) {
                post(collection.relay, &Message::Collect(collect));
            }
        }
    }

    /// Does the periodic work: receivers, expiry, counts, sockets.
    pub(super) fn maintain_rendezvous(&mut self, now: Now) {
        self.maintain_store(now);
        self.name_recipients();
        let is_due = now.steady >= self.rendezvous_client.next_ping;
        for line in &mut self.rendezvous_client.lines {
            line.is_open = self.sessions.is_open(line.relay);
            let Some(sender) = &mut line.sender else { continue };
            sender.depositor.handle_timeout(now.steady);
            let counts = sender.depositor.counts();
            let before = std::mem::replace(&mut sender.counted, counts);
            add(&self.counts.deposited, counts.deposited - before.deposited);
            add(&self.counts.expired, counts.expired - before.expired);
        }
        for collection in &mut self.rendezvous_client.collections {
            collection.is_open = self.sessions.is_open(collection.relay);
        }
        self.rendezvous_client.ends.retain(|_, end| now.steady.since(end.used) < IDLE);
        if is_due {
            self.rendezvous_client.next_ping = now.steady + PING_INTERVAL;
            self.ping_rendezvous(now);
        }
    }

    /// Pings the relays: one that has restarted does not know the session, which shows when it does
    /// not answer.
    fn ping_rendezvous(&mut self, now: Now) {
        let waits =
            |line: &&Line| line.sender.as_ref().is_some_and(|sender| !sender.depositor.is_empty());
        let lines = self.rendezvous_client.lines.iter().filter(waits).map(|line| line.relay);
        let collections = self.rendezvous_client.collections.iter().map(|known| known.relay);
        for relay in lines.chain(collections) {
            if let Some(link) = self.sessions.link_of(relay) {
                self.sessions.ping(now, relay, link);
            }
        }
    }

    fn maintain_store(&mut self, now: Now) {
        let Some(mut message_store) = self.shared.idle_store() else { return };
        message_store.handle_timeout(now.steady);
        let tally = message_store.take_tally();
        add(&self.counts.deposited, tally.deposited);
        add(&self.counts.collected, tally.collected);
        add(&self.counts.expired, tally.expired);
        add(&self.counts.evicted, tally.evicted);
    }

    /// Returns the status of the paths with deposits; what becomes of packets once the relay has
    /// them is not reported.
    pub(super) fn report_rendezvous(&self) -> impl Iterator<Item = FlowStatus> {
        self.rendezvous_client.lines.iter().map(|line| {
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
    if !ends.contains_key(&flow) && ends.len() < MOST {
        let end = End { local: Local::bind(any_like(to), false, mark).ok()?, used: now.steady };
        ends.insert(flow, end);
    }
    let end = ends.get_mut(&flow)?;
    end.used = now.steady;
    Some(&mut end.local)
}
