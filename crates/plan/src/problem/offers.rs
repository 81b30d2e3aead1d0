//! Offers: the relay types that may be set up in each region.

use tradewind_units::{Money, RegionId};

use super::{Inputs, Offer, RelayType};

/// Returns all relay types in all regions as offers, with those that run already and those not
/// available marked.
pub(super) fn all(inputs: &Inputs) -> Vec<Offer> {
    let offer = |region: &RegionId, relay_type: &RelayType| {
        let key = (region.clone(), relay_type.id.clone());
        let most = inputs.most.get(&key).copied();
        let running = inputs.running.relays.get(&key).copied().unwrap_or(0);
        Offer {
            region: region.clone(),
            relay_type: relay_type.clone(),
            running: most.map_or(running, |most| running.min(most)),
            is_offered: !inputs.not_offered.contains(&key) && most != Some(0),
            most,
            beyond: Money::ZERO,
        }
    };
    let regions = inputs.regions.iter();
    regions.flat_map(|region| inputs.relay_types.iter().map(move |t| offer(region, t))).collect()
}
