//! Spans of sessions reach the collector that the environment names.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::{Files, command};

/// Collects batches of spans; returns its URL, and the bodies of requests as they come.
fn collector() -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let (sender, bodies) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut head, mut length) = (String::new(), 0);
            while reader.read_line(&mut head).unwrap() > 2 {
                let line = head.to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                head.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            reader.get_mut().write_all(answer).unwrap();
            if sender.send(body).is_err() {
                return;
            }
        }
    });
    (url, bodies)
}

#[test]
fn spans_arrive_where_the_environment_says() {
    let (url, bodies) = collector();
    let files = Files::new("traces");
    files.prints("keygen identity gateway.key");
    let destination = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = destination.local_addr().unwrap();
    files.write(
        "gateway.toml",
        format!(
            "identity_file = 'gateway.key'\ndirect = true\nallow_loopback = true\n\
             [[forward]]\nlisten = '127.0.0.1:0'\nto = '{to}'\n\
             [routes]\ndefault = 'direct'\n"
        ),
    );
    let mut gateway = command("gateway --config gateway.toml", &files.0);
    gateway.env("TRADEWIND_TRACES", url).env("TRADEWIND_TRACES_SAMPLE", "1");
    let mut gateway = gateway.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(gateway.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let listen = ready["listen"][0].as_str().unwrap();
    let mut session = TcpStream::connect(listen).unwrap();
    let (mut far, _) = destination.accept().unwrap();
    session.write_all(b"x").unwrap();
    far.read_exact(&mut [0]).unwrap();
    drop((session, far));
    let body = bodies.recv_timeout(Duration::from_secs(60));
    let _ended_already = gateway.kill();
    gateway.wait().unwrap();
    let body = String::from_utf8_lossy(&body.unwrap()).into_owned();
    assert!(body.contains("gateway") && body.contains("service.name"), "{body}");
}
