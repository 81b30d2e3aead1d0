//! Other features of an embedded learner: accepted connections, IPv6, paced modes, upgrades, hints
//! and the kill switch.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;

use tradewind_lab::Lab;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::Bandwidth;

use crate::embedded::{
    LEARN, LONG_TIMEOUTS, Learning, asked, before, end_successor, known_of, learned, learned_of,
    relay_text_at, with_large_windows, with_large_windows_over,
};
use crate::legs::{Session, connections_to, windows_to};
use crate::paced::{BULK_BYTES, on_the_lab};
use crate::sockops::can_attach;
use crate::world::{World, until};

/// Opens a connection from the remote host to `listen` on the near one; returns it with the first
/// window of its near end. It carries no data.
fn from_afar(world: &World, listen: SocketAddr) -> (TcpStream, u32) {
    let dialled = world.remote.run(|| TcpStream::connect(listen).unwrap()).unwrap();
    let port = dialled.local_addr().unwrap().port();
    until("a connection", || windows_to(world, port).len() == 1);
    let window = windows_to(world, port)[0];
    (dialled, window)
}

/// Starts a relay on the near host that waits long for headers.
fn relay_with_long_timeouts(world: &World, address: &str) -> Learning {
    let text = relay_text_at(address, &format!("{LONG_TIMEOUTS}{LEARN}"));
    Learning::start(world, "relay", "relay.toml", &text, &[])
}

#[test]
fn accepted_connections_start_with_learned_windows() {
    let test = "embedded-accepts";
    let Some(world) = World::new(test).filter(|world| can_attach(test, &world.near)) else {
        return;
    };
    let relay = relay_with_long_timeouts(&world, "10.1.0.1:0");
    let (_first, grown) = with_large_windows(&world, || from_afar(&world, relay.listen()));
    until("what was seen", || learned(&world, &relay.socket()) == Some(grown.into()));
    assert!(grown >= 80, "{grown}");
    let (_next, window) = from_afar(&world, relay.listen());
    assert_eq!(window, grown);
    // Connections accepted by another process's listener are not changed.
    let other = world.near.run(|| TcpListener::bind("10.1.0.1:0").unwrap()).unwrap();
    let (_beside, window) = from_afar(&world, other.local_addr().unwrap());
    assert_eq!(window, 10);
}

#[test]
fn successor_owns_inherited_listeners() {
    let test = "embedded-handed-on";
    let Some(world) = World::new(test).filter(|world| can_attach(test, &world.near)) else {
        return;
    };
    let mut relay = relay_with_long_timeouts(&world, "10.1.0.1:0");
    let (socket, first) = (relay.socket(), relay.process.0.id());
    relay.hand_over();
    assert_eq!(relay.process.0.wait().unwrap().code(), Some(0));
    let (_first, grown) = with_large_windows(&world, || from_afar(&world, relay.listen()));
    until("what was seen", || learned(&world, &socket) == Some(grown.into()));
    assert_eq!(from_afar(&world, relay.listen()).1, grown);
    end_successor(&world, &socket, first);
    assert!(grown >= 80, "{grown}");
}

#[test]
fn hints_and_kill_switch_select_process() {
    let test = "embedded-hints";
    let Some(world) = World::new(test).filter(|world| can_attach(test, &world.near)) else {
        return;
    };
    let relay = relay_with_long_timeouts(&world, "10.1.0.1:0");
    let socket = relay.socket();
    let _first = with_large_windows(&world, || from_afar(&world, relay.listen()));
    until("a large window", || learned(&world, &socket) >= Some(80));
    asked(&world, &socket, &["hint", "10.1.0.0/16", "--at-most", "20", "--for", "10min"]);
    until("the hint's window", || learned(&world, &socket) == Some(20));
    assert_eq!(from_afar(&world, relay.listen()).1, 20);
    assert_eq!(asked(&world, &socket, &["off"])["daemon"], true);
    assert!(world.directory.join("jumpstart-relay.off").exists());
    assert_eq!(from_afar(&world, relay.listen()).1, 10);
    asked(&world, &socket, &["on"]);
    until("what is open to be learned again", || learned(&world, &socket) == Some(20));
    assert_eq!(from_afar(&world, relay.listen()).1, 20);
}

#[test]
fn learner_works_with_ipv6() {
    let test = "embedded-ipv6";
    let Some(world) = World::new(test).filter(|world| can_attach(test, &world.near)) else {
        return;
    };
    let destination = world.remote.run(|| TcpListener::bind("[fd10::2]:0").unwrap()).unwrap();
    let port = destination.local_addr().unwrap().port();
    let relay = relay_with_long_timeouts(&world, "[fd10::1]:0");
    let gateway = before(&world, &relay);
    let session = || Session::over(&world, gateway.listen(), &destination);
    let route = "fd10::/64 dev wa proto kernel metric 256";
    let _first = with_large_windows_over(&world, route, session);
    until("a large window", || learned_of(&world, &relay.socket(), "fd10::2") >= Some(80));
    let _next = session();
    assert!(windows_to(&world, port).iter().all(|window| *window >= 80));
    let (_accepted, window) = from_afar(&world, relay.listen());
    assert!(window >= 80, "{window}");
    assert_eq!(world.initial_window_to("fd10::2"), 10);
}

/// A relay on the near host with a path of limited rate, which it has learned.
struct OnAPath {
    relay: Learning,
    gateway: Learning,
    destination: TcpListener,
    remote: String,
    routes: String,
    /// Kept open, so that its entry is not forgotten.
    bulk: Session,
    world: World,
    _lab: Lab,
}

impl OnAPath {
    /// Sets up the path; `None`, with a message, where that is not possible.
    fn learn(test: &str, mode: &str) -> Option<Self> {
        let (lab, world, remote) = on_the_lab(test)?;
        let destination =
            world.remote.run(|| TcpListener::bind((remote.as_str(), 0)).unwrap()).unwrap();
        let routes = world.routes(&[]);
        // No connection is held back for comparison, so that all with a share jump.
        let learn = format!(
            "[jumpstart.learn]\nmode = '{mode}'\ncontrol_share = 0\n[jumpstart.observe]\n\
             interval = '100 ms'\n"
        );
        let text = relay_text_at("127.0.0.1:0", &learn);
        let relay = Learning::start(&world, "relay", "relay.toml", &text, &[]);
        assert_eq!(relay.ready["jumpstart"]["through"], "sockops", "{}", relay.ready);
        let gateway = before(&world, &relay);
        let mut bulk = Session::over(&world, gateway.listen(), &destination);
        bulk.carry(BULK_BYTES);
        let path = Self { relay, gateway, destination, remote, routes, bulk, world, _lab: lab };
        until("a learned rate", || path.rate().is_some());
        Some(path)
    }

    fn socket(&self) -> PathBuf {
        self.relay.socket()
    }

    /// Returns the learned rate of the remote host.
    fn rate(&self) -> Option<f64> {
        known_of(&self.world, &self.socket(), &self.remote)["pacing_mbps"].as_f64()
    }

    /// Returns the rate limits of the legs to the destination that have jumped: only those have
    /// one.
    fn held(&self) -> Vec<f64> {
        let port = self.destination.local_addr().unwrap().port();
        let limit = |info: TcpInfo| info.pacing_limit.map(Bandwidth::as_mbps);
        connections_to(&self.world, port).into_iter().filter_map(limit).collect()
    }

    /// Opens sessions until one has jumped and has sent nothing yet.
    fn jump(&self) -> Vec<Session> {
        let mut sessions = Vec::new();
        until("a jump", || {
            sessions.push(Session::over(&self.world, self.gateway.listen(), &self.destination));
            !self.held().is_empty()
        });
        sessions
    }
}

#[test]
fn paced_jump_is_released_across_an_upgrade() {
    let Some(mut path) = OnAPath::learn("embedded-paced", "paced") else { return };
    let mut sessions = path.jump();
    assert!(path.held().iter().sum::<f64>() <= path.rate().unwrap() * 1.06, "{:?}", path.held());
    let (socket, first) = (path.socket(), path.relay.process.0.id());
    path.relay.hand_over();
    until("the successor's learner", || {
        asked(&path.world, &socket, &["status"])["process"].as_u64() != Some(first.into())
    });
    assert!(!path.held().is_empty(), "who has sent nothing is held still");
    sessions.iter_mut().for_each(|session| session.carry(BULK_BYTES));
    until("the limits to be lifted", || path.held().is_empty());
    // The old process ends with its last session, and its program with it.
    drop(sessions);
    let OnAPath { mut relay, gateway, remote, routes, bulk, world, _lab, .. } = path;
    drop((bulk, gateway));
    assert_eq!(relay.process.0.wait().unwrap().code(), Some(0));
    assert_eq!((world.initial_window_to(&remote), world.routes(&[])), (10, routes));
    end_successor(&world, &socket, first);
    assert_eq!(world.initial_window_to(&remote), 10);
}

#[test]
fn strict_relay_paces_jumps_and_releases_them() {
    let Some(path) = OnAPath::learn("embedded-strict", "strict") else { return };
    let mut sessions = path.jump();
    let known = known_of(&path.world, &path.socket(), &path.remote);
    assert_eq!((&known["in_force"], known["pacing_mbps"].is_null()), (&true.into(), false));
    assert_eq!(path.world.initial_window_to(&path.remote), 10, "what others open");
    sessions.iter_mut().for_each(|session| session.carry(BULK_BYTES));
    until("the limits to be lifted", || path.held().is_empty());
    assert_eq!(path.world.routes(&[]), path.routes);
}
