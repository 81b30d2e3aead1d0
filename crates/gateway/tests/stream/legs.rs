//! Leg profiles, as the kernel reports them of a relay's sockets.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;

use tradewind_desired::{LegProfile, LegTo, Route};
use tradewind_net::initial_window::InitialWindows;
use tradewind_net::iproute::{self, Tool};
use tradewind_net::netns::Namespace;
use tradewind_net::sysctl;

use crate::support::{
    Chain, Running, content, destination, echo, forward, gateway_config, legs, relay_config,
    route_over, skipped, wait_for,
};

fn profile(text: &str) -> LegProfile {
    LegProfile { encryption: legs().dial.encryption, ..toml::from_str(text).unwrap() }
}

/// Returns the output of `ss` on the connections to `address`, one line each.
pub(crate) fn ss_lines(address: SocketAddr) -> Vec<String> {
    let filter = format!("dst {address}");
    let output = Command::new("ss").args(["-tinHO", "state", "established", &filter]).output();
    let output = output.expect("ss, of iproute2, is there");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn initial_window_of_each_leg() {
    if let Err(error) = InitialWindows::attach() {
        skipped(&error);
        return;
    }
    let to = echo();
    let mut last = relay_config();
    last.leg.dial = profile("congestion_control = 'reno'\ninitial_window = 77");
    let last = Running::relay(&last);
    let mut first = relay_config();
    first.leg.to =
        vec![LegTo { address: last.address(), dial: profile("profile = 'quick-start'") }];
    let chain = Chain::of(vec![Running::relay(&first), last], to);
    let mut stream = chain.connect();
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    for (address, expected) in [(chain.relays[1].address(), " cwnd:2800 "), (to, " cwnd:77 ")] {
        let lines = ss_lines(address);
        assert!(lines.iter().any(|line| line.contains(expected)), "{expected}: {lines:?}");
    }
}

#[test]
fn pacing_cap_is_lifted_after_its_rtts() {
    let bytes = content(3_000_000);
    for (rtts, lifted) in [("", false), ("\npacing_rtts = 1", true)] {
        let (to, served) = destination(|mut stream| {
            let mut received = vec![0; 3_000_000];
            stream.read_exact(&mut received).unwrap();
            stream.write_all(b"!").unwrap();
            let _end = stream.read(&mut [0]);
            received
        });
        let mut config = gateway_config(route_over(&[]));
        config.forward = vec![forward(to)];
        config.leg.dial = profile(&format!("pacing_rate = '400 Mbit/s'{rtts}"));
        let gateway = Running::gateway(&config);
        let mut stream = crate::support::connect(gateway.address());
        stream.write_all(&bytes).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let is_capped = || ss_lines(to).iter().any(|line| line.contains("bps/400000000bps"));
        if lifted {
            wait_for("the cap to be lifted", || !is_capped());
        } else {
            assert!(is_capped(), "{:?}", ss_lines(to));
        }
        drop(stream);
        assert!(served.join().unwrap() == bytes, "other content arrived than was sent");
    }
}

#[test]
fn pacing_cap_stays_until_something_was_sent() {
    /// Many round trips at the cap's rate.
    const BULK: usize = 4 << 20;
    let (to, served) = destination(|mut stream| {
        let mut received = vec![0; BULK];
        stream.read_exact(&mut received).unwrap();
        stream.write_all(&received[..4]).unwrap();
        let _end = stream.read(&mut [0]);
    });
    let mut config = gateway_config(route_over(&[]));
    config.forward = vec![forward(to)];
    config.leg.dial = profile("pacing_rate = '400 Mbit/s'\npacing_rtts = 1");
    let gateway = Running::gateway(&config);
    let mut stream = crate::support::connect(gateway.address());
    let is_capped = || ss_lines(to).iter().any(|line| line.contains("bps/400000000bps"));
    wait_for("the capped connection", is_capped);
    // Longer than the default for an unknown round trip.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(is_capped(), "{:?}", ss_lines(to));
    stream.write_all(&vec![7; BULK]).unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    wait_for("the cap to be lifted", || !is_capped());
    drop(stream);
    served.join().unwrap();
}

/// Returns the number of connections of this thread's namespace whose SYN carried accepted data.
fn syns_with_data() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let mut words = || lines.next().unwrap().split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (names, values) = (words(), words());
    let at = names.iter().position(|name| name == "TCPFastOpenPassive").unwrap();
    values[at].parse().unwrap()
}

#[test]
fn fast_open_and_server_first() {
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return skipped(&error),
    };
    iproute::batch(&namespace, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
    let work = || {
        sysctl::set("net.ipv4.tcp_fastopen", "3").unwrap();
        let relay = || {
            let mut config = relay_config();
            config.leg.accept.fast_open = true;
            config.leg.dial.fast_open = true;
            Running::relay(&config)
        };
        let (first, second) = (relay(), relay());
        for _ in 0..4 {
            let (to, _served) = destination(|mut stream| {
                stream.write_all(b"220 ready").unwrap();
                stream.read(&mut [0]).unwrap()
            });
            let mut config = gateway_config(Route::Relays(vec![first.hop("a"), second.hop("b")]));
            config.forward = vec![forward(to)];
            config.leg.dial.fast_open = true;
            let gateway = Running::gateway(&config);
            let mut greeting = [0; 9];
            crate::support::connect(gateway.address()).read_exact(&mut greeting).unwrap();
            assert_eq!(&greeting, b"220 ready");
        }
        syns_with_data()
    };
    // The first connection gets the host's cookie; the legs of one host share it.
    assert!(namespace.run(work).unwrap() >= 6);
}
