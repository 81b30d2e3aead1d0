//! Loops: datagrams that gateways sent, and that are intercepted again, without end.
//!
//! Deliveries leave with few hops left, so that no gateway on their path intercepts them
//! (`net::interception`). Datagrams to a relay or remote gateway keep the usual hop limit. So a
//! node that intercepts its own host's datagrams marks those that it sends itself, and does not
//! start where a relay or remote gateway is on its host, whose datagrams carry no mark.

use tradewind_config::packet::{DeliveryPolicy, Intercepted};
use tradewind_grant::Hop;
use tradewind_telemetry::limited;

use super::context::Context;
use super::local::Local;
use super::routes::Route;
use crate::NodeError;

/// Refuses to intercept this host's own datagrams where a relay or remote endpoint of
/// `delivery` is on this host.
///
/// # Errors
/// Names the address that is one.
pub(super) fn check_local_output(
    context: &Context,
    intercepted: &Intercepted,
    delivery: &DeliveryPolicy,
) -> Result<(), NodeError> {
    if !intercepted.local_output {
        return Ok(());
    }
    let further = |hop: &Hop| context.config.further_addresses.get(&hop.identity);
    let mut all = delivery.named().flat_map(|hop| {
        std::iter::once(hop.address).chain(further(hop).into_iter().flatten().copied())
    });
    let Some(here) = all.find(|address| context.access.is_here(address.ip())) else {
        return Ok(());
    };
    let problem = format!(
        "{here}, a relay or the remote gateway, is on this host: what it sends would be \
         intercepted again, without end; leave `local_output` out, or run it on another host"
    );
    Err(NodeError::Config { key: "tproxy.local_output".into(), problem })
}

/// Returns whether a route must not lead over `hops`, as members place them: one is on this
/// host, whose own datagrams the route intercepts.
pub(super) fn would_loop(context: &Context, route: &Route, hops: &[Hop]) -> bool {
    let intercepts_own =
        |route: &Route| matches!(&route.local, Local::Intercepted(it) if it.local_output);
    if !intercepts_own(route) {
        return false;
    }
    let Some(here) = hops.iter().find(|hop| context.access.is_here(hop.address.ip())) else {
        return false;
    };
    limited!(
        warn, context.refusal_lines, None, address = %here.address,
        "a relay or remote gateway on this host is not used: what it sends would be taken as \
         well, without end (`local_output`)"
    );
    true
}

#[cfg(test)]
mod tests {
    use tradewind_packet::message::Carriage;

    use super::super::test_harness::{Hosts, anybody, forwarded, gateway, identity};
    use super::*;
    use crate::config::NodeConfig;
    use crate::engine::now;
    use crate::handover::Handover;
    use tradewind_config::packet::{Path, TrafficSource};

    fn intercepting(remote: &str, local_output: bool) -> Path {
        let hop = Hop { address: remote.parse().unwrap(), identity: identity(4).public() };
        let delivery = DeliveryPolicy { carriage: Carriage::DIRECT, ..forwarded(hop, Vec::new()) };
        let destinations = vec!["198.51.100.0/24:*".parse().unwrap()];
        let source =
            TrafficSource::Intercepted(Intercepted { destinations, local_output, port: 0 });
        Path { source, delivery }
    }

    #[test]
    fn local_output_with_remote_on_host_is_refused() {
        let mut hosts = Hosts::new([(1, gateway(1))]);
        let engine = hosts.at(1);
        let mut check = |remote, local_output| {
            let path = intercepting(remote, local_output);
            let added = engine.add_path(now(), &mut Handover::default(), &path);
            // Without the privileges it fails later, and with another error.
            added.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let line = check("127.0.0.1:7001", true);
        assert!(
            line.starts_with("tproxy.local_output: 127.0.0.1:7001, a relay or the remote"),
            "{line}"
        );
        assert!(!check("127.0.0.1:7001", false).contains("local_output"));
        assert!(!check("198.51.100.9:7001", true).contains("local_output"));
    }

    #[test]
    fn deliveries_are_marked_with_local_output() {
        let with = |local_output| NodeConfig {
            paths: vec![intercepting("198.51.100.9:7001", local_output)],
            ..anybody(1)
        };
        assert_eq!(with(true).delivery_mark(), Some(tradewind_net::interception::OWN_MARK));
        assert_eq!(with(false).delivery_mark(), None);
    }
}
