//! A leg that may be striped: who may join its session, and the joining.
//!
//! The side that accepted keeps the session's key in a table for joins to look up; an entry is
//! removed with its session. The side that dialled opens the further connections, each on a task of
//! its own, while the session goes on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tradewind_desired::Connections;
use tradewind_desired::connections::MAX_CONNECTIONS;
use tradewind_grant::join::{self, WELCOME_BYTES};
use tradewind_grant::{
    GrantError, GrantId, Hop, JoinKey, PublicIdentity, ReplyKey, SealedHeader, SessionName,
};
use tradewind_net::tcp;
use tradewind_stripe::Growth;
use tradewind_units::Timestamp;

use super::{LOOK, MAX_ADAPTIVE, may_stripe_within};
use crate::connection::{Connection, Resting};
use crate::dial::{Dialler, Speaker};
use crate::limits::memory::Memory;

/// Most connections that may join one session in its life. Chosen: each of 64 fails 16 times.
const MAX_JOINS: usize = 1024;
/// Most that are open at a time. Chosen: the 64 that a leg may have, and as many that stall.
const MAX_AT_ONCE: usize = 2 * MAX_CONNECTIONS as usize;
/// The number of consecutive failed joins after which no more are tried.
const MAX_FAILURES: usize = 8;
/// Interval over which an adaptive number of connections is measured. Chosen: many round trips of
/// any path, and few seconds of a stream.
const PERIOD: Duration = Duration::from_secs(2);

/// A connection that has joined.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(super) number: u32,
    /// Registered with no runtime: another worker may have accepted it.
    pub(super) connection: Resting,
    /// The bytes received on it.
    pub(super) input: Vec<u8>,
    /// The permit of an accepted one, which is held until this is dropped.
    pub(super) permit: Option<oneshot::Sender<()>>,
}

/// A leg that may be striped, or is.
#[derive(Debug)]
pub struct Offer {
    arrivals: mpsc::UnboundedReceiver<Option<Joined>>,
    joined: VecDeque<Joined>,
    role: Role,
}

#[derive(Debug)]
enum Role {
    Dials(Box<Dialling>),
    /// The entry is removed when this is dropped.
    Accepts {
        _entry: Entry,
    },
}

/// The state of the side that dials.
#[derive(Debug)]
struct Dialling {
    key: JoinKey,
    /// The identity that dialled.
    from: PublicIdentity,
    hop: Hop,
    dialler: Arc<Dialler>,
    done: mpsc::UnboundedSender<Option<Joined>>,
    after: u64,
    growth: Growth,
    begun: bool,
    next_number: u32,
    under_way: usize,
    failures: usize,
}

impl Offer {
    /// Creates the offer of the side that dialled `hop`, if its leg's profile is striped.
    pub fn of_dialled(dialler: &Dialler, hop: &Hop, header: &SealedHeader) -> Option<Self> {
        let leg = dialler.legs.to(hop.address);
        let growth = match leg.connections {
            Connections::One => return None,
            Connections::Fixed(number) => {
                Growth::new(number.get().into(), number.get().into(), PERIOD)
            }
            Connections::Adaptive => Growth::new(2, MAX_ADAPTIVE, PERIOD),
        };
        let (done, arrivals) = mpsc::unbounded_channel();
        let dialling = Dialling {
            key: JoinKey::of(&header.downstream),
            from: header.from,
            hop: *hop,
            dialler: Arc::new(dialler.clone()),
            done,
            after: leg.stripe_after,
            growth,
            begun: false,
            next_number: 1,
            under_way: 0,
            failures: 0,
        };
        let role = Role::Dials(Box::new(dialling));
        Some(Self { arrivals, joined: VecDeque::new(), role })
    }

    /// Ready when a connection has joined, which [`Offer::take`] returns. The side that dials opens
    /// some once the session has `moved` enough.
    fn poll(&mut self, cx: &mut Context<'_>, moved: u64, memory: Option<&Arc<Memory>>) -> Poll<()> {
        self.begin(moved, memory);
        self.poll_arrivals(cx);
        if self.joined.is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Opens the first further connections, of the side that dials, once the session has `moved`
    /// enough.
    pub(super) fn begin(&mut self, moved: u64, memory: Option<&Arc<Memory>>) {
        if let Role::Dials(dialling) = &mut self.role
            && !dialling.begun
            && moved >= dialling.after
            && may_stripe_within(memory)
        {
            dialling.begun = true;
            dialling.open(dialling.growth.wanted().saturating_sub(1));
        }
    }

    /// Receives connections that have joined, or failed to.
    fn poll_arrivals(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(arrival)) = self.arrivals.poll_recv(cx) {
            if let Role::Dials(dialling) = &mut self.role {
                dialling.under_way -= 1;
                dialling.failures = if arrival.is_some() { 0 } else { dialling.failures + 1 };
            }
            self.joined.extend(arrival);
        }
    }

    /// Takes a connection that has joined.
    pub(super) fn take(&mut self, cx: &mut Context<'_>) -> Option<Joined> {
        self.poll_arrivals(cx);
        self.joined.pop_front()
    }

    /// Checks, about once in [`LOOK`], for connections to add or to replace. Of `all` that there
    /// are, `healthy` are in good order; `carried` is the total of the session.
    pub(super) fn look(&mut self, now: Timestamp, carried: u64, healthy: usize, all: usize) {
        let Role::Dials(dialling) = &mut self.role else { return };
        dialling.growth.look(now, carried, healthy);
        if dialling.failures < MAX_FAILURES {
            let (wanted, under_way) = (dialling.growth.wanted(), dialling.under_way);
            let lacking = wanted.saturating_sub(healthy + under_way);
            // Stalled ones are retained, in case they recover, but only so many.
            dialling.open(lacking.min((2 * wanted).saturating_sub(all + under_way)));
        }
    }

    /// Returns true if another connection may still join.
    pub(super) fn is_open(&self) -> bool {
        match &self.role {
            Role::Dials(dialling) => dialling.failures < MAX_FAILURES,
            Role::Accepts { .. } => true,
        }
    }
}

impl Dialling {
    /// Opens so many more connections.
    fn open(&mut self, count: usize) {
        for _ in 0..count {
            if self.next_number as usize > MAX_JOINS {
                return;
            }
            let number = self.next_number;
            self.next_number += 1;
            self.under_way += 1;
            let (key, dialler) = (self.key.clone(), Arc::clone(&self.dialler));
            let (from, hop) = (self.from, self.hop);
            let done = self.done.clone();
            let pause = LOOK * u32::try_from(self.failures).unwrap_or(1);
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let joined = match join(&key, number, (from, hop), &dialler).await {
                    Ok(connection) => {
                        Some(Joined { number, connection, input: Vec::new(), permit: None })
                    }
                    Err(why) => {
                        tracing::debug!("no further connection to {}: {why}", hop.address);
                        None
                    }
                };
                // The receiver is gone when the session is over.
                let _sent = done.send(joined);
            });
        }
    }
}

/// Dials and joins. The error is for the log.
async fn join(
    key: &JoinKey,
    number: u32,
    (from, hop): (PublicIdentity, Hop),
    dialler: &Dialler,
) -> Result<Resting, String> {
    let dialled = dialler.dial(&from, &hop, Speaker::Us).await;
    let mut connection = dialled.map_err(|failure| failure.message)?;
    let mut welcome = [0; WELCOME_BYTES];
    let exchange = async {
        connection.write_all(&key.join(number)).await?;
        connection.read_exact(&mut welcome).await?;
        dialler.legs.to(hop.address).settled.apply(&connection)?;
        tcp::acknowledge_at_once(&connection)
    };
    let late = || Err(io::ErrorKind::TimedOut.into());
    let exchange = timeout(dialler.limit(), exchange).await.unwrap_or_else(|_| late());
    exchange.map_err(|error| crate::failure::plain(&error))?;
    if !key.is_welcome(number, &welcome) {
        return Err("the welcome is not that of the session's other end".to_owned());
    }
    connection.rest().map_err(|error| crate::failure::plain(&error))
}

/// The sessions of a relay that connections may join.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<BTreeMap<SessionName, Joinable>>);

/// The neighbour, and its grant, whose connections may join a session.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// The gateway of the session.
    pub gateway: PublicIdentity,
    /// The grant of the session.
    pub grant: GrantId,
    /// The most that the grant allows.
    pub most: Option<u32>,
}

#[derive(Debug)]
struct Joinable {
    key: JoinKey,
    /// The identity that dialled the leg.
    neighbour: PublicIdentity,
    member: Member,
    arrivals: mpsc::UnboundedSender<Option<Joined>>,
    used: BTreeSet<u32>,
    places: Arc<Semaphore>,
}

/// A session's place in the table.
#[derive(Debug)]
struct Entry {
    sessions: Arc<Sessions>,
    name: SessionName,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.name);
    }
}

/// A join that was verified.
pub struct Admitted {
    pub welcome: [u8; WELCOME_BYTES],
    pub member: Member,
    number: u32,
    arrivals: mpsc::UnboundedSender<Option<Joined>>,
    _place: OwnedSemaphorePermit,
}

/// The reason that a connection may not join.
#[derive(Debug)]
pub enum NotAdmitted {
    /// No such session is open here; the neighbour may not know yet that it has ended.
    NoSession,
    /// The session has as many as it may have.
    Full,
    /// The session's neighbour did not seal it, or it is a replay.
    Forged(GrantError),
}

impl From<GrantError> for NotAdmitted {
    fn from(cause: GrantError) -> Self {
        Self::Forged(cause)
    }
}

impl Sessions {
    /// Lets `neighbour`, whom `reply` answers, join the session of `member` with more connections.
    pub fn offer(
        self: &Arc<Self>,
        reply: &ReplyKey,
        neighbour: PublicIdentity,
        member: Member,
    ) -> Offer {
        let key = JoinKey::of(reply);
        let name = key.session();
        let (done, arrivals) = mpsc::unbounded_channel();
        let (used, places) = (BTreeSet::new(), Arc::new(Semaphore::new(MAX_AT_ONCE)));
        let joinable = Joinable { key, neighbour, member, arrivals: done, used, places };
        self.lock().insert(name, joinable);
        let entry = Entry { sessions: Arc::clone(self), name };
        Offer { arrivals, joined: VecDeque::new(), role: Role::Accepts { _entry: entry } }
    }

    /// Checks a join from `peer`, the identity proved in TLS if there is one. Each number is valid
    /// once.
    pub fn admit(
        &self,
        bytes: &[u8],
        peer: Option<PublicIdentity>,
    ) -> Result<Admitted, NotAdmitted> {
        let name = join::session_of(bytes)?;
        let mut sessions = self.lock();
        let joinable = sessions.get_mut(&name).ok_or(NotAdmitted::NoSession)?;
        let number = joinable.key.open(bytes)?;
        if peer.is_some_and(|peer| peer != joinable.neighbour) {
            return Err(GrantError::JoinTag(name).into());
        }
        if joinable.used.len() >= MAX_JOINS || !joinable.used.insert(number) {
            return Err(GrantError::JoinTag(name).into());
        }
        let place = Arc::clone(&joinable.places).try_acquire_owned();
        Ok(Admitted {
            _place: place.map_err(|_| NotAdmitted::Full)?,
            welcome: joinable.key.welcome(number),
            member: joinable.member,
            number,
            arrivals: joinable.arrivals.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionName, Joinable>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Admitted {
    /// Passes the connection, on which `input` was received, to its session, and waits until that
    /// no longer needs it.
    pub async fn hand_over(self, connection: Connection, input: Vec<u8>) -> io::Result<()> {
        let (permit, given_up) = oneshot::channel();
        let connection = connection.rest()?;
        let joined = Joined { number: self.number, connection, input, permit: Some(permit) };
        if self.arrivals.send(Some(joined)).is_ok() {
            drop(self.arrivals);
            // Nothing is ever sent: the error is the end.
            let _over = given_up.await;
        }
        Ok(())
    }
}

/// The offers of a session while neither of its legs is striped.
#[derive(Debug, Default)]
pub struct Offers {
    pub(crate) up: Option<Offer>,
    pub(crate) down: Option<Offer>,
}

impl Offers {
    /// Creates them, if there is any.
    pub fn new(up: Option<Offer>, down: Option<Offer>) -> Option<Box<Self>> {
        (up.is_some() || down.is_some()).then(|| Box::new(Self { up, down }))
    }

    /// Ready when a connection has joined a leg of the session, which has `moved` so much.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        moved: u64,
        memory: Option<&Arc<Memory>>,
    ) -> Poll<()> {
        let mut ready = Poll::Pending;
        for offer in [&mut self.up, &mut self.down].into_iter().flatten() {
            if offer.poll(cx, moved, memory).is_ready() {
                ready = Poll::Ready(());
            }
        }
        ready
    }
}

/// The time at which a leg was first seen unable to send; a leg may be so for a moment, while
/// connections join.
#[derive(Debug, Default)]
pub(super) struct Mute(Option<Instant>);

impl Mute {
    /// Returns true if it has been unable to send for too long.
    pub(super) fn for_good(&mut self, is_mute: bool) -> bool {
        /// Chosen: a join fails by then, or another succeeds.
        const MAX: Duration = Duration::from_secs(20);
        if !is_mute {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() > MAX
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tradewind_grant::{Grant, IdentityKey, Nonce, OperatorKey, Relays, Verifier};

    pub(crate) fn peer() -> PublicIdentity {
        IdentityKey::from_entropy([2; 32]).public()
    }

    /// Returns the member whose sessions are joined.
    pub(crate) fn member() -> Member {
        let grant = Grant {
            gateway: peer(),
            not_before: Timestamp::ZERO,
            expires: Timestamp::FAR_FUTURE,
            sessions: None,
            extensions: tradewind_grant::Extensions::default(),
            relays: Relays::Any,
            destinations: vec!["192.0.2.0/24:443".parse().unwrap()],
        };
        let grant = grant.sign(&OperatorKey::from_entropy([3; 32])).unwrap().id();
        Member { gateway: peer(), grant, most: None }
    }

    /// Returns the reply key of a leg, which is the same at both ends.
    pub(crate) fn reply_key(seed: u8) -> ReplyKey {
        let mut verifier = Verifier::new(IdentityKey::from_entropy([1; 32]), Vec::new());
        let (own, peer) = (verifier.public(), peer());
        verifier.hello(Timestamp::ZERO, Nonce::from_entropy([seed; 16]), &own, &peer).unwrap().1
    }

    #[test]
    fn join_is_valid_once_per_session() {
        let sessions = Arc::new(Sessions::default());
        let (one, other) = (reply_key(3), reply_key(4));
        let join = JoinKey::of(&one).join(1);
        let is_unknown = |admitted: Result<_, _>| matches!(admitted, Err(NotAdmitted::NoSession));
        let is_forged = |admitted: Result<_, _>| matches!(admitted, Err(NotAdmitted::Forged(_)));
        assert!(is_unknown(sessions.admit(&join, None)), "no such session yet");
        let offer = sessions.offer(&one, peer(), member());
        let _other = sessions.offer(&other, peer(), member());
        assert!(sessions.admit(&join, None).is_ok());
        assert!(is_forged(sessions.admit(&join, None)), "a second time");
        assert!(sessions.admit(&JoinKey::of(&one).join(2), Some(peer())).is_ok());
        let other_identity = IdentityKey::from_entropy([5; 32]).public();
        assert!(is_forged(sessions.admit(&JoinKey::of(&one).join(3), Some(other_identity))));
        let mut forged = JoinKey::of(&one).join(3);
        forged[4..20].copy_from_slice(&JoinKey::of(&other).join(3)[4..20]);
        assert!(is_forged(sessions.admit(&forged, None)), "sealed for another session");
        drop(offer);
        assert!(is_unknown(sessions.admit(&JoinKey::of(&one).join(4), None)), "it is over");
        assert_eq!(sessions.lock().len(), 1);
    }

    #[test]
    fn session_connections_are_limited() {
        let sessions = Arc::new(Sessions::default());
        let key = JoinKey::of(&reply_key(3));
        let _offer = sessions.offer(&reply_key(3), peer(), member());
        let admit = |number: usize| sessions.admit(&key.join(number as u32), None);
        let mut admitted: Vec<_> = (1..=MAX_AT_ONCE).map(|number| admit(number).ok()).collect();
        assert!(admitted.iter().all(Option::is_some));
        assert!(matches!(admit(MAX_AT_ONCE + 1), Err(NotAdmitted::Full)));
        admitted.pop();
        assert!(admit(MAX_AT_ONCE + 2).is_ok(), "one has gone");
    }
}
