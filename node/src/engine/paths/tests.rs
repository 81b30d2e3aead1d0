//! Paths that nobody opens, and how many labels one gateway has.

use tradewind_grant::RelayPolicy;
use tradewind_units::Duration;

use super::super::by_hand::{Hosts, anybody, forwarded, gateway};
use super::{GIVES_WAY_AFTER, IDLE, MOST_FOR_ONE, OPENS_WITHIN};
use crate::config::NodeConfig;

/// An endpoint that delivers nothing, and so answers no opening.
fn deaf(number: u8) -> NodeConfig {
    let policy = RelayPolicy { destinations: Vec::new(), ..anybody(number).policy };
    NodeConfig { policy, ..anybody(number) }
}

#[test]
fn a_path_that_does_not_open_is_given_up_with_its_labels() {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, deaf(4))]);
    let (relay, far) = (hosts.hop(2), hosts.hop(4));
    hosts.register(1, forwarded(far, vec![relay]));
    hosts.pass(Duration::from_secs(20));
    let labels = hosts.at(2).labels.len() as u64;
    assert!((1..=2 * (OPENS_WITHIN.as_secs() + 1)).contains(&labels), "{labels} labels");
    assert_eq!(hosts.at(2).opened.len() as u64, labels / 2);
    let opens = |hosts: &mut Hosts| hosts.at(4).counts.snapshot().dropped;
    let before = opens(&mut hosts);
    hosts.pass(Duration::from_secs(10));
    // Each second another one, ten times.
    let refused = opens(&mut hosts) - before;
    assert!((50..=110).contains(&refused), "{refused} openings in 10 s");
}

#[test]
fn a_path_that_opens_stays_for_as_long_as_it_is_in_use() {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, anybody(4))]);
    let (relay, far) = (hosts.hop(2), hosts.hop(4));
    hosts.register(1, forwarded(far, vec![relay]));
    hosts.pass(IDLE * 2);
    assert_eq!(hosts.at(2).labels.len(), 2, "both directions of one path, which is in use");
    assert_eq!(hosts.at(1).counts.snapshot().paths_up, 1);
}

#[test]
fn one_gateway_has_no_more_labels_than_its_share_and_what_is_silent_gives_way() {
    let gateways = [(1, gateway(1)), (5, gateway(5))];
    let mut hosts = Hosts::new(gateways.into_iter().chain([(4, anybody(4))]));
    let (first, other, far) = (hosts.connect(1, 4), hosts.connect(5, 4), hosts.hop(4));
    for _ in 0..MOST_FOR_ONE / 2 {
        hosts.open(1, first, vec![far]);
        hosts.exchange();
    }
    hosts.pass(GIVES_WAY_AFTER / 2);
    for _ in 0..MOST_FOR_ONE {
        hosts.open(1, first, vec![far]);
        hosts.exchange();
    }
    let full = hosts.at(4).labels.len();
    assert!((MOST_FOR_ONE - 1..=MOST_FOR_ONE).contains(&full), "{full} labels");
    hosts.open(5, other, vec![far]);
    hosts.exchange();
    assert_eq!(hosts.at(4).labels.len(), full + 1, "another has its own share");
    hosts.pass(GIVES_WAY_AFTER / 2);
    hosts.open(1, first, vec![far]);
    hosts.exchange();
    let left = full - MOST_FOR_ONE / 2 + 2;
    assert_eq!(hosts.at(4).labels.len(), left, "the first half was silent for long enough");
}
