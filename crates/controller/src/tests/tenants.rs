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
    for tenant in ["victim", "hostile"] {
        let request = json!({ "budget_usd_per_day": 3.5, "alarm_share": 0.8 });
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

/// The routes that a tenant's token reaches, and the status of a foreign or empty request there.
fn reached(method: &str, path: &str) -> Option<&'static [u16]> {
    Some(match (method, path) {
        ("get", "/v1/flows" | "/v1/gain" | "/v1/packets" | "/v1/tenants" | "/v1/access") => &[200],
        ("get", "/v1/flows/{id}" | "/v1/flows/{id}/usage") => &[404],
        ("put", "/v1/flows/{id}" | "/v1/packets/{id}") => &[409, 422, 400, 403],
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
            // Whatever the name stands for: the victim's flow, the victim, a host.
            for name in ["secret", "victim", "overlays"] {
                let at = path.replace("{id}", name).replace("{number}", "newest");
                let at = at.replace("{site}", "office").replace("{from}", "office");
                let at = at.replace("{to}", "192.0.2.7");
                for (token, whose) in tokens.iter().zip(HOSTILE) {
                    let body = serde_json::to_value(flow()).unwrap();
                    let method = method.to_uppercase();
                    let (status, answer) = status(&running, token, &method, &at, &body);
                    let expected = reached(&method.to_lowercase(), path).unwrap_or(&[403]);
                    assert!(expected.contains(&status), "{whose} {method} {at}: {status} {answer}");
                    for known in ["192.0.2.7:443", "192.0.2.9:443", "victim\"", "3.5,\"is_stop"] {
                        let is_own_name = known.starts_with("victim") && name == "victim";
                        let is_own_budget = at == "/v1/tenants" && known.starts_with("3.5");
                        assert!(
                            is_own_name || is_own_budget || !answer.contains(known),
                            "{whose} {method} {at}: {answer}"
                        );
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
    assert_eq!(put(&reader, "/v1/flows/own", &body("192.0.2.8:443")).0, 403);
    assert_eq!(put(&operator, "/v1/flows/own", &body("192.0.2.8:443")).0, 200);
    let (code, flows) = get("/v1/flows");
    assert!(code == 200 && flows.contains("192.0.2.8:443") && !flows.contains("secret"), "{flows}");
    assert_eq!(get("/v1/flows/own").0, 200);
    let (_, access) = get("/v1/access");
    let access: AccessView = serde_json::from_str(&access).unwrap();
    assert_eq!((access.may_write, access.tenant.unwrap().to_string()), (false, "hostile".into()));
    // Another's name, port, destination, tenant; a name that may be of a learned destination.
    let listen = json!({ "from": "office", "to": "192.0.2.6:1", "per_day": "1 GB",
        "listen": "127.0.0.1:15000" });
    for (path, body) in [
        ("/v1/flows/secret", &body("192.0.2.6:1")),
        ("/v1/flows/overlays", &body("192.0.2.6:1")),
        ("/v1/flows/other", &listen),
        ("/v1/flows/other", &body("192.0.2.7:443")),
        ("/v1/flows/other?tenant=victim", &body("192.0.2.6:1")),
        ("/v1/flows/office:192.0.2.5:443", &body("192.0.2.6:1")),
    ] {
        let (code, answer) = put(&operator, path, body);
        assert!((400..500).contains(&code), "{path}: {code} {answer}");
        assert!(!answer.contains("secret`") || path.contains("secret"), "{path}: {answer}");
    }
    let (code, gain) = get("/v1/gain");
    assert!(code == 200 && gain.contains("\"budget\":3.5"), "{gain}");
    assert_eq!(status(&running, &operator, "DELETE", "/v1/flows/own", &json!({})).0, 204);
    // Its tokens end with it, and its flows stay.
    assert_eq!(put(&operator, "/v1/flows/own", &body("192.0.2.8:443")).0, 200);
    let running = Running::of(running.end());
    let get = |path: &str| status(&running, &reader, "GET", path, &json!({})).0;
    assert_eq!(get("/v1/flows/own"), 200, "kept over a restart");
    running.client().delete("/v1/tenants/hostile").unwrap();
    assert_eq!(get("/v1/flows"), 401);
    let kept: FlowView = running.client().get("/v1/flows/own").unwrap();
    assert_eq!(kept.flow.id.as_str(), "own");
}
