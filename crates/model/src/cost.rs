//! Cost of a path: the egress of each of its relays. Setting up a relay is paid once, however many
//! flows share it, so the planner counts that.
//!
//! Clouds charge for what leaves a relay, by its receiver: the next relay's region, or the Internet
//! behind the last relay. Ingress is free [CP V-A]. What a source inside a cloud sends is charged
//! likewise: the price depends on the first hop, so a relay may lower the bill. CP counts it as the
//! same on every path; so does a flat price, which applies to relays alone.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::{Bytes, Money, PricePerGb, RegionId};

use crate::ModelError;
use crate::catalogue::{Catalogue, Egress};

/// Setting up a relay, in dollars [CP VII-A].
pub const FLAT_SET_UP_USD: f64 = 0.50;
/// Each GB that a relay sends, in dollars [CP VII-A].
pub const FLAT_USD_PER_GB: f64 = 0.08;

/// Source of egress prices.
#[derive(Debug, Clone, PartialEq)]
pub enum Prices {
    /// The same for each GB that leaves any relay, as in CP's evaluation.
    Flat(PricePerGb),
    /// As the clouds list them.
    Catalogue(Box<Catalogue>),
    /// Stated pair by pair, from a region to another or (none) to the Internet; a pair that is not
    /// stated costs as elsewhere.
    Stated {
        /// The prices.
        pairs: BTreeMap<(RegionId, Option<RegionId>), PricePerGb>,
        /// Prices of all other pairs.
        otherwise: Box<Prices>,
    },
}

impl Prices {
    /// Returns CP's prices: 8 cents for each GB that a relay sends [CP VII-A].
    #[must_use]
    pub fn cloudpilot() -> Self {
        Self::Flat(PricePerGb::from_usd_per_gb(FLAT_USD_PER_GB).expect("8 cents is a price"))
    }

    /// Returns the dates, by cloud, of the catalogue's prices between these regions and to the
    /// Internet; stated prices have no date.
    #[must_use]
    pub fn dates(&self, regions: &[RegionId]) -> BTreeMap<String, BTreeSet<String>> {
        let mut dates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for from in regions {
            let others = regions.iter().filter(|to| *to != from).map(Egress::Region);
            for to in others.chain([Egress::Internet]) {
                if let Some(dated) = self.dated(from, to) {
                    dates.entry(from.cloud().to_owned()).or_default().insert(dated.to_owned());
                }
            }
        }
        dates
    }

    /// Returns the date of the price of traffic from `from` to `to`, if it is a catalogue's.
    #[must_use]
    pub fn dated(&self, from: &RegionId, to: Egress<'_>) -> Option<&str> {
        match self {
            Self::Flat(_) => None,
            Self::Catalogue(catalogue) => {
                catalogue.egress_price_with_source(from, to).ok().map(|price| price.dated)
            }
            Self::Stated { pairs, otherwise } => {
                let is_stated = pairs.contains_key(&(from.clone(), receiver(to)));
                if is_stated { None } else { otherwise.dated(from, to) }
            }
        }
    }

    /// Returns the price of each GB that leaves `from` for `to`.
    ///
    /// # Errors
    /// When the catalogue knows no such region or price.
    pub fn egress(&self, from: &RegionId, to: Egress<'_>) -> Result<PricePerGb, ModelError> {
        match self {
            Self::Flat(price) => Ok(*price),
            Self::Catalogue(catalogue) => catalogue.egress_price(from, to),
            Self::Stated { pairs, otherwise } => {
                let stated = pairs.get(&(from.clone(), receiver(to)));
                stated.map_or_else(|| otherwise.egress(from, to), |price| Ok(*price))
            }
        }
    }
}

impl Prices {
    /// Returns the price of each GB that a site in the region `source` sends to `to`: free outside
    /// every cloud, and free by a flat price, which applies to relays alone.
    ///
    /// # Errors
    /// When the catalogue knows no such region or price.
    pub fn source_egress(
        &self,
        source: Option<&RegionId>,
        to: Egress<'_>,
    ) -> Result<PricePerGb, ModelError> {
        let Some(from) = source else { return Ok(PricePerGb::FREE) };
        match self {
            Self::Flat(_) => Ok(PricePerGb::FREE),
            Self::Catalogue(catalogue) => catalogue.egress_price(from, to),
            Self::Stated { pairs, otherwise } => {
                let stated = pairs.get(&(from.clone(), receiver(to)));
                stated.map_or_else(|| otherwise.source_egress(source, to), |price| Ok(*price))
            }
        }
    }
}

/// Returns the region that traffic goes to, none for the Internet.
fn receiver(to: Egress<'_>) -> Option<RegionId> {
    match to {
        Egress::Region(region) => Some(region.clone()),
        Egress::Internet => None,
    }
}

/// Returns the cost of egress when `volume` is carried over `relays`, the last of which sends to
/// `destination`, from a site in the region `source`, or outside every cloud.
///
/// # Errors
/// When the catalogue knows no such region or price.
pub fn path_egress(
    prices: &Prices,
    source: Option<&RegionId>,
    relays: &[RegionId],
    destination: Egress<'_>,
    volume: Bytes,
) -> Result<Money, ModelError> {
    let first = relays.first().map_or(destination, Egress::Region);
    let mut egress = prices.source_egress(source, first)?.cost_of(volume);
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
    fn cloudpilots_prices_give_its_costs() {
        let prices = Prices::cloudpilot();
        let relays = [region("gcp:europe-north1"), region("gcp:asia-northeast1")];
        let egress = |relays: &[RegionId]| {
            path_egress(&prices, None, relays, Egress::Internet, TWO_GB).unwrap()
        };
        assert_eq!(egress(&[]), Money::ZERO);
        assert_eq!(egress(&relays[..1]), usd(0.16));
        assert_eq!(egress(&relays), usd(0.32));
    }

    #[test]
    fn each_hop_is_priced_by_where_it_goes() {
        let prices = Prices::Catalogue(Box::new(Catalogue::builtin()));
        let relays = [region("aws:us-east-1"), region("aws:sa-east-1")];
        let egress = path_egress(&prices, None, &relays, Egress::Internet, TWO_GB).unwrap();
        assert_eq!(egress, usd(2.0 * 0.02 + 2.0 * 0.15));
        let inside = Egress::Region(&relays[1]);
        let egress = path_egress(&prices, None, &relays[..1], inside, TWO_GB).unwrap();
        assert_eq!(egress, usd(2.0 * 0.02));
    }

    #[test]
    fn source_in_a_cloud_pays_for_its_first_hop() {
        let prices = Prices::Catalogue(Box::new(Catalogue::builtin()));
        let (sao_paulo, ashburn) = (region("aws:sa-east-1"), region("aws:us-east-1"));
        let egress = |prices: &Prices, source: Option<&RegionId>, relays: &[RegionId]| {
            path_egress(prices, source, relays, Egress::Internet, TWO_GB).unwrap()
        };
        let relays = [ashburn.clone()];
        assert_eq!(egress(&prices, Some(&sao_paulo), &[]), usd(2.0 * 0.15));
        assert_eq!(egress(&prices, Some(&sao_paulo), &relays), usd(2.0 * (0.138 + 0.09)));
        assert_eq!(egress(&prices, Some(&ashburn), &relays), usd(2.0 * 0.09), "inside it is free");
        assert_eq!(egress(&prices, None, &[]), Money::ZERO);
        assert_eq!(egress(&Prices::cloudpilot(), Some(&sao_paulo), &[]), Money::ZERO);
        // By list prices an Azure source reaches its own cloud's other regions for less than the
        // Internet.
        let (tokyo, iowa) = (region("azure:japaneast"), region("azure:centralus"));
        let direct = egress(&prices, Some(&tokyo), &[]);
        let first = prices.source_egress(Some(&tokyo), Egress::Region(&iowa)).unwrap();
        assert!(first.cost_of(TWO_GB) < direct);
    }

    #[test]
    fn stated_price_takes_precedence() {
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
    fn prices_have_their_own_dates() {
        let text = "dated = '2026-11-20'
            [regions]
            'x:a' = { label = 'A', continent = 'europe', latitude = 1, longitude = 1 }
            'y:b' = { label = 'B', continent = 'europe', latitude = 2, longitude = 2 }
            [[prices]]\ncloud = 'x'\nsource = 's'\ndated = '2023-02'
            rules = [{ from = '*', to = 'internet', usd_per_gb = 0.1 }]
            [[prices]]\ncloud = 'y'\nsource = 's'\ndated = '2024-05'
            rules = [{ from = '*', to = 'internet', usd_per_gb = 0.1 }]";
        let prices = Prices::Catalogue(Box::new(Catalogue::parse(text).unwrap()));
        let regions = [region("x:a"), region("y:b")];
        let dates = |prices: &Prices| -> Vec<String> {
            let dates = prices.dates(&regions).into_iter();
            dates.map(|(cloud, dates)| format!("{cloud} {dates:?}")).collect()
        };
        assert_eq!(dates(&prices), ["x {\"2023-02\"}", "y {\"2024-05\"}"]);
        let price = PricePerGb::from_usd_per_gb(0.5).unwrap();
        let pairs = BTreeMap::from([
            ((regions[0].clone(), None), price),
            ((regions[0].clone(), Some(regions[1].clone())), price),
        ]);
        let stated = Prices::Stated { pairs, otherwise: Box::new(prices) };
        assert_eq!(dates(&stated), ["y {\"2024-05\"}"]);
        assert!(dates(&Prices::cloudpilot()).is_empty());
    }

    #[test]
    fn unknown_region_is_named() {
        let prices = Prices::Catalogue(Box::new(Catalogue::builtin()));
        let error = path_egress(&prices, None, &[region("aws:moon")], Egress::Internet, TWO_GB);
        assert_eq!(error.unwrap_err().to_string(), "region `aws:moon` is not in the catalogue");
    }
}
