//! Tests of heads of requests and responses: which are accepted, which are refused, and how they
//! are written anew.

use super::*;
use crate::in_pieces::assert_read_in_any_pieces;
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Result<Progress<Request>, HttpError> {
    Request::read(&mut Scan::default(), bytes)
}

fn whole(text: &str) -> Request {
    match read(text.as_bytes()) {
        Ok(Progress::Complete(request, used)) => {
            assert_eq!(used, text.len());
            request
        }
        Ok(Progress::Incomplete) => panic!("incomplete"),
        Err(error) => panic!("{error}"),
    }
}

fn refusal(text: &str) -> HttpError {
    read(text.as_bytes()).err().unwrap_or_else(|| panic!("taken: {text:?}"))
}

fn sent_on(text: &str) -> String {
    let request = whole(text);
    let Target::Origin(origin) = &request.target else { panic!("a tunnel") };
    String::from_utf8(request.to_origin(origin)).unwrap()
}

fn response(text: &str, is_of_head: bool) -> Result<Response, HttpError> {
    match Response::read(&mut Scan::default(), text.as_bytes(), is_of_head)? {
        Progress::Complete(response, _) => Ok(response),
        Progress::Incomplete => panic!("incomplete"),
    }
}

#[test]
fn request_ends_at_its_empty_line() {
    let bytes = b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\nhello";
    let Ok(Progress::Complete(request, used)) = read(bytes) else { panic!() };
    assert_eq!(request.target, Target::Tunnel("example.com:443".parse().unwrap()));
    assert_eq!(&bytes[used..], b"hello");
    for length in 0..used {
        assert!(matches!(read(&bytes[..length]), Ok(Progress::Incomplete)), "{length}");
    }
}

#[test]
fn addresses_of_both_families_are_targets() {
    for target in ["192.0.2.7:80", "[2001:db8::1]:80"] {
        let request = whole(&format!("CONNECT {target} HTTP/1.0\r\n\r\n"));
        assert_eq!(request.target, Target::Tunnel(target.parse().unwrap()));
    }
}

#[test]
fn long_head_after_empty_lines_is_read() {
    let ticket = "Y".repeat(12_000);
    let head = format!(
        "\r\n\r\nCONNECT a.example:1 HTTP/1.1\r\nProxy-Authorization: Negotiate {ticket}\r\n\r\n"
    );
    assert_eq!(whole(&head).target, Target::Tunnel("a.example:1".parse().unwrap()));
}

#[test]
fn other_protocols_and_methods_are_refused() {
    assert_eq!(read(&[22, 3, 1, 2, 0, 1, 0, 1, 252]).err(), Some(HttpError::NotHttp));
    assert_eq!(refusal("SSH-2.0-x\r\n"), HttpError::NotHttp);
    assert_eq!(refusal("PRI * HTTP/2.0\r\n\r\n"), HttpError::Version);
    let trace = refusal("TRACE http://a.example/ HTTP/1.1\r\n\r\n");
    assert_eq!(trace, HttpError::Method("TRACE".to_owned()));
    for target in ["/", "*", "a.example", "https://a.example/", "ftp://a.example/"] {
        let refused = refusal(&format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert_eq!(refused, HttpError::Target(target.to_owned()));
    }
    for target in ["http://u@a.example/", "http://u:p@a.example/", "http://a.example/#x"] {
        let refused = refusal(&format!("GET {target} HTTP/1.1\r\n\r\n"));
        assert!(matches!(refused, HttpError::Target(_)), "{target}");
    }
    for target in ["http:///", "http://a.example:0/", "http://a..example/", "http://[::1/"] {
        let refused = refusal(&format!("GET {target} HTTP/1.1\r\n\r\n"));
        assert!(matches!(refused, HttpError::Destination(_)), "{target}: {refused}");
    }
}

#[test]
fn refused_url_hides_secrets() {
    for url in ["http://ci:SECRET@a.example/x", "https://a.example/x?key=SECRET"] {
        let refused = refusal(&format!("GET {url} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        assert!(matches!(refused, HttpError::Target(_)), "{url}");
        assert!(!refused.to_string().contains("SECRET"), "{refused}");
    }
}

#[test]
fn ambiguous_heads_are_refused() {
    let get = |fields: &str| refusal(&format!("GET http://a.example/ HTTP/1.1\r\n{fields}\r\n"));
    assert_eq!(refusal("GET http://a.example/ HTTP/1.1\n"), HttpError::BareNewline);
    assert_eq!(get("A: b\nC: d\r\n"), HttpError::BareNewline);
    assert_eq!(refusal("CONNECT a.example:1 HTTP/1.1\r\n\n"), HttpError::BareNewline);
    for fields in [
        "A: b\r\n folded\r\n",
        " A: b\r\n",
        "A : b\r\n",
        "A\r\n",
        ": b\r\n",
        "A: b\rC: d\r\n",
        "A: \0\r\n",
    ] {
        assert_eq!(get(fields), HttpError::Field, "{fields:?}");
    }
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length:\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Host: a.example\r\nHost: b.example\r\n",
    ] {
        assert!(matches!(get(fields), HttpError::Framing(_)), "{fields:?}");
    }
    for coding in ["gzip", "gzip, chunked", "chunked, chunked", "xchunked", "chunked\x0b", ""] {
        let refused = get(&format!("Transfer-Encoding: {coding}\r\n"));
        let is_right = matches!(refused, HttpError::Coding(_) | HttpError::Field);
        assert!(is_right, "{coding:?}: {refused}");
    }
    let twice = get("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n");
    assert!(matches!(twice, HttpError::Coding(_)));
    let old = "POST http://a.example/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert!(matches!(refusal(old), HttpError::Framing(_)));
    let many = "A: b\r\n".repeat(MAX_FIELDS + 1);
    assert_eq!(get(&many), HttpError::TooManyFields);
}

#[test]
fn request_is_forwarded_in_origin_form() {
    let text = sent_on(
        "GET http://Www.example.com:8080/a?b=c HTTP/1.1\r\nHost: other.example\r\nAccept: */*\r\n\
         Proxy-Connection: keep-alive\r\nConnection: keep-alive, X-Own\r\nX-Own: 1\r\n\
         Proxy-Authorization: Basic eDp5\r\nUpgrade: h2c\r\nTE: trailers\r\nKeep-Alive: 5\r\n\r\n",
    );
    let expected = "GET /a?b=c HTTP/1.1\r\nHost: Www.example.com:8080\r\nAccept: */*\r\n\r\n";
    assert_eq!(text, expected);
    let first_line = |url: &str, method: &str| {
        let text = sent_on(&format!("{method} {url} HTTP/1.1\r\n\r\n"));
        text.lines().next().unwrap().to_owned()
    };
    assert_eq!(first_line("http://a.example", "GET"), "GET / HTTP/1.1");
    assert_eq!(first_line("HTTP://a.example?q", "GET"), "GET /?q HTTP/1.1");
    assert_eq!(first_line("http://a.example", "OPTIONS"), "OPTIONS * HTTP/1.1");
    let port = |url: &str| match whole(&format!("GET {url} HTTP/1.1\r\n\r\n")).target {
        Target::Origin(origin) => origin.destination.to_string(),
        Target::Tunnel(_) => panic!(),
    };
    assert_eq!(port("http://a.example/"), "a.example:80");
    assert_eq!(port("http://a.example:/"), "a.example:80");
    assert_eq!(port("http://[2001:db8::1]/"), "[2001:db8::1]:80");
    assert_eq!(port("http://[2001:db8::1]:81/"), "[2001:db8::1]:81");
}

#[test]
fn credentials_are_read_from_basic_alone() {
    let shown = |value: &str| {
        let fields = format!("Proxy-Authorization: {value}\r\n");
        whole(&format!("CONNECT a.example:1 HTTP/1.1\r\n{fields}\r\n")).credentials()
    };
    let credentials = |name: &str, password: &str| {
        let password = password.as_bytes().to_vec();
        Some(Credentials { name: name.to_owned(), password })
    };
    assert_eq!(shown("Basic YW5uOm9uZQ=="), credentials("ann", "one"));
    assert_eq!(shown("bASIC  YW5uOm86bmU= "), credentials("ann", "o:ne"));
    for wrong in ["Basic", "Basic YW5u", "Basic YW5uOm9uZQ", "Basic !", "Bearer YW5uOm9uZQ=="] {
        assert_eq!(shown(wrong), None, "{wrong}");
    }
}

#[test]
fn framing_headers_are_rewritten() {
    let post = "POST http://a.example/ HTTP/1.1\r\n";
    let text = sent_on(&format!(
        "{post}Content-Length: 5\r\nConnection: Content-Length, Host\r\nExpect: \
         100-continue\r\n\r\n"
    ));
    assert!(text.contains("\r\nContent-Length: 5\r\n") && text.contains("\r\nHost: a.example\r\n"));
    assert!(text.contains("\r\nExpect: 100-continue\r\n"));
    let text = sent_on(&format!("{post}Transfer-Encoding: Chunked\r\n\r\n"));
    assert!(text.ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n"), "{text}");
}

#[test]
fn response_framing_follows_the_status() {
    let parsed = |text: &str, is_of_head| {
        let response = response(text, is_of_head).unwrap();
        let head = |new| String::from_utf8(response.to_client(new, true).unwrap()).unwrap();
        (response.framing, head(true), head(false))
    };
    let ok = "HTTP/1.1 200 OK\r\n";
    let (framing, new, old) = parsed(&format!("{ok}Transfer-Encoding: chunked\r\n\r\n"), false);
    assert_eq!(framing, Framing::Chunked);
    assert!(new.contains("Transfer-Encoding: chunked") && !old.contains("Transfer-Encoding"));
    let (framing, new, old) = parsed(&format!("{ok}\r\n"), false);
    assert_eq!(framing, Framing::UntilEnd);
    assert!(new.contains("Transfer-Encoding: chunked") && !old.contains("Transfer-Encoding"));
    let (framing, new, _) = parsed(&format!("{ok}Content-Length: 7\r\n\r\n"), true);
    assert_eq!(framing, Framing::None);
    assert!(new.contains("Content-Length: 7"));
    for status in ["100 Continue", "103 Early Hints", "204 No Content"] {
        let (framing, new, _) =
            parsed(&format!("HTTP/1.1 {status}\r\nContent-Length: 7\r\nLink: x\r\n\r\n"), false);
        assert_eq!(framing, Framing::None);
        assert_eq!(new, format!("HTTP/1.1 {status}\r\nLink: x\r\n\r\n"));
    }
    let (framing, new, _) = parsed("HTTP/1.1 304 Not Modified\nContent-Length: 7\n\n", false);
    assert_eq!((framing, new.contains("Content-Length: 7")), (Framing::None, true));
    let old_version = response("HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n", false).unwrap();
    assert!(!old_version.keeps_alive());
    for wrong in [
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 8\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "hello\r\n\r\n",
    ] {
        assert!(response(wrong, false).is_err(), "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_alike_in_any_pieces(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        text in "[A-Za-z0-9.:/ \\[\\]\r\n\u{e4}-]{0,80}",
    ) {
        for rest in [&bytes[..], text.as_bytes()] {
            for before in ["", "\r\n", "CONNECT ", "GET http://", "GET http://a/ HTTP/1.1\r\n"] {
                assert_read_in_any_pieces(read, &[before.as_bytes(), rest].concat());
                let whole = [before.as_bytes(), rest, b" HTTP/1.1\r\n\r\ndata"].concat();
                assert_read_in_any_pieces(read, &whole);
                let mut scan = Scan::default();
                for length in 0..whole.len() {
                    let again = Request::read(&mut scan, &whole[..length]);
                    let fresh = read(&whole[..length]);
                    match (again, fresh) {
                        (Ok(Progress::Incomplete), Ok(Progress::Incomplete)) => {}
                        (Ok(Progress::Complete(a, at)), Ok(Progress::Complete(b, there))) => {
                            prop_assert_eq!((a, at), (b, there));
                            break;
                        }
                        (Err(a), Err(b)) => { prop_assert_eq!(a, b); break; }
                        _ => prop_assert!(false, "{}", length),
                    }
                }
            }
        }
    }
}
