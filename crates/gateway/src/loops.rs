//! Loops: connections of relays that are intercepted as well, without end.
//!
//! Connections that relays and gateways dial have few hops left, and are not intercepted for that
//! (`net::interception`). Relays that set no hop limit could dial the same destination through the
//! gateway again, and one request would become as many sessions as the limits allow. So a gateway
//! that intercepts its own host's connections accepts no relay there.

use std::net::{IpAddr, SocketAddr};

use tradewind_desired::{Hop, Route, RouteTable};
use tradewind_net::local_address::LocalAddresses;

use tradewind_config::Tproxy;
use tradewind_stream::StreamError;
use tradewind_stream::error::refused;

/// Returns whether `ip` is an address of this host. Binding to it is no test: with
/// `net.ipv4.ip_nonlocal_bind` any address can be bound.
fn is_local(ip: IpAddr) -> bool {
    LocalAddresses::open().and_then(|addresses| addresses.contains(ip)).unwrap_or(false)
}

/// Filters the addresses of a relay's name. If this host's own connections are intercepted, the
/// relay must not be on this host, since its dials would be intercepted as well, without end.
///
/// # Errors
/// The reason, if no address remains.
pub(super) fn without_loops(
    entries: &[Tproxy],
    addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, String> {
    let Some(index) = entries.iter().position(|tproxy| tproxy.local_output) else {
        return Ok(addresses);
    };
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| is_local(address.ip()));
    match here.first().filter(|_| elsewhere.is_empty()) {
        None => Ok(elsewhere),
        Some(here) => Err(format!(
            "its name means this host ({here}): what it dials would be taken as well, without end; \
             leave `tproxy[{index}].local_output` out, or run the relay on another host"
        )),
    }
}

/// Refuses to intercept this host's own connections if a relay of `routes` is on this host: the
/// relay's dials would be intercepted as well, without end.
pub(super) fn check_local_output(
    entries: &[Tproxy],
    routes: &RouteTable,
) -> Result<(), StreamError> {
    let Some(index) = entries.iter().position(|tproxy| tproxy.local_output) else { return Ok(()) };
    let hops = routes.routes().flat_map(|route| match route {
        Route::Relays(hops) => hops.as_slice(),
        _ => &[],
    });
    let is_here = |hop: &&Hop| hop.is_placed() && is_local(hop.address.ip());
    let Some(here) = hops.into_iter().find(is_here) else { return Ok(()) };
    let problem = format!(
        "relay `{}` ({}) is on this host: what it dials would be taken as well, without end; leave \
         `local_output` out, or run the relay on another host",
        here.name, here.address
    );
    Err(refused(format!("tproxy[{index}].local_output"), problem))
}

#[cfg(test)]
mod tests {
    use tradewind_net::netns::Namespace;

    use super::*;
    use tradewind_config::GatewayConfig;

    #[test]
    fn bindable_address_is_not_always_local() {
        let host = match Namespace::create() {
            Ok(host) => host,
            Err(error) => {
                println!("SKIPPED: an address that can be bound: {error}");
                return;
            }
        };
        let answers = host.run(|| {
            std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").map(|()| {
                let bound = std::net::UdpSocket::bind("192.0.2.77:0").is_ok();
                (bound, is_local([192, 0, 2, 77].into()))
            })
        });
        assert_eq!(answers.unwrap().unwrap(), (true, false));
    }

    #[test]
    fn local_output_with_local_relay_is_refused() {
        let identity = |seed| tradewind_grant::IdentityKey::from_entropy([seed; 32]).public();
        let (near, remote) = (identity(7), identity(8));
        let config = |at: &str, own: bool| {
            let text = format!(
                "direct = true
                [routes]
                default = ['near', 'remote']
                [[routes.relay]]
                name = 'near'
                address = '198.51.100.1:7000'
                identity = '{near}'
                [[routes.relay]]
                name = 'remote'
                address = '{at}'
                identity = '{remote}'
                [[tproxy]]
                destinations = ['10.0.0.0/8:443']
                local_output = {own}"
            );
            // Identity and grant are tested elsewhere.
            toml::from_str::<GatewayConfig>(&text).unwrap()
        };
        let check = |at, own| {
            let config = config(at, own);
            check_local_output(&config.tproxy, &config.routes).map_err(|error| error.to_string())
        };
        let line = check("127.0.0.1:7000", true).unwrap_err();
        let expected = "configuration, `tproxy[0].local_output`: relay `remote` (127.0.0.1:7000) \
                        is on this host: ";
        assert!(line.starts_with(expected), "{line}");
        check("127.0.0.1:7000", false).unwrap();
        check("198.51.100.2:7000", true).unwrap();
        check("remote.example.com:7000", true).unwrap();
        // A name is checked by its addresses.
        let found = |own, addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
            without_loops(&config("198.51.100.2:7000", own).tproxy, addresses)
        };
        let (here, there) = ("127.0.0.1:7000", "198.51.100.2:7000");
        assert_eq!(found(true, &[here, there]), Ok(vec![there.parse().unwrap()]));
        assert_eq!(found(false, &[here]), Ok(vec![here.parse().unwrap()]));
        let line = found(true, &[here]).unwrap_err();
        assert!(line.starts_with("its name means this host (127.0.0.1:7000): "), "{line}");
    }
}
