//! Overlay paths by label: opened hop by hop with a hop header, then forwarding takes one look-up a
//! packet.
//!
//! A label names the receiving end of one direction at one node. A node that opens a path sends the
//! label under which it wants to receive; the reply holds the label under which the other side
//! wants to receive.
//!
//! A path through here takes two labels, of which each gateway has its share. Both are released
//! soon if an opening is not answered: its endpoint opens another path each second until one
//! answers, and only the last of them counts.

use std::net::SocketAddr;
use std::ops::Range;

use tradewind_config::packet::LegSeal;
use tradewind_grant::{
    Destination, Hop, OpenHeader, PublicIdentity, ReceivedHeader, Target, VerifiedGrant,
};
use tradewind_net::udp::Train;
use tradewind_packet::event::Arrival;
use tradewind_packet::message::{Message, PATH_HEADER_BYTES, Refusal};
use tradewind_packet::session::{Link, Now, OVERHEAD, PASSED_BYTES, PeerId, is_initiation};
use tradewind_telemetry::limited;
use tradewind_units::{Duration, Timestamp};

use super::Engine;
use super::refusals::Objection;
use super::routes::RemoteEndpoint;
use super::serving::{AROUND_DATAGRAM, Place};
use crate::counts::add;

/// Silence after which a label is forgotten. Chosen: on a path in use there are pings every 200 ms.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of the tries to open the next hop of a path.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// Time for which these tries go on. Chosen: the endpoint gives the path up after one second, and
/// its message may come late.
const OPENS_WITHIN: Duration = Duration::from_secs(2);
/// Most labels of one gateway's paths at one worker. Chosen: for paths to a thousand remote
/// endpoints; a sixteenth of all.
const MOST_FOR_ONE: usize = 2048;
/// Silence after which a label may be released for others of its gateway's. Chosen: fifteen pings,
/// of which there are five a second.
const GIVES_WAY_AFTER: Duration = Duration::from_secs(3);
/// Age above which a relay forwards packets no more, because it has stood still. Chosen: as long as
/// relays cache packets for receivers that miss them; relays do not know the packets' budgets.
pub(super) const HELD_FOR: Duration = Duration::from_secs(1);

/// The receiving end of one direction of a path.
#[derive(Debug)]
pub(super) struct Label {
    /// The only neighbour that may use it.
    from: PeerId,
    /// The label under which that neighbour opened it, if it has.
    opened_as: Option<u32>,
    used: Timestamp,
    /// This node's place on the path, from the path's header.
    place: Option<Place>,
    /// Bytes forwarded under it, with all headers, that no flow was charged for yet.
    uncharged: u64,
    /// The label of the other direction here, where the path goes on.
    other: Option<u32>,
    /// The authorization of the path, if another node opened it; it holds for both directions.
    basis: Option<Box<Basis>>,
    to: To,
}

/// The authorization of a path: checked again when the rules change.
#[derive(Debug)]
pub(super) struct Basis {
    verified: VerifiedGrant,
    leads: Leads,
}

/// The next step of a path from here.
#[derive(Debug, Clone, Copy)]
enum Leads {
    /// To a next hop.
    On(SocketAddr),
    /// To this node, for this destination.
    Here(SocketAddr),
}

impl Basis {
    fn of(header: &OpenHeader, leads: Leads) -> Box<Self> {
        Box::new(Self { verified: header.verified_grant(), leads })
    }
}

impl Label {
    /// Returns a label of a path that no other node has opened.
    fn new(now: Now, from: PeerId, to: To) -> Self {
        let (opened_as, used, place, other, basis) = (None, now.steady, None, None, None);
        Self { from, opened_as, used, place, uncharged: 0, other, basis, to }
    }

    /// Returns the neighbour and its label for the other direction, if the path ends here.
    pub(super) fn way_back(&self) -> Option<(PeerId, u32)> {
        match self.to {
            To::Here { back: Some(back) } => Some((self.from, back)),
            _ => None,
        }
    }

    /// Returns this node's place on the path.
    pub(super) fn place(&self) -> Option<Place> {
        self.place
    }

    /// Returns the label of the other direction, if the next hop should have answered by now.
    fn unanswered(&self, now: Now) -> Option<u32> {
        let To::Next { opening: Some(opening), .. } = &self.to else { return None };
        (now.steady >= opening.ends).then_some(opening.mine)
    }

    /// Returns the neighbour that may use it and the one that it leads to.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = PeerId> + use<> {
        let next = match self.to {
            To::Next { peer, .. } => Some(peer),
            To::Here { .. } => None,
        };
        [Some(self.from), next].into_iter().flatten()
    }
}

#[derive(Debug)]
enum To {
    /// On to a neighbour, under its label once that is known.
    Next { peer: PeerId, label: Option<u32>, opening: Option<Box<Opening>> },
    /// The path ends here; the other direction has this label at `from`.
    Here { back: Option<u32> },
}

/// The place and the next hop of packets under a label.
pub(super) struct Along {
    pub(super) place: Option<Place>,
    /// The next neighbour and its label; `None` where the path ends.
    pub(super) next: Option<(PeerId, u32)>,
}

/// A hop header on its way to the next hop.
#[derive(Debug)]
struct Opening {
    header: Vec<u8>,
    /// The label of the other direction.
    mine: u32,
    next_try: Timestamp,
    /// The time at which it is given up.
    ends: Timestamp,
}

impl Engine {
    /// Forwards a packet that was sealed as a whole, or opens it where its path ends.
    pub(super) fn take_packet(&mut self, now: Now, from: PeerId, label: u32, body: &mut [u8]) {
        match self.along(now, from, label) {
            Some(Along { next: Some(_), .. }) if self.has_waited_long() => {
                add(&self.counts.stale, 1);
            }
            Some(Along { next: Some(next), .. }) => self.pass_on(label, next, body),
            Some(Along { next: None, .. }) => self.take_at_end(now, label, body),
            None => add(&self.counts.dropped, 1),
        }
    }

    /// Forwards the datagrams in a part of a train, or opens them where their path ends.
    pub(super) fn take_passed(
        &mut self,
        now: Now,
        from: PeerId,
        label: u32,
        (train, part): (&mut Train<'_>, Range<usize>),
    ) {
        let segment = train.segment();
        let count = part.len().div_ceil(segment);
        let Some(Along { next, .. }) = self.along(now, from, label) else {
            return add(&self.counts.dropped, count as u64);
        };
        if next.is_some() && self.has_waited_long() {
            return add(&self.counts.stale, count as u64);
        }
        if let Some((peer, next)) = next
            && self.config.leg_seal == LegSeal::Headers
        {
            let bodies = part.len() - count * PASSED_BYTES;
            if self.pass_train(peer, next, (train, part)) {
                self.note_passed(label, (count, bodies));
            }
            return;
        }
        for datagram in train.bytes()[part].chunks_mut(segment) {
            let body = &mut datagram[PASSED_BYTES..];
            match next {
                Some(next) => self.pass_on(label, next, body),
                None => self.take_at_end(now, label, body),
            }
        }
    }

    /// Returns whether the current input had waited here for longer than relays hold packets.
    pub(super) fn has_waited_long(&self) -> bool {
        self.age > HELD_FOR
    }

    /// Forwards a packet that came under a label. An empty one is never valid.
    fn pass_on(&mut self, label: u32, (peer, next): (PeerId, u32), body: &[u8]) {
        if body.is_empty() {
            add(&self.counts.dropped, 1);
        } else if self.pass(peer, next, body) {
            self.note_passed(label, (1, body.len()));
        }
    }

    /// Opens a datagram of the session between the ends of a path, of which one is here.
    fn take_at_end(&mut self, now: Now, label: u32, datagram: &mut [u8]) {
        if is_initiation(datagram)
            && let Some(Label { place: Some(place), .. }) = self.labels.get(label)
            && !self.dear.take(now.steady, place.gateway)
        {
            return add(&self.counts.dropped, 1);
        }
        self.store_original(datagram);
        let opened = self.sessions.handle_datagram(now, Link::Overlay(label), datagram);
        if let Some(opened) = opened {
            let peer = opened.peer;
            self.handle_message(now, peer, &datagram[opened.payload], Arrival::Overlay);
            // A gateway that sends over a path of its own is answered over it. A leg does not prove
            // whose datagrams it carries.
            let place = self.labels.get(label).and_then(|known| known.place);
            let is_theirs =
                place.is_some_and(|place| self.sessions.identity_of(peer) == Some(place.gateway));
            if is_theirs && let Some(remote) = self.remotes.get_mut(&peer) {
                remote.label = Some(label);
            }
        }
    }

    /// Sends a datagram over the path that ends here under `label`.
    pub(super) fn send_over(&mut self, label: u32, datagram: &[u8]) -> bool {
        match self.labels.get(label).and_then(Label::way_back) {
            Some((neighbour, back)) => self.pass(neighbour, back, datagram),
            None => false,
        }
    }

    /// Returns this node's place on the path and the next hop, if there is one, for packets from
    /// `from` under `label`.
    pub(super) fn along(&mut self, now: Now, from: PeerId, label: u32) -> Option<Along> {
        let known = self.labels.get_mut(label).filter(|known| known.from == from)?;
        known.used = now.steady;
        let next = match known.to {
            To::Next { peer, label, .. } => Some((peer, label?)),
            To::Here { .. } => None,
        };
        Some(Along { place: known.place, next })
    }

    /// Counts forwarded datagrams, and their bytes with all headers.
    fn note_passed(&mut self, label: u32, (datagrams, bytes): (usize, usize)) {
        add(&self.counts.forwarded, datagrams as u64);
        let around = AROUND_DATAGRAM
            + match self.config.leg_seal {
                LegSeal::Headers => PASSED_BYTES,
                LegSeal::Whole => PATH_HEADER_BYTES + OVERHEAD,
            };
        if let Some(known) = self.labels.get_mut(label) {
            known.uncharged += (datagrams * around + bytes) as u64;
        }
    }

    /// Returns the bytes forwarded under a label since the last call, for a flow that is charged
    /// for them now.
    pub(super) fn take_uncharged(&mut self, label: u32) -> u64 {
        self.labels.get_mut(label).map_or(0, |known| std::mem::take(&mut known.uncharged))
    }

    /// Returns the next hop of the other direction of the path of `label`, at a relay on it.
    pub(super) fn backwards(&self, label: u32) -> Option<(PeerId, u32)> {
        match self.labels.get(self.labels.get(label)?.other?)?.to {
            To::Next { peer, label, .. } => Some((peer, label?)),
            To::Here { .. } => None,
        }
    }

    /// Returns a label for a path that this node opens over `first`.
    pub(super) fn new_path(&mut self, now: Now, first: PeerId) -> Option<u32> {
        let salt = self.next_salt();
        let label = Label::new(now, first, To::Here { back: None });
        self.labels.insert(salt, label)
    }

    pub(super) fn drop_label(&mut self, label: u32) {
        if let Some(Label { from, opened_as: Some(theirs), .. }) = self.labels.remove(label) {
            self.opened.remove(&(from, theirs));
        }
    }

    /// Returns whether another path of a gateway may have labels, after releasing those of its
    /// silent paths.
    fn has_labels_for(&mut self, now: Now, gateway: PublicIdentity) -> bool {
        let of_it = |known: &Label| known.place.is_some_and(|place| place.gateway == gateway);
        let labels = self.labels.ids().zip(self.labels.values());
        let theirs: Vec<(u32, Timestamp)> = labels
            .filter_map(|(label, known)| of_it(known).then_some((label, known.used)))
            .collect();
        // One label where a path ends, two where it passes.
        if theirs.len() + 2 <= MOST_FOR_ONE {
            return true;
        }
        let is_silent = |used: Timestamp| now.steady.since(used) >= GIVES_WAY_AFTER;
        let silent = theirs.iter().filter(|(_, used)| is_silent(*used));
        silent.clone().for_each(|(label, _)| self.drop_label(*label));
        silent.count() > 1
    }

    /// Drops every path that others have opened and that the rules no longer allow; returns how
    /// many.
    pub(super) fn drop_refused_paths(&mut self) -> usize {
        let mut dropped = 0;
        let labels: Vec<u32> = self.labels.ids().collect();
        for label in labels {
            let Some(known) = self.labels.get(label) else { continue };
            let is_refused = known.basis.as_ref().is_some_and(|basis| !self.allows_path(basis));
            if is_refused {
                let other = known.other;
                self.drop_label(label);
                other.into_iter().for_each(|other| self.drop_label(other));
                dropped += 1;
            }
        }
        dropped
    }

    fn allows_path(&self, basis: &Basis) -> bool {
        let (access, grant) = (&self.access, Some(&*basis.verified.grant));
        let leads = match basis.leads {
            Leads::On(address) => access.allows(None, Target::NextHop(address)),
            Leads::Here(to) => access.allows_inside(grant, Target::Address(to)),
        };
        self.trust.check(&basis.verified).is_ok() && leads.is_ok()
    }

    pub(super) fn drop_labels_of(&mut self, peer: PeerId) {
        let labels: Vec<u32> = self.labels.ids().collect();
        for label in labels {
            let uses = |known: &Label| known.neighbours().any(|neighbour| neighbour == peer);
            if self.labels.get(label).is_some_and(uses) {
                self.drop_label(label);
            }
        }
    }

    /// Opens a path for a neighbour: to the next hop, or, at the last node, to this one.
    pub(super) fn open_path(&mut self, now: Now, from: PeerId, theirs: u32, header: &[u8]) {
        if let Some(mine) = self.opened.get(&(from, theirs)).copied() {
            // The reply was lost, or is still awaited.
            return self.answer(from, theirs, mine);
        }
        if let Some(reason) = self.refusals.given(now, (from, theirs)) {
            return self.refuse_path(from, theirs, reason);
        }
        if let Err(Objection { reason, text }) = self.try_open(now, from, theirs, header) {
            self.log_refusal(from, &text);
            self.refusals.remember(now, (from, theirs), reason);
            self.refuse_path(from, theirs, reason);
            add(&self.counts.dropped, 1);
        }
    }

    /// Logs a refusal with all details, at a limited rate. The neighbour that asked gets the reason
    /// alone.
    fn log_refusal(&self, from: PeerId, refusal: &str) {
        let identity = self.sessions.identity_of(from);
        let neighbour = identity.map(|identity| identity.to_string());
        limited!(warn, self.refusal_lines, identity, neighbour, %refusal, "path refused");
    }

    fn try_open(
        &mut self,
        now: Now,
        from: PeerId,
        theirs: u32,
        header: &[u8],
    ) -> Result<(), Objection> {
        let received = ReceivedHeader::parse(header)?;
        let nobody = || Objection::new(Refusal::Other, "a neighbour without a session");
        let neighbour = self.sessions.identity_of(from).ok_or_else(nobody)?;
        if !self.verifier.knows_grant_of(&received) && !self.dear.take(now.steady, neighbour) {
            return Err(Objection::new(Refusal::Other, "too many new grants in a second"));
        }
        let header = self.verifier.open_received(now.unix, received)?;
        if header.neighbour() != neighbour {
            return Err(Objection::new(Refusal::Other, "another neighbour's path"));
        }
        let place = Place {
            gateway: header.grant.gateway,
            is_first: header.hop == 0,
            is_last: header.hop + 2 == header.route.hops().len(),
        };
        if !self.has_labels_for(now, place.gateway) {
            return Err(Objection::new(Refusal::Full, "its gateway has too many labels"));
        }
        match header.next_hop().copied() {
            Some(next) => self.lead_on(now, (from, theirs), place, &header, next),
            None => self.end_path(now, (from, theirs), place, &header),
        }?;
        self.journal.iter().for_each(|journal| journal.path_opened(&header));
        Ok(())
    }

    /// Ends a path here: its packets are for this node.
    fn end_path(
        &mut self,
        now: Now,
        (from, theirs): (PeerId, u32),
        place: Place,
        header: &OpenHeader,
    ) -> Result<(), Objection> {
        let Destination::Address(to) = header.destination else {
            return Err(Objection::new(Refusal::Other, "packets go to addresses, not names"));
        };
        // For a range this is the first address, and nothing is delivered yet.
        self.access.allows_inside(Some(&header.grant), Target::Address(to))?;
        let (basis, salt) = (Basis::of(header, Leads::Here(to)), self.next_salt());
        let label = Label {
            opened_as: Some(theirs),
            place: Some(place),
            basis: Some(basis),
            ..Label::new(now, from, To::Here { back: Some(theirs) })
        };
        let mine = self.labels.insert(salt, label).ok_or_else(no_label)?;
        self.opened.insert((from, theirs), mine);
        self.answer(from, theirs, mine);
        Ok(())
    }

    /// Continues a path to a next hop, where it is opened before the reply is sent.
    fn lead_on(
        &mut self,
        now: Now,
        (from, theirs): (PeerId, u32),
        place: Place,
        header: &OpenHeader,
        next: Hop,
    ) -> Result<(), Objection> {
        let checked = self.access.allows(None, Target::NextHop(next.address));
        checked.map_err(|error| Objection::to_next_hop(&error))?;
        let objection = |reason, text| move || Objection::new(reason, text);
        let sealed = self.verifier.forward(header)?;
        let sealed = sealed.ok_or_else(objection(Refusal::Other, "no next hop"))?;
        let leg = self.leg_for(now, sealed.from, next, place.gateway);
        let peer = leg.ok_or_else(objection(Refusal::Full, "there are too many next hops"))?;
        let salt = self.next_salt();
        let to = To::Next { peer: from, label: Some(theirs), opening: None };
        let back = Label { place: Some(place.back()), ..Label::new(now, peer, to) };
        let back = self.labels.insert(salt, back).ok_or_else(no_label)?;
        let (next_try, ends) = (now.steady, now.steady + OPENS_WITHIN);
        let opening = Opening { header: sealed.bytes, mine: back, next_try, ends };
        let to = To::Next { peer, label: None, opening: Some(Box::new(opening)) };
        let label = Label {
            opened_as: Some(theirs),
            place: Some(place),
            other: Some(back),
            basis: Some(Basis::of(header, Leads::On(next.address))),
            ..Label::new(now, from, to)
        };
        let Some(mine) = self.labels.insert(salt, label) else {
            self.drop_label(back);
            return Err(no_label());
        };
        if let Some(back) = self.labels.get_mut(back) {
            back.other = Some(mine);
        }
        self.opened.insert((from, theirs), mine);
        self.maintain_label(now, mine);
        Ok(())
    }

    fn answer(&mut self, from: PeerId, theirs: u32, mine: u32) {
        let is_open = match self.labels.get(mine).map(|known| &known.to) {
            Some(To::Next { label, .. }) => label.is_some(),
            Some(To::Here { .. }) => true,
            None => false,
        };
        if is_open {
            self.send_message(from, &Message::Opened { label: theirs, next: mine });
        }
    }

    /// Completes a path that the next hop has opened; its other direction has the label `mine`
    /// here.
    pub(super) fn path_opened(&mut self, now: Now, from: PeerId, mine: u32, theirs: u32) {
        let Some(known) = self.labels.get_mut(mine).filter(|known| known.from == from) else {
            return;
        };
        known.used = now.steady;
        if let To::Here { back } = &mut known.to {
            *back = Some(theirs);
            let goes_there =
                |(_, remote): &(&PeerId, &mut RemoteEndpoint)| remote.label == Some(mine);
            let remote = self.remotes.iter_mut().find(goes_there).map(|(peer, _)| *peer);
            if let Some(remote) = remote {
                self.sessions.ping(now, remote, Link::Overlay(mine));
            }
            return;
        }
        // For a path through here: find the direction that awaits this reply.
        let To::Next { peer: upstream, label: Some(upstream_label), .. } = known.to else { return };
        let Some(other) = self.opened.get(&(upstream, upstream_label)).copied() else { return };
        if let Some(Label { to: To::Next { label, opening, .. }, .. }) = self.labels.get_mut(other)
            && opening.take_if(|opening| opening.mine == mine).is_some()
        {
            *label = Some(theirs);
            self.answer(upstream, upstream_label, other);
        }
    }

    /// Handles the refusal of a path by the next hop or one behind it; its other direction has the
    /// label `mine` here.
    pub(super) fn path_refused(
        &mut self,
        now: Now,
        from: PeerId,
        mine: u32,
        (by, reason): (PublicIdentity, Refusal),
    ) {
        let Some(known) = self.labels.get(mine).filter(|known| known.from == from) else { return };
        let To::Next { peer: upstream, label: Some(upstream_label), .. } = known.to else {
            let goes_there = |(_, remote): &(&PeerId, &RemoteEndpoint)| remote.label == Some(mine);
            let remote = self.remotes.iter().find(goes_there).map(|(peer, _)| *peer);
            let is_own = matches!(known.to, To::Here { back: None }) && known.opened_as.is_none();
            if let Some(remote) = remote.filter(|_| is_own) {
                self.note_refused_path(now, remote, (by, reason));
            }
            return;
        };
        let Some(other) = self.opened.get(&(upstream, upstream_label)).copied() else { return };
        let awaits = |known: &Label| match &known.to {
            To::Next { opening: Some(opening), .. } => opening.mine == mine,
            _ => false,
        };
        if self.labels.get(other).is_some_and(awaits) {
            self.drop_label(other);
            self.drop_label(mine);
            self.refusals.remember(now, (upstream, upstream_label), reason);
            self.send_message(upstream, &Message::Refused { label: upstream_label, by, reason });
        }
    }

    /// Drops idle labels, and repeats unanswered openings for a while.
    pub(super) fn maintain_labels(&mut self, now: Now) {
        let labels: Vec<u32> = self.labels.ids().collect();
        for label in labels {
            let Some(known) = self.labels.get(label) else { continue };
            let (unanswered, used) = (known.unanswered(now), known.used);
            if unanswered.is_some() || now.steady.since(used) >= IDLE {
                self.drop_label(label);
                unanswered.into_iter().for_each(|other| self.drop_label(other));
            } else {
                self.maintain_label(now, label);
            }
        }
    }

    fn maintain_label(&mut self, now: Now, label: u32) {
        let Some(Label { to: To::Next { peer, opening: Some(opening), .. }, .. }) =
            self.labels.get_mut(label)
        else {
            return;
        };
        if now.steady < opening.next_try {
            return;
        }
        opening.next_try = now.steady + TRY_AGAIN;
        let (peer, mine, header) = (*peer, opening.mine, opening.header.clone());
        self.send_message(peer, &Message::Open { label: mine, header: &header });
    }
}

fn no_label() -> Objection {
    Objection::new(Refusal::Full, "no label is left")
}

#[cfg(test)]
mod tests;
