//! One application connection, from its request to its end.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_grant::reply::MESSAGE_LIMIT;
use tradewind_grant::{Destination, DestinationRule, Sealer, Status};
use tradewind_net::interception::OWN_MARK;
use tradewind_telemetry::limited;
use tradewind_units::{FlowId, Source, one_line};

use super::attempt::{NotOpen, OpenPath, Wanted, here};
use super::http::{self, Client, Served, Target};
use super::loops::{Loops, Taken};
use super::paths::Routes;
use super::proxy_header::{self, Ends, ProxyHeader};
use super::udp_associate::Plane;
use super::users::{Credentials, NotLetIn, Users};
use super::{sealer, socks5};
use crate::access_log::note;
use crate::config::{Share, Tproxy};
use crate::connection::Connection;
use crate::counts::Outcome;
use crate::dial::Dialler;
use crate::failure::{Failure, plain};
use crate::head::{HeadError, ReadAhead};
use crate::live_limits::LiveLimits;
use crate::local_ports::LocalPorts;
use crate::opening::close_with;
use crate::own_host::OwnHost;
use crate::own_identities::OwnIdentities;
use crate::pool::{Greeter, Pools};
use crate::profile::Legs;
use crate::pump::Broken;
use crate::quota::{Members, Meter};
use crate::resolver::{Lookups, Resolver};
use crate::rights::HeldKeys;
use crate::server::Service;
use crate::session::{Session, SessionSettings, broken};
use crate::stripe::Offers;
use crate::timeouts::LiveTimeouts;
use crate::worker::{Cause, Permit, Worker};
use crate::{GatewayConfig, RelayError};

/// A listener: what is spoken there, and the flow that its connections belong to.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) kind: Kind,
    /// Its number among all.
    pub(super) number: usize,
    /// The names that programs of this host look up here.
    pub(super) own_lookups: Lookups,
    pub(super) flow: FlowId,
    /// Whether destinations are told whose connection it is.
    pub(super) tells_client: bool,
    /// Sources whose connections begin with a PROXY header.
    pub(super) accept_proxy: Vec<DestinationRule>,
}

/// What is spoken at a listener.
#[derive(Debug)]
pub(super) enum Kind {
    Forward { to: Destination },
    Tproxy { destinations: Vec<DestinationRule> },
    Socks5(Answer),
    Connect(Answer),
}

/// When a client hears that its path is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// At once.
    Optimistic,
    /// When it is.
    Open,
}

impl Listener {
    /// What its clients wait for before they send, once their path is open.
    fn opened(&self) -> Option<(Answer, &'static [u8])> {
        match self.kind {
            Kind::Forward { .. } | Kind::Tproxy { .. } => None,
            Kind::Socks5(answer) => Some((answer, &socks5::OPENED)),
            Kind::Connect(answer) => Some((answer, http::OPENED)),
        }
    }

    /// Returns the addresses that its configuration names as destinations, private ones too.
    pub(super) fn named(&self) -> Cow<'_, [DestinationRule]> {
        match &self.kind {
            Kind::Forward { to: to @ Destination::Address(_) } => vec![to.as_rule()].into(),
            Kind::Tproxy { destinations } => destinations.into(),
            Kind::Forward { .. } | Kind::Socks5(_) | Kind::Connect(_) => Cow::Borrowed(&[]),
        }
    }
}

/// What a client asks for.
struct Asked {
    wish: Wish,
    /// What the destination is told before the client's data.
    leading: Vec<u8>,
}

/// What a client's connection is to become.
enum Wish {
    /// A session to a destination.
    Session(Destination),
    /// An association for datagrams of SOCKS5, which come from this port, unless it is 0.
    Association(u16),
    /// Plain requests of HTTP, of which this is the first.
    Requests(Box<http::Request>),
}

/// What a gateway does with a connection.
pub(super) struct GatewayService {
    pub(super) entrances: Vec<Listener>,
    pub(super) routes: Arc<Routes>,
    /// Which addresses no direct route leads to.
    pub(super) own_host: OwnHost,
    /// Shared by all workers; held for a few keyed hashes at a time.
    pub(super) sealer: Option<Arc<Mutex<Sealer>>>,
    pub(super) dialler: Arc<Dialler>,
    /// Connections to first relays that are kept ready; `None` without an identity.
    pub(super) pools: Option<Arc<Pools>>,
    /// Askers of names for direct paths: other hosts' clients, by listener and source.
    pub(super) askers: Arc<Members<(usize, Source)>>,
    /// Those of relays by name: applications' dead names do not hold them up.
    pub(super) relay_lookups: Lookups,
    /// The users of the proxies.
    pub(super) users: Users,
    /// True when some proxy is open to other hosts, and to none of them without a password.
    pub(super) needs_users: bool,
    /// Keys that were read at the start.
    pub(super) held: HeldKeys,
    /// Which connections are taken off their way.
    pub(super) tproxy: Vec<Tproxy>,
    /// What carries the datagrams of SOCKS5 clients, if anything does.
    pub(super) plane: OnceLock<Arc<Plane>>,
    pub(super) session_settings: SessionSettings,
    /// Those that a reload changes; absent where nothing is served.
    pub(super) limits: Option<LiveLimits>,
    /// Who dials for the connections that were taken off their way.
    loops: Arc<Loops>,
}

/// What a gateway's service has of the process that it serves in.
pub(super) struct Host {
    pub(super) own_listeners: Vec<SocketAddr>,
    pub(super) timeouts: LiveTimeouts,
    pub(super) local_ports: LocalPorts,
    pub(super) limits: Option<LiveLimits>,
}

/// Why a request was not understood, and what to answer.
pub(super) struct BadRequest {
    pub(super) line: String,
    pub(super) answer: Vec<u8>,
    pub(super) outcome: Outcome,
}

impl GatewayService {
    /// Returns the timeouts in force.
    pub(super) const fn timeouts(&self) -> &LiveTimeouts {
        &self.session_settings.timeouts
    }

    /// A gateway's service; `legs` is what it dials by.
    pub(super) fn new(
        config: &GatewayConfig,
        entrances: Vec<Listener>,
        routes: Arc<Routes>,
        legs: Arc<Legs>,
        host: Host,
    ) -> Result<Self, RelayError> {
        let Host { own_listeners, timeouts, local_ports, limits } = host;
        let key = tradewind_net::entropy::bytes().map_err(RelayError::Runtime)?;
        let takes_own = config.tproxy.iter().any(|tproxy| tproxy.local_output);
        let sealer = sealer(config)?.map(|sealer| Arc::new(Mutex::new(sealer)));
        let session_settings =
            SessionSettings { timeouts: timeouts.clone(), legs: Arc::clone(&legs) };
        let dialler = Arc::new(Dialler {
            legs,
            timeouts,
            own_listeners,
            resolver: Resolver::default(),
            mark: takes_own.then_some(OWN_MARK),
            local_ports,
            own: Arc::new(OwnIdentities::new(&config.identities()?)?),
        });
        let greeter = sealer.clone().map(Greeter::Gateway);
        let pools = greeter.map(|greeter| Arc::new(Pools::new(Arc::clone(&dialler), greeter)));
        Ok(Self {
            entrances,
            routes,
            own_host: OwnHost::open()?,
            sealer,
            session_settings,
            limits,
            dialler,
            pools,
            askers: Members::new(Share::default()),
            relay_lookups: Lookups::of_one(),
            tproxy: config.tproxy.clone(),
            held: config.held.clone(),
            users: Users::new(&config.user, key),
            needs_users: config.has_open_proxies() && !config.expose_without_password,
            loops: Arc::default(),
            plane: OnceLock::new(),
        })
    }
}

impl Service for GatewayService {
    fn session_settings(&self) -> &SessionSettings {
        &self.session_settings
    }

    async fn open(
        &self,
        application: TcpStream,
        entrance: usize,
        permit: &mut Permit,
    ) -> Result<Session, Outcome> {
        let entrance = &self.entrances[entrance];
        let mut read_ahead = ReadAhead::default();
        let application = Connection::plain(application);
        let (application, asked) =
            self.admit_session(application, entrance, permit, &mut read_ahead).await?;
        let Asked { wish, mut leading } = asked;
        let (flow, worker) = (&entrance.flow, permit.worker());
        let destination =
            match self.meet(wish, &application, entrance, permit, &mut read_ahead).await {
                Served::Tunnel(destination) => destination,
                Served::Broken(outcome) => return Err(outcome),
                Served::Over { word, outcome } => {
                    close_with(application, worker, &word).await;
                    return Err(outcome);
                }
            };
        note(|facts| {
            facts.flow = Some(flow.clone());
            facts.destination = Some(destination.clone());
        });
        let gone = |error| broken(flow, &destination, &Broken::Upstream(error));
        let (source, cause) = (permit.source(), Cause::Source(permit.source()));
        let wanted = Wanted {
            application: Some(&application),
            entrance,
            destination: &destination,
            worker,
            source,
        };
        let (when, word) = entrance.opened().unwrap_or((Answer::Open, &[]));
        if when == Answer::Optimistic {
            application.write_all(word).await.map_err(gone)?;
        }
        leading.append(&mut read_ahead.into_bytes());
        let taken = self.note_taken(entrance, &destination);
        let path = match self.path(&wanted, leading).await {
            Ok(path) => path,
            Err(NotOpen::ApplicationGone(error)) => return Err(gone(error)),
            Err(NotOpen::Failed { failure, .. }) => {
                let from = application.remote();
                limited!(
                    warn,
                    worker.lines(),
                    cause,
                    %flow,
                    "flow of {from} to {destination} failed: {}",
                    failure.message
                );
                note(|facts| facts.failed(failure.status, &failure.message));
                refuse(application, entrance, worker, &failure, when).await;
                return Err(Outcome::Failed(failure.status));
            }
        };
        if when == Answer::Open {
            application.write_all(word).await.map_err(gone)?;
        }
        let OpenPath { downstream, up, down, offer } = path;
        let offers = Offers::new(None, offer);
        let what = (flow.clone(), destination);
        let session = Session::between(what, (application, up), (downstream, down));
        Ok(Session { offers, taken, ..session })
    }
}

/// Tells the application that its path could not be opened, by a reset if it has been told that it
/// is.
async fn refuse(
    application: Connection,
    entrance: &Listener,
    worker: &Worker,
    failure: &Failure,
    told: Answer,
) {
    match entrance.kind {
        // The application did not ask, so a reset is all that it understands.
        Kind::Forward { .. } | Kind::Tproxy { .. } => {}
        _ if told == Answer::Optimistic => {}
        Kind::Socks5(_) => {
            close_with(application, worker, &socks5::refused(failure)).await;
        }
        Kind::Connect(_) => {
            let answer = http::refused(failure.status, failure.told());
            close_with(application, worker, &answer).await;
        }
    }
}

impl GatewayService {
    /// Reads what the application asks for, and takes its session in. Tells the application where
    /// either fails.
    async fn admit_session(
        &self,
        application: Connection,
        entrance: &Listener,
        permit: &mut Permit,
        read_ahead: &mut ReadAhead,
    ) -> Result<(Connection, Asked), Outcome> {
        let asked = match self.request(&application, entrance, permit.worker(), read_ahead).await {
            Ok(asked) => asked,
            Err(bad) => {
                let (from, cause) = (application.remote(), Cause::Source(permit.source()));
                limited!(info, permit.worker().lines(), cause, "refused: {from}: {}", bad.line);
                if bad.outcome != Outcome::Looped {
                    close_with(application, permit.worker(), &bad.answer).await;
                }
                return Err(bad.outcome);
            }
        };
        if let Err(refusal) = permit.admit(None) {
            let failure = here(Failure::new(Status::Overloaded, refusal.no_room()));
            let (from, cause) = (application.remote(), Cause::Source(permit.source()));
            limited!(info, permit.worker().lines(), cause, "refused: {from}: {}", failure.message);
            refuse(application, entrance, permit.worker(), &failure, Answer::Open).await;
            return Err(refusal);
        }
        Ok((application, asked))
    }

    /// What the application asks for.
    async fn request(
        &self,
        application: &Connection,
        entrance: &Listener,
        worker: &Worker,
        read_ahead: &mut ReadAhead,
    ) -> Result<Asked, BadRequest> {
        let asking = async {
            let ends = client_of(application, entrance, worker, read_ahead).await?;
            let wish = match &entrance.kind {
                Kind::Forward { to } => Wish::Session(to.clone()),
                Kind::Tproxy { .. } => Wish::Session(self.where_it_went(application)?),
                Kind::Socks5(_) => {
                    match self.request_by_socks5(application, worker, read_ahead).await? {
                        socks5::Request::Connect(destination) => Wish::Session(destination),
                        socks5::Request::Associate(port) => Wish::Association(port),
                    }
                }
                Kind::Connect(_) => {
                    // Its own limit is this one's, and gets an answer.
                    let limit = self.timeouts().header();
                    let request =
                        http::read_request(application, worker, read_ahead, limit).await?;
                    self.admit_request(application, &request).await?;
                    match request.target {
                        Target::Tunnel(destination) => Wish::Session(destination),
                        Target::Origin(_) => Wish::Requests(Box::new(request)),
                    }
                }
            };
            let leading = ends.filter(|_| entrance.tells_client).map(ProxyHeader::into_header);
            Ok(Asked { wish, leading: leading.unwrap_or_default() })
        };
        let request_limit = self.timeouts().header();
        let late = || BadRequest {
            line: format!("no whole request within {request_limit:?}"),
            answer: Vec::new(),
            outcome: Outcome::NoHeader,
        };
        if matches!(entrance.kind, Kind::Connect(_)) {
            return asking.await;
        }
        timeout(request_limit, asking).await.unwrap_or_else(|_| Err(late()))
    }

    /// Does what a client wishes, as far as that is no session.
    async fn meet(
        &self,
        wish: Wish,
        application: &Connection,
        entrance: &Listener,
        permit: &Permit,
        read_ahead: &mut ReadAhead,
    ) -> Served {
        match wish {
            Wish::Session(destination) => Served::Tunnel(destination),
            Wish::Association(port) => {
                Box::pin(self.associate(application, port, entrance, permit)).await
            }
            Wish::Requests(first) => {
                Box::pin(self.serve(application, entrance, permit, *first, read_ahead)).await
            }
        }
    }

    /// Carries plain requests of HTTP.
    async fn serve(
        &self,
        application: &Connection,
        entrance: &Listener,
        permit: &Permit,
        first: http::Request,
        read_ahead: &mut ReadAhead,
    ) -> Served {
        let (rates, source) = (permit.rates(None), permit.source());
        let meters = [Meter::through(&rates, 0), Meter::through(&rates, 0)];
        let (service, worker, memory) = (self, permit.worker(), permit.memory(None));
        let record = permit.record();
        let mut client = Client {
            service,
            entrance,
            application,
            worker,
            source,
            record,
            read_ahead,
            meters,
            memory,
        };
        client.serve(first).await
    }

    /// Lets a client's request in, or not.
    pub(super) async fn admit_request(
        &self,
        application: &Connection,
        request: &http::Request,
    ) -> Result<(), BadRequest> {
        let admitted = self.admit(application, || request.credentials()).await;
        admitted.map_err(|why| not_let_in(application, why, http::not_let_in(why)))
    }

    async fn admit(
        &self,
        application: &Connection,
        shown: impl FnOnce() -> Option<Credentials>,
    ) -> Result<(), NotLetIn> {
        if !self.users.are_asked() {
            return Ok(());
        }
        let peer = application.stream().peer_addr().map_err(|_| NotLetIn::Nothing)?;
        let shown = shown();
        let name = shown.as_ref().map(|shown| shown.name.clone());
        self.users.admit(peer.ip(), shown).await?;
        note(|facts| facts.user = name);
        Ok(())
    }

    async fn request_by_socks5(
        &self,
        application: &Connection,
        worker: &Worker,
        read_ahead: &mut ReadAhead,
    ) -> Result<socks5::Request, BadRequest> {
        let refused = |error| bad_request(error, socks5::SocksError::answer);
        let failed = |error| refused(HeadError::Io(error));
        let (buffer_pool, most) = (&worker.buffer_pool, socks5::MOST_BYTES);
        let asks = self.users.are_asked();
        let method = if asks { socks5::PASSWORD } else { socks5::NO_AUTHENTICATION };
        let greeting = |bytes: &[u8]| socks5::greeting(bytes, method);
        read_ahead.read_head(application, buffer_pool, most, greeting).await.map_err(refused)?;
        application.write_all(&socks5::accepted(method)).await.map_err(failed)?;
        if asks {
            let shown = read_ahead.read_head(application, buffer_pool, most, socks5::credentials);
            let shown = shown.await.map_err(refused)?;
            let admitted = self.admit(application, || Some(shown)).await;
            admitted.map_err(|why| not_let_in(application, why, socks5::WRONG.to_vec()))?;
            application.write_all(&socks5::RIGHT).await.map_err(failed)?;
        }
        read_ahead.read_head(application, buffer_pool, most, socks5::request).await.map_err(refused)
    }

    /// Notes who will dial for a connection that was taken off its way.
    fn note_taken(&self, entrance: &Listener, destination: &Destination) -> Option<Taken> {
        match (&entrance.kind, destination) {
            (Kind::Tproxy { .. }, Destination::Address(address)) => {
                let routing = self.routes.current();
                Some(self.loops.note(*address, routing.ways(destination)))
            }
            _ => None,
        }
    }

    /// Where a connection went that was taken off its way.
    fn where_it_went(&self, application: &Connection) -> Result<Destination, BadRequest> {
        let refused = |line: String| silent(line, Outcome::Malformed);
        let local = application.stream().local_addr().map_err(|error| refused(plain(&error)))?;
        if self.dialler.own_listeners.contains(&local) {
            return Err(refused(format!("{local} is where taken connections are led to")));
        }
        let source = application.stream().peer_addr().map_err(|error| refused(plain(&error)))?;
        let source = source.ip().to_canonical();
        if self.loops.is_own(source, local, self.dialler.mark.is_some()) {
            let line = format!(
                "from {source} to {local}: a connection that was taken here before has come back; \
                 what relays dial must not lead through this gateway"
            );
            return Err(silent(line, Outcome::Looped));
        }
        Destination::address(local).map_err(|error| refused(error.to_string()))
    }
}

/// The two ends of a connection as its client sees them. Who is trusted to tell another's must.
async fn client_of(
    application: &Connection,
    entrance: &Listener,
    worker: &Worker,
    read_ahead: &mut ReadAhead,
) -> Result<Option<ProxyHeader>, BadRequest> {
    if !entrance.tells_client && entrance.accept_proxy.is_empty() {
        return Ok(None);
    }
    let of_socket = || {
        Ok(Ends {
            source: application.stream().peer_addr()?,
            destination: application.stream().local_addr()?,
        })
    };
    let ends =
        of_socket().map_err(|error: std::io::Error| silent(plain(&error), Outcome::Ended))?;
    if !entrance.accept_proxy.iter().any(|rule| rule.covers_source(ends.source.ip())) {
        return Ok(Some(ends.into()));
    }
    let (buffer_pool, most) = (&worker.buffer_pool, proxy_header::MOST_BYTES);
    let told = read_ahead.read_head(application, buffer_pool, most, proxy_header::header).await;
    let told = told.map_err(|error| {
        let bad = bad_request(error, |_| Vec::new());
        BadRequest { line: format!("PROXY header: {}", bad.line), ..bad }
    })?;
    note(|facts| facts.client = told.as_ref().map(|told| told.ends.source));
    Ok(Some(told.unwrap_or_else(|| ends.into())))
}

/// A request that gets no answer.
const fn silent(line: String, outcome: Outcome) -> BadRequest {
    BadRequest { line, answer: Vec::new(), outcome }
}

/// A client that is not let in, and what it hears.
fn not_let_in(application: &Connection, why: NotLetIn, answer: Vec<u8>) -> BadRequest {
    let peer = application.stream().peer_addr();
    let from = peer.map_or_else(|error| plain(&error), |peer| peer.to_string());
    BadRequest { line: format!("from {from}: {why}"), answer, outcome: Outcome::NotLetIn }
}

pub(super) fn bad_request<E: std::fmt::Display>(
    error: HeadError<E>,
    answer: impl Fn(&E) -> Vec<u8>,
) -> BadRequest {
    let (answer, outcome) = match &error {
        HeadError::Parse(cause) => (answer(cause), Outcome::Malformed),
        HeadError::TooLong(_) => (Vec::new(), Outcome::Malformed),
        HeadError::Io(_) | HeadError::Ended(_) => (Vec::new(), Outcome::NoHeader),
    };
    // What the client sent may stand in it.
    let line = one_line(&error.to_string(), MESSAGE_LIMIT);
    BadRequest { line, answer, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_writes_no_lines_of_its_own_into_the_log() {
        let name = b"x\n2026-11-22T09:00:00Z  INFO forged\x1b[31m";
        let mut request = vec![5, 1, 0, 3, u8::try_from(name.len()).unwrap()];
        request.extend_from_slice(name);
        request.extend([0, 80]);
        let error = socks5::request(&request).err().unwrap();
        let bad = bad_request(HeadError::Parse(error), socks5::SocksError::answer);
        assert!(
            bad.line.contains("forged") && !bad.line.contains(char::is_control),
            "{}",
            bad.line
        );

        let long = format!("CONNECT {} HTTP/1.1\r\n\r\n", "x".repeat(5000));
        let error = http::Request::read(&mut http::Scan::default(), long.as_bytes()).err().unwrap();
        let bad = bad_request(HeadError::Parse(error), http::HttpError::answer);
        assert!(bad.line.len() <= MESSAGE_LIMIT && bad.answer.len() < 500, "{}", bad.line);

        let bad = bad_request(HeadError::Parse("any\rother\u{9b}".repeat(99)), |_| Vec::new());
        assert!(bad.line.len() <= MESSAGE_LIMIT && !bad.line.contains(char::is_control));
    }
}
