//! The stated mix of losses on short runs: least recovery, and reproducibility.

use super::*;
use world::Fate;

/// Returns the built-in scenario, shortened, with five times its losses, so that a short run has
/// enough of them. That makes recovery harder: more paths lose at a time.
fn scenario(on_s: f64) -> Scenario {
    let text = include_str!("../../../../scenarios/jq-recovery.toml");
    let usual = Scenario::parse(text).unwrap();
    let loss_percent = usual.loss_percent.map(|percent| 5.0 * percent);
    Scenario { on_s, loss_percent, ..usual }
}

fn found(scenario: &Scenario, arq: bool, seed: u64) -> Found {
    find(scenario, Case::prompt(scenario.access_share, arq), seed).unwrap()
}

fn of_class(found: &Found, class: usize, on_access: bool) -> impl Iterator<Item = &Loss> {
    let is_such = move |loss: &&Loss| loss.class == class && loss.on_access == on_access;
    found.losses.iter().filter(is_such)
}

#[test]
fn stated_mix_of_losses_is_recovered() {
    let scenario = scenario(10.0);
    let without = found(&scenario, false, 1);
    let with = found(&scenario, true, 1);
    assert!(without.losses.len() > 200, "{}", without.losses.len());
    for (class, (length, ..)) in CLASSES.iter().enumerate() {
        assert!(of_class(&without, class, false).count() > 0, "no {length}");
    }
    // [JQ 5.2]: 78 % of all within a round trip, 95 % of these within half of it.
    let all = all_recovered(&without).unwrap();
    assert!(all >= 78.0, "{all}");
    assert!(within(&without, 0.5).unwrap() >= 95.0, "{:?}", within(&without, 0.5));
    // Most of the rest was lost on access paths: with ARQ there, 95 % of all.
    let wide = recovered(without.losses.iter().filter(|loss| !loss.on_access)).unwrap();
    assert!(wide > 95.0, "{wide}");
    let all = all_recovered(&with).unwrap();
    assert!(all >= 95.0, "{all}");
    assert!(within(&with, 0.5).unwrap() >= 95.0, "{:?}", within(&with, 0.5));
    // Nothing but repair packets between the relays, at most r + s of the packets.
    for found in [&without, &with] {
        let overhead = full_overhead(found).unwrap();
        assert!(overhead <= 100.0 * scenario.overhead() + 1e-9, "{overhead}");
    }
    assert_eq!(without.outcome.traffic.forwarded, 0);
    let copies_lost = with.outcome.traffic.resent;
    assert!(with.outcome.traffic.forwarded <= copies_lost, "{copies_lost}");
}

#[test]
fn losses_are_as_the_scenario_draws_them() {
    let quiet = Scenario { access_share: 1.0, ..scenario(5.0) };
    let found = found(&quiet, false, 3);
    // All losses are on access paths, nearly all of them on the senders' side: their copies are
    // lost, too.
    let copied = found.losses.iter().filter(|loss| !loss.on_access).count();
    assert!(copied * 10 <= found.losses.len(), "{copied} of {}", found.losses.len());
    let single = found.losses.iter().filter(|loss| loss.class == 0).count() as f64;
    let share = single / found.losses.len() as f64;
    assert!((0.6..1.0).contains(&share), "{share}");
    let lost = found.losses.len() as f64 / found.outcome.traffic.packets as f64;
    assert!((0.002..0.02).contains(&lost), "{lost}");
}

#[test]
fn runs_are_reproducible_and_seeds_differ() {
    let scenario = Scenario { on_s: 1.0, ..scenario(1.0) };
    let trace = |seed: u64| -> Vec<Vec<Fate>> {
        let paths = simulate(&scenario, true, seed).unwrap();
        paths.into_iter().map(|(_, fates)| fates).collect()
    };
    let (first, again, other) = (trace(1), trace(1), trace(2));
    assert_eq!(format!("{first:?}"), format!("{again:?}"));
    assert_ne!(format!("{first:?}"), format!("{other:?}"));
}

#[test]
fn losses_of_all_spans_are_gathered() {
    let usual = scenario(2.0);
    let spans = Scenario { cycles: 3, off_mean_s: 6.0, ..usual.clone() };
    let (one, three) = (found(&usual, false, 1), found(&spans, false, 1));
    assert_eq!(three.outcome.traffic.packets, 3 * one.outcome.traffic.packets);
    // The first span is that of the shorter run; the others are counted from their own beginning
    // on, in bursts of their own.
    let identity = |loss: &Loss| (loss.path, loss.place, loss.burst);
    let first: Vec<_> = one.losses.iter().map(identity).collect();
    let all: Vec<_> = three.losses.iter().map(identity).collect();
    assert!(all.len() > first.len() && all[..first.len()] == first);
    assert!(all.iter().all(|(_, place, _)| *place < 200));
    assert!(all.is_sorted_by_key(|(.., burst)| *burst));
    let back = |found: &Found| found.losses.iter().filter(|loss| loss.is_recovered()).count();
    assert!(back(&three) > back(&one));
}

#[test]
fn invalid_scenarios_are_refused_in_one_line() {
    let text = include_str!("../../../../scenarios/jq-recovery.toml");
    for (from, to, expected) in [
        ("lossy_share = 0.4", "lossy_share = 1.4", "lossy_share: 1.4 given, expected 0 to 1"),
        ("cross_stream = [2, 6]", "cross_stream = [0, 6]", "cross_stream: 1 to 8 repair packets"),
        ("azure:eastasia", "azure:nowhere", "groups: `azure:nowhere` is not in the catalogue"),
        ("azure:eastasia", "azure:eastaisa", "; did you mean `azure:eastasia`?"),
        ("cycles = 1", "cycles = 0", "groups: 1 to 20"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = Scenario::parse(&text.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
