//! The transparent gateway: connections of other programs and hosts are intercepted (TPROXY) and
//! carried over the overlay to their original destinations.
//!
//! The rules are the kernel's (`net::interception`) and end with the process, however it ends: new
//! connections are then no longer intercepted. Open ones are reset by the next host that receives a
//! packet of theirs.

use std::net::SocketAddr;

use tradewind_config::{GatewayConfig, Tproxy};
use tradewind_net::interception::{AddressRange, Capture, Interception, make_transparent};
use tradewind_stream::StreamError;
use tradewind_stream::process::server::Server;
use tradewind_stream::resolver::Lookups;

use super::service::{Kind, Listener};

/// Returns the listeners of all entries, in order.
pub(super) fn listeners(config: &GatewayConfig) -> Vec<(SocketAddr, Listener)> {
    let listener = |tproxy: &Tproxy| Listener {
        kind: Kind::Tproxy { destinations: tproxy.destinations.clone() },
        number: 0,
        own_lookups: Lookups::of_many(),
        flow: tproxy.flow.clone(),
        tells_client: tproxy.send_proxy.is_some(),
        accept_proxy: tproxy.accept_proxy.clone(),
    };
    let all = config.tproxy.iter();
    all.flat_map(|tproxy| tproxy.listeners().map(move |address| (address, listener(tproxy))))
        .collect()
}

/// Makes the listeners of these entries, which are the last ones, transparent, and sets the
/// interception rules.
pub(super) fn intercept(
    entries: &[Tproxy],
    server: &Server,
) -> Result<Vec<Interception>, StreamError> {
    let count: usize = entries.iter().map(|tproxy| tproxy.listeners().count()).sum();
    let addresses = server.handle().local_addrs();
    let mut next = addresses.len() - count;
    let mut interceptions = Vec::with_capacity(entries.len());
    for tproxy in entries {
        let numbers = next..next + tproxy.listeners().count();
        next = numbers.end;
        for listener in server.listeners().filter(|(number, _)| numbers.contains(number)) {
            make_transparent(&listener.1)?;
        }
        let destination = |rule: &tradewind_grant::DestinationRule| {
            let (base, prefix_bits) = rule.range()?;
            Some(AddressRange { base, prefix_bits, ports: rule.ports() })
        };
        let capture = Capture {
            destinations: tproxy.destinations.iter().filter_map(destination).collect(),
            listeners: addresses[numbers].to_vec(),
            local_output: tproxy.local_output,
        };
        let interception = Interception::set(&capture)?;
        tracing::info!("taking connections by nftables table {}", interception.table());
        interceptions.push(interception);
    }
    Ok(interceptions)
}
