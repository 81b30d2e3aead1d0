//! Sections whose keys depend on `service`, brought into the shape that the parser takes: a table
//! with the tag as its only key. Lines stay those of the file.

use std::mem::take;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, Visitor, value};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::sections::{
    AutoSection, DirectSection, ForwardingSection, GroupSection, RecoverySection, RendezvousSection,
};
use crate::ConfigError;

/// The keys that say where a path's datagrams come from.
const SOURCE: [&str; 4] = ["listen", "to", "tproxy", "tun"];
/// Names of fields that no file can hold, since their keys are checked before.
const SOURCE_FIELD: &str = "<source>";
const DELIVERY_FIELD: &str = "<delivery>";
const SERVICE: &str = "service";
const GROUP: &str = "group";
const RENDEZVOUS: &str = "rendezvous";

/// Returns true if `key` is a field that files do not hold.
pub(crate) fn is_inner(key: &str) -> bool {
    key.starts_with('<')
}

/// Returns true if `tag` is a key of the file as well: one that says where datagrams come from.
pub(crate) fn is_written(tag: &str) -> bool {
    SOURCE.contains(&tag)
}

/// The services of a `[[packet]]`.
const SERVICES: [&str; 6] = ["direct", "forwarding", "caching", "coding", "auto", RENDEZVOUS];

/// Returns the keys of a `[[packet]]` with this service, besides `service` and those of its source.
fn keys_of(service: &str) -> &'static [&'static str] {
    match service {
        "direct" => fields_of::<DirectSection>(),
        "forwarding" => fields_of::<ForwardingSection>(),
        "auto" => fields_of::<AutoSection>(),
        RENDEZVOUS => fields_of::<RendezvousSection>(),
        _ => fields_of::<RecoverySection>(),
    }
}

/// Brings `[[packet]]` and `[socks5_udp]` of a gateway's file into shape.
///
/// # Errors
/// The first key that does not belong to its section's service.
pub(crate) fn shape(document: &mut DeTable<'_>) -> Result<(), ConfigError> {
    if let Some(DeValue::Array(packets)) = document.get_mut("packet").map(Spanned::get_mut) {
        for (index, packet) in packets.iter_mut().enumerate() {
            let span = packet.span();
            if let DeValue::Table(table) = packet.get_mut() {
                shape_packet(table, span, &format!("packet[{index}]"))?;
            }
        }
    }
    if let Some(section) = document.get_mut("socks5_udp")
        && let span = section.span()
        && let DeValue::Table(table) = section.get_mut()
    {
        shape_socks5(table, span)?;
    }
    Ok(())
}

/// Brings a `[[packet]]` at `key` into shape.
fn shape_packet(table: &mut DeTable<'_>, span: Range<usize>, key: &str) -> Result<(), ConfigError> {
    if table.contains_key(GROUP) {
        let known = fields_of::<GroupSection>();
        let elsewhere =
            |name: &str| is_known_to_any(name).then(|| "expected only without `group`".to_owned());
        check_keys(table, key, known, elsewhere)?;
        wrap(table, GROUP, span);
        return Ok(());
    }
    let service = service_of(table, key)?;
    let is_path = service != RENDEZVOUS;
    let sources = if is_path { &SOURCE[..] } else { &[] };
    let known: Vec<_> = sources.iter().chain(keys_of(service)).chain(&[SERVICE]).copied().collect();
    check_keys(table, key, &known, with_service)?;
    table.remove(SERVICE);
    if !is_path {
        wrap(table, RENDEZVOUS, span);
        return Ok(());
    }
    let mut source: DeTable<'_> =
        SOURCE.iter().filter_map(|name| table.remove_entry(*name)).collect();
    let has = |name: &str| source.contains_key(name);
    match (has("listen"), has("to"), has("tproxy"), has("tun")) {
        (true, true, false, false) => wrap(&mut source, "port", span.clone()),
        (false, false, true, false) | (false, false, false, true) => {}
        _ => {
            let problem = "expected `listen` and `to`, or `tproxy`, or `tun`";
            return Err(ConfigError::new(key, problem));
        }
    }
    wrap(table, service, span.clone());
    let delivery = take(table);
    table.insert(word(SOURCE_FIELD, &span), Spanned::new(span.clone(), DeValue::Table(source)));
    table.insert(word(DELIVERY_FIELD, &span), Spanned::new(span.clone(), DeValue::Table(delivery)));
    wrap(table, "path", span);
    Ok(())
}

/// Brings `[socks5_udp]` into shape.
fn shape_socks5(table: &mut DeTable<'_>, span: Range<usize>) -> Result<(), ConfigError> {
    const KEY: &str = "socks5_udp";
    if let Some(name) = SOURCE.iter().find(|name| table.contains_key(**name)) {
        let problem = "expected no `listen`, `to`, `tproxy` or `tun`: clients say where to";
        return Err(ConfigError::new(format!("{KEY}.{name}"), problem));
    }
    let service = service_of(table, KEY)?;
    if service == RENDEZVOUS {
        let problem = "expected another service than `rendezvous`: answers are waited for";
        return Err(ConfigError::new(format!("{KEY}.{SERVICE}"), problem));
    }
    let known: Vec<_> = keys_of(service).iter().chain(&[SERVICE]).copied().collect();
    check_keys(table, KEY, &known, with_service)?;
    table.remove(SERVICE);
    wrap(table, service, span);
    Ok(())
}

/// Returns the service of a section: `direct` when it names none and no relays, else `forwarding`.
fn service_of(table: &DeTable<'_>, key: &str) -> Result<&'static str, ConfigError> {
    let Some(given) = table.get(SERVICE) else {
        let relays = table.get("relays").map(Spanned::get_ref);
        let has_none = match relays {
            None => true,
            Some(DeValue::Array(relays)) => relays.is_empty(),
            Some(_) => false,
        };
        return Ok(if has_none { "direct" } else { "forwarding" });
    };
    let name = given.get_ref().as_str();
    let found = SERVICES.iter().find(|service| Some(**service) == name);
    found.copied().ok_or_else(|| {
        let given = name.map_or_else(String::new, |name| format!("unknown variant `{name}`, "));
        let problem = format!("{given}expected one of {}", listed(&SERVICES));
        ConfigError::new(format!("{key}.{SERVICE}"), problem)
    })
}

/// Refuses keys that are not `known`; those that belong `elsewhere` with that function's words.
fn check_keys(
    table: &DeTable<'_>,
    key: &str,
    known: &[&str],
    elsewhere: impl Fn(&str) -> Option<String>,
) -> Result<(), ConfigError> {
    let mut names = table.keys().map(|name| name.get_ref().as_ref());
    let Some(name) = names.find(|name| !known.contains(name)) else { return Ok(()) };
    let unknown = || format!("unknown field `{name}`, expected one of {}", listed(known));
    Err(ConfigError::new(format!("{key}.{name}"), elsewhere(name).unwrap_or_else(unknown)))
}

/// Returns the services with which a key is expected, if there are any.
fn with_service(name: &str) -> Option<String> {
    let with = SERVICES.iter().filter(|service| keys_of(service).contains(&name));
    match with.copied().collect::<Vec<_>>().as_slice() {
        [] => None,
        [one] => Some(format!("expected only with `service = \"{one}\"`")),
        [others @ .., last] => {
            Some(format!("expected only with the services {} or `{last}`", listed(others)))
        }
    }
}

fn is_known_to_any(name: &str) -> bool {
    SOURCE.contains(&name) || with_service(name).is_some()
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Makes `table` the value of `tag`, its only key.
fn wrap(table: &mut DeTable<'_>, tag: &'static str, span: Range<usize>) {
    let inner = DeValue::Table(take(table));
    table.insert(word(tag, &span), Spanned::new(span, inner));
}

fn word<'a>(name: &'static str, span: &Range<usize>) -> Spanned<std::borrow::Cow<'a, str>> {
    Spanned::new(span.clone(), name.into())
}

/// Returns the names of a type's fields, in the order of their declaration.
fn fields_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    struct Spy<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Spy<'_> {
        type Error = value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visitor.visit_unit()
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            visitor.visit_unit()
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
            option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
            ignored_any
        }
    }

    let mut fields: &'static [&'static str] = &[];
    // It fails, since nothing is there to be read; by then it has reported its fields.
    let _never = T::deserialize(Spy(&mut fields));
    fields
}
