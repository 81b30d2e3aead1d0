//! Destinations that are refused although rules cover them: the own host, private networks behind a
//! name, relays; and refusals that reveal no address.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_desired::{Route, RouteTable};
use tradewind_gateway::Gateway;
use tradewind_net::iproute::{Tool, batch};
use tradewind_net::netns::Namespace;
use tradewind_relay::Relay;
use tradewind_stream::Resolver;

use crate::refusal::connect_through;
use crate::support::{
    Running, connect, echo, gateway_config, grant_for, loopback, operator, patient, relay_config,
    route_over, skipped, wait_for,
};

const BANNER: &[u8] = b"-NOAUTH";
const INTERNET: [&str; 2] = ["0.0.0.0/0:*", "[::]/0:*"];
const FORBIDDEN: &str = "HTTP/1.1 403 Forbidden";

/// Returns a gateway's configuration for CONNECT whose grant allows `rules`.
fn granted(route: Route, rules: &[&str]) -> GatewayConfig {
    let mut config = gateway_config(route);
    let key = config.identity.clone().unwrap();
    let mut grant = grant_for(key.public()).unverified().clone();
    grant.destinations = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    config.grant = Some(grant.sign(&operator()).unwrap());
    config.connect = vec![loopback()];
    config.allow_loopback = false;
    config
}

/// Returns a relay's configuration with these rules; only next hops may be on loopback.
fn allowing(rules: &[&str]) -> RelayConfig {
    let mut config = relay_config();
    config.policy.destinations = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    config
}

/// Starts a service of the host itself, on all its addresses; returns its port and its count of
/// connections.
fn service_of_the_host() -> (u16, Arc<AtomicUsize>) {
    let v4 = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = v4.local_addr().unwrap().port();
    let options = tradewind_net::tcp::SocketOptions::default();
    let v6 = format!("[::]:{port}").parse().unwrap();
    let v6 = tradewind_net::tcp::listen(v6, 1, 16, &options).unwrap().remove(0);
    v6.set_nonblocking(false).unwrap();
    let reached = Arc::<AtomicUsize>::default();
    for listener in [v4, v6] {
        let reached = Arc::clone(&reached);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                reached.fetch_add(1, Relaxed);
                let _gone = std::io::Write::write_all(&mut stream.unwrap(), BANNER);
            }
        });
    }
    (port, reached)
}

fn set(host: &Namespace, lines: &[&str]) {
    let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
    batch(host, Tool::Ip, &lines).unwrap();
}

/// Runs a test in a network of its own; skips it where there can be none.
fn in_namespace(test: impl FnOnce(&Namespace) + Send) {
    match Namespace::create() {
        Ok(host) => {
            set(&host, &["link set lo up"]);
            host.run(|| test(&host)).unwrap();
        }
        Err(error) => skipped(&error),
    }
}

/// Opens a path through `gateway` and reads the banner behind it.
fn banner_through(gateway: &Running, target: &str) -> Vec<u8> {
    let mut stream = connect(gateway.address());
    patient(&stream);
    std::io::Write::write_all(&mut stream, format!("CONNECT {target} HTTP/1.1\r\n\r\n").as_bytes())
        .unwrap();
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn local_host_addresses_are_refused() {
    in_namespace(|host| {
        set(
            host,
            &[
                "link add left type veth peer name right",
                "link set left up",
                "addr add 93.184.216.7/24 dev left",
                "addr add 2606:2800:220::7/64 dev left nodad",
            ],
        );
        // The kernel adds the route of an IPv6 address a moment after the address.
        wait_for("the route of the IPv6 address", || {
            UdpSocket::bind("[::]:0").unwrap().connect("[2606:2800:220::7]:9").is_ok()
        });
        let (port, reached) = service_of_the_host();
        let resolver = || Resolver::by(|_| vec!["93.184.216.7".parse().unwrap()]);
        let relay = Relay::bind(&allowing(&INTERNET)).unwrap().with_resolver(resolver());
        let relay = Running::relay_of(relay);
        let over_relay = granted(route_over(std::slice::from_ref(&relay)), &INTERNET);
        let direct = granted(Route::Direct, &INTERNET);
        let gateways = [over_relay, direct]
            .map(|config| Gateway::bind(&config).unwrap().with_resolver(resolver()))
            .map(Running::gateway_of);
        let own = ["93.184.216.7", "[2606:2800:220::7]", "93.184.216.9", "own.example.com"];
        // One of them appears while relay and gateway run.
        set(host, &["addr add 93.184.216.9/24 dev left"]);
        for (gateway, ip) in gateways.iter().flat_map(|gateway| own.map(|ip| (gateway, ip))) {
            let (status, body) = connect_through(gateway, &format!("{ip}:{port}"));
            assert_ne!(status, "HTTP/1.1 200 Connection established", "{ip}");
            let is_name = ip == "own.example.com";
            assert!(is_name || body.contains("is an address of this host itself"), "{body}");
            assert!(!is_name || !body.contains("93.184"), "{body}");
        }
        assert_eq!(reached.load(Relaxed), 0, "a service of the host was reached");
    });
}

#[test]
fn local_host_address_with_a_rule_is_reached() {
    in_namespace(|host| {
        set(host, &["link add left type veth peer name right", "link set left up"]);
        set(host, &["addr add 93.184.216.7/24 dev left"]);
        let (port, reached) = service_of_the_host();
        let own = format!("93.184.216.7/32:{port}");
        let relay = Running::relay(&allowing(&["0.0.0.0/0:*", &own]));
        let over_relay = granted(route_over(std::slice::from_ref(&relay)), &INTERNET);
        let mut direct = granted(Route::Direct, &INTERNET);
        let named = vec![(own.parse().unwrap(), Route::Direct)];
        direct.routes = RouteTable::new(named, Route::Refuse).unwrap();
        for config in [over_relay, direct] {
            let gateway = Running::gateway(&config);
            let answer = banner_through(&gateway, &format!("93.184.216.7:{port}"));
            assert!(answer.ends_with(BANNER), "{}", String::from_utf8_lossy(&answer));
        }
        assert_eq!(reached.load(Relaxed), 2);
    });
}

/// Returns a resolver for one address, and the names that it looked up.
fn resolver_for(ip: &str) -> (Resolver, Arc<Mutex<Vec<String>>>) {
    let (ip, asked): (IpAddr, Arc<Mutex<Vec<String>>>) = (ip.parse().unwrap(), Arc::default());
    let looked_up = Arc::clone(&asked);
    let resolver = Resolver::by(move |name| {
        looked_up.lock().unwrap().push(name.to_owned());
        vec![ip]
    });
    (resolver, asked)
}

#[test]
fn name_grant_opens_no_private_network() {
    in_namespace(|host| {
        let server = Namespace::create().unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), server.as_raw_fd());
        let link = format!("link add left type veth peer name right netns {path}");
        set(host, &[&link, "link set left up", "addr add 10.9.0.1/24 dev left"]);
        set(&server, &["link set right up", "addr add 10.9.0.77/24 dev right"]);
        let listener = server.run(|| TcpListener::bind("10.9.0.77:443").unwrap()).unwrap();
        let reached = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&reached);
        std::thread::spawn(move || {
            for _gone in listener.incoming() {
                count.fetch_add(1, Relaxed);
            }
        });
        let (resolver, _) = resolver_for("10.9.0.77");
        let somebody_elses = ["10.9.0.0/24:443", "*.tenant.example:443"];
        let relay = Relay::bind(&allowing(&somebody_elses)).unwrap().with_resolver(resolver);
        let relay = Running::relay_of(relay);
        let route = || route_over(std::slice::from_ref(&relay));
        let by_name = Running::gateway(&granted(route(), &["*.tenant.example:443"]));
        let (status, body) = connect_through(&by_name, "db.tenant.example:443");
        assert_eq!(status, FORBIDDEN);
        assert!(body.ends_with("db.tenant.example: no address that may be dialled\n"), "{body}");
        assert!(!body.contains("10.9"), "{body}");
        assert_eq!(reached.load(Relaxed), 0);
        let both = granted(route(), &["*.tenant.example:443", "10.9.0.0/24:443"]);
        drop(banner_through(&Running::gateway(&both), "db.tenant.example:443"));
        wait_for("the one with a rule for the address", || reached.load(Relaxed) == 1);
    });
}

#[test]
fn name_outside_the_policy_is_not_resolved() {
    let (resolver, asked) = resolver_for("10.9.0.77");
    let config = allowing(&["*.other.example:443", "10.0.0.0/8:443"]);
    let relay = Running::relay_of(Relay::bind(&config).unwrap().with_resolver(resolver));
    let route = route_over(std::slice::from_ref(&relay));
    let gateway = Running::gateway(&granted(route, &["*.tenant.example:443", "0.0.0.0/0:443"]));
    for name in ["db.tenant.example", "jenkins.corp.example"] {
        let (status, body) = connect_through(&gateway, &format!("{name}:443"));
        assert_eq!(status, FORBIDDEN, "{body}");
        assert!(body.contains(&format!("no rule of this relay allows {name}:443")), "{body}");
    }
    assert!(asked.lock().unwrap().is_empty(), "{asked:?}");
}

#[test]
fn name_outside_the_grant_does_not_leave_the_gateway() {
    let relay = Running::relay(&relay_config());
    let route = route_over(std::slice::from_ref(&relay));
    let gateway = Running::gateway(&granted(route, &["10.9.0.0/24:443", "*.example.com:443"]));
    let (_, body) = connect_through(&gateway, "jenkins.corp.example:443");
    assert!(body.contains("grant does not cover destination jenkins.corp.example:443"), "{body}");
    assert_eq!(relay.handle.snapshot().accepted, 0);
}

#[test]
fn ungranted_name_looks_nonexistent() {
    let answers = |ips: Vec<IpAddr>| {
        let resolver = Resolver::by(move |_| ips.clone());
        let relay = Relay::bind(&allowing(&INTERNET)).unwrap().with_resolver(resolver);
        let relay = Running::relay_of(relay);
        let route = route_over(std::slice::from_ref(&relay));
        let gateway = Running::gateway(&granted(route, &INTERNET));
        let (status, body) = connect_through(&gateway, "jenkins.corp.example:443");
        (status, body.replace(&relay.address().to_string(), "relay"))
    };
    let not_there = answers(Vec::new());
    assert!(not_there.1.ends_with("resolve jenkins.corp.example: no address\n"), "{not_there:?}");
    for ip in ["10.9.0.77", "127.0.0.1", "169.254.169.254"] {
        assert_eq!(answers(vec![ip.parse().unwrap()]), not_there, "{ip}");
    }
}

#[test]
fn undialable_name_hides_its_address() {
    let nobody = crate::support::closed_port();
    let ip = nobody.address.ip();
    let resolver = Resolver::by(move |_| vec![ip]);
    let relay = Relay::bind(&relay_config()).unwrap().with_resolver(resolver);
    let relay = Running::relay_of(relay);
    let route = route_over(std::slice::from_ref(&relay));
    let gateway = Running::gateway(&granted(route, &["*.example.com:*", "127.0.0.0/8:*"]));
    let target = format!("db.example.com:{}", nobody.address.port());
    let (_, body) = connect_through(&gateway, &target);
    assert!(body.ends_with(&format!("dial {target}: connection refused\n")), "{body}");
}

/// The answers of relays and gateways to requests for a relay as a destination.
#[test]
fn relays_are_refused_as_destinations() {
    let mut last = relay_config();
    last.policy.next_hops.clear();
    let second = Running::relay(&last);
    let mut named = relay_config();
    // Not even a rule for this one address allows it.
    let rule = format!("127.0.7.1/32:{}", second.address().port());
    named.policy.destinations.push(rule.parse().unwrap());
    let first = Running::relay(&named);
    let relays = [first, second];
    let [over_first, over_both] = [&relays[..1], &relays[..]]
        .map(|relays| Running::gateway(&granted(route_over(relays), &["127.0.0.0/8:*"])));
    let mut direct = granted(Route::Direct, &["127.0.0.0/8:*"]);
    direct.allow_loopback = true;
    let rule = |to: SocketAddr| format!("{}/32:{}", to.ip(), to.port()).parse().unwrap();
    let aside = (rule(loopback_with_port()), route_over(&relays[1..]));
    let named = (rule(relays[1].address()), Route::Direct);
    direct.routes = RouteTable::new(vec![aside, named], Route::Refuse).unwrap();
    let direct = Running::gateway(&direct);
    let before = relays[1].handle.snapshot().accepted;
    for gateway in [&over_first, &direct] {
        let target = relays[1].address().to_string();
        let (status, body) = connect_through(gateway, &target);
        assert_eq!(status, FORBIDDEN, "{body}");
        let expected = format!("{target} is a relay, which may be the next hop of a route");
        assert!(body.contains(&expected), "{body}");
    }
    assert_eq!(
        relays[1].handle.snapshot().accepted,
        before,
        "a relay was dialled as a destination"
    );
    // Nor is one of the route's own relays one of its destinations.
    let (status, body) = connect_through(&over_both, &relays[0].address().to_string());
    assert_eq!(status, FORBIDDEN, "{body}");
    assert!(body.contains("is a relay, which may be the next hop"), "{body}");
}

fn loopback_with_port() -> SocketAddr {
    SocketAddr::new(loopback().ip(), 9)
}

#[test]
fn neighbour_of_a_relay_is_reached() {
    let relays = [relay_config(), relay_config()].map(|config| Running::relay(&config));
    let gateway = Running::gateway(&granted(route_over(&relays), &["127.0.0.0/8:*"]));
    let mut stream: TcpStream = connect(gateway.address());
    let to = echo();
    std::io::Write::write_all(&mut stream, format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes())
        .unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}
