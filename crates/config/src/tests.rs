//! Tests of valid and invalid configurations and of the error lines.

use std::time::Duration;

use super::*;
use tradewind_grant::{IdentityKey, OperatorKey};

const OPERATOR: [u8; 32] = [9; 32];

fn relay_text(rest: &str) -> String {
    let operator = OperatorKey::from_entropy(OPERATOR).public();
    format!("listen = ['127.0.0.1:0']\nidentity_file = 'key'\noperators = ['{operator}']\n{rest}")
}

fn line(result: Result<impl Sized, ConfigError>) -> String {
    let line = result.err().expect("refused").to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn absent_keys_have_defaults() {
    let config = RelayConfig::parse(&relay_text("[timeouts]\nidle = '2 h'")).unwrap();
    assert_eq!(config.timeouts.idle, Some(Duration::from_secs(7200)));
    assert_eq!(config.timeouts.header, Duration::from_secs(5));
    assert!(config.policy.destinations.is_empty(), "default deny");
    assert_eq!(config.metrics, None);
}

#[test]
fn optional_timeouts_may_be_off() {
    let off = "idle = 'off'\nhalf_closed = 'off'\nuser = 'off'\nkeepalive = 'off'";
    let timeouts = RelayConfig::parse(&relay_text(&format!("[timeouts]\n{off}"))).unwrap().timeouts;
    let Timeouts { idle, half_closed, user, keepalive, .. } = timeouts;
    assert_eq!([idle, half_closed, user, keepalive], [None; 4]);
    for key in ["header", "dial", "drain", "retire"] {
        let line = line(RelayConfig::parse(&relay_text(&format!("[timeouts]\n{key} = 'off'"))));
        assert!(line.contains(&format!("`timeouts.{key}`")), "{line}");
    }
}

#[test]
fn relay_errors_name_the_key() {
    for (rest, expected) in [
        ("foo = 1", "`foo` (line 4): unknown field `foo`"),
        ("[limits]\nsessions = 'x'", "`limits.sessions` (line 5): invalid type"),
        ("[timeouts]\nidle = '5'", "`timeouts.idle` (line 5): duration: a span"),
        ("[timeouts]\nidle = '0 s'", "`timeouts.idle` (line 5): expected a span above"),
        (
            "[policy]\ndestinations = ['10.0.0.1/8:1']",
            "`policy.destinations[0]` (line 5): destination rule `10.0.0.1/8:1`",
        ),
        (
            "workers = -1",
            "`workers` (line 4): invalid value: integer `-1`, expected a whole \
             number",
        ),
        ("workers = 0", "`workers` (line 4): expected 1 to 1024"),
        ("[limits]\nmemory = '1 kB'", "`limits.memory` (line 5): expected at least 1 MB"),
        (
            "[limits.each_source]\nmemory = '1 kB'",
            "`limits.each_source.memory` (line 5): expected at least 1 MB",
        ),
        ("[limits]\nrate = '5'", "`limits.rate` (line 5): bandwidth"),
        (
            "[limits.each_source]\nsessions = 0",
            "`limits.each_source.sessions` (line 5): invalid value",
        ),
        ("[limits", "line 4: "),
        ("metrics = '[::]:9464'", "`metrics` (line 4): [::]:9464 is no loopback address"),
        (
            "[leg.dial]\nencryption = 'either'",
            "`leg.dial.encryption` (line 5): `either` is for who accepts",
        ),
        (
            "[leg.dial]\nencryption = 'ssl'",
            "`leg.dial.encryption` (line 5): unknown variant `ssl`, expected one of",
        ),
        (
            "[[leg.at]]\naddress = '127.0.0.1:1'\nencryption = 'none'",
            "`leg.at[0].address` (line 5): 127.0.0.1:1 is not among `listen`",
        ),
        (
            "[[leg.to]]\naddress = '192.0.2.2:1'\ndial = {}\n[[leg.to]]\naddress = \
             '192.0.2.2:1'\ndial = { connections = 4 }",
            "`leg.to[1].address` (line 8): 192.0.2.2:1 is there twice",
        ),
        ("[[leg]]\nencryption = 'none'", "`leg` (line 4): invalid type: "),
        (
            "[leg.dial]\nwarm = 0",
            "`leg.dial.warm` (line 5): invalid value: integer `0`, expected a \
             whole number from 1 to 65535",
        ),
        (
            "[policy]\nnext_hops = ['*.example.com:7000']",
            "`policy.next_hops` (line 5): `*.example.com:7000`: expected \
             ranges of addresses",
        ),
        (
            "[limits]\ntrusted_sources = ['relay.example.com:*']",
            "`limits.trusted_sources` (line 5): `relay.example.com:*`: expected \
             ranges",
        ),
    ] {
        let line = line(RelayConfig::parse(&relay_text(rest)));
        assert!(line.starts_with(&format!("configuration, {expected}")), "{line}");
    }
    let line = line(RelayConfig::parse("listen = []\noperators = []"));
    assert!(line.starts_with("configuration, `listen` (line 1): expected at least one"), "{line}");
}

#[test]
fn link_local_address_without_an_interface_is_refused() {
    for (rest, expected) in [
        (
            "metrics = '[fe80::1]:9000'",
            "configuration, `metrics` (line 4): socket address: IP:PORT, and for a link-local IP \
             the number of its interface",
        ),
        (
            "metrics = '[fe80::1%eth0]:9000'",
            "configuration, `metrics` (line 4): socket address: IP:PORT, and for a link-local IP \
             the number",
        ),
        (
            "[[leg.to]]\naddress = '[fe80::1]:1'\ndial = {}",
            "configuration, `leg.to[0].address` (line 5): socket address: IP:PORT, and for a link",
        ),
    ] {
        let line = line(RelayConfig::parse(&relay_text(rest)));
        assert!(line.starts_with(expected), "{line}");
    }
}

#[test]
fn duplicate_listener_names_both_places() {
    let relay = |listen: &str, rest: &str| {
        let text = relay_text(rest).replace("['127.0.0.1:0']", listen);
        RelayConfig::parse(&text)
    };
    let twice = |(key, line): (&str, usize), address: &str, other: &str, used: &str| {
        format!(
            "configuration, `{key}` (line {line}): {address} is listened on twice: `{other}` \
             has {used} \
             already; expected another address or port for one of them"
        )
    };
    let (one, all) = ("127.0.0.1:7000", "0.0.0.0:7000");
    let found = line(relay(&format!("['{one}', '{one}']"), ""));
    assert_eq!(found, twice(("listen", 1), one, "listen", one));
    let found = line(relay(&format!("['{all}', '{one}']"), ""));
    assert_eq!(found, twice(("listen", 1), one, "listen", all));
    let found = line(relay("['[::1]:7000', '[::]:7000']", ""));
    assert_eq!(found, twice(("listen", 1), "[::]:7000", "listen", "[::1]:7000"));
    let found = line(relay(&format!("['{all}']"), &format!("metrics = '{one}'")));
    assert_eq!(found, twice(("metrics", 4), one, "listen", all));
    // Each address family has its own wildcard, and each port 0 is a different port.
    for listen in [
        "['0.0.0.0:7000', '[::]:7000']",
        "['127.0.0.1:0', '127.0.0.1:0', '0.0.0.0:0']",
        "['127.0.0.1:7000', '127.0.0.2:7000', '127.0.0.1:7001']",
    ] {
        relay(listen, "").unwrap();
    }
    let forward = |listen: &str| format!("[[forward]]\nlisten = '{listen}'\nto = '192.0.2.1:1'");
    let (ports, port) = (forward("127.0.0.1:8000-8002"), forward("127.0.0.1:8001"));
    let found = line(GatewayConfig::parse(&format!("{ports}\n{port}")));
    let (one_port, keys) = ("127.0.0.1:8001", ["forward[0].listen", "forward[1].listen"]);
    assert_eq!(found, twice((keys[1], 5), one_port, keys[0], one_port));
    let text = format!("connect = ['{one}']\nsocks5 = ['{one}']");
    let found = line(GatewayConfig::parse(&text));
    assert_eq!(found, twice(("connect", 1), one, "socks5", one));
    let text =
        format!("connect = ['{one}']\n[[tproxy]]\nport = 7000\ndestinations = ['10.0.0.0/8:1']");
    let found = line(GatewayConfig::parse(&text));
    assert_eq!(found, twice(("tproxy[0].port", 3), one, "connect", one));
}

#[test]
fn names_are_refused_where_addresses_are_needed() {
    for (rest, key) in [
        ("metrics = 'relay.example.com:7000'", "`metrics` (line 4)"),
        ("[policy]\nnever = ['relay.example.com:7000']", "`policy.never[0]` (line 5)"),
        ("[[leg.at]]\naddress = 'relay.example.com:7000'", "`leg.at[0].address` (line 5)"),
        ("[[leg.to]]\naddress = 'relay.example.com:7000'", "`leg.to[0].address` (line 5)"),
    ] {
        let line = line(RelayConfig::parse(&relay_text(rest)));
        let expected = format!("configuration, {key}: socket address: IP:PORT such as");
        assert!(line.starts_with(&expected), "{line}");
        assert!(line.ends_with("not `relay.example.com:7000`"), "{line}");
    }
}

#[test]
fn errors_hide_secrets() {
    let secret = IdentityKey::from_entropy([7; 32]).to_secret_text();
    let cut = &secret[..secret.len() - 3];
    let text = format!("listen = ['127.0.0.1:0']\noperators = []\nidentity = '{cut}'");
    let line = line(RelayConfig::parse(&text));
    assert!(line.contains("identity") && !line.contains(&cut[10..30]), "{line}");
}

#[test]
fn open_gateway_needs_an_explicit_key() {
    for (text, expected) in [
        (
            "",
            "`forward`: expected at least one of forward, tproxy, socks5, connect \
             and packet",
        ),
        (
            "[[tproxy]]\ndestinations = ['*.example.com:443']",
            "`tproxy[0].destinations` (line 2): `*.example.com:443`: expected \
             ranges of addresses",
        ),
        (
            "[[forward]]\nlisten = '127.0.0.1:1'\nto = '192.0.2.1:1'\naccept_proxy = \
             ['lb.example.com:*']",
            "`forward[0]` (line 1): accept_proxy: `lb.example.com:*`: expected \
             ranges of addresses",
        ),
        (
            "socks5 = ['127.0.0.1:0']\n[limits.each_grant]\nsessions = 3",
            "`limits.each_grant` (line 2): for relays",
        ),
        (
            "socks5 = ['127.0.0.1:0']\n[limits.each_gateway]\nsessions = 3",
            "`limits.each_gateway` (line 2): for relays",
        ),
        (
            "[[tproxy]]\ndestinations = ['10.0.0.0/8:443']\nfoo = 1",
            "`tproxy[0].foo` (line 3): unknown field `foo`",
        ),
        (
            "[[forward]]\nlisten = '127.0.0.1:1'\nto = '192.0.2.1:1'\nsend_proxy = 'v1'",
            "`forward[0].send_proxy`",
        ),
        ("socks5 = ['localhost:1080']", "`socks5[0]` (line 1): socket address: IP:PORT such as"),
        (
            "connect = [3128]",
            "`connect[0]` (line 1): invalid type: integer `3128`, expected text: \
             IP:PORT",
        ),
        (
            "[[forward]]\nlisten = 'localhost:1'\nto = '192.0.2.1:1'",
            "`forward[0].listen` (line 2): socket address: IP:PORT such as",
        ),
        ("socks5 = ['0.0.0.0:1080']", "`socks5` (line 1): 0.0.0.0:1080 is no loopback"),
        (
            "socks5 = ['127.0.0.1:0']\nmetrics = '0.0.0.0:9464'",
            "`metrics` (line 2): 0.0.0.0:9464 is no loopback address",
        ),
        (
            "connect = ['127.0.0.1:0']\n[routes]\ndefault = 'direct'",
            "`routes` (line 2): a route is `direct`, which needs `direct = true`",
        ),
        (
            "connect = ['127.0.0.1:0']\n[routes]\ndefault = ['lima']",
            "`routes` (line 2): default: relay `lima` is not listed",
        ),
        (
            "socks5 = ['127.0.0.1:0']\n[leg.accept]\nencryption = 'none'",
            "`leg.accept.encryption` (line 3): a gateway accepts applications",
        ),
    ] {
        let line = line(GatewayConfig::parse(text));
        assert!(line.starts_with(&format!("configuration, {expected}")), "{line}");
    }
}

#[test]
fn bundled_examples_are_valid() {
    let relay = RelayConfig::parse(include_str!("../../../examples/relay.toml")).unwrap();
    assert_eq!(relay.policy.next_hops.len(), 1);
    let gateway = GatewayConfig::parse(include_str!("../../../examples/gateway.toml")).unwrap();
    assert_eq!((gateway.socks5.len(), gateway.forward.len()), (1, 1));
}
