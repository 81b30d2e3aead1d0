//! The configuration of each gateway and relay: a base, with the plan's settings.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use toml::{Table, Value};
use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_desired::packets::any_address;
use tradewind_desired::permissions::is_loopback;
use tradewind_desired::{
    Desired, DesiredGateway, DesiredPackets, DesiredRelay, ProcessLegs, Route,
};
use tradewind_grant::Destination;
use tradewind_units::{RelayId, Segments, SiteId};

use super::inventory::Read;
use super::{hosts, packets};
use crate::output::{BadFile, OrBadFile as _, read_text};

/// All that is to be written.
pub(super) struct Planned {
    pub(super) streams: Desired,
    pub(super) packets: DesiredPackets,
    pub(super) inventory: Read,
}

impl Planned {
    /// Returns the directory of files on the hosts.
    pub(super) fn directory(&self) -> &Path {
        &self.inventory.directory
    }

    /// Returns the specification of the grant for the gateway of `site`, for `tradewind grant
    /// issue`; `None` if it needs no grant, or its identity is unknown.
    pub(super) fn grant_draft(&self, site: &SiteId) -> anyhow::Result<Option<String>> {
        let mut terms =
            self.streams.gateways.get(site).map(|one| one.grant.clone()).unwrap_or_default();
        self.packets.grants.get(site).iter().for_each(|more| terms.extend(more));
        let Some(identity) = self.inventory.gateways.get(site) else { return Ok(None) };
        if terms.is_empty() {
            return Ok(None);
        }
        let mut draft = Table::new();
        draft.insert("gateway".to_owned(), Value::try_from(identity)?);
        draft.extend(Table::try_from(&terms)?);
        draft.insert("expires".to_owned(), self.inventory.grants_expire.clone().into());
        let name = hosts::file_name("grant", site.as_str());
        let signed = self.grant_file(site);
        Ok(Some(format!(
            "# Sign it: tradewind grant issue --key OPERATOR.key {name}.toml > {signed}\n{}",
            toml::to_string(&draft)?
        )))
    }

    /// Returns the kernel settings that a gateway's or a relay's legs need, with instructions;
    /// `None` if they need none.
    pub(super) fn sysctls(legs: Option<&ProcessLegs>) -> Option<String> {
        let settings = legs.map(|legs| legs.buffer_needs().sysctls()).unwrap_or_default();
        let head = "# Copy to /etc/sysctl.d, then: sysctl --system. Windows as wide as the plan \
         counts on need these maxima.";
        (!settings.is_empty()).then(|| format!("{head}\n{settings}"))
    }

    fn grant_file(&self, site: &SiteId) -> String {
        let name = hosts::file_name("gateway", site.as_str());
        self.directory().join(format!("{name}.grant")).display().to_string()
    }

    fn identity_file(&self, name: &str) -> Value {
        self.directory().join(format!("{name}.key")).display().to_string().into()
    }
}

/// Returns the configuration of a source's gateway.
pub(super) fn gateway_table(
    planned: &Planned,
    site: &SiteId,
    name: &str,
    base: Option<&Path>,
) -> anyhow::Result<Table> {
    let (mut table, stands) = read_base(base, name, "gateway", site.as_str())?;
    let needs_grant = planned.grant_draft(site)?.is_some();
    if needs_grant && !table.contains_key("grant") && !table.contains_key("grant_file") {
        table.insert("grant_file".to_owned(), planned.grant_file(site).into());
    }
    if planned.inventory.gateways.contains_key(site) {
        set_identity_file(&mut table, planned.identity_file(name));
    }
    if let Some(gateway) = planned.streams.gateways.get(site) {
        set_gateway(&mut table, gateway)?;
        set_forwards(&mut table, gateway, &planned.inventory)?;
    }
    if let Some(flows) = planned.packets.gateways.get(site) {
        packets::set_gateway(&mut table, flows).with_context(|| name.to_owned())?;
    }
    let ingress_keys = ["forward", "tproxy", "socks5", "connect", "packet"];
    let is_whole = planned.inventory.gateways.contains_key(site)
        && ingress_keys.iter().any(|key| table.contains_key(*key));
    if stands || is_whole {
        let file = format!("{name}.toml");
        GatewayConfig::parse(&toml::to_string(&table)?).or_bad(file.as_ref())?;
    }
    Ok(table)
}

/// Returns the configuration of a relay.
pub(super) fn relay_table(
    planned: &Planned,
    relay: &RelayId,
    name: &str,
    base: Option<&Path>,
) -> anyhow::Result<Table> {
    let (mut table, stands) = read_base(base, name, "relay", relay.as_str())?;
    let operators = &planned.inventory.operators;
    if !operators.is_empty() && !table.contains_key("operators") {
        table.insert("operators".to_owned(), Value::try_from(operators)?);
    }
    if !operators.is_empty() {
        set_identity_file(&mut table, planned.identity_file(name));
    }
    if let Some(hop) = planned.streams.relays.get(relay) {
        set_relay(&mut table, hop).with_context(|| format!("{name}.toml"))?;
    }
    if let Some(packet) = planned.packets.relays.get(relay) {
        if let Some(hop) = planned.inventory.streams.relays.get(relay) {
            set_listen(&mut table, hop.address);
        }
        packets::set_relay(&mut table, packet).with_context(|| format!("{name}.toml"))?;
    }
    if stands || !operators.is_empty() {
        let file = format!("{name}.toml");
        if !table.contains_key("listen") {
            return Err(BadFile(format!(
                "{file}: listen: missing; relay `{relay}` carries packets alone, and takes \
                 sessions in any case: expected a `[[relay]]` of this name in the inventory, \
                 or `listen` in the base"
            ))
            .into());
        }
        RelayConfig::parse(&toml::to_string(&table)?).or_bad(file.as_ref())?;
    }
    Ok(table)
}

fn set_identity_file(table: &mut Table, file: Value) {
    if !table.contains_key("identity") && !table.contains_key("identity_file") {
        table.insert("identity_file".to_owned(), file);
    }
}

/// Sets a gateway's routes, legs and learner.
fn set_gateway(table: &mut Table, gateway: &DesiredGateway) -> anyhow::Result<()> {
    table.insert("routes".to_owned(), Value::try_from(&gateway.routes)?);
    if gateway.routes.routes().any(|route| *route == Route::Direct) {
        table.insert("direct".to_owned(), Value::Boolean(true));
        let goes_direct =
            |to: &Destination| gateway.routes.routes_to(to).1.contains(&Route::Direct);
        let to_itself = |to: &Destination| is_loopback(&to.as_rule()) && goes_direct(to);
        if gateway.flows.iter().any(|(_, to)| to_itself(to))
            && !table.contains_key("allow_loopback")
        {
            table.insert("allow_loopback".to_owned(), Value::Boolean(true));
        }
    }
    let mut legs = legs(&gateway.legs)?;
    // Applications' connections are not the plan's.
    legs.remove("accept");
    set_legs(table, legs);
    set_learned(table, gateway.learned);
    Ok(())
}

/// Adds a port for each flow that has a listener in the inventory; one of the base with the same
/// address is replaced.
fn set_forwards(
    table: &mut Table,
    gateway: &DesiredGateway,
    inventory: &Read,
) -> anyhow::Result<()> {
    for (flow, destination) in &gateway.flows {
        let Some(listen) = inventory.listen.get(flow) else { continue };
        let forwards = table.entry("forward").or_insert_with(|| Value::Array(Vec::new()));
        let forwards = forwards.as_array_mut().context("forward: expected `[[forward]]`")?;
        let listen = listen.to_string();
        forwards.retain(|other| other.get("listen").and_then(Value::as_str) != Some(&listen));
        let mut forward = Table::new();
        forward.insert("listen".to_owned(), listen.into());
        forward.insert("to".to_owned(), destination.to_string().into());
        forward.insert("flow".to_owned(), flow.to_string().into());
        forwards.push(Value::Table(forward));
    }
    Ok(())
}

/// Sets the relay's listener to the inventory's address, unless the base has one.
fn set_listen(table: &mut Table, address: SocketAddr) {
    let listen = table.entry("listen").or_insert_with(|| Value::Array(Vec::new()));
    if listen.as_array().is_some_and(Vec::is_empty) {
        *listen = Value::Array(vec![any_address(address).to_string().into()]);
    }
}

/// Sets a relay's listener, policy, legs and learner.
fn set_relay(table: &mut Table, relay: &DesiredRelay) -> anyhow::Result<()> {
    set_listen(table, relay.address);
    let policy = table.entry("policy").or_insert_with(|| Value::Table(Table::new()));
    let policy = policy.as_table_mut().context("policy: expected `[policy]`")?;
    for (key, rules) in Table::try_from(&relay.policy)? {
        let known = policy.entry(key).or_insert_with(|| Value::Array(Vec::new()));
        packets::add_all(known, rules);
    }
    if relay.policy.is_loopback() && !policy.contains_key("allow_loopback") {
        policy.insert("allow_loopback".to_owned(), Value::Boolean(true));
    }
    set_legs(table, legs(&relay.legs)?);
    set_learned(table, relay.learned);
    Ok(())
}

/// Lets initial windows up to `most` be learned, unless the base configures that.
fn set_learned(table: &mut Table, most: Option<Segments>) {
    if let Some(most) = most
        && !table.contains_key("jumpstart")
    {
        let mut learn = Table::new();
        learn.insert("c_max".to_owned(), i64::from(most.as_u32().min(MOST_LEARNED)).into());
        let mut jumpstart = Table::new();
        jumpstart.insert("learn".to_owned(), Value::Table(learn));
        table.insert("jumpstart".to_owned(), Value::Table(jumpstart));
    }
}

/// Largest window that a learner accepts (docs/reference/jumpstart.md).
const MOST_LEARNED: u32 = 65_535;

/// Returns the base configuration to start from, and whether there is one. Earlier versions wrote
/// names with colons.
fn read_base(
    base: Option<&Path>,
    name: &str,
    role: &str,
    id: &str,
) -> anyhow::Result<(Table, bool)> {
    let nothing = || Ok((Table::new(), false));
    let Some(base) = base else { return nothing() };
    let names = [format!("{name}.toml"), format!("{role}-{id}.toml")];
    let Some(file) = names.iter().map(|name| base.join(name)).find(|file| file.exists()) else {
        return nothing();
    };
    let table = read_text(&file)?.parse::<Table>();
    let table = table.map_err(|error| {
        BadFile(format!("{}: {}", file.display(), error.message().replace('\n', "; ")))
    })?;
    Ok((table, true))
}

/// Returns leg profiles in the form of a configuration.
fn legs(legs: &ProcessLegs) -> anyhow::Result<Table> {
    let mut table = Table::new();
    table.insert("accept".to_owned(), Value::try_from(&legs.accept)?);
    table.insert("dial".to_owned(), Value::try_from(&legs.dial)?);
    table.insert("to".to_owned(), Value::try_from(&legs.to)?);
    Ok(table)
}

/// Replaces the sections in `legs`; the base's other leg sections stay.
fn set_legs(table: &mut Table, legs: Table) {
    match table.get_mut("leg") {
        Some(Value::Table(leg)) => leg.extend(legs),
        _ => drop(table.insert("leg".to_owned(), Value::Table(legs))),
    }
}

#[cfg(test)]
mod tests {
    use tradewind_desired::{GrantTerms, Hop, RouteTable};
    use tradewind_grant::IdentityKey;
    use tradewind_units::FlowId;

    use super::*;

    /// Returns whether the compiled gateway may dial loopback, when its flow to `to` takes `route`,
    /// beside a direct flow to another host.
    fn dials_loopback(to: &str, route: Route) -> bool {
        let destinations = [to, "198.51.100.9:443"].map(|to| to.parse::<Destination>().unwrap());
        let routes = [route, Route::Direct];
        let rules = destinations.iter().map(Destination::as_rule).zip(routes).collect();
        let flows = ["a", "b"].map(|flow| FlowId::new(flow).unwrap());
        let gateway = DesiredGateway {
            routes: RouteTable::new(rules, Route::Refuse).unwrap(),
            legs: ProcessLegs::default(),
            grant: GrantTerms::default(),
            flows: flows.into_iter().zip(destinations).collect(),
            learned: None,
        };
        let mut table = Table::new();
        set_gateway(&mut table, &gateway).unwrap();
        assert_eq!(table["direct"].as_bool(), Some(true));
        table.get("allow_loopback").and_then(Value::as_bool).unwrap_or(false)
    }

    #[test]
    fn loopback_is_dialled_only_for_direct_flows_to_it() {
        let relay = Hop {
            name: RelayId::new("r").unwrap(),
            address: ([192, 0, 2, 1], 7000).into(),
            identity: IdentityKey::from_entropy([2; 32]).public(),
        };
        assert!(dials_loopback("127.0.0.1:80", Route::Direct));
        assert!(!dials_loopback("127.0.0.1:80", Route::Relays(vec![relay])));
        assert!(!dials_loopback("192.0.2.7:80", Route::Direct));
    }
}
