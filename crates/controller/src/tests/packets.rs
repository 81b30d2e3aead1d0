//! Packet flows over the API, from their declaration to what became of their packets.

use hyper::StatusCode;
use serde_json::json;
use tradewind_control::message::{CONFIG_VERSION, Report, SCHEMA_VERSION, SessionBatch};
use tradewind_control::packet_flow::{PacketCounts, PacketTally};
use tradewind_units::Duration;

use super::{Agent, Running, flow, gateway};
use crate::testing::TestFolder;
use crate::view::{FlowView, PacketFlowRequest, PacketFlowView, PacketFlows, Status};

fn call() -> PacketFlowRequest {
    PacketFlowRequest {
        from: "office".parse().unwrap(),
        to: "192.0.2.7:5004".parse().unwrap(),
        to_site: "plant".parse().unwrap(),
        packets_per_second: 50.0,
        packet: "200 B".parse().unwrap(),
        budget: Duration::from_millis(150),
        max_loss: None,
        listen: None,
        service: None,
    }
}

#[test]
fn packet_flow_is_declared_counted_and_removed() {
    let place = TestFolder::new("packets");
    let running = Running::new(&place);
    let client = running.client();
    let invite = running.invite(gateway());
    let agent = Agent::new(1, &running);
    assert_eq!(agent.join(&invite).0, StatusCode::OK);
    let view: PacketFlowView = client.put("/v1/packets/call", &call()).unwrap();
    assert_eq!(view.flow.listen, "127.0.0.1:16000".parse().unwrap());
    assert_eq!(view.flow.max_loss.as_f64(), 0.001);
    assert!(view.why.contains("no gateway at plant takes packet flows"), "{}", view.why);
    let other: PacketFlowView = client.put("/v1/packets/other", &call()).unwrap();
    assert_eq!(other.flow.listen.port(), 16_001);
    let status: Status = client.get("/v1/status").unwrap();
    let lacks = |what: &str| status.problems.iter().any(|problem| problem.what == what);
    assert!(lacks("flow call has no gateway at plant"), "{:?}", status.problems);
    // A name is that of one flow.
    assert!(client.put::<FlowView>("/v1/flows/call", &flow()).is_err());
    for (key, value) in [("budget", json!("66 s")), ("packet", json!(0)), ("days", json!(1))] {
        let mut wrong = serde_json::to_value(call()).unwrap();
        wrong[key] = value;
        assert!(client.put::<PacketFlowView>("/v1/packets/x", &wrong).is_err(), "{key}");
    }

    let counts = PacketCounts {
        packets: 1000,
        expected: 1000,
        in_time: 990,
        lost: 10,
        lost_by_internet: 50,
        recovered_cache: 30,
        recovered_in_stream: 10,
        ..PacketCounts::default()
    };
    let (service, why) = ("caching".to_owned(), "cheapest".to_owned());
    let tally = PacketTally { listen: view.flow.listen, service, why, counts };
    let (tallies, hours, packets) = (Vec::new(), Vec::new(), vec![tally]);
    let report = Report {
        schema_version: SCHEMA_VERSION,
        config_version: CONFIG_VERSION,
        sessions: Some(SessionBatch { tallies, hours, packets, ..SessionBatch::empty(1, 1) }),
        ..Report::default()
    };
    agent.report(&report);
    let shown: PacketFlows = client.get("/v1/packets?days=2").unwrap();
    assert_eq!((shown.days, shown.flows.len()), (2, 2));
    let first = &shown.flows[0];
    assert_eq!((first.counts, first.recovered, first.by_day.len()), (counts, 40, 1));
    assert_eq!(first.service_now.as_deref(), Some("caching"));
    assert!(client.get::<PacketFlows>("/v1/packets?days=32").is_err());

    // All of it survives a restart.
    let running = Running::of(running.end());
    let again: PacketFlows = running.client().get("/v1/packets?days=2").unwrap();
    assert_eq!(again, shown);
    running.client().delete("/v1/flows/call").unwrap();
    let left: PacketFlows = running.client().get("/v1/packets").unwrap();
    let left: Vec<&str> = left.flows.iter().map(|view| view.flow.id.as_str()).collect();
    assert_eq!(left, ["other"]);
}
