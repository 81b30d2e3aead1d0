//! What a path costs: setting up its relays, and the egress of each.
//!
//! Clouds charge what leaves a relay, by where it goes: the next relay's region, or the Internet
//! behind the last relay. What enters is free [CP V-A], and so is what the source sends: it would
//! pay that on the direct path too. Set-up is counted here for each relay as if it were its own;
//! that relays are shared between flows is the planner's business.

use serde::Serialize;
use tradewind_units::{Bytes, Money, PricePerGb, RegionId};

use crate::ModelError;
use crate::catalogue::{Catalogue, Egress};

/// Setting up a relay, in dollars [CP VII-A].
pub const FLAT_SET_UP_USD: f64 = 0.50;
/// Each GB that a relay sends, in dollars [CP VII-A].
pub const FLAT_USD_PER_GB: f64 = 0.08;

/// Where prices come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Prices {
    /// The same everywhere, as in CP's evaluation.
    Flat {
        /// For each relay.
        set_up: Money,
        /// For each GB that leaves a relay.
        egress: PricePerGb,
    },
    /// As the clouds list them.
    Catalogue {
        /// For each relay: so many hours of its machine, as the caller reckons.
        set_up: Money,
        /// For what leaves a relay.
        catalogue: Box<Catalogue>,
    },
}

impl Prices {
    /// CP's: 50 cents for each relay, 8 cents for each GB it sends [CP VII-A].
    #[must_use]
    pub fn cloudpilot() -> Self {
        Self::Flat {
            set_up: Money::from_usd(FLAT_SET_UP_USD).expect("half a dollar is money"),
            egress: PricePerGb::from_usd_per_gb(FLAT_USD_PER_GB).expect("8 cents is a price"),
        }
    }

    /// Setting up one relay.
    #[must_use]
    pub const fn set_up(&self) -> Money {
        match self {
            Self::Flat { set_up, .. } | Self::Catalogue { set_up, .. } => *set_up,
        }
    }

    /// Each GB that leaves `from` for `to`.
    ///
    /// # Errors
    /// When the catalogue knows no such region or price.
    pub fn egress(&self, from: &RegionId, to: Egress<'_>) -> Result<PricePerGb, ModelError> {
        match self {
            Self::Flat { egress, .. } => Ok(*egress),
            Self::Catalogue { catalogue, .. } => catalogue.egress_price(from, to),
        }
    }
}

/// The cost of one flow's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PathCost {
    /// Setting up the relays, if nobody shares them.
    pub set_up: Money,
    /// Egress of all relays.
    pub egress: Money,
}

impl PathCost {
    /// Both together.
    #[must_use]
    pub const fn total(&self) -> Money {
        self.set_up.saturating_add(self.egress)
    }
}

/// What it costs to carry `volume` over `relays`, the last of which sends to `destination`.
///
/// # Errors
/// When the catalogue knows no such region or price.
pub fn path_cost(
    prices: &Prices,
    relays: &[RegionId],
    destination: Egress<'_>,
    volume: Bytes,
) -> Result<PathCost, ModelError> {
    let set_up = prices.set_up().times(relays.len() as u64);
    let mut egress = Money::ZERO;
    for (index, relay) in relays.iter().enumerate() {
        let next = relays.get(index + 1).map_or(destination, Egress::Region);
        egress = egress + prices.egress(relay, next)?.cost_of(volume);
    }
    Ok(PathCost { set_up, egress })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(id: &str) -> RegionId {
        RegionId::new(id).unwrap()
    }

    fn usd(amount: f64) -> Money {
        Money::from_usd(amount).unwrap()
    }

    const TWO_GB: Bytes = Bytes::new(2_000_000_000);

    #[test]
    fn cloudpilots_prices_give_cloudpilots_costs() {
        let prices = Prices::cloudpilot();
        let relays = [region("gcp:europe-north1"), region("gcp:asia-northeast1")];
        let cost = |relays: &[RegionId]| path_cost(&prices, relays, Egress::Internet, TWO_GB);
        assert_eq!(cost(&[]).unwrap().total(), Money::ZERO);
        assert_eq!(cost(&relays[..1]).unwrap().total(), usd(0.66));
        assert_eq!(cost(&relays).unwrap().total(), usd(1.32));
    }

    #[test]
    fn each_hop_is_priced_by_where_it_goes() {
        let catalogue = Box::new(Catalogue::builtin());
        let prices = Prices::Catalogue { set_up: usd(0.04), catalogue };
        let relays = [region("aws:us-east-1"), region("aws:sa-east-1")];
        let cost = path_cost(&prices, &relays, Egress::Internet, TWO_GB).unwrap();
        assert_eq!(cost.egress, usd(2.0 * 0.02 + 2.0 * 0.15));
        assert_eq!(cost.set_up, usd(0.08));
        let inside = Egress::Region(&relays[1]);
        let cost = path_cost(&prices, &relays[..1], inside, TWO_GB).unwrap();
        assert_eq!(cost.egress, usd(2.0 * 0.02));
    }

    #[test]
    fn an_unknown_region_is_named() {
        let catalogue = Box::new(Catalogue::builtin());
        let prices = Prices::Catalogue { set_up: Money::ZERO, catalogue };
        let error = path_cost(&prices, &[region("aws:moon")], Egress::Internet, TWO_GB);
        assert_eq!(error.unwrap_err().to_string(), "region `aws:moon` is not in the catalogue");
    }
}
