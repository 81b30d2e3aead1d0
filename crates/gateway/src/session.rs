//! One application connection, from its request to its end.

use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_grant::reply::MESSAGE_LIMIT;
use tradewind_grant::{Destination, Status};
use tradewind_stream::access_log::note;
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::{HeadError, ReadAhead};
use tradewind_stream::counts::Outcome;
use tradewind_stream::failure::{Failure, plain};
use tradewind_stream::limits::quota::Meter;
use tradewind_stream::process::server::Service;
use tradewind_stream::process::worker::{Cause, Permit, Worker};
use tradewind_stream::session::opening::close_with;
use tradewind_stream::session::pump::Broken;
use tradewind_stream::session::{Session, SessionSettings, broken};
use tradewind_stream::stripe::Offers;
use tradewind_stream::traces;
use tradewind_telemetry::limited;
use tradewind_units::one_line;

use super::attempt::{NotOpen, OpenPath, Wanted, here};
use super::http::{self, Client, Served, Target};
use super::proxy_header::{self, Ends, ProxyHeader};
use super::service::{Answer, GatewayService, Kind, Listener};
use super::socks5;
use super::users::{Credentials, NotLetIn};

impl Listener {
    /// Returns the reply that its clients wait for before they send, and the time to send it;
    /// `None` if they wait for none.
    fn opened(&self) -> Option<(Answer, &'static [u8])> {
        match self.kind {
            Kind::Forward { .. } | Kind::Tproxy { .. } => None,
            Kind::Socks5(answer) => Some((answer, &socks5::OPENED)),
            Kind::Connect(answer) => Some((answer, http::OPENED)),
        }
    }
}

/// A client's request.
struct Asked {
    client_request: ClientRequest,
    /// The data to send to the destination before the client's: a PROXY header or nothing.
    leading: Vec<u8>,
}

/// The use that a client's connection is requested for.
enum ClientRequest {
    /// A session to a destination.
    Session(Destination),
    /// An association for SOCKS5 datagrams, sent from this port of the client unless it is 0.
    Association(u16),
    /// Plain HTTP requests; this is the first.
    Requests(Box<http::Request>),
}

/// A refused request: the reason, the answer to send, and the outcome to count.
pub(super) struct BadRequest {
    pub(super) line: String,
    pub(super) answer: Vec<u8>,
    pub(super) outcome: Outcome,
}

impl Service for GatewayService {
    fn session_settings(&self) -> &SessionSettings {
        &self.session_settings
    }

    async fn open(
        &self,
        application: TcpStream,
        listener_index: usize,
        permit: &mut Permit,
    ) -> Result<Session, Outcome> {
        let listener = &self.listeners[listener_index];
        let mut read_ahead = ReadAhead::default();
        let application = Connection::plain(application);
        let (application, asked) =
            self.admit_session(application, listener, permit, &mut read_ahead).await?;
        let Asked { client_request, mut leading } = asked;
        let worker = permit.worker();
        let met = self.meet(client_request, &application, listener, permit, &mut read_ahead);
        let destination = match met.await {
            Served::Tunnel(destination) => destination,
            Served::Broken(outcome) => return Err(outcome),
            Served::Over { word, outcome } => {
                close_with(application, worker, &word).await;
                return Err(outcome);
            }
        };
        let flow = self.flow_of(listener, &destination);
        note(|facts| {
            facts.flow = Some(flow.clone());
            facts.destination = Some(destination.clone());
        });
        let gone = |error| broken(flow, &destination, &Broken::Upstream(error));
        let (source, cause) = (permit.source(), Cause::Source(permit.source()));
        let wanted = Wanted {
            application: Some(&application),
            listener,
            flow,
            destination: &destination,
            worker,
            source,
            trace: traces::begin(),
        };
        let (when, word) = listener.opened().unwrap_or((Answer::Open, &[]));
        if when == Answer::Optimistic {
            application.write_all(word).await.map_err(gone)?;
        }
        leading.append(&mut read_ahead.into_bytes());
        let path = match self.opener.open(&wanted, leading).await {
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
                refuse(application, listener, worker, &failure, when).await;
                return Err(Outcome::Failed(failure.status));
            }
        };
        if when == Answer::Open {
            application.write_all(word).await.map_err(gone)?;
        }
        let OpenPath { downstream, up, down, offer } = path;
        let offers = Offers::new(None, offer);
        let open = Some(self.opener.routes.open_flows.enter(flow));
        let what = (flow.clone(), destination);
        let session = Session::between(what, (application, up), (downstream, down));
        Ok(Session { offers, open, ..session })
    }
}

/// Sends the application the reply that its path could not be opened. If it waits for no reply, or
/// has been sent one that the path is open, its connection is reset instead.
async fn refuse(
    application: Connection,
    listener: &Listener,
    worker: &Worker,
    failure: &Failure,
    answered: Answer,
) {
    match listener.kind {
        // The application waits for no reply, so only a reset can report it.
        Kind::Forward { .. } | Kind::Tproxy { .. } => {}
        _ if answered == Answer::Optimistic => {}
        Kind::Socks5(_) => {
            close_with(application, worker, &socks5::refused(failure)).await;
        }
        Kind::Connect(_) => {
            let answer = http::refused(failure.status, failure.peer_message());
            close_with(application, worker, &answer).await;
        }
    }
}

impl GatewayService {
    /// Reads the application's request and admits its session. Answers the application if either
    /// fails.
    async fn admit_session(
        &self,
        application: Connection,
        listener: &Listener,
        permit: &mut Permit,
        read_ahead: &mut ReadAhead,
    ) -> Result<(Connection, Asked), Outcome> {
        let asked = match self.request(&application, listener, permit.worker(), read_ahead).await {
            Ok(asked) => asked,
            Err(bad) => {
                let (from, cause) = (application.remote(), Cause::Source(permit.source()));
                limited!(info, permit.worker().lines(), cause, "refused: {from}: {}", bad.line);
                close_with(application, permit.worker(), &bad.answer).await;
                return Err(bad.outcome);
            }
        };
        if let Err(refusal) = permit.admit(None) {
            let failure = here(Failure::new(Status::Overloaded, refusal.rejection()));
            let (from, cause) = (application.remote(), Cause::Source(permit.source()));
            limited!(info, permit.worker().lines(), cause, "refused: {from}: {}", failure.message);
            refuse(application, listener, permit.worker(), &failure, Answer::Open).await;
            return Err(refusal);
        }
        Ok((application, asked))
    }

    /// Reads the application's request.
    async fn request(
        &self,
        application: &Connection,
        listener: &Listener,
        worker: &Worker,
        read_ahead: &mut ReadAhead,
    ) -> Result<Asked, BadRequest> {
        let asking = async {
            let ends = client_of(application, listener, worker, read_ahead).await?;
            let client_request = match &listener.kind {
                Kind::Forward { to } => ClientRequest::Session(to.clone()),
                Kind::Tproxy { .. } => ClientRequest::Session(self.where_it_went(application)?),
                Kind::Socks5(_) => {
                    match self.request_by_socks5(application, worker, read_ahead).await? {
                        socks5::Request::Connect(destination) => {
                            ClientRequest::Session(destination)
                        }
                        socks5::Request::Associate(port) => ClientRequest::Association(port),
                    }
                }
                Kind::Connect(_) => {
                    // It has the same limit of its own, after which it answers the client.
                    let limit = self.timeouts().header();
                    let request =
                        http::read_request(application, worker, read_ahead, limit).await?;
                    self.admit_request(application, &request).await?;
                    match request.target {
                        Target::Tunnel(destination) => ClientRequest::Session(destination),
                        Target::Origin(_) => ClientRequest::Requests(Box::new(request)),
                    }
                }
            };
            let leading = ends.filter(|_| listener.tells_client).map(ProxyHeader::into_header);
            Ok(Asked { client_request, leading: leading.unwrap_or_default() })
        };
        let request_limit = self.timeouts().header();
        let late = || BadRequest {
            line: format!("no whole request within {request_limit:?}"),
            answer: Vec::new(),
            outcome: Outcome::NoHeader,
        };
        if matches!(listener.kind, Kind::Connect(_)) {
            return asking.await;
        }
        timeout(request_limit, asking).await.unwrap_or_else(|_| Err(late()))
    }

    /// Serves a request that is not for a session; for a session, returns its destination.
    async fn meet(
        &self,
        client_request: ClientRequest,
        application: &Connection,
        listener: &Listener,
        permit: &Permit,
        read_ahead: &mut ReadAhead,
    ) -> Served {
        match client_request {
            ClientRequest::Session(destination) => Served::Tunnel(destination),
            ClientRequest::Association(port) => {
                Box::pin(self.associate(application, port, listener, permit)).await
            }
            ClientRequest::Requests(first) => {
                Box::pin(self.serve(application, listener, permit, *first, read_ahead)).await
            }
        }
    }

    /// Carries plain HTTP requests.
    async fn serve(
        &self,
        application: &Connection,
        listener: &Listener,
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
            listener,
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

    /// Checks the credentials of a client's request.
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
        let (buffer_pool, most) = (&worker.buffer_pool, socks5::MAX_BYTES);
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

    /// Returns the original destination of an intercepted connection, unless that is a listener of
    /// this process.
    fn where_it_went(&self, application: &Connection) -> Result<Destination, BadRequest> {
        let refused = |line: String| silent(line, Outcome::Malformed);
        let local = application.stream().local_addr().map_err(|error| refused(plain(&error)))?;
        if self.opener.dialler.own_listeners.contains(&local) {
            return Err(refused(format!("{local} is where taken connections are led to")));
        }
        Destination::address(local).map_err(|error| refused(error.to_string()))
    }
}

/// Returns the ends of a connection for a PROXY header. Trusted sources must send such a header;
/// for others, the socket's addresses are used.
async fn client_of(
    application: &Connection,
    listener: &Listener,
    worker: &Worker,
    read_ahead: &mut ReadAhead,
) -> Result<Option<ProxyHeader>, BadRequest> {
    if !listener.tells_client && listener.accept_proxy.is_empty() {
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
    if !listener.accept_proxy.iter().any(|rule| rule.covers_source(ends.source.ip())) {
        return Ok(Some(ends.into()));
    }
    let (buffer_pool, most) = (&worker.buffer_pool, proxy_header::MAX_BYTES);
    let parsed = read_ahead.read_head(application, buffer_pool, most, proxy_header::header).await;
    let parsed = parsed.map_err(|error| {
        let bad = bad_request(error, |_| Vec::new());
        BadRequest { line: format!("PROXY header: {}", bad.line), ..bad }
    })?;
    note(|facts| facts.client = parsed.as_ref().map(|parsed| parsed.ends.source));
    Ok(Some(parsed.unwrap_or_else(|| ends.into())))
}

/// Returns a refusal that sends no answer.
const fn silent(line: String, outcome: Outcome) -> BadRequest {
    BadRequest { line, answer: Vec::new(), outcome }
}

/// Returns the refusal of a client that failed authentication.
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
    // It may contain bytes that the client sent.
    let line = one_line(&error.to_string(), MESSAGE_LIMIT);
    BadRequest { line, answer, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_cannot_inject_log_lines() {
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
