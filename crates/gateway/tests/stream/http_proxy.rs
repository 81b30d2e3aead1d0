//! Plain HTTP requests through the proxy port, as programs send them with `http_proxy` set.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown as Half, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tradewind_config::GatewayConfig;

use crate::support::{
    Running, closed_port, connect, content, destination, gateway_config, hash, loopback, patient,
    relay_config, route_over, wait_for,
};

/// A request as a server has read it.
#[derive(Debug, Clone)]
struct Seen {
    /// The number of its connection at this server.
    connection: usize,
    head: String,
    body: Vec<u8>,
}

/// A server of HTTP that keeps connections open.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Starts a server that answers each request by `answer`; nothing ends the connection.
    fn new(answer: impl Fn(&Seen) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(loopback()).unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Seen>>>::default());
        let (answer, noted) = (Arc::new(answer), Arc::clone(&seen));
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (stream, answer) = (stream.unwrap(), Arc::clone(&answer));
                let noted = Arc::clone(&noted);
                std::thread::spawn(move || serve(&stream, connection, &*answer, &noted));
            }
        });
        Self { address, seen }
    }

    /// Starts one that answers everything with `body`.
    fn of(body: Vec<u8>) -> Self {
        Self::new(move |seen| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let is_head = seen.head.starts_with("HEAD ");
            if is_head { head.into_bytes() } else { [head.as_bytes(), &body].concat() }
        })
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

/// Returns the address of a server that answers everything without a body.
pub(crate) fn empty_server() -> SocketAddr {
    Server::new(|_| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()).address
}

fn serve(
    mut stream: &TcpStream,
    connection: usize,
    answer: &dyn Fn(&Seen) -> Vec<u8>,
    noted: &Mutex<Vec<Seen>>,
) -> Option<()> {
    loop {
        let head = read_head(&mut stream)?;
        let mut body = Vec::new();
        let length = field(&head, "content-length").map(|length| length.parse().unwrap());
        if head.to_ascii_lowercase().contains("\r\nexpect: 100-continue\r\n") {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
        }
        if let Some(length) = length {
            body = vec![0; length];
            stream.read_exact(&mut body).ok()?;
        } else if field(&head, "transfer-encoding").is_some() {
            read_chunks(&mut stream, &mut body)?;
        }
        let seen = Seen { connection, head, body };
        noted.lock().unwrap().push(seen.clone());
        stream.write_all(&answer(&seen)).ok()?;
    }
}

fn field(head: &str, name: &str) -> Option<String> {
    let named = |line: &&str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
    head.lines().find(named).map(|line| line.split_once(':').unwrap().1.trim().to_owned())
}

fn read_head(stream: &mut impl Read) -> Option<String> {
    read_until(stream, b"\r\n\r\n")
}

fn read_until(stream: &mut impl Read, end: &[u8]) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        bytes.push(byte[0]);
    }
    Some(String::from_utf8(bytes).unwrap())
}

fn read_chunks(stream: &mut impl Read, body: &mut Vec<u8>) -> Option<()> {
    loop {
        let line = read_until(stream, b"\r\n")?;
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let begin = body.len();
        body.resize(begin + size, 0);
        stream.read_exact(&mut body[begin..]).ok()?;
        assert_eq!(read_until(stream, b"\r\n")?, "\r\n");
        if size == 0 {
            return Some(());
        }
    }
}

/// Reads a response with a length, or without body.
fn response(stream: &mut TcpStream) -> (String, String) {
    let head = read_head(stream).expect("a response");
    let mut body = vec![0; field(&head, "content-length").map_or(0, |text| text.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

/// Reads everything until the end.
fn rest(stream: &mut TcpStream) -> Result<String, Error> {
    let mut text = String::new();
    stream.read_to_string(&mut text).map(|_| text)
}

fn config(relays: &[Running]) -> GatewayConfig {
    let mut config = gateway_config(route_over(relays));
    config.connect = vec![loopback()];
    config
}

/// A gateway over two relays.
struct Proxy {
    gateway: Running,
    _relays: Vec<Running>,
}

impl Proxy {
    fn new() -> Self {
        let relays: Vec<_> = (0..2).map(|_| Running::relay(&relay_config())).collect();
        Self { gateway: Running::gateway(&config(&relays)), _relays: relays }
    }

    fn connect(&self) -> TcpStream {
        connect(self.gateway.address())
    }

    fn curl(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut curl = Command::new("curl")
            .env_clear()
            .env("http_proxy", format!("http://{}", self.gateway.address()))
            .args(["--silent", "--show-error", "--fail", "--noproxy", "", "--max-time", "60"])
            .args(arguments)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("curl is there: `make setup` installs it");
        let mut stdin = curl.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = curl.wait_with_output().unwrap();
        let _written = writer.join().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        output.stdout
    }
}

#[test]
fn curl_fetches_from_two_hosts() {
    let body = content(700_000);
    let (one, other) = (Server::of(body.clone()), Server::of(body.clone()));
    let proxy = Proxy::new();
    let urls = [one.address, other.address, one.address].map(|at| format!("http://{at}/a?b"));
    let mut arguments = vec!["--write-out", "%{stderr}%{num_connects} "];
    let files: Vec<_> = (0..3).map(|_| tempfile()).collect();
    for (url, file) in urls.iter().zip(&files) {
        arguments.extend(["--output", file.to_str().unwrap(), url]);
    }
    proxy.curl(&arguments, b"");
    for file in &files {
        assert_eq!(hash(&std::fs::read(file).unwrap()), hash(&body));
        std::fs::remove_file(file).unwrap();
    }
    assert_eq!(proxy.gateway.handle.snapshot().accepted, 1, "one connection to the proxy");
    assert_eq!((one.seen().len(), other.seen().len()), (2, 1));
    let head = &one.seen()[0].head;
    assert!(head.starts_with("GET /a?b HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nHost: {}\r\n", one.address)), "{head}");
    assert!(!head.to_ascii_lowercase().contains("proxy"), "{head}");
}

/// Returns a unique path.
fn tempfile() -> std::path::PathBuf {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("tradewind-{}-{number}", std::process::id()))
}

#[test]
fn curl_with_http_proxy_sends_bodies_of_both_framings() {
    let server = Server::new(|seen| {
        let length = seen.body.len().to_string();
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{length}\r\n0\r\n\r\n",
            length.len()
        )
        .into_bytes()
    });
    let (proxy, body) = (Proxy::new(), content(2_500_000));
    let url = format!("http://{}/", server.address);
    // With so long a body the client waits for `100 Continue`.
    let answer = proxy.curl(&["--data-binary", "@-", &url], &body);
    assert_eq!(answer, b"2500000");
    let chunked = ["--data-binary", "@-", "--header", "Transfer-Encoding: chunked", &url];
    assert_eq!(proxy.curl(&chunked, &body), b"2500000");
    for seen in server.seen() {
        assert_eq!(hash(&seen.body), hash(&body));
        assert!(seen.head.contains("\r\nExpect: 100-continue\r\n"), "{}", seen.head);
    }
    let chunked = &server.seen()[1].head;
    assert!(chunked.contains("\r\nTransfer-Encoding: chunked\r\n"), "{chunked}");
}

#[test]
fn responses_without_a_body_end_where_they_should() {
    let server = Server::new(|seen| {
        let status = match seen.head.split(' ').nth(1).unwrap() {
            "/304" => "304 Not Modified",
            "/204" => "204 No Content",
            _ => "200 OK",
        };
        format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\n").into_bytes()
    });
    let (proxy, at) = (Proxy::new(), server.address);
    let mut stream = proxy.connect();
    for request in ["HEAD http://{}/", "GET http://{}/204", "GET http://{}/304"] {
        let request = request.replace("{}", &at.to_string());
        write!(stream, "{request} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let head = read_head(&mut stream).unwrap();
        assert_eq!(head.contains("Content-Length: 5"), !request.ends_with("204"), "{head}");
        assert!(!head.contains("close"), "{head}");
    }
    assert_eq!(server.seen().iter().map(|seen| seen.connection).max(), Some(0));
    let head = proxy.curl(&["--head", &format!("http://{at}/")], b"");
    assert_eq!(head, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
}

/// Request smuggling: a server reads another request than its proxy did.
#[test]
fn smuggled_requests_reach_no_server() {
    let server = Server::of(b"hello".to_vec());
    let proxy = Proxy::new();
    let to = server.address;
    let post = format!("POST http://{to}/ HTTP/1.1\r\nHost: {to}\r\n");
    let hidden = format!("GET http://{to}/hidden HTTP/1.1\r\nHost: {to}\r\n\r\n");
    for (fields, body, status) in [
        ("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\nG", "400"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", "0\r\n\r\nG", "400"),
        ("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n", "501"),
        ("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n", "501"),
        ("Transfer-Encoding : chunked\r\n", "0\r\n\r\n", "400"),
        ("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n", "400"),
        ("X: y\r\n\tfolded\r\n", "", "400"),
        ("X: y\nContent-Length: 3\r\n", "abc", "400"),
        ("Content-Length: 3\r\nContent-Length: 30\r\n", "abc", "400"),
        ("Content-Length: -3\r\n", "", "400"),
        ("Content-Length: 3, 3\r\n", "abc", "400"),
        ("Transfer-Encoding: chunked\r\n", "3x\r\nabc\r\n0\r\n\r\n", "400"),
        ("Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\nabc", "400"),
        ("Transfer-Encoding: chunked\r\n", "3\r\nabcd\r\n0\r\n\r\n", "400"),
        ("Transfer-Encoding: chunked\r\n", "3\nabc\n0\n\n", "400"),
        ("Transfer-Encoding: chunked\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\n", "400"),
    ] {
        let mut stream = proxy.connect();
        // The gateway may have answered and gone before all of it is written.
        let _gone = write!(stream, "{post}{fields}\r\n{body}{hidden}");
        let head = read_head(&mut stream).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{fields:?} {body:?}: {head}");
    }
    assert!(server.seen().is_empty(), "reached the server: {:?}", server.seen());
    // Two requests at once are no attack.
    let mut stream = proxy.connect();
    write!(stream, "{post}Content-Length: 3\r\n\r\nabc{hidden}").unwrap();
    assert_eq!(response(&mut stream).1, "hello");
    assert_eq!(response(&mut stream).1, "hello");
    let seen: Vec<_> = server.seen().into_iter().map(|seen| seen.body).collect();
    assert_eq!(seen, [b"abc".to_vec(), Vec::new()]);
}

#[test]
fn bad_heads_get_error_responses() {
    let server = Server::of(b"hello".to_vec());
    let relays = vec![Running::relay(&relay_config())];
    let mut config = config(&relays);
    config.timeouts.header = Duration::from_millis(300);
    let gateway = Running::gateway(&config);
    let answer_to = |bytes: &[u8]| {
        let mut stream = connect(gateway.address());
        let _gone = stream.write_all(bytes);
        rest(&mut stream).unwrap_or_default()
    };
    let to = server.address;
    let slow = answer_to(b"CONNECT a.example:443 HTTP/1.1\r\nHost:");
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
    assert_eq!(answer_to(b""), "", "who says nothing hears nothing");
    let bare = answer_to(format!("CONNECT {to} HTTP/1.1\nHost: {to}\n\n").as_bytes());
    assert!(bare.starts_with("HTTP/1.1 400 "), "{bare}");
    let long = format!("CONNECT {to} HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(70_000));
    let long = answer_to(long.as_bytes());
    assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
    let trace = answer_to(format!("TRACE http://{to}/ HTTP/1.1\r\n\r\n").as_bytes());
    assert!(trace.starts_with("HTTP/1.1 405 ") && trace.contains("\r\nAllow: CONNECT"), "{trace}");
    let own = answer_to(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert!(own.starts_with("HTTP/1.1 400 ") && own.contains("http://"), "{own}");
}

#[test]
fn large_head_after_empty_lines_is_accepted() {
    let (to, served) = destination(|mut stream| rest(&mut stream).unwrap());
    let proxy = Proxy::new();
    let mut stream = proxy.connect();
    let ticket = "Y".repeat(12_000);
    write!(stream, "\r\nCONNECT {to} HTTP/1.1\r\nAuthorization: Negotiate {ticket}\r\n\r\nhi")
        .unwrap();
    assert!(read_head(&mut stream).unwrap().starts_with("HTTP/1.1 200 "));
    stream.shutdown(Half::Write).unwrap();
    assert_eq!(served.join().unwrap(), "hi");
}

#[test]
fn early_response_is_forwarded() {
    let (to, served) = destination(|mut stream| {
        let head = read_head(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig").unwrap();
        let _rest = std::io::copy(&mut stream, &mut std::io::sink());
        head
    });
    let proxy = Proxy::new();
    let mut stream = proxy.connect();
    write!(stream, "PUT http://{to}/ HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n").unwrap();
    let (head, body) = response(&mut stream);
    assert!(head.starts_with("HTTP/1.1 413 ") && head.contains("Connection: close"), "{head}");
    assert_eq!(body, "big");
    assert_eq!(rest(&mut stream).unwrap(), "");
    drop(stream);
    assert!(served.join().unwrap().starts_with("PUT / HTTP/1.1\r\n"));
}

#[test]
fn expect_continue_is_forwarded() {
    let refuses = destination(|mut stream| {
        let head = read_head(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n").unwrap();
        // No byte of the body arrives.
        (head, stream.read(&mut [0]).unwrap_or(0))
    });
    let proxy = Proxy::new();
    let expect = |to: SocketAddr| {
        let mut stream = proxy.connect();
        let fields = "Content-Length: 4\r\nExpect: 100-continue\r\n\r\n";
        write!(stream, "POST http://{to}/ HTTP/1.1\r\n{fields}").unwrap();
        stream
    };
    let mut stream = expect(refuses.0);
    assert!(response(&mut stream).0.starts_with("HTTP/1.1 417 "));
    drop(stream);
    assert_eq!(refuses.1.join().unwrap().1, 0);
    let meets = Server::of(b"hello".to_vec());
    let mut stream = expect(meets.address);
    assert!(read_head(&mut stream).unwrap().starts_with("HTTP/1.1 100 "));
    stream.write_all(b"body").unwrap();
    assert_eq!(response(&mut stream).1, "hello");
    assert_eq!(meets.seen()[0].body, b"body");
}

#[test]
fn http_upgrade_is_not_forwarded() {
    let server = Server::of(b"hello".to_vec());
    let proxy = Proxy::new();
    let mut stream = proxy.connect();
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    write!(stream, "GET http://{}/ HTTP/1.1\r\n{fields}", server.address).unwrap();
    assert_eq!(response(&mut stream).1, "hello");
    assert!(!server.seen()[0].head.to_ascii_lowercase().contains("upgrade"));
}

#[test]
fn truncated_response_is_a_reset() {
    for (head, is_whole) in [("Content-Length: 10\r\n", false), ("", true)] {
        let (to, _served) = destination(move |mut stream| {
            read_head(&mut stream).unwrap();
            write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\nhello").unwrap();
        });
        let proxy = Proxy::new();
        let mut stream = proxy.connect();
        write!(stream, "GET http://{to}/ HTTP/1.0\r\n\r\n").unwrap();
        match rest(&mut stream) {
            Ok(text) => assert!(is_whole && text.ends_with("\r\n\r\nhello"), "{text}"),
            Err(error) => assert!(!is_whole && error.kind() == ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn stale_server_connection_is_replaced() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            patient(&stream);
            read_head(&mut stream).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
        }
    });
    let proxy = Proxy::new();
    let mut stream = proxy.connect();
    for _ in 0..2 {
        write!(stream, "GET http://{to}/ HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(response(&mut stream).1, "hello");
    }
    server.join().unwrap();
}

#[test]
fn unreachable_server_gives_one_line() {
    let nobody = closed_port();
    let proxy = Proxy::new();
    let mut stream = proxy.connect();
    write!(stream, "GET http://{}/ HTTP/1.1\r\n\r\n", nobody.address).unwrap();
    let (head, body) = response(&mut stream);
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert!(body.contains("connection refused") && body.lines().count() == 1, "{body}");
    wait_for("the outcome", || proxy.gateway.handle.snapshot().outcome("connection_refused") == 1);
}

#[test]
fn tunnel_may_follow_plain_requests() {
    let server = Server::of(b"hello".to_vec());
    let proxy = Proxy::new();
    let (mut stream, to) = (proxy.connect(), server.address);
    write!(stream, "GET http://{to}/ HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).1, "hello");
    write!(stream, "CONNECT {to} HTTP/1.1\r\n\r\n").unwrap();
    assert!(read_head(&mut stream).unwrap().starts_with("HTTP/1.1 200 "));
    write!(stream, "GET /tunnel HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(response(&mut stream).1, "hello");
    assert!(server.seen()[1].head.starts_with("GET /tunnel "));
}

#[test]
fn shutdown_ignores_idle_client_connections() {
    let server = Server::of(b"hello".to_vec());
    let proxy = Proxy::new();
    let mut stream = proxy.connect();
    write!(stream, "GET http://{}/ HTTP/1.1\r\n\r\n", server.address).unwrap();
    assert_eq!(response(&mut stream).1, "hello");
    proxy.gateway.shutdown.drain();
    assert_eq!(rest(&mut stream).unwrap(), "", "an end in order");
}
