//! Sharing of a machine's cap between the flows of one host \[TRN\]: connections to many regions,
//! one egress.
//!
//! A cloud limits what a VM sends in all, and often what one connection carries; so a source with
//! many flows is limited like a relay is. Long-lived TCP flows behind one limit come out near
//! max-min fairness: none gets more than it asks, and what it leaves is shared by the others.

use tradewind_units::Bandwidth;

/// Returns the share of `cap` for each flow, which alone would reach its rate in `demands`; in
/// their order.
#[must_use]
pub fn max_min(cap: Bandwidth, demands: &[Bandwidth]) -> Vec<Bandwidth> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|index| demands[*index]);
    let mut shares = demands.to_vec();
    let mut left_bps = cap.as_bps();
    for (served, &index) in order.iter().enumerate() {
        let fair_bps = left_bps / (demands.len() - served) as u64;
        // A cap below one bit per second for each flow leaves the least rate there is.
        let fair = Bandwidth::from_bps(fair_bps.max(1)).unwrap_or(Bandwidth::MAX);
        shares[index] = demands[index].min(fair);
        left_bps = left_bps.saturating_sub(shares[index].as_bps());
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mbps(rate: f64) -> Bandwidth {
        Bandwidth::from_mbps(rate).unwrap()
    }

    #[test]
    fn unused_share_of_a_slow_flow_goes_to_others() {
        let shares = max_min(mbps(1000.0), &[mbps(800.0), mbps(100.0), mbps(600.0)]);
        assert_eq!(shares, [mbps(450.0), mbps(100.0), mbps(450.0)]);
        assert_eq!(max_min(mbps(1000.0), &[mbps(300.0)]), [mbps(300.0)]);
        assert!(max_min(mbps(1.0), &[]).is_empty());
    }

    proptest! {
        #[test]
        fn shares_exceed_neither_demands_nor_the_cap(
            cap in 1_000u64..1_000_000,
            demands in proptest::collection::vec(1u64..1_000_000, 1..20),
        ) {
            let demands: Vec<Bandwidth> =
                demands.into_iter().map(|bps| Bandwidth::from_bps(bps).unwrap()).collect();
            let shares = max_min(Bandwidth::from_bps(cap).unwrap(), &demands);
            prop_assert!(shares.iter().zip(&demands).all(|(share, demand)| share <= demand));
            let total: u64 = shares.iter().map(|share| share.as_bps()).sum();
            let asked: u64 = demands.iter().map(|demand| demand.as_bps()).sum();
            prop_assert!(total <= cap);
            prop_assert!(total + 20 >= cap.min(asked));
        }
    }
}
