//! The resources of machines in Google Cloud.
//!
//! Debian's images have no cloud-init there: the guest agent runs the metadata `startup-script` at
//! each boot, and the script ends at once after its first success.

use serde_json::{Value, json};

use crate::parts::{Input, PORTS, Parts, SSH, Tag, code};
use crate::setup;

pub(crate) fn add(input: &Input<'_>, parts: &mut Parts) {
    // The file of machines has been checked: with machines there it has the section.
    let project = input.config.gcp.as_ref().map(|gcp| gcp.project.as_str()).unwrap_or_default();
    parts.require("google", "hashicorp/google", "~> 6.0");
    // Budgets ask whom to charge for the question where credentials are a person's.
    let settings =
        json!({"project": project, "billing_project": project, "user_project_override": true});
    parts.provider("google", settings);
    if input.orders.is_empty() {
        return;
    }
    let tag = input.tag;
    let network = json!({"name": tag, "auto_create_subnetworks": true});
    parts.resource("google_compute_network", "all", network);
    let mut firewall = |name: &str, from: Value, allow: Value| {
        let rule = json!({
            "name": format!("{tag}-{name}"),
            "network": "${google_compute_network.all.id}",
            "source_ranges": from,
            "allow": allow,
        });
        parts.resource("google_compute_firewall", name, rule);
    };
    let ports = format!("{}-{}", PORTS.0, PORTS.1);
    let open = json!([
        {"protocol": "tcp", "ports": [ports]},
        {"protocol": "udp", "ports": [ports]},
        {"protocol": "icmp"},
    ]);
    firewall("relays", json!(["0.0.0.0/0"]), open);
    let from = input.ssh_from();
    if !from.is_empty() {
        firewall("ssh", json!(from), json!([{"protocol": "tcp", "ports": [SSH.to_string()]}]));
    }
    for region in input.used_regions() {
        parts.data("google_compute_zones", region, json!({"region": region, "status": "UP"}));
    }
    for order in &input.orders {
        let (region, name) = (code(&order.region), order.machine.as_str());
        let mut metadata = json!({"startup-script": setup::script(input.config, name)});
        if let Some(key) = &input.config.ssh_key {
            metadata["ssh-keys"] = format!("debian:{key}").into();
        }
        let image = order.image.as_deref().unwrap_or("debian-cloud/debian-12");
        let instance = json!({
            "name": format!("{tag}-{name}"),
            "zone": format!("${{data.google_compute_zones.{region}.names[0]}}"),
            "machine_type": Input::type_of(order),
            "labels": {Tag::KEY: tag},
            "boot_disk": [{"initialize_params": [{"image": image}]}],
            "network_interface": [{
                "network": "${google_compute_network.all.id}",
                "access_config": [{}],
            }],
            "metadata": metadata,
            "shielded_instance_config": [{"enable_secure_boot": true}],
            // A newer image, another zone that is up, or an invite that has been used, makes no
            // new machine.
            "lifecycle": [{"ignore_changes": ["boot_disk", "metadata", "zone"]}],
        });
        parts.resource("google_compute_instance", name, instance);
        let interface = "network_interface[0].access_config[0].nat_ip";
        parts.address(name, &format!("google_compute_instance.{name}.{interface}"));
    }
    alarm(input, project, parts);
}

fn alarm(input: &Input<'_>, project: &str, parts: &mut Parts) {
    let account = input.config.gcp.as_ref().and_then(|gcp| gcp.billing_account.as_ref());
    let (Some(alarm), Some(account)) = (&input.config.alarm, account) else { return };
    let nanos = alarm.usd_per_month.as_nano_usd();
    let (units, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let amount = json!({"currency_code": "USD", "units": units.to_string(), "nanos": nanos});
    let budget = json!({
        "billing_account": account,
        "display_name": input.tag,
        "budget_filter": [{
            "projects": [format!("projects/{project}")],
            "labels": {Tag::KEY: input.tag},
        }],
        "amount": [{"specified_amount": [amount]}],
        "threshold_rules": [
            {"threshold_percent": 0.8},
            {"threshold_percent": 1.0, "spend_basis": "FORECASTED_SPEND"},
        ],
    });
    parts.resource("google_billing_budget", "all", budget);
}
