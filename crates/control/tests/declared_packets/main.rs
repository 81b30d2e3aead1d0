//! Packet flows from their declaration to the counts of their packets, in virtual time: a gateway
//! at each end, relays between, and an Internet that loses packets.

#![allow(clippy::unwrap_used, reason = "a test")]

mod losses;
mod overlay;

use std::net::SocketAddr;

use overlay::{HOSTS, Overlay, call, identity, set_version};
use tradewind_config::RelayConfig;
use tradewind_control::message::{CONFIG_VERSION, SessionBatch};
use tradewind_control::packet_flow::{PacketCounts, PacketFlowRecord, PacketTally};
use tradewind_control::record::{Mode, Record};
use tradewind_control::tenants::{self, BudgetChange, TenantId};
use tradewind_control::what_if::{self, Present, WhatIf};
use tradewind_control::{Controller, Event, Refusal, SettingsRequest};
use tradewind_grant::OperatorKey;
use tradewind_model::packet::PacketService;
use tradewind_plan::Plan;
use tradewind_units::{Duration, Money, Ratio, SiteId};

#[test]
fn lossy_flow_gets_relays_within_the_budget_and_all_hosts_their_configurations() {
    let overlay = Overlay::in_service(20.0);
    let plan = overlay.controller.state().plan_in_effect().unwrap();
    let planned = &plan.packets.plan.flows[0];
    assert_ne!(planned.service, PacketService::Direct);
    assert!(planned.path.len() == 1 && planned.delivery <= planned.budget);
    assert!(planned.services.iter().any(|one| one.service == PacketService::Forwarding));
    assert!(plan.usd_per_day > Money::ZERO && plan.usd_per_day == plan.packets.plan.cost);
    assert!(plan.rests_on.iter().any(|line| line.contains("loss 0.01 assumed")));
    let region = plan.packets.plan.relays[0].region.to_string();

    // The sender: its port, the relay, the remote gateway, a grant for both.
    let office = overlay.gateway("office");
    let packets = office.packets().unwrap().unwrap();
    assert_eq!(packets.paths[0].delivery.max_loss, Some(call().max_loss));
    let relay = overlay.relays()[0];
    let operators = [OperatorKey::from_entropy([201; 32]).public()];
    let grant = office.grant.unwrap();
    let grant = grant.verify(&operators).unwrap();
    assert!(grant.relays.contain(&relay) && grant.relays.contain(&identity(101)));
    assert!(grant.destinations.iter().any(|rule| rule.covers_address(call().to)));

    // The receiver: the same relay, and this destination alone.
    let plant = overlay.gateway("plant").packets().unwrap().unwrap();
    assert_eq!(
        (plant.relays.as_slice(), plant.operators.as_slice()),
        (&[relay][..], &operators[..])
    );
    assert_eq!(plant.listen, "0.0.0.0:7000".parse::<SocketAddr>().unwrap());
    assert_eq!(plant.destinations.len(), 1);
    assert!(plant.destinations[0].covers_address(call().to));

    // The relay: the receiver as its only next hop, and the cloud's price.
    let relay = RelayConfig::parse(&overlay.config(&region).unwrap()).unwrap();
    let packets = relay.packets().unwrap().unwrap();
    assert_eq!(packets.next_hops.len(), 1);
    assert!(packets.next_hops[0].covers_address(([198, 41, 0, 2], 7000).into()));
    assert!(packets.services.to_endpoints.as_usd_per_gb() > 0.0);
    let others = ["gcp:europe-north1", "gcp:europe-west3"].into_iter().filter(|it| *it != region);
    assert!(others.map(|other| overlay.config(other)).all(|config| config.is_none()));
}

#[test]
fn flow_without_money_or_an_agent_that_can_goes_over_the_internet_alone() {
    let mut overlay = Overlay::in_service(20.0);
    assert_eq!(overlay.relays().len(), 1);
    overlay.event(&Event::ChangeSettings(SettingsRequest::budget(Money::ZERO)));
    assert_eq!(overlay.relays(), []);
    overlay.pass(10);
    overlay.plan();
    let newest = overlay.controller.state().newest_plan().unwrap();
    let reason = &newest.packets.left_out[&call().id];
    assert!(reason.contains("the budget does not suffice"), "{reason}");
    assert!(newest.hosts.is_empty());

    // A relay with an older agent is passed by, and a receiver with one leaves the flow out.
    let mut overlay = Overlay::in_service(20.0);
    let plan = overlay.controller.state().plan_in_effect().unwrap();
    let host = plan.hosts.values().next().unwrap().clone();
    let number = HOSTS.iter().position(|(place, _)| format!("{place}-1") == host.as_str());
    overlay.report(number.unwrap(), |report| report.config_version = 1);
    overlay.event(&Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
    assert_eq!(overlay.relays(), []);
    assert!(!overlay.config(HOSTS[number.unwrap()].0).unwrap().contains("[packet]"));
    overlay.report(1, |report| report.config_version = 1);
    overlay.event(&Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
    assert_eq!((overlay.config("office"), overlay.config("plant")), (None, None));
}

#[test]
fn plan_is_made_beforehand_and_of_a_thousand_flows_those_with_a_service_are_served() {
    let mut overlay = Overlay::in_service(2_000.0);
    for number in 0..1000_u16 {
        // Most want their packets sooner than light brings them.
        let budget = Duration::from_millis(if number % 10 == 2 { 150 } else { 1 });
        let (id, port) = (format!("call-{number:04}"), 20_000 + number);
        let flow = PacketFlowRecord {
            id: id.parse().unwrap(),
            listen: ([127, 0, 0, 1], port).into(),
            budget,
            ..call()
        };
        overlay.controller.apply(Record::PacketFlow(flow));
    }
    let state = overlay.controller.state().clone();
    let joint = Controller::joint_of(&state, overlay.time(), Plan::nothing()).unwrap();
    let event = Event::Planned(Box::new(joint));
    // What is declared meanwhile is of the next plan.
    overlay.event(&Event::RemoveFlow("call-0002".parse().unwrap()));
    overlay.event(&event);
    let newest = overlay.controller.state().newest_plan().unwrap();
    let packets = &newest.packets;
    assert_eq!((packets.plan.flows.len(), packets.left_out.len()), (101, 900));
    assert!(packets.plan.flows.iter().all(|flow| flow.path.len() == 1));
    assert!(packets.left_out.values().all(|why| why.contains("no service meets its budget")));
    let stale = overlay.controller.staleness(overlay.time()).join("; ");
    assert!(stale.contains("packet flow call-0002 was removed"), "{stale}");

    // A host that was lost meanwhile is no part of a plan.
    let host = newest.hosts.values().next().unwrap().clone();
    overlay.event(&Event::Drain { host, is_drained: true });
    let refusal = overlay.try_event(&event).unwrap_err();
    assert!(refusal.to_string().contains("is left since it was made"), "{refusal}");
}

#[test]
fn changes_while_a_plan_is_made_make_it_stale() {
    let mut overlay = Overlay::in_service(20.0);
    let (state, made) = (overlay.controller.state().clone(), overlay.now);
    let joint = Controller::joint_of(&state, overlay.time(), Plan::nothing()).unwrap();
    overlay.now += 4_000;
    let region = overlay.newest().packets.plan.relays[0].region.clone();
    let mut leg = state.measurements[&(call().from, region.into())].clone();
    leg.rtt.min *= 2;
    overlay.controller.apply(Record::Measurement(leg));
    let budget = Money::from_usd(30.0).unwrap();
    overlay.event(&Event::ChangeSettings(SettingsRequest::budget(budget)));
    overlay.event(&Event::Planned(Box::new(joint)));
    assert_eq!(overlay.newest().made_unix_ms, made);
    let stale = overlay.stale();
    assert!(stale.contains("RTT 40.0 ms") && stale.contains("a plan may cost"), "{stale}");
    overlay.plan();
    assert_eq!(overlay.stale(), "");
}

#[test]
fn what_if_and_the_present_count_the_money_of_packets() {
    let overlay = Overlay::in_service(20.0);
    let (state, now) = (overlay.controller.state(), overlay.time());
    let supposed = |asked: &WhatIf| {
        let problem = what_if::problem(state, now, asked).unwrap();
        let joint = what_if::joint(state, now, asked, Plan::nothing()).unwrap();
        Present::new(state, now, &problem).beside(&joint)
    };
    let same = supposed(&WhatIf::default());
    let in_effect = state.plan_in_effect().unwrap().usd_per_day;
    assert!(in_effect > Money::ZERO);
    assert_eq!((same.present.usd_per_day, same.plan.usd_per_day), (in_effect, in_effect));
    assert_eq!((same.present.relays, same.present.flows_over_relays), (1, 1));
    assert_eq!((same.plan.relays, same.regions.len()), (1, 0));
    let poor = supposed(&WhatIf { budget_usd_per_day: Some(Money::ZERO), ..WhatIf::default() });
    assert_eq!((poor.plan.usd_per_day, poor.plan.relays, poor.regions.len()), (Money::ZERO, 0, 1));
    assert!((poor.usd_more + in_effect.as_usd()).abs() < 1e-9);
    let without = supposed(&WhatIf { without: vec!["gcp:*".to_owned()], ..WhatIf::default() });
    assert_eq!((without.plan.relays, without.plan.usd_per_day), (0, Money::ZERO));
}

/// Returns an overlay whose newest plan has a relay for the packets of [`call`].
fn planned() -> Overlay {
    let mut overlay = Overlay::new(20.0);
    overlay.event(&Event::AddPacketFlow(call()));
    overlay.pass(10);
    overlay.plan();
    overlay
}

/// Returns why the packets of [`call`] take no path.
fn why(overlay: &Overlay) -> String {
    let explained = overlay.controller.explain(overlay.time(), &call().id);
    explained.unwrap_err().to_string()
}

#[test]
fn plans_lead_over_hosts_that_carry_packets_and_say_which_do_not() {
    let mut overlay = planned();
    let region = overlay.newest().packets.plan.relays[0].region.to_string();
    let other = ["gcp:europe-north1", "gcp:europe-west3"].into_iter().find(|it| *it != region);
    let other = other.unwrap();

    // The relay's agent is put back to an older release: the other region's takes the flow.
    overlay.pass(10);
    set_version(&mut overlay, &region, 1);
    assert!(overlay.stale().contains("carries packets no longer"), "{}", overlay.stale());
    assert!(why(&overlay).contains("carries packets no longer"), "{}", why(&overlay));
    overlay.plan();
    assert_eq!(overlay.newest().packets.plan.relays[0].region.as_str(), other);
    assert_eq!(overlay.stale(), "");
    // The controller applies that by itself.
    assert_eq!(overlay.controller.state().rollout.to, Some(overlay.newest().number));
    overlay.pass(10);
    let at = HOSTS.iter().position(|(place, _)| *place == other).unwrap();
    assert_eq!(overlay.relays(), [identity(100 + at as u8)]);
    // Both are: nothing is reserved, and the reason names one of them.
    set_version(&mut overlay, other, 1);
    overlay.plan();
    let reason = overlay.newest().packets.left_out[&call().id].clone();
    assert!(reason.contains("runs an agent too old for packets"), "{reason}");
    assert_eq!((overlay.newest().hosts.len(), overlay.newest().usd_per_day), (0, Money::ZERO));
    let reserved = Controller::reserved_of(overlay.controller.state(), overlay.time());
    assert_eq!(reserved, Money::ZERO);
    set_version(&mut overlay, other, CONFIG_VERSION);
    assert!(overlay.stale().contains("can carry packets by now"), "{}", overlay.stale());
    overlay.plan();
    assert_eq!(overlay.newest().packets.plan.relays[0].region.as_str(), other);
}

#[test]
fn budget_of_the_tenant_is_why_packets_have_no_relay() {
    let mut overlay = planned();
    let tenant: TenantId = "acme".parse().unwrap();
    let budget = BudgetChange::Set(Money::ZERO);
    overlay.event(&Event::SetTenant { tenant: tenant.clone(), budget, alarm: None });
    let event = Box::new(Event::AddPacketFlow(call()));
    overlay.event(&Event::OfTenant { tenant: tenant.clone(), is_own: false, event });
    assert!(why(&overlay).ends_with("the budget of tenant acme is zero"), "{}", why(&overlay));
    assert_eq!(
        overlay.controller.why_packets(overlay.time(), &call()),
        "the budget of tenant acme is zero"
    );
    set_version(&mut overlay, "office", 1);
    assert!(why(&overlay).contains("not carried"), "{}", why(&overlay));
}

#[test]
fn gateway_too_old_for_packets_is_why_they_are_not_carried() {
    let mut overlay = planned();
    for site in ["plant", "office"] {
        set_version(&mut overlay, site, 1);
        assert!(
            overlay.stale().contains("runs an agent too old for packets"),
            "{}",
            overlay.stale()
        );
        assert!(why(&overlay).contains("not carried"), "{}", why(&overlay));
        overlay.plan();
        let reason = overlay.newest().packets.left_out[&call().id].clone();
        let expected = format!("{site}-1 runs an agent too old for packets");
        assert!(reason.contains(&expected), "{reason}");
        assert_eq!((overlay.newest().hosts.len(), overlay.stale().as_str()), (0, ""));
        set_version(&mut overlay, site, CONFIG_VERSION);
        assert!(overlay.stale().contains("can be carried by now"), "{}", overlay.stale());
        overlay.plan();
        assert_eq!(overlay.newest().packets.plan.flows[0].path.len(), 1);
    }
}

#[test]
fn packets_count_once_cost_money_and_tell_the_loss_of_the_next_plan() {
    let mut overlay = Overlay::in_service(20.0);
    let spent =
        |overlay: &Overlay| overlay.controller.state().spent.values().last().unwrap().traffic;
    let before = spent(&overlay);
    overlay.carry(30_000, 600);
    overlay.carry(10_000, 200);
    let state = overlay.controller.state();
    let day = state.packets.values().next().unwrap();
    assert_eq!((day.flow.as_str(), day.service.as_str()), ("call", "caching"));
    assert_eq!((day.counts.packets, day.counts.recovered(), day.counts.lost), (40_000, 800, 0));
    assert_eq!(spent(&overlay).as_usd() - before.as_usd(), 0.2);
    overlay.plan();
    let newest = overlay.controller.state().newest_plan().unwrap();
    assert_eq!(newest.packets.plan.flows[0].internet_loss, Ratio::new(0.02).unwrap());
    assert!(newest.packets.losses[&call().id].contains("40000 packets of its own"));
    // Without loss the Internet alone is enough.
    overlay.now += 3 * 86_400_000;
    overlay.pass(5);
    overlay.carry(100_000, 60);
    overlay.plan();
    let newest = overlay.controller.state().newest_plan().unwrap();
    assert_ne!(newest.packets.plan.flows[0].service, PacketService::Direct);
    let basis = &newest.packets.losses[&call().id];
    assert!(basis.contains("loss 0.0006 of 100000 packets of its own: too near"), "{basis}");
    overlay.carry(100_000, 20);
    overlay.plan();
    let newest = overlay.controller.state().newest_plan().unwrap();
    assert_eq!(newest.packets.plan.flows[0].service, PacketService::Direct);
    assert_eq!(newest.usd_per_day, Money::ZERO);

    // What cannot be is not counted: another site's port, a price beyond any.
    let known = overlay.controller.state().packets.clone();
    let usd = Money::from_usd(200.0).unwrap();
    let bad = PacketCounts { packets: 1, relay_bytes: 1_000_000_000, usd, ..Default::default() };
    for (number, counts) in [(0, bad), (1, PacketCounts { packets: 1, ..Default::default() })] {
        let tally = PacketTally {
            listen: call().listen,
            service: String::new(),
            why: String::new(),
            counts,
        };
        let (tallies, hours, packets) = (Vec::new(), Vec::new(), vec![tally]);
        let batch = SessionBatch { tallies, hours, packets, ..SessionBatch::empty(2, 1) };
        overlay.report(number, |report| report.sessions = Some(batch));
    }
    assert_eq!(overlay.controller.state().packets, known);
    // A gateway's word costs no more than the flow as it was declared can.
    let usd = Money::from_usd(1000.0).unwrap();
    let greedy = PacketCounts { packets: 1, relay_bytes: 1 << 40, usd, ..Default::default() };
    let (service, why) = (String::new(), String::new());
    let tally = PacketTally { listen: call().listen, service, why, counts: greedy };
    for number in 2..4 {
        let packets = vec![tally.clone()];
        let batch = SessionBatch { packets, ..SessionBatch::empty(2, number) };
        overlay.report(0, |report| report.sessions = Some(batch));
    }
    let spent = overlay.controller.state().spent.values().next_back().unwrap().traffic;
    assert!(spent < Money::from_usd(20.0).unwrap(), "{spent}");
}

#[test]
fn packets_of_a_flow_that_was_removed_remain_its_tenants() {
    let mut overlay = Overlay::in_service(20.0);
    let tenant: TenantId = "acme".parse().unwrap();
    let budget = BudgetChange::Set(Money::from_usd(20.0).unwrap());
    overlay.event(&Event::SetTenant { tenant: tenant.clone(), budget, alarm: None });
    let cost = |overlay: &Overlay| {
        let costs = tenants::costs(overlay.controller.state(), overlay.time(), 1);
        costs[&tenant].values().map(|cost| cost.as_usd()).sum::<f64>()
    };
    // Those of before it was the tenant's are not.
    overlay.carry(10_000, 200);
    let event = Box::new(Event::AddPacketFlow(call()));
    overlay.event(&Event::OfTenant { tenant: tenant.clone(), is_own: false, event });
    assert_eq!(cost(&overlay), 0.0);
    overlay.carry(10_000, 200);
    assert!((cost(&overlay) - 0.1).abs() < 1e-6, "{}", cost(&overlay));
    overlay.event(&Event::RemoveFlow(call().id));
    assert!((cost(&overlay) - 0.1).abs() < 1e-6, "{}", cost(&overlay));
    // Its gateway tells the last ones now.
    let told = |overlay: &mut Overlay, number, usd| {
        let usd = Money::from_usd(usd).unwrap();
        let counts =
            PacketCounts { packets: 1, relay_bytes: 1 << 40, usd, ..PacketCounts::default() };
        let (service, why) = (String::new(), String::new());
        let packets = vec![PacketTally { listen: call().listen, service, why, counts }];
        let batch = SessionBatch { packets, ..SessionBatch::empty(2, number) };
        overlay.report(0, |report| report.sessions = Some(batch));
    };
    told(&mut overlay, 1, 0.25);
    told(&mut overlay, 1, 0.25);
    assert!((cost(&overlay) - 0.35).abs() < 1e-6, "{}", cost(&overlay));
    let now = overlay.time();
    let state = overlay.controller.state();
    let rest = tenants::rest(state, now, 1, &tenants::costs(state, now, 1));
    // A flow of none had them, before.
    let parts: Vec<_> = rest.values().collect();
    assert!((parts[0].unknown.as_usd() - 0.1).abs() < 1e-6, "{parts:?}");
    // A gateway's word costs no more than the flow as it was declared could.
    told(&mut overlay, 2, 1000.0);
    assert!(cost(&overlay) < 20.0, "{}", cost(&overlay));
}

#[test]
fn changes_make_the_plan_stale_and_revoked_relays_leave_all_configurations() {
    let mut overlay = Overlay::in_service(20.0);
    assert_eq!(overlay.stale(), "");
    let sooner = PacketFlowRecord { budget: Duration::from_millis(100), ..call() };
    overlay.event(&Event::AddPacketFlow(sooner.clone()));
    assert!(overlay.stale().contains("packet flow call was declared anew"));
    // Until there is one it goes on with its path.
    assert_eq!(overlay.relays().len(), 1);
    let elsewhere = PacketFlowRecord { listen: "127.0.0.1:16009".parse().unwrap(), ..sooner };
    overlay.event(&Event::AddPacketFlow(elsewhere));
    assert_eq!(overlay.relays(), [], "the plan is of other ends");
    overlay.plan();
    overlay.pass(10);
    assert_eq!(overlay.relays().len(), 1);
    let host = overlay.controller.state().plan_in_effect().unwrap().hosts.values().next().cloned();
    overlay.event(&Event::Revoke(host.unwrap()));
    assert_eq!(overlay.relays(), []);
    let plant = overlay.gateway("plant").packets().unwrap().unwrap();
    assert_eq!(plant.relays, []);
    assert!(!overlay.controller.state().handshakes.is_empty());
    overlay.event(&Event::RemoveFlow(call().id));
    let state = overlay.controller.state();
    assert!(state.packet_flows.is_empty() && state.packets.is_empty());
    assert!(state.handshakes.is_empty());
    assert_eq!((overlay.config("office"), overlay.config("plant")), (None, None));
}

#[test]
fn packet_flows_that_cannot_be_carried_are_refused() {
    let mut overlay = Overlay::new(20.0);
    overlay.event(&Event::AddPacketFlow(call()));
    let port = |port: u16| ([127, 0, 0, 1], port).into();
    let other = PacketFlowRecord { id: "other".parse().unwrap(), ..call() };
    for (wrong, expected) in [
        (other.clone(), "has port 16000 already"),
        (PacketFlowRecord { listen: port(7000), ..other.clone() }, "that of gateways themselves"),
        (PacketFlowRecord { to_site: call().from, ..call() }, "the site that it comes from"),
        (PacketFlowRecord { to_site: "far".parse().unwrap(), ..call() }, "remove it first"),
        (PacketFlowRecord { packet: "0 B".parse().unwrap(), ..call() }, "packet: expected 1 to"),
        (PacketFlowRecord { packets_per_second: f64::NAN, ..call() }, "packets_per_second"),
        (PacketFlowRecord { budget: Duration::from_secs(66), ..call() }, "budget: expected"),
        (PacketFlowRecord { to: ([198, 41, 0, 77], 0).into(), ..call() }, "a port from 1"),
    ] {
        let refusal = overlay.try_event(&Event::AddPacketFlow(wrong)).unwrap_err();
        assert!(matches!(refusal, Refusal::Invalid(_)));
        assert!(refusal.to_string().contains(expected), "{refusal}");
    }
    let site: SiteId = "office".parse().unwrap();
    let stream = tradewind_control::record::FlowRecord {
        id: call().id,
        from: site,
        to: "198.41.0.7:443".parse().unwrap(),
        to_site: "far".parse().unwrap(),
        per_day: "1 GB".parse().unwrap(),
        weight: 1,
        listen: port(15_000),
    };
    let refusal = overlay.try_event(&Event::AddFlow(stream.clone())).unwrap_err();
    assert!(refusal.to_string().contains("a packet flow has this name"), "{refusal}");
    overlay.event(&Event::RemoveFlow(call().id));
    overlay.event(&Event::AddFlow(stream));
    let refusal = overlay.try_event(&Event::AddPacketFlow(call())).unwrap_err();
    assert!(refusal.to_string().contains("a flow of streams has this name"), "{refusal}");
}
