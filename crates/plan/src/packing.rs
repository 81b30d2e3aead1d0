//! Bin packing by rate: the fewest relays of one region that carry a set of flows.
//!
//! First-fit decreasing, which is optimal whenever it meets the bound "total over capacity, rounded
//! up"; else a depth-first search with a limit of steps.

/// The most steps of one exact search. Chosen: sixteen flows in one region take far fewer.
const MAX_STEPS: u32 = 200_000;

/// The number of relays up to which the exact search runs: first fit is within a relay or two of
/// the least, and a search over many finds nothing in reasonable time. Chosen.
const MAX_RELAYS_SEARCHED: usize = 12;

/// Returns the relay, counted from 0, of each rate; `None` when a rate exceeds the capacity.
///
/// The number of relays is the least possible, unless the search reached its limit of steps or
/// first fit needs too many relays to search.
pub(crate) fn pack(rates: &[u64], capacity: u64) -> Option<Vec<usize>> {
    if rates.iter().any(|rate| *rate > capacity) {
        return None;
    }
    let mut order: Vec<usize> = (0..rates.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(rates[*index]), *index));
    let mut best = first_fit(rates, &order, capacity);
    let least = relays_at_least(rates.iter().sum(), capacity);
    while relays_used(&best) > least && relays_used(&best) <= MAX_RELAYS_SEARCHED {
        let mut search = Search { rates, order: &order, capacity, steps: MAX_STEPS };
        let mut relays = vec![0; relays_used(&best) - 1];
        let mut places = vec![0; rates.len()];
        if !search.place(0, &mut relays, &mut places) {
            break;
        }
        best = places;
    }
    Some(best)
}

/// Returns the number of relays that a packing uses.
pub(crate) fn relays_used(packing: &[usize]) -> usize {
    packing.iter().max().map_or(0, |last| last + 1)
}

/// Returns a lower bound on the relays of any packing of this total.
pub(crate) fn relays_at_least(total: u64, capacity: u64) -> usize {
    usize::try_from(total.div_ceil(capacity)).unwrap_or(usize::MAX)
}

/// Returns whether so many relays cannot carry these rates, each of which one relay can; `None`
/// when the search reached its limit of steps.
#[cfg(feature = "highs")]
pub(crate) fn too_few(relays: usize, rates: &[u64], capacity: u64) -> Option<bool> {
    if relays_at_least(rates.iter().sum(), capacity) > relays {
        return Some(true);
    }
    let mut order: Vec<usize> = (0..rates.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(rates[*index]), *index));
    if relays_used(&first_fit(rates, &order, capacity)) <= relays {
        return Some(false);
    }
    let mut search = Search { rates, order: &order, capacity, steps: MAX_STEPS };
    if search.place(0, &mut vec![0; relays], &mut vec![0; rates.len()]) {
        return Some(false);
    }
    (search.steps > 0).then_some(true)
}

fn first_fit(rates: &[u64], order: &[usize], capacity: u64) -> Vec<usize> {
    let mut loads: Vec<u64> = Vec::new();
    let mut places = vec![0; rates.len()];
    for &index in order {
        let fitting = loads.iter().position(|load| load + rates[index] <= capacity);
        let relay = fitting.unwrap_or_else(|| {
            loads.push(0);
            loads.len() - 1
        });
        loads[relay] += rates[index];
        places[index] = relay;
    }
    places
}

struct Search<'a> {
    rates: &'a [u64],
    order: &'a [usize],
    capacity: u64,
    steps: u32,
}

impl Search<'_> {
    /// Returns whether the rates from `from` on fit; `places` then holds their relays.
    fn place(&mut self, from: usize, loads: &mut [u64], places: &mut [usize]) -> bool {
        let Some(&index) = self.order.get(from) else { return true };
        for relay in 0..loads.len() {
            let same_as_before = loads[..relay].contains(&loads[relay]);
            if same_as_before || loads[relay] + self.rates[index] > self.capacity {
                continue;
            }
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            loads[relay] += self.rates[index];
            places[index] = relay;
            if self.place(from + 1, loads, places) {
                return true;
            }
            loads[relay] -= self.rates[index];
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_improves_on_first_fit() {
        // First fit opens a third relay: 6+3 and 5+4 leave 1 and 1, then 2 does not fit.
        let rates = [6, 5, 3, 2, 2, 2];
        let packing = pack(&rates, 10).unwrap();
        assert_eq!(relays_used(&packing), 2);
        let load = |relay| -> u64 {
            rates.iter().zip(&packing).filter(|(_, at)| **at == relay).map(|(rate, _)| rate).sum()
        };
        assert_eq!((load(0), load(1)), (10, 10));
    }

    #[test]
    fn oversized_flow_cannot_be_packed() {
        assert_eq!(pack(&[11], 10), None);
        assert_eq!(pack(&[], 10), Some(vec![]));
        assert_eq!(relays_used(&pack(&[10, 10, 10], 10).unwrap()), 3);
    }
}
