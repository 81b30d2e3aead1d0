//! The way from commands to the controller: its address, its answers.

use std::path::PathBuf;

use tradewind_controller::{Client, Folder};

use crate::output::{self, Format};

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
    /// Returns a client of the controller.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&Folder::new(&self.controller).admin()?)?)
    }
}

/// The form of an answer.
#[derive(clap::Args)]
pub(crate) struct OutputArgs {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl OutputArgs {
    /// Prints `answer` as JSON, or by `table`.
    pub(crate) fn print<T: serde::Serialize>(
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
