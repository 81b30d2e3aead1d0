//! The settings of compiled relays and gateways in the tables of their configurations: what a plan
//! sets, beside all that others have set there.

use std::net::SocketAddr;

use toml::{Table, Value};
use tradewind_desired::packets::any_address;
use tradewind_desired::permissions::is_loopback;
use tradewind_desired::{
    DesiredGateway, DesiredRelay, GatewayPacket, ProcessLegs, RelayPacket, Route,
};
use tradewind_grant::Destination;
use tradewind_units::{FlowId, Segments};

use crate::ConfigError;

/// Sets a gateway's routes, legs and learner.
///
/// # Errors
/// When the table has a section of another form.
pub fn set_gateway(table: &mut Table, gateway: &DesiredGateway) -> Result<(), ConfigError> {
    table.insert("routes".to_owned(), value(&gateway.routes, "routes")?);
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

/// Adds a port of a gateway for a flow; one of the table with the same address is replaced.
///
/// # Errors
/// When the table has a `forward` of another form.
pub fn set_forward(
    table: &mut Table,
    listen: SocketAddr,
    to: &Destination,
    flow: &FlowId,
) -> Result<(), ConfigError> {
    let forwards = table.entry("forward").or_insert_with(|| Value::Array(Vec::new()));
    let forwards = forwards
        .as_array_mut()
        .ok_or_else(|| ConfigError::new("forward", "expected `[[forward]]`"))?;
    let listen = listen.to_string();
    forwards.retain(|other| other.get("listen").and_then(Value::as_str) != Some(&listen));
    let mut forward = Table::new();
    forward.insert("listen".to_owned(), listen.into());
    forward.insert("to".to_owned(), to.to_string().into());
    forward.insert("flow".to_owned(), flow.to_string().into());
    forwards.push(Value::Table(forward));
    Ok(())
}

/// Sets a relay's listener to its address, unless the table has one.
pub fn set_listen(table: &mut Table, address: SocketAddr) {
    let listen = table.entry("listen").or_insert_with(|| Value::Array(Vec::new()));
    if listen.as_array().is_some_and(Vec::is_empty) {
        *listen = Value::Array(vec![any_address(address).to_string().into()]);
    }
}

/// Sets a relay's listener, policy, legs and learner.
///
/// # Errors
/// When the table has a section of another form.
pub fn set_relay(table: &mut Table, relay: &DesiredRelay) -> Result<(), ConfigError> {
    set_listen(table, relay.address);
    let policy = table.entry("policy").or_insert_with(|| Value::Table(Table::new()));
    let policy =
        policy.as_table_mut().ok_or_else(|| ConfigError::new("policy", "expected `[policy]`"))?;
    let rules = value(&relay.policy, "policy")?;
    for (key, rules) in rules.as_table().into_iter().flatten() {
        let known = policy.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
        add_all(known, rules.clone());
    }
    if relay.policy.is_loopback() && !policy.contains_key("allow_loopback") {
        policy.insert("allow_loopback".to_owned(), Value::Boolean(true));
    }
    set_legs(table, legs(&relay.legs)?);
    set_learned(table, relay.learned);
    Ok(())
}

/// Sets `flows` in a gateway's `[[packet]]`: entries with the same `listen` are replaced, all
/// others of the table stay.
///
/// # Errors
/// When the table has a `packet` of another form.
pub fn set_gateway_packets(table: &mut Table, flows: &[GatewayPacket]) -> Result<(), ConfigError> {
    let packets = table.entry("packet").or_insert_with(|| Value::Array(Vec::new()));
    let packets = packets
        .as_array_mut()
        .ok_or_else(|| ConfigError::new("packet", "expected `[[packet]]`"))?;
    for flow in flows {
        let listen = flow.listen.to_string();
        packets.retain(|other| other.get("listen").and_then(Value::as_str) != Some(&listen));
        packets.push(value(flow, "packet")?);
    }
    Ok(())
}

/// Sets the needs of packet flows in a relay's `[packet]`: its coding and prices are replaced,
/// neighbours are added to those of the table, and all else of it stays.
///
/// # Errors
/// When the table has a `packet` of another form.
pub fn set_relay_packets(table: &mut Table, packet: &RelayPacket) -> Result<(), ConfigError> {
    let mut planned =
        Table::try_from(packet).map_err(|error| ConfigError::new("packet", error.to_string()))?;
    if packet.next_hops.iter().any(is_loopback) {
        planned.insert("allow_loopback".to_owned(), Value::Boolean(true));
    }
    let there = table.entry("packet").or_insert_with(|| Value::Table(Table::new()));
    let there =
        there.as_table_mut().ok_or_else(|| ConfigError::new("packet", "expected `[packet]`"))?;
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

/// Lets initial windows up to `most` be learned, unless the table configures that.
fn set_learned(table: &mut Table, most: Option<Segments>) {
    if let Some(most) = most
        && !table.contains_key("jumpstart")
    {
        let mut learn = Table::new();
        learn.insert("c_max".to_owned(), i64::from(most.as_u32().min(MAX_LEARNED)).into());
        let mut jumpstart = Table::new();
        jumpstart.insert("learn".to_owned(), Value::Table(learn));
        table.insert("jumpstart".to_owned(), Value::Table(jumpstart));
    }
}

/// Largest window that a learner accepts (docs/reference/jumpstart.md).
const MAX_LEARNED: u32 = 65_535;

/// Returns leg profiles in the form of a configuration.
fn legs(legs: &ProcessLegs) -> Result<Table, ConfigError> {
    let mut table = Table::new();
    table.insert("accept".to_owned(), value(&legs.accept, "leg.accept")?);
    table.insert("dial".to_owned(), value(&legs.dial, "leg.dial")?);
    table.insert("to".to_owned(), value(&legs.to, "leg.to")?);
    Ok(table)
}

/// Replaces the sections in `legs`; the table's other leg sections stay.
fn set_legs(table: &mut Table, legs: Table) {
    match table.get_mut("leg") {
        Some(Value::Table(leg)) => leg.extend(legs),
        _ => drop(table.insert("leg".to_owned(), Value::Table(legs))),
    }
}

/// Adds missing elements to a list.
fn add_all(known: &mut Value, more: Value) {
    if let (Value::Array(known), Value::Array(more)) = (known, more) {
        for one in more {
            if !known.contains(&one) {
                known.push(one);
            }
        }
    }
}

/// Returns a value in the form of a configuration.
fn value(of: &impl serde::Serialize, key: &str) -> Result<Value, ConfigError> {
    Value::try_from(of).map_err(|error| ConfigError::new(key, error.to_string()))
}

#[cfg(test)]
mod tests {
    use tradewind_desired::{GrantTerms, Hop, RouteTable};
    use tradewind_grant::IdentityKey;
    use tradewind_units::{FlowId, RelayId};

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
