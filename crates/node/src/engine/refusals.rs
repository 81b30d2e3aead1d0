//! Refusals, reported to the side that asked: a remote gateway or a relay that refuses something
//! replies with the reason.
//!
//! A node that refuses a path replies to the neighbour that asked, in their session, and relays
//! forward the reply as they do with others. An endpoint that refuses a conversation replies to the
//! other end, sealed end to end. Each reply answers one request, and is shorter. The local gateway
//! logs it at a limited rate, and shows it as long as it is true: until the same path answers.

use std::collections::{BTreeMap, VecDeque};

use tradewind_grant::{GrantError, PublicIdentity};
use tradewind_packet::message::Refusal;
use tradewind_packet::session::{Now, PeerId};
use tradewind_telemetry::limited;
use tradewind_units::{Duration, Timestamp};

use super::context::Context;
use crate::status::RefusalStatus;

/// Time for which a refused opening is remembered: the neighbour repeats it with the same header,
/// which by itself would be refused as a replay. Chosen: longer than neighbours repeat it.
const REMEMBERED_FOR: Duration = Duration::from_secs(3);
/// Most refused openings that are remembered. Chosen: of many gateways, each once a second.
const MAX_REMEMBERED: usize = 1024;
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

/// The subject of another node's refusal.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refused {
    Path,
    Conversation,
}

/// Refusals by others, by remote endpoint: of a path to it, and of a conversation with it.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<PeerId, [Option<ReportedRefusal>; 2]>);

/// Openings of paths that this node has refused lately.
#[derive(Debug, Default)]
pub(super) struct RefusedOpenings(VecDeque<(Timestamp, (PeerId, u32), Refusal)>);

impl RefusedOpenings {
    /// Returns the reason for which a neighbour's request under its label was refused just now.
    pub(super) fn reason(&self, now: Now, asked: (PeerId, u32)) -> Option<Refusal> {
        let mut latest = self.0.iter().rev();
        let found =
            latest.find(|(at, known, _)| *known == asked && now.steady.since(*at) < REMEMBERED_FOR);
        found.map(|(_, _, reason)| *reason)
    }

    pub(super) fn remember(&mut self, now: Now, asked: (PeerId, u32), reason: Refusal) {
        if self.0.len() >= MAX_REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((now.steady, asked, reason));
    }
}

impl Refusals {
    /// Records that another node has refused a path to `remote`, or a conversation with it.
    pub(super) fn note(
        &mut self,
        context: &Context,
        now: Now,
        (remote, what): (PeerId, Refused),
        (by, reason): (PublicIdentity, Refusal),
    ) {
        let name = context.name_of(remote);
        let last = &mut self.0.entry(remote).or_default()[what as usize];
        let is_news = last.is_none_or(|last| (last.by, last.reason) != (by, reason));
        *last = Some(ReportedRefusal { by, reason, received: now.steady });
        if is_news {
            let what = match what {
                Refused::Path => "an overlay path is refused",
                Refused::Conversation => "the remote gateway refuses what applications send",
            };
            limited!(warn, context.refusal_lines, Some(by), remote = name, %by, %reason, "{what}");
        }
    }

    /// Clears a refusal of a remote endpoint, since it answers or accepts one.
    pub(super) fn clear(&mut self, remote: PeerId, what: Refused) {
        if let Some(reported) = self.0.get_mut(&remote) {
            reported[what as usize] = None;
        }
    }

    pub(super) fn forget(&mut self, remote: PeerId) {
        self.0.remove(&remote);
    }

    /// Returns the current refusals by others.
    pub(super) fn report(&self, context: &Context, now: Now) -> Vec<RefusalStatus> {
        let mut all = Vec::new();
        for (remote, reported) in &self.0 {
            let recent =
                |refusal: &&ReportedRefusal| now.steady.since(refusal.received) < SHOWN_FOR;
            for (what, refusal) in ["path", "conversation"].into_iter().zip(reported) {
                all.extend(refusal.as_ref().filter(recent).map(|refusal| RefusalStatus {
                    remote: context.name_of(*remote),
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
