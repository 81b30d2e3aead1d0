//! Recovery of packets with repair packets: in-stream by the receiver itself, cross-stream with
//! helpers [JQ 3.2, cooperative recovery].

use tradewind_fec::{Decoder, Members};
use tradewind_units::Timestamp;

use super::blocks::{Block, BlockKey, Recovery, with};
use super::{Egress, MAX_ANSWERS, Timer};
use crate::event::{Arrival, DropReason, Event, Failure};
use crate::id::{PacketId, Peer};
use crate::message::{HelpRequest, MemberList, Message, RecoverySource, Repair, Scope};

impl Egress {
    pub(super) fn take_repair(
        &mut self,
        now: Timestamp,
        from: Peer,
        repair: &Repair<'_>,
    ) -> Result<(), DropReason> {
        let mut owner = None;
        for packet in repair.members.packets() {
            match self.flows.get(&packet.flow) {
                None => return Err(DropReason::UnknownFlow),
                Some(flow) if flow.ingress != from => return Err(DropReason::WrongPeer),
                Some(_) if self.groups.contains_key(&packet.flow) => {
                    return Err(DropReason::NotServed);
                }
                Some(flow) => owner = owner.or(Some(flow.tenant)),
            }
        }
        let (key, owner) = ((from, repair.block), owner.ok_or(DropReason::UnknownFlow)?);
        self.blocks.insert(now, owner, key, repair)?;
        self.set_expiry(now);
        for packet in repair.members.packets() {
            self.report_absence_again(now, packet.flow);
            self.serve_those_waiting(now, packet);
            if repair.scope == Scope::InStream {
                self.overtake_helpers(packet);
            }
        }
        self.solve(key);
        Ok(())
    }

    /// Sends a repair packet of a flow that has arrived while helpers are asked for one of the
    /// flow's packets: the receiver need not wait for them.
    fn overtake_helpers(&mut self, packet: PacketId) {
        let key = self.blocks.covering(packet).and_then(|cover| cover.cross_stream);
        let Some(block) = key.and_then(|key| self.blocks.get_mut(key)) else { return };
        let is_wanted = block.column_of(packet).is_some_and(|column| block.wanted.contains(column));
        if is_wanted
            && block.recovery.is_some()
            && let Some(flow) = self.flows.get(&packet.flow)
        {
            let receiver = flow.receiver;
            self.serve_in_stream(packet, receiver);
        }
    }

    /// Sends a repair packet of the packet's own flow, if the receiver can solve the block with it.
    ///
    /// The receiver has the block's other packets, or requests them as well: it must not request
    /// more packets than it gets repair packets.
    pub(super) fn serve_in_stream(&mut self, packet: PacketId, receiver: Peer) -> bool {
        let request = (packet, receiver);
        let is_first = self.requests.answers(request).is_none_or(|answers| answers == 0);
        let key = self.blocks.covering(packet).and_then(|cover| cover.in_stream);
        let Some(key) = key.filter(|_| is_first) else { return false };
        let Some(block) = self.blocks.get_mut(key) else { return false };
        let Some(column) = block.column_of(packet) else { return false };
        block.wanted = with(block.wanted, column);
        let Some((row, symbol)) = block.symbols().nth(block.wanted.len() - 1) else { return false };
        let mut entries = Vec::new();
        MemberList::write(block.packets.iter().copied(), &mut entries);
        let repair = Repair {
            scope: Scope::InStream,
            row: row as u8,
            rows: block.rows,
            block: key.1,
            members: MemberList::of(block.columns, &entries).expect("an entry for each column"),
            symbol,
        };
        self.outbox.send(receiver, &Message::Repair(repair));
        self.count_answer(request, Arrival::InStream);
        true
    }

    /// Begins to solve the block that holds `packet`, or adds the packet to the attempt in
    /// progress.
    pub(super) fn serve_cross_stream(&mut self, now: Timestamp, packet: PacketId) -> bool {
        let key = self.blocks.covering(packet).and_then(|cover| cover.cross_stream);
        let Some(key) = key else { return false };
        let Some(block) = self.blocks.get_mut(key) else { return false };
        let Some(column) = block.column_of(packet) else { return false };
        block.wanted = with(block.wanted, column);
        if block.wanted.len() > block.rows_here() {
            // Too few repair packets: another may be on its way.
            return false;
        }
        if let Some(recovery) = &mut block.recovery {
            // Its receiver requests it, and so cannot lend it.
            recovery.asked = Members::from_bits(recovery.asked.bits() & !(1 << column));
            if recovery.decoder.is_solvable() {
                self.solve(key);
                return true;
            }
        } else {
            let Some(decoder) = decoder_of(block) else { return false };
            let number = self.next_recovery;
            self.next_recovery += 1;
            let (asked, deadline) = (Members::NONE, Timestamp::ZERO);
            block.recovery = Some(Recovery { number, decoder, asked, deadline });
            self.recoveries.insert(number, key);
        }
        self.request_help(now, key, packet);
        self.solve(key);
        true
    }

    /// Sends help requests to the receivers of a block's other packets that were not asked yet.
    fn request_help(&mut self, now: Timestamp, key: BlockKey, packet: PacketId) {
        let Some(block) = self.blocks.get_mut(key) else { return };
        let members: Vec<(usize, PacketId)> = block.members().collect();
        let Some(recovery) = &mut block.recovery else { return };
        if recovery.deadline <= now {
            recovery.deadline = now + self.config.help_within;
            self.timers.set(recovery.deadline, Timer::Help(key));
        }
        let here = recovery.decoder.missing();
        let mut helpers = 0;
        for (column, lent) in members {
            let is_needed = here.contains(column)
                && !recovery.asked.contains(column)
                && !block.wanted.contains(column);
            let helper = self.flows.get(&lent.flow).map(|flow| flow.receiver);
            let Some(helper) = helper.filter(|_| is_needed) else { continue };
            if self.receivers.may_help(now, helper) {
                let request = HelpRequest { recovery: recovery.number, packet: lent };
                self.outbox.send(helper, &Message::HelpRequest(request));
                recovery.asked = with(recovery.asked, column);
                helpers += 1;
            }
        }
        if helpers > 0 {
            self.outbox.emit(Event::HelpAsked { packet, helpers });
        }
    }

    pub(super) fn take_help(
        &mut self,
        _now: Timestamp,
        from: Peer,
        request: HelpRequest,
        payload: &[u8],
    ) -> Result<(), DropReason> {
        let key = *self.recoveries.get(&request.recovery).ok_or(DropReason::NotAsked)?;
        let flow = self.flows.get(&request.packet.flow).ok_or(DropReason::UnknownFlow)?;
        if flow.receiver != from {
            return Err(DropReason::WrongPeer);
        }
        let block = self.blocks.get_mut(key).ok_or(DropReason::NotAsked)?;
        let column = block.column_of(request.packet).ok_or(DropReason::NotAsked)?;
        let recovery = block.recovery.as_mut().ok_or(DropReason::NotAsked)?;
        if !recovery.asked.contains(column) {
            return Err(DropReason::NotAsked);
        }
        match recovery.decoder.add_source(column, payload) {
            Ok(true) => {}
            Ok(false) => return Err(DropReason::Duplicate),
            Err(_) => return Err(DropReason::Contradiction),
        }
        self.solve(key);
        Ok(())
    }

    /// Returns the requested packets of a block to their receivers, if it can be solved.
    pub(super) fn solve(&mut self, key: BlockKey) {
        let Some(block) = self.blocks.get_mut(key) else { return };
        let Some(recovery) = &mut block.recovery else { return };
        if block.wanted.is_empty() || !recovery.decoder.is_solvable() {
            return;
        }
        let solved = recovery.decoder.recover();
        let wanted = std::mem::replace(&mut block.wanted, Members::NONE);
        let members: Vec<(usize, PacketId)> =
            block.members().filter(|(column, _)| wanted.contains(*column)).collect();
        let Ok(solved) = solved else {
            // A lent packet differs from the coded one. A later attempt begins anew.
            let number = block.recovery.take().map(|recovery| recovery.number);
            self.recoveries.remove(&number.unwrap_or_default());
            return self.fail(members.into_iter(), Failure::Contradiction);
        };
        for (column, packet) in members {
            let Some(flow) = self.flows.get(&packet.flow) else { continue };
            let Some((_, payload)) = solved.iter().find(|(solved, _)| *solved == column) else {
                continue;
            };
            let request = (packet, flow.receiver);
            let answers = self.requests.answers(request).unwrap_or(MAX_ANSWERS);
            if answers >= MAX_ANSWERS || payload.is_empty() {
                continue;
            }
            let message =
                Message::Recovered { packet, means: RecoverySource::CrossStream, payload };
            self.outbox.send(flow.receiver, &message);
            self.count_answer(request, Arrival::CrossStream);
        }
    }

    fn fail(&mut self, members: impl Iterator<Item = (usize, PacketId)>, failure: Failure) {
        for (_, packet) in members {
            if let Some(receiver) = self.flows.get(&packet.flow).map(|flow| flow.receiver) {
                self.requests.set_wait((packet, receiver), None);
            }
            self.outbox.emit(Event::Failed { packet, failure });
        }
    }

    /// Ends a recovery whose helpers' time is over.
    pub(super) fn end_recovery(&mut self, now: Timestamp, at: Timestamp, key: BlockKey) {
        let Some(block) = self.blocks.get_mut(key) else { return };
        let members: Vec<(usize, PacketId)> = block.members().collect();
        let wanted = block.wanted;
        let Some(recovery) = block.recovery.as_mut().filter(|r| r.deadline == at) else { return };
        let silent = recovery.decoder.missing();
        let asked = std::mem::replace(&mut recovery.asked, Members::NONE);
        block.wanted = Members::NONE;
        for (column, packet) in &members {
            let Some(flow) = self.flows.get(&packet.flow) else { continue };
            let receiver = flow.receiver;
            let is_silent = asked.contains(*column) && silent.contains(*column);
            if is_silent && self.receivers.miss(now, receiver) {
                self.report_presence(receiver, false);
            }
        }
        let failed = members.into_iter().filter(|(column, _)| wanted.contains(*column));
        self.fail(failed, Failure::TooFewHelpers);
    }
}

/// Returns a decoder with the repair packets that have arrived.
fn decoder_of(block: &Block) -> Option<Decoder> {
    let mut decoder = Decoder::new(block.columns, block.rows.into()).ok()?;
    for (row, symbol) in block.symbols() {
        decoder.add_repair(row, symbol).ok()?;
    }
    Some(decoder)
}
