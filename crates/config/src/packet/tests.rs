//! The meaning of sections, and the errors of wrong ones.

use tradewind_grant::IdentityKey;

use super::*;
use crate::GatewayConfig;

/// Returns a relay or remote gateway; each number gives another.
fn hop(number: u8) -> String {
    let identity = IdentityKey::from_entropy([number; 32]).public();
    format!("{{ address = '192.0.2.{number}:7001', identity = '{identity}' }}")
}

/// Returns the packet plane of a gateway with these sections, or why it is refused.
fn gateway(packets: &[String], endpoint: Option<&str>) -> Result<GatewayPackets, String> {
    let mut text: String = packets.iter().map(|keys| format!("[[packet]]\n{keys}\n")).collect();
    text.extend(endpoint.map(|keys| format!("[packet_endpoint]\n{keys}\n")));
    let config = GatewayConfig::parse(&text).map_err(|error| error.to_string())?;
    Ok(config.packets().unwrap().unwrap())
}

/// Returns the assumptions of the last `[[packet]]` with these keys beside its port, or why it, or
/// one before it, is refused.
fn parse(packets: &[String]) -> Result<Assumed, String> {
    let packets = packets.iter().enumerate();
    let packet = |(port, keys)| format!("listen = '127.0.0.1:{port}'\nto = '10.0.0.7:1'\n{keys}");
    let packets: Vec<_> = packets.map(packet).collect();
    gateway(&packets, None).map(|packets| packets.paths.last().unwrap().delivery.assumed)
}

/// Returns the same for a `[[packet]]` with one relay and these further keys.
fn assumed(keys: &str) -> Result<Assumed, String> {
    parse(&[format!("remote = {}\nrelays = [{}]\n{keys}", hop(4), hop(3))])
}

#[test]
fn invalid_path_is_refused_with_its_section() {
    let section =
        |relays: &[String]| format!("remote = {}\nrelays = [{}]", hop(4), relays.join(", "));
    assert!(parse(&[section(&[hop(3), hop(5)])]).is_ok());
    let twice = parse(&[section(&[hop(3)]), section(&[hop(3), hop(3)])]).unwrap_err();
    assert!(twice.starts_with("configuration, `packet[1].relays` (line 10): route"), "{twice}");
    assert!(twice.contains("expected no relay twice"), "{twice}");
    let is_remote = parse(&[section(&[hop(4)])]).unwrap_err();
    assert!(is_remote.contains("expected no relay twice"), "{is_remote}");
    let nowhere = parse(&[section(&[hop(3).replace(":7001", ":0")])]).unwrap_err();
    assert!(nowhere.contains("expected a port from 1 to 65535"), "{nowhere}");
    let many: Vec<String> = (10..18).map(hop).collect();
    let many = parse(&[section(&many)]).unwrap_err();
    assert!(many.contains("expected 1 to 8 relays"), "{many}");
    let without = parse(&[section(&[hop(3)]), format!("remote = {}\nservice = 'caching'", hop(4))]);
    let without = without.unwrap_err();
    assert!(
        without.starts_with("configuration, `packet[1].relays` (line 6): missing"),
        "{without}"
    );
}

#[test]
fn misspelled_remote_key_lists_the_expected() {
    let identity = IdentityKey::from_entropy([4; 32]).public();
    let refused = |remote: &str| parse(&[format!("remote = {remote}")]).unwrap_err();
    let miswritten = refused(&format!("{{ adress = '192.0.2.4:7001', identity = '{identity}' }}"));
    assert!(miswritten.contains("unknown field `adress`, expected `address` or"), "{miswritten}");
    let nowhere = refused(&format!("{{ identity = '{identity}' }}"));
    assert!(nowhere.contains("missing field `address`"), "{nowhere}");
    let nobody = refused("{ address = '192.0.2.4:7001' }");
    assert!(nobody.contains("missing field `identity`"), "{nobody}");
}

#[test]
fn neighbour_may_have_several_addresses() {
    let several = |addresses: &str| {
        let identity = IdentityKey::from_entropy([4; 32]).public();
        let text = format!(
            "listen = '127.0.0.1:1'\nto = '10.0.0.7:1'\nrelays = [{}]\n\
             remote = {{ address = {addresses}, identity = '{identity}' }}",
            hop(3)
        );
        gateway(&[text], None)
    };
    let node = several("['192.0.2.4:7001', '[2001:db8::4]:7001']").unwrap();
    let identity = IdentityKey::from_entropy([4; 32]).public();
    assert_eq!(node.further_addresses[&identity], ["[2001:db8::4]:7001".parse().unwrap()]);
    assert!(
        matches!(&node.paths[0].delivery.remote, Remote::At(hop) if hop.address.is_ipv4()),
        "the first"
    );
    assert!(several("['192.0.2.4:7001']").unwrap().further_addresses.is_empty());
    for (addresses, expected) in
        [("[]", "address: expected 1 to 4"), ("['192.0.2.4:7001', 'x']", "not `x`")]
    {
        let refused = several(addresses).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn groups_and_rendezvous_take_several_addresses() {
    let key = |number| IdentityKey::from_entropy([number; 32]).public();
    let several = |number: u8| {
        let addresses = format!("'192.0.2.{number}:7001', '[2001:db8::{number}]:7001'");
        format!("{{ address = [{addresses}], identity = '{}' }}", key(number))
    };
    let group = format!(
        "listen = '127.0.0.1:1'\n\
         group = [{{ remote = {}, to = '10.0.0.7:1', relays = [{}] }}]",
        several(4),
        several(3)
    );
    let waits = format!(
        "listen = '127.0.0.1:2'\nto = '10.0.0.7:1'\nservice = 'rendezvous'\n\
         remote = {{ identity = '{}' }}\nrelays = [{}]",
        key(6),
        several(5)
    );
    let endpoint = format!("rendezvous = [{}]", several(7));
    let node = gateway(&[group, waits], Some(&endpoint)).unwrap();
    for number in [3, 4, 5, 7] {
        let expected = format!("[2001:db8::{number}]:7001").parse().unwrap();
        assert_eq!(node.further_addresses[&key(number)], [expected], "{number}");
    }
}

#[test]
fn rendezvous_at_one_relay_twice_is_refused() {
    let [at_two, at_one] = [[3, 4], [3, 3]].map(|relays: [u8; 2]| {
        let endpoint = format!("rendezvous = [{}]", relays.map(hop).join(", "));
        gateway(&[], Some(&endpoint))
    });
    assert_eq!(at_two.unwrap().rendezvous.relays.len(), 2);
    let expected = "configuration, `packet_endpoint.rendezvous` (line 2): expected no relay twice";
    assert_eq!(at_one.unwrap_err(), expected);
}

#[test]
fn socks5_udp_has_no_listener() {
    let delivery = |keys: &str| {
        let section = format!("remote = {}\nrelays = [{}]\n{keys}", hop(4), hop(3));
        let text = format!("socks5 = ['127.0.0.1:0']\n[socks5_udp]\n{section}");
        let config = GatewayConfig::parse(&text).map_err(|error| error.to_string())?;
        Ok::<_, String>(config.packets().unwrap().unwrap().socks5_udp.unwrap())
    };
    let parsed = delivery("service = 'caching'\nbudget = '150 ms'").unwrap();
    assert_eq!(parsed.carriage.service, Service::Caching);
    assert_eq!(parsed.carriage.budget_ms, 150);
    for (keys, expected) in [
        ("to = '10.0.0.7:1'", "`socks5_udp.to` (line 5): expected no `listen`, `to`"),
        ("service = 'rendezvous'", "`socks5_udp.service` (line 5): expected another service"),
        ("keep = '1 h'", "`socks5_udp.keep` (line 5): expected only with"),
        ("foo = 1", "`socks5_udp.foo` (line 5): unknown field `foo`"),
    ] {
        let line = delivery(keys).unwrap_err();
        assert!(line.starts_with(&format!("configuration, {expected}")), "{line}");
    }
}

#[test]
fn two_sections_cannot_have_one_port() {
    let check = |own: Option<&str>, ports: &[&str]| {
        let section =
            |port: &&str| format!("listen = '{port}'\nto = '10.0.0.7:1'\nremote = {}", hop(4));
        let packets: Vec<_> = ports.iter().map(section).collect();
        let own = own.map(|own| format!("listen = '{own}'"));
        gateway(&packets, own.as_deref()).map(drop)
    };
    let twice = |packet: usize, address: &str, other: &str, used: &str| {
        let line = 4 * packet + 2;
        Err(format!(
            "configuration, `packet[{packet}].listen` (line {line}): {address} is listened on \
             twice: `{other}.listen` has {used} already; expected another address or port for \
             one of them"
        ))
    };
    let (one, all) = ("127.0.0.1:5", "0.0.0.0:5");
    let found = check(None, &[one, "127.0.0.2:5", all]);
    assert_eq!(found, twice(2, all, "packet[0]", one));
    let found = check(None, &["127.0.0.1:6", one, one]);
    assert_eq!(found, twice(2, one, "packet[1]", one));
    check(None, &[one, "127.0.0.1:6", "127.0.0.1:0", "127.0.0.1:0"]).unwrap();
    // The node's own socket takes both families, applications' ports do not.
    let found = check(Some("[::]:5"), &[one]);
    assert_eq!(found, twice(0, one, "packet_endpoint", "[::]:5"));
    check(None, &["[::]:5", one]).unwrap();
    check(Some("[::1]:5"), &[one]).unwrap();
}

#[test]
fn two_sections_cannot_have_one_device() {
    let section = |to: &str| {
        format!("remote = {}\ntun = {{ name = 'tw0', destinations = ['{to}:*'] }}", hop(4))
    };
    let packets = [section("10.1.0.0/16"), section("10.2.0.0/16")];
    let refused = gateway(&packets, None).unwrap_err();
    let expected = "configuration, `packet[1].tun.name` (line 6): `tw0` is there twice; expected a \
                    device for each section";
    assert_eq!(refused, expected);
}

#[test]
fn default_route_device_is_refused() {
    let check = |destinations: &str| {
        let text = format!(
            "remote = {}\ntun = {{ name = 'tw0', destinations = [{destinations}] }}",
            hop(4)
        );
        gateway(&[text], None).map(drop)
    };
    let refused = check("'0.0.0.0/0:*'").unwrap_err();
    assert!(refused.contains("all that this host sends"), "{refused}");
    assert_eq!(check("'0.0.0.0/1:*', '128.0.0.0/1:*'"), Ok(()));
}

#[test]
fn costs_and_coding_need_auto() {
    let auto = "service = 'auto'\nbudget = '150 ms'\n";
    assert_eq!(assumed(auto), Ok(Assumed::default()));
    let coding = "coding = { cross_stream = [1, 4], in_stream = [0, 1], within = '50 ms' }\n";
    let parsed = assumed(&format!("{auto}{coding}")).unwrap();
    let within = Duration::from_millis(50);
    let coded = BlockCoding { cross_stream: [1, 4], in_stream: [0, 1], within };
    assert_eq!(parsed, Assumed { costs: None, coding: coded });
    let costs = "costs = { coding = 0.03, caching = 0.01, forwarding = 0.2 }\n";
    let parsed = assumed(&format!("{auto}{coding}{costs}")).unwrap();
    let parsed = (parsed.costs.map(|costs| (costs.coding.as_usd(), costs.loss)), parsed.coding);
    assert_eq!(parsed, (Some((0.03, Ratio::ZERO)), coded));
    let at_loss = costs.replace('}', ", loss = '2 %' }");
    let parsed = assumed(&format!("{auto}{at_loss}")).unwrap();
    assert_eq!(parsed.costs.map(|costs| costs.loss.as_f64()), Some(0.02));
    for (keys, expected) in [
        (format!("service = 'caching'\n{costs}"), "costs` (line 7): expected only with"),
        (format!("service = 'coding'\n{coding}"), "coding` (line 7): expected only with"),
        (format!("{auto}coding = {{ across_gateways = true }}"), "unknown field `across_gateways`"),
        (format!("{auto}coding = {{ within = '0 s' }}"), "expected `within` above 0"),
        (format!("{auto}costs = {{ coding = 1 }}"), "missing field `caching`"),
    ] {
        let refused = assumed(&keys).unwrap_err();
        assert!(refused.contains(expected), "{keys}: {refused}");
    }
}

#[test]
fn in_order_needs_recovery() {
    for (keys, is_good) in [
        ("service = 'caching'", true),
        ("service = 'coding'", true),
        ("service = 'auto'\nbudget = '150 ms'", true),
        ("service = 'forwarding'", true),
        ("service = 'forwarding'\npaths = 'relays'", false),
        ("service = 'direct'", false),
    ] {
        let parsed = assumed(&format!("in_order = true\n{keys}"));
        match parsed {
            Ok(_) => assert!(is_good, "{keys}"),
            Err(why) => {
                assert!(
                    !is_good && why.contains("in_order` (line 6): expected only"),
                    "{keys}: {why}"
                )
            }
        }
    }
}

#[test]
fn packet_section_mistake_has_its_line() {
    let remote = format!("remote = {}", hop(4));
    let good = format!("listen = '127.0.0.1:1'\nto = '10.0.0.7:1'\n{remote}");
    let refused = |keys: &str| gateway(&[good.clone(), keys.to_owned()], None).unwrap_err();
    let port = "listen = '127.0.0.1:2'\nto = '10.0.0.7:1'";
    let relays = format!("relays = [{}]", hop(3));
    for (keys, expected) in [
        (format!("{port}\n{remote}\nbudget = 7"), "`packet[1].budget` (line 9): "),
        (
            format!("{port}\n{remote}\nbudget = '70 s'"),
            "`packet[1].budget` (line 9): expected at most",
        ),
        (format!("{port}\nbudget = '1 s'"), "`packet[1]` (line 5): missing field `remote`"),
        (
            format!("{port}\n{remote}\nservice = 'fast'"),
            "`packet[1].service` (line 9): unknown variant",
        ),
        (format!("{port}\n{remote}\nservice = 7"), "`packet[1].service` (line 9): expected one of"),
        (
            format!("{port}\n{remote}\nkeep = '1 h'"),
            "`packet[1].keep` (line 9): expected only with",
        ),
        (
            format!("{port}\n{remote}\n{relays}\nservice = 'coding'\npaths = 'both'"),
            "`packet[1].paths` (line 11): expected only with `service = \"forwarding\"`",
        ),
        (
            format!("{port}\n{remote}\nto_all = 1"),
            "`packet[1].to_all` (line 9): unknown field `to_all`",
        ),
        (
            format!("{remote}\nto = '10.0.0.7:1'"),
            "`packet[1]` (line 5): expected `listen` and `to`",
        ),
        (
            format!("{remote}\n[packet.tproxy]\ndestinations = ['x']"),
            "`packet[1].tproxy.destinations[0]` (line 8): destination rule `x`",
        ),
        (
            format!("listen = '127.0.0.1:2'\n[[packet.group]]\n{remote}\nto = 'x'"),
            "`packet[1].group[0].to` (line 9): socket address",
        ),
        (
            format!("listen = '127.0.0.1:2'\nkeep = '1 h'\n[[packet.group]]\n{remote}"),
            "`packet[1].keep` (line 7): expected only without `group`",
        ),
    ] {
        let line = refused(&keys);
        assert!(line.starts_with(&format!("configuration, {expected}")), "{keys}: {line}");
    }
}
