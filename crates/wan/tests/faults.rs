//! Loss, outages, reordering and duplication: shares, lengths, places and independence.

mod common;

use common::*;
use tradewind_units::{Duration, Timestamp};
use tradewind_wan::{Admission, Bundle, DropCause, PairChange, Topology, Wan};

/// Returns for each of `count` packets from `a` to `b`, one each 10 us, whether it arrived.
fn arrived(topology: &Topology, seed: u64, count: u64) -> Vec<bool> {
    let mut wan = Wan::new(topology, seed);
    for n in 0..count {
        push(&mut wan, at(n * 10), packet(A, B, 1500, n));
    }
    let mut arrived = vec![false; count as usize];
    drain(&mut wan).iter().for_each(|d| arrived[d.content as usize] = true);
    arrived
}

/// Returns the lengths of runs of losses.
fn bursts(arrived: &[bool]) -> Vec<usize> {
    arrived.split(|arrives| *arrives).map(<[bool]>::len).filter(|len| *len > 0).collect()
}

/// Asserts that `hits` of `n` independent trials fit `share`, within four standard deviations.
fn assert_share(hits: usize, n: usize, share: f64) {
    let deviation = (share * (1.0 - share) / n as f64).sqrt();
    let seen = hits as f64 / n as f64;
    assert!((seen - share).abs() < 4.0 * deviation, "{seen} instead of {share}");
}

#[test]
fn random_loss_has_its_share_and_no_memory() {
    for share in [0.001, 0.02, 0.3] {
        let seen = arrived(&two_sites(&format!("rtt = '2 ms'\nloss = {share}")), 11, 300_000);
        assert_share(seen.iter().filter(|arrives| !**arrives).count(), seen.len(), share);
        let after_loss: Vec<bool> =
            seen.windows(2).filter(|pair| !pair[0]).map(|pair| !pair[1]).collect();
        assert_share(after_loss.iter().filter(|lost| **lost).count(), after_loss.len(), share);
    }
}

#[test]
fn losses_in_bursts_have_the_chains_share_and_length() {
    let keys = "rtt = '2 ms'\nburst_loss = { enter = 0.002, leave = 0.25 }";
    let seen = arrived(&two_sites(keys), 5, 1_000_000);
    let lost = seen.iter().filter(|arrives| !**arrives).count() as f64;
    let bursts = bursts(&seen);
    // Stationary share p / (p + r), mean length 1 / r; lengths are geometric, so the mean of n has
    // the deviation sqrt(1 - r) / r / sqrt(n).
    let n = bursts.len() as f64;
    let mean = lost / n;
    assert!((mean - 4.0).abs() < 4.0 * 12f64.sqrt() / n.sqrt(), "{mean}");
    let share = lost / seen.len() as f64;
    assert!((share - 0.002 / 0.252).abs() < 0.0006, "{share}");
    let ones = bursts.iter().filter(|len| **len == 1).count();
    assert_share(ones, bursts.len(), 0.25);
}

#[test]
fn partial_loss_inside_and_outside_bursts() {
    let keys = "rtt = '2 ms'\n\
                burst_loss = { enter = 0.01, leave = 0.01, inside = 0.5, outside = 0.1 }";
    let seen = arrived(&two_sites(keys), 5, 1_000_000);
    let share = seen.iter().filter(|arrives| !**arrives).count() as f64 / 1e6;
    assert!((share - 0.3).abs() < 0.01, "{share}");
}

#[test]
fn an_outage_loses_exactly_what_is_sent_while_it_lasts() {
    let topology = parse(
        "[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[pair]]\nbetween = ['a', 'b']\nrtt = '2 ms'\n\
         [[outage]]\nname = 'cut'\nstart = '10 ms'\nlength = '3 ms'\nevery = '20 ms'\n\
         between = [['a', 'b']]",
    )
    .unwrap();
    for (now_us, arrives) in [
        (9_999, true),
        (10_000, false),
        (12_999, false),
        (13_000, true),
        (29_999, true),
        (30_000, false),
        (33_000, true),
    ] {
        let mut wan = Wan::new(&topology, 1);
        push(&mut wan, at(now_us), packet(B, A, 1500, ()));
        assert_eq!(drain(&mut wan).len(), usize::from(arrives), "{now_us} us");
        assert_eq!(wan.counters().total.dropped(DropCause::Outage), u64::from(!arrives));
    }
}

#[test]
fn pairs_and_links_that_share_an_outage_are_out_together() {
    let topology = parse(
        "[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[site]]\nid = 'c'\n[[site]]\nid = 'd'\n\
         [default.pair]\nrtt = '0 ms'\n\
         [[link]]\nname = 'cable'\n[[pair]]\nbetween = ['c', 'd']\nvia = ['cable']\n\
         [[outage]]\nname = 'storm'\nmean_gap = '50 ms'\nshortest = '1 ms'\nlongest = '30 ms'\n\
         between = [['a', 'b']]\nfrom_to = [['a', 'c']]\nlinks = ['cable']",
    )
    .unwrap();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| host(&topology, name));
    let mut wan = Wan::new(&topology, 4);
    let mut out = 0;
    for n in 0..20_000 {
        for (from, to) in [(a, b), (b, a), (a, c), (c, d), (d, c)] {
            push(&mut wan, at(n * 100), packet(from, to, 100, ()));
        }
        let delivered = std::iter::from_fn(|| wan.pop_due(at(n * 100))).count();
        assert!(delivered == 5 || delivered == 0, "{delivered} at {n}");
        out += u32::from(delivered == 0);
        push(&mut wan, at(n * 100), packet(c, a, 100, ()));
        assert!(wan.pop_due(at(n * 100)).is_some(), "the way back is not hit");
    }
    let share = f64::from(out) / 20_000.0;
    assert!((0.14..0.34).contains(&share), "15.5 of 65.5 ms, not {share}");
}

#[test]
fn losses_of_a_pair_are_independent_of_other_traffic() {
    let base = "[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[site]]\nid = 'c'\n\
                [default.pair]\nrtt = '2 ms'\nloss = 0.05\n";
    let quiet = parse(base).unwrap();
    let busy = parse(&format!(
        "{base}[[pair]]\nbetween = ['a', 'c']\nrate = '1 Mbit/s'\nduplicate = 0.5\n\
         [[pair]]\nfrom = 'b'\nto = 'a'\nloss = 0.5\n\
         [[pair]]\nbetween = ['a', 'b']\nrtt = '80 ms'\njitter = '5 ms'\nduplicate = 0.2"
    ))
    .unwrap();
    let lost = |topology: &Topology, with_others: bool| {
        let mut wan = Wan::new(topology, 9);
        for n in 0..5_000_u64 {
            push(&mut wan, at(n * 10), packet(A, B, 1500, n));
            if with_others {
                push(&mut wan, at(n * 10), packet(A, host(topology, "c"), 1000, u64::MAX));
                push(&mut wan, at(n * 10), packet(B, A, 1000, u64::MAX));
            }
        }
        let mut seen: Vec<u64> = drain(&mut wan).iter().map(|d| d.content).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.retain(|n| *n != u64::MAX);
        seen
    };
    let alone = lost(&quiet, false);
    assert_eq!(alone, lost(&quiet, true));
    assert_eq!(alone, lost(&busy, true));
}

#[test]
fn directions_and_seeds_lose_differently() {
    let topology = two_sites("rtt = '2 ms'\nloss = 0.5");
    let forward = arrived(&topology, 1, 1000);
    let agree = |other: &[bool]| forward.iter().zip(other).filter(|(a, b)| a == b).count();
    assert_eq!(forward, arrived(&topology, 1, 1000));
    assert!((400..600).contains(&agree(&arrived(&topology, 2, 1000))));
    let mut wan = Wan::new(&topology, 1);
    for n in 0..1000_u64 {
        push(&mut wan, at(n * 10), packet(B, A, 1500, n));
    }
    let mut backward = vec![false; 1000];
    drain(&mut wan).iter().for_each(|d| backward[d.content as usize] = true);
    assert!((400..600).contains(&agree(&backward)));
}

#[test]
fn only_the_stated_share_is_reordered() {
    let keys = "rtt = '10 ms'\nreorder = { share = 0.1, late_by = '1 ms' }";
    let mut wan = Wan::new(&two_sites(keys), 2);
    for n in 0..20_000_u64 {
        push(&mut wan, at(n * 100), packet(A, B, 1500, n));
    }
    let deliveries = drain(&mut wan);
    let mut late = 0;
    for delivery in &deliveries {
        let delay = delivery.due.since(at(delivery.content * 100));
        late += usize::from(delay == Duration::from_millis(6));
        assert!(delay == Duration::from_millis(5) || delay == Duration::from_millis(6));
    }
    assert_eq!(deliveries.len(), 20_000);
    assert_share(late, 20_000, 0.1);
    let in_time: Vec<u64> = deliveries
        .iter()
        .filter(|d| d.due == at(d.content * 100 + 5_000))
        .map(|d| d.content)
        .collect();
    assert!(in_time.is_sorted());
}

#[test]
fn stated_share_is_duplicated_and_counted() {
    let mut wan = Wan::new(&two_sites("rtt = '10 ms'\nduplicate = 0.2"), 2);
    for n in 0..20_000_u64 {
        push(&mut wan, at(n * 100), bundle(A, B, 100, 2, n));
    }
    let seen = arrivals(&drain(&mut wan));
    let counters = wan.counters();
    assert_share(seen.len() - 40_000, 40_000, 0.2);
    assert_eq!(counters.total.duplicated, seen.len() as u64 - 40_000);
    assert_eq!(counters.total.delivered, seen.len() as u64);
    assert!(counters.links.iter().all(|link| link.tally.is_conserved()));
    assert!(counters.total.is_conserved());
}

#[test]
fn oversized_segments_are_dropped_and_reported_by_icmp() {
    for (icmp, reported) in [("true", true), ("false", false)] {
        let mut wan =
            Wan::new(&two_sites(&format!("rtt = '2 ms'\nmtu = '1400 B'\nicmp = {icmp}")), 1);
        let mtu_error = Admission::TooBig { mtu: tradewind_units::Bytes::new(1400) };
        let expected = if reported { mtu_error } else { Admission::Accepted };
        assert_eq!(wan.push(at(0), packet(A, B, 1401, ())), expected);
        assert_eq!(wan.push(at(0), packet(A, B, 1400, ())), Admission::Accepted);
        // Three full segments and a small one, which fits.
        let mixed = Bundle { payload_bytes: 1460 * 3 + 10, ..bundle(A, B, 1460, 3, ()) };
        assert_eq!(wan.push(at(0), mixed), expected);
        let seen = arrivals(&drain(&mut wan));
        assert_eq!(seen.iter().map(|(_, index, _)| *index).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(wan.counters().total.dropped(DropCause::TooBig), 4);
        assert!(wan.counters().total.is_conserved());
    }
}

#[test]
fn loss_can_be_switched_on_midway_and_everything_lost() {
    let topology = two_sites("rtt = '2 ms'");
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(0), packet(A, B, 1500, ()));
    wan.apply(at(1), &PairChange::parse("a->b", ["loss=1"]).unwrap()).unwrap();
    push(&mut wan, at(2), packet(A, B, 1500, ()));
    push(&mut wan, at(2), packet(B, A, 1500, ()));
    assert_eq!(drain(&mut wan).len(), 2);
    assert_eq!(wan.counters().total.dropped(DropCause::Random), 1);
}

#[test]
fn changes_that_the_topology_cannot_take_are_refused() {
    let mut wan = Wan::<()>::new(&two_sites("rtt = '2 ms'\nrate = '1 Mbit/s'"), 1);
    for (pair, setting, tells) in [
        ("a,c", "loss=0.1", "no site `c`"),
        ("a,b", "queue=100 B", "queue: room for at least one packet of 1.5 kB"),
    ] {
        let change = PairChange::parse(pair, [setting]).unwrap();
        let error = wan.apply(Timestamp::ZERO, &change).unwrap_err().to_string();
        assert!(error.contains(tells), "{error}");
    }
}

#[test]
fn losses_are_counted_by_direction_until_reset() {
    let mut wan = Wan::new(&two_sites("rtt = '2 ms'\nloss = 0.5"), 11);
    for n in 0..100 {
        push(&mut wan, at(n * 10), packet(A, B, 1500, n));
    }
    let arrived = drain(&mut wan).len() as u64;
    assert_eq!((wan.losses(A, B), wan.losses(B, A)), (100 - arrived, 0));
    wan.reset_losses();
    assert_eq!(wan.losses(A, B), 0);
}
