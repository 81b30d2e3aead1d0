//! Requests by whom they come from: the own page, other sites, each token.

use std::io::{Read as _, Write as _};

use super::Running;
use crate::Client;
use crate::testing::TestFolder;
use crate::view::AccessView;

#[test]
fn foreign_requests_are_refused() {
    let place = TestFolder::new("foreign");
    let running = Running::new(&place);
    let token = running.folder.admin().unwrap().token;
    let token = token.secret();
    let ask = |headers: &str| {
        running.raw(&format!("GET /v1/status HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")).0
    };
    let bearer = format!("Authorization: Bearer {token}\r\n");
    for host in ["localhost:7441", "127.0.0.1", "[::1]:7441", "LOCALHOST"] {
        assert_eq!(ask(&format!("Host: {host}\r\n{bearer}")), "HTTP/1.1 200 OK", "{host}");
    }
    let forbidden = "HTTP/1.1 403 Forbidden";
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@127.0.0.1",
        "evil.example:80@localhost:7441",
        "@127.0.0.1",
        "",
    ] {
        let status = ask(&format!("Host: {host}\r\n{bearer}"));
        assert!(status == forbidden || status.contains("400"), "{host}: {status}");
    }
    assert_eq!(ask(&format!("Host: localhost\r\nHost: evil.example\r\n{bearer}")), forbidden);
    assert_eq!(ask(&bearer), forbidden);
    let own = "Host: localhost:7441\r\nOrigin: http://localhost:7441\r\n";
    assert_eq!(ask(&format!("{own}{bearer}")), "HTTP/1.1 200 OK");
    for origin in ["http://localhost", "https://localhost:7441", "http://evil.example", "null", ""]
    {
        let headers = format!("Host: localhost:7441\r\nOrigin: {origin}\r\n{bearer}");
        assert_eq!(ask(&headers), forbidden, "{origin}");
    }
    assert_eq!(ask(&format!("{own}Origin: http://localhost:7441\r\n{bearer}")), forbidden);
    let evil = "Host: evil.example\r\nOrigin: http://evil.example\r\n";
    assert_eq!(ask(&format!("{evil}{bearer}")), forbidden);
    let unknown = "HTTP/1.1 401 Unauthorized";
    assert_eq!(ask("Host: localhost\r\n"), unknown);
    for wrong in ["Bearer x", "Bearer ", "Basic eDp5", &format!("bearer {token}")] {
        let headers = format!("Host: localhost\r\nAuthorization: {wrong}\r\n");
        assert_eq!(ask(&headers), unknown, "{wrong}");
    }
}

#[test]
fn page_is_served_to_all_who_may_reach_it() {
    let place = TestFolder::new("page");
    let running = Running::new(&place);
    let ask = |method: &str, path: &str, headers: &str| {
        let request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        let mut stream = std::net::TcpStream::connect(running.api).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let own = "Host: localhost\r\n";
    let page = ask("GET", "/", own);
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    for header in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        "referrer-policy: no-referrer",
    ] {
        assert!(head.contains(header), "{header} is not in {head}");
    }
    assert!(!head.contains("unsafe") && body.starts_with("<!doctype html>"), "{head}");
    assert!(ask("HEAD", "/", own).ends_with("\r\n\r\n"));
    // What is no file needs a token, and so does everything else than reading.
    for (method, path) in [("GET", "/index"), ("GET", "/../Cargo.toml"), ("POST", "/")] {
        let answer = ask(method, path, own);
        assert!(answer.starts_with("HTTP/1.1 401"), "{method} {path}: {answer}");
    }
    for foreign in ["Host: evil.example\r\n", "Host: localhost\r\nOrigin: http://evil.example\r\n"]
    {
        assert!(ask("GET", "/", foreign).starts_with("HTTP/1.1 403"), "{foreign}");
    }
}

#[test]
fn token_learns_its_rights() {
    let place = TestFolder::new("rights");
    let running = Running::new(&place);
    let may_write = |client: Client| client.get::<AccessView>("/v1/access").unwrap().may_write;
    assert!(may_write(running.client()));
    assert!(!may_write(running.client_of(running.folder.reader().unwrap())));
}

#[test]
fn readers_token_changes_nothing_at_any_route() {
    let place = TestFolder::new("reads");
    let running = Running::new(&place);
    let reader = running.folder.reader().unwrap().token;
    let ask = |method: &str, path: &str| {
        let length = if ["GET", "HEAD"].contains(&method) { "" } else { "Content-Length: 2\r\n" };
        let body = if length.is_empty() { "" } else { "{}" };
        let (status, _) = running.raw(&format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{length}\
             Content-Type: application/json\r\nAuthorization: Bearer {}\r\n\r\n{body}",
            reader.secret()
        ));
        status
    };
    let document = crate::openapi();
    let before = running.audited();
    let mut tried = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let filled = path.replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys().map(|name| name.to_uppercase()) {
            if method == "GET" || path == "/v1/what-if" {
                continue;
            }
            assert_eq!(ask(&method, &filled), "HTTP/1.1 403 Forbidden", "{method} {path}");
            tried += 1;
        }
    }
    assert!(tried > 15, "{tried}");
    assert_eq!(running.audited(), before);
    assert_eq!(ask("GET", "/v1/status"), "HTTP/1.1 200 OK");
    assert_eq!(ask("HEAD", "/v1/status"), "HTTP/1.1 200 OK");
}
