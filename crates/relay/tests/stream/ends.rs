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
fn the_source_ends_first_and_still_gets_its_whole_answer() {
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
fn the_destination_ends_first_and_still_gets_the_whole_content() {
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
fn both_sides_end_at_once_without_a_byte() {
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
fn a_source_that_ends_and_closes_before_the_path_is_open_is_delivered_in_full() {
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    send(&mut stream, &content(LENGTH));
    drop(stream);
    assert_eq!(served.join().unwrap(), (LENGTH, hash(&content(LENGTH))));
    closed(&chain);
}

#[test]
fn a_reset_by_the_source_reaches_the_destination_as_a_reset() {
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
fn a_reset_by_the_destination_reaches_the_source_as_a_reset() {
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
fn a_reset_by_a_source_that_has_ended_reaches_the_silent_destination() {
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
fn a_reset_by_a_destination_that_has_ended_reaches_the_silent_source() {
    let (go_on, told) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        send(&mut stream, b"all of it");
        told.recv().unwrap();
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
fn a_reset_in_the_midst_of_bulk_data_never_looks_like_its_end() {
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
fn a_reset_by_the_source_is_seen_while_the_destination_does_not_read() {
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
fn a_reset_by_a_destination_that_never_read_frees_the_source() {
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

/// Writes until the path takes no more, and returns the bytes taken.
fn fill(stream: &mut TcpStream) -> usize {
    let block = content(1 << 16);
    stream.set_nonblocking(true).unwrap();
    let (mut taken, mut idle_rounds) = (0, 0);
    while idle_rounds < 20 {
        match stream.write(&block[taken % block.len()..]) {
            Ok(count) => {
                taken += count;
                idle_rounds = 0;
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                idle_rounds += 1;
                std::thread::sleep(Duration::from_millis(25));
            }
        }
    }
    taken
}

#[test]
fn a_destination_that_does_not_read_stops_the_source_and_then_gets_everything() {
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
    let taken = fill(&mut stream);
    // Four kernel buffers on each of three processes, one pipe each, and the ends' own buffers.
    assert!(taken < 32 << 20, "{taken} bytes vanished into a path that nobody reads");
    release.send(()).unwrap();
    stream.set_nonblocking(false).unwrap();
    patient(&stream);
    stream.shutdown(Half::Write).unwrap();
    let block = content(1 << 16);
    let sent: Vec<u8> = block.iter().cycle().take(taken).copied().collect();
    assert_eq!(served.join().unwrap(), (taken, hash(&sent)));
}

const BUFFER: tradewind_units::Bytes = tradewind_units::Bytes::new(256 * 1024);

fn bounded(mut config: tradewind_config::RelayConfig) -> tradewind_config::RelayConfig {
    config.leg.accept.receive_buffer = Some(BUFFER);
    config.leg.dial.send_buffer = Some(BUFFER);
    config
}

#[test]
fn a_source_that_dribbles_and_a_destination_that_sips_lose_nothing() {
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
fn a_session_in_which_nothing_moves_is_reset_after_its_limit() {
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
fn a_half_closed_session_in_which_nothing_moves_is_reset_after_its_own_limit() {
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
