//! HTTP as spoken to a proxy [RFC 9110, RFC 9112]: CONNECT, and plain requests with an absolute
//! URL, which programs send because of `http_proxy`.
//!
//! Heads are parsed by `httparse`, with stricter line endings (`head`). Framing is this module's
//! own (`body`), since hyper silently accepts what makes two parties see two different requests: a
//! length beside a transfer coding. Forwarded heads and framing are written anew, never copied, so
//! that no server behind the gateway reads them in another way. `carry` moves requests and
//! responses.

mod body;
mod carry;
mod head;

use tradewind_grant::{GrantError, Status};
use tradewind_units::one_line;

use super::users::NotLetIn;

pub(super) use carry::{Client, Served, read_request};
#[cfg(test)]
pub(super) use head::Scan;
pub(super) use head::{Request, Target};

/// Longest line of an answer. Chosen: two identities and an address fit beside a sentence.
const MAX_LINE_BYTES: usize = 1000;

/// The methods that are served, as listed in the answer to any other.
const ALLOW: &str = "Allow: CONNECT, DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT\r\n";

/// The answer to a CONNECT whose flow is open.
pub(super) const OPENED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Returns the answer to a request that was not received in time.
pub(super) fn late() -> Vec<u8> {
    answer("408 Request Timeout", "", "the request did not come in time")
}

/// Returns the answer to a request whose head is too long.
pub(super) fn too_long() -> Vec<u8> {
    let line = format!("the head of the request is longer than {} bytes", head::MAX_BYTES);
    answer("431 Request Header Fields Too Large", "", &line)
}

/// Returns the answer to a client whose credentials are missing or wrong, or could not be checked.
pub(super) fn not_let_in(why: NotLetIn) -> Vec<u8> {
    let ask = "Proxy-Authenticate: Basic realm=\"tradewind\", charset=\"UTF-8\"\r\n";
    let (status, fields) = match why {
        NotLetIn::Nothing | NotLetIn::Wrong => ("407 Proxy Authentication Required", ask),
        NotLetIn::Busy => ("503 Service Unavailable", ""),
    };
    answer(status, fields, &why.to_string())
}

/// The reason why a message was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HttpError {
    /// The first line is no request line.
    #[error("not an HTTP request")]
    NotHttp,
    /// A line without carriage return.
    #[error("a line of the head ends without a carriage return")]
    BareNewline,
    /// A version other than 1.0 and 1.1.
    #[error("HTTP/1.0 and HTTP/1.1 are served here, no other version")]
    Version,
    /// More fields than any program sends.
    #[error("more than {} header fields", head::MAX_FIELDS)]
    TooManyFields,
    /// An invalid field.
    #[error("a header field that makes no sense, or goes on over the next line")]
    Field,
    /// A method that is not served.
    #[error("the method `{0}` is not served here")]
    Method(String),
    /// A target that a proxy cannot serve.
    #[error("`{0}`: expected CONNECT with HOST:PORT, or a URL that begins with http://")]
    Target(String),
    /// A target that is not a valid destination.
    #[error(transparent)]
    Destination(#[from] GrantError),
    /// An invalid length, or one beside another length or a coding.
    #[error("{0}")]
    Framing(&'static str),
    /// A coding of the body other than `chunked`.
    #[error("the transfer coding `{0}` is not served here, only `chunked`")]
    Coding(String),
    /// Invalid chunks.
    #[error("the body's chunks make no sense")]
    Chunk,
    /// A body that ended early.
    #[error("the body ended early")]
    Cut,
}

impl HttpError {
    /// Returns the answer to send before closing.
    pub(super) fn answer(&self) -> Vec<u8> {
        let (status, fields) = match self {
            Self::Method(_) => ("405 Method Not Allowed", ALLOW),
            Self::Coding(_) => ("501 Not Implemented", ""),
            Self::Version => ("505 HTTP Version Not Supported", ""),
            Self::TooManyFields => ("431 Request Header Fields Too Large", ""),
            _ => ("400 Bad Request", ""),
        };
        answer(status, fields, &self.to_string())
    }
}

/// Returns the answer to a request whose flow could not be opened; its body is the error as one
/// line.
pub(super) fn refused(status: Status, line: &str) -> Vec<u8> {
    let text = match status {
        Status::GrantRefused | Status::DestinationRefused | Status::NextHopRefused => {
            "403 Forbidden"
        }
        Status::TimedOut => "504 Gateway Timeout",
        Status::Overloaded | Status::Draining => "503 Service Unavailable",
        _ => "502 Bad Gateway",
    };
    answer(text, "", line)
}

fn answer(status: &str, fields: &str, line: &str) -> Vec<u8> {
    let line = one_line(line, MAX_LINE_BYTES);
    let length = line.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Type: text/plain\r\nContent-Length: \
         {length}\r\nConnection: close\r\n\r\n{line}\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_each_cause() {
        let first_line = |answer: Vec<u8>| {
            let text = String::from_utf8(answer).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}", body.len())), "{text}");
            assert!(body.ends_with('\n') && body.trim_end().lines().count() == 1, "{text}");
            text.lines().next().unwrap().split(' ').nth(1).unwrap().to_owned()
        };
        for (status, expected) in [
            (Status::GrantRefused, "403"),
            (Status::DestinationRefused, "403"),
            (Status::NextHopRefused, "403"),
            (Status::NameNotFound, "502"),
            (Status::ConnectionRefused, "502"),
            (Status::Unreachable, "502"),
            (Status::NextHopFailed, "502"),
            (Status::Internal, "502"),
            (Status::TimedOut, "504"),
            (Status::Overloaded, "503"),
            (Status::Draining, "503"),
        ] {
            assert_eq!(first_line(refused(status, "why")), expected, "{status}");
        }
        assert_eq!(first_line(late()), "408");
        assert_eq!(first_line(too_long()), "431");
        assert_eq!(first_line(HttpError::BareNewline.answer()), "400");
        assert_eq!(first_line(HttpError::TooManyFields.answer()), "431");
        assert_eq!(first_line(HttpError::Coding("gzip".into()).answer()), "501");
        let method = String::from_utf8(HttpError::Method("TRACE".into()).answer()).unwrap();
        assert!(method.starts_with("HTTP/1.1 405 ") && method.contains("\r\nAllow: CONNECT, "));
    }

    #[test]
    fn answer_has_no_control_characters() {
        let escape = HttpError::Target("\x1b[31mred:80".into()).answer();
        let body = String::from_utf8(escape).unwrap();
        let (_, body) = body.split_once("\r\n\r\n").unwrap();
        assert!(body.contains("red") && !body.trim_end().contains(char::is_control), "{body:?}");
        let long = refused(Status::Internal, &"x\x1b".repeat(5000));
        assert!(long.len() < 1200 && !long.contains(&0x1b));
    }
}
