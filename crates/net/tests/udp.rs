//! Batches of datagrams over loopback: nothing is lost, mixed up or truncated.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_net::epoll::Epoll;
use tradewind_net::iproute::{self, Tool};
use tradewind_net::udp::{ReceiveBatch, SendBatch, SendCounts, Target, UdpOptions, UdpPort};
use tradewind_units::Duration;

const LOCAL: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn port(address: &str, options: UdpOptions) -> UdpPort {
    UdpPort::bind(address.parse().unwrap(), &options).unwrap()
}

/// Fetches datagrams until `count` have arrived, or none arrives for five seconds.
fn fetch(port: &UdpPort, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let (mut batch, mut epoll) = (ReceiveBatch::new(8), Epoll::new().unwrap());
    epoll.watch(port, 0).unwrap();
    let mut fetched = Vec::new();
    while fetched.len() < count {
        if epoll.wait(Some(Duration::from_secs(5))).unwrap().count() == 0 {
            break;
        }
        batch.receive(port).unwrap();
        batch.for_each(|arrival, datagram| fetched.push((arrival.from, datagram.to_vec())));
    }
    fetched
}

fn of_length(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (number * 31 + at) as u8).collect()
}

#[test]
fn datagrams_arrive_in_order_at_each_next_hop() {
    for local in LOCAL {
        for (gso, gro) in [(true, true), (true, false), (false, true), (false, false)] {
            let options = UdpOptions { gso, gro, ..UdpOptions::default() };
            let sender = port(local, options);
            let receivers = [port(local, options), port(local, options)];
            let lengths = [1200, 1200, 1200, 80, 1200, 1200, 1, 1400, 1400, 0, 7, 9];
            let mut datagrams = Vec::new();
            for number in 0..240 {
                let to = receivers[number % 3 % 2].address();
                datagrams.push((to, of_length(number, lengths[number / 3 % lengths.len()])));
            }
            let mut batch = SendBatch::new(64);
            let mut sent = 0;
            for (to, bytes) in &datagrams {
                if batch.len() == 40 {
                    sent += batch.flush(&sender).sent;
                }
                batch.push(*to, bytes.len()).unwrap().copy_from_slice(bytes);
            }
            sent += batch.flush(&sender).sent;
            assert_eq!(sent, 240, "{local} gso {gso} gro {gro}");
            for receiver in &receivers {
                let here = |(to, _): &&(SocketAddr, Vec<u8>)| *to == receiver.address();
                let expected: Vec<_> = datagrams
                    .iter()
                    .filter(here)
                    .map(|(_, bytes)| (sender.address(), bytes.clone()))
                    .collect();
                assert_eq!(fetch(receiver, expected.len()), expected, "{local} {gso} {gro}");
            }
        }
    }
}

/// Trains are sent on in the buffers that they arrived in, between copied datagrams, in their
/// order.
#[test]
fn trains_are_received_whole_and_in_order() {
    for local in LOCAL {
        for (gso, gro) in [(true, true), (false, true), (true, false)] {
            let options = UdpOptions { gso, gro, ..UdpOptions::default() };
            let [sender, middle, receiver] = [(); 3].map(|()| port(local, options));
            let (mut out, mut expected) = (SendBatch::new(64), Vec::new());
            for number in 0..200 {
                let datagram = of_length(number, if number % 40 == 39 { 700 } else { 1000 });
                out.push(middle.address(), datagram.len()).unwrap().copy_from_slice(&datagram);
                expected.push((middle.address(), [&[1], &datagram[1..]].concat()));
                expected.push((middle.address(), vec![2; 3]));
            }
            assert_eq!(out.flush(&sender).sent, 200);
            let (mut batch, mut epoll) = (ReceiveBatch::new(4), Epoll::new().unwrap());
            epoll.watch(&middle, 0).unwrap();
            let (mut came, mut sent, mut order) = (0, 0, Vec::new());
            while came < 200 && epoll.wait(Some(Duration::from_secs(5))).unwrap().count() > 0 {
                batch.receive(&middle).unwrap();
                batch.for_each_train(|_, train| {
                    let (count, segment) = (train.count(), train.segment());
                    train.bytes().chunks_mut(segment).for_each(|datagram| datagram[0] = 1);
                    assert!(out.take(receiver.address(), train));
                    assert!(train.bytes().is_empty() && !out.take(receiver.address(), train));
                    for _ in 0..count {
                        out.push(receiver.address(), 3).unwrap().fill(2);
                    }
                    came += count;
                    order.push(count);
                });
                sent += out.flush(&middle).sent;
            }
            assert_eq!((came, sent), (200, 400), "{local} gso {gso} gro {gro}");
            // Each train, then as many of the others.
            let (mut in_order, mut at) = (Vec::new(), 0);
            for count in order {
                let these = &expected[2 * at..2 * (at + count)];
                in_order.extend(these.iter().step_by(2).cloned());
                in_order.extend(these.iter().skip(1).step_by(2).cloned());
                at += count;
            }
            assert_eq!(fetch(&receiver, 400), in_order, "{local} gso {gso} gro {gro}");
        }
    }
}

/// A datagram that is not sent after all leaves no trace, whether it would have begun, continued or
/// ended a train.
#[test]
fn unwritten_datagrams_are_not_sent() {
    let [sender, receiver] = [(); 2].map(|()| port(LOCAL[0], UdpOptions::default()));
    let (to, mut batch, mut expected) = (receiver.address(), SendBatch::new(4), Vec::new());
    for (number, (length, is_sent)) in
        [(9, false), (9, true), (9, false), (4, false), (9, true), (4, true), (9, false), (9, true)]
            .into_iter()
            .enumerate()
    {
        let datagram = vec![number as u8; length];
        let written = batch.push_if(to, length, |space| {
            space.copy_from_slice(&datagram);
            is_sent
        });
        assert_eq!(written, is_sent);
        expected.extend(is_sent.then_some((sender.address(), datagram)));
    }
    assert_eq!((batch.len(), batch.flush(&sender).sent), (4, 4));
    assert_eq!(fetch(&receiver, 4), expected);
    assert!(!batch.push_if(to, 9, |_| false) && batch.is_empty());
    assert_eq!(batch.flush(&sender), SendCounts::default());
}

#[test]
fn trains_to_one_next_hop_are_few_calls() {
    let (sender, receiver) =
        (port(LOCAL[0], UdpOptions::default()), port(LOCAL[0], UdpOptions::default()));
    if !sender.takes_trains() {
        common::skipped(&"this kernel takes no trains (UDP_SEGMENT)");
        return;
    }
    let mut batch = SendBatch::new(64);
    for number in 0..128 {
        let datagram = of_length(number, 500);
        batch.push(receiver.address(), 500).unwrap().copy_from_slice(&datagram);
    }
    let counts = batch.flush(&sender);
    assert_eq!(counts, SendCounts { sent: 128, calls: 1, ..SendCounts::default() });
    assert_eq!(fetch(&receiver, 128).len(), 128);
    assert!(sender.takes_trains());
}

#[test]
fn oversized_datagrams_stop_no_trains() {
    // Loopback's MTU is 65,536; a namespace with a smaller one would need privileges.
    let (sender, receiver) =
        (port(LOCAL[0], UdpOptions::default()), port(LOCAL[0], UdpOptions::default()));
    let mut batch = SendBatch::new(4);
    assert!(batch.push(receiver.address(), 65_536).is_none());
    batch.push(receiver.address(), 60_000).unwrap().fill(7);
    assert_eq!(batch.flush(&sender).sent, 1);
    assert_eq!(fetch(&receiver, 1)[0].1, vec![7; 60_000]);
    assert_eq!(batch.flush(&sender), SendCounts::default());
}

#[test]
fn closed_port_does_not_affect_other_datagrams() {
    let sender = port(LOCAL[0], UdpOptions::default());
    let receiver = port(LOCAL[0], UdpOptions::default());
    let closed = port(LOCAL[0], UdpOptions::default()).address();
    let mut batch = SendBatch::new(16);
    for number in 0..50 {
        batch.push(closed, 10).unwrap().fill(0);
        assert_eq!(batch.flush(&sender).sent, 1);
        batch.push(receiver.address(), 10).unwrap().fill(number);
        assert_eq!(batch.flush(&sender).sent, 1);
    }
    let fetched = fetch(&receiver, 50);
    assert!(fetched.iter().enumerate().all(|(at, (_, bytes))| bytes[..] == [at as u8; 10]));
    assert_eq!(fetched.len(), 50);
    // An ICMP error is no error of fetching.
    assert_eq!(ReceiveBatch::new(1).receive(&sender).unwrap(), 0);
}

#[test]
fn full_batch_is_reported_and_socket_drops_are_counted() {
    let options = UdpOptions { buffer: 4096, gso: false, ..UdpOptions::default() };
    let (sender, receiver) = (port(LOCAL[0], UdpOptions::default()), port(LOCAL[0], options));
    let mut batch = SendBatch::new(2);
    for (length, takes) in [(100, true), (200, true), (300, false)] {
        let space = batch.push(receiver.address(), length);
        assert_eq!(space.is_some(), takes, "{length}");
        if let Some(space) = space {
            space.fill(0);
        }
    }
    batch.flush(&sender);
    for _ in 0..100 {
        batch.push(receiver.address(), 1000).unwrap().fill(1);
        batch.flush(&sender);
    }
    let mut fetched = fetch(&receiver, 1);
    let mut incoming = ReceiveBatch::new(64);
    while incoming.receive(&receiver).unwrap() > 0 {
        incoming.for_each(|arrival, datagram| fetched.push((arrival.from, datagram.to_vec())));
    }
    // The kernel reports with the next datagram how many were dropped before it.
    batch.push(receiver.address(), 5).unwrap().fill(2);
    batch.flush(&sender);
    let mut epoll = Epoll::new().unwrap();
    epoll.watch(&receiver, 0).unwrap();
    assert_eq!(epoll.wait(Some(Duration::from_secs(5))).unwrap().count(), 1);
    incoming.receive(&receiver).unwrap();
    assert_eq!(fetched.len() + incoming.drops() as usize, 102);
    assert!(incoming.drops() > 0);
}

#[test]
fn dscp_is_received_on_request() {
    for local in LOCAL {
        for tells_dscp in [true, false] {
            let receiver = port(local, UdpOptions { tells_dscp, ..UdpOptions::default() });
            let sender = port(local, UdpOptions::default());
            let socket = socket2::SockRef::from(&sender);
            if sender.address().is_ipv4() {
                socket.set_tos_v4(46 << 2).unwrap();
            } else {
                socket.set_tclass_v6(46 << 2).unwrap();
            }
            let mut batch = SendBatch::new(1);
            batch.push(receiver.address(), 5).unwrap().fill(1);
            batch.flush(&sender);
            let (mut incoming, mut epoll) = (ReceiveBatch::new(8), Epoll::new().unwrap());
            epoll.watch(&receiver, 0).unwrap();
            assert_eq!(epoll.wait(Some(Duration::from_secs(5))).unwrap().count(), 1);
            incoming.receive(&receiver).unwrap();
            let mut dscps = Vec::new();
            incoming.for_each(|arrival, _| dscps.push(arrival.dscp));
            assert_eq!(dscps, [tells_dscp.then_some(46)]);
        }
    }
}

#[test]
fn sockets_that_share_an_address_share_its_senders() {
    let options = UdpOptions { reuse_port: true, ..UdpOptions::default() };
    let first = port(LOCAL[0], options);
    let address = first.address();
    let second = port(&address.to_string(), options);
    let senders: Vec<_> = (0..32).map(|_| port(LOCAL[0], UdpOptions::default())).collect();
    let mut batch = SendBatch::new(1);
    for sender in &senders {
        for number in 0..2 {
            batch.push(address, 1).unwrap()[0] = number;
            batch.flush(sender);
        }
    }
    let mut by_sender = BTreeMap::<SocketAddr, Vec<usize>>::new();
    let mut incoming = ReceiveBatch::new(64);
    for (number, port) in [&first, &second].into_iter().enumerate() {
        while incoming.receive(port).unwrap() > 0 {
            incoming.for_each(|arrival, _| by_sender.entry(arrival.from).or_default().push(number));
        }
    }
    assert_eq!(by_sender.len(), 32);
    assert!(by_sender.values().all(|ports| ports.len() == 2 && ports[0] == ports[1]));
}

#[test]
fn foreign_address_is_named() {
    let error = UdpPort::bind("192.0.2.1:9".parse().unwrap(), &UdpOptions::default()).unwrap_err();
    assert!(error.to_string().starts_with("bind the socket of udp 192.0.2.1:9: "), "{error}");
}

/// An answer from another of the host's addresses does not reach the sender, which is connected to
/// the one that it wrote to.
#[test]
fn replies_have_the_destination_as_source() {
    let Ok(host) = tradewind_net::netns::Namespace::create() else {
        return common::skipped(&"no right to make network namespaces");
    };
    let lines = ["link set lo up", "addr add fd83::1/128 dev lo", "addr add fd83::2/128 dev lo"];
    iproute::batch(&host, Tool::Ip, &lines.map(str::to_owned)).unwrap();
    host.run(|| {
        for (listen, here, at) in [
            ("0.0.0.0:0", "127.0.0.1:0", "127.0.0.2"),
            ("0.0.0.0:0", "127.0.0.7:0", "127.0.0.1"),
            ("[::]:0", "[fd83::1]:0", "fd83::2"),
            ("[::]:0", "[fd83::2]:0", "fd83::1"),
            ("[::]:0", "127.0.0.1:0", "127.0.0.2"),
        ] {
            for (gso, count) in [(true, 1), (true, 20), (false, 20)] {
                let options = UdpOptions { gso, both_families: true, ..UdpOptions::default() };
                let (wildcard, writer) = (port(listen, options), port(here, options));
                let to = SocketAddr::new(at.parse().unwrap(), wildcard.address().port());
                writer.connect(to).unwrap();
                let (mut out, mut arrived) = (SendBatch::new(4), ReceiveBatch::new(8));
                out.push(to, 5).unwrap().copy_from_slice(b"hello");
                assert_eq!(out.flush(&writer).sent, 1);
                assert_eq!(arrived.receive(&wildcard).unwrap(), 1);
                arrived.for_each(|arrival, _| {
                    assert_eq!((arrival.from, arrival.at), (writer.address(), Some(to.ip())));
                    let target = Target { to: arrival.from, from: arrival.at };
                    for number in 0..count {
                        out.push(target, 9).unwrap().copy_from_slice(&of_length(number, 9));
                    }
                });
                assert_eq!(out.flush(&wildcard).sent, count as u64);
                assert_eq!(fetch(&writer, count).len(), count, "{listen} {here} {at} {gso}");
            }
        }
    })
    .unwrap();
}

#[test]
fn datagrams_tell_how_long_they_have_waited() {
    let options = UdpOptions { tells_age: true, ..UdpOptions::default() };
    let (receiver, sender) = (port(LOCAL[0], options), port(LOCAL[0], options));
    let (mut out, mut arrived) = (SendBatch::new(1), ReceiveBatch::new(8));
    let mut age_after = |waited| {
        out.push(receiver.address(), 5).unwrap().copy_from_slice(b"hello");
        assert_eq!(out.flush(&sender).sent, 1);
        std::thread::sleep(waited);
        assert_eq!(arrived.receive(&receiver).unwrap(), 1);
        let mut age = std::time::Duration::ZERO;
        arrived.for_each(|arrival, _| age = arrival.age.unwrap());
        age
    };
    // The kernel begins to timestamp arrivals a moment after the request.
    let begun = std::time::Instant::now();
    let brief = std::time::Duration::from_millis(5);
    while age_after(brief) < brief / 2 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "nothing is stamped");
    }
    let waited = std::time::Duration::from_millis(60);
    // The wall clock and the one that sleeps differ.
    let age = age_after(waited);
    assert!(age > waited / 2 && age < waited * 100, "{age:?}");
}
