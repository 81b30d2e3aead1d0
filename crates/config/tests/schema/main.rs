//! The JSON schemas beside the parsers: both accept the same files, both refuse misspelled keys,
//! missing ones and values of another type.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod samples;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value as Json, json};
use toml::{Table, Value};
use tradewind_config::{ConfigError, GatewayConfig, JumpstartConfig, Kind, RelayConfig};
use tradewind_model::Catalogue;

use samples::{CORPUS, PROBLEMS, TABLES, samples};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);

/// A kind of file that has a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Process(Kind),
    Problem,
}

const FORMS: [Form; 4] = [
    Form::Process(Kind::Relay),
    Form::Process(Kind::Gateway),
    Form::Process(Kind::Jumpstart),
    Form::Problem,
];

fn schema(form: Form) -> schemars::Schema {
    match form {
        Form::Process(kind) => tradewind_config::schema(kind),
        Form::Problem => tradewind_plan::file::schema(),
    }
}

/// The validator of a form's schema.
fn validator(form: Form) -> Validator {
    jsonschema::draft202012::new(schema(form).as_value()).unwrap()
}

/// Returns why the parser of a form refuses a file.
fn parsed(form: Form, table: &Table) -> Result<(), String> {
    let text = toml::to_string(table).unwrap();
    let problem = |error: ConfigError| error.problem;
    match form {
        Form::Process(Kind::Relay) => RelayConfig::parse(&text).map(drop).map_err(problem),
        Form::Process(Kind::Gateway) => GatewayConfig::parse(&text).map(drop).map_err(problem),
        Form::Process(Kind::Jumpstart) => JumpstartConfig::parse(&text).map(drop).map_err(problem),
        Form::Problem => {
            let mut load = |name: &str| {
                let named = TABLES.into_iter().find(|(known, _)| *known == name);
                named.map(|(_, text)| text.to_owned()).ok_or_else(|| "not there".to_owned())
            };
            let read = tradewind_plan::file::parse(&text, &CATALOGUE, &mut load);
            read.map(drop).map_err(|error| error.problem)
        }
    }
}

/// Returns why a schema refuses a file.
fn validated(validator: &Validator, table: &Table) -> Result<(), String> {
    let file = serde_json::to_value(table).unwrap();
    validator.validate(&file).map_err(|error| format!("{}: {error}", error.instance_path()))
}

/// Calls `mutate` at each key of a file in turn, and `judge` with the changed file.
fn at_each_key(
    table: &Table,
    mutate: &dyn Fn(&mut Table, &str),
    judge: &mut dyn FnMut(&str, &Table),
) {
    let mut paths = Vec::new();
    keys_of(&Value::Table(table.clone()), &mut Vec::new(), &mut paths);
    for path in paths {
        let mut file = Value::Table(table.clone());
        let (key, above) = path.split_last().unwrap();
        let holder = above.iter().fold(&mut file, |value, step| match value {
            Value::Table(table) => table.get_mut(step).unwrap(),
            Value::Array(values) => &mut values[step.parse::<usize>().unwrap()],
            other => panic!("{other} has no keys"),
        });
        mutate(holder.as_table_mut().unwrap(), key);
        judge(&path.join("."), file.as_table().unwrap());
    }
}

/// Adds the paths of all keys: names, and indexes of lists.
fn keys_of(value: &Value, above: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let inner: Vec<_> = match value {
        Value::Table(table) => table.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(values) => {
            values.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
        }
        _ => return,
    };
    for (step, inner) in inner {
        above.push(step);
        if value.is_table() {
            paths.push(above.clone());
        }
        keys_of(inner, above, paths);
        above.pop();
    }
}

#[test]
fn samples_are_accepted_by_both() {
    for (form, sample) in samples() {
        parsed(form, &sample).unwrap();
        validated(&validator(form), &sample).unwrap();
    }
}

#[test]
fn files_of_the_repository_are_accepted() {
    let shipped = include_str!("../../../../systemd/jumpstart.toml");
    let jumpstart = validator(Form::Process(Kind::Jumpstart));
    let mut accepted = 0;
    for text in CORPUS.into_iter().chain([shipped]) {
        if JumpstartConfig::parse(text).is_ok() {
            accepted += 1;
            validated(&jumpstart, &text.parse().unwrap()).unwrap();
        }
    }
    assert!(accepted > 5 && JumpstartConfig::parse(shipped).is_ok(), "{accepted}");
    let problem = validator(Form::Problem);
    PROBLEMS.into_iter().for_each(|text| validated(&problem, &text.parse().unwrap()).unwrap());
}

#[test]
fn misspelled_keys_are_refused_by_both() {
    for (form, sample) in samples() {
        let validator = validator(form);
        let misspell = |table: &mut Table, key: &str| {
            let value = table.remove(key).unwrap();
            table.insert(format!("{key}x"), value);
        };
        at_each_key(&sample, &misspell, &mut |path, file| {
            // Its keys are addresses.
            if path.contains(".targets.") {
                return;
            }
            assert!(parsed(form, file).is_err(), "{form:?}: the parser takes {path}x");
            assert!(validated(&validator, file).is_err(), "{form:?}: the schema takes {path}x");
        });
    }
}

#[test]
fn values_of_another_type_are_refused_by_both() {
    for (form, sample) in samples() {
        let validator = validator(form);
        let retype = |table: &mut Table, key: &str| {
            let value = table.get_mut(key).unwrap();
            *value = if value.is_bool() { Value::Integer(7) } else { Value::Boolean(true) };
        };
        at_each_key(&sample, &retype, &mut |path, file| {
            assert!(parsed(form, file).is_err(), "{form:?}: the parser takes another {path}");
            assert!(validated(&validator, file).is_err(), "{form:?}: the schema does, {path}");
        });
    }
}

#[test]
fn missing_keys_are_refused_by_both() {
    let mut refused = 0;
    for (form, sample) in samples() {
        let validator = validator(form);
        let remove = |table: &mut Table, key: &str| drop(table.remove(key));
        at_each_key(&sample, &remove, &mut |path, file| match parsed(form, file) {
            Ok(()) => validated(&validator, file).unwrap(),
            Err(error) if error.contains("missing field") => {
                refused += 1;
                assert!(validated(&validator, file).is_err(), "{form:?}: without {path}");
            }
            // What values mean together is left to the parser.
            Err(_) => {}
        });
    }
    assert!(refused > 30, "{refused}");
}

#[test]
fn schema_is_no_stricter_than_the_parser() {
    let values = [
        "\"\"",
        "\"!\"",
        "\" 1.5 ms \"",
        "\"1B\"",
        "\"auto\"",
        "0",
        "-1",
        "0.5",
        "1e9",
        "[]",
        "{}",
    ];
    let mut refused = 0;
    for (form, sample) in samples() {
        let validator = validator(form);
        for value in values {
            let value = format!("x = {value}").parse::<Table>().unwrap()["x"].clone();
            let replace = |table: &mut Table, key: &str| {
                // Serde takes a list as the values of a table.
                if !(value.is_array() && table[key].is_table()) {
                    table.insert(key.to_owned(), value.clone());
                }
            };
            at_each_key(&sample, &replace, &mut |path, file| {
                if let Err(why) = validated(&validator, file) {
                    refused += 1;
                    assert!(parsed(form, file).is_err(), "{path} = {value}: {why}");
                }
            });
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// The keys of schemas that samples use: the table, by its place in the schema, and the key.
type Keys = BTreeSet<(String, String)>;

/// Adds the keys of all tables below `schema`; only those that `file` uses, if there is one.
fn walk(root: &Json, place: &str, schema: &Json, file: Option<&Json>, keys: &mut Keys) {
    if let Some(target) = schema.get("$ref").and_then(Json::as_str) {
        let place = target.trim_start_matches('#').to_owned();
        let is_new = file.is_some() || !keys.iter().any(|(known, _)| *known == place);
        if is_new {
            walk(root, &place, root.pointer(&place).unwrap(), file, keys);
        }
        return;
    }
    for (key, inner) in schema.get("properties").and_then(Json::as_object).into_iter().flatten() {
        let used = file.map(|file| file.get(key));
        if used != Some(None) {
            // All paths have the same sources of datagrams.
            let is_source = ["listen", "to", "tproxy", "tun"].contains(&key.as_str());
            let is_path = schema.get("oneOf").is_some();
            let table = if is_source && is_path { "source" } else { place };
            keys.insert((table.to_owned(), key.clone()));
            walk(root, &format!("{place}/properties/{key}"), inner, used.flatten(), keys);
        }
    }
    if let Some(items) = schema.get("items") {
        let place = format!("{place}/items");
        match file {
            None => walk(root, &place, items, None, keys),
            Some(file) => {
                let elements = file.as_array().into_iter().flatten();
                elements.for_each(|element| walk(root, &place, items, Some(element), keys));
            }
        }
    }
    for (at, form) in schema.get("anyOf").and_then(Json::as_array).into_iter().flatten().enumerate()
    {
        let is_meant = file.is_none_or(|file| fits(root, form, file));
        if form.get("type").or(form.get("$ref")).is_some() && is_meant {
            // Two sections share the forms with a title.
            let title = form.get("title").and_then(Json::as_str);
            let place = title.map_or_else(|| format!("{place}/anyOf/{at}"), str::to_owned);
            walk(root, &place, form, file, keys);
        }
    }
}

/// Returns whether a value is of this form by itself.
fn fits(root: &Json, form: &Json, file: &Json) -> bool {
    let mut form = form.clone();
    form.as_object_mut().unwrap().insert("$defs".to_owned(), root["$defs"].clone());
    jsonschema::draft202012::new(&form).unwrap().is_valid(file)
}

#[test]
fn samples_use_every_key() {
    let mut known = Keys::new();
    let mut used = Keys::new();
    for form in FORMS {
        let schema = schema(form).to_value();
        let place = format!("{form:?}");
        walk(&schema, &place, &schema, None, &mut known);
        for (_, sample) in samples().into_iter().filter(|(of, _)| *of == form) {
            walk(&schema, &place, &schema, Some(&json!(sample)), &mut used);
        }
    }
    let unused: Vec<_> = known.difference(&used).collect();
    assert!(unused.is_empty(), "{unused:?}");
    assert!(known.len() > 200, "{}", known.len());
}
