//! The loss that packet flows are planned with: of the Internet, and of relays' paths.

use crate::overlay::{Overlay, call, set_version};
use tradewind_control::Event;
use tradewind_control::message::CONFIG_VERSION;
use tradewind_control::packet_flow::PacketFlowRecord;
use tradewind_control::record::Record;
use tradewind_model::packet::PacketService;
use tradewind_plan::packets::PlannedPacketFlow;
use tradewind_units::{Duration, Ratio, SiteId};

/// An overlay whose flow only forwarding serves, since recovery takes too long, and whose Internet
/// path loses a packet in fifty.
fn forwarded() -> Overlay {
    let mut overlay = Overlay::new(20.0);
    let strict = PacketFlowRecord { budget: Duration::from_millis(45), ..call() };
    overlay.event(&Event::AddPacketFlow(strict));
    overlay.pass(10);
    overlay.plan();
    overlay.pass(10);
    // The gateway selects by its measurements; with relays at hand it numbers all packets.
    overlay.carry_by("direct", 50_000, 1000);
    overlay.plan();
    overlay.pass(10);
    assert_eq!(planned(&overlay).service, PacketService::Forwarding);
    assert_eq!(planned(&overlay).internet_loss, Ratio::new(0.02).unwrap());
    overlay
}

fn planned(overlay: &Overlay) -> PlannedPacketFlow {
    let newest = overlay.controller.state().newest_plan().unwrap();
    newest.packets.plan.flows[0].clone()
}

#[test]
fn forwarding_says_nothing_of_the_internet_and_plans_do_not_swing_for_days() {
    let mut overlay = forwarded();
    let mut gains = 0;
    // Relays forward all packets and lose none; a probe a day tells too little.
    for day in 0..9 {
        overlay.now += 86_400_000;
        overlay.pass(1);
        overlay.carry_by("forwarding", 100_000, 0);
        overlay.plan();
        assert_eq!(planned(&overlay).service, PacketService::Forwarding, "day {day}");
        gains += usize::from(planned(&overlay).internet_loss != Ratio::new(0.02).unwrap());
    }
    assert_eq!(gains, 0);
    let newest = overlay.controller.state().newest_plan().unwrap();
    let basis = &newest.packets.losses[&call().id];
    assert!(basis.contains("what runs is kept"), "{basis}");
    let by_path = overlay.controller.state().packets.values().next_back().unwrap().by_path.unwrap();
    assert_eq!((by_path.relays.expected, by_path.internet.expected), (100_000, 0));
}

#[test]
fn probes_go_on_measuring_the_internet_of_a_forwarded_flow() {
    // It tolerates a thousandth.
    for (loss, expected) in [(0.002, PacketService::Forwarding), (0.0004, PacketService::Direct)] {
        let mut overlay = forwarded();
        overlay.now += 3 * 86_400_000;
        overlay.loss = loss;
        overlay.pass_by(13 * 3600, 11);
        overlay.carry_by("forwarding", 100_000, 0);
        overlay.plan();
        assert_eq!(planned(&overlay).service, expected);
        let basis = &overlay.newest().packets.losses[&call().id];
        assert!(basis.contains("handshakes of probes"), "{basis}");
    }
}

#[test]
fn flow_gets_relays_by_itself_once_the_internet_loses_more_than_it_tolerates() {
    let mut overlay = Overlay::new(20.0);
    overlay.event(&Event::AddPacketFlow(call()));
    overlay.pass(10);
    overlay.probed(0);
    overlay.plan();
    assert_eq!((planned(&overlay).service, overlay.stale().as_str()), (PacketService::Direct, ""));
    // Its own packets are not numbered: nobody learns from them that the path loses.
    overlay.carry_by("direct", 100_000, 2_000);
    overlay.probed(18);
    assert_eq!(overlay.stale(), "");
    overlay.probed(22);
    assert!(overlay.stale().contains("packet flow call: loss 0.0011 on the Internet, was 0"));
    overlay.plan();
    assert_eq!(overlay.stale(), "");
    assert_eq!(overlay.controller.state().rollout.to, Some(overlay.newest().number));
    overlay.pass(100);
    assert_eq!(overlay.relays().len(), 1);

    // The legs of its path are measured as often as those of streams, and make the plan stale.
    let region: SiteId = overlay.newest().packets.plan.relays[0].region.clone().into();
    let mut leg = overlay.controller.state().measurements[&(region, call().to_site)].clone();
    assert!(overlay.now - leg.measured_at_unix_ms.unwrap() < 30_000);
    overlay.probed(22);
    assert_eq!(overlay.stale(), "");
    let before = leg.clone();
    leg.rtt.min *= 2;
    overlay.controller.apply(Record::Measurement(leg));
    assert!(overlay.stale().contains("-> plant: RTT 40.0 ms, was 20.0 ms"), "{}", overlay.stale());
    overlay.controller.apply(Record::Measurement(before));

    // It keeps them near the limit, and leaves them below half of it.
    overlay.probed(12);
    assert_eq!(overlay.stale(), "");
    overlay.plan();
    assert_ne!(planned(&overlay).service, PacketService::Direct);
    overlay.pass(10);
    assert_eq!(overlay.relays().len(), 1);
    overlay.probed(8);
    assert!(overlay.stale().contains("loss 0.0004 on the Internet"), "{}", overlay.stale());
    overlay.plan();
    assert_eq!((planned(&overlay).service, overlay.stale().as_str()), (PacketService::Direct, ""));
    // The controller applies that by itself as well.
    overlay.pass(10);
    let state = overlay.controller.state();
    assert_eq!(state.rollout.to, Some(overlay.newest().number));
    let said = "packet flow call goes direct: the Internet alone meets its budget";
    assert!(state.audit.values().any(|entry| entry.action.contains(said)));
    assert_eq!(overlay.relays(), []);
}

#[test]
fn flow_that_tolerates_no_loss_leaves_its_relays_when_there_is_none() {
    let mut overlay = Overlay::new(20.0);
    let max_loss = Ratio::default();
    overlay.event(&Event::AddPacketFlow(PacketFlowRecord { max_loss, ..call() }));
    overlay.pass(10);
    overlay.probed(1);
    overlay.plan();
    overlay.pass(10);
    assert_eq!(overlay.relays().len(), 1);
    overlay.probed(0);
    overlay.plan();
    assert_eq!(planned(&overlay).service, PacketService::Direct);
}

#[test]
fn outage_counts_once_for_each_probe_while_the_other_site_is_reached_otherwise() {
    let mut overlay = Overlay::in_service(20.0);
    let before = overlay.handshakes();
    assert!(before.expected > 0 && before.lost == 0);
    overlay.loss = 1.0;
    overlay.pass_by(120, 5);
    let after = overlay.handshakes();
    // Five handshakes each 30 seconds.
    assert!((15..=25).contains(&after.lost), "{after:?}");
    assert_eq!(after.expected, before.expected + after.lost);
    // A site that is down is no loss of the path.
    overlay.silent = Some(1);
    overlay.pass_by(40, 5);
    let down = overlay.handshakes();
    overlay.pass_by(120, 5);
    assert_eq!(overlay.handshakes(), down);
}

#[test]
fn measured_loss_outlives_plans_without_the_flow_and_those_of_older_programs() {
    let mut overlay = forwarded();
    let mut older = overlay.newest();
    overlay.now += 3 * 86_400_000;
    overlay.pass(1);
    // The receiver's agent is put back for a while.
    set_version(&mut overlay, "plant", 1);
    overlay.plan();
    assert!(overlay.newest().packets.plan.flows.is_empty());
    set_version(&mut overlay, "plant", CONFIG_VERSION);
    overlay.plan();
    assert_eq!(planned(&overlay).internet_loss, Ratio::new(0.02).unwrap());
    // Older programs tell in words alone that it was measured.
    older.packets.measured.clear();
    older.packets.expected.clear();
    older.number = overlay.newest().number + 1;
    overlay.controller.apply(Record::Plan(older));
    overlay.plan();
    assert_eq!(planned(&overlay).internet_loss, Ratio::new(0.02).unwrap());
    assert!(overlay.newest().packets.losses[&call().id].contains("what runs is kept"));
}

#[test]
fn packets_of_several_services_count_only_for_the_path_that_surely_carried_them() {
    let mut overlay = forwarded();
    overlay.carry_by_each(&[("forwarding", 70_000, 0), ("direct", 90_000, 0)]);
    overlay.carry_by("forwarding", 100_000, 0);
    overlay.carry_by("forwarding", 110_000, 0);
    let day = overlay.controller.state().packets.values().next_back().unwrap().clone();
    assert_eq!(day.counts.packets, 420_000);
    let by_path = day.by_path.unwrap();
    assert_eq!((by_path.internet.expected, by_path.relays.expected), (50_000, 110_000));
}
