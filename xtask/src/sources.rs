//! The rules for every Rust file of the repository, and the columns and tables of its Markdown
//! files.

use crate::Violation;
use crate::lexer::split;

/// Most columns of a line. Tables of comments may be wider, since no row of one can be broken.
const MAX_COLUMNS: usize = 100;
/// Most lines of a file before its tests.
const MAX_LINES: usize = 600;
/// The folders that may contain `unsafe`: the kernel's interface, and the processor's vector
/// instructions.
const MAY_BE_UNSAFE: &[&str] = &["crates/net/", "crates/fec/src/kernel/"];
/// The line at which the tests of a file begin.
const TESTS: &str = "#[cfg(test)]";
/// The attribute of a test that lacks data: it is shown with its reason and not counted as passed.
const MAY_BE_IGNORED: &str = "#[ignore = \"SKIPPED: needs ";
/// Words in comments, and macros in code, that mark unfinished work.
const UNDONE_WORDS: &[&str] = &["TODO", "FIXME", "XXX", "HACK"];
const UNDONE_MACROS: &[&str] = &["todo!", "unimplemented!"];

/// Checks the Rust file `file` (relative to the repository) with content `text`.
pub(crate) fn check(file: &str, text: &str) -> Vec<Violation> {
    let violation = |line, what: String| Violation { file: file.to_owned(), line, what };
    let mut violations = Vec::new();
    if !text.starts_with("//!") {
        violations.push(violation(1, "opens without `//!` that says what it models".to_owned()));
    }
    let split = split(text);
    if let Some(line) = line_above_limit(file, &split.code) {
        let what = format!("more than {MAX_LINES} lines before the tests: split it by ideas");
        violations.push(violation(line, what));
    }
    for (index, (code, line)) in split.code.lines().zip(text.lines()).enumerate() {
        let mut add = |what: String| violations.push(violation(index + 1, what));
        if has_word(code, "unsafe") && !MAY_BE_UNSAFE.iter().any(|place| file.starts_with(place)) {
            add(format!("`unsafe` outside {}", MAY_BE_UNSAFE.join(", ")));
        }
        if is_ignored(code) && !line.trim_start().starts_with(MAY_BE_IGNORED) {
            add(format!("an ignored test: run it, or say what it lacks: `{MAY_BE_IGNORED}..\"]`"));
        }
        if let Some(name) = UNDONE_MACROS.iter().find(|name| has_word(code, name)) {
            add(format!("`{name}`: finish it or leave it out"));
        }
    }
    for (index, comment) in split.comments.lines().enumerate() {
        if let Some(word) = UNDONE_WORDS.iter().find(|word| has_word(comment, word)) {
            let what = format!("`{word}`: do it, or open an issue");
            violations.push(violation(index + 1, what));
        }
    }
    violations.extend(long_lines(file, text));
    violations
}

/// Checks the Markdown file `file` (relative to the repository) with content `text`.
pub(crate) fn check_markdown(file: &str, text: &str) -> Vec<Violation> {
    let mut violations = long_lines(file, &outside_code(text).join("\n"));
    violations.extend(rows_without_heading(file, text));
    violations
}

/// Returns the first rows of what is meant as a table and is none: there is no heading with a rule
/// under it, as after a blank line within a table.
fn rows_without_heading(file: &str, text: &str) -> Vec<Violation> {
    let is_rule =
        |line: &str| line.trim().starts_with('|') && line.chars().all(|c| "|-: ".contains(c));
    let lines = outside_code(text);
    let is_row = |line: Option<&&str>| {
        line.is_some_and(|line| line.trim().starts_with('|') && line.trim().ends_with('|'))
    };
    let firsts = (0..lines.len()).filter(|at| {
        is_row(lines.get(*at)) && !at.checked_sub(1).is_some_and(|before| is_row(lines.get(before)))
    });
    let wrong = firsts.filter(|at| !lines.get(at + 1).is_some_and(|next| is_rule(next)));
    let what = "a table's row without a heading: take out the blank line before it".to_owned();
    wrong.map(|at| Violation { file: file.to_owned(), line: at + 1, what: what.clone() }).collect()
}

/// Returns the lines of a Markdown text; those of fenced and indented code are empty.
pub(crate) fn outside_code(text: &str) -> Vec<&str> {
    let mut is_fenced = false;
    text.lines()
        .map(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_fenced ^= is_fence;
            let is_code = is_fenced || is_fence || line.starts_with("    ");
            if is_code { "" } else { line }
        })
        .collect()
}

/// Returns the lines that are too long, rows of tables aside.
fn long_lines(file: &str, text: &str) -> Vec<Violation> {
    let is_row =
        |line: &str| line.trim_start().trim_start_matches(['/', '!', ' ']).starts_with('|');
    let lines = text.lines().enumerate();
    let long = lines.filter(|(_, line)| line.chars().count() > MAX_COLUMNS && !is_row(line));
    let what = format!("more than {MAX_COLUMNS} columns: break the line");
    long.map(|(index, _)| Violation { file: file.to_owned(), line: index + 1, what: what.clone() })
        .collect()
}

/// Returns the first line above the limit, if the part before the tests is that long. Files that
/// are tests as a whole may be longer.
fn line_above_limit(file: &str, code: &str) -> Option<usize> {
    if file.contains("/tests/") {
        return None;
    }
    let before_tests = code.lines().take_while(|line| line.trim_end() != TESTS).count();
    (before_tests > MAX_LINES).then_some(MAX_LINES + 1)
}

fn is_ignored(code: &str) -> bool {
    let attribute = code.trim_start();
    attribute.starts_with("#[ignore")
        || (attribute.contains("cfg_attr(") && has_word(code, "ignore"))
}

/// Returns whether `text` holds `word`, not as a part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_lines(file: &str, text: &str) -> Vec<String> {
        check(file, text).iter().map(Violation::to_string).collect()
    }

    #[test]
    fn good_file_has_no_violations() {
        let text =
            "//! Says what it models: `unsafe`, `ignore`, `todo!`.\n#![allow(unsafe_code)]\n";
        assert!(check_lines("crates/probe/src/x.rs", text).is_empty());
    }

    #[test]
    fn file_begins_with_module_docs() {
        assert!(check_lines("a.rs", "use std::fs;\n")[0].starts_with("a.rs:1: opens without"));
        assert_eq!(check_lines("a.rs", "").len(), 1);
    }

    #[test]
    fn unsafe_lives_in_net_alone() {
        let text = "//! x\n// an unsafe word\nlet s = \"unsafe\";\nunsafe { f() }\n";
        assert_eq!(
            check_lines("a/src/x.rs", text),
            ["a/src/x.rs:4: `unsafe` outside crates/net/, crates/fec/src/kernel/"]
        );
        assert!(check_lines("crates/net/src/x.rs", text).is_empty());
        assert_eq!(check_lines("planet/src/x.rs", text).len(), 1);
        assert_eq!(check_lines("a.rs", "//! x\n#[unsafe(no_mangle)]\n").len(), 1);
    }

    #[test]
    fn ignored_tests_are_violations() {
        assert_eq!(check_lines("a.rs", "//! x\n#[test]\n#[ignore]\nfn f() {}\n").len(), 1);
        assert_eq!(check_lines("a.rs", "//! x\n    #[ignore = \"slow\"]\n").len(), 1);
        assert_eq!(check_lines("a.rs", "//! x\n#[cfg_attr(miri, ignore)]\n").len(), 1);
        assert!(check_lines("a.rs", "//! x\nlet ignore = 1;\n").is_empty());
        assert!(check_lines("a.rs", "//! x\n#[ignore = \"SKIPPED: needs data\"]\n").is_empty());
    }

    #[test]
    fn unfinished_marks_are_violations() {
        let words = UNDONE_WORDS.iter().map(|word| format!("//! x\n// {word}: later\n"));
        let macros = UNDONE_MACROS.iter().map(|name| format!("//! x\n{name}()\n"));
        for text in words.chain(macros) {
            let found = check_lines("a.rs", &text);
            assert_eq!(found.len(), 1, "{text}");
            assert!(found[0].starts_with("a.rs:2: "), "{found:?}");
        }
        assert!(check_lines("a.rs", "//! x\nlet s = \"TODO\";\n").is_empty());
    }

    #[test]
    fn long_lines_are_named_and_tables_may_be_wide() {
        let long = "x".repeat(MAX_COLUMNS + 1);
        let found = check_lines("a.rs", &format!("//! x\n// {long}\n/// | {long} |\n"));
        assert_eq!(found, ["a.rs:2: more than 100 columns: break the line"]);
        let text = format!("{long}\n```\n{long}\n```\n| {long} |\n|---|\n{long}\n    {long}\n");
        let found = check_markdown("a.md", &text);
        assert_eq!(found.iter().map(|found| found.line).collect::<Vec<_>>(), [1, 7]);
    }

    #[test]
    fn rows_without_a_heading_are_no_table() {
        let lines_of = |text: &str| {
            check_markdown("a.md", text).iter().map(|found| found.line).collect::<Vec<_>>()
        };
        assert_eq!(lines_of("| a | b |\n|---|:-:|\n| 1 | 2 |\n\n| 3 | 4 |\n| 5 | 6 |\n"), [5]);
        assert_eq!(lines_of("| a |\n|---|\n| 1 |\n\ntext\n\n| b |\n|:--|\n| 2 |\n"), [0; 0]);
        assert_eq!(lines_of("- a logarithm\n  |ln x|, no row\n"), [0; 0]);
        assert_eq!(lines_of("```\n| no table |\n```\n- x\n  | a |\n  |---|\n"), [0; 0]);
    }

    #[test]
    fn long_files_are_named_and_tests_do_not_count() {
        let long = format!("//! x\n{}", "f();\n".repeat(MAX_LINES));
        assert_eq!(check("a.rs", &long)[0].line, MAX_LINES + 1);
        let tests = format!("//! x\n#[cfg(test)]\n{}", "f();\n".repeat(MAX_LINES));
        assert!(check_lines("a.rs", &tests).is_empty());
        assert!(check_lines("a/tests/b.rs", &long).is_empty());
    }
}
