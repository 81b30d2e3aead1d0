//! JSON schemas of the files, made of the types that parse them.

use schemars::Schema;
use tradewind_units::schema::of_file;

use crate::{GatewayConfig, HostsConfig, JumpstartConfig, Kind, MachinesConfig, RelayConfig};

/// Returns the JSON schema (draft 2020-12) of files of this kind.
///
/// It accepts all that the parser accepts. It refuses unknown keys, missing ones and values of
/// another type or form; what values mean together is left to the parser.
#[must_use]
pub fn schema(kind: Kind) -> Schema {
    match kind {
        Kind::Relay => of_file::<RelayConfig>(),
        Kind::Gateway => of_file::<GatewayConfig>(),
        Kind::Jumpstart => of_file::<JumpstartConfig>(),
    }
}

/// Returns the JSON schema of files of hosts, in the same way.
#[must_use]
pub fn hosts_schema() -> Schema {
    of_file::<HostsConfig>()
}

/// Returns the JSON schema of files of machines, in the same way.
#[must_use]
pub fn machines_schema() -> Schema {
    of_file::<MachinesConfig>()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the first TOML example of a page, after a check that the schema accepts it, and
    /// refuses it with `place` instead of the key `region`.
    pub(crate) fn example_of<'a>(page: &'a str, schema: &Schema) -> &'a str {
        let text = page.split("```").find_map(|part| part.strip_prefix("toml\n")).unwrap();
        let schema = jsonschema::validator_for(schema.as_value()).unwrap();
        let value =
            |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        assert!(schema.is_valid(&value(text)));
        assert!(!schema.is_valid(&value(&text.replace("region", "place"))));
        text
    }
}
