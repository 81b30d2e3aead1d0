//! The links of the Markdown files, and the book's table of contents.
//!
//! Every relative link leads to a file of the repository, and its anchor to a heading there. Pages
//! of the book link only to each other: a link out of `docs/` is dead in the built book, so they
//! name such files as code. Each page is listed in `docs/SUMMARY.md` once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::Violation;

/// The folder of the book.
const BOOK: &str = "docs/";
/// Its table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// A link of a page.
struct Link {
    line: usize,
    target: String,
}

/// The links and the anchors of one Markdown file.
struct Page {
    links: Vec<Link>,
    anchors: BTreeSet<String>,
}

/// Checks all Markdown files, given by their paths in the repository and their texts. `exists`
/// tells whether the repository has a file or folder of that path.
pub(crate) fn check(
    texts: &BTreeMap<String, String>,
    exists: impl Fn(&str) -> bool,
) -> Vec<Violation> {
    let pages: BTreeMap<&str, Page> =
        texts.iter().map(|(file, text)| (file.as_str(), page(text))).collect();
    let mut violations = Vec::new();
    for (file, page) in &pages {
        for link in page.links.iter().filter(|link| !is_external(&link.target)) {
            if let Some(what) = fault(file, link, &pages, &exists) {
                violations.push(Violation { file: (*file).to_owned(), line: link.line, what });
            }
        }
    }
    violations.extend(unlisted(&pages));
    violations
}

fn is_external(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// Returns the fault of a link, if it has one.
fn fault(
    file: &str,
    link: &Link,
    pages: &BTreeMap<&str, Page>,
    exists: &impl Fn(&str) -> bool,
) -> Option<String> {
    let target = &link.target;
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = resolved(file, path);
    if !exists(&path) {
        return Some(format!("the link `{target}` leads nowhere: there is no {path}"));
    }
    if file.starts_with(BOOK) && !path.starts_with(BOOK) {
        return Some(format!("the link `{target}` leaves the book: write `{path}` as code"));
    }
    let page = pages.get(path.as_str())?;
    let is_found = anchor.is_empty() || page.anchors.contains(anchor);
    (!is_found).then(|| format!("the link `{target}` leads nowhere: {path} has no such heading"))
}

/// Returns the path in the repository to which a link of `file` leads.
fn resolved(file: &str, target: &str) -> String {
    if target.is_empty() {
        return file.to_owned();
    }
    let mut path = PathBuf::new();
    for part in Path::new(file).parent().unwrap_or(Path::new("")).join(target).components() {
        match part {
            Component::ParentDir if path.pop() => {}
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}

/// Returns pages of the book that its table of contents lacks or lists twice.
fn unlisted(pages: &BTreeMap<&str, Page>) -> Vec<Violation> {
    let Some(summary) = pages.get(SUMMARY) else { return Vec::new() };
    let listed: Vec<String> =
        summary.links.iter().map(|link| resolved(SUMMARY, &link.target)).collect();
    let is_page = |file: &&&str| {
        file.strip_prefix(BOOK).is_some_and(|name| name == "README.md" || name.contains('/'))
    };
    pages
        .keys()
        .filter(is_page)
        .filter_map(|file| {
            let times = listed.iter().filter(|page| page == file).count();
            let what = format!("{SUMMARY} lists this page {times} times: list it once");
            (times != 1).then(|| Violation { file: (*file).to_owned(), line: 1, what })
        })
        .collect()
}

/// Reads the links and anchors of a Markdown text.
fn page(text: &str) -> Page {
    let mut page = Page { links: Vec::new(), anchors: BTreeSet::new() };
    for line in crate::sources::outside_code(text) {
        let words = line.trim_start_matches('#');
        if words.len() < line.len() && words.starts_with(' ') {
            add_anchor(&mut page.anchors, &anchor(words));
        }
    }
    let prose = without_code_spans(&crate::sources::outside_code(text).join("\n"));
    for (start, mark) in prose.match_indices("](") {
        let rest = &prose[start + mark.len()..];
        let Some((target, _)) = rest.split_once(')') else { continue };
        let line = 1 + prose[..start].matches('\n').count();
        page.links.push(Link { line, target: target.to_owned() });
    }
    page
}

/// Returns the text with the contents of code spans removed, but for their line ends. A span ends
/// within its paragraph.
fn without_code_spans(text: &str) -> String {
    let of_paragraph = |paragraph: &str| {
        let parts: Vec<&str> = paragraph.split('`').collect();
        let is_code = |index: usize| index % 2 == 1 && index + 1 < parts.len();
        let retained = parts.iter().enumerate().map(|(index, part)| {
            if is_code(index) {
                "\n".repeat(part.matches('\n').count())
            } else {
                (*part).to_owned()
            }
        });
        retained.collect::<String>()
    };
    text.split("\n\n").map(of_paragraph).collect::<Vec<_>>().join("\n\n")
}

/// Returns the anchor of a heading: its words in lower case, joined by hyphens, without other
/// marks, as mdBook and GitHub make it.
fn anchor(heading: &str) -> String {
    let lower = heading.trim().to_lowercase();
    lower
        .chars()
        .filter_map(|c| match c {
            c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
            c if c.is_whitespace() => Some('-'),
            _ => None,
        })
        .collect()
}

/// Adds an anchor; a second heading of the same words gets a number.
fn add_anchor(anchors: &mut BTreeSet<String>, anchor: &str) {
    let numbered = (1..).map(|number| format!("{anchor}-{number}"));
    let mut names = std::iter::once(anchor.to_owned()).chain(numbered);
    if let Some(name) = names.find(|name| !anchors.contains(name)) {
        anchors.insert(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let texts: BTreeMap<String, String> =
            files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
        let exists = |path: &str| texts.contains_key(path) || path == "src/lib.rs";
        check(&texts, exists).iter().map(Violation::to_string).collect()
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let good = "[a](src/lib.rs) [b](docs/a.md#two-words) ![c](https://example.com/x.png)\n\
                    `[d](nowhere.md)`\n\n```\n[e](nowhere.md)\n```\n";
        let page = "# One\n\n## Two `words`!\n\n[up](#one)\n";
        assert!(found(&[("README.md", good), ("docs/a.md", page)]).is_empty());
        let bad = "# One\n\n[a](b.md) and\n[c](docs/a.md#three)\n";
        assert_eq!(
            found(&[("README.md", bad), ("docs/a.md", page)]),
            [
                "README.md:3: the link `b.md` leads nowhere: there is no b.md",
                "README.md:4: the link `docs/a.md#three` leads nowhere: docs/a.md has no such \
                 heading",
            ]
        );
    }

    #[test]
    fn pages_of_the_book_do_not_link_out_of_it() {
        let files = [("README.md", "# One\n"), ("docs/x/a.md", "[up](../../README.md#one)\n")];
        assert_eq!(
            found(&files),
            ["docs/x/a.md:1: the link `../../README.md#one` leaves the book: write \
                `README.md` as code"]
        );
    }

    #[test]
    fn each_page_is_listed_once() {
        let summary = "- [a](x/a.md)\n- [a again](x/a.md)\n- [b](x/b.md)\n";
        let files = [
            ("docs/SUMMARY.md", summary),
            ("docs/x/a.md", "# A\n"),
            ("docs/x/b.md", "# B\n"),
            ("docs/x/c.md", "# C\n"),
        ];
        assert_eq!(
            found(&files),
            [
                "docs/x/a.md:1: docs/SUMMARY.md lists this page 2 times: list it once",
                "docs/x/c.md:1: docs/SUMMARY.md lists this page 0 times: list it once",
            ]
        );
    }

    #[test]
    fn headings_of_the_same_words_have_numbered_anchors() {
        let page = page("# Use\n\n## Use\n\n### `[[site]]`: a place\n");
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["site-a-place", "use", "use-1"]);
    }
}
