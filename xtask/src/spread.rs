//! Types whose methods are spread over the files of a crate: a reader has to find them all to know
//! what may change a field.
//!
//! Implementations of traits do not count, nor do tests.

use crate::Violation;
use crate::layers::name_of;
use crate::modules::Modules;

/// Most files with methods of one type. Chosen: its own file, and two that use large parts of it.
const MAX_FILES: usize = 3;

/// Types that are spread over more, each as its crate and its name, and the number of their files.
/// A figure only ever becomes smaller; no type is added.
const EXEMPT: &[(&str, &str, usize)] = &[("node", "Engine", 5)];

/// Checks the crate in folder `member`; `read` returns the text of a file of the repository.
pub(crate) fn check(member: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<Violation> {
    let source = format!("{member}/src");
    let mut exempt: Vec<_> =
        EXEMPT.iter().filter(|(of, ..)| *of == name_of(member)).copied().collect();
    let mut violations = Vec::new();
    for root in ["lib.rs", "main.rs"] {
        for (owner, files) in Modules::load(&source, root, read).methods() {
            let name = owner.last().map_or("", String::as_str);
            let place = exempt.iter().position(|(_, exempt, _)| *exempt == name);
            let allowed = place.map_or(MAX_FILES, |place| exempt.swap_remove(place).2);
            let files: Vec<String> = files.into_iter().collect();
            if place.is_some() && files.len() < allowed {
                let what = format!("`{name}` has methods in {} files: say so", files.len());
                let what = format!("{what} in xtask's list, or take it off");
                violations.push(Violation { file: files[0].clone(), line: 1, what });
            } else if files.len() > allowed {
                let what = format!(
                    "`{name}` has methods in {} files, at most {allowed} may: {}; give groups of \
                     its fields types of their own",
                    files.len(),
                    files.join(", ")
                );
                violations.push(Violation { file: files[0].clone(), line: 1, what });
            }
        }
    }
    let gone = exempt.into_iter().map(|(_, name, _)| {
        let what = format!("there is no `{name}` any more: take it off xtask's list");
        Violation { file: source.clone(), line: 1, what }
    });
    violations.extend(gone);
    violations
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

    /// Returns a crate whose type `A` has methods in its own file, in two others, and in that with
    /// the text `last`.
    fn four(last: &str) -> [(&str, &str); 5] {
        [
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
            ("a.rs", "pub struct A<T>(T); impl<T> A<T> { fn a(&self) {} }"),
            ("b.rs", "use super::a::A; impl<F: Fn() -> u8> A<F> where F: Copy { fn b(&self) {} }"),
            ("c.rs", "impl crate::A<u8> { fn c(&self) -> impl Copy { let x = 1; x } }"),
            ("d.rs", last),
        ]
    }

    #[test]
    fn type_with_methods_in_four_files_is_named_with_them() {
        let found = check_files("crates/x", &four("use crate::A; impl A<i8> { fn d(&self) {} }"));
        let expected = "crates/x/src/a.rs:1: `A` has methods in 4 files, at most 3 may: \
                        crates/x/src/a.rs, crates/x/src/b.rs, crates/x/src/c.rs, \
                        crates/x/src/d.rs; give groups of its fields types of their own";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn traits_tests_and_types_of_the_same_name_do_not_count() {
        for last in [
            "",
            "use crate::A; impl Drop for A<i8> { fn drop(&mut self) {} }",
            "use crate::A; unsafe impl<'a> From<&'a str> for A<i8> {}",
            "#[cfg(test)] mod tests { use crate::A; impl A<i8> { fn d(&self) {} } }",
            "struct A; impl A { fn d(&self) {} }",
            "use crate::A; fn d(a: impl Fn(A<u8>)) {}",
            "// impl crate::A<i8> {}",
        ] {
            assert!(check_files("crates/x", &four(last)).is_empty(), "{last}");
        }
    }

    #[test]
    fn type_that_is_imported_with_all_others_is_found() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; struct S; impl S {}"),
            ("a.rs", "use super::*; impl S { fn a() {} }"),
            ("b.rs", "use super::*; impl S { fn b() {} }"),
            ("c/mod.rs", "mod d; use super::S as T; impl T { fn c() {} }"),
            ("c/d.rs", "use crate::*; impl S { fn d() {} }"),
        ];
        assert!(check_files("crates/x", &files)[0].contains("`S` has methods in 5 files"));
        assert!(check_files("crates/x", &files[..3]).is_empty());
    }

    #[test]
    fn exempt_type_may_only_shrink() {
        let (of, name, files) = EXEMPT[0];
        let (member, text) = (format!("crates/{of}"), format!("struct {name}; impl {name} {{}}"));
        let found = check_files(&member, &[("lib.rs", &text)]);
        assert!(files > 1 && found[0].contains("has methods in 1 files: say so"), "{found:?}");
        let found = check_files(&member, &[("lib.rs", "")]);
        assert!(found[0].ends_with("take it off xtask's list"), "{found:?}");
    }
}
