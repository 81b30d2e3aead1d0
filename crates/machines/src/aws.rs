//! The resources of machines in AWS.
//!
//! Each region has a network of its own: accounts may lack the default one. Addresses are those
//! that instances get at their start: a fixed one would come after the machine has joined.

use serde_json::{Value, json};

use crate::order::Order;
use crate::parts::{Input, NETWORK, PORTS, Parts, SSH, Tag, code};
use crate::setup;

/// The account that publishes Debian's images (wiki.debian.org/Cloud/AmazonEC2Image).
const DEBIAN: &str = "136693071363";

pub(crate) fn add(input: &Input<'_>, parts: &mut Parts) {
    parts.require("aws", "hashicorp/aws", "~> 5.0");
    for region in &input.regions {
        let tags = json!({Tag::KEY: input.tag});
        let settings = json!({"alias": region, "region": region, "default_tags": [{"tags": tags}]});
        parts.provider("aws", settings);
    }
    for region in input.used_regions() {
        network(input, region, parts);
    }
    for order in &input.orders {
        let (region, name) = (code(&order.region), order.machine.as_str());
        let newest = format!("${{data.aws_ami.{region}.id}}");
        let mut instance = json!({
            "provider": format!("aws.{region}"),
            "ami": order.image.clone().unwrap_or(newest),
            "instance_type": Input::type_of(order),
            "subnet_id": format!("${{aws_subnet.{region}.id}}"),
            "vpc_security_group_ids": [format!("${{aws_security_group.{region}.id}}")],
            "associate_public_ip_address": true,
            "user_data": setup::script(input.config, name),
            "metadata_options": [{"http_tokens": "required"}],
            "tags": {"Name": format!("{}-{name}", input.tag)},
            "volume_tags": {Tag::KEY: input.tag},
            // A newer image, or an invite that has been used, makes no new machine.
            "lifecycle": [{"ignore_changes": ["ami", "user_data"]}],
            "depends_on": [format!("aws_route_table_association.{region}")],
        });
        if input.config.ssh_key.is_some() {
            instance["key_name"] = format!("${{aws_key_pair.{region}.key_name}}").into();
        }
        parts.resource("aws_instance", name, instance);
        parts.address(name, &format!("aws_instance.{name}.public_ip"));
        let offerings = offerings(region, Input::type_of(order));
        parts.data("aws_ec2_instance_type_offerings", name, offerings);
        if order.image.is_none() {
            parts.data("aws_ami", region, image(region));
        }
    }
    alarm(input, parts);
}

/// Returns an expression for the first zone that offers all types of the region's machines.
fn zone(input: &Input<'_>, region: &str) -> String {
    let here = input.orders.iter().filter(|order| code(&order.region) == region);
    let offered = |order: &&Order| {
        format!("toset(data.aws_ec2_instance_type_offerings.{}.locations)", order.machine)
    };
    let sets: Vec<String> = here.map(offered).collect();
    format!("${{sort(setintersection({}))[0]}}", sets.join(", "))
}

/// Returns the question where a machine's type is offered.
fn offerings(region: &str, machine_type: &str) -> Value {
    json!({
        "provider": format!("aws.{region}"),
        "location_type": "availability-zone",
        "filter": [{"name": "instance-type", "values": [machine_type]}],
    })
}

fn image(region: &str) -> Value {
    json!({
        "provider": format!("aws.{region}"),
        "most_recent": true,
        "owners": [DEBIAN],
        "filter": [{"name": "name", "values": ["debian-12-amd64-*"]}],
    })
}

fn network(input: &Input<'_>, region: &str, parts: &mut Parts) {
    let provider = format!("aws.{region}");
    let vpc = format!("${{aws_vpc.{region}.id}}");
    let mut add = |kind: &str, name: &str, mut value: Value| {
        value["provider"] = provider.as_str().into();
        parts.resource(kind, name, value);
    };
    add("aws_vpc", region, json!({"cidr_block": NETWORK}));
    add("aws_internet_gateway", region, json!({"vpc_id": vpc}));
    let subnet = json!({
        "vpc_id": vpc,
        "cidr_block": NETWORK,
        "availability_zone": zone(input, region),
        // A zone that comes or goes moves no machine.
        "lifecycle": [{"ignore_changes": ["availability_zone"]}],
    });
    add("aws_subnet", region, subnet);
    add("aws_route_table", region, json!({"vpc_id": vpc}));
    let table = format!("${{aws_route_table.{region}.id}}");
    let route = json!({
        "route_table_id": table,
        "destination_cidr_block": "0.0.0.0/0",
        "gateway_id": format!("${{aws_internet_gateway.{region}.id}}"),
    });
    add("aws_route", region, route);
    let association = json!({
        "subnet_id": format!("${{aws_subnet.{region}.id}}"),
        "route_table_id": table,
        "depends_on": [format!("aws_route.{region}")],
    });
    add("aws_route_table_association", region, association);
    let group = json!({
        "name": input.tag,
        "description": "Relays of Tradewind",
        "vpc_id": vpc,
    });
    add("aws_security_group", region, group);
    let group = format!("${{aws_security_group.{region}.id}}");
    let mut rule = |name: &str, protocol: &str, ports: (i32, i32), from: &str| {
        let rule = json!({
            "security_group_id": group,
            "ip_protocol": protocol,
            "from_port": ports.0,
            "to_port": ports.1,
            "cidr_ipv4": from,
        });
        add("aws_vpc_security_group_ingress_rule", &format!("{region}-{name}"), rule);
    };
    let ports = (i32::from(PORTS.0), i32::from(PORTS.1));
    rule("tcp", "tcp", ports, "0.0.0.0/0");
    rule("udp", "udp", ports, "0.0.0.0/0");
    rule("icmp", "icmp", (-1, -1), "0.0.0.0/0");
    for (index, from) in input.ssh_from().iter().enumerate() {
        rule(&format!("ssh-{index}"), "tcp", (i32::from(SSH), i32::from(SSH)), from);
    }
    let all = json!({"security_group_id": group, "ip_protocol": "-1", "cidr_ipv4": "0.0.0.0/0"});
    add("aws_vpc_security_group_egress_rule", region, all);
    if let Some(key) = &input.config.ssh_key {
        add("aws_key_pair", region, json!({"key_name": input.tag, "public_key": key}));
    }
}

fn alarm(input: &Input<'_>, parts: &mut Parts) {
    let (Some(alarm), Some(region)) = (&input.config.alarm, input.regions.first()) else { return };
    let notice = |kind: &str, percent: u32| {
        json!({
            "comparison_operator": "GREATER_THAN",
            "threshold": percent,
            "threshold_type": "PERCENTAGE",
            "notification_type": kind,
            "subscriber_email_addresses": [alarm.email],
        })
    };
    let budget = json!({
        "provider": format!("aws.{region}"),
        "name": input.tag,
        "budget_type": "COST",
        "limit_amount": alarm.usd_per_month.as_usd().to_string(),
        "limit_unit": "USD",
        "time_unit": "MONTHLY",
        "cost_filter": [{
            "name": "TagKeyValue",
            "values": [format!("user:{}${}", Tag::KEY, input.tag)],
        }],
        "notification": [notice("ACTUAL", 80), notice("FORECASTED", 100)],
    });
    parts.resource("aws_budgets_budget", "all", budget);
}
