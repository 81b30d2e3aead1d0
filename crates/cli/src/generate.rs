//! `tradewind generate`: shell completions, manual pages and the reference of commands, made of the
//! definitions that parse the command line, and the reference of configurations, made of the types
//! that parse the files; and the API's own document.

mod keys;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, Command};
use clap_complete::Shell;

use crate::output::{self, Outcome};

/// Most columns of a line of the reference; rows of tables may be wider.
const COLUMNS: usize = 100;

/// Heading of the reference's part that describes what several commands have.
const SHARED: &str = "Options of several commands";

#[derive(clap::Subcommand)]
pub(crate) enum GenerateCommand {
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages, one for each command
    Man {
        /// The folder, which is made if it is not there
        folder: PathBuf,
    },
    /// Print the OpenAPI document of the controller's API, as `GET /v1/openapi.json` does
    Openapi,
    /// Write the reference of commands and configurations in Markdown (docs/reference)
    Reference {
        /// The folder, which is made if it is not there
        folder: PathBuf,
    },
}

/// Generates what is asked from the whole command line `whole`.
pub(crate) fn run(asked: GenerateCommand, mut whole: Command) -> Outcome {
    match asked {
        GenerateCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut whole, "tradewind", &mut script);
            output::line(String::from_utf8(script)?.trim_end())?;
        }
        GenerateCommand::Man { folder } => {
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            clap_mangen::generate_to(whole, &folder)
                .with_context(|| folder.display().to_string())?;
        }
        GenerateCommand::Openapi => output::json(&tradewind_controller::openapi())?,
        GenerateCommand::Reference { folder } => {
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            let commands = ("commands.md", reference(whole));
            for (name, page) in [commands].into_iter().chain(keys::pages()) {
                let file = folder.join(name);
                fs::write(&file, format!("{}\n", page.trim_end()))
                    .with_context(|| file.display().to_string())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the reference of all commands in Markdown.
fn reference(mut whole: Command) -> String {
    whole.build();
    let mut page = String::from(
        "# Commands\n\n<!-- Made by `make reference`: change the commands instead. -->\n\n",
    );
    paragraphs(
        &mut page,
        "Each command has `--help`, and `-h`, which is shorter. `tradewind generate man` writes \
         manual pages, `tradewind generate completions` what shells need to complete commands.",
    );
    paragraphs(&mut page, &help_of(whole.get_after_help()));
    let shared = shared_rows(&whole);
    let _ = writeln!(page, "## {SHARED}\n");
    table(&mut page, &shared);
    for command in shown(&whole) {
        section(&mut page, command, 2, &shared);
    }
    page
}

/// Adds a command's section, and those of its own commands.
fn section(page: &mut String, command: &Command, level: usize, shared: &[String]) {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let _ = writeln!(page, "{} {name}\n", "#".repeat(level));
    paragraphs(page, &help_of(command.get_long_about().or(command.get_about())));
    if !command.is_subcommand_required_set() {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:");
        let lines: Vec<&str> = usage.lines().map(str::trim).collect();
        let _ = writeln!(page, "```text\n{}\n```\n", lines.join("\n").trim());
    }
    let (elsewhere, here): (Vec<&Arg>, Vec<&Arg>) =
        arguments(command).partition(|argument| shared.contains(&row(argument)));
    table(page, &here.into_iter().map(row).collect::<Vec<_>>());
    if !elsewhere.is_empty() {
        let names: Vec<String> = elsewhere.iter().map(|arg| code(&arg.to_string())).collect();
        let anchor = SHARED.to_lowercase().replace(' ', "-");
        let text = format!("{}: [as elsewhere](#{anchor}).", names.join(", "));
        wrapped(page, &text);
    }
    for command in shown(command) {
        section(page, command, level + 1, shared);
    }
}

/// The row of an option, and the number of commands that have it.
struct OptionRow {
    name: String,
    row: String,
    count: usize,
}

/// Returns the rows of the options that several commands have, in the order of their appearance. Of
/// options of one name with different meanings, the most frequent is among them.
fn shared_rows(whole: &Command) -> Vec<String> {
    fn add(options: &mut Vec<OptionRow>, command: &Command) {
        for option in arguments(command).filter(|argument| !argument.is_positional()) {
            let new = row(option);
            match options.iter_mut().find(|known| known.row == new) {
                Some(known) => known.count += 1,
                None => options.push(OptionRow { name: option.to_string(), row: new, count: 1 }),
            }
        }
        for command in shown(command) {
            add(options, command);
        }
    }
    let mut options = Vec::new();
    add(&mut options, whole);
    let is_first = |index: usize, option: &OptionRow| {
        let mut others = options.iter().enumerate().filter(|(_, other)| other.name == option.name);
        others.all(|(at, other)| {
            other.count < option.count || (other.count == option.count && at >= index)
        })
    };
    let shared = options
        .iter()
        .enumerate()
        .filter(|(index, option)| option.count > 1 && is_first(*index, option));
    shared.map(|(_, option)| option.row.clone()).collect()
}

/// Returns the commands of a command that help shows, without `help` itself.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// Returns the arguments that help shows, without help and version, which are everywhere.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|argument| {
        !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
    })
}

fn table(page: &mut String, rows: &[String]) {
    if rows.is_empty() {
        return;
    }
    page.push_str("| argument | meaning |\n|---|---|\n");
    for row in rows {
        let _ = writeln!(page, "{row}");
    }
    page.push('\n');
}

/// Returns an argument's row of a table.
fn row(argument: &Arg) -> String {
    let short = argument.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    let name = code(&argument.to_string());
    let mut help = marked(&help_of(argument.get_long_help().or(argument.get_help())));
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set() && argument.get_action().takes_values())
        .map(|value| {
            let meaning = value.get_help().map(|help| format!(" ({})", marked(&help.to_string())));
            format!("{}{}", code(value.get_name()), meaning.unwrap_or_default())
        })
        .collect();
    if !values.is_empty() {
        let _ = write!(help, ": {}", values.join(", "));
    }
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| code(&value.to_string_lossy())).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        let _ = write!(help, ". Default: {}", defaults.join(" "));
    }
    let help = help.replace('|', "\\|").replace("\n\n", "<br>").replace('\n', " ");
    format!("| {short}{} | {help} |", name.replace('|', "\\|"))
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

fn help_of(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// Adds the paragraphs of a help text.
fn paragraphs(page: &mut String, text: &str) {
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        wrapped(page, &marked(paragraph));
    }
}

/// Adds a paragraph in lines of at most [`COLUMNS`].
fn wrapped(page: &mut String, paragraph: &str) {
    let mut columns = 0;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        if columns > 0 && columns + 1 + length > COLUMNS {
            page.push('\n');
            columns = 0;
        } else if columns > 0 {
            page.push(' ');
            columns += 1;
        }
        page.push_str(word);
        columns += length;
    }
    page.push_str("\n\n");
}

/// Returns a help text as Markdown: its marks are escaped outside code, and the pages of the book
/// that it names are linked.
fn marked(text: &str) -> String {
    let mut is_code = false;
    let mut escaped = String::new();
    for c in text.chars() {
        is_code ^= c == '`';
        if !is_code && matches!(c, '<' | '*') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    linked(&escaped)
}

/// Returns a text with links to the pages that it names as `docs/FOLDER/PAGE.md`.
fn linked(text: &str) -> String {
    let mut linked = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("docs/") {
        linked.push_str(before);
        rest = match after.split_once(".md") {
            Some((page, after)) if !page.contains(char::is_whitespace) => {
                let _ = write!(linked, "[{page}](../{page}.md)");
                after
            }
            _ => {
                linked.push_str("docs/");
                after
            }
        };
    }
    linked + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_escaped_outside_code() {
        assert_eq!(marked("a <b> `c <d>` e|f *.g"), "a \\<b> `c <d>` e|f \\*.g");
    }

    #[test]
    fn named_pages_are_linked() {
        let text = "Read docs/how-to/plan.md, docs/a.md; not docs/ or x.md";
        let expected = "Read [how-to/plan](../how-to/plan.md), [a](../a.md); not docs/ or x.md";
        assert_eq!(marked(text), expected);
    }

    #[test]
    fn paragraphs_are_wrapped() {
        let mut page = String::new();
        paragraphs(&mut page, &format!("{} b\n\nc", "a".repeat(COLUMNS - 1)));
        assert_eq!(page, format!("{}\nb\n\nc\n\n", "a".repeat(COLUMNS - 1)));
    }

    #[test]
    fn arguments_of_several_commands_are_described_once() {
        let form = || Arg::new("form").long("form").default_value("a|b").help("The form");
        let own = Arg::new("own").short('o').long("own").required(true).help("The own");
        let whole = Command::new("whole")
            .subcommand(Command::new("one").about("Do one").arg(form()).arg(own))
            .subcommand(Command::new("two").about("Do two").arg(form()));
        let page = reference(whole);
        assert_eq!(page.matches("| `--form <form>` | The form. Default: `a\\|b` |").count(), 1);
        let one = "## whole one\n\nDo one\n\n```text\nwhole one [OPTIONS] --own <own>\n```\n\n\
                   | argument | meaning |\n|---|---|\n| `-o`, `--own <own>` | The own |\n\n\
                   `--form <form>`: [as elsewhere](#options-of-several-commands).\n\n";
        assert!(page.contains(one), "{page}");
    }
}
