//! Pages of configuration keys, made of the JSON schemas of the files.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{code, marked, paragraphs};
use crate::config::SchemaArg;
use serde_json::{Map, Value};

/// The files that have a page: its name, its heading, and what it says before the keys.
const PAGES: [(SchemaArg, &str, &str, &str); 6] = [
    (
        SchemaArg::Relay,
        "relay.md",
        "A relay's configuration",
        "The file of `tradewind relay --config FILE`: docs/how-to/operate.md. Packets: \
         docs/reference/packets.md; profiles of legs: docs/reference/legs.md.",
    ),
    (
        SchemaArg::Gateway,
        "gateway.md",
        "A gateway's configuration",
        "The file of `tradewind gateway --config FILE`: docs/how-to/gateway.md. Packets: \
         docs/reference/packets.md; profiles of legs: docs/reference/legs.md.",
    ),
    (
        SchemaArg::Jumpstart,
        "jumpstart.md",
        "Jump-start's configuration",
        "The file of `tradewind jumpstart run --config FILE`: docs/how-to/jumpstart.md. Relays and \
         gateways have a section with the keys that reach no further than the process.",
    ),
    (
        SchemaArg::Problem,
        "problem.md",
        "The problem file",
        "The file of `tradewind plan --problem FILE`: docs/how-to/plan.md. Tables, reports and \
         catalogues that it names, and the choice of packet services: \
         docs/reference/problem-tables.md.",
    ),
    (
        SchemaArg::Hosts,
        "hosts.md",
        "The file of hosts",
        "The file of `tradewind deploy FILE`: docs/how-to/deploy.md.",
    ),
    (
        SchemaArg::Machines,
        "machines.md",
        "The file of machines",
        "The file of `tradewind machines FILE`: docs/how-to/machines.md.",
    ),
];

/// The text that every page begins with.
const FORMS: &str = "TOML. Unknown keys are errors; each error is one line: the key, its line and \
     what would be right. `tradewind config schema` prints the JSON schema for editors. Spans, \
     sizes and rates are text with a unit: `30 ms`, `2.875 MB`, `64 KiB`, `500 Mbit/s`. Names of \
     files are absolute or relative: to a process's working directory, or to the file of a \
     problem, of hosts or of machines.";

/// Returns the pages of all kinds of files, with their names.
pub(super) fn pages() -> impl Iterator<Item = (&'static str, String)> {
    PAGES.into_iter().map(|(kind, name, title, intro)| {
        let mut text = format!(
            "# {title}\n\n<!-- Made by `make reference`: change the types instead. -->\n\n"
        );
        paragraphs(&mut text, &format!("{intro}\n\n{FORMS}"));
        let schema = kind.schema().to_value();
        let mut page = Page { root: &schema, text, described: BTreeMap::new() };
        page.section("", "", &schema);
        (name, page.text)
    })
}

/// A page while it is made.
struct Page<'a> {
    root: &'a Value,
    text: String,
    /// The headings under which types that several keys share are described.
    described: BTreeMap<&'a str, String>,
}

/// A table that a key holds: its path, the heading of its section, and its schema.
type Inner<'a> = (String, String, &'a Value);

/// A key of a table: the forms of the table that have it, by their titles.
type Uses<'a> = Vec<(&'a str, &'a Value, bool)>;

impl<'a> Page<'a> {
    /// Adds the keys of a table, then the sections of the tables that they hold.
    fn section(&mut self, path: &str, heading: &str, table: &'a Value) {
        if !heading.is_empty() {
            let _ = writeln!(self.text, "## {}\n", code(heading));
            paragraphs(&mut self.text, description(table));
        }
        let forms = self.forms(table);
        let mut keys: BTreeMap<&str, Uses<'a>> = BTreeMap::new();
        for form in &forms {
            let required = strings(form.get("required"));
            for (key, value) in properties(form).into_iter().flatten() {
                let is_required = required.contains(&key.as_str());
                keys.entry(key).or_default().push((title(form), value, is_required));
            }
        }
        let mut inner = Vec::new();
        self.text.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
        for (key, uses) in &keys {
            let path = if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
            let row = self.row(&path, key, uses, forms.len(), &mut inner);
            self.text.push_str(&row);
        }
        self.text.push('\n');
        for (path, heading, table) in inner {
            self.section(&path, &heading, table);
        }
    }

    /// Returns the row of a key, and adds the tables that it holds and that no section describes.
    fn row(
        &mut self,
        path: &str,
        key: &str,
        uses: &Uses<'a>,
        forms: usize,
        inner: &mut Vec<Inner<'a>>,
    ) -> String {
        let (_, first, _) = uses[0];
        let mut kind = self.kind(first);
        if first.get("const").is_some() {
            let values: Vec<_> =
                uses.iter().filter_map(|(_, value, _)| value.get("const")).collect();
            kind = values.into_iter().map(literal).collect::<Vec<_>>().join(", ");
        }
        if let Some((table, is_list)) = self.table_of(first) {
            let heading = if is_list { format!("[[{path}]]") } else { format!("[{path}]") };
            let name = first_reference(first).unwrap_or_default();
            let known = self.described.get(name).cloned();
            if known.is_none() {
                inner.push((path.to_owned(), heading.clone(), table));
                if !name.is_empty() {
                    self.described.insert(name, heading.clone());
                }
            }
            let anchor = anchor(&known.unwrap_or(heading));
            kind = format!("[{kind}](#{anchor})");
        }
        let required = uses.iter().filter(|(_, _, is_required)| *is_required).count();
        let default = if required == uses.len() {
            "required".to_owned()
        } else {
            let default = first.get("default").filter(|default| !default.is_object());
            default.map(literal).unwrap_or_default()
        };
        let mut meanings: Vec<(Vec<&str>, &str)> = Vec::new();
        for (title, value, _) in uses {
            let text = description(value);
            match meanings.iter_mut().find(|(_, other)| *other == text) {
                Some((titles, _)) => titles.push(title),
                None => meanings.push((vec![title], text)),
            }
        }
        let meaning = meanings.iter().map(|(titles, text)| {
            let text = marked(&text.replace('\n', " "));
            if titles.len() == forms {
                return text;
            }
            let titles: Vec<_> = titles.iter().map(|title| code(title)).collect();
            format!("{}: {text}", titles.join(", "))
        });
        let meaning = meaning.collect::<Vec<_>>().join("<br>");
        let cells = [code(key), kind, default, meaning].map(|cell| cell.replace('|', "\\|"));
        let cell = |cell: &String| if cell.is_empty() { " |".into() } else { format!(" {cell} |") };
        format!("|{}\n", cells.iter().map(cell).collect::<String>())
    }

    /// Returns the forms of a table: itself, or the ones of which it takes one.
    fn forms(&self, table: &'a Value) -> Vec<&'a Value> {
        if properties(table).is_some() {
            return vec![table];
        }
        let forms = table.get("anyOf").and_then(Value::as_array);
        forms.into_iter().flatten().map(|form| self.resolved(form)).collect()
    }

    /// Returns the table that a value is or may be, or that its elements are, and whether it is
    /// such a list.
    fn table_of(&self, value: &'a Value) -> Option<(&'a Value, bool)> {
        let value = self.resolved(value);
        if let Some(items) = value.get("items").filter(|items| items.is_object()) {
            return self.table_of(items).map(|(table, _)| (table, true));
        }
        if properties(value).is_some() {
            return Some((value, false));
        }
        let forms = value.get("anyOf").and_then(Value::as_array)?;
        if title(value).is_empty() {
            return self
                .forms(value)
                .iter()
                .all(|form| properties(form).is_some())
                .then_some((value, false));
        }
        forms.iter().find_map(|form| self.table_of(form))
    }

    /// Returns the name of a value's type.
    fn kind(&self, value: &'a Value) -> String {
        let named = title(value);
        if !named.is_empty() {
            return named.to_owned();
        }
        let value = self.resolved(value);
        let named = title(value);
        if let Some(values) = alternatives(value) {
            return values;
        }
        match value.get("type").and_then(Value::as_str) {
            _ if !named.is_empty() && properties(value).is_none() => named.to_owned(),
            Some("boolean") => "`true` or `false`".to_owned(),
            Some("integer" | "number") => number(value),
            Some("string") => "text".to_owned(),
            Some("array") => list(value, |items| self.kind(items)),
            _ if self.table_of(value).is_some() => "table".to_owned(),
            _ => self.either(value),
        }
    }

    /// Returns the name of a type that is one of several.
    fn either(&self, value: &'a Value) -> String {
        let forms = value.get("anyOf").and_then(Value::as_array);
        let kinds: Vec<_> = forms.into_iter().flatten().map(|form| self.kind(form)).collect();
        kinds.join(" or ")
    }

    fn resolved(&self, value: &'a Value) -> &'a Value {
        match value.get("$ref").and_then(Value::as_str) {
            Some(path) => self.root.pointer(path.trim_start_matches('#')).unwrap_or(value),
            None => value,
        }
    }
}

/// Returns the anchor of a heading, as mdBook makes it.
fn anchor(heading: &str) -> String {
    heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-')).collect()
}

/// Returns the first definition that a value refers to, itself or in its forms and elements.
fn first_reference(value: &Value) -> Option<&str> {
    let forms = value.get("anyOf").and_then(Value::as_array);
    let own = value.get("$ref").and_then(Value::as_str);
    own.or_else(|| value.get("items").and_then(first_reference))
        .or_else(|| forms.into_iter().flatten().find_map(first_reference))
}

fn properties(value: &Value) -> Option<&Map<String, Value>> {
    value.get("properties").and_then(Value::as_object).filter(|_| value.get("type").is_some())
}

fn title(value: &Value) -> &str {
    value.get("title").and_then(Value::as_str).unwrap_or_default()
}

fn description(value: &Value) -> &str {
    value.get("description").and_then(Value::as_str).unwrap_or_default()
}

fn strings(value: Option<&Value>) -> Vec<&str> {
    let values = value.and_then(Value::as_array).into_iter().flatten();
    values.filter_map(Value::as_str).collect()
}

/// Returns a value as a file holds it.
fn literal(value: &Value) -> String {
    match value {
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        other => code(&other.to_string().replace("\",\"", "\", \"")),
    }
}

/// Returns the words of an enumeration, with their meanings.
fn alternatives(value: &Value) -> Option<String> {
    let plain = value.get("enum").and_then(Value::as_array).into_iter().flatten();
    let plain = plain.map(|word| (word, ""));
    let told = value.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    let told = told.filter_map(|form| Some((form.get("const")?, description(form))));
    let alone = value.get("const").map(|word| (word, ""));
    let words: Vec<_> = plain
        .chain(told)
        .chain(alone)
        .map(|(word, meaning)| {
            let meaning = marked(&meaning.replace('\n', " "));
            let meaning = if meaning.is_empty() { meaning } else { format!(": {meaning}") };
            format!("{}{meaning}", literal(word))
        })
        .collect();
    (!words.is_empty()).then(|| words.join("<br>"))
}

/// Returns the name of numbers between their bounds.
fn number(value: &Value) -> String {
    let bound = |key| value.get(key).filter(|bound| bound.is_number());
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("number from {least}"),
        _ => "number".to_owned(),
    }
}

/// Returns the name of a list, of any length or of a fixed one.
fn list<'a>(value: &'a Value, kind: impl FnOnce(&'a Value) -> String) -> String {
    let length = value.get("minItems").filter(|least| value.get("maxItems") == Some(least));
    let of = value.get("items").map(kind).unwrap_or_default();
    match length {
        Some(length) => format!("{length} of: {of}"),
        None => format!("list of: {of}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(schema: &Value) -> String {
        let mut page = Page { root: schema, text: String::new(), described: BTreeMap::new() };
        page.section("", "", schema);
        page.text
    }

    #[test]
    fn table_used_twice_is_described_once() {
        let schema = json!({
            "type": "object",
            "properties": {
                "one": { "$ref": "#/$defs/Inner", "description": "The first." },
                "two": { "type": "array", "items": { "$ref": "#/$defs/Inner" }, "default": [] },
            },
            "required": ["one"],
            "$defs": { "Inner": {
                "type": "object",
                "description": "What is\ninside.",
                "properties": { "port": { "type": "integer", "minimum": 0, "maximum": 9 } },
            } },
        });
        let expected = "| key | type | default | meaning |\n|---|---|---|---|\n\
            | `one` | [table](#one) | required | The first. |\n\
            | `two` | [list of: table](#one) | none | |\n\n\
            ## `[one]`\n\nWhat is inside.\n\n\
            | key | type | default | meaning |\n|---|---|---|---|\n\
            | `port` | 0 to 9 | | |\n\n";
        assert_eq!(page(&schema), expected);
    }

    #[test]
    fn keys_of_some_forms_name_them() {
        let form = |title: &str, keys: Value| {
            let required = ["kind"];
            json!({ "type": "object", "title": title, "properties": keys, "required": required })
        };
        let text = |words: &str| json!({ "type": "string", "description": words });
        let all = text("x|y");
        let schema = json!({ "anyOf": [
            form("a", json!({ "kind": { "const": "a" }, "key": text("Of a."), "all": all })),
            form("b", json!({ "kind": { "const": "b" }, "key": text("Of b."), "all": all })),
            form("c", json!({ "kind": { "const": "c" }, "all": all })),
        ] });
        let expected = "| key | type | default | meaning |\n|---|---|---|---|\n\
            | `all` | text | | x\\|y |\n\
            | `key` | text | | `a`: Of a.<br>`b`: Of b. |\n\
            | `kind` | `\"a\"`, `\"b\"`, `\"c\"` | required | |\n\n";
        assert_eq!(page(&schema), expected);
    }
}
