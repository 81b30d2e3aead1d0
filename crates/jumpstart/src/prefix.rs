//! Prefixes as people write them: `10.0.0.0/8`, `2001:db8::/32`. One with bits behind its length is
//! refused, since it may mean a single address as well.
//!
//! Serde adapters, as in `#[serde(deserialize_with = "tradewind_jumpstart::prefix::one")]`.

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

/// Reads a prefix.
///
/// # Errors
/// One line that says what would be right.
pub fn parse(text: &str) -> Result<IpNet, String> {
    let prefix: IpNet = text.parse().map_err(|_| {
        format!("expected a prefix such as `10.0.0.0/8` or `2001:db8::/32`, not `{text}`")
    })?;
    let network = prefix.trunc();
    if prefix == network {
        return Ok(prefix);
    }
    let one = IpNet::from(prefix.addr());
    Err(format!(
        "expected `{network}`, or `{one}` for the one address: bits are set behind the prefix, not \
         `{prefix}`"
    ))
}

/// A prefix in a file.
#[derive(Deserialize)]
pub struct Written(#[serde(deserialize_with = "one")] IpNet);

tradewind_units::text_schema!(Written, "prefix", "^[0-9a-fA-F:.]+/[0-9]+$", "10.0.0.0/8");

/// Reads a prefix.
///
/// # Errors
/// As [`parse`].
pub fn one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpNet, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// Reads a prefix that may be absent: add `#[serde(default)]` beside it.
///
/// # Errors
/// As [`parse`].
pub fn option<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpNet>, D::Error> {
    Ok(Option::<Written>::deserialize(deserializer)?.map(|Written(prefix)| prefix))
}

/// Reads a list of prefixes.
///
/// # Errors
/// As [`parse`].
pub fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let written = Vec::<Written>::deserialize(deserializer)?;
    Ok(written.into_iter().map(|Written(prefix)| prefix).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_refused_with_both_meanings() {
        for text in ["10.0.0.0/8", "10.1.2.3/32", "0.0.0.0/0", "2001:db8::/32", "::1/128", "::/0"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("10.1.2.3/8", "expected `10.0.0.0/8`, or `10.1.2.3/32` for the one address"),
            ("2001:db8::1/32", "expected `2001:db8::/32`, or `2001:db8::1/128` for the one"),
            ("10.0.0.0", "expected a prefix such as `10.0.0.0/8`"),
            ("10.0.0.0/33", "expected a prefix such as"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.starts_with(expected) && error.ends_with(&format!("`{text}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn each_shape_refuses_the_same_prefixes() {
        #[derive(Debug, Deserialize)]
        struct Holder {
            #[serde(deserialize_with = "one")]
            one: IpNet,
            #[serde(default, deserialize_with = "option")]
            option: Option<IpNet>,
            #[serde(deserialize_with = "list")]
            list: Vec<IpNet>,
        }
        let read =
            |one: &str, more: &str| toml::from_str::<Holder>(&format!("one = '{one}'\n{more}"));
        let held = read("10.0.0.0/8", "list = ['10.0.0.0/8']").unwrap();
        assert_eq!((held.list, held.option), (vec![held.one], None));
        for (one, more) in [
            ("10.0.0.1/8", "list = []"),
            ("10.0.0.0/8", "list = ['10.0.0.1/8']"),
            ("10.0.0.0/8", "list = []\noption = '10.0.0.1/8'"),
        ] {
            let error = read(one, more).unwrap_err();
            assert!(error.message().contains("bits are set behind the prefix"), "{error}");
        }
    }
}
