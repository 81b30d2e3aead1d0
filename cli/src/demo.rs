//! demo
use crate::output::Outcome;
#[derive(clap::Args)]
pub(crate) struct DemoArgs {}
pub(crate) fn run(_args: &DemoArgs) -> Outcome {
    anyhow::bail!("x")
}
