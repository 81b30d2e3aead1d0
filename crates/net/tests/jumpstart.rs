//! The start of real connections by the program for learned values, as reported by the kernel.
//!
//! The program's own clock decides wherever an instant matters; no time is asserted.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::jumps::{LONG, events, limit, paced, values};
use common::{Hosts, THERE, THERE_IPV6, USUAL, window};
use tradewind_net::clock::monotonic;
use tradewind_net::iproute::{self, Tool};
use tradewind_net::jumpstart::{JumpStarts, Options, ProgramEvent, Values};
use tradewind_net::tcp::{self, SocketOptions};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::{Bandwidth, Bytes, Ratio, Segments, Timestamp};

/// Creates two hosts, and attaches the program for the near one's connections.
fn world(options: &Options) -> Option<(Hosts, JumpStarts)> {
    let hosts = Hosts::new()?;
    let program = hosts.attach(options)?;
    Some((hosts, program))
}

fn initial_window(hosts: &Hosts, listener: &TcpListener) -> u32 {
    window(&connect(hosts, listener, &SocketOptions::default()).0)
}

#[test]
fn longest_prefix_sets_the_window() {
    let Some((hosts, mut program)) = world(&Options::default()) else { return };
    let plain = SocketOptions::default();
    for (address, wide, narrow) in
        [(THERE, "10.82.0.0/16", "10.82.0.2/32"), (THERE_IPV6, "fd82::/32", "fd82::2/128")]
    {
        let listener = hosts.listen_at(address, &plain);
        let (wide, narrow) = (wide.parse().unwrap(), narrow.parse().unwrap());
        assert_eq!(initial_window(&hosts, &listener), USUAL);
        program.set(wide, values(40)).unwrap();
        assert_eq!(initial_window(&hosts, &listener), 40);
        program.set(narrow, values(80)).unwrap();
        assert_eq!(initial_window(&hosts, &listener), 80);
        program.remove(&narrow).unwrap();
        assert_eq!(initial_window(&hosts, &listener), 40);
        assert_eq!(program.clear().unwrap(), 1);
        assert_eq!(initial_window(&hosts, &listener), USUAL);
    }
}

#[test]
fn accepted_connections_jump_and_other_namespaces_do_not() {
    let Some((hosts, mut program)) = world(&Options::default()) else { return };
    program.set("10.82.0.0/16".parse().unwrap(), values(50)).unwrap();
    let plain = SocketOptions::default();
    let remote = hosts.listen(&plain);
    let _dialled = hosts.dial(&remote, &plain);
    assert_eq!(window(&remote.accept().unwrap().0), USUAL, "the remote host is another namespace");
    let near = hosts.here.run(|| TcpListener::bind((common::HERE, 0)).unwrap()).unwrap();
    let address = near.local_addr().unwrap();
    let _dialled = hosts.there.run(|| TcpStream::connect(address).unwrap()).unwrap();
    assert_eq!(window(&near.accept().unwrap().0), 50);
}

#[test]
fn own_only_leaves_other_connections() {
    let Some(hosts) = Hosts::new() else { return };
    let options = Options { own_alone: true, ..Options::default() };
    let Some(mut program) = hosts.attach(&options) else { return };
    program.set("10.82.0.0/16".parse().unwrap(), values(50)).unwrap();
    let plain = SocketOptions::default();
    let own = SocketOptions { jumpstart: Some(program.own_sockets()), ..SocketOptions::default() };
    let listener = hosts.listen(&plain);
    assert_eq!(window(&connect(&hosts, &listener, &plain).0), USUAL);
    assert_eq!(window(&connect(&hosts, &listener, &own).0), 50);
    let accepted_by = |options: &SocketOptions| {
        let address = SocketAddr::new(common::HERE.parse().unwrap(), 0);
        let listen = || tcp::listen(address, 1, 16, options).unwrap().remove(0);
        let near = hosts.here.run(listen).unwrap();
        near.set_nonblocking(false).unwrap();
        let address = near.local_addr().unwrap();
        let _dialled = hosts.there.run(|| TcpStream::connect(address).unwrap()).unwrap();
        window(&near.accept().unwrap().0)
    };
    assert_eq!(accepted_by(&own), 50, "by a listener of its own");
    assert_eq!(accepted_by(&plain), USUAL, "by one beside it");
    // A socket that cannot be registered is counted, without further effect.
    let no_socket = std::fs::File::open("/dev/null").unwrap();
    assert!(program.own_sockets().add(&no_socket).is_err());
    assert_eq!(program.unremembered(), 1);
    // Registering works without the program, too.
    drop(program);
    connect(&hosts, &listener, &own);
}

#[test]
fn value_expires_in_the_kernel() {
    let Some((hosts, mut program)) = world(&Options::default()) else { return };
    let listener = hosts.listen(&SocketOptions::default());
    let prefix = "10.82.0.2/32".parse().unwrap();
    // It is not removed: it has expired.
    program.set(prefix, Values { expires: monotonic(), ..values(50) }).unwrap();
    assert_eq!(initial_window(&hosts, &listener), USUAL);
    program.renew(&prefix, monotonic(), monotonic() + LONG).unwrap();
    assert_eq!(initial_window(&hosts, &listener), 50);
}

#[test]
fn program_is_detached_with_its_owner() {
    let Some((hosts, mut program)) = world(&Options::default()) else { return };
    let listener = hosts.listen(&SocketOptions::default());
    program.set("10.82.0.2/32".parse().unwrap(), values(50)).unwrap();
    assert_eq!(initial_window(&hosts, &listener), 50);
    drop(program);
    // Other tests start programs meanwhile, which hold all descriptors of this process until they
    // are executed.
    let is_gone = || initial_window(&hosts, &listener) == USUAL;
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        is_gone()
    });
    assert!(gone, "windows as before");
}

#[test]
fn rate_limits_the_first_round_trips_only() {
    let least = Segments::new(1).unwrap();
    let options = Options { least, ..Options::default() };
    let Some((hosts, mut program)) = world(&options) else { return };
    let plain = SocketOptions::default();
    let own = Bandwidth::from_mbps(2.0).unwrap();
    let limited = SocketOptions { pacing_rate: Some(own), ..SocketOptions::default() };
    let listener = hosts.listen(&plain);
    let prefix = "10.82.0.2/32".parse().unwrap();
    for (options, after) in [(&plain, u64::MAX), (&limited, 250_000)] {
        // The cable's current round-trip time, so that the handshake matches the learned path.
        let mut tries = (0..1000).map(|_| {
            program.clear().unwrap();
            let rtt = usual_rtt(&hosts, &listener);
            program.set(prefix, paced(90, 10_000.0, rtt)).unwrap();
            connect(&hosts, &listener, options)
        });
        let jumped = tries.find(|(near, _)| window(near) == 90);
        let (mut stream, mut remote) = jumped.expect("one of 1000 connections jumps");
        assert_eq!(limit(&stream), after.min(1_250_000_000));
        let lent = |now| program.lent(&prefix, now).unwrap();
        assert_eq!((lent(Timestamp::ZERO), lent(Timestamp::FAR_FUTURE)), (1_250_000_000, 0));
        round_trips(&mut stream, &mut remote);
        assert_eq!(limit(&stream), after);
    }
}

/// Makes a hundred round trips, one per exchange.
fn round_trips(near: &mut TcpStream, remote: &mut TcpStream) {
    for _ in 0..100 {
        near.write_all(&[7]).unwrap();
        remote.read_exact(&mut [0]).unwrap();
        remote.write_all(&[7]).unwrap();
        near.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn one_of_two_programs_holds_a_connection() {
    let least = Segments::new(1).unwrap();
    let options = Options { least, ..Options::default() };
    let Some((hosts, mut first)) = world(&options) else { return };
    let mut second = hosts.attach(&options).unwrap();
    let listener = hosts.listen(&SocketOptions::default());
    let prefix = "10.82.0.2/32".parse().unwrap();
    // The cable's current round-trip time, so that the handshake matches the learned path.
    let mut tries = (0..1000).map(|_| {
        let _removed = [&mut first, &mut second].map(|program| program.clear().unwrap());
        let rtt = usual_rtt(&hosts, &listener);
        // Each would ask for less than the one before it.
        first.set(prefix, paced(90, 20_000.0, rtt)).unwrap();
        second.set(prefix, paced(95, 10_000.0, rtt)).unwrap();
        connect(&hosts, &listener, &SocketOptions::default())
    });
    let held = tries.find(|(near, _)| window(near) == 90 && limit(near) == 2_500_000_000);
    let (mut stream, mut remote) =
        held.expect("one of 1000 connections is held by the first alone");
    round_trips(&mut stream, &mut remote);
    assert_eq!(limit(&stream), u64::MAX);
}

#[test]
fn handshake_over_another_path_starts_by_default() {
    let Some((hosts, mut program)) = world(&Options::default()) else { return };
    let listener = hosts.listen(&SocketOptions::default());
    let prefix = "10.82.0.2/32".parse().unwrap();
    program.set(prefix, paced(90, 1000.0, Duration::from_secs(100))).unwrap();
    assert_eq!(initial_window(&hosts, &listener), USUAL);
    assert_eq!(events(&mut program), []);
}

#[test]
fn control_share_starts_by_default_and_is_reported() {
    let control = Ratio::new(0.3).unwrap();
    let Some((hosts, mut program)) = world(&Options { control, ..Options::default() }) else {
        return;
    };
    let listener = hosts.listen(&SocketOptions::default());
    program.set("10.82.0.2/32".parse().unwrap(), values(50)).unwrap();
    let windows: Vec<u32> = (0..200).map(|_| initial_window(&hosts, &listener)).collect();
    let by_default = windows.iter().filter(|window| **window == USUAL).count();
    assert!((30..=90).contains(&by_default), "{by_default} of 200");
    let events = events(&mut program);
    let control =
        events.iter().filter(|event| matches!(event, ProgramEvent::Control { .. })).count();
    let jumped =
        events.iter().filter(|event| matches!(event, ProgramEvent::Jumped { window: 50, .. }));
    assert_eq!((control, jumped.count()), (by_default, 200 - by_default));
}

#[test]
fn lost_reports_are_counted() {
    let control = Ratio::new(1.0).unwrap();
    let Some((hosts, mut program)) = world(&Options { control, ..Options::default() }) else {
        return;
    };
    let listener = hosts.listen(&SocketOptions::default());
    program.set("10.82.0.2/32".parse().unwrap(), values(50)).unwrap();
    // More than the ring holds: each event takes 32 bytes of a mebibyte.
    let connections = (1 << 20) / 32 + 50;
    for _ in 0..connections {
        let (near, _remote) = connect(&hosts, &listener, &SocketOptions::default());
        // Reset, so that no port stays in TIME_WAIT.
        socket2::SockRef::from(&near).set_linger(Some(Duration::ZERO)).unwrap();
    }
    let count = events(&mut program).len() as u64;
    assert!(count > 0 && program.lost_events() > 0);
    // All are held back, except for the one number in four billion that no share reaches.
    assert_eq!(count + program.lost_events(), connections);
}

#[test]
fn receiver_is_prepared_before_dial_and_listen() {
    let bytes = Bytes::new(1_000_000);
    let options = Options { receive_buffer: Some(bytes), ..Options::default() };
    let Some((hosts, mut program)) = world(&options) else { return };
    let buffer =
        |stream: &TcpStream| socket2::SockRef::from(stream).recv_buffer_size().unwrap() as u64 / 2;
    let plain = SocketOptions::default();
    let remote = hosts.listen(&plain);
    assert_ne!(buffer(&hosts.dial(&remote, &plain)), bytes.as_u64(), "nothing is known of it");
    program.set("10.82.0.0/16".parse().unwrap(), values(50)).unwrap();
    assert_eq!(buffer(&hosts.dial(&remote, &plain)), bytes.as_u64());
    let near = hosts.here.run(|| TcpListener::bind((common::HERE, 0)).unwrap()).unwrap();
    let address = near.local_addr().unwrap();
    let _dialled = hosts.there.run(|| TcpStream::connect(address).unwrap()).unwrap();
    assert_eq!(buffer(&near.accept().unwrap().0), bytes.as_u64());
}

#[test]
fn routes_with_own_windows_are_unchanged() {
    let Some((hosts, mut program)) = world(&Options::default()) else { return };
    let listener = hosts.listen(&SocketOptions::default());
    program.set("10.82.0.2/32".parse().unwrap(), values(50)).unwrap();
    for window in [4, 70] {
        let line = format!("route replace 10.82.0.2/32 dev near0 initcwnd {window}");
        iproute::batch(&hosts.here, Tool::Ip, &[line]).unwrap();
        assert_eq!(initial_window(&hosts, &listener), window);
    }
}

/// Opens a connection; returns both ends.
fn connect(
    hosts: &Hosts,
    listener: &TcpListener,
    options: &SocketOptions,
) -> (TcpStream, TcpStream) {
    let near = hosts.dial(listener, options);
    (near, listener.accept().unwrap().0)
}

/// Returns the smoothed round-trip time of handshakes over the cable.
fn usual_rtt(hosts: &Hosts, listener: &TcpListener) -> Duration {
    let plain = SocketOptions::default();
    let rtt = || TcpInfo::of(&connect(hosts, listener, &plain).0).unwrap().rtt;
    let mut all: Vec<Duration> = (0..9).map(|_| rtt().unwrap()).collect();
    all.sort();
    all[4]
}
