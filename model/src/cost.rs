//! What a path costs: the egress of each of its relays. Setting relays up is paid once for each, however
//! many flows share it, and so is the planner's business.
//!
//! Clouds charge what leaves a relay, by where it goes: the next relay's region, or the Internet
//! behind the last relay. What enters is free [CP V-A], and so is what the source sends: it would
//! pay that on the direct path too.

use std::collections::BTreeMap;

use tradewind_units::{Bytes, Money, PricePerGb, RegionId};

use crate::ModelError;
use crate::catalogue::{Catalogue, Egress};

/// Setting up a relay, in dollars [CP VII-A].
pub const FLAT_SET_UP_USD: f64 = 0.50;
/// Each GB that a relay sends, in dollars [CP VII-A].
pub const FLAT_USD_PER_GB: f64 = 0.08;

/// Where prices of egress come from.
#[derive(Debug, Clone, PartialEq)]
pub enum Prices {
    /// The same for each GB that leaves any relay, as in CP's evaluation.
    Flat(PricePerGb),
    /// As the clouds list them.
    Catalogue(Box<Catalogue>),
    /// Stated pair by pair, from a region to another or (none) to the Internet; what is not stated
    /// costs as elsewhere.
    Stated {
        /// The prices.
        pairs: BTreeMap<(RegionId, Option<RegionId>), PricePerGb>,
        /// For all other pairs.
        otherwise: Box<Prices>,
    },
}

impl Prices {
    /// CP's: 8 cents for each GB that a relay sends [CP VII-A].
    #[must_use]
    pub fn cloudpilot() -> Self {
        Self::Flat(PricePerGb::from_usd_per_gb(FLAT_USD_PER_GB).expect("8 cents is a price"))
    }

    /// The date of the catalogue whose prices hold, if one's do.
    #[must_use]
    pub fn dated(&self) -> Option<&str> {
        match self {
            Self::Flat(_) => None,
            Self::Catalogue(catalogue) => Some(catalogue.dated()),
            Self::Stated { otherwise, .. } => otherwise.dated(),
        }
    }

    /// Each GB that leaves `from` for `to`.
    ///
    /// # Errors
    /// When the catalogue knows no such region or price.
    pub fn egress(&self, from: &RegionId, to: Egress<'_>) -> Result<PricePerGb, ModelError> {
        match self {
            Self::Flat(price) => Ok(*price),
            Self::Catalogue(catalogue) => catalogue.egress_price(from, to),
            Self::Stated { pairs, otherwise } => {
                let to_region = match to {
                    Egress::Region(region) => Some(region.clone()),
                    Egress::Internet => None,
                };
                let stated = pairs.get(&(from.clone(), to_region));
                stated.map_or_else(|| otherwise.egress(from, to), |price| Ok(*price))
            }
        }
    }
}

/// What egress costs when `volume` is carried over `relays`, the last of which sends to `destination`.
///
/// # Errors
/// When the catalogue knows no such region or price.
pub fn path_egress(
    prices: &Prices,
    relays: &[RegionId],
    destination: Egress<'_>,
    volume: Bytes,
) -> Result<Money, ModelError> {
    let mut egress = Money::ZERO;
    for (index, relay) in relays.iter().enumerate() {
        let next = relays.get(index + 1).map_or(destination, Egress::Region);
        egress = egress + prices.egress(relay, next)?.cost_of(volume);
    }
    Ok(egress)
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
        let egress =
            |relays: &[RegionId]| path_egress(&prices, relays, Egress::Internet, TWO_GB).unwrap();
        assert_eq!(egress(&[]), Money::ZERO);
        assert_eq!(egress(&relays[..1]), usd(0.16));
        assert_eq!(egress(&relays), usd(0.32));
    }

    #[test]
    fn each_hop_is_priced_by_where_it_goes() {
        let prices = Prices::Catalogue(Box::new(Catalogue::builtin()));
        let relays = [region("aws:us-east-1"), region("aws:sa-east-1")];
        let egress = path_egress(&prices, &relays, Egress::Internet, TWO_GB).unwrap();
        assert_eq!(egress, usd(2.0 * 0.02 + 2.0 * 0.15));
        let inside = Egress::Region(&relays[1]);
        let egress = path_egress(&prices, &relays[..1], inside, TWO_GB).unwrap();
        assert_eq!(egress, usd(2.0 * 0.02));
    }

    #[test]
    fn a_stated_price_goes_before_the_others() {
        let (here, there) = (region("aws:us-east-1"), region("aws:sa-east-1"));
        let price = |usd| PricePerGb::from_usd_per_gb(usd).unwrap();
        let pairs = BTreeMap::from([
            ((here.clone(), Some(there.clone())), price(0.5)),
            ((here.clone(), None), price(0.25)),
        ]);
        let prices = Prices::Stated { pairs, otherwise: Box::new(Prices::cloudpilot()) };
        assert_eq!(prices.egress(&here, Egress::Region(&there)), Ok(price(0.5)));
        assert_eq!(prices.egress(&here, Egress::Internet), Ok(price(0.25)));
        assert_eq!(prices.egress(&there, Egress::Internet), Ok(price(0.08)));
    }

    #[test]
    fn an_unknown_region_is_named() {
        let prices = Prices::Catalogue(Box::new(Catalogue::builtin()));
        let error = path_egress(&prices, &[region("aws:moon")], Egress::Internet, TWO_GB);
        assert_eq!(error.unwrap_err().to_string(), "region `aws:moon` is not in the catalogue");
    }
}
