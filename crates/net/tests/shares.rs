//! Connections that start at once share one learned rate, and report the loss of their first
//! flight.
//!
//! A handshake over the cable takes microseconds, in which no two connections start at once. So the
//! near host has no neighbour entry of the remote one until the test adds it: all SYNs wait for it,
//! and all connections then open together.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use common::jumps::{events, limit, paced};
use common::{HERE, Hosts, THERE, USUAL, window};
use socket2::{Domain, Socket, Type};
use tradewind_net::iproute::{self, Tool};
use tradewind_net::jumpstart::{JumpStarts, Options, ProgramEvent};
use tradewind_net::sysctl;
use tradewind_net::tcp::SocketOptions;
use tradewind_net::tcp_info::TcpInfo;

/// The learned round-trip time, which is also the time that SYNs wait. Handshakes of half to ten
/// times that time count as the same path's.
const RTT: Duration = Duration::from_millis(100);
/// Time after which loans of four round-trip times have ended, and the number of starts is still
/// known.
const LOANS_ENDED: Duration = Duration::from_millis(500);
/// Link addresses of the near host and of the remote one.
const NEAR: &str = "02:00:00:00:00:81";
const REMOTE: &str = "02:00:00:00:00:82";
/// The learned window.
const WINDOW: u32 = 90;

/// Two hosts, the program for the near one's connections with a learned rate, and a listener on the
/// remote one.
struct World {
    hosts: Hosts,
    program: JumpStarts,
    listener: TcpListener,
}

/// Both ends of connections that opened at once.
struct Opened {
    near: Vec<TcpStream>,
    _remote: Vec<TcpStream>,
}

impl World {
    fn new(options: &Options, mbps: f64) -> Option<Self> {
        let hosts = Hosts::new()?;
        let mut program = hosts.attach(options)?;
        program.set(prefix(), paced(WINDOW, mbps, RTT)).unwrap();
        ip(&hosts.here, &format!("link set near0 address {NEAR}"));
        ip(&hosts.there, &format!("link set remote0 address {REMOTE}"));
        // The remote host knows the near one's link address, and does not answer requests for its
        // own.
        ip(&hosts.there, &format!("neigh replace {HERE} lladdr {NEAR} dev remote0 nud permanent"));
        hosts.there.run(|| sysctl::set("net.ipv4.conf.all.arp_ignore", "8").unwrap()).unwrap();
        let listener = hosts.listen(&SocketOptions::default());
        let world = Self { hosts, program, listener };
        world.tell_where_the_remote_host_is();
        Some(world)
    }

    fn tell_where_the_remote_host_is(&self) {
        let line = format!("neigh replace {THERE} lladdr {REMOTE} dev near0 nud permanent");
        ip(&self.hosts.here, &line);
    }

    /// Opens so many connections at once.
    fn open(&self, count: usize) -> Opened {
        ip(&self.hosts.here, &format!("neigh del {THERE} dev near0"));
        let to = self.listener.local_addr().unwrap();
        let begin = || (0..count).map(|_| begin_to_dial(to)).collect::<Vec<_>>();
        let begun = self.hosts.here.run(begin).unwrap();
        sleep(RTT);
        self.tell_where_the_remote_host_is();
        let remote = begun.iter().map(|_| self.listener.accept().unwrap().0).collect();
        Opened { near: begun.into_iter().map(TcpStream::from).collect(), _remote: remote }
    }
}

impl Opened {
    /// Returns the rate limits of those that jumped, in bytes a second; the others start by
    /// default.
    fn shares(&self) -> Vec<u64> {
        let (jumped, others): (Vec<_>, Vec<_>) =
            self.near.iter().partition(|near| window(near) == WINDOW);
        for other in others {
            assert_eq!((window(other), limit(other)), (USUAL, u64::MAX));
        }
        jumped.into_iter().map(limit).collect()
    }
}

fn prefix() -> ipnet::IpNet {
    format!("{THERE}/32").parse().unwrap()
}

fn ip(host: &tradewind_net::netns::Namespace, line: &str) {
    iproute::batch(host, Tool::Ip, &[line.to_owned()]).unwrap();
}

fn begin_to_dial(to: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_nonblocking(true).unwrap();
    let _under_way = socket.connect(&to.into()).unwrap_err();
    socket
}

#[test]
fn simultaneous_shares_stay_within_the_rate() {
    let Some(world) = World::new(&Options::default(), 80.0) else { return };
    // More than the number of separate loans.
    let (rate, crowd) = (10_000_000, 10);
    // The first does not know of the others.
    let first = world.open(crowd);
    assert_eq!(first.shares(), [rate]);
    sleep(LOANS_ENDED);
    let known = world.open(crowd);
    assert_eq!(known.shares(), vec![rate / crowd as u64; crowd]);
    // Nothing is left while those hold it.
    let late = world.open(1);
    let both: u64 = [known.shares(), late.shares()].concat().iter().sum();
    assert!(both <= rate, "{both} of {rate}");
}

#[test]
fn number_of_borrowers_is_limited() {
    let options = Options { at_once: Some(1), ..Options::default() };
    let Some(world) = World::new(&options, 80.0) else { return };
    for _ in 0..2 {
        let opened = world.open(4);
        assert_eq!(opened.shares(), [10_000_000]);
        sleep(LOANS_ENDED);
    }
}

#[test]
fn share_below_least_window_is_refused() {
    // Ten segments of 1448 bytes in 100 ms are 144,800 bytes a second.
    let Some(mut world) = World::new(&Options::default(), 4.0) else { return };
    assert_eq!(world.open(8).shares(), [500_000]);
    sleep(LOANS_ENDED);
    events(&mut world.program);
    assert_eq!(world.open(8).shares(), [0; 0]);
    assert_eq!(events(&mut world.program), []);
}

#[test]
fn lost_first_flight_is_reported_once() {
    let Some(mut world) = World::new(&Options::default(), 80.0) else { return };
    let opened = world.open(1);
    assert_eq!(opened.shares(), [10_000_000]);
    let Some(&ProgramEvent::Jumped { connection, window: WINDOW }) =
        events(&mut world.program).first()
    else {
        panic!("it jumped, and that is not told");
    };
    // From now on no acknowledgement returns.
    ip(&world.hosts.there, &format!("route add blackhole {HERE}/32"));
    let mut near = &opened.near[0];
    near.write_all(&[7; 5000]).unwrap();
    let sent_again = || TcpInfo::of(near).unwrap().retransmitted_segments;
    let twice = (0..500).any(|_| {
        sleep(Duration::from_millis(20));
        sent_again() >= 2
    });
    assert!(twice, "{} segments sent again", sent_again());
    let lost = ProgramEvent::FirstFlightLost { connection, prefix: Some(prefix()) };
    assert_eq!(events(&mut world.program), [lost]);
}
