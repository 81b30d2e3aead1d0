//! The heads of requests and responses: parsed strictly, and written anew for the next hop.

use std::ops::Range;

use tradewind_grant::Destination;
use tradewind_units::one_line;

use base64ct::{Base64, Encoding as _};
use tradewind_stream::connection::head::Progress;

use super::HttpError;
use super::body::{Body, Framing};
use crate::users::Credentials;

/// Length of the longest head. Chosen: Kerberos tickets take 12 kB and more.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// Most fields of a head. Chosen: far above any that programs send.
pub(super) const MAX_FIELDS: usize = 200;
/// Longest word that is accepted as a method, so that other protocols are recognised at once.
const MAX_METHOD_BYTES: usize = 24;
/// Longest part of a target that is shown in an error.
const MAX_SHOWN_BYTES: usize = 100;
/// The default port of a URL.
const HTTP_PORT: u16 = 80;

/// Hop-by-hop fields, and those that are written anew.
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

/// The position up to which a head has been scanned, so that a head that arrives byte by byte costs
/// no more than any other.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The start of the head, after empty lines.
    begin: usize,
    /// The start of the current line.
    line: usize,
    /// The number of bytes that have been scanned.
    looked: usize,
}

impl Scan {
    /// Returns the range of the head in `bytes`, once it is complete.
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

/// The accepted line endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// Carriage return and line feed.
    Strict,
    /// Also a line feed alone, as some old servers send. The forwarded head is written anew.
    Lenient,
}

/// A field: its name, and its value without surrounding blanks.
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

    /// Returns the elements of a field that is a list.
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

    /// Appends the end-to-end fields.
    fn put_end_to_end(&self, out: &mut Vec<u8>) {
        for Field { name, value } in &self.0 {
            let is_own = OF_ONE_CONNECTION.iter().any(|own| name.eq_ignore_ascii_case(own));
            if !is_own && !self.lists("connection", name) {
                put_field(out, name, value);
            }
        }
    }

    /// Returns the `Content-Length`, of which there must be one valid number or none.
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

    /// Returns the stated framing of the body: a length, chunks, or none.
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
            return Err(HttpError::Coding(one_line(&coding, MAX_SHOWN_BYTES)));
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

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// CONNECT: the destination of a tunnel.
    Tunnel(Destination),
    /// The server of a URL.
    Origin(Origin),
}

/// The server of a URL, and the path requested from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) destination: Destination,
    /// Its host and port as given in the URL.
    authority: String,
    path: String,
}

/// A client's request without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) target: Target,
    method: String,
    is_http_11: bool,
    fields: Fields,
    framing: Framing,
}

impl Request {
    /// Reads a request head, up to its empty line.
    pub(crate) fn read(scan: &mut Scan, bytes: &[u8]) -> Result<Progress<Self>, HttpError> {
        let head = scan.head(bytes, Lines::Strict)?;
        let begun = &bytes[scan.begin..];
        let method = begun.split(|byte| *byte == b' ').next().unwrap_or_default();
        let of_methods = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
        let is_half_a_line = method == b"\r";
        let is_method = method.len() <= MAX_METHOD_BYTES && method.iter().all(of_methods);
        if !is_method && !is_half_a_line {
            return Err(HttpError::NotHttp);
        }
        let Some(head) = head else { return Ok(Progress::Incomplete) };
        let end = head.end;
        Self::parse(&bytes[head]).map(|request| Progress::Complete(request, end))
    }

    fn parse(head: &[u8]) -> Result<Self, HttpError> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
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
            // An echo of the request would reveal fields that a browser hides from its pages.
            "TRACE" => return Err(HttpError::Method(method.to_owned())),
            _ => Target::Origin(Origin::of(method, target)?),
        };
        Ok(Self { target, method: method.to_owned(), is_http_11, fields, framing })
    }

    /// Returns whether the client speaks HTTP/1.1, and so understands chunks and interim responses.
    pub(super) const fn is_http_11(&self) -> bool {
        self.is_http_11
    }

    /// Returns whether its connection may be used for another request.
    pub(super) fn keeps_alive(&self) -> bool {
        self.is_http_11 && !self.fields.says_close()
    }

    /// Returns whether it may be sent twice: its method is safe, and it has no body.
    pub(super) fn is_repeatable(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS") && self.framing == Framing::None
    }

    /// Returns whether it is a HEAD request.
    pub(super) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// Returns the name and password in its `Proxy-Authorization`.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        let value = self.fields.values("proxy-authorization").next()?;
        let (scheme, rest) = std::str::from_utf8(value).ok()?.split_once(' ')?;
        let text = scheme.eq_ignore_ascii_case("basic").then(|| Base64::decode_vec(rest.trim()))?;
        let text = String::from_utf8(text.ok()?).ok()?;
        let (name, password) = text.split_once(':')?;
        Some(Credentials { name: name.to_owned(), password: password.as_bytes().to_vec() })
    }

    /// Returns its body, in the framing in which it is to be forwarded.
    pub(super) fn body(&self) -> Body {
        Body::new(self.framing, self.framing == Framing::Chunked)
    }

    /// Encodes its head for `origin`.
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
    /// Parses an `http` URL.
    fn of(method: &str, url: &str) -> Result<Self, HttpError> {
        // The query and the user info may hold secrets, so they are not logged.
        let refused = || {
            let shown = url.split(['?', '#']).next().unwrap_or_default();
            let shown = shown.rsplit_once('@').map_or(shown, |(_, behind)| behind);
            HttpError::Target(one_line(shown, MAX_SHOWN_BYTES))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(refused)?;
        // User info serves to deceive people, and a fragment is only for the client itself.
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

/// A server's response without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Response {
    status: u16,
    reason: String,
    is_http_11: bool,
    fields: Fields,
    framing: Framing,
}

impl Response {
    /// Reads a response head, up to its empty line; the response to HEAD has no body.
    pub(super) fn read(
        scan: &mut Scan,
        bytes: &[u8],
        is_of_head: bool,
    ) -> Result<Progress<Self>, HttpError> {
        let Some(head) = scan.head(bytes, Lines::Lenient)? else {
            return Ok(Progress::Incomplete);
        };
        let end = head.end;
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
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

    /// Returns whether another response to the same request follows.
    pub(super) const fn is_interim(&self) -> bool {
        matches!(self.status, 100..200)
    }

    /// Returns whether the server switches to another protocol, which was not requested: `Upgrade`
    /// is not forwarded.
    pub(super) const fn changes_protocol(&self) -> bool {
        self.status == 101
    }

    /// Returns whether the server's connection may be used for another request.
    pub(super) fn keeps_alive(&self) -> bool {
        self.is_http_11 && self.framing != Framing::UntilEnd && !self.fields.says_close()
    }

    /// Returns the framing of its body for a client of HTTP/1.1 or 1.0.
    const fn framing_to(&self, is_http_11: bool) -> Framing {
        match self.framing {
            Framing::Chunked | Framing::UntilEnd if is_http_11 => Framing::Chunked,
            Framing::Chunked => Framing::UntilEnd,
            framing => framing,
        }
    }

    /// Returns whether only the end of the connection marks its end for a client of HTTP/1.1 or
    /// 1.0.
    pub(super) fn ends_connection(&self, is_http_11: bool) -> bool {
        self.framing_to(is_http_11) == Framing::UntilEnd
    }

    /// Returns its body, in the framing in which it is to be forwarded.
    pub(super) fn body(&self, is_http_11: bool) -> Body {
        Body::new(self.framing, self.framing_to(is_http_11) == Framing::Chunked)
    }

    /// Encodes its head for a client of HTTP/1.1 or 1.0, whose connection stays open if
    /// `keeps_alive`.
    ///
    /// # Errors
    /// When the stated length of an absent body is invalid.
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
            // The stated length of the body that is absent.
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

/// Converts a parser's error.
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
