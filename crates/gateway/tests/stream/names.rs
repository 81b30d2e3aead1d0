//! Relays that routes give by name.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use tradewind_config::{Forward, GatewayConfig, RelayConfig};
use tradewind_gateway::Gateway;
use tradewind_grant::IdentityKey;
use tradewind_stream::Resolver;

use crate::support::{
    Running, connect, echo, forward, gateway_config_text, identity, relay_config_text, wait_for,
};

/// The addresses of the name, which a test may change.
type Meaning = Arc<Mutex<Vec<IpAddr>>>;

fn relay_at(ip: &str, port: u16, key: &IdentityKey) -> Running {
    let mut config = RelayConfig::parse(&relay_config_text(key)).unwrap();
    config.listen = vec![SocketAddr::new(ip.parse().unwrap(), port)];
    Running::relay(&config)
}

/// Starts a gateway whose forward goes over the relay `relay.example.com`.
fn gateway(relay: &Running, meaning: &Meaning) -> Running {
    let text = gateway_config_text(&identity(), &relay.hop("relay"), echo());
    let at = relay.address();
    let named = text.replace(&at.to_string(), &format!("relay.example.com:{}", at.port()));
    assert_ne!(text, named);
    let mut config = GatewayConfig::parse(&named).unwrap();
    let to = config.forward[0].to.clone();
    config.forward = vec![Forward { to, ..forward(at) }];
    let meaning = Arc::clone(meaning);
    let answer = move |name: &str| match name {
        "relay.example.com" => meaning.lock().unwrap().clone(),
        _ => Vec::new(),
    };
    Running::gateway_of(Gateway::bind(&config).unwrap().with_resolver(Resolver::by(answer)))
}

/// Returns true if a session through the gateway carries data.
fn carries(gateway: &Running) -> bool {
    let mut stream: TcpStream = connect(gateway.address());
    let mut answer = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut answer).is_ok()
}

#[test]
fn relay_name_follows_a_move() {
    let key = identity();
    let relay = relay_at("127.0.0.1", 0, &key);
    let port = relay.address().port();
    let meaning: Meaning = Arc::new(Mutex::new(vec![[127, 0, 0, 1].into()]));
    let gateway = gateway(&relay, &meaning);
    assert!(carries(&gateway), "from the first session on");
    drop(relay);
    assert!(!carries(&gateway));
    *meaning.lock().unwrap() = vec![[127, 0, 0, 2].into()];
    let moved = relay_at("127.0.0.2", port, &key);
    wait_for("a session over the relay that has moved", || carries(&gateway));
    drop(moved);
}

#[test]
fn wrong_identity_tries_the_next_address() {
    let (key, other) = (identity(), identity());
    let relay = relay_at("127.0.0.1", 0, &key);
    let impostor = relay_at("127.0.0.3", relay.address().port(), &other);
    let both = vec![[127, 0, 0, 3].into(), [127, 0, 0, 1].into()];
    let gateway = gateway(&relay, &Arc::new(Mutex::new(both)));
    assert!(!carries(&gateway), "the name decides nothing");
    assert_eq!(impostor.handle.snapshot().bytes_up, 0);
    wait_for("a session over the other address", || carries(&gateway));
}

#[test]
fn unresolved_relay_name_is_reported_and_retried() {
    let relay = relay_at("127.0.0.1", 0, &identity());
    let meaning = Meaning::default();
    let gateway = gateway(&relay, &meaning);
    assert!(!carries(&gateway));
    wait_for("the outcome", || gateway.handle.snapshot().outcome("name_not_found") == 1);
    *meaning.lock().unwrap() = vec![[127, 0, 0, 1].into()];
    wait_for("a session over the relay", || carries(&gateway));
}
