//! Tenants over the API: what their tokens reach, and what not.

use serde_json::{Value, json};

use super::*;
use crate::view::{AccessView, Tenants, TokenAnswer};

const HOSTILE: [&str; 2] = ["reads", "operates"];

fn status(running: &Running, token: &str, method: &str, path: &str, body: &Value) -> (u16, String) {
    let body = body.to_string();
    let (line, answer) = running.raw(&format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    (line.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

/// A controller with tenant `victim`, who has flow `secret`, and tenant `hostile`; the tokens of
/// the latter, which reads and which operates.
fn with_two_tenants(place: &TestFolder) -> (Running, [String; 2]) {
    let running = Running::new(place);
    let client = running.client();
    for (tenant, budget) in [("victim", 7.25), ("hostile", 3.5)] {
        let request = json!({ "budget_usd_per_day": budget, "alarm_share": 0.8 });
        let _all: Tenants = client.put(&format!("/v1/tenants/{tenant}"), &request).unwrap();
    }
    let _flow: FlowView = client.put("/v1/flows/secret?tenant=victim", &flow()).unwrap();
    let own = FlowRequest { to: "192.0.2.9:443".parse().unwrap(), ..flow() };
    let _flow: FlowView = client.put("/v1/flows/overlays", &own).unwrap();
    let tokens = [false, true].map(|may_write| {
        let request = json!({ "may_write": may_write });
        let answer: TokenAnswer = client.post("/v1/tenants/hostile/tokens", &request).unwrap();
        answer.token
    });
    (running, tokens)
}

/// Returns a request that declares what another tenant has.
fn body(at: &str) -> Value {
    if at.starts_with("/v1/packets/") {
        return json!({ "from": "office", "to": "192.0.2.7:443", "to_site": "plant",
            "packets_per_second": 50.0, "packet": "200 B", "budget": "150 ms" });
    }
    serde_json::to_value(flow()).unwrap()
}

/// The routes that a tenant's token reaches, and the status of a foreign or empty request there.
fn reached(method: &str, path: &str) -> Option<&'static [u16]> {
    Some(match (method, path) {
        ("get", "/v1/flows" | "/v1/gain" | "/v1/packets" | "/v1/tenants" | "/v1/access") => &[200],
        (
            "get",
            "/v1/flows/{id}"
            | "/v1/flows/{id}/gain"
            | "/v1/flows/{id}/paths"
            | "/v1/flows/{id}/usage",
        ) => &[404],
        ("put", "/v1/flows/{id}" | "/v1/packets/{id}") => &[400, 403],
        ("delete", "/v1/flows/{id}") => &[404, 403],
        _ => return None,
    })
}

#[test]
fn token_of_a_tenant_reaches_nothing_of_others_on_any_route() {
    let place = TestFolder::new("tenants-routes");
    let (running, tokens) = with_two_tenants(&place);
    let document = crate::api::document();
    let mut count = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            // Whatever the name stands for: nothing, the victim's flow, the victim, a flow of none.
            let mut of_nothing = Vec::new();
            for name in ["nothing", "secret", "victim", "overlays"] {
                let at = path.replace("{id}", name).replace("{number}", "newest");
                let at = at.replace("{site}", "office").replace("{from}", "office");
                let at = at.replace("{to}", "192.0.2.7").replace("{invite_id}", name);
                for (number, (token, whose)) in tokens.iter().zip(HOSTILE).enumerate() {
                    let body = body(&at);
                    let method = method.to_uppercase();
                    let (status, answer) = status(&running, token, &method, &at, &body);
                    let expected = reached(&method.to_lowercase(), path).unwrap_or(&[403]);
                    assert!(expected.contains(&status), "{whose} {method} {at}: {status} {answer}");
                    for known in ["192.0.2.7:443", "192.0.2.9:443", "victim\"", "7.25"] {
                        let is_own_name = known.starts_with("victim") && name == "victim";
                        assert!(
                            is_own_name || !answer.contains(known),
                            "{whose} {method} {at}: {answer}"
                        );
                    }
                    // What is another's is refused as what does not exist.
                    let told = (status, answer.replace(name, "NAME"));
                    if name == "nothing" {
                        of_nothing.push(told);
                    } else if status != 200 {
                        assert_eq!(told, of_nothing[number], "{whose} {method} {at}");
                    }
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "the table was walked");
    let flows: Flows = running.client().get("/v1/flows").unwrap();
    let ids: Vec<_> = flows.flows.iter().map(|it| it.flow.id.as_str()).collect();
    assert_eq!(ids, ["overlays", "secret"], "nothing was changed");
    let tenants: Tenants = running.client().get("/v1/tenants").unwrap();
    let all: Vec<_> = tenants.tenants.iter().map(|it| (it.id.to_string(), it.tokens)).collect();
    assert_eq!(all, [("hostile".to_owned(), 2), ("victim".to_owned(), 0)]);
}

#[test]
fn tenant_operates_its_own_flows_alone() {
    let place = TestFolder::new("tenants-own");
    let (running, [reader, operator]) = with_two_tenants(&place);
    let body = |to: &str| json!({ "from": "office", "to": to, "per_day": "1 GB" });
    let put = |token: &str, path: &str, body: &Value| status(&running, token, "PUT", path, body);
    let get = |path: &str| status(&running, &reader, "GET", path, &json!({}));
    let own = "/v1/flows/hostile.own";
    assert_eq!(put(&reader, own, &body("192.0.2.8:443")).0, 403);
    assert_eq!(put(&operator, own, &body("192.0.2.8:443")).0, 200);
    let (code, flows) = get("/v1/flows");
    assert!(code == 200 && flows.contains("192.0.2.8:443") && !flows.contains("secret"), "{flows}");
    assert_eq!(get(own).0, 200);
    let (_, access) = get("/v1/access");
    let access: AccessView = serde_json::from_str(&access).unwrap();
    assert_eq!((access.may_write, access.tenant.unwrap().to_string()), (false, "hostile".into()));
    // Another's name, port, destination, tenant; a name that may be of a learned destination.
    let listen = json!({ "from": "office", "to": "192.0.2.6:1", "per_day": "1 GB",
        "listen": "127.0.0.1:15000" });
    for (path, body) in [
        ("/v1/flows/secret", &body("192.0.2.6:1")),
        ("/v1/flows/overlays", &body("192.0.2.6:1")),
        ("/v1/flows/other", &body("192.0.2.6:1")),
        ("/v1/flows/hostile.other", &listen),
        ("/v1/flows/hostile.other", &body("192.0.2.7:443")),
        ("/v1/flows/hostile.other?tenant=victim", &body("192.0.2.6:1")),
        ("/v1/flows/office:192.0.2.5:443", &body("192.0.2.6:1")),
    ] {
        let (code, answer) = put(&operator, path, body);
        assert!((400..500).contains(&code), "{path}: {code} {answer}");
        assert!(!answer.contains("secret`") || path.contains("secret"), "{path}: {answer}");
    }
    let (code, gain) = get("/v1/gain");
    assert!(code == 200 && gain.contains("\"budget\":3.5"), "{gain}");
    assert_eq!(status(&running, &operator, "DELETE", own, &json!({})).0, 204);
    // Its tokens end with it, and its flows stay.
    assert_eq!(put(&operator, own, &body("192.0.2.8:443")).0, 200);
    let running = Running::of(running.end());
    let get = |path: &str| status(&running, &reader, "GET", path, &json!({})).0;
    assert_eq!(get(own), 200, "kept over a restart");
    running.client().delete("/v1/tenants/hostile").unwrap();
    assert_eq!(get("/v1/flows"), 401);
    let kept: FlowView = running.client().get(own).unwrap();
    assert_eq!(kept.flow.id.as_str(), "hostile.own");
}

#[test]
fn stopped_tenants_are_told_and_budgets_end() {
    let place = TestFolder::new("tenants-stopped");
    let (running, [reader, _]) = with_two_tenants(&place);
    let client = running.client();
    let secret = || client.get::<FlowView>("/v1/flows/secret").unwrap();
    let is_stopped = |tenants: Tenants| tenants.tenants.iter().any(|tenant| tenant.is_stopped);
    assert!(!secret().is_stopped);
    let zero = json!({ "budget_usd_per_day": 0.0 });
    assert!(is_stopped(client.put("/v1/tenants/victim", &zero).unwrap()));
    let stopped = secret();
    assert_eq!(stopped.tenant.as_ref().unwrap().to_string(), "victim");
    assert!(stopped.is_stopped);
    client.put::<SettingsView>("/v1/settings", &json!({ "budget_usd_per_day": 5.0 })).unwrap();
    assert_eq!(secret().why, "no gateway has joined at office");
    Host::join(1, &running, gateway());
    assert_eq!(secret().why, "the budget of tenant victim is zero");
    let own: FlowView = client.get("/v1/flows/overlays").unwrap();
    assert!(own.tenant.is_none() && !own.is_stopped);
    let both = json!({ "budget_usd_per_day": 1.0, "no_budget": true });
    let refused = client.put::<Tenants>("/v1/tenants/victim", &both).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 400, .. }), "{refused}");
    let none = json!({ "no_budget": true });
    let tenants: Tenants = client.put("/v1/tenants/victim", &none).unwrap();
    assert_eq!(tenants.tenants[1].budget_usd_per_day, None);
    assert!(!is_stopped(tenants) && !secret().is_stopped);
    // The rest of the money is told to operators alone, and the rows to each tenant are its own.
    let all: Tenants = client.get("/v1/tenants?days=3").unwrap();
    assert_eq!((all.tenants.len(), all.rest.len()), (2, 3));
    let (_, own) = status(&running, &reader, "GET", "/v1/tenants?days=3", &json!({}));
    let own: Tenants = serde_json::from_str(&own).unwrap();
    let names: Vec<_> = own.tenants.iter().map(|tenant| tenant.id.to_string()).collect();
    assert_eq!((names, own.rest.len()), (vec!["hostile".to_owned()], 0));
}
