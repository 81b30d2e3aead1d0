//! The configuration of each gateway and relay: a base, with the plan's settings.

use std::path::Path;

use anyhow::Context as _;
use toml::{Table, Value};
use tradewind_config::{GatewayConfig, RelayConfig, compiled};
use tradewind_desired::{Desired, DesiredGateway, DesiredPackets, ProcessLegs};
use tradewind_units::{RelayId, SiteId};

use super::hosts;
use super::inventory::Read;
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
        compiled::set_gateway(&mut table, gateway)?;
        set_forwards(&mut table, gateway, &planned.inventory)?;
    }
    if let Some(flows) = planned.packets.gateways.get(site) {
        compiled::set_gateway_packets(&mut table, flows).with_context(|| name.to_owned())?;
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
        compiled::set_relay(&mut table, hop).with_context(|| format!("{name}.toml"))?;
    }
    if let Some(packet) = planned.packets.relays.get(relay) {
        if let Some(hop) = planned.inventory.streams.relays.get(relay) {
            compiled::set_listen(&mut table, hop.address);
        }
        compiled::set_relay_packets(&mut table, packet).with_context(|| format!("{name}.toml"))?;
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

/// Adds a port for each flow that has a listener in the inventory; one of the base with the same
/// address is replaced.
fn set_forwards(
    table: &mut Table,
    gateway: &DesiredGateway,
    inventory: &Read,
) -> anyhow::Result<()> {
    for (flow, destination) in &gateway.flows {
        let Some(listen) = inventory.listen.get(flow) else { continue };
        compiled::set_forward(table, *listen, destination, flow)?;
    }
    Ok(())
}

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
