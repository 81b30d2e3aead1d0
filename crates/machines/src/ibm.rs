//! The resources of machines in IBM Cloud.
//!
//! A machine has its public address only after it has started: its script tries for ten minutes to
//! reach the outside.

use serde_json::{Value, json};

use crate::parts::{Input, PORTS, Parts, SSH, Tag, code};
use crate::setup;

pub(crate) fn add(input: &Input<'_>, parts: &mut Parts) {
    parts.require("ibm", "IBM-Cloud/ibm", "~> 1.70");
    for region in &input.regions {
        parts.provider("ibm", json!({"alias": region, "region": region}));
    }
    for region in input.used_regions() {
        network(input, region, parts);
    }
    for order in &input.orders {
        let (region, name) = (code(&order.region), order.machine.as_str());
        let instance = tagged(
            input,
            region,
            &format!("{}-{name}", input.tag),
            json!({
                "image": order.image,
                "profile": Input::type_of(order),
                "vpc": format!("${{ibm_is_vpc.{region}.id}}"),
                "zone": zone(region),
                "keys": [format!("${{ibm_is_ssh_key.{region}.id}}")],
                "primary_network_interface": [{
                    "subnet": format!("${{ibm_is_subnet.{region}.id}}"),
                    "security_groups": [format!("${{ibm_is_security_group.{region}.id}}")],
                }],
                "user_data": setup::script(input.config, name),
                // An invite that has been used makes no new machine.
                "lifecycle": [{"ignore_changes": ["user_data"]}],
            }),
        );
        parts.resource("ibm_is_instance", name, instance);
        let interface = format!("${{ibm_is_instance.{name}.primary_network_interface[0].id}}");
        let address =
            tagged(input, region, &format!("{}-{name}", input.tag), json!({"target": interface}));
        parts.resource("ibm_is_floating_ip", name, address);
        parts.address(name, &format!("ibm_is_floating_ip.{name}.address"));
    }
}

fn zone(region: &str) -> String {
    format!("{region}-1")
}

/// Returns a resource of a region with these members.
fn tagged(input: &Input<'_>, region: &str, name: &str, mut members: Value) -> Value {
    members["provider"] = format!("ibm.{region}").into();
    members["name"] = name.into();
    members["tags"] = json!([format!("{}:{}", Tag::KEY, input.tag)]);
    members
}

fn network(input: &Input<'_>, region: &str, parts: &mut Parts) {
    let vpc = format!("${{ibm_is_vpc.{region}.id}}");
    let named = |members: Value| tagged(input, region, input.tag.as_str(), members);
    parts.resource("ibm_is_vpc", region, named(json!({})));
    let members = json!({"vpc": vpc, "zone": zone(region), "total_ipv4_address_count": 256});
    parts.resource("ibm_is_subnet", region, named(members));
    parts.resource("ibm_is_security_group", region, named(json!({"vpc": vpc})));
    let key = input.config.ssh_key.as_deref().unwrap_or_default();
    let kind = if key.starts_with("ssh-ed25519") { "ed25519" } else { "rsa" };
    parts.resource("ibm_is_ssh_key", region, named(json!({"public_key": key, "type": kind})));
    let group = format!("${{ibm_is_security_group.{region}.id}}");
    let mut rule = |name: &str, direction: &str, remote: &str, what: Option<(&str, Value)>| {
        let mut rule = json!({
            "provider": format!("ibm.{region}"),
            "group": group,
            "direction": direction,
            "remote": remote,
        });
        if let Some((protocol, ports)) = what {
            rule[protocol] = json!([ports]);
        }
        parts.resource("ibm_is_security_group_rule", &format!("{region}-{name}"), rule);
    };
    let ports = |from: u16, to: u16| json!({"port_min": from, "port_max": to});
    for protocol in ["tcp", "udp"] {
        rule(protocol, "inbound", "0.0.0.0/0", Some((protocol, ports(PORTS.0, PORTS.1))));
    }
    rule("icmp", "inbound", "0.0.0.0/0", Some(("icmp", json!({"type": 8}))));
    for (index, from) in input.ssh_from().iter().enumerate() {
        rule(&format!("ssh-{index}"), "inbound", from, Some(("tcp", ports(SSH, SSH))));
    }
    rule("out", "outbound", "0.0.0.0/0", None);
}
