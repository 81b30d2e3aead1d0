//! Documents below and beyond a ceiling.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use tradewind_config::Kind;
use tradewind_control::Ceiling;
use tradewind_control::message::{
    Document, DocumentVersion, Probe, ProbeKind, Process, SCHEMA_VERSION,
};
use tradewind_control::record::Role;
use tradewind_grant::{DestinationRule, IdentityKey, OperatorKey};
use tradewind_units::{Bytes, SiteId};

fn relay_role() -> Role {
    Role::Relay { region: "aws:eu-north-1".parse().unwrap(), relay_type: "small".parse().unwrap() }
}

fn gateway_role() -> Role {
    Role::Gateway { site: "oulu".parse().unwrap() }
}

/// Returns a relay's configuration: `more` and a policy.
fn relay(more: &str, policy: &str) -> String {
    let operator = OperatorKey::from_entropy([7; 32]).public();
    let has_identity = more.starts_with("identity");
    let identity = if has_identity { "" } else { "identity_file = 'data.key'\n" };
    format!(
        "listen = ['0.0.0.0:7000']\noperators = ['{operator}']\n{identity}{more}\n\
         [policy]\n{policy}\n"
    )
}

fn gateway(more: &str) -> String {
    format!("identity_file = 'data.key'\n{more}\n")
}

fn process(name: &str, kind: Kind, config: String) -> Process {
    Process { name: name.to_owned(), kind, config, files: BTreeMap::new() }
}

fn document(processes: Vec<Process>) -> Document {
    Document {
        schema_version: SCHEMA_VERSION,
        version: DocumentVersion { epoch: 1, version: 1 },
        host: "host-1".parse().unwrap(),
        issued_unix_ms: 0,
        processes,
        responder_port: 0,
        report_every_ms: 1000,
        watched: Vec::new(),
    }
}

fn checked(ceiling: &Ceiling, kind: Kind, config: String) -> Result<(), String> {
    let document = document(vec![process("it", kind, config)]);
    ceiling.allows(&document).map_err(|beyond| beyond.to_string())
}

fn is_as_expected(what: &str, found: Result<(), String>, expected: &str) {
    let found = found.err().unwrap_or_default();
    assert!(found.contains(expected), "{what}: {found}");
    assert_eq!(found.is_empty(), expected.is_empty(), "{what}: {found}");
    assert!(!found.contains('\n'), "one line: {found}");
}

#[test]
fn relay_is_allowed_what_the_ceiling_covers_and_no_more() {
    let ceiling = Ceiling::of_role(&relay_role());
    let inline = format!("identity = '{}'", *IdentityKey::from_entropy([1; 32]).to_secret_text());
    for (more, policy, expected) in [
        ("", "", ""),
        ("", "destinations = ['example.com:443', '198.41.0.4:8000-9000']", ""),
        ("", "next_hops = ['198.41.0.4:7000']", ""),
        ("workers = 2\nmetrics = '127.0.0.1:0'\nrun_as = 'tradewind'", "", ""),
        ("", "destinations = ['10.0.0.0/8:443']", "policy.destinations: 10.0.0.0/8:443 is beyond"),
        ("", "destinations = ['127.0.0.1:22']\nallow_loopback = true", "127.0.0.1"),
        ("", "destinations = ['example.com:25']", "example.com:25 is beyond"),
        ("", "destinations = ['0.0.0.0/0:*']", "0.0.0.0/0:*"),
        ("", "next_hops = ['192.168.0.0/16:*']", "policy.next_hops"),
        (&inline, "", "expected `data.key`"),
        ("identity_file = '/etc/shadow'", "", "expected `data.key`"),
        ("previous_identity_file = 'other.key'", "", "expected `data.key`"),
        ("revocations = '/etc/passwd'", "", "revocations: `/etc/passwd` is not among"),
        ("run_as = 'root'", "", "run_as"),
        ("metrics = '0.0.0.0:9000'\nmetrics_expose = true", "", "metrics: 0.0.0.0:9000"),
        ("access_log = { to = '/var/log/x' }", "", "access_log"),
        ("access_log = { to = 'unix:sessions.sock' }", "", ""),
        ("access_log = { to = 'unix:other.sock' }", "", "access_log"),
        ("audit_log = { to = 'udp:192.0.2.1:514' }", "", "audit_log"),
        ("traces = { endpoint = 'http://127.0.0.1:4318' }", "", "traces: expected none"),
        ("jumpstart = { hints = \"standing\" }", "", "jumpstart"),
        ("packet = { listen = '0.0.0.0:7000', next_hops = ['198.41.0.4:7000'] }", "", ""),
        (
            "packet = { listen = '0.0.0.0:7000', next_hops = ['10.0.0.4:1'] }",
            "",
            "packet.next_hops",
        ),
        ("packet = { listen = '0.0.0.0:7000', registry = true }", "", "a registry and storage"),
        ("packet = { listen = '0.0.0.0:7000', rendezvous = {} }", "", "a registry and storage"),
        ("jumpstart = { socket = 'learners/it.sock' }", "", ""),
        ("jumpstart = { socket = 'learners/other.sock' }", "", "but `learners/it.sock`"),
        ("jumpstart = { socket = '/run/tradewind/it.sock' }", "", "no `socket` but"),
        ("jumpstart = { learn = { c_max = 100 } }", "", ""),
        ("jumpstart = { learn = { c_max = 101 } }", "", "c_max: 101 segments are beyond"),
        ("leg = { dial = { initial_window = 100 } }", "", ""),
        ("leg = { dial = { initial_window = 101 } }", "", "leg: 101 segments are beyond"),
        ("colour = 'red'", "", "colour"),
    ] {
        let found = checked(&ceiling, Kind::Relay, relay(more, policy));
        is_as_expected(&format!("{more} {policy}"), found, expected);
    }
}

#[test]
fn gateway_sends_packets_to_neighbours_and_delivers_them_where_the_ceiling_says() {
    let ceiling = Ceiling::of_role(&gateway_role());
    let hop = |address: &str| {
        let entropy = *blake3::hash(address.as_bytes()).as_bytes();
        let identity = IdentityKey::from_entropy(entropy);
        format!("{{ address = '{address}', identity = '{}' }}", identity.public())
    };
    let packet = |keys: &str| format!("[[packet]]\nlisten = '127.0.0.1:16000'\n{keys}");
    let over = |relay: &str, remote: &str| {
        let (relay, remote) = (hop(relay), hop(remote));
        packet(&format!("to = '10.0.0.7:5004'\nremote = {remote}\nrelays = [{relay}]"))
    };
    let delivers = |to: &str| format!("[packet_endpoint]\ndestinations = ['{to}']");
    let direct = hop("198.41.0.4:7000");
    for (config, expected) in [
        (over("198.41.0.4:7000", "198.41.0.5:7000"), ""),
        (over("10.0.0.4:7000", "198.41.0.5:7000"), "packet.relays, packet.remote: 10.0.0.4"),
        (over("198.41.0.4:7000", "10.0.0.5:7000"), "packet.relays, packet.remote: 10.0.0.5"),
        (delivers("198.41.0.0/24:5004"), ""),
        (delivers("10.0.0.7:5004"), "packet_endpoint.destinations: 10.0.0.7/32:5004 is beyond"),
        ("[packet_endpoint]\nmembers = 'members.toml'".to_owned(), "`listen` and `to` alone"),
        (
            format!(
                "[[packet]]\ntun = {{ name = 'x', destinations = ['10.2.0.0/16:*'] }}\n\
                     remote = {direct}"
            ),
            "expected `listen` and `to`",
        ),
        (packet("to = '10.0.0.7:1'\nremote = 'member'"), "expected that, or an address"),
    ] {
        let found = checked(&ceiling, Kind::Gateway, gateway(&config));
        is_as_expected(&config, found, expected);
    }
}

#[test]
fn owner_bounds_the_initial_window() {
    let with = |initial_window, more: &str| {
        let ceiling = Ceiling { initial_window, ..Ceiling::of_role(&relay_role()) };
        checked(&ceiling, Kind::Relay, relay(more, ""))
    };
    let learn = |window: u32| format!("jumpstart = {{ learn = {{ c_max = {window} }} }}");
    is_as_expected("wider", with(400, &learn(400)), "");
    is_as_expected("wider", with(400, &learn(401)), "401 segments are beyond the ceiling's");
    is_as_expected("narrower", with(50, "jumpstart = {}"), "100 segments are beyond");
    is_as_expected("narrower", with(50, &learn(50)), "");
    is_as_expected("none", with(0, &learn(10)), "`initial_window`, 0");
    is_as_expected("none", with(0, ""), "");
    // An owner's file of before says nothing of it.
    let file = "roles = []\ndestinations = []\nnext_hops = []";
    let ceiling: Ceiling = toml::from_str(file).unwrap();
    assert_eq!(ceiling.initial_window, 100);
}

#[test]
fn gateway_is_allowed_what_the_ceiling_covers_and_no_more() {
    let ceiling = Ceiling::of_role(&gateway_role());
    let relay = IdentityKey::from_entropy([1; 32]).public();
    let forward = |to: &str| format!("forward = [{{ listen = '127.0.0.1:8080', to = '{to}' }}]");
    let over = |address: &str| {
        let forward = forward("example.com:443");
        format!(
            "{forward}\ngrant_file = 'gateway.grant'\n[routes]\ndefault = ['r']\n\
             [[routes.relay]]\nname = 'r'\naddress = '{address}'\nidentity = '{relay}'"
        )
    };
    let [public, private, named] = ["198.41.0.4:7000", "10.0.0.7:7000", "r.example:7000"].map(over);
    let tproxy = "[[tproxy]]\ndestinations = ['198.41.0.0/24:443']";
    let open = "connect = ['0.0.0.0:3128']\nexpose = true\nexpose_without_password = true";
    let with_grant = |ceiling: &Ceiling, more: &str| {
        let mut it = process("it", Kind::Gateway, gateway(more));
        it.files.insert("gateway.grant".to_owned(), String::new());
        ceiling.allows(&document(vec![it])).map_err(|beyond| beyond.to_string())
    };
    for (more, expected) in [
        (forward("example.com:443").as_str(), ""),
        ("socks5 = ['127.0.0.1:1080']", ""),
        (&public, ""),
        (&private, "routes.relay.address: 10.0.0.7/32:7000 is beyond"),
        (&named, "expected an address, not a name"),
        (&forward("10.0.0.7:443"), "forward.to: 10.0.0.7/32:443 is beyond"),
        ("connect = ['127.0.0.1:1']\nallow_loopback = true", "allow_loopback"),
        (open, "capture"),
        (tproxy, "capture"),
    ] {
        is_as_expected(more, with_grant(&ceiling, more), expected);
    }
    let narrow = Ceiling {
        destinations: vec!["198.51.100.0/24:443".parse().unwrap()],
        ..Ceiling::of_role(&gateway_role())
    };
    let proxy = "socks5 = ['127.0.0.1:1080']\ndirect = true\n[routes]\n";
    let route = |to: &str| format!("{proxy}[[routes.route]]\ndestination = '{to}'\nvia = 'direct'");
    let default = format!("{proxy}default = 'direct'");
    for (of, more, expected) in [
        (&ceiling, &default, ""),
        (&narrow, &default, "routes.default: 0.0.0.0/0:1-24 is beyond the ceiling"),
        (&narrow, &route("198.51.100.7/32:443"), ""),
        (&narrow, &route("198.51.100.7/32:25"), "routes: 198.51.100.7/32:25 is beyond"),
        (&ceiling, &route("10.0.0.0/8:443"), "routes: 10.0.0.0/8:443 is beyond the ceiling"),
    ] {
        is_as_expected(more, with_grant(of, more), expected);
    }
    let capture = Ceiling { capture: true, ..ceiling };
    for more in [open, tproxy] {
        is_as_expected(more, with_grant(&capture, more), "");
    }
    let missing = checked(&capture, Kind::Gateway, gateway(&public));
    is_as_expected("no grant", missing, "grant_file: `gateway.grant` is not among");
}

#[test]
fn gateway_logs_to_its_agent_alone() {
    let ceiling = Ceiling::of_role(&gateway_role());
    for (to, expected) in [
        ("unix:sessions.sock", ""),
        ("/var/log/x", "access_log"),
        ("udp:192.0.2.1:514", "access_log"),
        ("udp:127.0.0.1:514", "access_log"),
        ("unix:/run/systemd/journal/socket", "access_log"),
        ("unix:other.sock", "access_log"),
        ("unix:../sessions.sock", "access_log"),
        ("unix:./sessions.sock", "access_log"),
        ("unix:x/../sessions.sock", "access_log"),
    ] {
        let more =
            format!("control_share = 0.02\nsocks5 = ['127.0.0.1:1080']\n[access_log]\nto = '{to}'");
        is_as_expected(to, checked(&ceiling, Kind::Gateway, gateway(&more)), expected);
    }
    let traces = "socks5 = ['127.0.0.1:1080']\n[traces]\nendpoint = 'http://127.0.0.1:4318'";
    let checked = checked(&ceiling, Kind::Gateway, gateway(traces));
    is_as_expected(traces, checked, "traces: expected none");
}

#[test]
fn roles_and_names_are_checked() {
    let ceiling = Ceiling::of_role(&relay_role());
    let of_gateway = gateway("socks5 = ['127.0.0.1:1080']");
    let refused = checked(&ceiling, Kind::Gateway, of_gateway);
    is_as_expected("gateway", refused, "a gateway is not allowed here");
    let refused = checked(&ceiling, Kind::Jumpstart, String::new());
    is_as_expected("jump-start", refused, "a jumpstart is not allowed");
    let probe = Ceiling::of_role(&Role::Probe { site: "oulu".parse().unwrap() });
    checked(&probe, Kind::Relay, relay("", "")).unwrap_err();
    ceiling.allows(&document(vec![])).unwrap();

    for name in ["", "..", "a/b", "../relay", "a b", "relay.x", &"x".repeat(65)] {
        let document = document(vec![process(name, Kind::Relay, relay("", ""))]);
        assert!(ceiling.allows(&document).is_err(), "{name}");
    }
    let with_file = |name: &str| {
        let mut it = process("it", Kind::Relay, relay("", ""));
        it.files.insert(name.to_owned(), String::new());
        ceiling.allows(&document(vec![it]))
    };
    with_file("revocations.txt").unwrap();
    let of_agent = ["data.key", "sessions.sock", "starter.sock", "learners", "it.ready"];
    for name in ["", "..", ".hidden", "a/b", "it.toml", "a\0b"].into_iter().chain(of_agent) {
        assert!(with_file(name).is_err(), "{name}");
    }
    let twice = || process("it", Kind::Relay, relay("", ""));
    assert!(ceiling.allows(&document(vec![twice(), twice()])).is_err());
}

#[test]
fn probes_go_to_allowed_addresses_alone() {
    let probe = |target: &str, kind| Probe {
        id: 1,
        to: SiteId::new("far").unwrap(),
        target: target.parse().unwrap(),
        kind,
    };
    let rtt = |samples| ProbeKind::Rtt { samples, interval_ms: 10 };
    let rate = |connections, duration_ms| ProbeKind::Rate {
        connections,
        duration_ms,
        max_rate_mbps: None,
    };
    let ceiling: Ceiling = toml::from_str(
        "roles = ['relay']\ndestinations = ['10.1.0.0/16:5432']\n\
         next_hops = ['198.51.100.0/24:7000']",
    )
    .unwrap();
    for target in ["10.1.2.3:5432", "198.51.100.9:7000", "198.51.100.9:7001", "10.1.2.3:7001"] {
        ceiling.allows_probe(&probe(target, rtt(20))).unwrap();
        ceiling.allows_probe(&probe(target, rate(8, 15_000))).unwrap();
    }
    for target in ["10.1.2.3:22", "198.51.100.9:25", "192.0.2.1:7001", "127.0.0.1:7001"] {
        let refused = ceiling.allows_probe(&probe(target, rtt(20))).unwrap_err();
        assert!(refused.contains(target) && refused.contains("ceiling"), "{refused}");
    }
    for kind in [rtt(1001), rate(65, 1000), rate(1, 60_001)] {
        assert!(ceiling.allows_probe(&probe("10.1.2.3:5432", kind)).is_err());
    }
    let of_role = Ceiling::of_role(&relay_role());
    of_role.allows_probe(&probe("1.1.1.1:7001", rtt(20))).unwrap();
    of_role.allows_probe(&probe("[2600::1]:443", rtt(20))).unwrap();
    for target in ["127.0.0.1:7001", "10.1.2.3:443", "169.254.169.254:80", "[::1]:7001"] {
        assert!(of_role.allows_probe(&probe(target, rtt(20))).is_err(), "{target}");
    }
}

/// Returns a configuration that a ceiling with `spend` takes.
fn counted(kind: Kind, more: &str) -> String {
    let told = "access_log = { to = 'unix:sessions.sock' }\nmetrics = '127.0.0.1:9101'\n";
    match kind {
        Kind::Relay => relay(&format!("{told}{more}"), ""),
        _ => gateway(&format!("{told}direct = true\n{more}")),
    }
}

fn bounded_ceiling(more: &str) -> Ceiling {
    let rules = "roles = ['relay', 'gateway']\nnext_hops = ['198.41.0.0/24:7000']\n\
                 destinations = ['0.0.0.0/0:443', '198.51.100.0/24:443']\n";
    toml::from_str(&format!("{rules}{more}")).unwrap()
}

#[test]
fn rate_of_a_document_is_clamped_to_that_of_the_ceiling() {
    let ceiling = bounded_ceiling("rate = '500 Mbit/s'");
    let rate = |more: &str| {
        let process = process("relay", Kind::Relay, relay(more, ""));
        let bounded = ceiling.bounded(&document(vec![process]), false).unwrap();
        ceiling.allows(&bounded).unwrap();
        let config = &bounded.processes[0].config;
        tradewind_config::RelayConfig::parse(config).unwrap().limits.rate.unwrap().as_mbps()
    };
    for (more, expected) in [
        ("", 500.0),
        ("limits = { rate = '10 Gbit/s', sessions = 7 }", 500.0),
        ("limits = { rate = '20 Mbit/s' }", 20.0),
    ] {
        assert!((rate(more) - expected).abs() < 1e-6, "{more}");
    }
    let both = vec![
        process("relay", Kind::Relay, relay("", "")),
        process("gateway", Kind::Gateway, counted(Kind::Gateway, FORWARD)),
    ];
    let bounded = ceiling.bounded(&document(both), false).unwrap();
    assert!(bounded.processes.iter().all(|it| it.config.contains("250 Mbit/s")), "shared");
    let packets = process("relay", Kind::Relay, relay("packet = { listen = '0.0.0.0:7000' }", ""));
    let refused = ceiling.bounded(&document(vec![packets]), false).unwrap_err().to_string();
    assert!(refused.contains("takes no packets"), "{refused}");
    let rate = ProbeKind::Rate { connections: 4, duration_ms: 9, max_rate_mbps: Some(900.0) };
    let target = "198.41.0.4:7001".parse().unwrap();
    let to = SiteId::new("there").unwrap();
    let probe = Probe { id: 1, to, target, kind: rate };
    let bounded = ceiling.bounded_probe(probe, Bytes::new(u64::MAX)).unwrap().0;
    let each = ProbeKind::Rate { connections: 4, duration_ms: 9, max_rate_mbps: Some(125.0) };
    assert_eq!(bounded.kind, each);
}

#[test]
fn rate_test_counts_as_what_it_may_send_and_does_not_go_beyond_the_spend() {
    let ceiling = bounded_ceiling("spend = '5 usd/day'\negress_usd_per_gb = 0.1");
    let bounded = |max_rate_mbps, sent: u64| {
        let kind = ProbeKind::Rate { connections: 2, duration_ms: 8000, max_rate_mbps };
        let to = SiteId::new("there").unwrap();
        let probe = Probe { id: 1, to, target: "198.41.0.4:7001".parse().unwrap(), kind };
        ceiling.bounded_probe(probe, Bytes::new(sent)).map(|(_, bytes)| bytes.as_u64())
    };
    // A GB of each connection, and what the kernel sends after its end.
    let most = 2 * (1_000_000_000 + (4 << 20));
    assert_eq!(bounded(Some(1000.0), 0), Ok(most));
    let last = 50_000_000_000 - most - 1000;
    assert_eq!(bounded(Some(1000.0), last), Ok(most));
    for (rate, sent, expected) in [
        (Some(1000.0), last + 1000, "beyond the ceiling's `spend`"),
        (Some(1e300), 0, "beyond the ceiling's `spend`"),
        (Some(1.0), u64::MAX, "beyond the ceiling's `spend`"),
        (None, 0, "takes a greatest rate"),
    ] {
        let refused = bounded(rate, sent).unwrap_err();
        assert!(refused.contains(expected), "{rate:?} {sent}: {refused}");
    }
}

#[test]
fn used_up_spend_closes_gateways_for_others_and_leads_no_proxy_beyond_the_destinations() {
    let ceiling = |more: &str| {
        bounded_ceiling(&format!("spend = '5 usd/day'\negress_usd_per_gb = 0.1\n{more}"))
    };
    let identity = IdentityKey::from_entropy([3; 32]).public();
    let gateway = |more: &str, default: &str| {
        let routes = format!(
            "{more}\ngrant_file = 'gateway.grant'\n[routes]\ndefault = {default}\n\
             [[routes.route]]\ndestination = '198.51.100.0/24:443'\nvia = ['r']\n\
             [[routes.route]]\ndestination = '198.51.100.0/24:80'\nvia = ['r']\n\
             [[routes.relay]]\nname = 'r'\naddress = '198.41.0.4:7000'\n\
             identity = '{identity}'"
        );
        let mut gateway = process("gateway", Kind::Gateway, counted(Kind::Gateway, &routes));
        gateway.files.insert("gateway.grant".to_owned(), String::new());
        document(vec![process("relay", Kind::Relay, counted(Kind::Relay, "")), gateway])
    };
    // Its default leads over relays alone, and no proxy here may lead to all addresses directly.
    let wanted = gateway("socks5 = ['127.0.0.1:1080']", "['r']");
    let own = ceiling("");
    own.allows(&wanted).unwrap();
    let closed = own.bounded(&wanted, true).unwrap();
    assert_eq!(closed.processes.len(), 1, "no relay");
    let routes =
        tradewind_config::GatewayConfig::parse(&closed.processes[0].config).unwrap().routes;
    for (to, expected) in [
        ("198.51.100.7:443", tradewind_desired::Route::Direct),
        ("198.51.100.7:80", tradewind_desired::Route::Refuse),
        ("8.8.8.8:53", tradewind_desired::Route::Refuse),
    ] {
        let to = to.parse().unwrap();
        assert_eq!(routes.routes_to(&to).1, std::slice::from_ref(&expected), "{to}");
    }
    // One that serves others ends.
    let open = "expose = true\nexpose_without_password = true\nsocks5 = ['0.0.0.0:1080']";
    let wanted = gateway(open, "'refuse'");
    let captures = ceiling("capture = true");
    captures.allows(&wanted).unwrap();
    assert_eq!(captures.bounded(&wanted, false).unwrap().processes.len(), 2);
    assert_eq!(captures.bounded(&wanted, true).unwrap().processes, []);
}

const FORWARD: &str = "forward = [{ listen = '127.0.0.1:1', to = '198.51.100.7:443' }]";

#[test]
fn once_the_spend_is_used_up_relays_end_and_gateways_send_direct() {
    let ceiling = bounded_ceiling("spend = '5 usd/day'\negress_usd_per_gb = 0.1");
    assert!(!ceiling.is_used_up(Bytes::new(49_999_999_000)));
    assert!(ceiling.is_used_up(Bytes::new(50_000_000_000)));
    let spend = |sent| ceiling.bounds(false, sent).unwrap().spend.unwrap();
    let used = spend(Some(Bytes::new(20_000_000_000))).used_usd.unwrap();
    assert!((used.as_usd() / spend(None).usd_per_day.as_usd() - 0.4).abs() < 1e-9, "{used}");
    assert_eq!(spend(None).used_usd, None);
    let identity = IdentityKey::from_entropy([3; 32]).public();
    let routes = format!(
        "{FORWARD}\ngrant_file = 'gateway.grant'\n[routes]\n[[routes.route]]\n\
         destination = '198.51.100.7/32:443'\nvia = ['r']\nfallback = ['direct']\n\
         [[routes.relay]]\nname = 'r'\naddress = '198.41.0.4:7000'\nidentity = '{identity}'"
    );
    let drains = "timeouts = { drain = '9 h', retire = '99 h', idle = '7 min' }";
    let mut wanted = document(vec![
        process("relay", Kind::Relay, counted(Kind::Relay, drains)),
        process("gateway", Kind::Gateway, counted(Kind::Gateway, &routes)),
    ]);
    wanted.processes[1].files.insert("gateway.grant".to_owned(), String::new());
    let open = ceiling.bounded(&wanted, false).unwrap();
    assert!(open.processes[1].config.contains("198.41.0.4"));
    for ceiling in [&ceiling, &bounded_ceiling("rate = '500 Mbit/s'")] {
        let open = ceiling.bounded(&wanted, false).unwrap();
        let most = std::time::Duration::from_secs(30);
        let config = tradewind_config::RelayConfig::parse(&open.processes[0].config).unwrap();
        assert_eq!((config.timeouts.drain, config.timeouts.retire), (most, most));
        assert_eq!(config.timeouts.idle, Some(std::time::Duration::from_secs(420)));
        let config = tradewind_config::GatewayConfig::parse(&open.processes[1].config).unwrap();
        assert_eq!((config.timeouts.drain, config.timeouts.retire), (most, most), "by default");
    }
    let closed = ceiling.bounded(&wanted, true).unwrap();
    assert_eq!(closed.processes.iter().map(|it| &it.name).collect::<Vec<_>>(), ["gateway"]);
    let config = tradewind_config::GatewayConfig::parse(&closed.processes[0].config).unwrap();
    let to = "198.51.100.7:443".parse().unwrap();
    assert_eq!(config.routes.routes_to(&to).1, [tradewind_desired::Route::Direct]);
    assert_eq!(config.forward.len(), 1);
}

#[test]
fn process_whose_bytes_cannot_be_counted_is_refused_where_spend_is_bounded() {
    let refused = |more: &str, config: String| {
        let it = document(vec![process("it", Kind::Relay, config)]);
        bounded_ceiling(more).bounded(&it, false).unwrap_err().to_string()
    };
    let priced = "spend = '5 usd/day'\negress_usd_per_gb = 0.1";
    let log = "access_log = { to = 'unix:sessions.sock' }\n";
    let metrics = "metrics = '127.0.0.1:9101'\n";
    let sampled = format!("access_log = {{ to = 'unix:sessions.sock', one_in = 9 }}\n{metrics}");
    for (ceiling, config, expected) in [
        ("spend = '5 usd/day'", counted(Kind::Relay, ""), "egress_usd_per_gb"),
        (priced, relay(log, ""), "metrics"),
        (priced, relay(&format!("{log}metrics = '127.0.0.1:0'"), ""), "at a fixed port"),
        (priced, relay(metrics, ""), "access_log"),
        (priced, relay(&sampled, ""), "all sessions"),
    ] {
        let found = refused(ceiling, config);
        assert!(found.contains(expected) && !found.contains('\n'), "{expected}: {found}");
    }
}

#[test]
fn ceiling_survives_its_file() {
    for role in [relay_role(), gateway_role()] {
        let ceiling = Ceiling::of_role(&role);
        let text = toml::to_string(&ceiling).unwrap();
        assert_eq!(toml::from_str::<Ceiling>(&text).unwrap(), ceiling);
    }
    assert!(toml::from_str::<Ceiling>("roles = []\ndestinations = []").is_err());
}

fn rule() -> impl Strategy<Value = DestinationRule> {
    (any::<[u8; 4]>(), 0u8..=32, 1u16..100, 0u16..100).prop_map(|(ip, bits, first, more)| {
        let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
        let base = Ipv4Addr::from(u32::from(Ipv4Addr::from(ip)) & mask);
        format!("{base}/{bits}:{first}-{}", first + more).parse().unwrap()
    })
}

proptest! {
    /// Checks that the ceiling covers all that a relay of an allowed document may dial.
    #[test]
    fn allowed_relay_dials_nothing_beyond(
        mut allowed in proptest::collection::vec(rule(), 1..4),
        widen in 0u8..=32,
        wanted in rule(),
        near in any::<u32>(),
        port in 1u16..200,
    ) {
        // A range around the wanted one, as two of chance hardly overlap.
        let Some((IpAddr::V4(base), bits)) = wanted.range() else { unreachable!() };
        let mask = u32::MAX.checked_shl(32 - u32::from(widen)).unwrap_or(0);
        let around = Ipv4Addr::from(u32::from(base) & mask);
        allowed.push(format!("{around}/{widen}:1-99").parse().unwrap());
        let ceiling = Ceiling {
            roles: vec!["relay".to_owned()],
            destinations: allowed.clone(),
            next_hops: vec![],
            capture: false,
            initial_window: 100,
            ..Ceiling::of_role(&relay_role())
        };
        let policy = format!("destinations = ['{wanted}']");
        if checked(&ceiling, Kind::Relay, relay("", &policy)).is_ok() {
            let host = u32::MAX.checked_shr(u32::from(bits)).unwrap_or(0) & near;
            let address = (Ipv4Addr::from(u32::from(base) | host), port).into();
            prop_assert!(
                !wanted.covers_address(address) || allowed.iter().any(|r| r.covers_address(address))
            );
        }
        // A ceiling that says the same allows it.
        let same = Ceiling { destinations: vec![wanted.clone()], ..ceiling };
        prop_assert!(checked(&same, Kind::Relay, relay("", &policy)).is_ok());
    }
}
