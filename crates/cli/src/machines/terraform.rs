//! Terraform, run in the folder of a file of machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::output::BadFile;

/// The document's name in the folder.
const DOCUMENT: &str = "main.tf.json";
/// The name of a plan that is only looked at.
const PLAN: &str = "look.tfplan";
/// The kinds of resources that are machines, one of each cloud.
const MACHINES: [&str; 4] =
    ["aws_instance", "azurerm_linux_virtual_machine", "google_compute_instance", "ibm_is_instance"];

/// A resource that Terraform has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) kind: String,
    pub(super) name: String,
    /// The cloud's id of it.
    pub(super) id: String,
}

/// All that Terraform has made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) resources: Vec<Resource>,
    /// Public addresses, by machine.
    pub(super) addresses: BTreeMap<String, String>,
}

impl State {
    /// Returns the resource of a machine.
    pub(super) fn machine(&self, name: &str) -> Option<&Resource> {
        self.machines().find(|resource| resource.name == name)
    }

    /// Returns all machines.
    pub(super) fn machines(&self) -> impl Iterator<Item = &Resource> {
        self.resources.iter().filter(|resource| MACHINES.contains(&resource.kind.as_str()))
    }

    /// Reads the values of a state, as `terraform show -json` writes them.
    fn of(state: &Value) -> Self {
        let values = &state["values"];
        let resources = values["root_module"]["resources"].as_array().map(Vec::as_slice);
        let managed = resources.unwrap_or_default().iter().filter(|it| it["mode"] == "managed");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = |it: &Value| Resource {
            kind: text(&it["type"]),
            name: text(&it["name"]),
            id: text(&it["values"]["id"]),
        };
        let addresses = values["outputs"]["addresses"]["value"].as_object();
        let pairs = addresses.into_iter().flatten();
        Self {
            resources: managed.map(resource).collect(),
            addresses: pairs.map(|(name, address)| (name.clone(), text(address))).collect(),
        }
    }
}

/// Terraform in a folder.
pub(super) struct Terraform {
    program: PathBuf,
    folder: PathBuf,
    /// The folder's lock, which it holds while it runs.
    lock: Option<File>,
}

/// The result of a look into the clouds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Refreshed {
    /// All that is still there.
    pub(super) state: State,
    /// Machines that Terraform makes anew by itself, since something of them cannot change.
    pub(super) forced: BTreeSet<String>,
}

impl Refreshed {
    /// Reads a plan, as `terraform show -json` writes it.
    fn of(plan: &Value) -> Self {
        let changes = plan["resource_changes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_anew = |change: &&Value| {
            let actions = change["change"]["actions"].as_array();
            let has = |word: &str| actions.is_some_and(|all| all.iter().any(|it| it == word));
            let is_machine = MACHINES.iter().any(|kind| change["type"] == *kind);
            is_machine && has("create") && has("delete")
        };
        let anew = changes.iter().filter(is_anew);
        let forced = anew.filter_map(|change| Some(change["name"].as_str()?.to_owned())).collect();
        Self { state: State::of(&plan["prior_state"]), forced }
    }
}

impl Terraform {
    pub(super) fn new(program: &Path, folder: &Path) -> Self {
        Self { program: program.to_owned(), folder: folder.to_owned(), lock: None }
    }

    /// Has it hold a lock while it runs.
    pub(super) fn holding(self, lock: Option<File>) -> Self {
        Self { lock, ..self }
    }

    /// Returns what has been made; nothing where nothing was ever begun.
    pub(super) fn state(&self) -> anyhow::Result<State> {
        if !self.folder.join(DOCUMENT).exists() {
            return Ok(State::default());
        }
        // It may be gone, as in a copy.
        if !self.folder.join(".terraform").exists() {
            self.run(&["init", "-input=false"], None)?;
        }
        Ok(State::of(&self.show(&["show", "-json"])?))
    }

    /// Returns what is still there of what has been made: looks into the clouds, changes nothing.
    pub(super) fn refreshed(&self) -> anyhow::Result<Refreshed> {
        let plan = self.folder.join(PLAN);
        self.run(&["plan", "-input=false", "-out", PLAN], None)?;
        let shown = self.show(&["show", "-json", PLAN]);
        std::fs::remove_file(&plan).with_context(|| plan.display().to_string())?;
        Ok(Refreshed::of(&shown?))
    }

    fn show(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let output = self.command(arguments).stderr(Stdio::inherit()).output();
        let output = output.with_context(|| self.missing())?;
        if !output.status.success() {
            bail!("{} does not show its state: {}", self.program.display(), output.status);
        }
        serde_json::from_slice(&output.stdout).context("terraform's state cannot be read")
    }

    /// Writes the document and fetches the providers.
    pub(super) fn prepare(&self, document: &Value) -> anyhow::Result<()> {
        let file = self.folder.join(DOCUMENT);
        let text = serde_json::to_string_pretty(document)? + "\n";
        crate::output::file::write_whole(&file, &text)?;
        self.run(&["init", "-input=false"], None)
    }

    /// Makes all as the document has it; makes `replaced` anew.
    pub(super) fn apply(
        &self,
        invites: &BTreeMap<String, String>,
        replaced: &[&Resource],
    ) -> anyhow::Result<()> {
        let replace =
            replaced.iter().map(|resource| format!("-replace={}.{}", resource.kind, resource.name));
        let mut arguments: Vec<String> =
            ["apply", "-auto-approve", "-input=false"].map(str::to_owned).into();
        arguments.extend(replace);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.run(&arguments, Some(invites))
    }

    /// Takes all away.
    pub(super) fn destroy(&self) -> anyhow::Result<()> {
        self.run(&["destroy", "-auto-approve", "-input=false"], None)
    }

    /// Runs it, with its own words on standard error. Invites go by the environment: arguments are
    /// seen by all.
    fn run(
        &self,
        arguments: &[&str],
        invites: Option<&BTreeMap<String, String>>,
    ) -> anyhow::Result<()> {
        let mut command = self.command(arguments);
        if let Some(invites) = invites {
            command.env("TF_VAR_invites", serde_json::to_string(invites)?);
        }
        let status = command.stdout(std::io::stderr()).status().with_context(|| self.missing())?;
        if !status.success() {
            let what = arguments.first().copied().unwrap_or_default();
            bail!("`terraform {what}` failed, see above; run again to go on where it ended");
        }
        Ok(())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // It asks for nothing: its standard input only keeps the lock.
        let lock = self.lock.as_ref().and_then(|lock| lock.try_clone().ok());
        let input = lock.map_or_else(Stdio::null, Stdio::from);
        command.args(arguments).arg("-no-color").current_dir(&self.folder).stdin(input);
        command.env("TF_IN_AUTOMATION", "1");
        command
    }

    fn missing(&self) -> BadFile {
        let program = self.program.display();
        BadFile(format!("cannot run `{program}`: install Terraform, or name it by --terraform"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn state_is_read() {
        let state = json!({"format_version": "1.0", "values": {
        "outputs": {"addresses": {"sensitive": false, "value": {"a": "192.0.2.7"}}},
        "root_module": {"resources": [
            {"mode": "managed", "type": "aws_instance", "name": "a", "values": {"id": "i-1"}},
            {"mode": "managed", "type": "aws_vpc", "name": "r", "values": {"id": "vpc-1"}},
            {"mode": "data", "type": "aws_ami", "name": "r", "values": {"id": "ami-1"}}
        ]}}});
        let state = State::of(&state);
        let ids: Vec<&str> = state.resources.iter().map(|it| it.id.as_str()).collect();
        assert_eq!(ids, ["i-1", "vpc-1"]);
        assert_eq!(state.machine("a").unwrap().kind, "aws_instance");
        assert_eq!(state.machine("r"), None);
        assert_eq!(state.addresses["a"], "192.0.2.7");
        let change = |name: &str, kind: &str, actions: &[&str]| {
            let change = json!({"actions": actions});
            json!({"type": kind, "name": name, "change": change})
        };
        let plan = json!({"prior_state": {}, "resource_changes": [
            change("a", "aws_instance", &["delete", "create"]),
            change("b", "aws_instance", &["update"]),
            change("c", "aws_vpc", &["create", "delete"]),
        ]});
        assert_eq!(Refreshed::of(&plan).forced, BTreeSet::from(["a".to_owned()]));
        assert_eq!(State::of(&json!({"format_version": "1.0"})), State::default());
    }
}
