//! A relay: it opens the header of each connection, dials the next hop or the destination, tells
//! its neighbour how that went, and moves bytes both ways.

mod probes;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_grant::header::{HEADER_LIMIT, HEADER_PREFIX_BYTES, header_length};
use tradewind_grant::{
    GrantError, OpenHeader, OperatorPublicKey, PublicIdentity, ReceivedHeader, Refusal,
    RelayPolicy, Reply, SealedHeader, Status, Verifier,
};
use tradewind_net::tcp;
use tradewind_units::Timestamp;

use crate::config::{first_options, keeping, listener_options};
use crate::counts::Outcome;
use crate::dial::{Dialler, Speaker, try_options};
use crate::failure::Failure;
use crate::head::{HeadError, Progress, Unused};
use crate::opening::{NextRelay, Waited, part};
use crate::pump::{Broken, Direction};
use crate::server::{Server, Service, Setup, write_all};
use crate::session::{GrantSessions, Keeping, Session, broken};
use crate::side::Side;
use crate::worker::{Seat, Worker};
use crate::{Handle, RelayConfig, RelayError, Shutdown};

/// A relay whose listeners are open.
pub struct Relay {
    server: Server,
    service: Arc<RelayService>,
    identity: PublicIdentity,
}

impl Relay {
    /// Opens the listeners and the metrics port.
    ///
    /// # Errors
    /// When the identity cannot be read or an address cannot be listened on.
    pub fn bind(config: &RelayConfig) -> Result<Self, RelayError> {
        let mut verifier = Verifier::new(config.identity()?, config.operators.clone());
        verifier.refuse_issued_before(unix_now());
        let identity = verifier.public();
        let dial_options = first_options(&config.leg.dial);
        try_options(&dial_options)?;
        let server = Server::bind(&Setup {
            program: "relay",
            addresses: &config.listen,
            workers: config.workers,
            limits: &config.limits,
            accept: &listener_options(&config.leg.accept, &config.timeouts),
            drain: config.timeouts.drain,
            metrics: config.metrics,
            register: &|_| {},
        })?;
        let own_listeners = server.handle().own_listeners();
        let service = Arc::new(RelayService {
            verifier: Mutex::new(verifier),
            operators: config.operators.clone(),
            policy: config.policy.policy(&own_listeners),
            dialler: Dialler { options: dial_options, limit: config.timeouts.dial, own_listeners },
            grant_sessions: GrantSessions::default(),
            header_limit: config.timeouts.header,
            keeping: keeping(&config.leg.dial, &config.timeouts),
        });
        Ok(Self { server, service, identity })
    }

    /// Who this relay is.
    #[must_use]
    pub const fn identity(&self) -> PublicIdentity {
        self.identity
    }

    /// What can be seen of it while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.server.handle().clone()
    }

    /// Serves until `shutdown` tells it to end. Blocks.
    ///
    /// # Errors
    /// When a thread cannot be started, or ends by a bug.
    pub fn run(self, shutdown: &Shutdown) -> Result<(), RelayError> {
        self.server.run(&self.service, shutdown)
    }
}

/// What a relay does with a connection.
struct RelayService {
    /// Shared by all workers, since a replayed header may come to another one. Held for a few
    /// keyed hashes at a time; signatures are checked without it.
    verifier: Mutex<Verifier>,
    operators: Vec<OperatorPublicKey>,
    policy: RelayPolicy,
    dialler: Dialler,
    grant_sessions: GrantSessions,
    header_limit: Duration,
    keeping: Keeping,
}

impl Service for RelayService {
    fn keeping(&self) -> &Keeping {
        &self.keeping
    }

    async fn open(
        &self,
        stream: TcpStream,
        _entrance: usize,
        seat: &mut Seat,
    ) -> Result<Session, Outcome> {
        let mut unused = Unused::default();
        let stock = &seat.worker().stock;
        let reading = unused.read_head(&stream, stock, HEADER_LIMIT, header_bytes);
        let bytes = match timeout(self.header_limit, reading).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(HeadError::Parse(cause))) => {
                tracing::debug!("refused: {cause}");
                return Err(Outcome::Malformed);
            }
            Ok(Err(error)) => {
                tracing::debug!("refused: {error}");
                return Err(Outcome::NoHeader);
            }
            Err(_) => {
                tracing::debug!("refused: no whole header within {:?}", self.header_limit);
                return Err(Outcome::NoHeader);
            }
        };
        let (header, next) = match self.verify(&bytes) {
            Ok(verified) => verified,
            Err(refusal) => return Err(self.refuse(stream, seat, refusal).await),
        };
        seat.authenticated();
        let worker = seat.worker();
        if header.is_probe {
            return Err(self.answer_probes(stream, worker, header, next, unused).await);
        }
        let Some(place) = self.grant_sessions.enter(&header) else {
            let failure = Failure::new(Status::Overloaded, "the grant's sessions are all in use");
            return Err(self.fail(stream, worker, &header, failure, Dial::NotBegun).await);
        };
        let session = match next {
            Some(next) => self.pass_on(stream, worker, &header, &next, unused).await?,
            None => self.reach_destination(stream, worker, &header, unused).await?,
        };
        Ok(Session { _place: Some(place), ..session })
    }
}

impl RelayService {
    /// Opens a header, and seals the one for the next hop unless this is the last.
    fn verify(&self, bytes: &[u8]) -> Result<(OpenHeader, Option<SealedHeader>), Box<Refusal>> {
        let header = ReceivedHeader::parse(bytes)?;
        let lock = || self.verifier.lock().unwrap_or_else(PoisonError::into_inner);
        let mut verifier = lock();
        if !verifier.knows_grant_of(&header) {
            drop(verifier);
            let verified = header.verify_grant(&self.operators)?;
            verifier = lock();
            verifier.learn(verified);
        }
        let header = verifier.open_received(unix_now(), header)?;
        match verifier.forward(&header) {
            Ok(next) => Ok((header, next)),
            Err(cause) => {
                let (upstream, hop) = (Some(header.upstream), Some(header.hop));
                Err(Box::new(Refusal { cause, upstream, hop }))
            }
        }
    }

    /// Refuses a header: with a word when the neighbour is proven, else in silence.
    async fn refuse(&self, stream: TcpStream, seat: &mut Seat, refusal: Box<Refusal>) -> Outcome {
        let failure = Failure::from(refusal.cause.clone());
        let (Some(key), Some(hop)) = (refusal.upstream, refusal.hop) else {
            tracing::debug!("refused: {}", failure.message);
            return match refusal.cause {
                GrantError::Malformed { .. } | GrantError::TooLong { .. } => Outcome::Malformed,
                _ => Outcome::Forged,
            };
        };
        tracing::info!("refused: {}", failure.message);
        let reply = Reply::failed(failure.status, hop, &failure.message).before_dial();
        part(stream, seat.worker(), &key.seal(&reply)).await;
        Outcome::Failed(failure.status)
    }

    /// Tells the neighbour that the path could not be opened from here on.
    async fn fail(
        &self,
        stream: TcpStream,
        worker: &Worker,
        header: &OpenHeader,
        failure: Failure,
        dial: Dial,
    ) -> Outcome {
        tracing::info!(flow = %header.flow, "flow to {}: {}", header.destination, failure.message);
        let failed = Reply::failed(failure.status, header.hop, &failure.message);
        let reply = match dial {
            Dial::NotBegun => failed.before_dial(),
            Dial::PerhapsBegun => failed,
        };
        part(stream, worker, &header.upstream.seal(&reply)).await;
        Outcome::Failed(failure.status)
    }

    /// The last relay's part: dials the destination.
    async fn reach_destination(
        &self,
        upstream: TcpStream,
        worker: &Worker,
        header: &OpenHeader,
        unused: Unused,
    ) -> Result<Session, Outcome> {
        let early = !unused.is_empty();
        let mut up = Direction::new(unused.into_bytes());
        // What passes the check is dialled next; before that the destination has seen nothing.
        let begun = AtomicBool::new(false);
        let check = |address| {
            self.policy.check(&header.grant, &header.destination, address)?;
            begun.store(true, Relaxed);
            Ok(())
        };
        let dialled = self.dialler.dial_destination(&header.destination, up.speaker(), check).await;
        let downstream = match dialled {
            Ok(downstream) => downstream,
            Err(failure) => {
                let dial = if begun.load(Relaxed) { Dial::PerhapsBegun } else { Dial::NotBegun };
                return Err(self.fail(upstream, worker, header, failure, dial).await);
            }
        };
        let started = up.start(&downstream, worker.means_up());
        let reply = header.upstream.seal(&Reply::ok(header.hop));
        if let Err(error) = agree(&upstream, &reply, early).await {
            return Err(broken(&header.flow, &header.destination, &Broken::Upstream(error)));
        }
        if let Err(error) = started {
            return Err(broken(&header.flow, &header.destination, &Broken::Downstream(error)));
        }
        Ok(session(header, upstream, downstream, up, Direction::new(Vec::new())))
    }

    /// Every other relay's part: dials the next one and passes the header on.
    async fn pass_on(
        &self,
        upstream: TcpStream,
        worker: &Worker,
        header: &OpenHeader,
        next: &SealedHeader,
        unused: Unused,
    ) -> Result<Session, Outcome> {
        let address = header.route.hops()[header.hop + 1].address;
        let dialled = match self.policy.check_next_hop(address) {
            Ok(()) => self.dialler.dial(address, Speaker::Us).await,
            Err(cause) => Err(Failure::new(Status::NextHopRefused, cause.to_string())),
        };
        let downstream = match dialled {
            Ok(downstream) => downstream,
            Err(failure) => {
                return Err(self.fail(upstream, worker, header, failure, Dial::NotBegun).await);
            }
        };
        let early = !unused.is_empty();
        let mut up = Direction::after(&next.bytes, unused.into_bytes());
        // If this fails, so will the wait for the reply, which says why.
        let _started = up.start(&downstream, worker.means_up());
        let next = NextRelay { stream: &downstream, address, key: &next.downstream };
        let legs_left = header.route.hops().len() - header.hop;
        let limit = self.dialler.limit * u32::try_from(legs_left).unwrap_or(u32::MAX);
        let (reply, unused) = match next.reply(&upstream, &mut up, worker, limit).await {
            Waited::Replied(reply, unused) => (reply, unused),
            Waited::Failed(failure) => {
                // The header has left: how far it came nobody knows.
                return Err(self.fail(upstream, worker, header, failure, Dial::PerhapsBegun).await);
            }
            Waited::UpstreamGone(error) => {
                return Err(broken(&header.flow, &header.destination, &Broken::Upstream(error)));
            }
        };
        let sealed = header.upstream.seal(&reply);
        if reply.status != Status::Ok {
            tracing::info!(flow = %header.flow, "flow to {}: hop {}: {}", header.destination, reply.hop + 1, reply.message);
            part(upstream, worker, &sealed).await;
            return Err(Outcome::Failed(reply.status));
        }
        if let Err(error) = agree(&upstream, &sealed, early).await {
            return Err(broken(&header.flow, &header.destination, &Broken::Upstream(error)));
        }
        Ok(session(header, upstream, downstream, up, Direction::new(unused.into_bytes())))
    }
}

/// Whether the destination may have been dialled when a session failed, here or further on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dial {
    /// Surely not.
    NotBegun,
    /// It cannot be ruled out.
    PerhapsBegun,
}

fn session(
    header: &OpenHeader,
    upstream: TcpStream,
    downstream: TcpStream,
    up: Direction,
    down: Direction,
) -> Session {
    let (flow, destination) = (header.flow.clone(), header.destination.clone());
    let (upstream, downstream) = (Side::Heard(upstream), Side::Heard(downstream));
    Session { flow, destination, upstream, downstream, up, down, _place: None }
}

/// Tells the neighbour that the path is open. Whoever sent data right behind its header does not
/// wait for the word, so there it travels with the first data of the destination: a packet less for
/// each short session.
async fn agree(upstream: &TcpStream, reply: &[u8], early: bool) -> io::Result<()> {
    if !early {
        return write_all(upstream, reply).await;
    }
    upstream.writable().await?;
    match upstream.try_io(Interest::WRITABLE, || tcp::send_with_next(upstream, reply)) {
        Ok(sent) => write_all(upstream, &reply[sent..]).await,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => write_all(upstream, reply).await,
        Err(error) => Err(error),
    }
}

fn header_bytes(bytes: &[u8]) -> Result<Progress<Vec<u8>>, GrantError> {
    if bytes.len() < HEADER_PREFIX_BYTES {
        return Ok(Progress::Incomplete);
    }
    let length = header_length(bytes)?;
    match bytes.get(..length) {
        Some(header) => Ok(Progress::Complete(header.to_vec(), length)),
        None => Ok(Progress::Incomplete),
    }
}

/// The time since the Unix epoch, as headers and grants count it.
pub(crate) fn unix_now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::ZERO + since_epoch.unwrap_or_default()
}
