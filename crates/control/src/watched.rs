//! The neighbours whose connections a host's agent watches.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_grant::Destination;
use tradewind_units::{HostId, RelayId, SiteId};

use crate::message::Watched;
use crate::record::{FlowRecord, Host, PlanRecord, Role};
use crate::state::State;

/// Returns the neighbours of each host on the paths of the plans of the rollout, both ways, and the
/// direct destinations of each gateway's flows, where those are addresses.
pub(crate) fn watched(state: &State) -> BTreeMap<HostId, BTreeSet<Watched>> {
    let mut gateways: BTreeMap<&SiteId, Vec<&Host>> = BTreeMap::new();
    for host in state.hosts.values().filter(|host| host.is_trusted) {
        if let Role::Gateway { site } = &host.role {
            gateways.entry(site).or_default().push(host);
        }
    }
    let of_site = |site: &SiteId| gateways.get(site).into_iter().flatten().copied();
    let mut watched: BTreeMap<HostId, BTreeSet<Watched>> = BTreeMap::new();
    let mut watch = |host: &HostId, neighbour: Watched| {
        watched.entry(host.clone()).or_default().insert(neighbour);
    };
    for flow in state.flows.values() {
        for (gateway, to) in of_site(&flow.from).filter_map(|it| Some((it, destination(flow)?))) {
            watch(&gateway.id, to);
        }
    }
    let numbers = [state.rollout.from, state.rollout.to].into_iter().flatten();
    for plan in numbers.filter_map(|number| state.plans.get(&number)) {
        for (flow, path) in plan.paths() {
            let relays: Vec<&Host> =
                path.iter().filter_map(|relay| host_of(state, plan, relay)).collect();
            let (Some(first), Some(last)) = (relays.first(), relays.last()) else { continue };
            for gateway in of_site(&flow.from) {
                watch(&gateway.id, of_host(first));
                watch(&first.id, of_host(gateway));
            }
            for pair in relays.windows(2) {
                watch(&pair[0].id, of_host(pair[1]));
                watch(&pair[1].id, of_host(pair[0]));
            }
            if let Some(to) = destination(flow) {
                watch(&last.id, to);
            }
        }
    }
    watched
}

fn host_of<'a>(state: &'a State, plan: &PlanRecord, relay: &RelayId) -> Option<&'a Host> {
    state.hosts.get(plan.hosts.get(relay)?).filter(|host| host.is_trusted)
}

fn of_host(host: &Host) -> Watched {
    Watched { site: host.role.site(), address: host.address }
}

fn destination(flow: &FlowRecord) -> Option<Watched> {
    match &flow.to {
        Destination::Address(to) => Some(Watched { site: flow.to_site.clone(), address: to.ip() }),
        Destination::Name { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Bench, PATH, host};

    #[test]
    fn hosts_watch_their_neighbours_on_paths_both_ways() {
        let bench = Bench::in_service();
        let sites = |id: &str| -> Vec<String> {
            let watched = &bench.state().documents[&host(id)].watched;
            watched.iter().map(|watched| format!("{} {}", watched.site, watched.address)).collect()
        };
        assert_eq!(sites("office-1"), ["far7 198.51.100.7", "gcp:europe-north1 192.0.2.2"]);
        assert_eq!(sites(PATH[0]), ["gcp:asia-east1 192.0.2.3", "office 192.0.2.1"]);
        assert_eq!(sites(PATH[1]), ["far7 198.51.100.7", "gcp:europe-north1 192.0.2.2"]);
    }
}
