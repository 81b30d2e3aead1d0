//! Relays: they split TCP sessions for gateways that hold a grant.
//!
//! A [`Relay`] opens the header of each connection, dials the next hop or the destination, reports
//! the result to its neighbour, and moves bytes both ways. [`forward`] passes packets on without
//! splitting, by the kernel.

mod admission;
mod first_bytes;
pub mod forward;
mod hello;
mod joins;
mod judgement;
mod next;
mod onward;
mod places;
mod probes;
mod refusals;
mod reloader;
#[cfg(test)]
mod tests;
mod welcome;

use std::io;
use std::num::NonZeroU32;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tradewind_config::RelayConfig;
use tradewind_desired::Encryption;
use tradewind_grant::header::HEADER_LIMIT;
use tradewind_grant::replay::REPLAY_LIMIT;
use tradewind_grant::{
    GrantError, IdentityKey, OpenHeader, PublicIdentity, ReplayTable, Revocations, Sighting,
    Verifier, join, warm,
};
use tradewind_net::periodic::Periodic;
use tradewind_stream::access_log::{AccessLog, AuditLog, SessionFacts, note};
use tradewind_stream::clock::unix_now;
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::{HeadError, ReadAhead};
use tradewind_stream::counts::Outcome;
use tradewind_stream::dial::local_ports::LocalPorts;
use tradewind_stream::dial::pool::{Greeter, Pools};
use tradewind_stream::dial::pool_metrics::PoolCollector;
use tradewind_stream::dial::profile::Legs;
use tradewind_stream::dial::{Dialler, try_options};
use tradewind_stream::keys::own_identities::OwnIdentities;
use tradewind_stream::keys::{self, HeldKeys};
use tradewind_stream::limits::live::LiveLimits;
use tradewind_stream::limits::timeouts::LiveTimeouts;
use tradewind_stream::process::server::{Server, Service, Setup};
use tradewind_stream::process::upgrade::Handover;
use tradewind_stream::process::worker::Permit;
use tradewind_stream::resolver::Resolver;
use tradewind_stream::session::{Session, SessionSettings};
use tradewind_stream::{Additions, Handle, Shutdown, StreamError};

use admission::Admission;
use first_bytes::header_bytes;
pub use forward::{ForwardRule, Forwarder};
use hello::WarmConnections;
use judgement::HeaderVerifier;
use onward::Onward;
use places::Places;
use refusals::{Dial, fail, refuse, turn_away};
pub use reloader::{LIVE_KEYS, RelayReloader};
use welcome::{Welcomed, refuse_plain, silent, welcome};

/// Interval at which sessions are checked for expiry. Chosen: they end within a second of it.
const EXPIRY_LOOK: Duration = Duration::from_millis(200);

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
    pub fn bind(config: &RelayConfig) -> Result<Self, StreamError> {
        Self::bind_with(config, Handover::take()?, &Additions::default())
    }

    /// Does the same, with the sockets of the previous process, and the program's additions.
    ///
    /// # Errors
    /// As [`Relay::bind`].
    pub fn bind_with(
        config: &RelayConfig,
        handover: Handover,
        additions: &Additions<'_>,
    ) -> Result<Self, StreamError> {
        let held = additions.held.cloned().unwrap_or_default();
        let identities = keys::of_relay(config, &held)?;
        let own = Arc::new(OwnIdentities::new(&identities)?);
        let mut verifier = verifier_of(config, &identities);
        let identity = verifier.public();
        let legs = legs_of(config, additions)?;
        let (timeouts, local_ports) = (LiveTimeouts::new(&config.timeouts), LocalPorts::default());
        let warm = PoolCollector { program: "relay", pools: Arc::default() };
        let setup = Setup {
            program: "relay",
            addresses: &config.listen,
            workers: config.workers,
            limits: &config.limits,
            accept: &legs.accept,
            timeouts: &timeouts,
            metrics: config.metrics,
            access_log: config.access_log.as_ref(),
            traces: config.traces.as_ref(),
            identity: Some(identity),
            metrics_hosts: &config.metrics_hosts,
            register: &|registry| {
                let collector = Box::new(warm.clone());
                registry.register(|inner| inner.register_collector(collector));
                let collector = Box::new(local_ports.collector("relay"));
                registry.register(|inner| inner.register_collector(collector));
                (additions.register)(registry);
            },
        };
        let server = Server::bind(&setup, handover)?;
        let rules = reloader::rules(config, &Revocations::default())?;
        verifier.set_trust(Arc::clone(&rules.trust));
        let own_listeners = server.handle().own_listeners();
        let dialler = Arc::new(Dialler {
            legs: Arc::clone(&legs),
            timeouts: timeouts.clone(),
            own_listeners: own_listeners.clone(),
            resolver: Resolver::default(),
            mark: None,
            local_ports,
            own: Arc::clone(&own),
        });
        let verifier = Arc::new(Mutex::new(verifier));
        let greeter = Greeter::Relay(Arc::clone(&verifier));
        let pools = Arc::new(Pools::new(Arc::clone(&dialler), greeter));
        let _first = warm.pools.set(Arc::clone(&pools));
        let service = Arc::new(RelayService {
            verifier: HeaderVerifier::new(verifier),
            onward: Onward {
                dialler,
                pools,
                admission: Admission::new(rules, own_listeners)?,
                joinable: Arc::default(),
                audit_log: AuditLog::open(config.audit_log.as_ref())?.map(Arc::new),
            },
            places: Places::new(&config.limits, server.most_sessions()),
            warm: WarmConnections::new(config.limits.resting),
            session_settings: SessionSettings { timeouts, legs },
            limits: server.limits(),
            own,
            held,
            encryptions: config.listen.iter().map(|at| config.leg.encryption_at(*at)).collect(),
        });
        Ok(Self { server, service, identity })
    }

    /// Returns the same relay, which resolves names by `resolver`.
    ///
    /// # Panics
    /// Never: the service has no other holder before the relay runs.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        let service = Arc::get_mut(&mut self.service).expect("no worker has started");
        // Pools dial relays, which have no names.
        let dialler = &mut service.onward.dialler;
        *dialler = Arc::new(Dialler { resolver, ..(**dialler).clone() });
        self
    }

    /// Returns the identity of this relay.
    #[must_use]
    pub const fn identity(&self) -> PublicIdentity {
        self.identity
    }

    /// Returns the logs that it writes to, for other parts of this process.
    #[must_use]
    pub fn logs(&self) -> (Option<Arc<AccessLog>>, Option<Arc<AuditLog>>) {
        (self.server.access_log().cloned(), self.service.onward.audit_log.clone())
    }

    /// Returns a view of it while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.server.handle().clone()
    }

    /// Returns the part that applies a changed configuration while it runs.
    #[must_use]
    pub fn reloader(&self) -> RelayReloader {
        RelayReloader(Arc::clone(&self.service))
    }

    /// Takes over from the previous process, if there is one, which then retires: for a caller that
    /// has more to take from it. Blocks for as long as it takes to receive the table of headers
    /// seen. [`Relay::run`] does it unless it is done.
    ///
    /// # Errors
    /// When the previous process breaks off.
    pub fn take_over(&mut self) -> Result<(), StreamError> {
        self.server.take_over(&self.service)
    }

    /// Serves until `shutdown` ends it. Blocks.
    ///
    /// # Errors
    /// When a thread cannot be started, or ends by a bug.
    pub fn run(self, shutdown: &Shutdown) -> Result<(), StreamError> {
        self.service.warm.end_with(shutdown.watch());
        let authorizations = Arc::clone(&self.service.onward.admission.sessions);
        let end_expired = move || authorizations.end_expired(Instant::now());
        let _ends = Periodic::start("expiry", EXPIRY_LOOK, end_expired)?;
        let result = self.server.run(&self.service, shutdown);
        self.service.onward.audit_log.iter().for_each(|log| log.flush());
        result
    }
}

/// Returns a verifier with the identities of `config`, which refuses headers from before now.
fn verifier_of(config: &RelayConfig, identities: &[IdentityKey]) -> Verifier {
    let mut verifier = Verifier::new(identities[0].clone(), config.operators.clone());
    verifier.set_identities(identities);
    verifier.refuse_issued_before(unix_now());
    verifier
}

/// Returns the socket options of `config`, once the kernel has accepted them for a trial.
fn legs_of(config: &RelayConfig, additions: &Additions<'_>) -> Result<Arc<Legs>, StreamError> {
    let mut legs = Legs::new(&config.leg, &config.timeouts, additions.learned);
    // A relay's neighbour sends its header and the first data in one flight. (A gateway is dialled
    // by any application, which may wait for an acknowledgement.)
    legs.accept.acknowledge_with_data = true;
    try_options(&legs)?;
    Ok(Arc::new(legs))
}

/// Returns the most sessions, and further connections of them, that the grant of `header` itself
/// allows at a time.
fn most_sessions(header: &OpenHeader) -> Option<u32> {
    header.grant.sessions.map(NonZeroU32::get)
}

/// The service of a relay: serves the connections that are accepted.
struct RelayService {
    verifier: HeaderVerifier,
    onward: Onward,
    places: Places,
    warm: WarmConnections,
    session_settings: SessionSettings,
    /// Those that a reload changes.
    limits: LiveLimits,
    /// The identities of this relay.
    own: Arc<OwnIdentities>,
    held: HeldKeys,
    /// The encryption that each listener demands.
    encryptions: Vec<Encryption>,
}

impl Service for RelayService {
    fn session_settings(&self) -> &SessionSettings {
        &self.session_settings
    }

    async fn open(
        &self,
        stream: TcpStream,
        listener_index: usize,
        permit: &mut Permit,
    ) -> Result<Session, Outcome> {
        let deadline = Instant::now() + self.session_settings.timeouts.header();
        let wanted = self.encryptions[listener_index];
        let welcomed = welcome(&self.own, stream, wanted, permit, deadline).await?;
        let Welcomed { connection: stream, must_be_tls } = welcomed;
        let mut read_ahead = ReadAhead::default();
        let bytes = match self.first_bytes(&stream, &mut read_ahead, permit, deadline).await {
            Ok(bytes) => bytes,
            Err(outcome) => return Err(silent(&stream, outcome, deadline).await),
        };
        if must_be_tls {
            let refused = refuse_plain(&self.verifier, stream, &bytes, permit, deadline);
            return Err(refused.await);
        }
        if join::is_join(&bytes) {
            return Err(self.join(stream, &bytes, read_ahead, permit, deadline).await);
        }
        let bytes = match self.header(&stream, bytes, &mut read_ahead, permit).await {
            Ok(bytes) => bytes,
            Err(outcome @ Outcome::Forged) => return Err(silent(&stream, outcome, deadline).await),
            Err(outcome) => return Err(outcome),
        };
        let header = match self.verifier.verify(&bytes, stream.peer(), deadline).await {
            Ok(header) => header,
            Err(refusal) => return Err(refuse(stream, permit, refusal, deadline).await),
        };
        if !header.is_probe {
            note(|facts| describe(facts, &header));
        }
        // A peer that is refused here stays unauthenticated: it gets the reason and may be evicted.
        let admitted = self.places.admit(permit, &header);
        let worker = permit.worker();
        let lookups = match admitted {
            Ok(_) if header.is_probe => {
                return Err(self.answer_probes(stream, worker, header, read_ahead).await);
            }
            Ok(lookups) => lookups,
            Err(refusal) => return Err(turn_away(stream, worker, &header, refusal).await),
        };
        let Some(place) = self.places.of_grant(header.grant_id, most_sessions(&header)) else {
            return Err(turn_away(stream, worker, &header, Outcome::GrantFull).await);
        };
        let onward = &self.onward;
        let session = match onward.next_header(&self.verifier, &header) {
            Ok(Some(next)) => onward.pass_on(stream, worker, &header, &next, read_ahead).await?,
            Ok(None) => {
                onward.reach_destination(stream, worker, &header, read_ahead, &lookups).await?
            }
            Err(failure) => {
                return Err(fail(stream, worker, &header, failure, Dial::NotBegun).await);
            }
        };
        onward.admission.authorize(permit, &header, &session)?;
        Ok(Session { place: Some(place), ..session })
    }

    fn hand_over(&self, stream: &UnixStream) -> io::Result<()> {
        self.verifier.hand_over(stream)
    }

    fn take_over(&self, table: &[u8]) -> io::Result<()> {
        let table = ReplayTable::from_bytes(REPLAY_LIMIT, table).map_err(io::Error::other)?;
        self.verifier.lock().take_over(table);
        Ok(())
    }

    fn judge(&self, sighting: &Sighting) -> Result<(), GrantError> {
        self.verifier.judge(sighting)
    }
}

impl RelayService {
    /// Reads the first bytes: a hop header, a hello, or a join.
    async fn first_bytes(
        &self,
        stream: &Connection,
        read_ahead: &mut ReadAhead,
        permit: &Permit,
        deadline: Instant,
    ) -> Result<Vec<u8>, Outcome> {
        let reading =
            read_ahead.read_head(stream, &permit.worker().buffer_pool, HEADER_LIMIT, header_bytes);
        match timeout_at(deadline, reading).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(HeadError::Parse(cause))) => {
                tracing::debug!("refused: {cause}");
                Err(Outcome::Malformed)
            }
            Ok(Err(error)) => {
                tracing::debug!("refused: {error}");
                Err(Outcome::NoHeader)
            }
            Err(_) => {
                let limit = self.session_settings.timeouts.header();
                tracing::debug!("refused: no whole header within {limit:?}");
                Err(Outcome::NoHeader)
            }
        }
    }

    /// Returns the header of a session. A neighbour that keeps connections ready sends a hello
    /// first and the header later.
    async fn header(
        &self,
        stream: &Connection,
        bytes: Vec<u8>,
        read_ahead: &mut ReadAhead,
        permit: &mut Permit,
    ) -> Result<Vec<u8>, Outcome> {
        if !warm::is_hello(&bytes) {
            return Ok(bytes);
        }
        self.warm.header(&self.verifier, stream, &bytes, read_ahead, permit).await
    }
}

/// Records the facts of a header about its session.
fn describe(facts: &mut SessionFacts, header: &OpenHeader) {
    facts.flow = Some(header.flow.clone());
    facts.destination = Some(header.destination.clone());
    facts.grant = Some(header.grant_id);
    facts.gateway = Some(header.grant.gateway);
    facts.neighbour = Some(header.neighbour());
    facts.next = header.next_hop().map(|next| next.identity);
    facts.path = header.next_hop().map(|next| next.address.to_string());
    facts.trace.take_over(header.nonce, header.hop);
}
