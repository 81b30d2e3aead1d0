//! Content over chains of relays, in both directions, by copy and by splice.

use std::io::{Read, Write};

use crate::support::{
    Chain, Running, content, destination, destination_at, digest, hash, is_plain, relay_config,
    send,
};

const LENGTH: usize = 5_000_000;

/// Sends content up a chain and the same length of other content down, at the same time.
fn carry_both_ways(relays: usize) {
    let up = content(LENGTH);
    let down: Vec<u8> = up.iter().map(|byte| !byte).collect();
    let (up_hash, down_hash) = (hash(&up), hash(&down));
    let (to, served) = destination(move |mut stream| {
        let mut sending = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || send(&mut sending, &down));
        let received = digest(&mut stream).unwrap();
        sender.join().unwrap();
        received
    });
    let chain = Chain::new(relays, to);
    let mut stream = chain.connect();
    let mut sending = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || send(&mut sending, &up));
    assert_eq!(digest(&mut stream).unwrap(), (LENGTH, down_hash));
    sender.join().unwrap();
    assert_eq!(served.join().unwrap(), (LENGTH, up_hash));
    for relay in chain.relays.iter().chain([&chain.gateway]) {
        crate::support::wait_for("the session's end", || relay.handle.snapshot().open == 0);
        let counted = relay.handle.snapshot();
        assert_eq!((counted.bytes_up, counted.bytes_down), (LENGTH as u64, LENGTH as u64));
        assert_eq!(counted.outcome("ended"), 1, "{counted:?}");
        if relays == 0 || is_plain() {
            assert!(counted.bytes_spliced > LENGTH as u64, "no splice: {counted:?}")
        } else {
            assert_eq!(counted.bytes_spliced, 0, "the kernel cannot see into TLS")
        }
    }
}

#[test]
fn content_crosses_a_gateway_without_relays() {
    carry_both_ways(0);
}

#[test]
fn content_crosses_one_relay() {
    carry_both_ways(1);
}

#[test]
fn content_crosses_two_relays() {
    carry_both_ways(2);
}

#[test]
fn content_crosses_four_relays() {
    carry_both_ways(4);
}

#[test]
fn content_crosses_eight_relays_and_workers_on_two_threads() {
    let bytes = content(300_000);
    let expected = (bytes.len(), hash(&bytes));
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let relays: Vec<_> = (0..8)
        .map(|_| {
            let mut config = relay_config();
            config.workers = Some(2);
            Running::relay(&config)
        })
        .collect();
    let chain = Chain::of(relays, to);
    let mut stream = chain.connect();
    send(&mut stream, &bytes);
    assert_eq!(served.join().unwrap(), expected);
}

#[test]
fn small_messages_cross_without_splice() {
    let to = crate::support::echo();
    let chain = Chain::new(2, to);
    let mut stream = chain.connect();
    for round in 0..200u8 {
        stream.write_all(&[round; 100]).unwrap();
        let mut answer = [0; 100];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [round; 100]);
    }
    assert_eq!(chain.relays[0].handle.snapshot().bytes_spliced, 0);
}

#[test]
fn server_first_protocol_works() {
    let (to, _served) = destination(|mut stream| {
        stream.write_all(b"220 ready\r\n").unwrap();
        stream.read(&mut [0]).unwrap()
    });
    let chain = Chain::new(2, to);
    let mut greeting = [0; 11];
    chain.connect().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"220 ready\r\n");
}

#[test]
fn ipv6_end_to_end() {
    let v6 = "[::1]:0".parse().unwrap();
    let bytes = content(400_000);
    let expected = (bytes.len(), hash(&bytes));
    let (to, served) = destination_at(v6, |mut stream| digest(&mut stream).unwrap());
    let mut config = relay_config();
    config.listen = vec![v6];
    let chain = Chain::of(vec![Running::relay(&config), Running::relay(&relay_config())], to);
    send(&mut chain.connect(), &bytes);
    assert_eq!(served.join().unwrap(), expected);
}
