//! Overlay paths through this node and to it: opened hop by hop with a hop header, then packets are
//! forwarded by label (`tradewind_packet::label`).

use std::net::SocketAddr;
use std::ops::Range;

use tradewind_config::packet::LegSeal;
use tradewind_grant::{
    Destination, Hop, OpenHeader, PublicIdentity, ReceivedHeader, Target, Trust, VerifiedGrant,
    Verifier,
};
use tradewind_net::udp::Train;
use tradewind_packet::label::{Answered, LabelEntry, Labels, PathPosition};
use tradewind_packet::message::{Message, PATH_HEADER_BYTES, Refusal};
use tradewind_packet::session::{Now, OVERHEAD, PASSED_BYTES, PeerId, is_initiation};
use tradewind_telemetry::limited;
use tradewind_units::{Duration, SharedRate, Timestamp};

use super::AROUND_DATAGRAM;
use super::access::Access;
use super::context::Context;
use super::neighbours::Legs;
use super::refusals::{Objection, RefusedOpenings};
use crate::counts::add;

/// Signatures and Diffie-Hellman steps a second that gateways may cause over paths; each gets its
/// share. Chosen: at some 150 us each a sixth of a core, as for handshakes with a cookie.
const MAX_EXPENSIVE_PER_SECOND: usize = 1000;

/// The authorization of a path: checked again when the rules change.
#[derive(Debug)]
pub(super) struct PathAuthorization {
    verified: VerifiedGrant,
    leads: NextHop,
}

/// The next step of a path from here.
#[derive(Debug, Clone, Copy)]
enum NextHop {
    /// To a next hop.
    On(SocketAddr),
    /// To this node, for this destination.
    Here(SocketAddr),
}

impl PathAuthorization {
    fn of(header: &OpenHeader, leads: NextHop) -> Self {
        Self { verified: header.verified_grant(), leads }
    }

    fn is_allowed(&self, access: &Access, trust: &Trust) -> bool {
        let grant = Some(&*self.verified.grant);
        let leads = match self.leads {
            NextHop::On(address) => access.allows(None, Target::NextHop(address)),
            NextHop::Here(to) => access.allows_inside(grant, Target::Address(to)),
        };
        trust.check(&self.verified).is_ok() && leads.is_ok()
    }
}

/// The outcome of packets under a label.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// They were forwarded, or dropped.
    Done,
    /// Their path ends here.
    AtEnd,
}

/// All paths.
pub(super) struct Forwarding {
    pub(super) labels: Labels<PathAuthorization>,
    verifier: Verifier,
    /// Rate limit of signatures and Diffie-Hellman steps that a gateway or its neighbour causes.
    dear: SharedRate<PublicIdentity>,
    refused: RefusedOpenings,
}

impl Forwarding {
    pub(super) fn new(verifier: Verifier) -> Self {
        let dear = SharedRate::new(MAX_EXPENSIVE_PER_SECOND, Duration::from_secs(1));
        let (labels, refused) = (Labels::default(), RefusedOpenings::default());
        Self { labels, verifier, dear, refused }
    }

    /// Returns the verifier of paths' headers, to be changed.
    pub(super) fn verifier(&mut self) -> &mut Verifier {
        &mut self.verifier
    }

    /// Forwards a packet that was sealed as a whole, unless its path ends here.
    pub(super) fn take_packet(
        &mut self,
        context: &mut Context,
        now: Now,
        (from, label): (PeerId, u32),
        body: &[u8],
    ) -> Passed {
        match self.labels.along(now.steady, from, label) {
            Some(LabelEntry { next: None, .. }) => return Passed::AtEnd,
            Some(LabelEntry { next: Some(_), .. }) if context.has_waited_long() => {
                add(&context.counts.stale, 1);
            }
            Some(LabelEntry { next: Some(next), .. }) => self.pass_on(context, label, next, body),
            None => add(&context.counts.dropped, 1),
        }
        Passed::Done
    }

    /// Forwards the datagrams in a part of a train, unless their path ends here.
    pub(super) fn take_train(
        &mut self,
        context: &mut Context,
        now: Now,
        (from, label): (PeerId, u32),
        (train, part): (&mut Train<'_>, Range<usize>),
    ) -> Passed {
        let segment = train.segment();
        let count = part.len().div_ceil(segment);
        match self.labels.along(now.steady, from, label) {
            Some(LabelEntry { next: None, .. }) => return Passed::AtEnd,
            Some(LabelEntry { next: Some(_), .. }) if context.has_waited_long() => {
                add(&context.counts.stale, count as u64);
            }
            Some(LabelEntry { next: Some((peer, next)), .. })
                if context.config.leg_seal == LegSeal::Headers =>
            {
                let bodies = part.len() - count * PASSED_BYTES;
                if context.pass_train(peer, next, (train, part)) {
                    self.note_passed(context, label, (count, bodies));
                }
            }
            Some(LabelEntry { next: Some(next), .. }) => {
                for datagram in train.bytes()[part].chunks_mut(segment) {
                    self.pass_on(context, label, next, &datagram[PASSED_BYTES..]);
                }
            }
            None => add(&context.counts.dropped, count as u64),
        }
        Passed::Done
    }

    /// Forwards a packet that came under a label. An empty one is never valid.
    fn pass_on(
        &mut self,
        context: &mut Context,
        label: u32,
        (peer, next): (PeerId, u32),
        body: &[u8],
    ) {
        if body.is_empty() {
            add(&context.counts.dropped, 1);
        } else if context.pass(peer, next, body) {
            self.note_passed(context, label, (1, body.len()));
        }
    }

    /// Counts forwarded datagrams, and their bytes with all headers.
    fn note_passed(&mut self, context: &Context, label: u32, (datagrams, bytes): (usize, usize)) {
        add(&context.counts.forwarded, datagrams as u64);
        let around = AROUND_DATAGRAM
            + match context.config.leg_seal {
                LegSeal::Headers => PASSED_BYTES,
                LegSeal::Whole => PATH_HEADER_BYTES + OVERHEAD,
            };
        self.labels.charge(label, (datagrams * around + bytes) as u64);
    }

    /// Returns whether a datagram of the session between the ends of a path may be opened here: a
    /// gateway causes only so many handshakes.
    pub(super) fn admits(&mut self, now: Now, label: u32, datagram: &[u8]) -> bool {
        let place = self.labels.place(label).filter(|_| is_initiation(datagram));
        place.is_none_or(|place| self.dear.take(now.steady, place.gateway))
    }

    /// Sends a datagram over the path that ends here under `label`.
    pub(super) fn send_over(&self, context: &mut Context, label: u32, datagram: &[u8]) -> bool {
        match self.labels.reverse_hop(label) {
            Some((neighbour, back)) => context.pass(neighbour, back, datagram),
            None => false,
        }
    }

    /// Drops every path that others have opened and that the rules no longer allow; returns how
    /// many.
    pub(super) fn drop_refused(&mut self, context: &Context) -> usize {
        self.labels.retain(|basis| basis.is_allowed(&context.access, &context.trust))
    }

    /// Opens a path for a neighbour: to the next hop, or, at the last node, to this one.
    pub(super) fn open(
        &mut self,
        context: &mut Context,
        legs: &mut Legs,
        now: Now,
        (asker, header): ((PeerId, u32), &[u8]),
    ) {
        if let Some(mine) = self.labels.opened_by(asker) {
            // The reply was lost, or is still awaited.
            return self.answer(context, asker, mine);
        }
        if let Some(reason) = self.refused.reason(now, asker) {
            return refuse(context, asker, reason);
        }
        if let Err(Objection { reason, text }) = self.try_open(context, legs, now, (asker, header))
        {
            log_refusal(context, asker.0, &text);
            self.refused.remember(now, asker, reason);
            refuse(context, asker, reason);
            add(&context.counts.dropped, 1);
        }
    }

    fn try_open(
        &mut self,
        context: &mut Context,
        legs: &mut Legs,
        now: Now,
        (asker, header): ((PeerId, u32), &[u8]),
    ) -> Result<(), Objection> {
        let received = ReceivedHeader::parse(header)?;
        let nobody = || Objection::new(Refusal::Other, "a neighbour without a session");
        let neighbour = context.sessions.identity_of(asker.0).ok_or_else(nobody)?;
        if !self.verifier.knows_grant_of(&received) && !self.dear.take(now.steady, neighbour) {
            return Err(Objection::new(Refusal::Other, "too many new grants in a second"));
        }
        let header = self.verifier.open_received(now.unix, received)?;
        if header.neighbour() != neighbour {
            return Err(Objection::new(Refusal::Other, "another neighbour's path"));
        }
        let place = PathPosition {
            gateway: header.grant.gateway,
            is_first: header.hop == 0,
            is_last: header.hop + 2 == header.route.hops().len(),
        };
        if !self.labels.has_room_for(now.steady, place.gateway) {
            return Err(Objection::new(Refusal::Full, "its gateway has too many labels"));
        }
        match header.next_hop().copied() {
            Some(next) => self.lead_on(context, legs, now, asker, (place, &header, next)),
            None => self.end_path(context, now.steady, asker, (place, &header)),
        }?;
        context.journal.iter().for_each(|journal| journal.path_opened(&header));
        Ok(())
    }

    /// Ends a path here: its packets are for this node.
    fn end_path(
        &mut self,
        context: &mut Context,
        now: Timestamp,
        asker: (PeerId, u32),
        (place, header): (PathPosition, &OpenHeader),
    ) -> Result<(), Objection> {
        let Destination::Address(to) = header.destination else {
            return Err(Objection::new(Refusal::Other, "packets go to addresses, not names"));
        };
        // For a range this is the first address, and nothing is delivered yet.
        context.access.allows_inside(Some(&header.grant), Target::Address(to))?;
        let basis = PathAuthorization::of(header, NextHop::Here(to));
        let mine = self.labels.end_here(now, asker, (place, basis)).ok_or_else(no_label)?;
        self.answer(context, asker, mine);
        Ok(())
    }

    /// Continues a path to a next hop, where it is opened before the reply is sent.
    fn lead_on(
        &mut self,
        context: &mut Context,
        legs: &mut Legs,
        now: Now,
        asker: (PeerId, u32),
        (place, header, next): (PathPosition, &OpenHeader, Hop),
    ) -> Result<(), Objection> {
        let checked = context.access.allows(None, Target::NextHop(next.address));
        checked.map_err(|error| Objection::to_next_hop(&error))?;
        let objection = |reason, text| move || Objection::new(reason, text);
        let sealed = self.verifier.forward(header)?;
        let sealed = sealed.ok_or_else(objection(Refusal::Other, "no next hop"))?;
        let leg = legs.leg_for(context, now, (sealed.from, next), place.gateway);
        let peer = leg.ok_or_else(objection(Refusal::Full, "there are too many next hops"))?;
        let basis = PathAuthorization::of(header, NextHop::On(next.address));
        let there = (peer, sealed.bytes);
        let mine = self.labels.lead_on(now.steady, asker, (place, basis), there);
        let mine = mine.ok_or_else(no_label)?;
        if let Some((peer, label, header)) = self.labels.poll_opening(now.steady, mine) {
            context.send_message(peer, &Message::Open { label, header });
        }
        Ok(())
    }

    fn answer(&self, context: &mut Context, (from, theirs): (PeerId, u32), mine: u32) {
        if self.labels.is_open(mine) {
            context.send_message(from, &Message::Opened { label: theirs, next: mine });
        }
    }

    /// Completes a path that the next hop has opened; its other direction has the label `mine`
    /// here. Returns whether it is one that this node opened.
    pub(super) fn opened(
        &mut self,
        context: &mut Context,
        now: Now,
        (from, theirs): (PeerId, u32),
        mine: u32,
    ) -> bool {
        match self.labels.complete(now.steady, (from, theirs), mine) {
            Some(Answered::Through { asker, mine }) => {
                self.answer(context, asker, mine);
                false
            }
            Some(Answered::Own) => true,
            None => false,
        }
    }

    /// Handles the refusal of a path by the next hop or one behind it; its other direction has the
    /// label `mine` here. Returns whether it is one that this node opened.
    pub(super) fn refused(
        &mut self,
        context: &mut Context,
        now: Now,
        (from, mine): (PeerId, u32),
        (by, reason): (PublicIdentity, Refusal),
    ) -> bool {
        match self.labels.refuse(from, mine) {
            Some(Answered::Through { asker, .. }) => {
                self.refused.remember(now, asker, reason);
                let (upstream, label) = asker;
                context.send_message(upstream, &Message::Refused { label, by, reason });
                false
            }
            Some(Answered::Own) => true,
            None => false,
        }
    }

    /// Drops idle labels, and repeats unanswered openings for a while.
    pub(super) fn maintain(&mut self, context: &mut Context, now: Now) {
        self.labels.handle_timeout(now.steady, |peer, label, header| {
            context.send_message(peer, &Message::Open { label, header });
        });
    }
}

/// Reports to a neighbour that its request under its label is refused.
fn refuse(context: &mut Context, (from, label): (PeerId, u32), reason: Refusal) {
    let by = context.sessions.public();
    context.send_message(from, &Message::Refused { label, by, reason });
}

/// Logs a refusal with all details, at a limited rate. The neighbour that asked gets the reason
/// alone.
fn log_refusal(context: &Context, from: PeerId, refusal: &str) {
    let identity = context.sessions.identity_of(from);
    let neighbour = identity.map(|identity| identity.to_string());
    limited!(warn, context.refusal_lines, identity, neighbour, %refusal, "path refused");
}

fn no_label() -> Objection {
    Objection::new(Refusal::Full, "no label is left")
}

#[cfg(test)]
mod tests;
