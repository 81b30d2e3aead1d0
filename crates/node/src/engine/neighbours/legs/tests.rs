//! The end of unneeded legs, and the limit of legs that one gateway may have begun.

use tradewind_grant::Hop;
use tradewind_packet::session::PeerId;
use tradewind_units::Duration;

use super::{IDLE, LOOK_EVERY, MAX_FOR_ONE};
use crate::engine::test_harness::{Hosts, anybody, forwarded, gateway, identity};
use crate::mailbox::Command;

/// Returns a hop that nobody is at.
fn nobody(number: usize) -> Hop {
    let number = u16::try_from(number).unwrap();
    Hop { address: ([127, 9, 9, 9], 10_000 + number).into(), identity: identity(200).public() }
}

#[test]
fn unneeded_legs_are_ended() {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, anybody(4))]);
    let first = hosts.connect(1, 2);
    let remote = hosts.hop(4);
    let relay = hosts.hop(2);
    hosts.register(1, forwarded(remote, vec![relay]));
    hosts.pass(Duration::from_secs(1));
    for number in 0..10 {
        hosts.open(1, first, vec![relay, nobody(number)]);
        hosts.exchange();
    }
    assert_eq!(
        hosts.at(2).context.sessions.len(),
        1 + 1 + 10,
        "the gateway, the remote one, and ten"
    );
    hosts.pass(IDLE * 2 + LOOK_EVERY * 2);
    assert_eq!(hosts.at(2).context.sessions.len(), 2, "the gateway and the remote one");
    assert_eq!(hosts.at(2).neighbours.legs.by_hop.len(), 1);
    let remote = hosts.at(4).context.sessions.len();
    assert_eq!(remote, 2, "it has still the relay and the gateway");
}

/// Returns the leg of node 2 to `hop`.
fn leg_to(hosts: &mut Hosts, hop: Hop) -> Option<PeerId> {
    let engine = hosts.at(2);
    engine.neighbours.legs.to(engine.context.sessions.public(), hop)
}

#[test]
fn legs_per_gateway_are_bounded() {
    let gateways = [(1, gateway(1)), (5, gateway(5))];
    let mut hosts = Hosts::new(gateways.into_iter().chain([(2, anybody(2)), (4, anybody(4))]));
    let (first, other) = (hosts.connect(1, 2), hosts.connect(5, 2));
    let (relay, remote) = (hosts.hop(2), hosts.hop(4));
    for number in 0..MAX_FOR_ONE + 10 {
        hosts.open(1, first, vec![relay, nobody(number)]);
        hosts.exchange();
    }
    assert_eq!(hosts.at(2).neighbours.legs.by_hop.len(), MAX_FOR_ONE);
    hosts.open(5, other, vec![relay, remote]);
    hosts.exchange();
    assert_eq!(
        hosts.at(2).neighbours.legs.by_hop.len(),
        MAX_FOR_ONE + 1,
        "another has its own share"
    );
    let known = leg_to(&mut hosts, nobody(0)).unwrap();
    hosts.open(1, first, vec![relay, nobody(0)]);
    hosts.exchange();
    assert_eq!(leg_to(&mut hosts, nobody(0)), Some(known), "legs that there are serve more paths");
}

#[test]
fn idle_legs_expire() {
    let others = [2, 3, 4, 5].map(|number| (number, anybody(number)));
    let mut hosts = Hosts::new(others.into_iter().chain([(1, gateway(1))]));
    let [relay, other, remote, elsewhere] = [2, 3, 4, 5].map(|number| hosts.hop(number));
    let courses = [
        forwarded(remote, vec![relay]),
        forwarded(remote, vec![relay]),
        forwarded(remote, vec![other]),
        forwarded(elsewhere, vec![relay]),
    ];
    let flows = courses.map(|delivery| hosts.register(1, delivery));
    hosts.pass(Duration::from_secs(3));
    let left = [4, 4, 2, 0];
    for (flow, left) in flows.into_iter().zip(left) {
        // Two flows share all their legs with others, the third has two to itself.
        let before = hosts.at(1).neighbours.legs.by_hop.len();
        hosts.send_command(1, Command::Close { flow });
        hosts.pass(IDLE - LOOK_EVERY - Duration::from_secs(1));
        assert_eq!(
            hosts.at(1).neighbours.legs.by_hop.len(),
            before,
            "its last words may be on their way"
        );
        hosts.pass(IDLE + LOOK_EVERY * 4);
        let engine = hosts.at(1);
        assert_eq!(
            (engine.neighbours.legs.by_hop.len(), engine.context.sessions.len()),
            (left, left)
        );
    }
    assert_eq!(hosts.at(1).remotes.all().count(), 0);
    assert_eq!(hosts.at(1).forwarding.labels.len(), 0);
}
