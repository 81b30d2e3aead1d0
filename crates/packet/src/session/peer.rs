//! A neighbour and its sessions: one that seals, one before it that still opens, one that is on its
//! way.

use std::collections::VecDeque;

use tradewind_grant::{PublicIdentity, SignedGrant, VerifiedGrant};
use tradewind_units::{Duration, Timestamp};

use super::cipher::Keys;
use super::handshake::Initiator;
use super::replay::ReplayWindow;
use super::{Link, Now};

/// Names a neighbour as long as it is known; not used again soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId(pub(super) u32);

impl From<PeerId> for crate::id::Peer {
    fn from(peer: PeerId) -> Self {
        Self(peer.0)
    }
}

impl From<crate::id::Peer> for PeerId {
    fn from(peer: crate::id::Peer) -> Self {
        Self(peer.0)
    }
}

/// Questions that wait for answers. Chosen: ten a second, over two ways, and probes beside them,
/// for two seconds; a neighbour is deaf after one.
const QUESTIONS: usize = 32;

/// A neighbour.
#[derive(Debug)]
pub(super) struct Peer {
    /// By which of its identities this side is known to it.
    pub(super) own: PublicIdentity,
    pub(super) identity: PublicIdentity,
    /// Tells an initiator's sockets apart, which share an identity.
    pub(super) instance: u64,
    pub(super) side: HandshakeRole,
    /// Where it is: told by configuration, or proven.
    pub(super) link: Link,
    /// When something came over that way, or went over it and was answered.
    pub(super) link_heard: Timestamp,
    /// Where it is by configuration, for who connects to it.
    pub(super) home: Option<Link>,
    /// It was led to another address, and keys were not agreed on there yet.
    pub(super) is_led: bool,
    /// Another address where it has answered.
    pub(super) candidate: Option<Candidate>,
    /// Over which way the response to its last initiation went.
    pub(super) responded: Option<Link>,
    /// The session whose keys seal.
    pub(super) sending: Option<u32>,
    /// The session before it, whose datagrams may still be on their way.
    pub(super) previous: Option<u32>,
    /// The session that the other side has not used yet, or not answered.
    pub(super) coming: Option<u32>,
    pub(super) questions: VecDeque<Question>,
    /// When something of it was opened last.
    pub(super) heard: Timestamp,
    /// Of the last question there that was answered.
    pub(super) round_trip: Option<Duration>,
}

/// Who began.
#[derive(Debug)]
pub(super) enum HandshakeRole {
    /// This side, which keeps the session alive and shows this grant.
    Initiator {
        shown: Option<SignedGrant>,
        /// No other initiation before this time.
        next_try: Timestamp,
        cookie: Option<([u8; 16], Timestamp)>,
    },
    /// The other side, which showed a grant; a relay shows none.
    Responder { shown: Option<Shown> },
}

/// A grant that was good when it was shown.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) verified: VerifiedGrant,
    /// When it ends, or the session has its greatest age, by the clock that does not jump: what a
    /// wall clock says later ends no session. New keys take a grant that is good then.
    pub(super) ends: Timestamp,
}

impl Shown {
    pub(super) fn new(now: Now, verified: VerifiedGrant) -> Self {
        let ends = now.steady + verified.grant.session_limit(now.unix);
        Self { verified, ends }
    }
}

/// An address that is not the neighbour's yet, and is proven. Whoever sends its datagrams on from
/// there, faster than they come by themselves, gets as far: so it is taken only where the address
/// before has fallen silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) link: Link,
    /// When it was asked there, and at the address before.
    pub(super) asked: Timestamp,
    /// When it is taken, if nothing is heard of the other.
    pub(super) due: Timestamp,
}

/// A question whose answer is awaited.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    pub(super) number: u64,
    pub(super) link: Link,
    pub(super) asked: Timestamp,
    /// The length of the datagram that asked.
    pub(super) bytes: usize,
}

impl Peer {
    pub(super) fn new(
        own: PublicIdentity,
        identity: PublicIdentity,
        instance: u64,
        side: HandshakeRole,
        link: Link,
        now: Now,
    ) -> Self {
        Self {
            own,
            identity,
            instance,
            home: matches!(side, HandshakeRole::Initiator { .. }).then_some(link),
            side,
            link,
            link_heard: now.steady,
            is_led: false,
            candidate: None,
            responded: None,
            sending: None,
            previous: None,
            coming: None,
            questions: VecDeque::new(),
            heard: now.steady,
            round_trip: None,
        }
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = u32> + use<> {
        [self.sending, self.previous, self.coming].into_iter().flatten()
    }

    /// Remembers a question, and forgets the oldest of too many.
    pub(super) fn remember(&mut self, question: Question) {
        if self.questions.len() == QUESTIONS {
            self.questions.pop_front();
        }
        self.questions.push_back(question);
    }

    /// The question that `number` answers when it comes over `link`; it and those before are
    /// settled.
    pub(super) fn settle(&mut self, number: u64, link: Link) -> Option<Question> {
        let found = |question: &Question| question.number == number && question.link.covers(link);
        let at = self.questions.iter().position(found)?;
        let question = self.questions[at];
        // Those to other addresses are still open.
        let mut index = 0;
        self.questions.retain(|other| {
            index += 1;
            index > at + 1 || other.link != question.link
        });
        Some(question)
    }

    /// Where initiations go: to where the neighbour is, and to where it should be by configuration.
    pub(super) fn doors(&self) -> impl Iterator<Item = Link> + use<> {
        let home = self.home.filter(|home| *home != self.link);
        [Some(self.link), home].into_iter().flatten()
    }

    /// Returns whether a question to where the neighbour is has that number: over whichever way the
    /// answer comes, it got there.
    pub(super) fn was_asked_there(&self, number: u64) -> bool {
        let mut questions = self.questions.iter();
        self.link.is_internet()
            && questions.any(|question| question.number == number && question.link == self.link)
    }

    /// Takes the candidate's address if nothing was heard of the address before for as long as its
    /// answer may take.
    pub(super) fn move_if_due(&mut self, now: Now) -> Option<Link> {
        let due = self.candidate.take_if(|candidate| now.steady >= candidate.due)?;
        if self.link_heard >= due.asked {
            return None;
        }
        (self.link, self.link_heard) = (due.link, now.steady);
        Some(due.link)
    }
}

/// One agreement on keys.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) peer: PeerId,
    pub(super) born: Timestamp,
    pub(super) phase: Phase,
    /// Datagrams sealed: the next counter.
    pub(super) sealed: u64,
    pub(super) window: ReplayWindow,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The initiation is on its way.
    Awaited(Box<Awaited>),
    /// Keys are there.
    Open { theirs: u32, keys: Box<Keys> },
}

#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) handshake: Initiator,
    /// The initiation, to be sent again with a cookie.
    pub(super) message: Vec<u8>,
}

impl Session {
    pub(super) fn new(peer: PeerId, born: Timestamp, phase: Phase) -> Self {
        Self { peer, born, phase, sealed: 0, window: ReplayWindow::default() }
    }
}
