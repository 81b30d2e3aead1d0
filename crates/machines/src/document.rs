//! The document of Terraform, in its JSON form, for machines of all clouds.

use std::collections::BTreeSet;

use serde_json::Value;
use tradewind_config::MachinesConfig;
use tradewind_units::RegionId;

use crate::order::Order;
use crate::parts::{Input, Parts, Tag, code};
use crate::{aws, azure, gcp, ibm};

/// Adds the resources of a cloud.
type Add = fn(&Input<'_>, &mut Parts);

/// The clouds, with what adds their resources.
const CLOUDS: [(&str, Add); 4] =
    [("aws", aws::add), ("azure", azure::add), ("gcp", gcp::add), ("ibm", ibm::add)];

/// Returns the document that makes `orders`, all with `tag`. `regions` are those that had machines
/// before: Terraform needs their providers to take these away.
///
/// The variable `invites` maps new machines to their invites.
/// The output `addresses` maps machines to their public addresses.
#[must_use]
pub fn document(
    config: &MachinesConfig,
    orders: &[Order],
    tag: &Tag,
    regions: &BTreeSet<RegionId>,
) -> Value {
    let mut parts = Parts::default();
    for (cloud, add) in CLOUDS {
        let is_here = |region: &&RegionId| region.cloud() == cloud;
        let orders: Vec<&Order> =
            orders.iter().filter(|order| order.region.cloud() == cloud).collect();
        let all = regions.iter().chain(orders.iter().map(|order| &order.region));
        let regions: BTreeSet<&str> = all.filter(is_here).map(code).collect();
        if !regions.is_empty() {
            add(&Input { config, tag, orders, regions }, &mut parts);
        }
    }
    parts.into_document()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use tradewind_model::catalogue::Catalogue;

    use super::*;

    pub(crate) const FILE: &str = "
        name = 'net'
        package = 'https://example.org/tradewind.deb'
        sha256 = '0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef'
        ssh_key = 'ssh-ed25519 AAAA key'
        ssh_from = ['198.51.100.0/24']
        [alarm]
        usd_per_month = 50
        email = 'ops@example.org'
        [gcp]
        project = 'p-1'
        billing_account = '0000-1111'
        [azure]
        subscription = 's-1'
        [[machine]]
        name = 'virginia'
        region = 'aws:us-east-1'
        [[machine]]
        name = 'dublin'
        region = 'aws:eu-west-1'
        image = 'ami-1'
        [[machine]]
        name = 'texas'
        region = 'azure:southcentralus'
        [[machine]]
        name = 'hamina'
        region = 'gcp:europe-north1'
        [[machine]]
        name = 'dallas'
        region = 'ibm:us-south'
        image = 'r006-1'
    ";

    pub(crate) fn made(text: &str, regions: &[&str]) -> Value {
        let config = MachinesConfig::parse(text, Path::new("")).unwrap();
        let catalogue = Catalogue::builtin();
        let orders: Vec<Order> =
            config.machine.iter().map(|it| crate::order(it, &catalogue).unwrap()).collect();
        let regions = regions.iter().map(|region| region.parse().unwrap()).collect();
        document(&config, &orders, &Tag::new(&config.name, 0x1234_abcd), &regions)
    }

    /// Returns all that refers to something of the document: `kind.name` of `data.`, `var.` and
    /// resources.
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::String(text) => {
                for part in text.split("${").skip(1) {
                    let inside = part.split('}').next().unwrap();
                    // A call of a function.
                    if inside.contains('(') {
                        continue;
                    }
                    let skip = usize::from(inside.starts_with("data."));
                    let words: Vec<&str> = inside.split('.').skip(skip).take(2).collect();
                    found.insert(words.join("."));
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Object(members) => members.values().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn document_refers_only_to_what_is_in_it() {
        let document = made(FILE, &[]);
        let mut there = BTreeSet::new();
        for part in ["data", "resource"] {
            for (kind, named) in document[part].as_object().unwrap() {
                there
                    .extend(named.as_object().unwrap().keys().map(|name| format!("{kind}.{name}")));
            }
        }
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        let missing: Vec<_> = found.difference(&there).collect();
        assert!(missing.is_empty() && found.len() > 20, "{missing:?}");
    }

    #[test]
    fn each_machine_has_its_invite_tag_and_address() {
        let document = made(FILE, &[]);
        let addresses = document["output"]["addresses"]["value"].as_object().unwrap();
        let names: Vec<&str> = addresses.keys().map(String::as_str).collect();
        assert_eq!(names, ["dallas", "dublin", "hamina", "texas", "virginia"]);
        let text = document.to_string();
        for name in names {
            let invite = format!("lookup(var.invites, \\\"{name}\\\", ");
            assert_eq!(text.matches(&invite).count(), 1, "{name}");
        }
        assert!(text.contains("net-1234abcd"));
    }

    #[test]
    fn providers_of_regions_that_had_machines_stay() {
        let config = made(FILE, &["aws:sa-east-1", "gcp:asia-east1"]);
        let aws = config["provider"]["aws"].as_array().unwrap();
        let aliases: Vec<&str> = aws.iter().map(|it| it["alias"].as_str().unwrap()).collect();
        assert_eq!(aliases, ["eu-west-1", "sa-east-1", "us-east-1"]);
        assert!(config["resource"]["aws_vpc"].get("sa-east-1").is_none());
    }

    #[test]
    fn documents_of_all_clouds_are_as_reviewed() {
        let made = serde_json::to_string_pretty(&made(FILE, &[])).unwrap() + "\n";
        let reviewed = include_str!("../tests/document.json");
        assert_eq!(made, reviewed, "look at the difference, then write it to tests/document.json");
    }
}
