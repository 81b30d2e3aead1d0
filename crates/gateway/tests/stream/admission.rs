//! No peer can take all places: neither one that opens unauthenticated connections, nor one tenant.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tradewind_grant::Status;

use super::refusal::{header, sealer};
use crate::support::{
    Chain, Running, connect, echo, forward, gateway_config, open_relay_config, patient,
    relay_config, route_over, wait_for,
};

/// No connection ends for its silence here, however long a loaded machine takes for a flood: what
/// ends was evicted.
const NEVER: Duration = Duration::from_secs(3600);

/// Opens a connection from another address of loopback.
fn connect_from(source: &str, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let source: SocketAddr = format!("{source}:0").parse().unwrap();
    socket.bind(&source.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Returns true if `stream` gets back the bytes that it sends.
fn echoes(mut stream: &TcpStream) -> bool {
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut [0; 4]).is_ok()
}

#[test]
fn idle_flood_at_other_workers_is_evicted() {
    let mut config = relay_config();
    (config.workers, config.limits.unauthenticated) = (Some(8), 8);
    config.timeouts.header = NEVER;
    let chain = Chain::of(vec![Running::relay(&config)], echo());
    let relay = &chain.relays[0];
    // More than fit: the last ones remain, at few of the workers.
    let idle: Vec<_> = (0..200).map(|_| connect_from("127.0.0.9", relay.address())).collect();
    wait_for("the idle ones", || relay.handle.snapshot().accepted >= 200);
    let honest: Vec<_> = (0..76).map(|_| chain.connect()).filter(echoes).collect();
    assert_eq!(honest.len(), 76, "none is refused");
    assert!(relay.handle.snapshot().outcome("evicted") >= 192, "{:?}", relay.handle.snapshot());
    drop(idle);
}

#[test]
fn flood_evicts_no_slow_session() {
    let mut config = open_relay_config();
    (config.workers, config.limits.unauthenticated) = (Some(2), 40);
    config.timeouts.header = NEVER;
    let relays = [Running::relay(&config)];
    let address = relays[0].address();
    let mut sealer = sealer();
    // As those of a distant gateway: open, and silent until long after others have begun and ended.
    let mut honest: Vec<_> = (0..10).map(|_| connect(address)).collect();
    wait_for("the honest ones", || relays[0].handle.snapshot().accepted == 10);
    for _ in 0..20 {
        let flood: Vec<_> = (0..100).map(|_| connect_from("127.0.0.9", address)).collect();
        drop(flood);
    }
    let _idle: Vec<_> = (0..100).map(|_| connect_from("127.0.0.9", address)).collect();
    wait_for("the flood", || relays[0].handle.snapshot().accepted == 2110);
    for (nonce, stream) in (1u8..).zip(&mut honest) {
        stream.write_all(&header(&mut sealer, &relays, nonce, Duration::ZERO)).unwrap();
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[6], Status::Ok as u8, "{nonce}");
    }
}

#[test]
fn greedy_tenant_leaves_capacity() {
    let mut config = relay_config();
    config.limits.sessions = 60;
    let relays = [Running::relay(&config)];
    let gateway = || {
        let mut config = gateway_config(route_over(&relays));
        config.forward = vec![forward(echo())];
        Running::gateway(&config)
    };
    let (first, second) = (gateway(), gateway());
    let open = |gateway: &Running, many: usize| -> Vec<TcpStream> {
        let streams: Vec<_> = (0..many).map(|_| connect(gateway.address())).collect();
        streams.iter().for_each(patient);
        streams.into_iter().filter(echoes).collect()
    };
    let all_of_one = open(&first, 80);
    assert_eq!(all_of_one.len(), 30, "half is what one alone gets");
    assert_eq!(relays[0].handle.snapshot().outcome("gateway_full"), 50);
    let other = open(&second, 12);
    assert_eq!(other.len(), 12, "the second gets in at once");
}
