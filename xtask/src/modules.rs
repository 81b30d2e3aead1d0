//! The modules of a crate: their files, the paths that they name, and the types whose methods they
//! hold.
//!
//! Re-exports are followed to the file that defines the item; tests are left out. As there is no
//! parser here, names that come from a glob import or a macro are not seen.

use std::collections::{BTreeMap, BTreeSet};

use crate::lexer::split;

/// Longest chain of re-exports that is followed.
const MAX_REEXPORTS: usize = 8;

/// A module's place in its crate: the names from the root on.
pub(crate) type Place = Vec<String>;

/// One file of a crate.
struct Module {
    file: String,
    /// The paths that its code names, names that it imports replaced by what they stand for.
    paths: Vec<Place>,
    /// The names that it imports or exports again, and the paths that they stand for.
    names: BTreeMap<String, Place>,
    /// The types that it defines.
    types: BTreeSet<String>,
    /// The types that it has methods of, those of traits aside.
    owners: Vec<Place>,
}

/// The files of a crate by their modules.
#[derive(Default)]
pub(crate) struct Modules(BTreeMap<Place, Module>);

impl Modules {
    /// Reads the crate whose root is this file of folder `source`; empty if there is none.
    pub(crate) fn load(source: &str, root: &str, read: &dyn Fn(&str) -> Option<String>) -> Self {
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

    /// Returns the places of all modules.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.0.keys()
    }

    /// Returns the file of a module.
    pub(crate) fn file(&self, place: &Place) -> &str {
        &self.0[place].file
    }

    /// Returns the files that hold methods of each type, those of traits aside.
    pub(crate) fn methods(&self) -> BTreeMap<Place, BTreeSet<String>> {
        let mut methods: BTreeMap<Place, BTreeSet<String>> = BTreeMap::new();
        for (place, module) in &self.0 {
            for owner in &module.owners {
                let files = methods.entry(self.of_type(place, owner)).or_default();
                files.insert(module.file.clone());
            }
        }
        methods
    }

    /// Returns the type for which `path` stands in the module at `place`, from the crate's root on.
    fn of_type(&self, place: &Place, path: &[String]) -> Place {
        if let [name] = path {
            // A name that is not imported singly comes with all names of a module around.
            let mut around = (0..=place.len()).rev().map(|length| &place[..length]);
            let defines = |module: &&[String]| self.0[*module].types.contains(name);
            if !self.0[place].names.contains_key(name)
                && let Some(module) = around.find(defines)
            {
                return [module, path].concat();
            }
        }
        let stands_for = self.0[place].names.get(&path[0]);
        let path = stands_for.map_or(path.to_vec(), |it| [it, &path[1..]].concat());
        match (self.absolute(place, &path), path.last()) {
            (Some(path), Some(name)) => [self.defining(&path, 0), vec![name.clone()]].concat(),
            _ => [&place[..], &path].concat(),
        }
    }

    /// Returns the modules that a module imports from, without those around it and inside it.
    pub(crate) fn imports(&self, place: &Place) -> BTreeSet<Place> {
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
    Module { file, paths, names, types: types(tokens), owners: owners(tokens) }
}

/// Returns the names of the types that are defined.
fn types(tokens: &[&str]) -> BTreeSet<String> {
    let defines = |pair: &&[&str]| ["struct", "enum", "union"].contains(&pair[0]);
    let defined = tokens.windows(2).filter(defines).filter(|pair| is_name(pair[1]));
    defined.map(|pair| pair[1].to_owned()).collect()
}

/// Returns the type of each `impl` that is not of a trait.
fn owners(tokens: &[&str]) -> Vec<Place> {
    let begins = |at: &usize| {
        tokens[*at] == "impl"
            && at
                .checked_sub(1)
                .is_none_or(|at| ["{", "}", ";", "]", "unsafe"].contains(&tokens[at]))
    };
    let heads = (0..tokens.len()).filter(begins).map(|at| {
        let rest = &tokens[at + 1..];
        outside_angles(&rest[..rest.iter().position(|token| *token == "{").unwrap_or(rest.len())])
    });
    let inherent = heads.filter(|head| !head.contains(&"for"));
    inherent
        .map(|head| {
            let path = head.into_iter().take_while(|token| *token == "::" || is_name(token));
            let path = path.take_while(|token| *token != "where").filter(|token| *token != "::");
            path.map(str::to_owned).collect()
        })
        .filter(|path: &Place| !path.is_empty())
        .collect()
}

/// Returns the tokens without those in `<` and `>`.
fn outside_angles<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut depth = 0_usize;
    let mut outside = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "<" => depth += 1,
            // Not the arrow of a function's result.
            ">" if at.checked_sub(1).is_none_or(|before| tokens[before] != "-") => {
                depth = depth.saturating_sub(1);
            }
            token if depth == 0 => outside.push(token),
            _ => {}
        }
    }
    outside
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
