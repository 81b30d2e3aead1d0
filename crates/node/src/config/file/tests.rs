//! The meaning of sections, and the errors of wrong ones.

use super::*;
use tradewind_plan::packets::BlockCoding;

/// Returns a relay or far gateway; each number gives another.
fn hop(number: u8) -> String {
    let identity = IdentityKey::from_entropy([number; 32]).public();
    format!("{{ address = '192.0.2.{number}:7001', identity = '{identity}' }}")
}

/// Returns the assumptions of the last `[[packet]]` with these keys beside its port, or why it, or
/// one before it, is refused.
fn told(packets: &[String]) -> Result<Assumed, String> {
    let packet = |keys: &String| {
        let text = format!("listen = '127.0.0.1:1'\nto = '10.0.0.7:1'\n{keys}");
        toml::Value::Table(text.parse().unwrap())
    };
    let packets: Vec<_> = packets.iter().map(packet).collect();
    let identity = IdentityKey::from_entropy([2; 32]);
    let node = NodeConfig::of_gateway(&packets, None, identity, None);
    node.map(|node| node.paths.last().unwrap().delivery.assumed).map_err(|error| error.to_string())
}

/// Returns the same for a `[[packet]]` with one relay and these further keys.
fn assumed(keys: &str) -> Result<Assumed, String> {
    told(&[format!("far = {}\nrelays = [{}]\n{keys}", hop(4), hop(3))])
}

#[test]
fn what_can_be_no_path_is_refused_with_the_number_of_its_section() {
    let section = |relays: &[String]| format!("far = {}\nrelays = [{}]", hop(4), relays.join(", "));
    assert!(told(&[section(&[hop(3), hop(5)])]).is_ok());
    let twice = told(&[section(&[hop(3)]), section(&[hop(3), hop(3)])]).unwrap_err();
    assert!(twice.starts_with("the 2. [[packet]]: relays: route"), "{twice}");
    assert!(twice.contains("expected no relay twice"), "{twice}");
    let is_far = told(&[section(&[hop(4)])]).unwrap_err();
    assert!(is_far.contains("expected no relay twice"), "{is_far}");
    let nowhere = told(&[section(&[hop(3).replace(":7001", ":0")])]).unwrap_err();
    assert!(nowhere.contains("expected a port from 1 to 65535"), "{nowhere}");
    let many: Vec<String> = (10..18).map(hop).collect();
    let many = told(&[section(&many)]).unwrap_err();
    assert!(many.contains("expected 1 to 8 relays"), "{many}");
    let without = told(&[section(&[hop(3)]), format!("far = {}\nservice = 'caching'", hop(4))]);
    let without = without.unwrap_err();
    assert!(without.starts_with("the 2. [[packet]]: relays: missing"), "{without}");
}

#[test]
fn a_far_gateway_that_is_miswritten_is_told_what_it_may_have() {
    let identity = IdentityKey::from_entropy([4; 32]).public();
    let refused = |far: &str| told(&[format!("far = {far}")]).unwrap_err();
    let miswritten = refused(&format!("{{ adress = '192.0.2.4:7001', identity = '{identity}' }}"));
    assert!(miswritten.contains("unknown field `adress`, expected `address` or"), "{miswritten}");
    let nowhere = refused(&format!("{{ identity = '{identity}' }}"));
    assert!(nowhere.contains("missing field `address`"), "{nowhere}");
    let nobody = refused("{ address = '192.0.2.4:7001' }");
    assert!(nobody.contains("missing field `identity`"), "{nobody}");
}

#[test]
fn a_neighbour_may_have_several_addresses() {
    let several = |addresses: &str| {
        let identity = IdentityKey::from_entropy([4; 32]).public();
        let text = format!(
            "listen = '127.0.0.1:1'\nto = '10.0.0.7:1'\nrelays = [{}]\n\
             far = {{ address = {addresses}, identity = '{identity}' }}",
            hop(3)
        );
        let packet = toml::Value::Table(text.parse().unwrap());
        let key = IdentityKey::from_entropy([2; 32]);
        NodeConfig::of_gateway(&[packet], None, key, None).map_err(|error| error.to_string())
    };
    let node = several("['192.0.2.4:7001', '[2001:db8::4]:7001']").unwrap();
    let identity = IdentityKey::from_entropy([4; 32]).public();
    assert_eq!(node.further_addresses[&identity], ["[2001:db8::4]:7001".parse().unwrap()]);
    assert!(
        matches!(&node.paths[0].delivery.far, Far::At(hop) if hop.address.is_ipv4()),
        "the first"
    );
    assert!(node.known_policy().relays.contains(&"[2001:db8::4]:7001".parse().unwrap()));
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
         group = [{{ far = {}, to = '10.0.0.7:1', relays = [{}] }}]",
        several(4),
        several(3)
    );
    let waits = format!(
        "listen = '127.0.0.1:2'\nto = '10.0.0.7:1'\nservice = 'rendezvous'\n\
         far = {{ identity = '{}' }}\nrelays = [{}]",
        key(6),
        several(5)
    );
    let [group, waits, endpoint] = [group, waits, format!("rendezvous = [{}]", several(7))]
        .map(|text| toml::Value::Table(text.parse().unwrap()));
    let own = IdentityKey::from_entropy([2; 32]);
    let node = NodeConfig::of_gateway(&[group, waits], Some(&endpoint), own, None).unwrap();
    for number in [3, 4, 5, 7] {
        let expected = format!("[2001:db8::{number}]:7001").parse().unwrap();
        assert_eq!(node.further_addresses[&key(number)], [expected], "{number}");
    }
}

#[test]
fn a_course_of_socks5_clients_has_no_entrance_of_its_own() {
    let delivery = |keys: &str| {
        let text = format!("far = {}\nrelays = [{}]\n{keys}", hop(4), hop(3));
        let told = NodeConfig::delivery(&toml::Value::Table(text.parse().unwrap()));
        told.map_err(|error| error.to_string())
    };
    let told = delivery("service = 'caching'\nbudget = '150 ms'").unwrap();
    assert_eq!(told.carriage.service, Service::Caching);
    assert_eq!(told.carriage.budget_ms, 150);
    for (keys, expected) in [
        ("to = '10.0.0.7:1'", "[socks5_udp]: expected no `listen`, `to`"),
        ("service = 'rendezvous'", "[socks5_udp]: expected another service"),
        ("keep = '1 h'", "[socks5_udp]: keep: expected only with"),
        ("foo = 1", "[socks5_udp]: unknown field `foo`"),
    ] {
        let line = delivery(keys).unwrap_err();
        assert!(line.starts_with(expected), "{line}");
    }
}

#[test]
fn two_sections_cannot_have_one_port() {
    let check = |own: Option<&str>, ports: &[&str]| {
        let section = |port: &&str| {
            let text = format!("listen = '{port}'\nto = '10.0.0.7:1'\nfar = {}", hop(4));
            toml::Value::Table(text.parse().unwrap())
        };
        let packets: Vec<_> = ports.iter().map(section).collect();
        let key = IdentityKey::from_entropy([2; 32]);
        let own = own.map(|own| toml::Value::Table(format!("listen = '{own}'").parse().unwrap()));
        let node = NodeConfig::of_gateway(&packets, own.as_ref(), key, None);
        node.map(drop).map_err(|error| error.to_string())
    };
    let twice = |section: &str, address: &str, other: &str, taken: &str| {
        Err(format!(
            "{section}: listen: {address} is listened on twice: {other} has {taken} already; \
             expected another address or port for one of them"
        ))
    };
    let (one, all) = ("127.0.0.1:5", "0.0.0.0:5");
    let found = check(None, &[one, "127.0.0.2:5", all]);
    assert_eq!(found, twice("the 3. [[packet]]", all, "the 1. [[packet]]", one));
    let found = check(None, &["127.0.0.1:6", one, one]);
    assert_eq!(found, twice("the 3. [[packet]]", one, "the 2. [[packet]]", one));
    check(None, &[one, "127.0.0.1:6", "127.0.0.1:0", "127.0.0.1:0"]).unwrap();
    // The node's own socket takes both families, applications' ports do not.
    let found = check(Some("[::]:5"), &[one]);
    assert_eq!(found, twice("[[packet]]", one, "[packet_endpoint]", "[::]:5"));
    check(None, &["[::]:5", one]).unwrap();
    check(Some("[::1]:5"), &[one]).unwrap();
}

#[test]
fn two_sections_cannot_have_one_device() {
    let section = |to: &str| {
        let text = format!("far = {}\ntun = {{ name = 'tw0', destinations = ['{to}:*'] }}", hop(4));
        toml::Value::Table(text.parse().unwrap())
    };
    let packets = [section("10.1.0.0/16"), section("10.2.0.0/16")];
    let key = IdentityKey::from_entropy([2; 32]);
    let node = NodeConfig::of_gateway(&packets, None, key, None).unwrap();
    let refused = node.check_devices().unwrap_err().to_string();
    let expected = "tun.name: `tw0` is there twice; expected a device for each section";
    assert_eq!(refused, format!("the 2. [[packet]]: {expected}"));
}

#[test]
fn a_device_for_everything_is_refused_and_half_of_it_is_not() {
    let check = |destinations: &str| {
        let text =
            format!("far = {}\ntun = {{ name = 'tw0', destinations = [{destinations}] }}", hop(4));
        let packet = toml::Value::Table(text.parse().unwrap());
        let key = IdentityKey::from_entropy([2; 32]);
        let node = NodeConfig::of_gateway(&[packet], None, key, None);
        node.map(drop).map_err(|error| error.to_string())
    };
    let refused = check("'0.0.0.0/0:*'").unwrap_err();
    assert!(refused.contains("all that this host sends"), "{refused}");
    assert_eq!(check("'0.0.0.0/1:*', '128.0.0.0/1:*'"), Ok(()));
}

#[test]
fn what_relays_charge_and_how_they_code_is_told_to_auto_alone() {
    let auto = "service = 'auto'\nbudget = '150 ms'\n";
    assert_eq!(assumed(auto), Ok(Assumed::default()));
    let coding = "coding = { cross_stream = [1, 4], in_stream = [0, 1], within = '50 ms' }\n";
    let told = assumed(&format!("{auto}{coding}")).unwrap();
    let within = Duration::from_millis(50);
    let coded = BlockCoding { cross_stream: [1, 4], in_stream: [0, 1], within };
    assert_eq!(told, Assumed { costs: None, coding: coded });
    let costs = "costs = { coding = 0.03, caching = 0.01, forwarding = 0.2 }\n";
    let told = assumed(&format!("{auto}{coding}{costs}")).unwrap();
    let told = (told.costs.map(|told| (told.coding.as_usd(), told.loss)), told.coding);
    assert_eq!(told, (Some((0.03, Ratio::ZERO)), coded));
    let at_loss = costs.replace('}', ", loss = '2 %' }");
    let told = assumed(&format!("{auto}{at_loss}")).unwrap();
    assert_eq!(told.costs.map(|told| told.loss.as_f64()), Some(0.02));
    for (keys, expected) in [
        (format!("service = 'caching'\n{costs}"), "costs: expected only with"),
        (format!("service = 'coding'\n{coding}"), "coding: expected only with"),
        (format!("{auto}coding = {{ across_gateways = true }}"), "only at relays"),
        (format!("{auto}coding = {{ within = '0 s' }}"), "expected `within` above 0"),
        (format!("{auto}costs = {{ coding = 1 }}"), "missing field `caching`"),
    ] {
        let refused = assumed(&keys).unwrap_err();
        assert!(refused.contains(expected), "{keys}: {refused}");
    }
}

#[test]
fn in_order_is_refused_where_nothing_comes_back() {
    for (keys, is_good) in [
        ("service = 'caching'", true),
        ("service = 'coding'", true),
        ("service = 'auto'\nbudget = '150 ms'", true),
        ("service = 'forwarding'", true),
        ("service = 'forwarding'\nways = 'relays'", false),
        ("service = 'direct'", false),
    ] {
        let told = assumed(&format!("in_order = true\n{keys}"));
        match told {
            Ok(_) => assert!(is_good, "{keys}"),
            Err(why) => {
                assert!(!is_good && why.contains("in_order: expected only"), "{keys}: {why}")
            }
        }
    }
}
