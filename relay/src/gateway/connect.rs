//! HTTP CONNECT [RFC 9110 section 9.3.6], version 1.0 and 1.1.
//!
//! Parsers and answers only; the session that speaks it is in [`super::session`].

use tradewind_grant::{Destination, GrantError, Status};
use tradewind_units::one_line;

use crate::head::Progress;

/// Longest request head. Chosen: what common proxies take.
pub(crate) const MOST_BYTES: usize = 8 * 1024;

/// Longest word that passes for a method, so that other protocols are told from HTTP at once.
const MOST_METHOD_BYTES: usize = 16;

/// Longest line of an answer. Chosen: two identities and an address have room beside a sentence.
const MOST_LINE_BYTES: usize = 1000;

/// The answer to a request whose flow is open.
pub(crate) const OPENED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The first line is no request line.
    #[error("not an HTTP request")]
    NotHttp,
    /// Another method than CONNECT.
    #[error("only the method CONNECT is served here, not `{0}`")]
    Method(String),
    /// A target that is no destination.
    #[error(transparent)]
    Target(#[from] GrantError),
}

impl ConnectError {
    /// What to answer before closing.
    pub(crate) fn answer(&self) -> Vec<u8> {
        match self {
            Self::NotHttp | Self::Target(_) => answer("400 Bad Request", &self.to_string()),
            Self::Method(_) => answer("405 Method Not Allowed", &self.to_string()),
        }
    }
}

/// Reads a request head, up to its empty line.
pub(crate) fn request(bytes: &[u8]) -> Result<Progress<Destination>, ConnectError> {
    let method = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
    if method.len() > MOST_METHOD_BYTES || !method.iter().all(u8::is_ascii_uppercase) {
        return Err(ConnectError::NotHttp);
    }
    let Some(head_end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(Progress::Incomplete);
    };
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(ConnectError::NotHttp);
    };
    if !version.starts_with("HTTP/1.") {
        return Err(ConnectError::NotHttp);
    }
    if method != "CONNECT" {
        return Err(ConnectError::Method(method.to_owned()));
    }
    Ok(Progress::Complete(target.parse()?, head_end + 4))
}

/// The answer to a request whose flow could not be opened; its body is the one line of the error.
pub(crate) fn refused(status: Status, line: &str) -> Vec<u8> {
    let text = match status {
        Status::GrantRefused | Status::DestinationRefused | Status::NextHopRefused => {
            "403 Forbidden"
        }
        Status::TimedOut => "504 Gateway Timeout",
        Status::Overloaded | Status::Draining => "503 Service Unavailable",
        _ => "502 Bad Gateway",
    };
    answer(text, line)
}

fn answer(status: &str, line: &str) -> Vec<u8> {
    let line = one_line(line, MOST_LINE_BYTES);
    let length = line.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{line}\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::tests::assert_read_in_any_pieces;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_read_to_its_empty_line_and_no_further() {
        let bytes = b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\nhello";
        let Ok(Progress::Complete(destination, used)) = request(bytes) else { panic!() };
        assert_eq!(destination.to_string(), "example.com:443");
        assert_eq!(&bytes[used..], b"hello");
        for length in 0..used {
            assert!(matches!(request(&bytes[..length]), Ok(Progress::Incomplete)), "{length}");
        }
    }

    #[test]
    fn addresses_of_both_families_are_targets() {
        for target in ["192.0.2.7:80", "[2001:db8::1]:80"] {
            let text = format!("CONNECT {target} HTTP/1.0\r\n\r\n");
            let Ok(Progress::Complete(destination, _)) = request(text.as_bytes()) else { panic!() };
            assert_eq!(destination.to_string(), target);
        }
    }

    #[test]
    fn other_methods_and_protocols_are_told_so() {
        let get = request(b"GET http://example.com/ HTTP/1.1\r\n\r\n").err().unwrap();
        assert!(get.answer().starts_with(b"HTTP/1.1 405 "));
        let tls = request(&[22, 3, 1, 2, 0, 1, 0, 1, 252]).err().unwrap();
        assert!(matches!(tls, ConnectError::NotHttp));
        let target = request(b"CONNECT example.com HTTP/1.1\r\n\r\n").err().unwrap();
        assert!(target.answer().starts_with(b"HTTP/1.1 400 "), "{target}");
    }

    #[test]
    fn an_answer_shows_nothing_that_moves_a_terminals_cursor() {
        let escape = request(b"CONNECT \x1b[31mred:80 HTTP/1.1\r\n\r\n").err().unwrap().answer();
        let body = String::from_utf8(escape).unwrap();
        let (_, body) = body.split_once("\r\n\r\n").unwrap();
        assert!(body.contains("red") && !body.trim_end().contains(char::is_control), "{body:?}");
        let long = refused(Status::Internal, &"x\x1b".repeat(5000));
        assert!(long.len() < 1200 && !long.contains(&0x1b));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_in_any_pieces(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            text in "[A-Za-z0-9.:/ \\[\\]\r\n\u{e4}-]{0,80}",
        ) {
            for rest in [&bytes[..], text.as_bytes()] {
                assert_read_in_any_pieces(request, rest);
                let target = [b"CONNECT ", rest, b" HTTP/1.1\r\n\r\ndata"].concat();
                assert_read_in_any_pieces(request, &target);
            }
        }
    }
}
