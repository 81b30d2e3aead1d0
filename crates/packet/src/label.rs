//! The forwarding table of overlay paths: with a label, a packet's next hop takes one look-up.
//!
//! A label names the receiving end of one direction at one node. A node that opens a path sends the
//! label under which it wants to receive; the reply holds the label under which the other side
//! wants to receive.
//!
//! A path through a relay takes two labels, of which each gateway has its share. Both are released
//! soon if an opening is not answered: its endpoint opens another path each second until one
//! answers, and only the last of them counts.

use std::collections::BTreeMap;

use tradewind_grant::PublicIdentity;
use tradewind_units::{Duration, Timestamp};

use crate::session::{PeerId, Table};

/// Most labels of one table. Chosen: two for each path through it.
const MAX: usize = 1 << 15;
/// Silence after which a label is forgotten. Chosen: on a path in use there are pings every 200 ms.
pub const IDLE: Duration = Duration::from_secs(30);
/// Interval of the tries to open the next hop of a path.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// Time for which these tries go on. Chosen: the endpoint gives the path up after one second, and
/// its message may come late.
pub const OPENS_WITHIN: Duration = Duration::from_secs(2);
/// Most labels of one gateway's paths in a table. Chosen: for paths to a thousand remote endpoints;
/// a sixteenth of all.
pub const MAX_FOR_ONE: usize = 2048;
/// Silence after which a label may be released for others of its gateway's. Chosen: fifteen pings,
/// of which there are five a second.
pub const GIVES_WAY_AFTER: Duration = Duration::from_secs(3);

/// A node's place on a path, seen in the direction of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathPosition {
    /// The gateway that opened the path.
    pub gateway: PublicIdentity,
    /// Set if packets come from an endpoint.
    pub is_first: bool,
    /// Set if packets go to an endpoint.
    pub is_last: bool,
}

impl PathPosition {
    /// Returns the place seen in the other direction.
    fn back(self) -> Self {
        Self { is_first: self.is_last, is_last: self.is_first, ..self }
    }
}

/// The place and the next hop of packets under a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelEntry {
    /// This node's place on the path, if another node opened it.
    pub place: Option<PathPosition>,
    /// The next neighbour and its label; `None` where the path ends.
    pub next: Option<(PeerId, u32)>,
}

/// A path whose other side has answered its opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// One that this node opened.
    Own,
    /// One through here that `asker` opened under its label.
    Through {
        /// The neighbour, and its label.
        asker: (PeerId, u32),
        /// The label here of its direction.
        mine: u32,
    },
}

/// The receiving end of one direction of a path, which others opened by an authorization `B`.
#[derive(Debug)]
struct Label<B> {
    /// The only neighbour that may use it.
    from: PeerId,
    /// The label under which that neighbour opened it, if it has.
    opened_as: Option<u32>,
    used: Timestamp,
    /// This node's place on the path, from the path's header.
    place: Option<PathPosition>,
    /// Bytes forwarded under it, with all headers, that no flow was charged for yet.
    uncharged: u64,
    /// The label of the other direction here, where the path goes on.
    other: Option<u32>,
    /// The authorization of the path, if another node opened it; it holds for both directions.
    basis: Option<Box<B>>,
    to: To,
}

#[derive(Debug)]
enum To {
    /// On to a neighbour, under its label once that is known.
    Next { peer: PeerId, label: Option<u32>, opening: Option<Box<Opening>> },
    /// The path ends here; the other direction has this label at the neighbour.
    Here { back: Option<u32> },
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

impl<B> Label<B> {
    /// Returns a label of a path that no other node has opened.
    fn new(now: Timestamp, from: PeerId, to: To) -> Self {
        let (opened_as, place, other, basis) = (None, None, None, None);
        Self { from, opened_as, used: now, place, uncharged: 0, other, basis, to }
    }

    /// Returns the label of the other direction, if the next hop should have answered by now.
    fn unanswered(&self, now: Timestamp) -> Option<u32> {
        let To::Next { opening: Some(opening), .. } = &self.to else { return None };
        (now >= opening.ends).then_some(opening.mine)
    }

    /// Returns the neighbour that may use it and the one that it leads to.
    fn neighbours(&self) -> impl Iterator<Item = PeerId> + use<B> {
        let next = match self.to {
            To::Next { peer, .. } => Some(peer),
            To::Here { .. } => None,
        };
        [Some(self.from), next].into_iter().flatten()
    }

    /// Returns the neighbour and the label that packets under this one go to.
    fn next(&self) -> Option<(PeerId, u32)> {
        match self.to {
            To::Next { peer, label, .. } => Some((peer, label?)),
            To::Here { .. } => None,
        }
    }
}

/// All labels of one node or worker; `B` is what authorizes a path that another node opens.
#[derive(Debug)]
pub struct Labels<B> {
    labels: Table<Label<B>>,
    /// This node's label of a path that a neighbour opened under its own label.
    opened: BTreeMap<(PeerId, u32), u32>,
    salt: u16,
}

impl<B> Default for Labels<B> {
    fn default() -> Self {
        Self { labels: Table::new(MAX), opened: BTreeMap::new(), salt: 0 }
    }
}

impl<B> Labels<B> {
    /// Returns this node's place on the path and the next hop, if there is one, for packets from
    /// `from` under `label`; `None` when that neighbour may not use it, or the path is not open.
    pub fn along(&mut self, now: Timestamp, from: PeerId, label: u32) -> Option<LabelEntry> {
        let known = self.labels.get_mut(label).filter(|known| known.from == from)?;
        known.used = now;
        let next = match known.to {
            To::Next { peer, label, .. } => Some((peer, label?)),
            To::Here { .. } => None,
        };
        Some(LabelEntry { place: known.place, next })
    }

    /// Charges a label with forwarded bytes.
    pub fn charge(&mut self, label: u32, bytes: u64) {
        if let Some(known) = self.labels.get_mut(label) {
            known.uncharged += bytes;
        }
    }

    /// Returns the bytes forwarded under a label since the last call, for a flow that is charged
    /// for them now.
    pub fn take_uncharged(&mut self, label: u32) -> u64 {
        self.labels.get_mut(label).map_or(0, |known| std::mem::take(&mut known.uncharged))
    }

    /// Returns the neighbour and its label for the other direction, if the path of `label` ends
    /// here.
    #[must_use]
    pub fn reverse_hop(&self, label: u32) -> Option<(PeerId, u32)> {
        match self.labels.get(label)? {
            Label { to: To::Here { back: Some(back) }, from, .. } => Some((*from, *back)),
            _ => None,
        }
    }

    /// Returns this node's place on the path of `label`.
    #[must_use]
    pub fn place(&self, label: u32) -> Option<PathPosition> {
        self.labels.get(label)?.place
    }

    /// Returns the next hop of the other direction of the path of `label`, at a relay on it.
    #[must_use]
    pub fn backwards(&self, label: u32) -> Option<(PeerId, u32)> {
        self.labels.get(self.labels.get(label)?.other?)?.next()
    }

    /// Returns the neighbours that may use labels and those that they lead to.
    pub fn neighbours(&self) -> impl Iterator<Item = PeerId> {
        self.labels.values().flat_map(Label::neighbours)
    }

    /// Returns the number of labels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether there is no label.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the number of labels that neighbours have opened.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.opened.len()
    }

    /// Returns this node's label of a path that a neighbour opened under its own label.
    #[must_use]
    pub fn opened_by(&self, asker: (PeerId, u32)) -> Option<u32> {
        self.opened.get(&asker).copied()
    }

    /// Returns whether the path of a label is open to its end.
    #[must_use]
    pub fn is_open(&self, label: u32) -> bool {
        match self.labels.get(label).map(|known| &known.to) {
            Some(To::Next { label, .. }) => label.is_some(),
            Some(To::Here { .. }) => true,
            None => false,
        }
    }

    /// Returns a label for a path that this node opens over `first`.
    pub fn open(&mut self, now: Timestamp, first: PeerId) -> Option<u32> {
        let salt = self.next_salt();
        self.labels.insert(salt, Label::new(now, first, To::Here { back: None }))
    }

    /// Returns a label for a path that a neighbour opens and that ends here.
    pub fn end_here(
        &mut self,
        now: Timestamp,
        (from, theirs): (PeerId, u32),
        (place, basis): (PathPosition, B),
    ) -> Option<u32> {
        let salt = self.next_salt();
        let label = Label {
            opened_as: Some(theirs),
            place: Some(place),
            basis: Some(Box::new(basis)),
            ..Label::new(now, from, To::Here { back: Some(theirs) })
        };
        let mine = self.labels.insert(salt, label)?;
        self.opened.insert((from, theirs), mine);
        Some(mine)
    }

    /// Returns a label for a path that a neighbour opens and that goes on to `next`, where `header`
    /// opens it from the next call of [`Labels::poll_opening`] on.
    pub fn lead_on(
        &mut self,
        now: Timestamp,
        (from, theirs): (PeerId, u32),
        (place, basis): (PathPosition, B),
        (next, header): (PeerId, Vec<u8>),
    ) -> Option<u32> {
        let salt = self.next_salt();
        let to = To::Next { peer: from, label: Some(theirs), opening: None };
        let back = Label { place: Some(place.back()), ..Label::new(now, next, to) };
        let back = self.labels.insert(salt, back)?;
        let opening = Opening { header, mine: back, next_try: now, ends: now + OPENS_WITHIN };
        let to = To::Next { peer: next, label: None, opening: Some(Box::new(opening)) };
        let label = Label {
            opened_as: Some(theirs),
            place: Some(place),
            other: Some(back),
            basis: Some(Box::new(basis)),
            ..Label::new(now, from, to)
        };
        let Some(mine) = self.labels.insert(salt, label) else {
            self.drop_label(back);
            return None;
        };
        if let Some(back) = self.labels.get_mut(back) {
            back.other = Some(mine);
        }
        self.opened.insert((from, theirs), mine);
        Some(mine)
    }

    fn next_salt(&mut self) -> u16 {
        self.salt = self.salt.wrapping_add(1);
        self.salt
    }

    /// Returns the next hop to which the header of a label's path is due, with the label of the
    /// other direction and the header.
    pub fn poll_opening(&mut self, now: Timestamp, label: u32) -> Option<(PeerId, u32, &[u8])> {
        let Some(Label { to: To::Next { peer, opening: Some(opening), .. }, .. }) =
            self.labels.get_mut(label)
        else {
            return None;
        };
        if now < opening.next_try {
            return None;
        }
        opening.next_try = now + TRY_AGAIN;
        Some((*peer, opening.mine, &opening.header))
    }

    /// Completes a path that the other side has opened; its other direction has the label `mine`
    /// here, and `theirs` there.
    pub fn complete(
        &mut self,
        now: Timestamp,
        (from, theirs): (PeerId, u32),
        mine: u32,
    ) -> Option<Answered> {
        let known = self.labels.get_mut(mine).filter(|known| known.from == from)?;
        known.used = now;
        if let To::Here { back } = &mut known.to {
            *back = Some(theirs);
            return Some(Answered::Own);
        }
        // For a path through here: find the direction that awaits this reply.
        let asker = known.next()?;
        let mine_there = *self.opened.get(&asker)?;
        if let Some(Label { to: To::Next { label, opening, .. }, .. }) =
            self.labels.get_mut(mine_there)
            && opening.take_if(|opening| opening.mine == mine).is_some()
        {
            *label = Some(theirs);
            return Some(Answered::Through { asker, mine: mine_there });
        }
        None
    }

    /// Drops the labels of a path through here that the other side has refused; its other direction
    /// has the label `mine` here. One that this node opened is left as it is.
    pub fn refuse(&mut self, from: PeerId, mine: u32) -> Option<Answered> {
        let known = self.labels.get(mine).filter(|known| known.from == from)?;
        if let To::Here { back } = known.to {
            let is_own = back.is_none() && known.opened_as.is_none();
            return is_own.then_some(Answered::Own);
        }
        let asker = known.next()?;
        let other = *self.opened.get(&asker)?;
        let awaits = |known: &Label<B>| match &known.to {
            To::Next { opening: Some(opening), .. } => opening.mine == mine,
            _ => false,
        };
        if !self.labels.get(other).is_some_and(awaits) {
            return None;
        }
        self.drop_label(other);
        self.drop_label(mine);
        Some(Answered::Through { asker, mine: other })
    }

    /// Drops a label.
    pub fn drop_label(&mut self, label: u32) {
        if let Some(Label { from, opened_as: Some(theirs), .. }) = self.labels.remove(label) {
            self.opened.remove(&(from, theirs));
        }
    }

    /// Drops the labels of a neighbour that is gone.
    pub fn drop_all_of(&mut self, peer: PeerId) {
        let all = self.labels.ids().zip(self.labels.values());
        let uses = |known: &Label<B>| known.neighbours().any(|neighbour| neighbour == peer);
        let theirs: Vec<u32> = all.filter(|(_, it)| uses(it)).map(|(label, _)| label).collect();
        theirs.into_iter().for_each(|label| self.drop_label(label));
    }

    /// Drops every path that others have opened and that is not allowed any more; returns how many.
    pub fn retain(&mut self, allows: impl Fn(&B) -> bool) -> usize {
        let mut dropped = 0;
        let labels: Vec<u32> = self.labels.ids().collect();
        for label in labels {
            let Some(known) = self.labels.get(label) else { continue };
            if known.basis.as_ref().is_some_and(|basis| !allows(basis)) {
                let other = known.other;
                self.drop_label(label);
                other.into_iter().for_each(|other| self.drop_label(other));
                dropped += 1;
            }
        }
        dropped
    }

    /// Returns whether another path of a gateway may have labels, after releasing those of its
    /// silent paths.
    pub fn has_room_for(&mut self, now: Timestamp, gateway: PublicIdentity) -> bool {
        let of_it = |known: &Label<B>| known.place.is_some_and(|place| place.gateway == gateway);
        let labels = self.labels.ids().zip(self.labels.values());
        let theirs: Vec<(u32, Timestamp)> = labels
            .filter_map(|(label, known)| of_it(known).then_some((label, known.used)))
            .collect();
        // One label where a path ends, two where it passes.
        if theirs.len() + 2 <= MAX_FOR_ONE {
            return true;
        }
        let is_silent = |used: Timestamp| now.since(used) >= GIVES_WAY_AFTER;
        let silent = theirs.iter().filter(|(_, used)| is_silent(*used));
        silent.clone().for_each(|(label, _)| self.drop_label(*label));
        silent.count() > 1
    }

    /// Drops idle labels, and passes the openings that are to be repeated to `open`: the next hop,
    /// the label of the other direction, and the header.
    pub fn handle_timeout(&mut self, now: Timestamp, mut open: impl FnMut(PeerId, u32, &[u8])) {
        let labels: Vec<u32> = self.labels.ids().collect();
        for label in labels {
            let Some(known) = self.labels.get(label) else { continue };
            let (unanswered, used) = (known.unanswered(now), known.used);
            if unanswered.is_some() || now.since(used) >= IDLE {
                self.drop_label(label);
                unanswered.into_iter().for_each(|other| self.drop_label(other));
            } else if let Some((peer, mine, header)) = self.poll_opening(now, label) {
                open(peer, mine, header);
            }
        }
    }
}
