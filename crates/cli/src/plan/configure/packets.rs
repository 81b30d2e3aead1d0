//! The sections of a plan's packet flows in the configurations of gateways and relays.

use anyhow::Context as _;
use toml::{Table, Value};
use tradewind_config::compiled::add_all;
use tradewind_desired::permissions::is_loopback;
use tradewind_desired::{GatewayPacket, RelayPacket};

/// Sets `flows` in a gateway's `[[packet]]`: entries with the same `listen` are replaced, all
/// others of the base stay.
pub(super) fn set_gateway(table: &mut Table, flows: &[GatewayPacket]) -> anyhow::Result<()> {
    let packets = table.entry("packet").or_insert_with(|| Value::Array(Vec::new()));
    let packets = packets.as_array_mut().context("packet: expected `[[packet]]`")?;
    for flow in flows {
        let listen = flow.listen.to_string();
        packets.retain(|other| other.get("listen").and_then(Value::as_str) != Some(&listen));
        packets.push(Value::try_from(flow)?);
    }
    Ok(())
}

/// Sets the needs of packet flows in a relay's `[packet]`: its coding and prices are replaced,
/// neighbours are added to those of the base, and all else of it stays.
pub(super) fn set_relay(table: &mut Table, packet: &RelayPacket) -> anyhow::Result<()> {
    let mut planned = Table::try_from(packet)?;
    if packet.next_hops.iter().any(is_loopback) {
        planned.insert("allow_loopback".to_owned(), Value::Boolean(true));
    }
    let there = table.entry("packet").or_insert_with(|| Value::Table(Table::new()));
    let there = there.as_table_mut().context("packet: expected `[packet]`")?;
    for (key, value) in planned {
        match (there.get_mut(&key), value) {
            (Some(known @ Value::Array(_)), more @ Value::Array(_)) => add_all(known, more),
            // Coding across gateways is the operator's to allow.
            (Some(Value::Table(known)), Value::Table(more)) => known.extend(more),
            (Some(_), _) if key == "listen" || key == "allow_loopback" => {}
            (_, value) => drop(there.insert(key, value)),
        }
    }
    Ok(())
}
