//! JSON schemas of what the derived ones cannot express: sections whose keys depend on `service`,
//! and neighbours, which files give in several forms.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};
use tradewind_grant::PublicIdentity;
use tradewind_units::address;

use super::neighbours::{Addresses, MAX_ADDRESSES, Placed, RemoteSection, ViaSection};
use super::sections::{
    AutoSection, DeliverySection, DirectSection, ForwardingSection, GroupSection, PacketSection,
    PortSection, RecoverySection, RendezvousSection,
};
use super::{Intercepted, Tunnel};

/// Implements the name of a schema, which stands wherever its type is used.
macro_rules! named {
    ($title:literal) => {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            $title.into()
        }
    };
}

impl JsonSchema for Addresses {
    named!("IP:PORT or list");

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<address::Written>();
        json_schema!({
            "title": "IP:PORT or list",
            "anyOf": [
                one,
                { "type": "array", "items": one, "minItems": 1, "maxItems": MAX_ADDRESSES },
            ],
        })
    }
}

impl JsonSchema for Placed {
    fn schema_name() -> Cow<'static, str> {
        "Neighbour".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut address = generator.subschema_for::<Addresses>();
        let text = "Its address, or up to four of both families.";
        address.insert("description".to_owned(), text.into());
        let mut identity = generator.subschema_for::<PublicIdentity>();
        identity.insert("description".to_owned(), "The identity that it must prove.".into());
        json_schema!({
            "type": "object",
            "description": "A relay or gateway: its address and identity.",
            "properties": { "address": address, "identity": identity },
            "required": ["address", "identity"],
            "additionalProperties": false,
        })
    }
}

impl JsonSchema for RemoteSection {
    named!("neighbour or id");

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "neighbour or id",
            "anyOf": [generator.subschema_for::<Placed>(), { "type": "string" }],
        })
    }
}

/// The receiver of a rendezvous, whose identity suffices, for the schema.
pub(super) enum Receiver {}

impl JsonSchema for Receiver {
    named!("neighbour, identity or id");

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let identity = generator.subschema_for::<PublicIdentity>();
        json_schema!({
            "title": "neighbour, identity or id",
            "anyOf": [
                generator.subschema_for::<Placed>(),
                {
                    "type": "object",
                    "properties": { "identity": identity },
                    "required": ["identity"],
                    "additionalProperties": false,
                },
                { "type": "string" },
            ],
        })
    }
}

impl JsonSchema for ViaSection {
    named!("list of neighbours, or `nearest`");

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "list of neighbours, or `nearest`",
            "anyOf": [
                { "type": "array", "items": generator.subschema_for::<Placed>() },
                { "const": "nearest" },
            ],
        })
    }
}

impl JsonSchema for PacketSection {
    fn schema_name() -> Cow<'static, str> {
        "Packet".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let sources = sources(generator);
        let mut forms = deliveries(generator, &sources);
        forms.push(variant::<RendezvousSection>(generator, "rendezvous", &Map::new()));
        let group = GroupSection::json_schema(generator);
        forms.push(titled(group, "group"));
        let description = "Packets and their way to other gateways. The keys of a section follow \
            from its `service`, or from `group`: a meaning says with which a key is expected.";
        json_schema!({ "description": description, "anyOf": forms })
    }
}

impl JsonSchema for DeliverySection {
    fn schema_name() -> Cow<'static, str> {
        "Delivery".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let description = "The way of the datagrams of SOCKS5 clients. The keys follow from the \
            `service`: a meaning says with which a key is expected.";
        json_schema!({ "description": description, "anyOf": deliveries(generator, &Map::new()) })
    }
}

/// Returns a section's schema for each service that goes to its remote endpoint at once, with the
/// `sources` of its datagrams.
fn deliveries(generator: &mut SchemaGenerator, sources: &Map<String, Value>) -> Vec<Schema> {
    let mut direct = variant::<DirectSection>(generator, "direct", sources);
    let mut forwarding = variant::<ForwardingSection>(generator, "forwarding", sources);
    // Without `service` it is direct, or forwarding if there are relays.
    let has_service = json!({ "required": ["service"] });
    let has_none = json!({ "properties": { "relays": { "type": "array", "maxItems": 0 } } });
    direct.insert("anyOf".to_owned(), json!([has_service, has_none]));
    let has_relays =
        json!({ "required": ["relays"], "properties": { "relays": { "minItems": 1 } } });
    forwarding.insert("anyOf".to_owned(), json!([has_service, has_relays]));
    for optional in [&mut direct, &mut forwarding] {
        required(optional).retain(|key| key != "service");
    }
    let caching = variant::<RecoverySection>(generator, "caching", sources);
    let coding = variant::<RecoverySection>(generator, "coding", sources);
    let auto = variant::<AutoSection>(generator, "auto", sources);
    vec![direct, forwarding, caching, coding, auto]
}

/// Returns a section's schema with its `service`, and the keys of one of `sources`, if there are
/// any.
fn variant<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    service: &str,
    sources: &Map<String, Value>,
) -> Schema {
    let mut schema = titled(T::json_schema(generator), service);
    required(&mut schema).push("service".into());
    let description = "The service; without it `direct`, or `forwarding` if there are relays.";
    let service = json!({ "const": service, "description": description });
    let properties = schema.ensure_object().entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        properties.insert("service".to_owned(), service);
        properties.extend(sources.clone());
    }
    if !sources.is_empty() {
        let but = |given: &[&str]| {
            let others = ["listen", "to", "tproxy", "tun"].into_iter();
            let absent = others.filter(|key| !given.contains(key));
            let absent: Map<_, _> =
                absent.map(|key| (key.to_owned(), Value::Bool(false))).collect();
            json!({ "required": given, "properties": absent })
        };
        schema.insert(
            "oneOf".to_owned(),
            json!([but(&["listen", "to"]), but(&["tproxy"]), but(&["tun"])]),
        );
    }
    schema
}

/// Returns the keys of the sources of datagrams: `listen` and `to`, or `tproxy`, or `tun`.
fn sources(generator: &mut SchemaGenerator) -> Map<String, Value> {
    let mut port = PortSection::json_schema(generator);
    let mut keys = match port.remove("properties") {
        Some(Value::Object(keys)) => keys,
        _ => Map::new(),
    };
    for (key, description, mut schema) in [
        (
            "tproxy",
            "Instead of `listen` and `to`: datagrams that are intercepted on their way.",
            generator.subschema_for::<Intercepted>(),
        ),
        (
            "tun",
            "Instead of `listen` and `to`: whole IP packets that are routed into a device.",
            generator.subschema_for::<Tunnel>(),
        ),
    ] {
        schema.insert("description".to_owned(), description.into());
        keys.insert(key.to_owned(), schema.to_value());
    }
    keys
}

fn titled(mut schema: Schema, title: &str) -> Schema {
    schema.insert("title".to_owned(), title.into());
    schema
}

/// Returns the list of keys that a table must have.
fn required(schema: &mut Schema) -> &mut Vec<Value> {
    let required = schema.ensure_object().entry("required").or_insert_with(|| json!([]));
    required.as_array_mut().expect("a list of keys")
}
