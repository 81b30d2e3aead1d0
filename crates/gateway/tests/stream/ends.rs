//! Ends of sessions: half-closed in each order, reset from each side, and under back-pressure.

use std::io::{self, Read, Write};
use std::net::{Shutdown as Half, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::{
    Chain, Running, connect, content, destination, digest, forward, gateway_config, hash, patient,
    relay_config, reset, route_over, send, wait_for,
};

const LENGTH: usize = 2_000_000;

/// Waits until no session is open on the whole chain.
fn closed(chain: &Chain) {
    for one in chain.relays.iter().chain([&chain.gateway]) {
        wait_for("the session's end", || one.handle.snapshot().open == 0);
    }
}

fn outcome(chain: &Chain, name: &str) -> Vec<u64> {
    let all = [&chain.gateway].into_iter().chain(&chain.relays);
    all.map(|one| one.handle.snapshot().outcome(name)).collect()
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

#[test]
fn half_close_by_the_source() {
    let (to, served) = destination(|mut stream| {
        let received = digest(&mut stream).unwrap();
        send(&mut stream, &content(LENGTH));
        received
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    send(&mut stream, b"the request");
    assert_eq!(digest(&mut stream).unwrap(), (LENGTH, hash(&content(LENGTH))));
    assert_eq!(served.join().unwrap(), (11, hash(b"the request")));
    closed(&chain);
    assert_eq!(outcome(&chain, "ended"), [1, 1, 1]);
}

#[test]
fn half_close_by_the_destination() {
    let (to, served) = destination(|mut stream| {
        send(&mut stream, b"go on");
        digest(&mut stream).unwrap()
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    assert_eq!(digest(&mut stream).unwrap(), (5, hash(b"go on")));
    send(&mut stream, &content(LENGTH));
    assert_eq!(served.join().unwrap(), (LENGTH, hash(&content(LENGTH))));
    closed(&chain);
    assert_eq!(outcome(&chain, "ended"), [1, 1, 1]);
}

#[test]
fn both_ends_close_without_data() {
    let (to, served) = destination(|mut stream| {
        stream.shutdown(Half::Write).unwrap();
        digest(&mut stream).unwrap().0
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    stream.shutdown(Half::Write).unwrap();
    assert_eq!(digest(&mut stream).unwrap().0, 0);
    assert_eq!(served.join().unwrap(), 0);
    closed(&chain);
    assert_eq!(outcome(&chain, "ended"), [1, 1, 1]);
}

#[test]
fn data_sent_before_the_path_opens_is_delivered() {
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    send(&mut stream, &content(LENGTH));
    drop(stream);
    assert_eq!(served.join().unwrap(), (LENGTH, hash(&content(LENGTH))));
    closed(&chain);
}

#[test]
fn source_reset_is_forwarded() {
    let (ready, is_ready) = mpsc::channel();
    let (to, served) = destination(move |mut stream| {
        stream.read_exact(&mut [0; 5]).unwrap();
        ready.send(()).unwrap();
        digest(&mut stream)
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    stream.write_all(b"hello").unwrap();
    is_ready.recv().unwrap();
    reset(stream);
    assert!(is_reset(&served.join().unwrap().unwrap_err()));
    closed(&chain);
    assert_eq!(outcome(&chain, "broken"), [1, 1, 1]);
}

#[test]
fn destination_reset_is_forwarded() {
    let (to, served) = destination(|mut stream| {
        stream.read_exact(&mut [0; 5]).unwrap();
        reset(stream);
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    stream.write_all(b"hello").unwrap();
    assert!(is_reset(&digest(&mut stream).unwrap_err()));
    served.join().unwrap();
    closed(&chain);
    assert_eq!(outcome(&chain, "broken"), [1, 1, 1]);
}

#[test]
fn source_reset_after_half_close_is_forwarded() {
    let (ready, is_ready) = mpsc::channel();
    let (to, served) = destination(move |mut stream| {
        let received = digest(&mut stream).unwrap();
        ready.send(()).unwrap();
        wait_for("the reset", || stream.take_error().unwrap().is_some());
        received
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    send(&mut stream, b"all of it");
    is_ready.recv().unwrap();
    reset(stream);
    assert_eq!(served.join().unwrap(), (9, hash(b"all of it")));
    closed(&chain);
    assert_eq!(outcome(&chain, "broken"), [1, 1, 1]);
}

#[test]
fn destination_reset_after_half_close_is_forwarded() {
    let (go_on, notified) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        send(&mut stream, b"all of it");
        notified.recv().unwrap();
        reset(stream);
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    assert_eq!(digest(&mut stream).unwrap(), (9, hash(b"all of it")));
    go_on.send(()).unwrap();
    served.join().unwrap();
    wait_for("the reset", || stream.take_error().unwrap().is_some());
    closed(&chain);
    assert_eq!(outcome(&chain, "broken"), [1, 1, 1]);
}

#[test]
fn reset_during_bulk_is_not_an_end() {
    let (begin, begun) = mpsc::channel();
    let (to, served) = destination(move |mut stream| {
        begin.send(()).unwrap();
        digest(&mut stream)
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    stream.write_all(&content(LENGTH)).unwrap();
    // A reset before the destination is dialled cancels the dial.
    begun.recv().unwrap();
    reset(stream);
    assert!(is_reset(&served.join().unwrap().unwrap_err()));
    closed(&chain);
}

#[test]
fn source_reset_passes_a_stalled_reader() {
    let (release, released) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        released.recv().unwrap();
        digest(&mut stream)
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    fill(&mut stream);
    reset(stream);
    closed(&chain);
    release.send(()).unwrap();
    assert!(is_reset(&served.join().unwrap().unwrap_err()));
}

#[test]
fn reset_by_stalled_destination_is_forwarded() {
    let (release, released) = mpsc::channel::<()>();
    let (to, served) = destination(move |stream| {
        released.recv().unwrap();
        reset(stream);
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    fill(&mut stream);
    release.send(()).unwrap();
    stream.set_nonblocking(false).unwrap();
    let error = loop {
        if let Err(error) = stream.write_all(&[0; 65_536]) {
            break error;
        }
    };
    assert!(is_reset(&error), "{error}");
    served.join().unwrap();
    closed(&chain);
}

/// Writes until the path takes no more, and returns the bytes written.
fn fill(stream: &mut TcpStream) -> usize {
    let block = content(1 << 16);
    stream.set_nonblocking(true).unwrap();
    let (mut written, mut idle_rounds) = (0, 0);
    while idle_rounds < 20 {
        match stream.write(&block[written % block.len()..]) {
            Ok(count) => {
                written += count;
                idle_rounds = 0;
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                idle_rounds += 1;
                std::thread::sleep(Duration::from_millis(25));
            }
        }
    }
    written
}

#[test]
fn backpressure_loses_nothing() {
    let (release, released) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        released.recv().unwrap();
        digest(&mut stream).unwrap()
    });
    let relays: Vec<_> = (0..2).map(|_| Running::relay(&bounded(relay_config()))).collect();
    let mut config = gateway_config(route_over(&relays));
    config.forward = vec![forward(to)];
    config.leg.accept.receive_buffer = Some(BUFFER);
    config.leg.dial.send_buffer = Some(BUFFER);
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    let written = fill(&mut stream);
    // Four kernel buffers on each of three processes, one pipe each, and the ends' own buffers.
    assert!(written < 32 << 20, "{written} bytes vanished into a path that nobody reads");
    release.send(()).unwrap();
    stream.set_nonblocking(false).unwrap();
    patient(&stream);
    stream.shutdown(Half::Write).unwrap();
    let block = content(1 << 16);
    let sent: Vec<u8> = block.iter().cycle().take(written).copied().collect();
    assert_eq!(served.join().unwrap(), (written, hash(&sent)));
}

const BUFFER: tradewind_units::Bytes = tradewind_units::Bytes::new(256 * 1024);

fn bounded(mut config: tradewind_config::RelayConfig) -> tradewind_config::RelayConfig {
    config.leg.accept.receive_buffer = Some(BUFFER);
    config.leg.dial.send_buffer = Some(BUFFER);
    config
}

#[test]
fn small_writes_and_reads_lose_nothing() {
    let bytes = content(3000);
    let expected = (bytes.len(), hash(&bytes));
    let (to, served) = destination(|stream| {
        let mut one_by_one = io::BufReader::with_capacity(1, stream);
        digest(&mut one_by_one).unwrap()
    });
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    stream.set_nodelay(true).unwrap();
    for byte in &bytes {
        stream.write_all(&[*byte]).unwrap();
    }
    stream.shutdown(Half::Write).unwrap();
    assert_eq!(served.join().unwrap(), expected);
}

#[test]
fn idle_session_is_reset() {
    let (to, served) = destination(|mut stream| digest(&mut stream));
    let mut config = relay_config();
    config.timeouts.idle = Some(Duration::from_millis(200));
    let chain = Chain::of(vec![Running::relay(&config)], to);
    let mut stream = chain.connect();
    assert!(is_reset(&digest(&mut stream).unwrap_err()));
    assert!(is_reset(&served.join().unwrap().unwrap_err()));
    wait_for("the count", || chain.relays[0].handle.snapshot().outcome("idle") == 1);
}

#[test]
fn idle_half_closed_session_is_reset() {
    let (release, released) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        let received = digest(&mut stream).unwrap();
        // The other direction stays open and idle.
        released.recv().unwrap();
        received
    });
    let mut config = relay_config();
    config.timeouts.half_closed = Some(Duration::from_millis(200));
    let chain = Chain::of(vec![Running::relay(&config)], to);
    let mut stream = chain.connect();
    send(&mut stream, b"all of it");
    assert!(is_reset(&digest(&mut stream).unwrap_err()));
    wait_for("the count", || chain.relays[0].handle.snapshot().outcome("idle") == 1);
    release.send(()).unwrap();
    assert_eq!(served.join().unwrap(), (9, hash(b"all of it")));
}
