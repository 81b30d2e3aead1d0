//! Problem files from the disk, with the tables beside them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use tradewind_model::Catalogue;
use tradewind_plan::answer::Asked;
use tradewind_plan::file::{self, FileError, ProblemFile};
use tradewind_plan::forecast::Summary;
use tradewind_plan::{Answer, Problem, ProblemError, Status};
use tradewind_units::Money;

use super::expected;
use crate::output::{self, BadFile, FAILED, read_text};

/// A parsed problem file, with its text for later explanations of its plan.
pub(crate) struct Read {
    pub(crate) asked: Asked,
    pub(crate) file: ProblemFile,
    /// The forecast of the flows, if they are expected ones.
    pub(crate) forecast: Option<Summary>,
}

/// A function that returns the text of a table by its name in a problem file, or the reason why it
/// cannot.
pub(crate) type Load<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;
/// A function that parses a problem from a file's text and its tables.
pub(crate) type Parse<'a> = dyn FnMut(&str, &mut Load<'_>) -> Result<ProblemFile, FileError> + 'a;

fn parse(text: &str, load: &mut Load<'_>) -> Result<ProblemFile, FileError> {
    file::parse(text, &Catalogue::builtin(), load)
}

impl Read {
    /// Reads a file and the tables that it names, which lie beside it.
    pub(crate) fn from_file(path: &Path, budget: Option<Money>) -> Result<Self, BadFile> {
        Self::by(path, budget, &mut parse)
    }

    /// Reads a file like [`Read::from_file`], parsed by `by`.
    pub(crate) fn by(
        path: &Path,
        budget: Option<Money>,
        by: &mut Parse<'_>,
    ) -> Result<Self, BadFile> {
        let name = path.display().to_string();
        let text = read_text(path).map_err(|error| BadFile(output::one_line(&error)))?;
        let beside = path.parent().unwrap_or(Path::new("."));
        let mut load =
            |table: &str| read_text(&beside.join(table)).map_err(|error| output::one_line(&error));
        Self::new((name, text), budget, &mut load, by)
    }

    /// Reads the problem in a plan's file, with the flows that the plan is for.
    pub(crate) fn from_asked(asked: &Asked, budget: Option<Money>) -> Result<Self, BadFile> {
        let tables: &BTreeMap<String, String> = &asked.tables;
        let mut load = |table: &str| {
            tables.get(table).cloned().ok_or_else(|| "the plan's file lacks this table".to_owned())
        };
        let texts = (asked.file.clone(), asked.text.clone());
        let Some(flows) = &asked.flows else {
            return Self::new(texts, budget, &mut load, &mut parse);
        };
        let mut by = |text: &str, load: &mut Load<'_>| expected::of_stored(text, flows, load);
        let mut read = Self::new(texts, budget, &mut load, &mut by)?;
        read.asked.flows = asked.flows.clone();
        Ok(read)
    }

    fn new(
        (name, text): (String, String),
        budget: Option<Money>,
        load: &mut Load<'_>,
        by: &mut Parse<'_>,
    ) -> Result<Self, BadFile> {
        let mut file = by(&text, load).map_err(|error| BadFile(format!("{name}: {error}")))?;
        file.inputs.budget = budget.unwrap_or(file.inputs.budget);
        let asked = Asked { file: name, text, tables: file.tables.clone(), flows: None };
        Ok(Self { asked, file, forecast: None })
    }

    /// Prints the basis of the figures, where that is no measurement.
    pub(crate) fn note_basis(&self) {
        let guessed = self.file.legs_by_distance();
        if guessed > 0 {
            let all = self.file.inputs.legs.len();
            output::note(format_args!(
                "note: the round-trip times of {guessed} of {all} legs follow from distance \
                 (docs/explanation/rtt-model.md), not from measurements"
            ));
        }
        for note in &self.file.notes {
            output::note(format_args!("note: {note}"));
        }
        for flow in &self.file.must_move {
            output::note(format_args!(
                "note: flow `{flow}` runs over a region that is none of `regions`: any plan moves \
                 it, for `move_usd`"
            ));
        }
    }

    /// Builds the problem, or returns the reason why it has no plan for any algorithm.
    pub(crate) fn problem(&self) -> Result<Result<Problem, String>, BadFile> {
        let inputs = self.file.inputs.clone();
        let is_of_packets = inputs.flows.is_empty() && !self.file.packets.flows.is_empty();
        let made =
            if is_of_packets { Problem::without_streams(inputs) } else { Problem::new(inputs) };
        match made {
            Ok(problem) => {
                for flow in problem.beyond_longest() {
                    output::note(format_args!(
                        "note: a path of flow `{flow}` takes a hundred years or more: such times \
                         are neither told nor compared exactly"
                    ));
                }
                Ok(Ok(problem))
            }
            Err(error @ (ProblemError::NoPath { .. } | ProblemError::Deadline { .. })) => {
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(BadFile(format!("{}: {error}", self.asked.file))),
        }
    }

    /// Prints the reason why there is no plan, where there is nothing else to show.
    pub(crate) fn refuse(&self, status: Status, reason: impl std::fmt::Display) -> ExitCode {
        output::complain(format_args!("{}: {}: {reason}", self.asked.file, status.as_str()));
        FAILED.into()
    }

    /// Returns the answer to a problem without paths.
    pub(crate) fn infeasible(&self, algorithm: &str, reason: String) -> Answer {
        let inputs = &self.file.inputs;
        Answer::without_plan(inputs.objective, inputs.budget, Status::Infeasible, algorithm, reason)
    }
}
