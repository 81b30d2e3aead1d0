//! JSON schemas of the files, made of the types that parse them.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

use crate::{GatewayConfig, JumpstartConfig, Kind, RelayConfig};

/// Returns the JSON schema (draft 2020-12) of files of this kind.
///
/// It accepts all that the parser accepts. It refuses unknown keys, missing ones and values of
/// another type or form; what values mean together is left to the parser.
#[must_use]
pub fn schema(kind: Kind) -> Schema {
    match kind {
        Kind::Relay => of::<RelayConfig>(),
        Kind::Gateway => of::<GatewayConfig>(),
        Kind::Jumpstart => of::<JumpstartConfig>(),
    }
}

fn of<T: JsonSchema>() -> Schema {
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
