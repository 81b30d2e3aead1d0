//! Coding at the ingress relay: Algorithm 1 of [JQ A].
//!
//! Each packet goes into two blocks: one of its own flow (in-stream, s repair packets per packet),
//! and one with packets of other flows to the same egress relay (cross-stream, r repair packets for
//! k packets, at most one packet of each flow). A block is closed, and its repair packets sent,
//! when it is full, when its timer expires, or when every open block already holds a packet of the
//! new packet's flow: then the oldest is closed, and if it held a packet of that flow alone, this
//! is left without protection.
//!
//! Two errors of the algorithm as printed are corrected:
//! - *`dc2_id` before it is set*: line 5 sends in-stream repair packets to `dc2_id`, which line 6
//!   sets. The flow's egress relay is looked up first here.
//! - *never drains*: after lines 4, 15 and 22 a queue keeps what was encoded. A full in-stream
//!   queue would be encoded again with every packet, a full cross-stream queue never take another,
//!   and line 20 would add a second packet of a flow to the block just sent. Closing empties a
//!   block here.
//!
//! One choice differs: the printed algorithm takes the queues in rotation, so that a block waits Q
//! rounds for its packets when not all flows are in step. [`Placement::OldestFirst`] fills the
//! block that is nearest to its timer; [`Placement::RoundRobin`] is as printed.
//!
//! Packets are added to the repair packets as they arrive and are not kept, so that closing costs
//! no arithmetic. The blocks of ended flows are removed once the last of them is closed.

use std::collections::BTreeMap;

use tradewind_fec::{Encoder, MAX_REPAIRS, MAX_SOURCES};
use tradewind_units::{Duration, Timestamp};

use super::{IngressFlow, Sharing};
use crate::event::{Closed, Event};
use crate::id::{FlowNumber, PacketId, Peer, Tenant};
use crate::message::{MemberList, Message, Repair, Scope, Source};
use crate::outbox::Outbox;

/// In-stream coding of a flow: s = `repairs / packets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InStream {
    /// Packets in a block, 1 to 32.
    pub packets: u8,
    /// Repair packets of a block, 1 to 8.
    pub repairs: u8,
}

/// The rule that chooses the open block for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The oldest block that holds no packet of the flow.
    #[default]
    OldestFirst,
    /// The next block in rotation that holds none [JQ A].
    RoundRobin,
}

/// The parameters of coding. Cross-stream: r = `repairs / packets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coding {
    /// k: packets in a block, each of another flow, 1 to 32.
    pub packets: u8,
    /// Repair packets of a block, 1 to 8.
    pub repairs: u8,
    /// Blocks that may be open at a time in each group, 1 to 255.
    pub blocks: u8,
    /// Longest that a cross-stream block is open.
    pub cross_stream_within: Duration,
    /// Longest that an in-stream block is open.
    pub in_stream_within: Duration,
    /// The rule that chooses the block for a packet.
    pub placement: Placement,
}

impl Default for Coding {
    /// Returns the defaults: k = 10, two repair packets [JQ 4], four blocks, 30 and 60 ms. The
    /// paper tunes queues and timers to each application; these suit 20 packets a second and more.
    fn default() -> Self {
        Self {
            packets: 10,
            repairs: 2,
            blocks: 4,
            cross_stream_within: Duration::from_millis(30),
            in_stream_within: Duration::from_millis(60),
            placement: Placement::default(),
        }
    }
}

/// Flows whose packets may be coded together: those to one egress relay, of one tenant unless
/// tenants share.
type Group = (Peer, Option<Tenant>);

/// The block of a timer; the number distinguishes it from later blocks in the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BlockId {
    CrossStream(Group, u8, u64),
    InStream(FlowNumber, u64),
}

/// The deadline of a block that was opened, and the block.
type BlockDeadline = Option<(Timestamp, BlockId)>;

#[derive(Debug, Clone)]
pub(super) struct Coder {
    coding: Coding,
    next_block: u64,
    groups: BTreeMap<Group, Shared>,
    flows: BTreeMap<FlowNumber, FlowState>,
    entries: Vec<u8>,
}

/// The cross-stream blocks of a group.
#[derive(Debug, Clone)]
struct Shared {
    blocks: Vec<Block>,
    /// The number of flows whose packets go into them.
    flows: usize,
}

impl Shared {
    fn new(coding: &Coding) -> Self {
        let blocks = (0..coding.blocks.max(1)).map(|_| Block::new(coding.repairs)).collect();
        Self { blocks, flows: 0 }
    }

    /// Returns whether the blocks are empty and no flow is left that could add a packet.
    fn is_over(&self) -> bool {
        self.flows == 0 && self.blocks.iter().all(|block| block.packets.is_empty())
    }
}

#[derive(Debug, Clone)]
struct FlowState {
    /// The group whose blocks its packets go into.
    group: Option<Group>,
    /// The next place in the rotation.
    cursor: u8,
    in_stream: Option<(InStream, Peer, Block)>,
}

/// A block while it is open; its number is that of its repair packets.
#[derive(Debug, Clone)]
struct Block {
    number: u64,
    encoder: Encoder,
    packets: Vec<PacketId>,
}

impl Block {
    fn new(repairs: u8) -> Self {
        let repairs = usize::from(repairs).clamp(1, MAX_REPAIRS);
        let encoder = Encoder::new(repairs).expect("a possible number of repair packets");
        Self { number: 0, encoder, packets: Vec::new() }
    }

    fn holds(&self, flow: FlowNumber) -> bool {
        self.packets.iter().any(|packet| packet.flow == flow)
    }

    /// Adds a packet; returns whether it is the block's first.
    fn add(&mut self, packet: PacketId, payload: &[u8]) -> bool {
        self.encoder
            .add(self.packets.len(), payload)
            .expect("a block is closed when full, and payloads are short");
        self.packets.push(packet);
        self.packets.len() == 1
    }

    fn clear(&mut self) {
        self.encoder.clear();
        self.packets.clear();
    }
}

fn full(packets: u8) -> usize {
    usize::from(packets).clamp(1, MAX_SOURCES)
}

impl Coder {
    pub(super) fn new(coding: Coding, first_block: u64) -> Self {
        Self {
            coding,
            next_block: first_block,
            groups: BTreeMap::new(),
            flows: BTreeMap::new(),
            entries: Vec::new(),
        }
    }

    /// Codes a packet; returns the deadlines of the blocks that it opened.
    pub(super) fn add(
        &mut self,
        now: Timestamp,
        flow: &IngressFlow,
        source: Source<'_>,
        outbox: &mut Outbox,
    ) -> [BlockDeadline; 2] {
        let in_stream = self.add_in_stream(now, flow, source, outbox);
        [in_stream, self.add_cross_stream(now, flow, source, outbox)]
    }

    /// Runs lines 1 to 5, with the egress relay known.
    fn add_in_stream(
        &mut self,
        now: Timestamp,
        flow: &IngressFlow,
        source: Source<'_>,
        outbox: &mut Outbox,
    ) -> BlockDeadline {
        let number = source.packet.flow;
        let fresh = FlowState { group: None, cursor: 0, in_stream: None };
        let state = self.flows.entry(number).or_insert(fresh);
        let wanted = flow.in_stream.map(|wanted| (wanted, flow.egress));
        if state.in_stream.as_ref().map(|(is, egress, _)| (*is, *egress)) != wanted {
            state.in_stream = wanted.map(|(w, egress)| (w, egress, Block::new(w.repairs)));
        }
        let (wanted, egress, block) = state.in_stream.as_mut()?;
        let is_first = block.add(source.packet, source.payload);
        if is_first {
            block.number = self.next_block;
            self.next_block += 1;
        }
        let opened = block.number;
        if block.packets.len() >= full(wanted.packets) {
            let to = *egress;
            send(block, Scope::InStream, Closed::Full, to, &mut self.entries, outbox);
            return None;
        }
        is_first.then(|| (now + self.coding.in_stream_within, BlockId::InStream(number, opened)))
    }

    /// Runs lines 6 to 23.
    fn add_cross_stream(
        &mut self,
        now: Timestamp,
        flow: &IngressFlow,
        source: Source<'_>,
        outbox: &mut Outbox,
    ) -> BlockDeadline {
        let group = (flow.egress, (flow.sharing == Sharing::Own).then_some(flow.tenant));
        let (coding, number) = (self.coding, source.packet.flow);
        self.join(number, group);
        let blocks = match self.groups.get_mut(&group) {
            Some(shared) => &mut shared.blocks,
            None => return None,
        };
        let cursor = self.flows.get_mut(&number).map(|state| &mut state.cursor);
        let place = match coding.placement {
            Placement::OldestFirst => oldest(blocks.iter(), |block| !block.holds(number)),
            Placement::RoundRobin => in_rotation(blocks, cursor, number),
        };
        let place = place.unwrap_or_else(|| {
            // Every block holds a packet of its flow: the oldest block is closed.
            let place = oldest(blocks.iter(), |_| true).unwrap_or(0);
            let block = &mut blocks[place];
            if let [lone] = block.packets[..] {
                block.clear();
                outbox.emit(Event::Uncoded(lone));
            } else {
                let (scope, closed) = (Scope::CrossStream, Closed::Displaced);
                send(block, scope, closed, flow.egress, &mut self.entries, outbox);
            }
            place
        });
        let block = &mut blocks[place];
        let is_first = block.add(source.packet, source.payload);
        if is_first {
            block.number = self.next_block;
            self.next_block += 1;
        }
        if block.packets.len() >= full(coding.packets) {
            let (scope, closed) = (Scope::CrossStream, Closed::Full);
            send(block, scope, closed, flow.egress, &mut self.entries, outbox);
            return None;
        }
        let place = u8::try_from(place).expect("at most 255 blocks");
        let deadline = now + coding.cross_stream_within;
        is_first.then(|| {
            (deadline, BlockId::CrossStream(group, place, blocks[usize::from(place)].number))
        })
    }

    /// Closes a block whose timer has expired, if it is still the same.
    pub(super) fn close_due(&mut self, place: BlockId, outbox: &mut Outbox) {
        let (block, scope, egress, number) = match place {
            BlockId::CrossStream(group, index, number) => {
                let shared = self.groups.get_mut(&group);
                let block = shared.and_then(|shared| shared.blocks.get_mut(usize::from(index)));
                (block, Scope::CrossStream, group.0, number)
            }
            BlockId::InStream(flow, number) => {
                let state = self.flows.get_mut(&flow).and_then(|state| state.in_stream.as_mut());
                let Some((_, egress, block)) = state else { return };
                (Some(block), Scope::InStream, *egress, number)
            }
        };
        if let Some(block) = block.filter(|b| b.number == number && !b.packets.is_empty()) {
            send(block, scope, Closed::Timer, egress, &mut self.entries, outbox);
        }
        if let BlockId::CrossStream(group, ..) = place {
            self.prune(group);
        }
    }

    /// Forgets a flow that has ended; its packets in open blocks stay there.
    pub(super) fn forget(&mut self, flow: FlowNumber) {
        if let Some(group) = self.flows.remove(&flow).and_then(|state| state.group) {
            self.leave(group);
        }
    }

    /// Puts the packets of a flow into blocks of `group` from now on.
    fn join(&mut self, flow: FlowNumber, group: Group) {
        let Some(state) = self.flows.get_mut(&flow).filter(|state| state.group != Some(group))
        else {
            return;
        };
        let before = state.group.replace(group);
        let coding = self.coding;
        self.groups.entry(group).or_insert_with(|| Shared::new(&coding)).flows += 1;
        before.into_iter().for_each(|before| self.leave(before));
    }

    /// Notes that a flow has left `group`.
    fn leave(&mut self, group: Group) {
        if let Some(shared) = self.groups.get_mut(&group) {
            shared.flows -= 1;
        }
        self.prune(group);
    }

    /// Removes a group of which nothing is left. Each open block has a timer, after which this is
    /// checked again.
    fn prune(&mut self, group: Group) {
        if self.groups.get(&group).is_some_and(Shared::is_over) {
            self.groups.remove(&group);
        }
    }
}

/// Returns the block that was opened first among those that fit; an empty one when there is none.
fn oldest<'a>(
    blocks: impl Iterator<Item = &'a Block>,
    fits: impl Fn(&Block) -> bool,
) -> Option<usize> {
    let fitting = blocks.enumerate().filter(|(_, block)| fits(block));
    fitting
        .min_by_key(|(_, block)| (block.packets.is_empty(), block.number))
        .map(|(place, _)| place)
}

/// Returns the next block in the flow's rotation that holds no packet of it.
fn in_rotation(blocks: &[Block], cursor: Option<&mut u8>, flow: FlowNumber) -> Option<usize> {
    let mut unused = 0;
    let cursor = cursor.unwrap_or(&mut unused);
    for _ in 0..blocks.len() {
        let place = usize::from(*cursor) % blocks.len();
        *cursor = u8::try_from((place + 1) % blocks.len()).expect("at most 255 blocks");
        if !blocks[place].holds(flow) {
            return Some(place);
        }
    }
    None
}

/// Sends a block's repair packets and empties it.
///
/// A block that is closed before it is full sends no more repair packets than it has packets: more
/// could recover nothing.
fn send(
    block: &mut Block,
    scope: Scope,
    closed: Closed,
    egress: Peer,
    entries: &mut Vec<u8>,
    outbox: &mut Outbox,
) {
    entries.clear();
    MemberList::write(block.packets.iter().copied(), entries);
    let columns = block.encoder.members();
    let members = MemberList::of(columns, entries).expect("an entry for each column");
    let rows = block.encoder.repairs().min(block.packets.len());
    let mut bytes = 0;
    for row in 0..rows {
        let repair = Repair {
            scope,
            row: row as u8,
            rows: rows as u8,
            block: block.number,
            members,
            symbol: block.encoder.repair(row),
        };
        bytes += outbox.send(egress, &Message::Repair(repair)).unwrap_or(0);
    }
    outbox.emit(Event::BlockClosed {
        scope,
        closed,
        members: block.packets.len() as u8,
        repairs: rows as u8,
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
    });
    block.clear();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Class, Service};

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    fn flow(egress: u32, tenant: u32) -> IngressFlow {
        IngressFlow {
            sender: Peer(1),
            egress: Peer(egress),
            tenant: Tenant(tenant),
            sharing: Sharing::Own,
            most: Service::Coding,
            in_stream: None,
        }
    }

    /// Codes one packet; returns the deadline of the cross-stream block that it opened.
    fn code(coder: &mut Coder, number: u64, sequence: u64, flow: &IngressFlow) -> BlockDeadline {
        let packet = PacketId { flow: FlowNumber(number), sequence };
        let (service, class) = (Service::Coding, Class::Normal);
        let source = Source { packet, service, class, payload: b"any" };
        coder.add(at(sequence), flow, source, &mut Outbox::default())[1]
    }

    #[test]
    fn coding_group_ends_with_last_flow() {
        let (mut coder, mut outbox) = (Coder::new(Coding::default(), 0), Outbox::default());
        for tenant in 0..1000 {
            let flows = [u64::from(tenant) * 2, u64::from(tenant) * 2 + 1];
            let due = flows.map(|number| code(&mut coder, number, 0, &flow(7, tenant)));
            coder.forget(FlowNumber(flows[0]));
            assert_eq!(coder.groups.len(), 1, "the other flow is still there");
            coder.forget(FlowNumber(flows[1]));
            assert_eq!(coder.groups.len(), 1, "packets wait in its block");
            for (_, place) in due.into_iter().flatten() {
                coder.close_due(place, &mut outbox);
            }
            assert_eq!(coder.groups.len(), 0, "tenant {tenant}");
        }
        assert!(outbox.poll_transmit().is_some(), "what was left in blocks was protected");
    }

    #[test]
    fn flow_leaves_group_with_relay() {
        let (mut coder, mut outbox) = (Coder::new(Coding::default(), 0), Outbox::default());
        for (sequence, egress) in (0..).zip(10..1010) {
            let due = code(&mut coder, 1, sequence, &flow(egress, 1));
            coder.close_due(due.unwrap().1, &mut outbox);
        }
        assert_eq!(coder.groups.len(), 1);
        coder.forget(FlowNumber(1));
        assert_eq!(coder.groups.len(), 0);
    }
}
