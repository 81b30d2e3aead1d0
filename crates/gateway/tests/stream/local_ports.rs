//! A host without a local port left.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use tradewind_desired::{Route, RouteTable};
use tradewind_net::iproute::{self, Tool};
use tradewind_net::netns::Namespace;
use tradewind_net::sysctl;
use tradewind_relay::Relay;
use tradewind_stream::Resolver;

use super::drain::get;
use crate::refusal::connect_through;
use crate::support::{
    Running, connect, echo, gateway_config, grant_for, loopback, operator, relay_config,
    route_over, skipped, wait_for,
};

/// Takes every free local port for `to`.
fn take_all(to: SocketAddr) -> Vec<TcpStream> {
    (0..100).map_while(|_| TcpStream::connect(to).ok()).collect()
}

#[test]
fn missing_ipv6_is_not_port_exhaustion() {
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return skipped(&error),
    };
    iproute::batch(&namespace, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
    let test = || {
        let mut config = relay_config();
        config.metrics = Some(loopback());
        let relay = Running::relay(&config);
        let mut config = gateway_config(route_over(std::slice::from_ref(&relay)));
        config.connect = vec![loopback()];
        let gateway = Running::gateway(&config);
        sysctl::set("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
        let (status, body) = connect_through(&gateway, "[::1]:9");
        assert_eq!(status, "HTTP/1.1 502 Bad Gateway", "{body}");
        let expected =
            format!("relay 1 ({}): dial [::1]:9: network is unreachable\n", relay.address());
        assert_eq!(body, expected);
        let metrics = get(relay.handle.metrics_addr().unwrap(), "/metrics");
        assert!(metrics.contains("tradewind_relay_local_ports_exhausted_total 0\n"), "{metrics}");
    };
    namespace.run(test).unwrap();
}

#[test]
fn exhausted_ports_fail_over() {
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return skipped(&error),
    };
    iproute::batch(&namespace, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
    let test = || {
        let to = echo();
        let resolver = |last| Resolver::by(move |_| vec![[127, 0, 0, last].into()]);
        // The ports that are exhausted for one relay are free for the other.
        let aside = TcpListener::bind(("127.0.0.2", to.port())).unwrap();
        let relays = [1, 2].map(|last| {
            let relay = Relay::bind(&relay_config()).unwrap().with_resolver(resolver(last));
            Running::relay_of(relay)
        });
        let routes = relays.iter().map(|relay| route_over(std::slice::from_ref(relay))).collect();
        let mut config = gateway_config(Route::Refuse);
        config.routes = RouteTable::with_fallbacks(Vec::new(), routes).unwrap();
        config.connect = vec![loopback()];
        let key = config.identity.clone().unwrap();
        let mut grant = grant_for(key.public()).unverified().clone();
        grant.destinations.push("*.example.com:*".parse().unwrap());
        config.grant = Some(grant.sign(&operator()).unwrap());
        let gateway = Running::gateway(&config);
        sysctl::set("net.ipv4.ip_local_port_range", "61000 61015").unwrap();
        let used = take_all(to);
        assert!((1..=16).contains(&used.len()), "{}", used.len());
        let mut stream = connect(gateway.address());
        write!(stream, "CONNECT db.example.com:{} HTTP/1.1\r\n\r\n", to.port()).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        aside.accept().unwrap();
    };
    namespace.run(test).unwrap();
}

#[test]
fn exhausted_ports_are_reported_and_recover() {
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return skipped(&error),
    };
    iproute::batch(&namespace, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
    let test = || {
        let to = echo();
        let mut config = relay_config();
        config.metrics = Some(loopback());
        let relay = Running::relay(&config);
        let mut config = gateway_config(route_over(std::slice::from_ref(&relay)));
        config.connect = vec![loopback()];
        let gateway = Running::gateway(&config);
        sysctl::set("net.ipv4.ip_local_port_range", "61000 61015").unwrap();
        let used = take_all(to);
        assert!((1..=16).contains(&used.len()), "{}", used.len());
        let (status, body) = connect_through(&gateway, &to.to_string());
        assert_eq!(status, "HTTP/1.1 503 Service Unavailable", "{body}");
        let why = "no local port is left for that address (net.ipv4.ip_local_port_range)";
        assert_eq!(body, format!("relay 1 ({}): dial {to}: {why}\n", relay.address()));
        let metrics = get(relay.handle.metrics_addr().unwrap(), "/metrics");
        assert!(metrics.contains("tradewind_relay_local_ports_exhausted_total 1\n"), "{metrics}");
        drop(used);
        wait_for("a port", || {
            let mut stream = connect(gateway.address());
            write!(stream, "CONNECT {to} HTTP/1.1\r\n\r\n").unwrap();
            let mut status = [0; 12];
            stream.read_exact(&mut status).is_ok() && status.ends_with(b"200")
        });
    };
    namespace.run(test).unwrap();
}
