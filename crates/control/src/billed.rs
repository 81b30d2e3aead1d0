//! The bills of clouds, which an operator imports by day and host. They stand beside what is
//! estimated and metered, and decide nothing.

use std::collections::BTreeMap;

use tradewind_units::{HostId, Money, Timestamp};

use crate::draft::{DAY_MS, Draft, OPERATOR, unix_ms};
use crate::event::{Answer, Refusal};
use crate::flow_costs::first_day;
use crate::imported::Billed;
use crate::record::Record;
use crate::state::State;

/// Most entries of one import. Chosen: a year of three hosts; larger files come in parts.
pub const MAX_BILLED: usize = 1000;
/// The greatest sum of an entry, in dollars. Chosen: below what [`Money`] can be.
const MAX_USD: f64 = 1e8;
/// Days after which an entry is refused. Chosen: the store keeps the money of as many.
const OLDEST_DAYS: u64 = 400;

/// Takes bills in, all of them or none. Entries of one day and host are added up, and replace what
/// was imported for them before.
pub(crate) fn import(draft: &mut Draft, all: &[Billed]) -> Result<Answer, Refusal> {
    if all.is_empty() || all.len() > MAX_BILLED {
        let expected = format!("billed: expected 1 to {MAX_BILLED} entries");
        return Err(Refusal::Invalid(expected));
    }
    let today = draft.now() / DAY_MS;
    let mut sums: BTreeMap<(u64, &HostId), Money> = BTreeMap::new();
    for (index, billed) in all.iter().enumerate() {
        let invalid =
            |problem: String| Err(Refusal::Invalid(format!("entry {}: {problem}", index + 1)));
        if !draft.state.hosts.contains_key(&billed.host) {
            return invalid(format!("there is no host `{}`", billed.host));
        }
        let oldest = today.saturating_sub(OLDEST_DAYS);
        if !(oldest..=today).contains(&billed.day) {
            return invalid(format!("day {}: expected {oldest} to {today}", billed.day));
        }
        if billed.usd.as_usd() > MAX_USD {
            return invalid(format!("{}: expected {MAX_USD} dollars at most", billed.usd));
        }
        let sum = sums.entry((billed.day, &billed.host)).or_default();
        *sum = *sum + billed.usd;
        if sum.as_usd() > MAX_USD {
            let of = (&billed.host, billed.day);
            return invalid(format!("{} on day {}: {MAX_USD} dollars at most in all", of.0, of.1));
        }
    }
    let total: Money = sums.values().copied().sum();
    let count = sums.len();
    for ((day, host), usd) in sums {
        draft.push(Record::Billed(Billed { day, host: host.clone(), usd }));
    }
    draft.audit(OPERATOR, format!("imported bills of {count} days of hosts, {total} in all"));
    Ok(Answer::Done)
}

/// Returns the bills of the last `days`, today included, oldest first.
#[must_use]
pub fn of_days(state: &State, now: Timestamp, days: u64) -> Vec<Billed> {
    let first = first_day(now, days);
    let today = unix_ms(now) / DAY_MS;
    let billed = state.billed.range(first..=today.max(first));
    billed
        .flat_map(|(day, hosts)| {
            let one = |(host, usd): (&HostId, &Money)| Billed {
                day: *day,
                host: host.clone(),
                usd: *usd,
            };
            hosts.iter().map(one)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::record::DAYS_IN_MEMORY;
    use crate::testing::{Bench, PATH};

    fn billed(day: u64, host: &str, usd: f64) -> Billed {
        Billed { day, host: host.parse().unwrap(), usd: Money::from_usd(usd).unwrap() }
    }

    #[test]
    fn bills_are_added_up_and_replaced_by_day_and_host() {
        let mut bench = Bench::in_service();
        let today = bench.now / DAY_MS;
        let lines = [
            billed(today, PATH[0], 0.5),
            billed(today - 1, PATH[1], 3.0),
            billed(today, PATH[0], 0.25),
        ];
        bench.event(Event::Bill(lines.to_vec()));
        let of = |bench: &Bench, days| of_days(bench.state(), bench.time(), days);
        assert_eq!(of(&bench, 1), [billed(today, PATH[0], 0.75)]);
        let both = [billed(today - 1, PATH[1], 3.0), billed(today, PATH[0], 0.75)];
        assert_eq!(of(&bench, 2), both);
        assert_eq!(of_days(bench.restarted().state(), bench.time(), 2), both);
        let said = bench.state().audit.values().next_back().unwrap();
        assert_eq!(said.action, "imported bills of 2 days of hosts, $3.75 in all");
        bench.event(Event::Bill(vec![billed(today, PATH[0], 2.0)]));
        assert_eq!(of(&bench, 1), [billed(today, PATH[0], 2.0)]);
        for day in today - 60..today {
            bench.event(Event::Bill(vec![billed(day, PATH[0], 1.0)]));
        }
        assert_eq!(bench.state().billed.len(), DAYS_IN_MEMORY);
        assert_eq!(of(&bench, 31).len(), 32, "two hosts on one of the days");
    }

    #[test]
    fn wrong_bills_change_nothing() {
        let mut bench = Bench::in_service();
        let today = bench.now / DAY_MS;
        let good = billed(today, PATH[0], 1.0);
        for (wrong, expected) in [
            (vec![], "billed: expected 1 to 1000 entries"),
            (vec![good.clone(); 1001], "billed: expected 1 to 1000 entries"),
            (vec![good.clone(), billed(today, "none", 1.0)], "entry 2: there is no host `none`"),
            (vec![billed(today + 1, PATH[0], 1.0)], "entry 1: day "),
            (vec![billed(today - 401, PATH[0], 1.0)], "entry 1: day "),
            (vec![billed(today, PATH[0], 2e8)], "entry 1: $"),
        ] {
            let refused = bench.refusal(Event::Bill(wrong));
            assert!(matches!(&refused, Refusal::Invalid(_)), "{refused:?}");
            assert!(refused.to_string().starts_with(expected), "{refused}");
        }
        assert!(bench.state().billed.is_empty());
    }
}
