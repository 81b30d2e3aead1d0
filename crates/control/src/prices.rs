//! Costs of machines and traffic, by the prices that plans are made with.

use std::sync::LazyLock;

use tradewind_model::Catalogue;
use tradewind_model::catalogue::Egress;
use tradewind_model::cost::Prices;
use tradewind_plan::RelayType;
use tradewind_units::{Bandwidth, Bytes, HostId, Money, RegionId, RelayId, RelayTypeId, SiteId};

use crate::draft::DAY_MS;
use crate::event::Refusal;
use crate::message::SessionTally;
use crate::record::{Host, Role};
use crate::state::State;
use crate::terms::Terms;

/// The catalogue of prices and machines.
pub(crate) static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);
static PRICES: LazyLock<Prices> = LazyLock::new(|| Prices::Catalogue(Box::new(CATALOGUE.clone())));

/// Hours for which machines are paid: plans are for a day.
const HOURS: u64 = 24;

/// Returns the prices of traffic: the operator's, or the catalogue's.
pub(crate) fn of_traffic(terms: &Terms) -> Prices {
    terms.egress_usd_per_gb.map_or_else(|| PRICES.clone(), Prices::Flat)
}

/// Returns the relay type of this name: the operator's, a machine of the catalogue, paid for a day,
/// or CP's.
pub(crate) fn relay_type(terms: &Terms, id: &RelayTypeId) -> Result<RelayType, Refusal> {
    if let Some(own) = terms.relay_types.get(id) {
        return Ok(own.of_type(id));
    }
    let standard = RelayType::cloudpilot();
    if *id == standard.id {
        return Ok(standard);
    }
    let Some(vm) = CATALOGUE.vm_type(id.as_str()) else {
        let close = CATALOGUE.did_you_mean_machine(id.as_str());
        return Err(Refusal::Invalid(format!(
            "no relay type `{id}`: expected `standard`, a type of your terms, or a machine of the \
             catalogue such as `gcp:e2-medium`{close}"
        )));
    };
    Ok(RelayType {
        id: id.clone(),
        capacity: vm.egress_cap.min(vm.ingress_cap),
        per_connection: vm.per_connection_cap,
        set_up: vm.usd_per_hour.times(HOURS),
    })
}

/// Put between the name of a type and a lower capacity, in kbit/s, that owners of hosts state.
const BOUND: &str = ":bound-";

/// Returns the type that a host offers as a relay: that of its role, of a lower capacity where its
/// owner bounds the rate.
pub(crate) fn offered(state: &State, host: &Host) -> Option<(RegionId, RelayTypeId)> {
    let Role::Relay { region, relay_type: id } = &host.role else { return None };
    let bound = state.seen.get(&host.id).and_then(|seen| seen.bounds?.rate);
    let terms = &state.settings.terms;
    let is_less = |rate: &Bandwidth| relay_type(terms, id).is_ok_and(|it| *rate < it.capacity);
    let named = |rate: Bandwidth| {
        RelayTypeId::new(format!("{id}{BOUND}{}", (rate.as_bps() / 1000).max(1))).ok()
    };
    let bounded = bound.filter(is_less).and_then(named);
    Some((region.clone(), bounded.unwrap_or_else(|| id.clone())))
}

/// Returns the relay type of this name, which a host offers.
pub(crate) fn offered_type(terms: &Terms, id: &RelayTypeId) -> Result<RelayType, Refusal> {
    let Some((name, kbps)) = id.as_str().split_once(BOUND) else {
        return relay_type(terms, id);
    };
    let bound = kbps.parse().ok().and_then(|kbps: u64| Bandwidth::from_bps(kbps * 1000).ok());
    let known = RelayTypeId::new(name).ok().and_then(|name| relay_type(terms, &name).ok());
    let (Some(bound), Some(of_role)) = (bound, known) else {
        return relay_type(terms, id);
    };
    let per_connection = of_role.per_connection.map(|most| most.min(bound));
    let capacity = of_role.capacity.min(bound);
    Ok(RelayType { id: id.clone(), capacity, per_connection, ..of_role })
}

/// Returns the cost of the relay machine of a host for so many milliseconds.
pub(crate) fn machine(terms: &Terms, host: &Host, millis: u64) -> Money {
    let Role::Relay { relay_type, .. } = &host.role else { return Money::ZERO };
    let relay_type = self::relay_type(terms, relay_type);
    relay_type
        .map_or(Money::ZERO, |of_a_day| of_a_day.set_up.times(millis).shared_by(DAY_MS as u32))
}

/// Returns the cost of a day of the relay machine of a host.
#[must_use]
pub fn machine_of_day(state: &State, host: &HostId) -> Option<Money> {
    let host = state.hosts.get(host)?;
    Some(machine(&state.settings.terms, host, DAY_MS))
}

/// Returns the region of a relay.
pub(crate) fn region<'a>(state: &'a State, relay: &RelayId) -> Option<&'a RegionId> {
    match &state.hosts.get(&HostId::new(relay.as_str()).ok()?)?.role {
        Role::Relay { region, .. } => Some(region),
        Role::Gateway { .. } | Role::Probe { .. } => None,
    }
}

/// Returns the cost of what a relay sent to another place, in a rate test; nothing if it is no
/// relay.
pub(crate) fn test_traffic(terms: &Terms, from: &Role, to: &SiteId, bytes: u64) -> Money {
    let Role::Relay { region, .. } = from else { return Money::ZERO };
    let region_of = RegionId::new(to.as_str()).ok();
    // A site is no region of the catalogue.
    let known = region_of.filter(|to| CATALOGUE.region(to).is_some());
    cost(terms, Some(region), known.as_ref(), bytes)
}

/// Returns the cost of bytes from a region to another one, or to the Internet. A region without a
/// price costs as much as in CP.
pub(crate) fn cost(
    terms: &Terms,
    from: Option<&RegionId>,
    to: Option<&RegionId>,
    bytes: u64,
) -> Money {
    let to = to.map_or(Egress::Internet, Egress::Region);
    let flat = Prices::cloudpilot();
    let listed = |from| PRICES.egress(from, to).ok().or(flat.egress(from, to).ok());
    let price = from.and_then(|from| terms.egress_usd_per_gb.or_else(|| listed(from)));
    price.map_or(Money::ZERO, |price| price.cost_of(Bytes::new(bytes)))
}

/// Returns the cost of what each relay of these sessions' path sent, in the path's order: towards
/// the destination to the next relay or the Internet, and back to the relay before or the Internet.
pub(crate) fn traffic(state: &State, tally: &SessionTally) -> Vec<Money> {
    let regions: Vec<Option<&RegionId>> =
        tally.path.iter().map(|relay| region(state, relay)).collect();
    let terms = &state.settings.terms;
    let region_at = |at: Option<usize>| regions.get(at?).copied().flatten();
    let of = |(at, from): (usize, &Option<&RegionId>)| {
        cost(terms, *from, region_at(Some(at + 1)), tally.bytes_up)
            + cost(terms, *from, region_at(at.checked_sub(1)), tally.bytes_down)
    };
    regions.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_type_names_the_near_one_in_a_line() {
        let refusal = |id: &str| {
            let id = RelayTypeId::new(id).unwrap();
            relay_type(&Terms::default(), &id).unwrap_err().to_string()
        };
        let near = refusal("gcp:e2-medum");
        assert!(near.ends_with("; did you mean `gcp:e2-medium`?"), "{near}");
        let far = refusal("rack");
        assert!(far.starts_with("no relay type `rack`: expected `standard`, "), "{far}");
        assert!(near.len().max(far.len()) < 200, "{near} {far}");
    }
}
