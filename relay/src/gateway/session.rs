//! One application connection, from its request to its end.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_desired::{Route, RouteTable};
use tradewind_grant::forbidden::{Class, class_of};
use tradewind_grant::{
    self as grant, Destination, GrantError, Nonce, Request, SealedHeader, Sealer, Status,
};
use tradewind_units::FlowId;

use super::{connect, socks5};
use crate::counts::Outcome;
use crate::dial::{Dialler, Speaker};
use crate::failure::{Failure, plain};
use crate::head::{HeadError, Unused};
use crate::opening::{NextRelay, Waited, part};
use crate::pump::{Broken, Direction};
use crate::relay::unix_now;
use crate::server::{Service, write_all};
use crate::session::{Keeping, Session, broken};
use crate::side::Side;
use crate::worker::{Seat, Worker};

/// What is spoken at a listener, and the flow that its connections belong to.
#[derive(Debug)]
pub(super) enum Entrance {
    Forward { to: Destination, flow: FlowId },
    Socks5(FlowId),
    Connect(FlowId),
}

impl Entrance {
    const fn flow(&self) -> &FlowId {
        match self {
            Self::Forward { flow, .. } | Self::Socks5(flow) | Self::Connect(flow) => flow,
        }
    }
}

/// What a gateway does with a connection.
pub(super) struct GatewayService {
    pub(super) entrances: Vec<Entrance>,
    pub(super) routes: RouteTable,
    pub(super) allow_loopback: bool,
    /// Shared by all workers; held for a few keyed hashes at a time.
    pub(super) sealer: Option<Mutex<Sealer>>,
    pub(super) dialler: Dialler,
    pub(super) request_limit: Duration,
    pub(super) keeping: Keeping,
}

/// A path that is open: the connection to its first hop, and what has moved already.
struct Path {
    downstream: TcpStream,
    up: Direction,
    down: Direction,
}

/// Why a path is not open.
enum NotOpen {
    Failed(Failure),
    ApplicationGone(io::Error),
}

impl From<Failure> for NotOpen {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Why a request was not understood, and what to answer.
struct BadRequest {
    line: String,
    answer: Vec<u8>,
    outcome: Outcome,
}

impl Service for GatewayService {
    fn keeping(&self) -> &Keeping {
        &self.keeping
    }

    async fn open(
        &self,
        application: TcpStream,
        entrance: usize,
        seat: &mut Seat,
    ) -> Result<Session, Outcome> {
        let entrance = &self.entrances[entrance];
        let mut unused = Unused::default();
        let asked = self.request(&application, entrance, seat.worker(), &mut unused);
        let destination = match asked.await {
            Ok(destination) => destination,
            Err(bad) => {
                tracing::info!("refused: {}", bad.line);
                part(application, seat.worker(), &bad.answer).await;
                return Err(bad.outcome);
            }
        };
        seat.authenticated();
        if let Some(refusal) = seat.refusal() {
            let failure = here(Failure::new(Status::Overloaded, refusal.no_room()));
            tracing::info!("refused: {}", failure.message);
            refuse(application, entrance, seat.worker(), &failure).await;
            return Err(refusal);
        }
        let (flow, worker) = (entrance.flow(), seat.worker());
        let gone = |error| broken(flow, &destination, &Broken::Upstream(error));
        let path =
            self.path(&application, entrance, &destination, worker, unused.into_bytes()).await;
        let path = match path {
            Ok(path) => path,
            Err(NotOpen::ApplicationGone(error)) => return Err(gone(error)),
            Err(NotOpen::Failed(failure)) => {
                tracing::warn!(%flow, "flow to {destination} failed: {}", failure.message);
                refuse(application, entrance, worker, &failure).await;
                return Err(Outcome::Failed(failure.status));
            }
        };
        let answered = match entrance {
            Entrance::Forward { .. } => Ok(()),
            Entrance::Socks5(_) => write_all(&application, &socks5::OPENED).await,
            Entrance::Connect(_) => write_all(&application, connect::OPENED).await,
        };
        answered.map_err(gone)?;
        let Path { downstream, up, down } = path;
        let flow = flow.clone();
        let (upstream, downstream) = (Side::Heard(application), Side::Heard(downstream));
        Ok(Session { flow, destination, upstream, downstream, up, down, place: None })
    }
}

/// Tells the application that its path could not be opened.
async fn refuse(application: TcpStream, entrance: &Entrance, worker: &Worker, failure: &Failure) {
    match entrance {
        // The application did not ask, so a reset is all that it understands.
        Entrance::Forward { .. } => {}
        Entrance::Socks5(_) => {
            part(application, worker, &socks5::refused(failure.status)).await;
        }
        Entrance::Connect(_) => {
            let answer = connect::refused(failure.status, &failure.message);
            part(application, worker, &answer).await;
        }
    }
}

impl GatewayService {
    /// What the application asks for.
    async fn request(
        &self,
        application: &TcpStream,
        entrance: &Entrance,
        worker: &Worker,
        unused: &mut Unused,
    ) -> Result<Destination, BadRequest> {
        let asking = async {
            match entrance {
                Entrance::Forward { to, .. } => Ok(to.clone()),
                Entrance::Socks5(_) => request_by_socks5(application, worker, unused).await,
                Entrance::Connect(_) => {
                    let request = unused.read_head(
                        application,
                        &worker.stock,
                        connect::MOST_BYTES,
                        connect::request,
                    );
                    request.await.map_err(|error| bad_request(error, connect::ConnectError::answer))
                }
            }
        };
        let late = || BadRequest {
            line: format!("no whole request within {:?}", self.request_limit),
            answer: Vec::new(),
            outcome: Outcome::NoHeader,
        };
        timeout(self.request_limit, asking).await.unwrap_or_else(|_| Err(late()))
    }

    /// Opens the path for a flow to `destination`.
    async fn path(
        &self,
        application: &TcpStream,
        entrance: &Entrance,
        destination: &Destination,
        worker: &Worker,
        leading: Vec<u8>,
    ) -> Result<Path, NotOpen> {
        let hops = match self.routes.route(destination) {
            Route::Refuse => {
                let message = format!("gateway: no route to {destination}");
                return Err(Failure::new(Status::DestinationRefused, message).into());
            }
            Route::Direct => {
                let mut up = Direction::new(leading);
                let check = |address| self.check_direct(entrance, address);
                let dialled = self.dialler.dial_destination(destination, up.speaker(), check).await;
                let downstream = dialled.map_err(here)?;
                up.start(&downstream, worker.means_up())
                    .map_err(|error| here(Failure::new(Status::Internal, plain(&error))))?;
                return Ok(Path { downstream, up, down: Direction::new(Vec::new()) });
            }
            Route::Relays(hops) => hops,
        };
        let hops: Vec<_> = hops
            .iter()
            .map(|hop| grant::Hop { address: hop.address, identity: hop.identity })
            .collect();
        let legs = u32::try_from(hops.len() + 1).unwrap_or(u32::MAX);
        let route = grant::Route::new(hops).map_err(|error| here(error.into()))?;
        let header = self.seal(entrance.flow(), destination, &route).map_err(here)?;
        let address = route.hops()[0].address;
        let downstream = self.dialler.dial(address, Speaker::Us).await.map_err(here)?;
        let mut up = Direction::after(&header.bytes, leading);
        // If this fails, so will the wait for the reply, which says why.
        let _started = up.start(&downstream, worker.means_up());
        let next = NextRelay { stream: &downstream, address, key: &header.downstream };
        let limit = self.dialler.limit * legs;
        let (reply, unused) = match next.reply(application, &mut up, worker, limit).await {
            Waited::Replied(reply, unused) => (reply, unused),
            Waited::Failed(failure) => return Err(here(failure).into()),
            Waited::UpstreamGone(error) => return Err(NotOpen::ApplicationGone(error)),
        };
        if reply.status != Status::Ok {
            let at = route.hops().get(reply.hop).map_or(address, |hop| hop.address);
            let message = format!("relay {} ({at}): {}", reply.hop + 1, reply.message);
            return Err(Failure::new(reply.status, message).into());
        }
        Ok(Path { downstream, up, down: Direction::new(unused.into_bytes()) })
    }

    /// Whether this host itself may dial `address` for a connection that came in at `entrance`. Who
    /// reaches a proxy here borrows this host's place in its network, so an address that is not public
    /// must have been written down here, in a direct route's range or as a forward's destination; who
    /// owns a name does not decide.
    fn check_direct(&self, entrance: &Entrance, address: SocketAddr) -> Result<(), GrantError> {
        let class = class_of(address.ip());
        let is_forwarded = || match entrance {
            Entrance::Forward { to, .. } => *to == Destination::Address(address),
            Entrance::Socks5(_) | Entrance::Connect(_) => false,
        };
        match class {
            Class::Public => Ok(()),
            Class::Loopback if self.allow_loopback => Ok(()),
            Class::Private if self.routes.has_direct_rule(address) || is_forwarded() => Ok(()),
            Class::Private => Err(GrantError::UnnamedPrivate(address.ip())),
            _ => Err(GrantError::Forbidden { address: address.ip(), class }),
        }
    }

    fn seal(
        &self,
        flow: &FlowId,
        destination: &Destination,
        route: &grant::Route,
    ) -> Result<SealedHeader, Failure> {
        let Some(sealer) = &self.sealer else {
            let message = "this gateway has no identity or grant";
            return Err(Failure::new(Status::GrantRefused, message));
        };
        let entropy = tradewind_net::entropy::bytes().map_err(|error| {
            Failure::new(Status::Internal, format!("entropy: {}", plain(&error)))
        })?;
        let request = Request { flow, destination, route };
        let mut sealer = sealer.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(sealer.seal(unix_now(), Nonce::from_entropy(entropy), &request)?)
    }
}

/// A failure of the gateway itself.
fn here(failure: Failure) -> Failure {
    Failure { message: format!("gateway: {}", failure.message), ..failure }
}

async fn request_by_socks5(
    application: &TcpStream,
    worker: &Worker,
    unused: &mut Unused,
) -> Result<Destination, BadRequest> {
    let refused = |error| bad_request(error, socks5::SocksError::answer);
    let (stock, most) = (&worker.stock, socks5::MOST_BYTES);
    unused.read_head(application, stock, most, socks5::greeting).await.map_err(refused)?;
    let accepted = write_all(application, &socks5::ACCEPTED).await;
    accepted.map_err(|error| refused(HeadError::Io(error)))?;
    unused.read_head(application, stock, most, socks5::request).await.map_err(refused)
}

fn bad_request<E: std::fmt::Display>(
    error: HeadError<E>,
    answer: impl Fn(&E) -> Vec<u8>,
) -> BadRequest {
    let (answer, outcome) = match &error {
        HeadError::Parse(cause) => (answer(cause), Outcome::Malformed),
        HeadError::TooLong(_) => (Vec::new(), Outcome::Malformed),
        HeadError::Io(_) | HeadError::Ended(_) => (Vec::new(), Outcome::NoHeader),
    };
    BadRequest { line: error.to_string(), answer, outcome }
}
