//! Events, metrics, and the API's own document, as programs see them.

use std::io::{BufRead as _, Read as _, Write as _};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::Value;
use tradewind_control::demand::VolumeSource;
use tradewind_control::message::{Report, SCHEMA_VERSION};
use tradewind_units::SiteId;

use super::{Agent, Running, flow, gateway};
use crate::Client;
use crate::changes::Kind;
use crate::testing::TestFolder;
use crate::view::{
    Change, FlowView, History, HostState, Hosts, InviteAnswer, InviteRequest, MeasurementColumns,
    Measurements, Places, Status, Usage,
};

/// A listener for events.
struct Listener(std::io::BufReader<std::net::TcpStream>);

impl Listener {
    /// Listens, and returns the status line.
    fn new(running: &Running, token: &str) -> (String, Self) {
        let mut stream = std::net::TcpStream::connect(running.api).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!(
            "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut listener = Self(std::io::BufReader::new(stream));
        (listener.line(), listener)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn next(&mut self) -> Change {
        while self.line() != "event: change" {}
        serde_json::from_str(self.line().strip_prefix("data: ").unwrap()).unwrap()
    }
}

#[test]
fn listener_is_told_of_changes() {
    let place = TestFolder::new("events");
    let running = Running::new(&place);
    let reader = running.folder.reader().unwrap().token;
    assert_eq!(Listener::new(&running, "wrong").0, "HTTP/1.1 401 Unauthorized");
    let (status, mut listener) = Listener::new(&running, reader.secret());
    assert_eq!(status, "HTTP/1.1 200 OK");
    let first = listener.next();
    assert_eq!(first.kinds.len(), 7, "{first:?}");
    let _: FlowView = running.client().put("/v1/flows/backup", &flow()).unwrap();
    let mut kinds = Vec::new();
    let mut version = first.version;
    while !(kinds.contains(&Kind::Flows) && kinds.contains(&Kind::Audit)) {
        let change = listener.next();
        assert!(change.version > version, "{change:?}");
        (version, kinds) = (change.version, [kinds, change.kinds].concat());
    }
    assert!(!kinds.contains(&Kind::Settings), "{kinds:?}");
    // In time, each listener is let in or told to come back; the others are not disturbed.
    let more: Vec<_> = (0..64).map(|_| Listener::new(&running, reader.secret())).collect();
    let refused = "HTTP/1.1 503 Service Unavailable";
    assert_eq!(more.iter().filter(|(status, _)| status == refused).count(), 1);
    let invite = running.invite(gateway());
    assert_eq!(Agent::new(1, &running).join(&invite).0, StatusCode::OK);
    while !listener.next().kinds.contains(&Kind::Hosts) {}
    drop(more);
    running.stopper.stop();
    let mut rest = String::new();
    listener.0.read_to_string(&mut rest).unwrap();
}

#[test]
fn agent_that_ends_is_away_within_three_seconds_and_one_that_waits_is_not() {
    let place = TestFolder::new("away");
    let running = Running::new(&place);
    let agent = Agent::new(1, &running);
    assert_eq!(agent.join(&running.invite(gateway())).0, StatusCode::OK);
    let report = || agent.report(&Report { schema_version: SCHEMA_VERSION, ..Report::default() }).0;
    assert_eq!(report(), StatusCode::OK);
    let state = || running.client().get::<Hosts>("/v1/hosts").unwrap().hosts[0].state;
    // The kernel answers for an agent that only waits.
    let open = agent.runtime.block_on(async {
        let (address, identity) = agent.controller;
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let connection = agent.tls.seal_dialled(stream, identity).await.unwrap();
        let request = b"GET /v1/desired?have=1.99 HTTP/1.1\r\nhost: controller\r\n\r\n";
        connection.write_all(request).await.unwrap();
        connection
    });
    std::thread::sleep(Duration::from_secs(4));
    assert_ne!(state(), HostState::Away);
    let reader = running.folder.reader().unwrap().token;
    let (_, mut listener) = Listener::new(&running, reader.secret());
    listener.next();
    drop(open);
    let ended = Instant::now();
    while !listener.next().kinds.contains(&Kind::Hosts) {}
    assert_eq!(state(), HostState::Away);
    assert!(ended.elapsed() < Duration::from_secs(3), "{:?}", ended.elapsed());
    let status: Status = running.client().get("/v1/status").unwrap();
    assert!(status.problems.iter().any(|it| it.what.starts_with("office-1 is not heard; whether")));
    assert_eq!(report(), StatusCode::OK);
    assert_ne!(state(), HostState::Away);
    while !listener.next().kinds.contains(&Kind::Hosts) {}
}

#[test]
fn metrics_tell_of_work_and_state() {
    let place = TestFolder::new("metrics-port");
    let running = Running::new(&place);
    let invite = running.invite(gateway());
    assert_eq!(Agent::new(1, &running).join(&invite).0, StatusCode::OK);
    let folder = running.end();
    let file = folder.as_ref().join("controller.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}metrics = \"127.0.0.1:0\"\n")).unwrap();
    let running = Running::of(folder);
    let agent = Agent::new(1, &running);
    let report = Report { schema_version: SCHEMA_VERSION, ..Report::default() };
    assert_eq!(agent.report(&report).0, StatusCode::OK);
    running.client().post::<Status>("/v1/plans", &serde_json::json!({})).unwrap_err();
    let ask = |path: &str| {
        let mut stream = std::net::TcpStream::connect(running.metrics.unwrap()).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("/healthz").starts_with("HTTP/1.1 200"));
    assert!(ask("/readyz").starts_with("HTTP/1.1 200"));
    let metrics = ask("/metrics");
    let value = |name: &str| -> f64 {
        let line =
            metrics.lines().find(|line| line.starts_with(&format!("tradewind_controller_{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!((value("reports_total"), value("flows")), (1.0, 0.0));
    assert_eq!(value("hosts{state=\"behind\"}"), 1.0);
    assert_eq!((value("rollout_step"), value("plans_total")), (2.0, 0.0));
    assert_eq!((value("plans_failed_total"), value("stale_reasons")), (1.0, 0.0));
    assert_eq!((value("budget_usd"), value("spent_today_usd")), (0.0, 0.0));
    assert_eq!((value("probed_today_bytes"), value("plans_seconds_total")), (0.0, 0.0));
    assert!(value("decisions_total") >= 2.0 && value("decisions_seconds_total") > 0.0);
    assert!(value("store_writes_total") <= value("decisions_total"));
    assert!(value("store_writes_seconds_total") >= 0.0);
}

/// Checks that the only region of a relay is known.
pub(super) fn relay_is_at_its_place(client: &Client) {
    let places: Places = client.get("/v1/places").unwrap();
    assert_eq!(places.places.len(), 1, "{places:?}");
    assert_eq!((places.places[0].label.as_str(), places.places[0].is_guess), ("Hamina", false));
}

/// Checks that a flow without sessions has the volume that is declared.
pub(super) fn demand_is_declared(client: &Client, view: &FlowView) {
    assert_eq!(
        (view.demand.basis, view.demand.per_day),
        (VolumeSource::Declared, view.flow.per_day)
    );
    let usage: Usage = client.get("/v1/flows/backup/usage").unwrap();
    assert_eq!((usage.flow.as_str(), usage.hours), ("backup", Vec::new()));
    assert!(client.get::<Usage>("/v1/flows/none/usage").is_err());
}

/// Checks the answer of each request that only reads against the API's own document.
pub(super) fn answers_are_as_documented(running: &Running) {
    let client = running.client_of(running.folder.reader().unwrap());
    let document: Value = client.get("/v1/openapi.json").unwrap();
    let request = InviteRequest { role: gateway(), ttl_ms: 1000 };
    let invite: InviteAnswer = running.client().post("/v1/invites", &request).unwrap();
    let mut checked = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(schema) = item["get"]["responses"]["200"]["content"].get("application/json")
        else {
            continue;
        };
        let asked = path
            .replace("flows/{id}", "flows/backup")
            .replace("{number}", "newest")
            .replace("{from}", "office")
            .replace("{to}", "192.0.2.7")
            .replace("{invite_id}", &invite.id);
        let answer: Value = client.get(&asked).unwrap();
        check(&document, &schema["schema"], &answer);
        let unlike = serde_json::json!({ "schema_version": "one", "openapi": 3 });
        if path != "/v1/openapi.json" {
            assert!(!is_valid(&document, &schema["schema"], &unlike), "{path} allows anything");
        }
        checked += 1;
    }
    assert_eq!(checked, 24);
    let request = serde_json::to_value(flow()).unwrap();
    let put = &document["paths"]["/v1/flows/{id}"]["put"];
    check(&document, &put["requestBody"]["content"]["application/json"]["schema"], &request);
    let error = client.get::<Value>("/v1/flows/none").unwrap_err().to_string();
    let error = serde_json::json!({ "error": error });
    check(&document, &put["responses"]["default"]["content"]["application/json"]["schema"], &error);
}

/// Returns a validator of a schema of the document.
fn validator(document: &Value, schema: &Value) -> jsonschema::Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    jsonschema::validator_for(&schema).unwrap()
}

fn is_valid(document: &Value, schema: &Value, value: &Value) -> bool {
    validator(document, schema).is_valid(value)
}

fn check(document: &Value, schema: &Value, value: &Value) {
    let validator = validator(document, schema);
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?} in {value:#}");
}

#[test]
fn document_of_the_dashboard_is_this_one() {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/openapi.json");
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(kept).unwrap()).unwrap();
    assert!(
        kept == crate::openapi(),
        "`tradewind generate openapi > web/openapi.json`, `make web`"
    );
}

#[test]
fn each_route_is_documented_and_needs_a_token() {
    let place = TestFolder::new("openapi");
    let running = Running::new(&place);
    let document: Value = running.client().get("/v1/openapi.json").unwrap();
    let mut count = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let request = format!("{} {path} HTTP/1.1", method.to_ascii_uppercase());
            let request = request.replace(['{', '}'], "");
            let ask = |headers: &str| {
                running.raw(&format!(
                    "{request}\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
                ))
            };
            assert_eq!(ask("").0, "HTTP/1.1 401 Unauthorized", "{request}");
            if path != "/v1/events" {
                let token = running.folder.admin().unwrap().token;
                let (status, body) = ask(&format!("Authorization: Bearer {}\r\n", token.secret()));
                assert!(!status.contains("405") && !body.contains("no such path"), "{request}");
            }
            count += 1;
        }
    }
    assert!(count > 20, "{count}");
}

/// All legs as a list, in columns, those of one place, and the history of one.
pub(super) fn legs_are_measured(client: &Client) {
    let measured: Measurements = client.get("/v1/measurements").unwrap();
    assert!(measured.legs.len() >= 3, "{measured:?}");
    let history: History = client.get("/v1/measurements/office/192.0.2.7").unwrap();
    assert_eq!(history.measured[0].rtt_min_ms, 200.0);

    let columns =
        |query: &str| client.get::<MeasurementColumns>(&format!("/v1/measurements/columns{query}"));
    let ends_of = |columns: &MeasurementColumns| -> Vec<(SiteId, SiteId)> {
        let place = |index: &u32| columns.places[*index as usize].clone();
        columns.source.iter().map(place).zip(columns.destination.iter().map(place)).collect()
    };
    let all: Vec<(SiteId, SiteId)> =
        measured.legs.into_iter().map(|leg| (leg.source, leg.destination)).collect();
    assert_eq!(ends_of(&columns("").unwrap()), all);
    let is_in = |(from, to): &&(SiteId, SiteId)| {
        [from, to].iter().any(|end| end.as_str() == "gcp:europe-north1")
    };
    let of_region: Vec<_> = all.iter().filter(is_in).cloned().collect();
    assert!(!of_region.is_empty() && of_region.len() < all.len(), "{all:?}");
    for name in ["gcp:europe-north1", "gcp%3Aeurope-north1"] {
        assert_eq!(ends_of(&columns(&format!("?place={name}")).unwrap()), of_region);
    }
    assert!(ends_of(&columns("?place=elsewhere").unwrap()).is_empty());
    let refused = columns("?region=x").unwrap_err().to_string();
    assert!(refused.contains("expected `place=NAME` after `?`"), "{refused}");
    let refused = columns("?place=a%20b").unwrap_err().to_string();
    assert!(refused.contains("a b"), "{refused}");
}
