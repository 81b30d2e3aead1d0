//! Circles of imports within a crate: files that import each other, directly or by way of others.
//!
//! A module and those inside it belong together, so imports between them do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::Violation;
use crate::layers::name_of;
use crate::modules::{Modules, Place};

/// Most files of a circle. Chosen: a type, its error and its reader may know each other.
const MAX_FILES: usize = 3;

/// Crates with larger circles, and the files of their largest. A figure only ever becomes smaller;
/// no crate is added.
const EXEMPT: &[(&str, usize)] = &[("grant", 16), ("wan", 4), ("node", 7)];

/// Checks the crate in folder `member`; `read` returns the text of a file of the repository.
pub(crate) fn check(member: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<Violation> {
    let name = name_of(member);
    let exempt = EXEMPT.iter().find(|(exempt, _)| *exempt == name).map(|(_, files)| *files);
    let allowed = exempt.unwrap_or(MAX_FILES);
    let source = format!("{member}/src");
    let circles: Vec<Vec<String>> = ["lib.rs", "main.rs"]
        .iter()
        .flat_map(|root| circles(&Modules::load(&source, root, read)))
        .collect();
    let largest = circles.iter().map(Vec::len).max().unwrap_or_default();
    if exempt.is_some() && largest < allowed {
        let what = if largest > MAX_FILES {
            format!("its largest circle has {largest} files now: say so in xtask's list")
        } else {
            "has no large circle any more: take it off xtask's list".to_owned()
        };
        return vec![Violation { file: source, line: 1, what }];
    }
    let too_large = circles.into_iter().filter(|circle| circle.len() > allowed);
    too_large
        .map(|circle| {
            let what = format!(
                "{} files import each other in a circle, at most {allowed} may: {}",
                circle.len(),
                circle.join(", ")
            );
            Violation { file: circle[0].clone(), line: 1, what }
        })
        .collect()
}

/// Returns the files of each circle of two and more.
fn circles(modules: &Modules) -> Vec<Vec<String>> {
    let imports: BTreeMap<&Place, BTreeSet<Place>> =
        modules.places().map(|place| (place, modules.imports(place))).collect();
    let reached: BTreeMap<&Place, BTreeSet<Place>> =
        imports.keys().map(|place| (*place, reachable(place, &imports))).collect();
    let mut circles = BTreeSet::new();
    for (place, there) in &reached {
        let circle: BTreeSet<&Place> =
            there.iter().filter(|other| reached[*other].contains(*place)).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let files = |circle: BTreeSet<&Place>| {
        circle.into_iter().map(|place| modules.file(place).to_owned()).collect()
    };
    circles.into_iter().map(files).collect()
}

/// Returns all modules that `from` imports, directly or by way of others.
fn reachable(from: &Place, imports: &BTreeMap<&Place, BTreeSet<Place>>) -> BTreeSet<Place> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(place) = waiting.pop() {
        for other in &imports[place] {
            if reached.insert(other.clone()) {
                waiting.push(other);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a crate of these files, each a name and its text.
    fn check_files(member: &str, files: &[(&str, &str)]) -> Vec<String> {
        let read = |file: &str| {
            let name = file.strip_prefix(&format!("{member}/src/"))?;
            files.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
        };
        check(member, &read).iter().map(Violation::to_string).collect()
    }

    /// Returns the files of a circle of four, the last of which closes it by `closing`.
    fn four(closing: &str) -> [(&str, &str); 5] {
        [
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
            ("a.rs", "use crate::b; pub struct A(b::B);"),
            ("b.rs", "use super::{c::{self, C as D}, fmt}; pub struct B(D);"),
            ("c/mod.rs", "pub struct C(crate::d::D);"),
            ("d.rs", closing),
        ]
    }

    #[test]
    fn circle_of_four_is_named_with_its_files() {
        let found = check_files("crates/x", &four("use crate::a::A;"));
        let expected = "crates/x/src/a.rs:1: 4 files import each other in a circle, at most 3 \
                        may: crates/x/src/a.rs, crates/x/src/b.rs, crates/x/src/c/mod.rs, \
                        crates/x/src/d.rs";
        assert_eq!(found, [expected]);
        assert!(check_files("crates/x", &four("pub struct D;")).is_empty());
    }

    #[test]
    fn re_exports_are_followed_and_tests_are_left_out() {
        assert_eq!(check_files("crates/x", &four("use crate::A;")).len(), 1);
        let of_tests = "pub struct D;\n#[cfg(test)]\nmod tests { use crate::a::A; }";
        assert!(check_files("crates/x", &four(of_tests)).is_empty());
        let in_words = "// crate::a::A\nconst D: &str = \"crate::a::A\";";
        assert!(check_files("crates/x", &four(in_words)).is_empty());
    }

    #[test]
    fn parent_and_inner_modules_do_not_count() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; mod c; mod d; use b::B; use c::C; use d::D;"),
            ("a/b.rs", "use super::{A, c::C};"),
            ("a/c.rs", "use super::A; use crate::a::d::D;"),
            ("a/d.rs", "use super::A;"),
        ];
        assert!(check_files("crates/x", &files).is_empty());
    }

    #[test]
    fn exempt_crate_may_only_shrink() {
        let (name, files) = EXEMPT[0];
        let member = format!("crates/{name}");
        let found = check_files(&member, &[("lib.rs", "mod a;"), ("a.rs", "")]);
        assert!(found[0].ends_with("take it off xtask's list"), "{found:?}");
        let found = check_files(&member, &four("use crate::A;"));
        assert!(files > 4 && found[0].contains("has 4 files now"), "{found:?}");
    }
}
