//! The heads of requests and responses: read strictly, and written anew for the next one.

use std::ops::Range;

use tradewind_grant::Destination;
use tradewind_units::one_line;

use base64ct::{Base64, Encoding as _};

use super::HttpError;
use super::body::{Body, Framing};
use crate::gateway::users::Credentials;
use crate::head::Progress;

/// Longest head. Chosen: tickets of Kerberos take 12 kB and more.
pub(in crate::gateway) const MOST_BYTES: usize = 64 * 1024;
/// Most fields of a head. Chosen: far above any that programs send.
pub(super) const MOST_FIELDS: usize = 200;
/// Longest word that passes for a method, so that other protocols are told from HTTP at once.
const MOST_METHOD_BYTES: usize = 24;
/// Longest part of a target in an error.
const MOST_SHOWN_BYTES: usize = 100;
/// The port of a URL that names none.
const HTTP_PORT: u16 = 80;

/// Fields that concern one connection alone, and those that are written anew.
const OF_ONE_CONNECTION: [&str; 12] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// How far a head has been looked through, so that one that comes byte by byte costs no more than
/// another.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Scan {
    /// Where the head begins, behind empty lines.
    begin: usize,
    /// Where the line that is looked at begins.
    line: usize,
    /// What has been looked through.
    looked: usize,
}

impl Scan {
    /// Where the head of `bytes` is, once it is whole.
    fn head(&mut self, bytes: &[u8], lines: Lines) -> Result<Option<Range<usize>>, HttpError> {
        while let Some(found) = bytes[self.looked..].iter().position(|byte| *byte == b'\n') {
            let newline = self.looked + found;
            let (line, is_first) = (&bytes[self.line..newline], self.line == self.begin);
            let is_empty = match line {
                [b'\r'] => true,
                [.., b'\r'] => false,
                _ if lines == Lines::Strict => return Err(HttpError::BareNewline),
                line => line.is_empty(),
            };
            (self.line, self.looked) = (newline + 1, newline + 1);
            match (is_empty, is_first) {
                (true, true) => self.begin = self.line,
                (true, false) => return Ok(Some(self.begin..self.line)),
                (false, _) => {}
            }
        }
        self.looked = bytes.len();
        Ok(None)
    }
}

/// How a line may end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// With carriage return and line feed.
    Strict,
    /// Also with a line feed alone, as some old servers write. What goes on is written anew.
    Lenient,
}

/// A field: its name, and its value without blanks around it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: String,
    value: Vec<u8>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Fields(Vec<Field>);

impl Fields {
    fn of(parsed: &[httparse::Header<'_>]) -> Self {
        let field = |header: &httparse::Header<'_>| Field {
            name: header.name.to_owned(),
            value: header.value.to_vec(),
        };
        Self(parsed.iter().map(field).collect())
    }

    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let named = self.0.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value.as_slice())
    }

    /// The words of a field that is a list.
    fn words<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.values(name)
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
    }

    fn lists(&self, name: &str, word: &str) -> bool {
        self.words(name).any(|one| one.eq_ignore_ascii_case(word.as_bytes()))
    }

    fn says_close(&self) -> bool {
        self.lists("connection", "close") || self.lists("proxy-connection", "close")
    }

    /// Appends the fields that go on.
    fn put_end_to_end(&self, out: &mut Vec<u8>) {
        for Field { name, value } in &self.0 {
            let is_own = OF_ONE_CONNECTION.iter().any(|own| name.eq_ignore_ascii_case(own));
            if !is_own && !self.lists("connection", name) {
                put_field(out, name, value);
            }
        }
    }

    /// The length that is stated, which is one number or none.
    fn length(&self) -> Result<Option<u64>, HttpError> {
        let mut values = self.values("content-length");
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(HttpError::Framing("more than one length of the body"));
        }
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let text = std::str::from_utf8(value).ok().filter(|_| is_number);
        let length = text.and_then(|text| text.parse().ok());
        length.map(Some).ok_or(HttpError::Framing("the length of the body is no number"))
    }

    /// What is stated of the body: a length, chunks, or nothing.
    fn stated(&self, is_http_11: bool) -> Result<Option<Framing>, HttpError> {
        let length = self.length()?;
        let mut codings = self.values("transfer-encoding");
        let Some(coding) = codings.next() else { return Ok(length.map(Framing::Length)) };
        if !is_http_11 {
            return Err(HttpError::Framing("HTTP/1.0 knows no transfer codings"));
        }
        if length.is_some() {
            return Err(HttpError::Framing("both a length and a transfer coding of the body"));
        }
        if codings.next().is_some() || !coding.eq_ignore_ascii_case(b"chunked") {
            let coding = String::from_utf8_lossy(coding);
            return Err(HttpError::Coding(one_line(&coding, MOST_SHOWN_BYTES)));
        }
        Ok(Some(Framing::Chunked))
    }
}

fn put_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn put_framing(out: &mut Vec<u8>, framing: Framing) {
    match framing {
        Framing::None | Framing::UntilEnd => {}
        Framing::Length(length) => {
            put_field(out, "Content-Length", length.to_string().as_bytes());
        }
        Framing::Chunked => put_field(out, "Transfer-Encoding", b"chunked"),
    }
}

/// Where a request is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) enum Target {
    /// CONNECT: a destination for whatever follows.
    Tunnel(Destination),
    /// The server of a URL.
    Origin(Origin),
}

/// The server of a URL, and what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) struct Origin {
    pub(in crate::gateway) destination: Destination,
    /// Its host and port as the URL has them.
    authority: String,
    path: String,
}

/// A client's request, but for its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::gateway) struct Request {
    pub(in crate::gateway) target: Target,
    method: String,
    is_http_11: bool,
    fields: Fields,
    framing: Framing,
}

impl Request {
    /// Reads a request head, up to its empty line.
    pub(in crate::gateway) fn read(
        scan: &mut Scan,
        bytes: &[u8],
    ) -> Result<Progress<Self>, HttpError> {
        let head = scan.head(bytes, Lines::Strict)?;
        let begun = &bytes[scan.begin..];
        let method = begun.split(|byte| *byte == b' ').next().unwrap_or_default();
        let of_methods = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
        let is_half_a_line = method == b"\r";
        let is_method = method.len() <= MOST_METHOD_BYTES && method.iter().all(of_methods);
        if !is_method && !is_half_a_line {
            return Err(HttpError::NotHttp);
        }
        let Some(head) = head else { return Ok(Progress::Incomplete) };
        let end = head.end;
        Self::parse(&bytes[head]).map(|request| Progress::Complete(request, end))
    }

    fn parse(head: &[u8]) -> Result<Self, HttpError> {
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut parsed = httparse::Request::new(&mut fields);
        let whole = parsed.parse(head).map_err(problem)?;
        let (Some(method), Some(target), Some(version)) =
            (parsed.method, parsed.path, parsed.version)
        else {
            return Err(HttpError::NotHttp);
        };
        if whole != httparse::Status::Complete(head.len()) {
            return Err(HttpError::NotHttp);
        }
        let (fields, is_http_11) = (Fields::of(parsed.headers), version == 1);
        let framing = fields.stated(is_http_11)?.unwrap_or(Framing::None);
        if fields.values("host").count() > 1 {
            return Err(HttpError::Framing("more than one field `Host`"));
        }
        let target = match method {
            "CONNECT" => Target::Tunnel(target.parse()?),
            // Whoever asks for an echo of what it sent gets fields that a browser keeps from its
            // pages.
            "TRACE" => return Err(HttpError::Method(method.to_owned())),
            _ => Target::Origin(Origin::of(method, target)?),
        };
        Ok(Self { target, method: method.to_owned(), is_http_11, fields, framing })
    }

    /// Whether the client speaks HTTP/1.1, and so understands chunks and interim responses.
    pub(super) const fn is_http_11(&self) -> bool {
        self.is_http_11
    }

    /// Whether its connection may bring another one.
    pub(super) fn keeps_alive(&self) -> bool {
        self.is_http_11 && !self.fields.says_close()
    }

    /// Whether it may be sent twice, and can: it changes nothing, and has no body.
    pub(super) fn is_repeatable(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS") && self.framing == Framing::None
    }

    /// Whether it asks for a head alone.
    pub(super) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// The name and password that its client shows to the proxy.
    pub(in crate::gateway) fn credentials(&self) -> Option<Credentials> {
        let value = self.fields.values("proxy-authorization").next()?;
        let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        let text = scheme.eq_ignore_ascii_case("basic").then(|| Base64::decode_vec(rest.trim()))?;
        let text = String::from_utf8(text.ok()?).ok()?;
        let (name, password) = text.split_once(':')?;
        Some(Credentials { name: name.to_owned(), password: password.as_bytes().to_vec() })
    }

    /// Its body, as it goes on.
    pub(super) fn body(&self) -> Body {
        Body::new(self.framing, self.framing == Framing::Chunked)
    }

    /// Its head, as it goes on to `origin`.
    pub(super) fn to_origin(&self, origin: &Origin) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, origin.path).into_bytes();
        put_field(&mut out, "Host", origin.authority.as_bytes());
        self.fields.put_end_to_end(&mut out);
        put_framing(&mut out, self.framing);
        out.extend_from_slice(b"\r\n");
        out
    }
}

impl Origin {
    /// What a URL of `http` names.
    fn of(method: &str, url: &str) -> Result<Self, HttpError> {
        // Neither a query nor a user, which may hold secrets, is for a log.
        let refused = || {
            let shown = url.split(['?', '#']).next().unwrap_or_default();
            let shown = shown.rsplit_once('@').map_or(shown, |(_, behind)| behind);
            HttpError::Target(one_line(shown, MOST_SHOWN_BYTES))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(refused)?;
        // A user's name there serves to deceive people, and a fragment is nobody's but the
        // client's.
        if !scheme.eq_ignore_ascii_case("http") || url.contains('#') || !url.is_ascii() {
            return Err(refused());
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err(refused());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port),
            _ => (authority, ""),
        };
        let destination = match port {
            "" => Destination::new(host, HTTP_PORT)?,
            port => format!("{host}:{port}").parse()?,
        };
        let path = match path {
            "" if method == "OPTIONS" => "*".to_owned(),
            path if path.starts_with('/') => path.to_owned(),
            query => format!("/{query}"),
        };
        Ok(Self { destination, authority: authority.to_owned(), path })
    }
}

/// A server's response, but for its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Response {
    status: u16,
    reason: String,
    is_http_11: bool,
    fields: Fields,
    framing: Framing,
}

impl Response {
    /// Reads a response head, up to its empty line; of an answer to HEAD there is no more.
    pub(super) fn read(
        scan: &mut Scan,
        bytes: &[u8],
        is_of_head: bool,
    ) -> Result<Progress<Self>, HttpError> {
        let Some(head) = scan.head(bytes, Lines::Lenient)? else {
            return Ok(Progress::Incomplete);
        };
        let end = head.end;
        let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
        let mut parsed = httparse::Response::new(&mut fields);
        let whole = parsed.parse(&bytes[head.clone()]).map_err(problem)?;
        let (Some(status), Some(version)) = (parsed.code, parsed.version) else {
            return Err(HttpError::NotHttp);
        };
        if whole != httparse::Status::Complete(head.len()) || !(100..1000).contains(&status) {
            return Err(HttpError::NotHttp);
        }
        let (fields, is_http_11) = (Fields::of(parsed.headers), version == 1);
        let framing = match status {
            _ if is_of_head => Framing::None,
            100..200 | 204 | 304 => Framing::None,
            _ => fields.stated(is_http_11)?.unwrap_or(Framing::UntilEnd),
        };
        let reason = parsed.reason.unwrap_or_default().to_owned();
        Ok(Progress::Complete(Self { status, reason, is_http_11, fields, framing }, end))
    }

    /// Whether another response to the same request follows.
    pub(super) const fn is_interim(&self) -> bool {
        matches!(self.status, 100..200)
    }

    /// Whether the connection goes over to another protocol, which nobody asked for: the wish does
    /// not go on.
    pub(super) const fn changes_protocol(&self) -> bool {
        self.status == 101
    }

    /// Whether the server's connection may take another request.
    pub(super) fn keeps_alive(&self) -> bool {
        self.is_http_11 && self.framing != Framing::UntilEnd && !self.fields.says_close()
    }

    /// How its body is told to a client of HTTP/1.1 or 1.0.
    const fn framing_to(&self, is_http_11: bool) -> Framing {
        match self.framing {
            Framing::Chunked | Framing::UntilEnd if is_http_11 => Framing::Chunked,
            Framing::Chunked => Framing::UntilEnd,
            framing => framing,
        }
    }

    /// Whether a client of HTTP/1.1 or 1.0 learns of its end by the end of the connection alone.
    pub(super) fn ends_connection(&self, is_http_11: bool) -> bool {
        self.framing_to(is_http_11) == Framing::UntilEnd
    }

    /// Its body, as it goes on.
    pub(super) fn body(&self, is_http_11: bool) -> Body {
        Body::new(self.framing, self.framing_to(is_http_11) == Framing::Chunked)
    }

    /// Its head, as it goes on to a client of HTTP/1.1 or 1.0, whose connection stays open if
    /// `keeps_alive`.
    ///
    /// # Errors
    /// When what it says of a body that does not come makes no sense.
    pub(super) fn to_client(
        &self,
        is_http_11: bool,
        keeps_alive: bool,
    ) -> Result<Vec<u8>, HttpError> {
        let Self { status, reason, fields, .. } = self;
        let mut out = format!("HTTP/1.1 {status} {reason}\r\n").into_bytes();
        fields.put_end_to_end(&mut out);
        match (self.framing, status) {
            (Framing::None, 100..200 | 204) => {}
            // What the body would be that is not there.
            (Framing::None, _) => {
                let length = fields.length()?;
                put_framing(&mut out, length.map_or(Framing::None, Framing::Length));
            }
            _ => put_framing(&mut out, self.framing_to(is_http_11)),
        }
        if !self.is_interim() && !keeps_alive {
            put_field(&mut out, "Connection", b"close");
        }
        out.extend_from_slice(b"\r\n");
        Ok(out)
    }
}

/// What is wrong with a head.
const fn problem(error: httparse::Error) -> HttpError {
    match error {
        httparse::Error::TooManyHeaders => HttpError::TooManyFields,
        httparse::Error::Version => HttpError::Version,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => HttpError::Field,
        _ => HttpError::NotHttp,
    }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
