//! The way from commands to the controller: its address, its answers.

use std::path::PathBuf;

use serde::Serialize;
use tradewind_controller::{Client, Folder};

use crate::output::{self, Format, TableFormat, csv};

/// The default folder of the controller.
pub(crate) const FOLDER: &str = "net";

/// The controller to ask.
#[derive(clap::Args)]
pub(crate) struct ControllerArgs {
    /// The controller's folder, or one with its admin.toml
    #[arg(long, value_name = "DIR", env = "TRADEWIND_CONTROLLER", default_value = FOLDER)]
    controller: PathBuf,
}

impl ControllerArgs {
    /// Returns the controller's folder.
    pub(crate) fn folder(&self) -> Folder {
        Folder::new(&self.controller)
    }

    /// Returns a client of the controller.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&self.folder().admin()?)?)
    }
}

/// The form of an answer that is no table.
#[derive(clap::Args)]
pub(crate) struct OutputArgs {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl OutputArgs {
    /// Prints `answer` as JSON, or by `table`.
    pub(crate) fn print<T: Serialize>(
        &self,
        answer: &T,
        table: impl FnOnce(&T) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self.output {
            Format::Json => output::json(answer),
            Format::Table => table(answer),
        }
    }
}

/// The form of an answer that is a table.
#[derive(clap::Args)]
pub(crate) struct TableArgs {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: TableFormat,
}

impl TableArgs {
    /// Prints `answer` as JSON, these columns of `rows` as CSV, or all of it by `table`.
    pub(crate) fn print<T: Serialize, R: Serialize>(
        &self,
        answer: &T,
        columns: &[&str],
        rows: &[R],
        table: impl FnOnce(&T) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self.output {
            TableFormat::Json => output::json(answer),
            TableFormat::Csv => csv::print(columns, rows),
            TableFormat::Table => table(answer),
        }
    }
}
