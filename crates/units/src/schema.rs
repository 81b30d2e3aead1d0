//! JSON schemas of the text forms and numbers, for editors and for the reference of configuration
//! files. They are no stricter than the parsers.
//!
//! The title of such a schema is the name of its form, as in `size`.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

use crate::id::{FlowId, HostId, RegionId, RelayId, RelayTypeId, SiteId};
use crate::{Bandwidth, Bytes, Money, PricePerGb, Ratio, Segments, address, time};

/// Implements `JsonSchema` by a schema with a title, which stands wherever the type is used.
#[macro_export]
macro_rules! inline_schema {
    ($type:ty, $title:literal, { $($schema:tt)* }) => {
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $title.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "title": $title, $($schema)* })
            }
        }
    };
}

/// Implements `JsonSchema` for a type that files hold as text: its title, a pattern, an example.
#[macro_export]
macro_rules! text_schema {
    ($type:ty, $title:literal, $pattern:expr, $example:literal) => {
        $crate::inline_schema!($type, $title, {
            "type": "string",
            "pattern": $pattern,
            "examples": [$example],
        });
    };
}

const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$";

text_schema!(Bytes, "size", r"^\s*[0-9.]+\s*([kMGTPE]?B|[KMG]iB)\s*$", "64 KiB");
text_schema!(Bandwidth, "rate", r"^\s*[0-9.]+\s*[kMGT]?bit/s\s*$", "500 Mbit/s");
text_schema!(time::Written, "span", r"^\s*[0-9.]+\s*(ns|us|ms|s|min|h)\s*$", "30 ms");
text_schema!(
    time::WrittenOrOff,
    "span or `off`",
    r"^\s*(off|[0-9.]+\s*(ns|us|ms|s|min|h))\s*$",
    "1 min"
);
text_schema!(address::Written, "IP:PORT", r"^(\[.+\]|[0-9.]+):[0-9]+$", "192.0.2.1:7000");
text_schema!(FlowId, "name", NAME, "orders");
text_schema!(HostId, "name", NAME, "host-1");
text_schema!(RegionId, "region", NAME, "gcp:europe-north1");
text_schema!(RelayId, "name", NAME, "hamina");
text_schema!(RelayTypeId, "name", NAME, "small");
text_schema!(SiteId, "name", NAME, "office");

inline_schema!(Ratio, "share", {
    "anyOf": [
        { "type": "number", "minimum": 0, "maximum": 1 },
        { "type": "string", "pattern": r"^\s*[-+0-9.eE]+\s*%?\s*$" },
    ],
    "examples": [0.01, "1 %"],
});
inline_schema!(Money, "dollars", {
    "type": "number",
    "minimum": 0,
    "maximum": 1_000_000_000,
});
inline_schema!(PricePerGb, "dollars per GB", {
    "type": "number",
    "minimum": 0,
    "maximum": 100,
});
inline_schema!(Segments, "segments", {
    "type": "integer",
    "minimum": 1,
    "maximum": 1_048_576,
});

/// Returns the JSON schema (draft 2020-12) of TOML files that are parsed as `T`.
#[must_use]
pub fn of_file<T: JsonSchema>() -> Schema {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    RecursiveTransform(without_null).transform(&mut schema);
    schema
}

/// Takes null out of a schema: TOML has no such value, a key is absent instead.
fn without_null(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    if object.get("default") == Some(&Value::Null) {
        object.remove("default");
    }
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [one] = types.as_slice() {
            let one = one.clone();
            object.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(forms)) = object.get_mut("anyOf") {
        forms.retain(|form| form.get("type") != Some(&Value::from("null")));
        if let [Value::Object(one)] = forms.as_slice() {
            let one: Map<String, Value> = one.clone();
            object.remove("anyOf");
            for (key, value) in one {
                object.entry(key).or_insert(value);
            }
        }
    }
}
