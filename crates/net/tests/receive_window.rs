//! The receive windows that a host first offers, as seen by its peers: learned values do not reduce
//! them.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use common::jumps::values;
use common::{HERE, Hosts, THERE};
use ipnet::IpNet;
use tradewind_net::iproute::{self, Tool};
use tradewind_net::jumpstart::{JumpStarts, Options};
use tradewind_net::route::{Placed, Routes, Windows};
use tradewind_net::sysctl;
use tradewind_net::tcp::SocketOptions;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::{Bytes, Segments};

/// The paper's initial window, and a learned one.
const C_MAX: u32 = 100;
const LEARNED: u32 = 50;

fn segments(count: u32) -> Segments {
    Segments::new(count).unwrap()
}

/// Returns the prefix of the remote host alone.
fn remote_host() -> IpNet {
    format!("{THERE}/32").parse().unwrap()
}

/// Returns the window offered to a connection's other end, in bytes.
fn offered_to(peer: &TcpStream) -> u64 {
    TcpInfo::of(peer).unwrap().send_window.unwrap().as_u64()
}

/// Returns the window that the near host offers when it dials.
fn offered_by_dialling(hosts: &Hosts, listener: &TcpListener, options: &SocketOptions) -> u64 {
    let _near = hosts.dial(listener, options);
    offered_to(&listener.accept().unwrap().0)
}

/// Returns the window that the near host offers when it accepts. The full window is sent only after
/// the handshake.
fn offered_by_accepting(hosts: &Hosts) -> u64 {
    let listener = hosts.here.run(|| TcpListener::bind((HERE, 0)).unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut remote = hosts.there.run(|| TcpStream::connect(address).unwrap()).unwrap();
    let mut near = listener.accept().unwrap().0;
    remote.write_all(&[7]).unwrap();
    near.read_exact(&mut [0]).unwrap();
    near.write_all(&[7]).unwrap();
    remote.read_exact(&mut [0]).unwrap();
    offered_to(&remote)
}

/// Creates two hosts; the near one's connections begin with a buffer of 16 MiB.
fn prepared() -> Option<Hosts> {
    let hosts = Hosts::new()?;
    let set = || sysctl::set("net.ipv4.tcp_rmem", "4096 16777216 33554432").unwrap();
    hosts.here.run(set).unwrap();
    Some(hosts)
}

/// Attaches the program for the near host's connections, with a value for the remote one.
fn by_sockops(hosts: &Hosts, options: &Options) -> Option<JumpStarts> {
    let mut program = hosts.attach(options)?;
    program.set(remote_host(), values(LEARNED)).unwrap();
    Some(program)
}

#[test]
fn route_does_not_limit_the_buffer() {
    let Some(hosts) = prepared() else { return };
    let plain = SocketOptions::default();
    let own = SocketOptions { receive_buffer: Some(Bytes::new(2_000_000)), ..plain.clone() };
    let listener = hosts.listen(&plain);
    let offered = || [&plain, &own].map(|options| offered_by_dialling(&hosts, &listener, options));
    let before = offered();
    assert!(before[0] > 4_000_000 && before[1] > 1_000_000, "the buffers: {before:?}");
    let mut routes = hosts.here.run(|| Routes::open().unwrap()).unwrap();
    let windows = Windows { congestion: segments(LEARNED), receive: Some(segments(C_MAX)) };
    assert_eq!(routes.set(remote_host(), windows).unwrap(), Placed::Set);
    assert_eq!(offered(), before);
    assert!(offered_by_accepting(&hosts) > 4_000_000);
    assert_eq!(routes.sweep().unwrap(), 1);
}

#[test]
fn program_reduces_neither_buffer_nor_route_window() {
    let Some(hosts) = prepared() else { return };
    let plain = SocketOptions::default();
    let listener = hosts.listen(&plain);
    let before = offered_by_dialling(&hosts, &listener, &plain);
    let Some(_program) = by_sockops(&hosts, &Options::default()) else { return };
    assert_eq!(offered_by_dialling(&hosts, &listener, &plain), before);
    assert!(offered_by_accepting(&hosts) > 4_000_000);
    let line = format!("route replace {THERE}/32 dev near0 initrwnd 20");
    iproute::batch(&hosts.here, Tool::Ip, &[line]).unwrap();
    let narrow = offered_by_dialling(&hosts, &listener, &plain);
    assert!(narrow < 40_000, "{narrow} in the place of 20 segments");
}

#[test]
fn requested_buffer_is_advertised_whole() {
    let Some(hosts) = Hosts::new() else { return };
    let plain = SocketOptions::default();
    let listener = hosts.listen(&plain);
    assert!(offered_by_dialling(&hosts, &listener, &plain) < 200_000, "the kernel's own");
    let options = Options { receive_buffer: Some(Bytes::new(1_000_000)), ..Options::default() };
    let Some(_program) = by_sockops(&hosts, &options) else { return };
    // The kernel's overhead is in the same buffer.
    assert!(offered_by_dialling(&hosts, &listener, &plain) > 500_000);
    assert!(offered_by_accepting(&hosts) > 500_000);
}
