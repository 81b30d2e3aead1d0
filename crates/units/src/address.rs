//! Socket addresses in files: `192.0.2.1:7000`, `[2001:db8::1]:7000`. The error about a host name
//! shows it and the expected form.
//!
//! Serde adapters, as in `#[serde(deserialize_with = "tradewind_units::address::one")]`.

use std::net::SocketAddr;

use serde::{Deserialize, Deserializer};

use crate::{UnitError, text};

const EXPECTED: &str = "IP:PORT such as `192.0.2.1:7000` or `[2001:db8::1]:7000`";

const ZONE_EXPECTED: &str = "IP:PORT whose zone is the number of an interface, as `ip link` shows \
    it: `[fe80::1%2]:7000`";

/// Reads an address with its port.
///
/// # Errors
/// When the text is no such address; a host name is none.
pub fn parse(text: &str) -> Result<SocketAddr, UnitError> {
    let expected = if text.contains('%') { ZONE_EXPECTED } else { EXPECTED };
    text.parse().map_err(|_| UnitError::new("socket address", expected, text))
}

/// An address in a file.
#[derive(Deserialize)]
struct Written(#[serde(deserialize_with = "one")] SocketAddr);

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
    fn a_name_is_refused_with_its_value_and_the_right_form() {
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
            "socket address: IP:PORT whose zone is the number of an interface, as `ip link` shows \
             it: `[fe80::1%2]:7000`, not `[fe80::1%eth0]:7000`"
        );
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
