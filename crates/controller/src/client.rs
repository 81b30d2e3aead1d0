//! The operators' side of the API: one request at a time, for commands.

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tradewind_control::message::{ErrorAnswer, MAX_BYTES};
use tradewind_units::{Duration, shown};

use crate::folder::{Access, Token};
use crate::view::Change;

/// Longest wait for an answer. Chosen: a plan takes two seconds and waits for the one before.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time without an event or a comment. Chosen: three of those after which a comment comes.
const SILENCE: Duration = Duration::from_secs(45);

/// A reason why there is no answer of use, in one line.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file's address is no address of an API.
    #[error("api: `{0}`: expected `http://ADDRESS:PORT`")]
    Address(String),
    /// The controller cannot be reached.
    #[error("{api}: no controller answers ({problem}); `tradewind controller run` starts it")]
    Unreachable {
        /// The address.
        api: String,
        /// The failure.
        problem: String,
    },
    /// The controller refuses.
    #[error("{error}")]
    Refused {
        /// The status.
        status: u16,
        /// The reason.
        error: String,
    },
    /// The answer cannot be read.
    #[error("{api}: the answer cannot be read: {problem}; are both of the same version?")]
    Answer {
        /// The address.
        api: String,
        /// The problem, and what would be right.
        problem: String,
    },
}

impl ClientError {
    /// Returns whether the request itself, or the file with the address, is wrong.
    #[must_use]
    pub const fn is_of_request(&self) -> bool {
        match self {
            Self::Address(_) => true,
            Self::Refused { status, .. } => matches!(status, 400 | 404),
            Self::Unreachable { .. } | Self::Answer { .. } => false,
        }
    }
}

/// A client of one controller.
#[derive(Debug)]
pub struct Client {
    runtime: Runtime,
    authority: String,
    token: Token,
}

impl Client {
    /// Creates one.
    ///
    /// # Errors
    /// When the address is none of an API.
    pub fn new(access: &Access) -> Result<Self, ClientError> {
        let address = || ClientError::Address(shown(&access.api));
        let authority = access.api.strip_prefix("http://").ok_or_else(address)?;
        let authority = authority.trim_end_matches('/').to_owned();
        if authority.is_empty() || authority.contains(['/', ' ']) {
            return Err(address());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| ClientError::Unreachable {
            api: access.api.clone(),
            problem: error.to_string(),
        })?;
        Ok(Self { runtime, authority, token: access.token.clone() })
    }

    /// Asks for something.
    ///
    /// # Errors
    /// When there is no answer, or it is an error.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.parsed(&self.ask(Method::GET, path, Vec::new())?)
    }

    /// Sends something to be made, and returns the answer.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.parsed(&self.ask(Method::POST, path, self.text(body)?)?)
    }

    /// Sends something to be put in its place, and returns the answer.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.parsed(&self.ask(Method::PUT, path, self.text(body)?)?)
    }

    /// Sends something to be taken in, without an answer.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn send(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        self.ask(Method::POST, path, self.text(body)?).map(drop)
    }

    /// Listens for changes.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn events(&self) -> Result<Events<'_>, ClientError> {
        let request = self.request(Method::GET, "/v1/events", Vec::new())?;
        let opened = async {
            let stream = TcpStream::connect(&self.authority).await?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // It ends with the body.
            tokio::spawn(connection);
            Ok::<_, AnyError>(sender.send_request(request).await?)
        };
        let opened = self.runtime.block_on(async { timeout(TIMEOUT, opened).await });
        let response = self.in_time(opened)?;
        let (status, body) = (response.status(), response.into_body());
        if status.is_success() {
            return Ok(Events { client: self, body, received: Vec::new() });
        }
        let read = Limited::new(body, MAX_BYTES).collect();
        let read = self.runtime.block_on(async { timeout(TIMEOUT, read).await });
        Err(self.refused(status, &self.in_time(read)?.to_bytes()))
    }

    /// Has something done that has no answer.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn act(&self, path: &str) -> Result<(), ClientError> {
        self.ask(Method::POST, path, Vec::new()).map(drop)
    }

    /// Removes something.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, path, Vec::new()).map(drop)
    }

    fn text(&self, body: &impl Serialize) -> Result<Vec<u8>, ClientError> {
        serde_json::to_vec(body).map_err(|error| self.unread(&error))
    }

    fn parsed<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(bytes).map_err(|error| self.unread(&error))
    }

    fn unread(&self, problem: &dyn std::fmt::Display) -> ClientError {
        ClientError::Answer { api: self.authority.clone(), problem: problem.to_string() }
    }

    fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Bytes, ClientError> {
        let request = self.request(method, path, body)?;
        let asked = self
            .runtime
            .block_on(async { timeout(TIMEOUT, exchange(&self.authority, request)).await });
        let (status, bytes) = self.in_time(asked)?;
        if status.is_success() { Ok(bytes) } else { Err(self.refused(status, &bytes)) }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.authority)
            .header(AUTHORIZATION, format!("Bearer {}", self.token.secret()))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| self.unread(&error))
    }

    /// Returns what came in time.
    fn in_time<T>(
        &self,
        came: Result<Result<T, impl Into<AnyError>>, Elapsed>,
    ) -> Result<T, ClientError> {
        let came = came.map_err(|_| self.unreachable("no answer in time"))?;
        came.map_err(|error| self.unreachable(error.into()))
    }

    fn unreachable(&self, problem: impl ToString) -> ClientError {
        let api = format!("http://{}", self.authority);
        ClientError::Unreachable { api, problem: problem.to_string() }
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> ClientError {
        match serde_json::from_slice(body) {
            Ok(ErrorAnswer { error }) => ClientError::Refused { status: status.as_u16(), error },
            Err(error) => self.unread(&error),
        }
    }
}

/// The changes that one connection tells of.
#[derive(Debug)]
pub struct Events<'a> {
    client: &'a Client,
    body: Incoming,
    received: Vec<u8>,
}

impl Events<'_> {
    /// Waits for the next change.
    ///
    /// # Errors
    /// When the connection ends, or nothing comes for longer than the controller is silent.
    pub fn wait(&mut self) -> Result<Change, ClientError> {
        loop {
            if let Some(data) = self.data() {
                return self.client.parsed(&data);
            }
            let frame = async { timeout(SILENCE, self.body.frame()).await };
            let frame = self.client.runtime.block_on(frame);
            let frame = frame.map_err(|_| self.client.unreachable("it says nothing"))?;
            let frame = frame.ok_or_else(|| self.client.unreachable("it ended the connection"))?;
            let frame = frame.map_err(|error| self.client.unreachable(error))?;
            self.received.extend(frame.into_data().unwrap_or_default());
            if self.received.len() > MAX_BYTES {
                return Err(self.client.unread(&"an event without an end"));
            }
        }
    }

    /// Takes the data of the next event that has arrived whole.
    fn data(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.received.windows(2).position(|pair| pair == b"\n\n")? + 2;
            let event: Vec<u8> = self.received.drain(..end).collect();
            let data = event.split(|byte| *byte == b'\n').find_map(|it| it.strip_prefix(b"data: "));
            if let Some(data) = data {
                return Some(data.to_vec());
            }
        }
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Sends a request over a connection of its own, and returns the status and body of the answer.
async fn exchange(
    authority: &str,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), AnyError> {
    let stream = TcpStream::connect(authority).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let asked = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BYTES).collect().await?;
        Ok::<_, AnyError>((status, body.to_bytes()))
    };
    let mut asked = std::pin::pin!(asked);
    tokio::select! {
        answered = &mut asked => answered,
        ended = connection => {
            ended?;
            asked.await
        }
    }
}
