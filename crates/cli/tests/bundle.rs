//! The archive for support: what it holds, and that no secret is in it.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;

use common::Files;
use common::controller::Controller;
use serde_json::Value;

/// Returns the names and texts of an archive's files.
fn unpacked(files: &Files, name: &str) -> BTreeMap<String, String> {
    let archive = std::fs::File::open(files.0.join(name)).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (entry.path().unwrap().display().to_string(), text)
    };
    archive.entries().unwrap().map(read).collect()
}

#[test]
fn bundle_holds_what_helps_and_no_secret() {
    let mut controller = Controller::start("bundle");
    let files = &controller.files;
    files
        .prints("flow add backup --from office --to 192.0.2.7:443 --to-site plant --per-day 200GB");
    let invite = files.prints("invite --role gateway --site office");
    let invite = invite.trim().rsplit(' ').next().unwrap().to_owned();
    let planted = "hunter2-planted";
    let settings = files.read("net/controller.toml");
    files.write("net/controller.toml", format!("{settings}# password = \"{planted}\"\n"));
    let output = files.run("bundle one.tar.gz");
    let told = common::text(&output.stderr);
    assert!(told.contains("one.tar.gz; 1 part could not be had (missing.txt tells why)"), "{told}");
    let archive = unpacked(files, "one.tar.gz");
    assert_eq!(archive["tradewind/missing.txt"].lines().count(), 1, "there is no plan yet");
    assert!(archive["tradewind/missing.txt"].starts_with("plan-newest.json: there is no plan"));
    for (name, expected) in [
        ("versions", "\"kernel\""),
        ("status", "\"problems\""),
        ("flows", "\"backup\""),
        ("audit", "declared flow backup"),
        ("hosts", "\"hosts\""),
        ("gain", "\"spending\""),
        ("measurements", "\"legs\""),
        ("settings", "budget_usd_per_day"),
    ] {
        let text = &archive[&format!("tradewind/{name}.json")];
        assert!(text.contains(expected), "{name}: {text}");
        let _: Value = serde_json::from_str(text).unwrap();
    }
    assert!(archive["tradewind/kernel.txt"].contains("net.ipv4.tcp_rmem = "));
    assert!(archive["tradewind/controller.toml"].starts_with("agents = "));
    let token = |name: &str| {
        let text = files.read(name);
        text.rsplit('"').nth(1).unwrap().to_owned()
    };
    let key = |name: &str| files.read(name).trim().to_owned();
    let secrets = [
        ("token", token("net/admin.toml")),
        ("reader's token", token("net/reader.toml")),
        ("identity key", key("net/controller.key")),
        ("operator key", key("net/operator.key")),
        ("invite", invite),
        ("password", planted.to_owned()),
    ];
    for (what, secret) in &secrets {
        assert!(secret.len() > 10, "{what}");
        // Nor a part of it, behind what all such texts begin with.
        let part = &secret[secret.len() / 2..];
        for (name, text) in &archive {
            assert!(!text.contains(part), "{name} holds the {what}");
        }
    }
    let mode = std::fs::metadata(files.0.join("one.tar.gz")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    files.refuses_with("bundle one.tar.gz", 2, "one.tar.gz: is there already");
    files.refuses_with("bundle none/one.tar.gz", 1, "none/one.tar.gz: ");
    controller.end();

    // What is there helps also when no controller is.
    let files = &controller.files;
    files.write("net/controller.toml", format!("{settings}password = \"{planted}\"\n"));
    files.prints("bundle two.tar.gz");
    let archive = unpacked(files, "two.tar.gz");
    let missing = &archive["tradewind/missing.txt"];
    assert!(missing.contains("status.json: http://127.0.0.1:"), "{missing}");
    assert!(archive.values().all(|text| !text.contains(planted)), "{archive:?}");
    assert!(archive.contains_key("tradewind/versions.json"));
}

/// Secrets of each kind as they may stand in what users and other programs write, and what stays.
const PLANTED: [(&str, &str); 16] = [
    ("invite twinvite1_plantedinvite0, used", "invite [secret], used"),
    ("grant twgrant_plantedgrant0 is refused", "grant [secret] is refused"),
    ("password = 'planted battery' is short", "password = '[secret]' is short"),
    ("TENANT_TOKEN: planted0", "TENANT_TOKEN: [secret]"),
    ("sent bearer planted0 to it", "sent bearer [secret] to it"),
    ("socks5://me:planted0@192.0.2.1:1080 fails", "socks5://[secret]@192.0.2.1:1080 fails"),
    ("hash $argon2id$v=19$m=1$planted$planted end", "hash [secret] end"),
    ("access_key=planted0", "access_key=[secret]"),
    ("AWS_SECRET_ACCESS_KEY=planted/0+", "AWS_SECRET_ACCESS_KEY=[secret]"),
    ("aws_secret_access_key: planted0", "aws_secret_access_key: [secret]"),
    ("Passphrase: planted horse", "Passphrase: [secret]"),
    ("credentials = \"planted0\"", "credentials = \"[secret]\""),
    ("git with ghp_planted0planted0 fails", "git with [secret] fails"),
    ("curl -u me:planted0 https://host/", "curl -u me:[secret] https://host/"),
    ("curl --user me:planted0 https://host/", "curl --user me:[secret] https://host/"),
    (
        "key -----BEGIN EC PRIVATE KEY-----\nplanted\nplanted==\n-----END EC PRIVATE KEY----- end",
        "key [secret] end",
    ),
];

/// Serves this text under all addresses, until the end of the process.
fn serves_everywhere(text: String, kind: &'static str) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            let length = text.len();
            let head = format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n");
            let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{head}\r\n{text}");
            std::io::Write::write_all(reader.get_mut(), answer.as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn bundle_leaves_out_secrets_in_all_that_it_reads() {
    let files = Files::new("planted");
    let texts: Vec<&str> = PLANTED.iter().map(|(planted, _)| *planted).collect();
    let entries: Vec<Value> =
        texts.iter().map(|text| serde_json::json!({ "action": text })).collect();
    let nested = serde_json::json!({ "private_key": texts[15], "api_key": "planted0" });
    let answer = serde_json::json!({
        "entries": entries,
        "hosts": [{ "failure": texts.join("; ") }],
        "proxies": [{ "user": "ann", "password": "planted0" }],
        "tenants": [{ "tokens": [{ "name": "stays", "secret": "planted0" }] }],
        "nested": nested.to_string(),
        "name": "stays",
    });
    let metrics = format!("{}\ntradewind_stays 1\n# EOF\n", texts.join("\n"));
    let api = serves_everywhere(answer.to_string(), "application/json");
    let metrics = serves_everywhere(metrics, "text/plain");
    files.prints(
        "controller init net --agents 127.0.0.1:0 --api 127.0.0.1:0 --advertise 192.0.2.1:7440",
    );
    let settings = files.read("net/controller.toml");
    files.write("net/controller.toml", format!("{settings}metrics = \"{metrics}\"\n"));
    let (_, token) = {
        let access = files.read("net/admin.toml");
        let (api, token) = access.split_once('\n').unwrap();
        (api.to_owned(), token.to_owned())
    };
    files.write("net/admin.toml", format!("api = \"http://{api}\"\n{token}"));
    files.prints("bundle planted.tar.gz");
    let archive = unpacked(&files, "planted.tar.gz");
    assert_eq!(archive["tradewind/missing.txt"], "");
    for name in [
        "status",
        "settings",
        "hosts",
        "flows",
        "plan-newest",
        "gain",
        "jumpstart",
        "measurements",
        "audit",
        "packets",
        "learned",
        "tenants",
    ] {
        let text = &archive[&format!("tradewind/{name}.json")];
        let answer: Value = serde_json::from_str(text).unwrap();
        assert_eq!(answer["name"], "stays", "{name}");
        assert!(!text.contains("planted"), "{name}: {text}");
        for (entry, (_, expected)) in answer["entries"].as_array().unwrap().iter().zip(PLANTED) {
            assert_eq!(entry["action"], expected, "{name}");
        }
        assert_eq!(answer["proxies"][0]["password"], "[secret]");
        assert_eq!(answer["tenants"][0]["tokens"][0]["name"], "stays");
    }
    let text = &archive["tradewind/metrics.txt"];
    assert!(text.contains("tradewind_stays 1") && !text.contains("planted"), "{text}");
}
