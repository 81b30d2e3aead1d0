//! Jump-start of the hosts, as programs see it.

use hyper::{Method, StatusCode};
use tradewind_control::learner::{JumpArm, JumpTally, LearnedWindow, LearnerReport, WindowCount};
use tradewind_control::message::{CONFIG_VERSION, Report, SCHEMA_VERSION, SignedDocument};

use super::{Agent, Running, flow, gateway};
use crate::testing::TestFolder;
use crate::view::{FlowView, Jumpstart, JumpstartRequest, SettingsRequest, SettingsView};

/// Returns what a learner reports after one connection.
fn learner() -> LearnerReport {
    LearnerReport {
        process: "gateway".to_owned(),
        run: 7,
        through: "sockops".to_owned(),
        why: None,
        destinations: vec![LearnedWindow {
            destination: "198.51.100.7/32".parse().unwrap(),
            window_segments: 64,
            samples: 1,
            is_in_force: true,
        }],
        others: 0,
        windows: vec![WindowCount { from_segments: 60, destinations: 1 }],
        tallies: vec![JumpTally {
            arm: JumpArm::Jumped,
            size_class: 20,
            connections: 1,
            bytes: 2_000_000,
            retransmitted_segments: 1,
            seconds: 1.0,
            log_seconds: 0.0,
            log_seconds_squared: 0.0,
        }],
    }
}

#[test]
fn windows_of_hosts_are_shown_and_kept_over_a_restart() {
    let place = TestFolder::new("jumpstart");
    let running = Running::new(&place);
    let client = running.client();
    let shown = |client: &crate::Client| -> Jumpstart { client.get("/v1/jumpstart").unwrap() };
    let before = shown(&client);
    assert!(!before.settings.is_on && before.hosts.is_empty());
    let agent = Agent::new(1, &running);
    let invite = running.invite(gateway());
    assert_eq!(agent.join(&invite).0, StatusCode::OK);
    let _: FlowView = client.put("/v1/flows/backup", &flow()).unwrap();
    let request = JumpstartRequest { is_on: Some(true), ..JumpstartRequest::default() };
    let settings: SettingsView =
        client.put("/v1/settings", &SettingsRequest::jumpstart(request)).unwrap();
    assert!(settings.jumpstart.is_on);
    let (status, body) = agent.ask(Method::GET, "/v1/desired", Vec::new());
    assert_eq!(status, StatusCode::OK, "{body:?}");
    let signed: SignedDocument = serde_json::from_slice(&body).unwrap();
    let document = signed.verify(&running.identity).unwrap();
    assert!(document.processes[0].config.contains("[jumpstart"), "{document:?}");
    let report = Report {
        schema_version: SCHEMA_VERSION,
        config_version: CONFIG_VERSION,
        applied: Some(document.version),
        learners: vec![learner()],
        ..Report::default()
    };
    assert_eq!(agent.report(&report).0, StatusCode::OK);
    let host = shown(&client).hosts.remove(0);
    assert!(host.is_acting && host.is_covered);
    assert_eq!(host.destinations, learner().destinations);
    assert_eq!((host.arms.jumped_connections, host.arms.speedup), (1, None));
    let too_many = client.get::<Jumpstart>("/v1/jumpstart?days=32").unwrap_err();
    assert!(too_many.to_string().contains("from 1 to 31"), "{too_many}");

    // Sums are kept; windows are told again.
    let running = Running::of(running.end());
    let host = shown(&running.client()).hosts.remove(0);
    assert!(host.destinations.is_empty() && !host.is_acting);
    assert_eq!(host.why_not.as_deref(), Some("it has not reported a learner yet"));
    assert_eq!(host.arms.jumped_connections, 1);
}
