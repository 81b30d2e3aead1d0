//! The resources of machines in Azure: all in one resource group, which is the unit of its bill.

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};

use crate::parts::{Input, NETWORK, PORTS, Parts, SSH, Tag, code};
use crate::setup;

/// Terraform's expression for the first of this month.
const FIRST_OF_MONTH: &str = "${formatdate(\"YYYY-MM-01'T'00:00:00Z\", plantimestamp())}";
/// The user that images make, whom the SSH key lets in.
const USER: &str = "debian";

pub(crate) fn add(input: &Input<'_>, parts: &mut Parts) {
    // The file of machines has been checked: with machines there it has the section.
    let subscription = input.config.azure.as_ref().map(|it| it.subscription.as_str());
    parts.require("azurerm", "hashicorp/azurerm", "~> 4.0");
    let settings = json!({"features": [{}], "subscription_id": subscription});
    parts.provider("azurerm", settings);
    // A group has a place of its own, which cannot change: the first region by name, for as long
    // as it had a machine.
    let (Some(place), false) = (input.regions.first(), input.orders.is_empty()) else { return };
    let group = json!({"name": input.tag, "location": place, "tags": {Tag::KEY: input.tag},
        "lifecycle": [{"ignore_changes": ["location"]}]});
    parts.resource("azurerm_resource_group", "all", group);
    for region in input.used_regions() {
        network(input, region, parts);
    }
    for order in &input.orders {
        machine(input, code(&order.region), &order.machine, Input::type_of(order), parts);
    }
    alarm(input, parts);
}

/// Returns a resource of the group with these members.
fn of_group(input: &Input<'_>, region: &str, name: &str, mut members: Value) -> Value {
    members["name"] = name.into();
    members["location"] = region.into();
    members["resource_group_name"] = "${azurerm_resource_group.all.name}".into();
    members["tags"] = json!({Tag::KEY: input.tag});
    members
}

fn network(input: &Input<'_>, region: &str, parts: &mut Parts) {
    let members = json!({"address_space": [NETWORK]});
    let network = of_group(input, region, region, members);
    parts.resource("azurerm_virtual_network", region, network);
    let subnet = json!({
        "name": "relays",
        "resource_group_name": "${azurerm_resource_group.all.name}",
        "virtual_network_name": format!("${{azurerm_virtual_network.{region}.name}}"),
        "address_prefixes": [NETWORK],
    });
    parts.resource("azurerm_subnet", region, subnet);
    parts.resource(
        "azurerm_network_security_group",
        region,
        of_group(input, region, region, json!({})),
    );
    let mut rule = |priority: u32, name: &str, protocol: &str, ports: &str, from: Value| {
        let rule = json!({
            "name": name,
            "resource_group_name": "${azurerm_resource_group.all.name}",
            "network_security_group_name":
                format!("${{azurerm_network_security_group.{region}.name}}"),
            "priority": priority,
            "direction": "Inbound",
            "access": "Allow",
            "protocol": protocol,
            "source_port_range": "*",
            "source_address_prefixes": from,
            "destination_port_range": ports,
            "destination_address_prefix": "*",
        });
        parts.resource("azurerm_network_security_rule", &format!("{region}-{name}"), rule);
    };
    let (ports, everyone) = (format!("{}-{}", PORTS.0, PORTS.1), || json!(["0.0.0.0/0"]));
    rule(100, "tcp", "Tcp", &ports, everyone());
    rule(110, "udp", "Udp", &ports, everyone());
    rule(120, "icmp", "Icmp", "*", everyone());
    let from = input.ssh_from();
    if !from.is_empty() {
        rule(130, "ssh", "Tcp", &SSH.to_string(), json!(from));
    }
    let association = json!({
        "subnet_id": format!("${{azurerm_subnet.{region}.id}}"),
        "network_security_group_id": format!("${{azurerm_network_security_group.{region}.id}}"),
    });
    parts.resource("azurerm_subnet_network_security_group_association", region, association);
}

fn machine(input: &Input<'_>, region: &str, name: &str, size: &str, parts: &mut Parts) {
    let members = json!({"allocation_method": "Static", "sku": "Standard"});
    parts.resource("azurerm_public_ip", name, of_group(input, region, name, members));
    let interface = json!({"ip_configuration": [{
        "name": "public",
        "subnet_id": format!("${{azurerm_subnet.{region}.id}}"),
        "private_ip_address_allocation": "Dynamic",
        "public_ip_address_id": format!("${{azurerm_public_ip.{name}.id}}"),
    }]});
    parts.resource("azurerm_network_interface", name, of_group(input, region, name, interface));
    let script = setup::script(input.config, name);
    let machine = json!({
        "size": size,
        "admin_username": USER,
        "admin_ssh_key": [{"username": USER, "public_key": input.config.ssh_key}],
        "network_interface_ids": [format!("${{azurerm_network_interface.{name}.id}}")],
        "custom_data": encoded(&script, name),
        "os_disk": [{"caching": "ReadWrite", "storage_account_type": "Standard_LRS"}],
        "source_image_reference": [{
            "publisher": "Debian",
            "offer": "debian-12",
            "sku": "12",
            "version": "latest",
        }],
        // An invite that has been used makes no new machine.
        "lifecycle": [{"ignore_changes": ["custom_data"]}],
        "depends_on": [format!("azurerm_subnet_network_security_group_association.{region}")],
    });
    parts.resource("azurerm_linux_virtual_machine", name, of_group(input, region, name, machine));
    parts.address(name, &format!("azurerm_public_ip.{name}.ip_address"));
}

/// Returns an expression for the script in base64, as the cloud takes it. Terraform puts the invite
/// in before it encodes; the rest of the script is encoded here, so that it needs no quotes.
fn encoded(script: &str, machine: &str) -> String {
    let invite = setup::invite(machine);
    let (before, after) = script.split_once(&format!("${{{invite}}}")).unwrap_or((script, ""));
    let encode = |text: &str| Base64::encode_string(text.as_bytes());
    format!(
        "${{base64encode(join(\"\", [base64decode(\"{}\"), {invite}, base64decode(\"{}\")]))}}",
        encode(before),
        encode(after)
    )
}

fn alarm(input: &Input<'_>, parts: &mut Parts) {
    let Some(alarm) = &input.config.alarm else { return };
    let notice = |kind: &str, percent: u32| {
        json!({
            "enabled": true,
            "operator": "GreaterThan",
            "threshold": percent,
            "threshold_type": kind,
            "contact_emails": [alarm.email],
        })
    };
    let budget = json!({
        "name": input.tag,
        "resource_group_id": "${azurerm_resource_group.all.id}",
        "amount": alarm.usd_per_month.as_usd(),
        "time_grain": "Monthly",
        // Its beginning must be the first of a month, and cannot change.
        "time_period": [{"start_date": FIRST_OF_MONTH}],
        "notification": [notice("Actual", 80), notice("Forecasted", 100)],
        "lifecycle": [{"ignore_changes": ["time_period"]}],
    });
    parts.resource("azurerm_consumption_budget_resource_group", "all", budget);
}
