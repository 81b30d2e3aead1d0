//! The initial congestion window of real connections, as reported by the kernel.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use common::{HERE, Hosts, THERE, THERE_IPV6, USUAL, dial, skipped, window};
use ipnet::IpNet;
use tradewind_net::NetError;
use tradewind_net::initial_window::{InitialWindow, InitialWindows};
use tradewind_net::iproute::{self, Tool};
use tradewind_net::route::{Placed, Routes, Windows};
use tradewind_net::tcp::{self, SocketOptions};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_net::window_route::WindowRoutes;
use tradewind_units::{Bandwidth, Bytes, Segments};

/// Attaches the program, if this process may load it.
fn attached() -> Option<InitialWindows> {
    match InitialWindows::attach() {
        Ok(windows) => Some(windows),
        Err(error) => {
            skipped(&error);
            None
        }
    }
}

fn options(windows: &InitialWindows, segments: u32) -> SocketOptions {
    let window = InitialWindow { segments: Segments::new(segments).unwrap(), rate: None };
    SocketOptions { initial_window: Some((windows.clone(), window)), ..SocketOptions::default() }
}

fn listen(options: &SocketOptions) -> TcpListener {
    let listener = tcp::listen("127.0.0.1:0".parse().unwrap(), 1, 16, options).unwrap().remove(0);
    listener.set_nonblocking(false).unwrap();
    listener
}

#[test]
fn windows_are_per_connection() {
    let Some(windows) = attached() else { return };
    let plain = SocketOptions::default();
    let listener = listen(&plain);
    let address = listener.local_addr().unwrap();
    for (wanted, expected) in [(Some(77), 77), (None, USUAL), (Some(2800), 2800)] {
        let options = wanted.map_or(plain.clone(), |segments| options(&windows, segments));
        let dialled = dial(address, &options);
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!((window(&dialled), window(&accepted)), (expected, USUAL));
    }
}

#[test]
fn accepted_connections_inherit_the_window() {
    let Some(windows) = attached() else { return };
    let listener = listen(&options(&windows, 222));
    for _ in 0..3 {
        let mut dialled = dial(listener.local_addr().unwrap(), &SocketOptions::default());
        let (mut accepted, _) = listener.accept().unwrap();
        assert_eq!((window(&accepted), window(&dialled)), (222, USUAL));
        accepted.write_all(b"data flows").unwrap();
        dialled.read_exact(&mut [0; 10]).unwrap();
    }
}

#[test]
fn window_follows_rate_and_rtt() {
    let Some(windows) = attached() else { return };
    let Some(hosts) = Hosts::new() else { return };
    let listener = hosts.listen(&SocketOptions::default());
    for (text, most) in [("100 Gbit/s", 1 << 20), ("100 Gbit/s", 15), ("8 Mbit/s", 1 << 20)] {
        let rate: Bandwidth = text.parse().unwrap();
        let window = InitialWindow { segments: Segments::new(most).unwrap(), rate: Some(rate) };
        let options = SocketOptions {
            initial_window: Some((windows.clone(), window)),
            ..SocketOptions::default()
        };
        let info = TcpInfo::of(&hosts.dial(&listener, &options)).unwrap();
        let rtt_us = u64::try_from(info.rtt.unwrap().as_micros()).unwrap();
        let held = rate.as_bps() / 8 / 1000 * rtt_us / 1000 / info.send_mss.as_u64();
        let expected = (held + held / 4).max(USUAL.into()).min(most.into());
        let reported = u64::from(info.congestion_window.unwrap().as_u32());
        assert_eq!(reported, expected, "{text} in {rtt_us} us, at most {most}");
    }
}

#[test]
fn program_is_detached_with_its_last_owner() {
    let Some(windows) = attached() else { return };
    let listener = listen(&options(&windows, 300));
    drop(windows);
    // The listener's options held a clone, which is dropped, too.
    let _dialled = dial(listener.local_addr().unwrap(), &SocketOptions::default());
    let (accepted, _) = listener.accept().unwrap();
    assert_eq!(window(&accepted), USUAL);
}

#[test]
fn whole_window_is_sent_at_once() {
    let Some(windows) = attached() else { return };
    let Some(hosts) = Hosts::new() else { return };
    // The peer's window must hold the flight, which needs a large buffer from the start.
    let large = Some(Bytes::new(16_000_000));
    let receiver = SocketOptions { receive_buffer: large, ..SocketOptions::default() };
    let listener = hosts.listen(&receiver);
    for (wanted, expected) in [(None, USUAL), (Some(40), 40)] {
        let chosen = wanted.map_or(SocketOptions::default(), |window| options(&windows, window));
        let dialled = hosts.dial(&listener, &chosen);
        let (_accepted, _) = listener.accept().unwrap();
        // From now on no acknowledgement returns.
        iproute::batch(&hosts.there, Tool::Ip, &[format!("route add blackhole {HERE}/32")])
            .unwrap();
        dialled.set_nonblocking(true).unwrap();
        let _most = (&dialled).write(&vec![7; 1_000_000]).unwrap();
        let in_flight = TcpInfo::of(&dialled).unwrap().unacked_segments;
        // A tail loss probe may have added one segment.
        assert!((expected..=expected + 1).contains(&in_flight), "{in_flight} of {expected}");
        iproute::batch(&hosts.there, Tool::Ip, &[format!("route del blackhole {HERE}/32")])
            .unwrap();
    }
}

/// Keeps a route to `there` with a window of 120 segments; the receiver gets the reasons of
/// failures.
fn keep(hosts: &Hosts, there: &str) -> (WindowRoutes, mpsc::Receiver<String>) {
    let (refused, reasons) = mpsc::channel();
    let wanted = [(there.parse().unwrap(), Segments::new(120).unwrap())];
    let refuse = move |_, error: NetError| refused.send(error.to_string()).unwrap();
    let routes = hosts.here.run(|| WindowRoutes::keep(wanted, refuse)).unwrap().unwrap();
    (routes, reasons)
}

#[test]
fn route_sets_the_window_of_one_address() {
    let Some(hosts) = Hosts::new() else { return };
    let plain = SocketOptions::default();
    let listener = hosts.listen(&plain);
    let route = keep(&hosts, THERE);
    assert_eq!(window(&hosts.dial(&listener, &plain)), 120);
    // A second process may have a route to the same address.
    let again = keep(&hosts, THERE);
    assert_eq!(window(&hosts.dial(&listener, &plain)), 120);
    hosts.here.run(|| drop((route, again))).unwrap();
    assert_eq!(window(&hosts.dial(&listener, &plain)), USUAL);

    let (_own, reasons) = keep(&hosts, HERE);
    let error = reasons.try_recv().unwrap();
    assert!(error.contains("an address of this host"), "{error}");
}

#[test]
fn foreign_route_to_the_address_is_unchanged() {
    let Some(hosts) = Hosts::new() else { return };
    let there: std::net::IpAddr = THERE.parse().unwrap();
    let foreign = format!("{THERE}/32 dev near0 metric 5 initcwnd 33");
    iproute::batch(&hosts.here, Tool::Ip, &[format!("route add {foreign}")]).unwrap();
    let (waiting, reasons) = keep(&hosts, THERE);
    let error = reasons.try_recv().unwrap();
    assert!(error.contains(THERE) && error.contains("left alone"), "{error}");
    let plain = SocketOptions::default();
    let listener = hosts.listen(&plain);
    assert_eq!(window(&hosts.dial(&listener, &plain)), 33);
    iproute::batch(&hosts.here, Tool::Ip, &[format!("route del {foreign}")]).unwrap();
    drop(waiting);
    // A learned route is no obstacle, and an operator's route takes precedence over it.
    let six: std::net::IpAddr = THERE_IPV6.parse().unwrap();
    for (address, there) in [(THERE, there), (THERE_IPV6, six)] {
        let learn = || {
            let mut routes = Routes::open().unwrap();
            let windows = Windows { congestion: Segments::new(60).unwrap(), receive: None };
            assert_eq!(routes.set(IpNet::from(there), windows).unwrap(), Placed::Set);
            routes
        };
        let mut learned = hosts.here.run(learn).unwrap();
        let listener = hosts.listen_at(address, &plain);
        assert_eq!(window(&hosts.dial(&listener, &plain)), 60, "{address}");
        let asked = keep(&hosts, address);
        assert_eq!(window(&hosts.dial(&listener, &plain)), 120, "{address}");
        drop(asked);
        assert_eq!(window(&hosts.dial(&listener, &plain)), 60, "{address}");
        assert_eq!(learned.sweep().unwrap(), 1);
        assert_eq!(window(&hosts.dial(&listener, &plain)), USUAL, "{address}");
    }
}

#[test]
fn window_routes_follow_rules_and_routes() {
    let Some(hosts) = Hosts::new() else { return };
    let ip = |lines: &[&str]| {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        iproute::batch(&hosts.here, Tool::Ip, &lines).unwrap();
    };
    let route = || {
        let get = ["route", "get", "fibmatch", THERE];
        hosts.here.run(|| iproute::ask(Tool::Ip, &get)).unwrap().unwrap()
    };
    // The thread follows with a delay.
    let goes = |parts: [&str; 2]| {
        let is_so = |_| {
            std::thread::sleep(Duration::from_millis(10));
            parts.iter().all(|part| route().contains(part))
        };
        assert!((0..3000).any(is_so), "{parts:?} in {}", route());
    };
    let windows = keep(&hosts, THERE);
    goes(["dev near0", "initcwnd 120"]);
    ip(&["link add vpn type veth peer name remote", "link set vpn up", "link set remote up"]);
    ip(&["route add default dev vpn table 777", "rule add not fwmark 777 table 777"]);
    ip(&["rule add table main suppress_prefixlength 24"]);
    goes(["dev vpn", "initcwnd 120"]);
    ip(&["rule del not fwmark 777 table 777", "rule del table main suppress_prefixlength 24"]);
    goes(["dev near0", "initcwnd 120"]);
    ip(&[&format!("route add {THERE}/31 dev vpn")]);
    goes(["dev vpn", "initcwnd 120"]);
    drop(windows);
    assert!(!route().contains("initcwnd"), "{}", route());
}
