//! Socket addresses in files: `192.0.2.1:7000`, `[2001:db8::1]:7000`. The error about a host name
//! shows it and the expected form.
//!
//! Serde adapters, as in `#[serde(deserialize_with = "tradewind_units::address::one")]`.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer};

use crate::{UnitError, text};

const EXPECTED: &str = "IP:PORT such as `192.0.2.1:7000` or `[2001:db8::1]:7000`";

const ZONE_EXPECTED: &str = "IP:PORT, and for a link-local IP the number of its interface, as `ip \
    link` shows it: `[fe80::1%2]:7000`";

/// Reads an address with its port.
///
/// # Errors
/// When the text is no such address; a host name is none. When it is link-local without a zone.
pub fn parse(text: &str) -> Result<SocketAddr, UnitError> {
    let refused = |expected| UnitError::new("socket address", expected, text);
    let expected = if text.contains('%') { ZONE_EXPECTED } else { EXPECTED };
    let address = text.parse().map_err(|_| refused(expected))?;
    if lacks_zone(address) { Err(refused(ZONE_EXPECTED)) } else { Ok(address) }
}

/// Returns whether `address` is link-local and does not say on which interface it is.
fn lacks_zone(address: SocketAddr) -> bool {
    match address {
        SocketAddr::V6(v6) => v6.ip().is_unicast_link_local() && v6.scope_id() == 0,
        SocketAddr::V4(_) => false,
    }
}

/// An address in a file.
#[derive(Deserialize)]
pub struct Written(#[serde(deserialize_with = "one")] SocketAddr);

/// Reads an address.
///
/// # Errors
/// As [`parse`].
pub fn one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    text::from_text(deserializer, EXPECTED, parse)
}

/// Reads an address that may be absent: add `#[serde(default)]` beside it.
///
/// # Errors
/// As [`parse`].
pub fn option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    Ok(Option::<Written>::deserialize(deserializer)?.map(|Written(address)| address))
}

/// Reads a list of addresses.
///
/// # Errors
/// As [`parse`].
pub fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let written = Vec::<Written>::deserialize(deserializer)?;
    Ok(written.into_iter().map(|Written(address)| address).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_is_refused_with_value_and_expected_form() {
        assert_eq!(parse("192.0.2.1:7000").unwrap().port(), 7000);
        let line = parse("relay.example.com:7000").unwrap_err().to_string();
        assert_eq!(
            line,
            "socket address: IP:PORT such as `192.0.2.1:7000` or `[2001:db8::1]:7000`, \
             not `relay.example.com:7000`"
        );
    }

    #[test]
    fn zone_is_the_number_of_an_interface() {
        let SocketAddr::V6(address) = parse("[fe80::1%2]:7000").unwrap() else { panic!() };
        assert_eq!((address.scope_id(), address.port()), (2, 7000));
        let line = parse("[fe80::1%eth0]:7000").unwrap_err().to_string();
        assert_eq!(
            line,
            "socket address: IP:PORT, and for a link-local IP the number of its interface, as `ip \
             link` shows it: `[fe80::1%2]:7000`, not `[fe80::1%eth0]:7000`"
        );
    }

    #[test]
    fn link_local_address_without_a_zone_is_refused() {
        for text in ["[fe80::1]:7000", "[febf::1]:0", "[fe80::1%0]:7000"] {
            let line = parse(text).unwrap_err().to_string();
            assert!(line.contains("for a link-local IP the number of its interface"), "{line}");
        }
        for text in ["[fec0::1]:7000", "[::1]:7000", "169.254.1.1:7000"] {
            assert!(parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn each_shape_reads_the_same_addresses() {
        #[derive(Deserialize)]
        struct Holder {
            #[serde(deserialize_with = "one")]
            one: SocketAddr,
            #[serde(default, deserialize_with = "option")]
            option: Option<SocketAddr>,
            #[serde(deserialize_with = "list")]
            list: Vec<SocketAddr>,
        }
        let held: Holder = toml::from_str("one = '[::1]:1'\nlist = ['[::1]:1']").unwrap();
        assert_eq!((held.list, held.option), (vec![held.one], None));
        for text in ["one = 7000\nlist = []", "one = '[::1]:1'\nlist = [7000]"] {
            let error = toml::from_str::<Holder>(text).err().unwrap();
            assert!(error.message().contains("`7000`, expected text: IP:PORT"), "{error}");
        }
    }
}
