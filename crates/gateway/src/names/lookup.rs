//! The lookups of relays' names.

use std::collections::BTreeSet;

use tokio::time::{sleep, timeout};
use tradewind_grant::Destination;
use tradewind_stream::failure::plain;
use tradewind_units::Duration;

use crate::loops::without_loops;
use crate::service::GatewayService;

/// Interval between lookups of all names. Chosen: the time for which resolvers keep answers, or
/// less.
const REFRESH: Duration = Duration::from_secs(30);
/// That interval while a name has no answer.
const RETRY: Duration = Duration::from_secs(2);
/// Delay between a failed dial and the next lookup. Chosen: a relay that is gone costs one lookup a
/// second.
const SOON: Duration = Duration::from_secs(1);
/// Longest lookup of one name. Chosen: the time for which resolvers wait for one server.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps the addresses of named relays up to date.
pub(crate) async fn follow(service: &GatewayService) {
    let routes = &service.opener.routes;
    let mut version = routes.version();
    loop {
        version.mark_unchanged();
        let pause = if look_up(service).await { REFRESH } else { RETRY };
        tokio::select! {
            () = sleep(pause) => {}
            () = routes.names.ask_again.notified() => sleep(SOON).await,
            changed = version.changed() => if changed.is_err() { return },
        }
    }
}

/// Looks all names up; returns whether every relay has an address.
pub(crate) async fn look_up(service: &GatewayService) -> bool {
    let mut all_known = true;
    let (routes, resolver) = (&service.opener.routes, &service.opener.dialler.resolver);
    let names = &routes.names;
    let wanted: BTreeSet<_> = routes.current().table.names().cloned().collect();
    for wanted in wanted {
        let Destination::Name { name, port } = &wanted else { continue };
        let asking = resolver.resolve(name.as_str(), *port, &service.relay_lookups);
        let missed = |why: &str| names.missed(&wanted, why);
        match timeout(LOOKUP_TIMEOUT, asking).await {
            Ok(Ok(addresses)) if !addresses.is_empty() => {
                match without_loops(&service.tproxy, addresses) {
                    Ok(addresses) => names.found(&wanted, &addresses),
                    Err(why) => all_known &= missed(&why),
                }
            }
            Ok(Ok(_)) => all_known &= missed("its name has no address"),
            Ok(Err(error)) => all_known &= missed(&format!("its name: {}", plain(&error))),
            Err(_) => all_known &= missed("its name: no answer in time"),
        }
    }
    routes.place_again();
    all_known
}
