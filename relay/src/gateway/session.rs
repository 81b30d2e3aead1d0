//! One application connection, from its request to its end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_grant::{Destination, Sealer, Status};
use tradewind_units::FlowId;

use super::attempt::{NotOpen, Path, Wanted, here};
use super::paths::Routes;
use super::{connect, socks5};
use crate::counts::Outcome;
use crate::dial::Dialler;
use crate::failure::Failure;
use crate::head::{HeadError, Unused};
use crate::opening::part;
use crate::pump::Broken;
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
    pub(super) const fn flow(&self) -> &FlowId {
        match self {
            Self::Forward { flow, .. } | Self::Socks5(flow) | Self::Connect(flow) => flow,
        }
    }
}

/// What a gateway does with a connection.
pub(super) struct GatewayService {
    pub(super) entrances: Vec<Entrance>,
    pub(super) routes: Arc<Routes>,
    pub(super) allow_loopback: bool,
    /// Shared by all workers; held for a few keyed hashes at a time.
    pub(super) sealer: Option<Mutex<Sealer>>,
    pub(super) dialler: Dialler,
    pub(super) request_limit: Duration,
    pub(super) keeping: Keeping,
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
        let wanted =
            Wanted { application: &application, entrance, destination: &destination, worker };
        let path = match self.path(&wanted, unused.into_bytes()).await {
            Ok(path) => path,
            Err(NotOpen::ApplicationGone(error)) => return Err(gone(error)),
            Err(NotOpen::Failed { failure, .. }) => {
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
