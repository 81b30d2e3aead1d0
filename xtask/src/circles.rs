//! Circles of imports within a crate: files that import each other, directly or by way of others.
//!
//! A module and those inside it belong together, so imports between them do not count. Re-exports
//! are followed to the file that defines the item; tests are left out. As there is no parser here,
//! names that come from a glob import or a macro are not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::Violation;
use crate::layers::name_of;
use crate::lexer::split;

/// Most files of a circle. Chosen: a type, its error and its reader may know each other.
const MAX_FILES: usize = 3;

/// Crates with larger circles, and the files of their largest. A figure only ever becomes smaller;
/// no crate is added.
const EXEMPT: &[(&str, usize)] = &[("grant", 16), ("wan", 4), ("node", 7)];

/// Longest chain of re-exports that is followed.
const MAX_REEXPORTS: usize = 8;

/// A module's place in its crate: the names from the root on.
type Place = Vec<String>;

/// Checks the crate in folder `member`; `read` returns the text of a file of the repository.
pub(crate) fn check(member: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<Violation> {
    let name = name_of(member);
    let exempt = EXEMPT.iter().find(|(exempt, _)| *exempt == name).map(|(_, files)| *files);
    let allowed = exempt.unwrap_or(MAX_FILES);
    let source = format!("{member}/src");
    let circles: Vec<Vec<String>> = ["lib.rs", "main.rs"]
        .iter()
        .flat_map(|root| Modules::load(&source, root, read).circles())
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

/// One file of a crate.
struct Module {
    file: String,
    /// The paths that its code names, names that it imports replaced by what they stand for.
    paths: Vec<Place>,
    /// The names that it imports or exports again, and the paths that they stand for.
    names: BTreeMap<String, Place>,
}

/// The files of a crate by their modules.
#[derive(Default)]
struct Modules(BTreeMap<Place, Module>);

impl Modules {
    /// Reads the crate whose root is this file of folder `source`; empty if there is none.
    fn load(source: &str, root: &str, read: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut modules = Self::default();
        let mut waiting = vec![(Place::new(), vec![format!("{source}/{root}")], source.to_owned())];
        while let Some((place, files, folder)) = waiting.pop() {
            let found = files.into_iter().find_map(|file| read(&file).map(|text| (file, text)));
            let Some((file, text)) = found else { continue };
            let code = split(&text).code;
            let tokens = without_tests(&tokens(&code));
            for child in children(&tokens) {
                let files =
                    vec![format!("{folder}/{child}.rs"), format!("{folder}/{child}/mod.rs")];
                let folder = format!("{folder}/{child}");
                waiting.push(([&place[..], &[child]].concat(), files, folder));
            }
            modules.0.insert(place, module(file, &tokens));
        }
        modules
    }

    /// Returns the files of each circle of two and more.
    fn circles(&self) -> Vec<Vec<String>> {
        let imports: BTreeMap<&Place, BTreeSet<Place>> =
            self.0.keys().map(|place| (place, self.imports(place))).collect();
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
            circle.into_iter().map(|place| self.0[place].file.clone()).collect()
        };
        circles.into_iter().map(files).collect()
    }

    /// Returns the modules that a module imports from, without those around it and inside it.
    fn imports(&self, place: &Place) -> BTreeSet<Place> {
        let module = &self.0[place];
        let named = module.paths.iter().filter_map(|path| self.absolute(place, path));
        let defining = named.map(|path| self.defining(&path, 0));
        defining.filter(|other| !other.starts_with(place) && !place.starts_with(other)).collect()
    }

    /// Returns a path from the crate's root on; `None` for another crate's.
    fn absolute(&self, place: &Place, path: &[String]) -> Option<Place> {
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" | "super" => {
                let mut base = place.clone();
                let mut rest = path;
                while let Some((first, more)) =
                    rest.split_first().filter(|(first, _)| *first == "self" || *first == "super")
                {
                    if first == "super" {
                        base.pop()?;
                    }
                    rest = more;
                }
                Some([&base, rest].concat())
            }
            child => {
                let inside = [&place[..], &[child.to_owned()]].concat();
                self.0.contains_key(&inside).then(|| [&place[..], path].concat())
            }
        }
    }

    /// Returns the module that defines the item at an absolute path, re-exports followed.
    fn defining(&self, path: &[String], followed: usize) -> Place {
        let mut module = Place::new();
        for (index, name) in path.iter().enumerate() {
            module.push(name.clone());
            if self.0.contains_key(&module) {
                continue;
            }
            module.pop();
            let stands_for = self.0[&module].names.get(name);
            let target = stands_for.and_then(|stands_for| self.absolute(&module, stands_for));
            return match target {
                Some(target) if followed < MAX_REEXPORTS && target != path => {
                    self.defining(&[&target, &path[index + 1..]].concat(), followed + 1)
                }
                _ => module,
            };
        }
        module
    }
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

/// Splits code into names, `::` and other characters.
fn tokens(code: &str) -> Vec<&str> {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_of_name(first) {
            rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Returns the tokens without the items that are for tests alone.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    const OF_TESTS: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut retained = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&OF_TESTS) {
            retained.push(tokens[at]);
            at += 1;
            continue;
        }
        at += OF_TESTS.len();
        let mut depth = 0_usize;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match *token {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && matches!(*token, ";" | "," | "}") {
                break;
            }
        }
    }
    retained
}

/// Returns the modules that are declared without a body, and so have a file.
fn children(tokens: &[&str]) -> Vec<String> {
    let declared = tokens.windows(3).filter(|three| three[0] == "mod" && three[2] == ";");
    declared.map(|three| three[1].to_owned()).collect()
}

fn module(file: String, tokens: &[&str]) -> Module {
    let (mut paths, mut names, mut used) = (Vec::new(), BTreeMap::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        let is_path = tokens.get(at + 1) == Some(&"::") && is_name(tokens[at]);
        if tokens[at] == "use" && tokens.get(at + 1) != Some(&"<") {
            let end = tokens[at..].iter().position(|token| *token == ";");
            let end = end.map_or(tokens.len(), |length| at + length);
            import(&tokens[at + 1..end], &[], &mut |path, name| {
                names.insert(name, path.clone());
                paths.push(path);
            });
            at = end;
        } else if is_path && at.checked_sub(1).is_none_or(|before| tokens[before] != "::") {
            let mut path = vec![tokens[at].to_owned()];
            while tokens.get(at + 1) == Some(&"::")
                && tokens.get(at + 2).is_some_and(|next| is_name(next))
            {
                path.push(tokens[at + 2].to_owned());
                at += 2;
            }
            used.push(path);
        }
        at += 1;
    }
    let stand_for = used.into_iter().map(|path| match names.get(&path[0]) {
        Some(stands_for) => [stands_for, &path[1..]].concat(),
        None => path,
    });
    paths.extend(stand_for);
    Module { file, paths, names }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Calls `found` with each path of a `use` declaration and the name that it gets.
fn import(tokens: &[&str], before: &[String], found: &mut impl FnMut(Place, String)) {
    let mut path = before.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "{" => {
                for one in listed(&tokens[at + 1..tokens.len() - 1]) {
                    import(one, &path, found);
                }
                return;
            }
            "*" => return found(path, "*".to_owned()),
            "self" if at == 0 && !before.is_empty() => {}
            "as" => break,
            "::" => {}
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
    let last = path.last().cloned().unwrap_or_default();
    let alias = tokens.get(at + 1).filter(|_| tokens.get(at) == Some(&"as"));
    found(path, alias.map_or(last, |alias| (*alias).to_owned()));
}

/// Splits the inside of braces at its commas.
fn listed<'a, 'b>(tokens: &'a [&'b str]) -> Vec<&'a [&'b str]> {
    let mut depth = 0_i32;
    let at_comma = |token: &&str| {
        match *token {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        *token == "," && depth == 0
    };
    tokens.split(at_comma).filter(|one| !one.is_empty()).collect()
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
