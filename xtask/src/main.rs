//! Checks of this repository that no other tool makes: `cargo run -p xtask -- layers`; all tests:
//! `test`; the lab's figures: `test-lab`; and a run of everything that the docs quote: `smoke`.
//!
//! | module | checks |
//! |---|---|
//! | [`circles`] | no large circle of imports between the files of a crate |
//! | [`spread`] | no type with methods in many files |
//! | [`layers`] | no crate imports upward; pure crates carry the strict `clippy.toml` |
//! | [`sources`] | the rules for every Rust file, and the columns of Markdown |
//! | [`links`] | links of Markdown files, and the book's table of contents |
//! | [`mod@test`] | all tests, with a second run of failed ones that use the kernel |
//! | [`test_lab`] | the promised figures of real runs in the lab |
//! | [`smoke`] | every bench, example and experiment that the docs quote, in its shortest form |
//! | [`modules`] | (reads the modules of a crate) |
//! | [`lexer`] | (separates code, comments and literals) |
//!
//! A violation is one line, `file:line: what and what would be right`. The crate belongs to no
//! layer and imports nothing of ours.

mod circles;
mod layers;
mod lexer;
mod links;
mod modules;
mod smoke;
mod sources;
mod spread;
mod test;
mod test_lab;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const USAGE: &str = "usage: cargo run -p xtask -- layers [FOLDER] | test | \
     test-lab BINARY [VERDICT_FILE [STEP]...] | \
     smoke BINARY";

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    /// The file, relative to the repository.
    file: String,
    /// The line, from 1.
    line: usize,
    /// The problem, and its remedy.
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// Does `work` on all items, on as many at once as there are processors; returns its results in
/// order.
fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let slots: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let take_turns = || {
        while let Some((item, slot)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            items.get(at).zip(slots.get(at))
        } {
            *slot.lock().expect("nobody panics with it") = Some(work(item));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(take_turns);
        }
    });
    let results = slots.into_iter().map(|slot| slot.into_inner().expect("nobody panics with it"));
    results.map(|result| result.expect("all were worked on")).collect()
}

/// Returns Cargo, to be run at `root`.
///
/// It does not inherit what Cargo told this program about its own package: build scripts that look
/// at such variables would run again whenever Cargo is called from here and by hand in turns, and
/// all that is built on them (`ring`, and with it most of the workspace) would be rebuilt.
fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    for (name, _) in std::env::vars_os() {
        let is_ours =
            |text: &str| text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_ours) {
            cargo.env_remove(&name);
        }
    }
    cargo
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // As set by Cargo when it runs this: a target folder may have been filled from another clone.
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    let repository = Path::new(&package).join("..");
    let root = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["layers"] => repository,
        ["layers", folder] => PathBuf::from(folder),
        ["test-lab", binary, ref rest @ ..] => {
            let verdict_file = rest.first().map(Path::new);
            let steps = arguments.get(3..).unwrap_or_default();
            return test_lab::run(&repository, Path::new(binary), verdict_file, steps);
        }
        ["smoke", binary] => return smoke::run(&repository, Path::new(binary)),
        ["test"] => return test::run(&repository),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match check(&root) {
        Ok(summary) if summary.violations.is_empty() => {
            println!("layers: {} crates, {} files: in order", summary.crates, summary.files);
            ExitCode::SUCCESS
        }
        Ok(summary) => {
            summary.violations.iter().for_each(|violation| eprintln!("{violation}"));
            eprintln!("layers: {} violations", summary.violations.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("layers: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Summary {
    crates: usize,
    files: usize,
    violations: Vec<Violation>,
}

fn check(root: &Path) -> Result<Summary, String> {
    let members = layers::members(&read(root, "Cargo.toml")?)?;
    let mut violations = Vec::new();
    for member in &members {
        let file = format!("{member}/Cargo.toml");
        let name = layers::name_of(member);
        violations.extend(layers::check_manifest(&file, name, &read(root, &file)?));
    }
    let strict = |member: &&String| layers::is_pure(layers::name_of(member));
    let settings: Vec<(String, Option<String>)> = members
        .iter()
        .filter(strict)
        .map(|name| format!("{name}/clippy.toml"))
        .map(|file| (file.clone(), read(root, &file).ok()))
        .collect();
    violations.extend(layers::check_clippy(&settings));
    for member in &members {
        let read = |file: &str| read(root, file).ok();
        violations.extend(circles::check(member, &read));
        violations.extend(spread::check(member, &read));
    }
    let files = files_with(".rs", root)?;
    for file in &files {
        violations.extend(sources::check(file, &read(root, file)?));
    }
    let mut pages = BTreeMap::new();
    for file in files_with(".md", root)? {
        let text = read(root, &file)?;
        violations.extend(sources::check_markdown(&file, &text));
        pages.insert(file, text);
    }
    violations.extend(links::check(&pages, |path| root.join(path).exists()));
    violations.sort();
    Ok(Summary { crates: members.len(), files: files.len(), violations })
}

fn read(root: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

/// The folders of build results and of others' packages.
const NOT_OURS: [&str; 2] = ["target", "node_modules"];

/// Returns all files under `root` whose names end with `extension`, relative to it, sorted; without
/// those of hidden folders and [`NOT_OURS`].
fn files_with(extension: &str, root: &Path) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().map_err(failed)?;
            if kind.is_dir() && !NOT_OURS.contains(&name.as_str()) && !name.starts_with('.') {
                folders.push(entry.path());
            } else if kind.is_file() && name.ends_with(extension) {
                let path = entry.path();
                let relative = path.strip_prefix(root).expect("found under the root");
                files.push(relative.to_string_lossy().into_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violation_is_one_line_with_its_place() {
        let violation = Violation { file: "a/b.rs".to_owned(), line: 7, what: "x".to_owned() };
        assert_eq!(violation.to_string(), "a/b.rs:7: x");
    }
}
