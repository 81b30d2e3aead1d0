//! Proxies of a site, and the flows that are learned from them, over sockets.

use tradewind_control::message::{LearnedHour, SessionBatch};

use super::*;
use crate::view::{AdoptRequest, LearnedView, ProxiesRequest};

#[test]
fn learned_destination_becomes_a_flow_and_survives_a_restart() {
    let place = TestFolder::new("learned");
    let running = Running::new(&place);
    let agent = Agent::new(1, &running);
    assert_eq!(agent.join(&running.invite(gateway())).0, StatusCode::OK);
    let request = ProxiesRequest {
        socks5: Some("127.0.0.1:1080".parse().unwrap()),
        connect: None,
        destinations: Vec::new(),
        adopt_above: None,
    };
    let offered: LearnedView = running.client().put("/v1/proxies/office", &request).unwrap();
    assert_eq!((offered.proxies.len(), offered.learned.len()), (1, 0));
    let exposed = ProxiesRequest { socks5: "192.0.2.1:1080".parse().ok(), ..request };
    let refused = running.client().put::<LearnedView>("/v1/proxies/office", &exposed).unwrap_err();
    assert!(refused.to_string().contains("no loopback address"), "{refused}");

    let hour = millis(unix_now()) / 3_600_000;
    let learned = ["files.example.com:443", "198.41.0.7:443"].map(|to| LearnedHour {
        to: to.parse().unwrap(),
        hour,
        sessions: 2,
        failed: 0,
        bytes: 5000,
        seconds: 3.0,
        concurrent: 1,
    });
    let batch = SessionBatch { learned: learned.into(), ..SessionBatch::empty(1, 1) };
    let report = Report {
        schema_version: SCHEMA_VERSION,
        config_version: CONFIG_VERSION,
        sessions: Some(batch),
        ..Report::default()
    };
    assert_eq!(agent.report(&report).0, StatusCode::OK);
    drop(agent);

    let running = Running::of(running.end());
    let known: LearnedView = running.client().get("/v1/learned").unwrap();
    let names: Vec<&str> = known.learned.iter().map(|flow| flow.id.as_str()).collect();
    assert_eq!(names, ["office:198.41.0.7:443", "office:files.example.com:443"]);
    let path = format!("/v1/learned/{}/adopt", names[1]);
    let adopted: FlowView =
        running.client().post(&path, &AdoptRequest { per_day: None, weight: None }).unwrap();
    assert_eq!((adopted.flow.per_day.as_u64(), adopted.flow.listen.port()), (5000, 15_000));

    let running = Running::of(running.end());
    let usage: crate::view::Usage =
        running.client().get("/v1/flows/office:files.example.com:443/usage").unwrap();
    assert_eq!(usage.hours.iter().map(|hour| hour.bytes).collect::<Vec<_>>(), [5000]);
    let known: LearnedView = running.client().get("/v1/learned").unwrap();
    assert_eq!((known.proxies.len(), known.learned.len()), (1, 1));
    running.client().delete("/v1/proxies/office").unwrap();
    assert!(running.client().delete("/v1/proxies/office").is_err());
}
