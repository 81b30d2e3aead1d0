//! Refusals, reported to the side that asked: a remote gateway or a relay that refuses something
//! replies with the reason.
//!
//! A node that refuses a path replies to the neighbour that asked, in their session, and relays
//! forward the reply as they do with others. An endpoint that refuses a conversation replies to the
//! other end, sealed end to end. Each reply answers one request, and is shorter. The local gateway
//! logs it at a limited rate, and shows it as long as it is true: until the same path answers.

use std::collections::{BTreeMap, VecDeque};

use tradewind_grant::{GrantError, PublicIdentity};
use tradewind_packet::message::{Message, Refusal};
use tradewind_packet::session::{Now, PeerId};
use tradewind_telemetry::limited;
use tradewind_units::{Duration, Timestamp};

use super::Engine;
use crate::status::RefusalStatus;

/// Time for which a refused opening is remembered: the neighbour repeats it with the same header,
/// which by itself would be refused as a replay. Chosen: longer than neighbours repeat it.
const REMEMBERED_FOR: Duration = Duration::from_secs(3);
/// Most refused openings that are remembered. Chosen: of many gateways, each once a second.
const MOST_REMEMBERED: usize = 1024;
/// Time for which a refusal is shown that is not repeated. Chosen: openings are repeated each
/// second, conversations while they go on.
const SHOWN_FOR: Duration = Duration::from_secs(60);

/// The reason of a refusal of this node, and its text for the log here.
#[derive(Debug)]
pub(super) struct Objection {
    pub(super) reason: Refusal,
    pub(super) text: String,
}

impl Objection {
    pub(super) fn new(reason: Refusal, text: &str) -> Self {
        Self { reason, text: text.to_owned() }
    }

    /// Returns the objection to a next hop that the policy refuses.
    pub(super) fn to_next_hop(error: &GrantError) -> Self {
        Self { reason: Refusal::NextHop, text: error.to_string() }
    }
}

impl From<GrantError> for Objection {
    fn from(error: GrantError) -> Self {
        Self { reason: Refusal::from(&error), text: error.to_string() }
    }
}

impl From<Box<tradewind_grant::Refusal>> for Objection {
    fn from(refusal: Box<tradewind_grant::Refusal>) -> Self {
        refusal.cause.into()
    }
}

/// A refusal that another node has reported.
#[derive(Debug, Clone, Copy)]
struct ReportedRefusal {
    by: PublicIdentity,
    reason: Refusal,
    received: Timestamp,
}

/// Refusals by others, and by this node.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// By remote endpoint: of a path to it, and of a conversation with it.
    reported: BTreeMap<PeerId, [Option<ReportedRefusal>; 2]>,
    given: VecDeque<(Timestamp, (PeerId, u32), Refusal)>,
}

const OF_PATH: usize = 0;
const OF_CONVERSATION: usize = 1;

impl Refusals {
    /// Returns the reason for which a neighbour's request under its label was refused just now.
    pub(super) fn given(&self, now: Now, asked: (PeerId, u32)) -> Option<Refusal> {
        let mut latest = self.given.iter().rev();
        let found =
            latest.find(|(at, known, _)| *known == asked && now.steady.since(*at) < REMEMBERED_FOR);
        found.map(|(_, _, reason)| *reason)
    }

    pub(super) fn remember(&mut self, now: Now, asked: (PeerId, u32), reason: Refusal) {
        if self.given.len() >= MOST_REMEMBERED {
            self.given.pop_front();
        }
        self.given.push_back((now.steady, asked, reason));
    }

    /// Clears the refusal of a path to a remote endpoint, since it answers.
    pub(super) fn path_answers(&mut self, remote: PeerId) {
        self.clear(remote, OF_PATH);
    }

    /// Clears the refusal of conversations by a remote endpoint, since it accepts one.
    pub(super) fn conversation_is_known(&mut self, remote: PeerId) {
        self.clear(remote, OF_CONVERSATION);
    }

    fn clear(&mut self, remote: PeerId, which: usize) {
        if let Some(reported) = self.reported.get_mut(&remote) {
            reported[which] = None;
        }
    }

    pub(super) fn forget(&mut self, remote: PeerId) {
        self.reported.remove(&remote);
    }
}

impl Engine {
    /// Records that a node on the path to `remote` has refused it.
    pub(super) fn note_refused_path(
        &mut self,
        now: Now,
        remote: PeerId,
        (by, reason): (PublicIdentity, Refusal),
    ) {
        self.note_refusal(now, (remote, OF_PATH), (by, reason), "an overlay path is refused");
    }

    /// Records that a remote endpoint refuses a conversation that begins here.
    pub(super) fn note_denied(
        &mut self,
        now: Now,
        peer: PeerId,
        conversation: u32,
        reason: Refusal,
    ) {
        let route = self.outbound.get(conversation).map(super::Outbound::route);
        let is_theirs = route.is_some_and(|route| self.leading_to(route, peer).is_some());
        if let Some(outbound) = self.outbound.get_mut(conversation).filter(|_| is_theirs) {
            outbound.tally.refused = Some(reason);
        }
        if let Some(by) = self.sessions.identity_of(peer).filter(|_| is_theirs) {
            let what = "the remote gateway refuses what applications send";
            self.note_refusal(now, (peer, OF_CONVERSATION), (by, reason), what);
        }
    }

    fn note_refusal(
        &mut self,
        now: Now,
        (remote, which): (PeerId, usize),
        (by, reason): (PublicIdentity, Refusal),
        what: &str,
    ) {
        let name = self.name_of(remote);
        let last = &mut self.refusals.reported.entry(remote).or_default()[which];
        let is_news = last.is_none_or(|last| (last.by, last.reason) != (by, reason));
        *last = Some(ReportedRefusal { by, reason, received: now.steady });
        if is_news {
            limited!(warn, self.refusal_lines, Some(by), remote = name, %by, %reason, "{what}");
        }
    }

    /// Reports to a neighbour that its request under its label is refused.
    pub(super) fn refuse_path(&mut self, from: PeerId, label: u32, reason: Refusal) {
        let by = self.sessions.public();
        self.send_message(from, &Message::Refused { label, by, reason });
    }

    /// Returns the current refusals by others.
    pub(crate) fn report_refusals(&self, now: Now) -> Vec<RefusalStatus> {
        let mut all = Vec::new();
        for (remote, reported) in &self.refusals.reported {
            let recent =
                |refusal: &&ReportedRefusal| now.steady.since(refusal.received) < SHOWN_FOR;
            for (what, refusal) in ["path", "conversation"].into_iter().zip(reported) {
                all.extend(refusal.as_ref().filter(recent).map(|refusal| RefusalStatus {
                    remote: self.name_of(*remote),
                    what: what.to_owned(),
                    by: refusal.by.to_string(),
                    reason: refusal.reason.to_string(),
                }));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
