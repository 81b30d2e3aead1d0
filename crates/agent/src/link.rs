//! The link to the controller: HTTP/1.1 over TLS by identities, dialled from here.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tradewind_control::message::{
    DocumentVersion, ErrorAnswer, JoinAnswer, JoinRequest, LONG_POLL, MAX_BYTES, Report,
    ReportAnswer, SignedDocument,
};
use tradewind_grant::PublicIdentity;
use tradewind_stream::connection::Tls;
use tradewind_units::{Duration, one_line};

/// Longest wait for a connection and its handshake. Chosen: a few lost packets on a long path.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for an answer that the controller does not hold back. Chosen: a message of the
/// greatest length over a slow access takes about as long.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Longest error that is shown, in bytes. Chosen: a line that a person reads.
const MAX_ERROR_BYTES: usize = 400;

/// The reason why a request failed, in words that follow the controller's name.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// It cannot be reached.
    #[error("cannot be reached: {0}")]
    Unreachable(io::Error),
    /// The handshake failed.
    #[error("{0}")]
    Handshake(String),
    /// The connection broke, or what came over it was not HTTP.
    #[error("the request failed: {0}")]
    Broken(String),
    /// No answer came in time.
    #[error("no answer in time")]
    Late,
    /// The answer is no message of ours.
    #[error("its answer cannot be read: {0}")]
    Answer(String),
    /// It refuses the request.
    #[error("refuses: {reason} (status {status})")]
    Refused {
        /// The status.
        status: u16,
        /// The reason that it gives.
        reason: String,
    },
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// An open connection: `driver` moves its bytes while a request waits.
struct Open {
    sender: SendRequest<Full<Bytes>>,
    driver: Driver,
}

/// A connection to the controller, dialled when it is needed.
pub struct Link {
    tls: Arc<Tls>,
    controller: SocketAddr,
    identity: PublicIdentity,
    open: Option<Open>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("controller", &self.controller).finish_non_exhaustive()
    }
}

impl Link {
    /// Creates one to the controller at `controller` with this identity.
    #[must_use]
    pub const fn new(tls: Arc<Tls>, controller: SocketAddr, identity: PublicIdentity) -> Self {
        Self { tls, controller, identity, open: None }
    }

    /// Asks to join.
    ///
    /// # Errors
    /// When the controller is not reached, or refuses.
    pub async fn join(&mut self, request: &JoinRequest) -> Result<JoinAnswer, LinkError> {
        let (_, body) = self.exchange(&Asked::post("/v1/join", request)?).await?;
        parse(&body)
    }

    /// Asks for a document newer than `have`, and waits for one; `None`: none came in time.
    ///
    /// # Errors
    /// As [`Link::join`].
    pub async fn desired(
        &mut self,
        have: Option<DocumentVersion>,
    ) -> Result<Option<SignedDocument>, LinkError> {
        let path = match have {
            Some(version) => format!("/v1/desired?have={version}"),
            None => "/v1/desired".to_owned(),
        };
        let limit = LONG_POLL + ANSWER_LIMIT;
        let asked = Asked { method: Method::GET, path, body: Bytes::new(), limit };
        match self.exchange(&asked).await? {
            (StatusCode::NO_CONTENT, _) => Ok(None),
            (_, body) => parse(&body).map(Some),
        }
    }

    /// Reports.
    ///
    /// # Errors
    /// As [`Link::join`].
    pub async fn report(&mut self, report: &Report) -> Result<ReportAnswer, LinkError> {
        let (_, body) = self.exchange(&Asked::post("/v1/report", report)?).await?;
        parse(&body)
    }

    /// Sends a request and returns the status and body of a good answer. A connection that was
    /// open before may have been closed meanwhile: the request is sent once more on a new one.
    async fn exchange(&mut self, asked: &Asked) -> Result<(StatusCode, Bytes), LinkError> {
        if let Some(open) = self.open.take() {
            match self.exchange_on(open, asked).await {
                Err(LinkError::Broken(_)) => {}
                other => return other,
            }
        }
        let open = self.dial().await?;
        self.exchange_on(open, asked).await
    }

    /// Does the same on `open`, which is kept if it can be used again.
    async fn exchange_on(
        &mut self,
        mut open: Open,
        asked: &Asked,
    ) -> Result<(StatusCode, Bytes), LinkError> {
        let request = asked.request(self.controller)?;
        let answer = async {
            open.sender.ready().await.map_err(broken)?;
            let response = open.sender.send_request(request).await.map_err(broken)?;
            read(response).await
        };
        let driven = async {
            tokio::select! {
                answer = answer => answer,
                ended = &mut open.driver => Err(match ended {
                    Ok(()) => LinkError::Broken("the connection ended".to_owned()),
                    Err(error) => broken(error),
                }),
            }
        };
        let (status, body) = timeout(asked.limit, driven).await.map_err(|_| LinkError::Late)??;
        self.open = Some(open);
        if status.is_success() {
            return Ok((status, body));
        }
        let reason = serde_json::from_slice::<ErrorAnswer>(&body)
            .map_or_else(|_| String::from_utf8_lossy(&body).into_owned(), |answer| answer.error);
        let reason = one_line(&reason, MAX_ERROR_BYTES);
        Err(LinkError::Refused { status: status.as_u16(), reason })
    }

    async fn dial(&mut self) -> Result<Open, LinkError> {
        let dial = async {
            let stream = TcpStream::connect(self.controller).await;
            let stream = stream.map_err(LinkError::Unreachable)?;
            // Requests are short, and wait for their answers.
            stream.set_nodelay(true).map_err(LinkError::Unreachable)?;
            let sealed = self.tls.seal_dialled(stream, self.identity).await;
            let sealed = sealed.map_err(|error| LinkError::Handshake(error.to_string()))?;
            let (sender, connection) =
                http1::handshake(TokioIo::new(sealed)).await.map_err(broken)?;
            let driver: Driver = Box::pin(connection);
            Ok(Open { sender, driver })
        };
        timeout(DIAL_LIMIT, dial).await.map_err(|_| LinkError::Late)?
    }
}

/// A request.
struct Asked {
    method: Method,
    path: String,
    body: Bytes,
    limit: Duration,
}

impl Asked {
    fn post(path: &str, body: &impl Serialize) -> Result<Self, LinkError> {
        let body = serde_json::to_vec(body).map_err(|e| LinkError::Broken(e.to_string()))?;
        let (path, body) = (path.to_owned(), Bytes::from(body));
        Ok(Self { method: Method::POST, path, body, limit: ANSWER_LIMIT })
    }

    fn request(&self, controller: SocketAddr) -> Result<Request<Full<Bytes>>, LinkError> {
        let request = Request::builder().method(&self.method).uri(&self.path);
        let request = request.header(HOST, controller.to_string());
        let request = request.header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::new(self.body.clone()));
        request.map_err(|error| LinkError::Broken(error.to_string()))
    }
}

async fn read(response: Response<Incoming>) -> Result<(StatusCode, Bytes), LinkError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_BYTES).collect().await;
    let body = body.map_err(|error| LinkError::Broken(error.to_string()))?;
    Ok((status, body.to_bytes()))
}

fn broken(error: hyper::Error) -> LinkError {
    LinkError::Broken(error.to_string())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, LinkError> {
    serde_json::from_slice(body).map_err(|error| LinkError::Answer(error.to_string()))
}
