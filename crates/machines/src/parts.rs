//! The parts that the documents of all clouds share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tradewind_config::MachinesConfig;
use tradewind_units::RegionId;

use crate::order::Order;

/// The ports of relays and of agents' responders.
pub(crate) const PORTS: (u16, u16) = (7000, 7001);
/// The port of SSH.
pub(crate) const SSH: u16 = 22;
/// The network that all machines of a region are in. They reach each other by public addresses, so
/// that it may be the same everywhere.
pub(crate) const NETWORK: &str = "10.207.0.0/24";

/// The tag of all that is made for one folder: the name in the file of machines, and digits that no
/// other folder has. Its key is `tradewind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag(String);

impl Tag {
    /// The key of the tag, in every cloud.
    pub const KEY: &'static str = "tradewind";

    /// Creates it from the name and the folder's digits.
    #[must_use]
    pub fn new(name: &str, digits: u32) -> Self {
        Self(format!("{name}-{digits:08x}"))
    }

    /// Returns whether it was created from this name.
    #[must_use]
    pub fn is_of(&self, name: &str) -> bool {
        self.0.rsplit_once('-').is_some_and(|(own, _)| own == name)
    }

    /// Returns its value.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The input from which the resources of a cloud are made.
pub(crate) struct Input<'a> {
    pub(crate) config: &'a MachinesConfig,
    pub(crate) tag: &'a Tag,
    /// The machines of this cloud.
    pub(crate) orders: Vec<&'a Order>,
    /// The regions of this cloud that have machines, or had some.
    pub(crate) regions: BTreeSet<&'a str>,
}

impl<'a> Input<'a> {
    /// Returns the regions that have machines.
    pub(crate) fn used_regions(&self) -> BTreeSet<&'a str> {
        self.orders.iter().map(|order| code(&order.region)).collect()
    }

    /// Returns the type of a machine as its cloud names it.
    pub(crate) fn type_of(order: &'a Order) -> &'a str {
        order.machine_type.split_once(':').map_or("", |(_, name)| name)
    }

    /// Returns the networks that SSH is open to, if there is a key.
    pub(crate) fn ssh_from(&self) -> Vec<String> {
        if self.config.ssh_key.is_none() {
            return Vec::new();
        }
        self.config.ssh_from.iter().map(ToString::to_string).collect()
    }
}

/// Returns the region's name in its cloud.
pub(crate) fn code(region: &RegionId) -> &str {
    region.as_str().split_once(':').map_or("", |(_, code)| code)
}

/// Resources and what they need, gathered from all clouds.
#[derive(Default)]
pub(crate) struct Parts {
    required: Map<String, Value>,
    providers: BTreeMap<String, Vec<Value>>,
    data: BTreeMap<String, BTreeMap<String, Value>>,
    resources: BTreeMap<String, BTreeMap<String, Value>>,
    addresses: BTreeMap<String, String>,
}

impl Parts {
    /// Adds a provider's source and versions, e.g. `("aws", "hashicorp/aws", "~> 5.0")`.
    pub(crate) fn require(&mut self, name: &str, source: &str, version: &str) {
        self.required.insert(name.to_owned(), json!({"source": source, "version": version}));
    }

    /// Adds a configuration of a provider.
    pub(crate) fn provider(&mut self, name: &str, settings: Value) {
        self.providers.entry(name.to_owned()).or_default().push(settings);
    }

    /// Adds something that is only read.
    pub(crate) fn data(&mut self, kind: &str, name: &str, value: Value) {
        self.data.entry(kind.to_owned()).or_default().insert(name.to_owned(), value);
    }

    /// Adds something that is made.
    pub(crate) fn resource(&mut self, kind: &str, name: &str, value: Value) {
        self.resources.entry(kind.to_owned()).or_default().insert(name.to_owned(), value);
    }

    /// Adds the expression that gives a machine's public address.
    pub(crate) fn address(&mut self, machine: &str, expression: &str) {
        self.addresses.insert(machine.to_owned(), format!("${{{expression}}}"));
    }

    /// Returns the document of all parts.
    pub(crate) fn into_document(self) -> Value {
        let mut document = json!({
            "//": "Made by `tradewind machines`: change the file of machines instead.",
            "terraform": {"required_version": ">= 1.5", "required_providers": self.required},
            "variable": {"invites": {"type": "map(string)", "default": {}, "sensitive": true}},
            "output": {"addresses": {"value": self.addresses}},
        });
        if let Some(members) = document.as_object_mut() {
            members.insert("provider".to_owned(), json!(self.providers));
            for (key, kinds) in [("data", self.data), ("resource", self.resources)] {
                if !kinds.is_empty() {
                    members.insert(key.to_owned(), json!(kinds));
                }
            }
        }
        document
    }
}
