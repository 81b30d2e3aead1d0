//! The layers of the architecture, as drawn in ARCHITECTURE.md: a crate imports only from lower
//! layers.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

use crate::Violation;

/// Each crate's layer. A new crate gets its layer here and in ARCHITECTURE.md.
const LAYERS: &[(u8, &[&str])] = &[
    (0, &["units", "model"]),
    (
        1,
        &[
            "plan",
            "desired",
            "grant",
            "wan",
            "jumpstart",
            "fec",
            "stripe",
            "packet",
            "config",
            "control",
            "machines",
        ],
    ),
    (2, &["net", "telemetry"]),
    (
        3,
        &["dashboard", "output", "stream", "relay", "gateway", "node", "probe", "jumpstart-daemon"],
    ),
    (4, &["lab", "agent"]),
    (5, &["demo", "controller"]),
    (6, &["cli"]),
];

/// Pairs of a crate and one that it may import from its own layer.
type Exceptions = &'static [(&'static str, &'static str)];

const NONE: Exceptions = &[];

/// The allowed imports within one layer: models compute with units, the desired state of relays and
/// gateways is compiled from a plan and holds identities, packet services use the erasure code,
/// configurations hold the types of what they configure, machines are made by a configuration,
/// relays and gateways carry streams, and the demo runs a controller.
const EXCEPTIONS: Exceptions = &[
    ("model", "units"),
    ("desired", "plan"),
    ("desired", "grant"),
    ("packet", "fec"),
    ("packet", "grant"),
    ("config", "desired"),
    ("config", "grant"),
    ("config", "jumpstart"),
    ("config", "packet"),
    ("config", "plan"),
    ("demo", "controller"),
    ("control", "config"),
    ("control", "desired"),
    ("control", "grant"),
    ("control", "plan"),
    ("machines", "config"),
    ("relay", "stream"),
    ("gateway", "stream"),
];

/// The allowed imports within one layer by tests alone: a gateway's run the relays of its paths.
const EXCEPTIONS_OF_TESTS: Exceptions = &[("gateway", "relay")];

/// The folder of the product's crates.
const PRODUCT: &str = "crates/";

/// The papers' experiments and the folder of side-by-side benchmarks: above all layers, importing
/// the crates that they run or measure.
const PAPERS: &str = "papers";
const BENCHMARKS: &str = "bench/";
const TOP_LAYER: u8 = 7;

/// Members of the workspace outside the layers: neither side imports the other.
const OUTSIDE: &[&str] = &["xtask"];

const PREFIX: &str = "tradewind-";

fn layer_of(name: &str) -> Option<u8> {
    if name == PAPERS || name.starts_with(BENCHMARKS) {
        return Some(TOP_LAYER);
    }
    LAYERS.iter().find(|(_, names)| names.contains(&name)).map(|(layer, _)| *layer)
}

/// Returns whether the crate in folder `name` is in one of the pure layers.
pub(crate) fn is_pure(name: &str) -> bool {
    layer_of(name).is_some_and(|layer| layer <= 1)
}

/// Returns the name of the crate in folder `member`: without `crates/`, the whole path elsewhere.
pub(crate) fn name_of(member: &str) -> &str {
    member.strip_prefix(PRODUCT).unwrap_or(member)
}

/// Returns the workspace's members from its manifest.
pub(crate) fn members(manifest: &str) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Root {
        workspace: Workspace,
    }
    #[derive(Deserialize)]
    struct Workspace {
        members: Vec<String>,
    }
    let root: Root = toml::from_str(manifest).map_err(|error| format!("Cargo.toml: {error}"))?;
    Ok(root.workspace.members)
}

type Table = BTreeMap<Spanned<String>, Value>;

/// The dependencies of a manifest. The tables are listed separately, as `flatten` would lose the
/// positions.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Manifest {
    #[serde(default)]
    dependencies: Table,
    #[serde(default)]
    dev_dependencies: Table,
    #[serde(default)]
    build_dependencies: Table,
    #[serde(default)]
    target: BTreeMap<String, Dependencies>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Dependencies {
    dependencies: Table,
    dev_dependencies: Table,
    build_dependencies: Table,
}

impl Manifest {
    /// Returns the imports, each with the exceptions that apply to it beside the general ones.
    fn imports(&self) -> impl Iterator<Item = (&Spanned<String>, &Value, Exceptions)> {
        let own = [
            (&self.dependencies, NONE),
            (&self.dev_dependencies, EXCEPTIONS_OF_TESTS),
            (&self.build_dependencies, NONE),
        ];
        let for_targets = self.target.values().flat_map(|table| {
            [
                (&table.dependencies, NONE),
                (&table.dev_dependencies, EXCEPTIONS_OF_TESTS),
                (&table.build_dependencies, NONE),
            ]
        });
        let tables = own.into_iter().chain(for_targets);
        tables.flat_map(|(table, more)| table.iter().map(move |(key, value)| (key, value, more)))
    }
}

/// Checks the manifest `text` of the crate in folder `name`.
pub(crate) fn check_manifest(file: &str, name: &str, text: &str) -> Vec<Violation> {
    let at = |offset: usize, what: String| Violation {
        file: file.to_owned(),
        line: 1 + text[..offset].matches('\n').count(),
        what,
    };
    let manifest: Manifest = match toml::from_str(text) {
        Ok(manifest) => manifest,
        Err(error) => {
            let offset = error.span().map_or(0, |span| span.start);
            return vec![at(offset, format!("cannot be read: {}", error.message()))];
        }
    };
    if layer_of(name).is_none() && !OUTSIDE.contains(&name) {
        return vec![at(0, format!("crate `{name}` has no layer: give it one in xtask's table"))];
    }
    manifest
        .imports()
        .filter_map(|(key, value, more)| {
            let package = value.get("package").and_then(Value::as_str);
            let imported = package.unwrap_or(key.get_ref());
            let what = check_import(name, imported, more)?;
            Some(at(key.span().start, what))
        })
        .collect()
}

/// Returns the problem of crate `name` importing package `imported`, if any; `more` are exceptions
/// beside the general ones.
fn check_import(name: &str, imported: &str, more: Exceptions) -> Option<String> {
    if OUTSIDE.contains(&imported) {
        return Some(format!("`{imported}` is a tool of the repository: nothing imports it"));
    }
    let imported = imported.strip_prefix(PREFIX)?;
    let Some(there) = layer_of(imported) else {
        return Some(format!("imports `{imported}`, which has no layer in xtask's table"));
    };
    let Some(here) = layer_of(name) else {
        return Some(format!("`{name}` is outside the layers and imports `{imported}`"));
    };
    let is_allowed = |exceptions: Exceptions| exceptions.contains(&(name, imported));
    if there < here || is_allowed(EXCEPTIONS) || is_allowed(more) {
        return None;
    }
    Some(format!("`{name}` (layer {here}) imports `{imported}` (layer {there}): only lower layers"))
}

/// Checks that all pure crates have the same `clippy.toml`; `settings` are `(file, content)`.
pub(crate) fn check_clippy(settings: &[(String, Option<String>)]) -> Vec<Violation> {
    let Some(model) = settings.iter().find_map(|(file, text)| Some((file, text.as_ref()?))) else {
        return settings.iter().map(|(file, _)| missing(file)).collect();
    };
    let judge = |(file, text): &(String, Option<String>)| match text {
        None => Some(missing(file)),
        Some(text) if text == model.1 => None,
        Some(text) => {
            let same = text.lines().zip(model.1.lines()).take_while(|(a, b)| a == b).count();
            let what = format!("differs from {}: all pure crates carry the same", model.0);
            Some(Violation { file: file.clone(), line: same + 1, what })
        }
    };
    settings.iter().filter_map(judge).collect()
}

fn missing(file: &str) -> Violation {
    let what = "is missing: crates of layers 0 and 1 carry the strict one".to_owned();
    Violation { file: file.to_owned(), line: 1, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str) -> Vec<String> {
        check_manifest("x/Cargo.toml", name, text).iter().map(Violation::to_string).collect()
    }

    #[test]
    fn allowed_imports_pass() {
        let relay = "[dependencies]\ntradewind-net.workspace = true\nserde = \"1\"\n";
        assert!(check("relay", relay).is_empty());
        assert!(check("model", "[dependencies]\ntradewind-units = { path = \"u\" }\n").is_empty());
        assert!(check("desired", "[dependencies]\ntradewind-grant.workspace = true\n").is_empty());
    }

    #[test]
    fn import_upward_is_named_with_its_line() {
        let text = "[package]\nname = \"x\"\n\n[dependencies]\ntradewind-lab.workspace = true\n";
        let expected = "x/Cargo.toml:5: `net` (layer 2) imports `lab` (layer 4): only lower layers";
        assert_eq!(check("net", text), [expected]);
    }

    #[test]
    fn import_on_the_same_layer_is_refused() {
        let text = "[dependencies]\ntradewind-telemetry.workspace = true\n";
        assert_eq!(check("net", text).len(), 1);
        assert_eq!(check("units", "[dependencies]\ntradewind-model.workspace = true\n").len(), 1);
    }

    #[test]
    fn only_tests_of_gateways_import_relays() {
        let tests = "[dev-dependencies]\ntradewind-relay.workspace = true\n";
        assert!(check("gateway", tests).is_empty());
        assert_eq!(check("relay", &tests.replace("relay", "gateway")).len(), 1);
        assert_eq!(check("gateway", &tests.replace("dev-", "")).len(), 1);
    }

    #[test]
    fn every_kind_of_dependency_is_checked() {
        for table in [
            "dev-dependencies",
            "build-dependencies",
            "target.'cfg(unix)'.dependencies",
            "target.x86_64-unknown-linux-gnu.dev-dependencies",
        ] {
            let text = format!("[{table}]\ntradewind-cli.workspace = true\n");
            assert_eq!(check("probe", &text).len(), 1, "{table}");
        }
        let renamed = "[dependencies]\nx = { package = \"tradewind-cli\", path = \"../cli\" }\n";
        assert_eq!(check("probe", renamed).len(), 1);
        assert_eq!(check("probe", "[dependencies.tradewind-cli]\nworkspace = true\n").len(), 1);
    }

    #[test]
    fn benchmarks_import_all_and_nothing_imports_them() {
        assert!(
            check("bench/relay", "[dependencies]\ntradewind-cli.workspace = true\n").is_empty()
        );
        let text = "[dependencies]\ntradewind-bench-relay = { path = \"../bench/relay\" }\n";
        assert_eq!(check("cli", text).len(), 1);
    }

    #[test]
    fn papers_import_the_product_and_not_the_reverse() {
        let papers = "[dependencies]\ntradewind-demo.workspace = true\n";
        assert!(check("papers", papers).is_empty());
        let product = "[dependencies]\ntradewind-papers.workspace = true\n";
        assert!(["cli", "demo", "bench/relay"].iter().all(|name| check(name, product).len() == 1));
    }

    #[test]
    fn desired_imports_plan_and_not_the_reverse() {
        assert!(check("desired", "[dependencies]\ntradewind-plan.workspace = true\n").is_empty());
        assert_eq!(check("plan", "[dependencies]\ntradewind-desired.workspace = true\n").len(), 1);
    }

    #[test]
    fn crate_without_a_layer_is_named_from_both_sides() {
        assert!(check("attic", "[package]\n")[0].contains("`attic` has no layer"));
        let text = "[dependencies]\ntradewind-attic.workspace = true\n";
        assert!(check("cli", text)[0].contains("imports `attic`, which has no layer"));
    }

    #[test]
    fn repository_tools_stay_outside_the_layers() {
        let manifest = "[dependencies]\ntradewind-units.workspace = true\n";
        assert_eq!(check("xtask", manifest).len(), 1);
        assert_eq!(check("cli", "[dependencies]\nxtask = { path = \"../xtask\" }\n").len(), 1);
        assert!(check("xtask", "[dependencies]\ntoml = \"0.9\"\n").is_empty());
    }

    #[test]
    fn manifest_that_cannot_be_read_is_a_violation() {
        assert!(check("net", "[dependencies\n")[0].starts_with("x/Cargo.toml:1: cannot be read"));
    }

    #[test]
    fn pure_crates_carry_one_clippy_file() {
        let file = |name: &str, text: Option<&str>| (name.to_owned(), text.map(str::to_owned));
        assert!(check_clippy(&[file("a", Some("x\ny\n")), file("b", Some("x\ny\n"))]).is_empty());
        let other = check_clippy(&[file("a", Some("x\ny\n")), file("b", Some("x\nz\n"))]);
        assert_eq!(other[0].to_string(), "b:2: differs from a: all pure crates carry the same");
        let longer = check_clippy(&[file("a", Some("x\n")), file("b", Some("x\nz\n"))]);
        assert_eq!(longer[0].line, 2);
        assert_eq!(check_clippy(&[file("a", None), file("b", Some("x"))]).len(), 1);
        assert_eq!(check_clippy(&[file("a", None), file("b", None)]).len(), 2);
        assert!(is_pure("wan") && is_pure("units") && !is_pure("net") && !is_pure("xtask"));
    }

    #[test]
    fn table_and_drawing_name_exactly_the_existing_crates() {
        let members = members(include_str!("../../Cargo.toml")).unwrap();
        let mut there: Vec<&str> =
            members.iter().filter_map(|member| member.strip_prefix(PRODUCT)).collect();
        let mut in_the_table: Vec<&str> =
            LAYERS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        // Lines such as `layer 3  relay/   ...`, and those below without the layer's number.
        let architecture = include_str!("../../ARCHITECTURE.md");
        let drawing = architecture.split("```").nth(1).unwrap();
        let drawn = drawing.trim_start().lines().take_while(|line| !line.is_empty());
        let mut drawn: Vec<&str> = drawn
            .filter_map(|line| line.split_whitespace().find_map(|word| word.strip_suffix('/')))
            .collect();
        for names in [&mut there, &mut in_the_table, &mut drawn] {
            names.sort_unstable();
        }
        assert_eq!(in_the_table, there);
        assert_eq!(drawn, there);
    }

    #[test]
    fn members_come_from_the_workspace() {
        let text = "[workspace]\nmembers = [\"units\", \"cli\"]\n";
        assert_eq!(members(text).unwrap(), ["units", "cli"]);
        assert!(members("[package]\n").is_err());
    }
}
