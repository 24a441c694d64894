//! Inside a crate, files import each other in one direction: no circles, except the listed ones.
//!
//! File `a` imports file `b` if a path in `a` names something that `b` defines. A path counts if it begins with
//! `crate`, `super`, `self` or the name of a child module; names that a module passes on with `pub use` are followed to
//! the file that defines them. Three things do not count:
//!
//! - a `mod child` or `pub use child::Name` of the parent, which only builds the module tree;
//! - tests: files named `tests.rs`, folders named `tests` and items under `#[cfg(test)]`;
//! - names behind a glob (`use super::*` counts as an import of the parent only).

use crate::metadata::members;
use crate::rust_files;
use std::collections::{BTreeMap, BTreeSet};

/// The circles that are left. Only remove rows. A row is the folder of the crate and the files of one circle below its
/// `src`; an indented line continues the row above it.
const KNOWN: &str = include_str!("cycles.txt");

/// A piece of Rust source: a word or a sign.
type Token = String;

/// Splits Rust source into words and signs, without comments and literals.
fn tokens(source: &str) -> Vec<Token> {
    let text: Vec<char> = source.chars().collect();
    let is = |at: usize, expected: char| text.get(at) == Some(&expected);
    let (mut found, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let start = at;
        match text[at] {
            '/' if is(at + 1, '/') => {
                while at < text.len() && !is(at, '\n') {
                    at += 1;
                }
            }
            '/' if is(at + 1, '*') => {
                while at < text.len() && !(is(at, '*') && is(at + 1, '/')) {
                    at += 1;
                }
                at += 2;
            }
            'r' if is(at + 1, '"') || is(at + 1, '#') && (is(at + 2, '"') || is(at + 2, '#')) => {
                let hashes = text[at + 1..].iter().take_while(|&&sign| sign == '#').count();
                at += hashes + 2;
                while at < text.len() && !(is(at, '"') && (1..=hashes).all(|after| is(at + after, '#'))) {
                    at += 1;
                }
                at += hashes + 1;
            }
            '"' => {
                at += 1;
                while at < text.len() && !is(at, '"') {
                    at += if is(at, '\\') { 2 } else { 1 };
                }
                at += 1;
            }
            // A character, not a lifetime.
            '\'' if is(at + 1, '\\') => {
                at += 3;
                while at < text.len() && !is(at, '\'') {
                    at += 1;
                }
                at += 1;
            }
            '\'' if is(at + 2, '\'') => at += 3,
            ':' if is(at + 1, ':') => {
                at += 2;
                found.push("::".to_owned());
            }
            sign if sign.is_alphanumeric() || sign == '_' => {
                while at < text.len() && (text[at].is_alphanumeric() || text[at] == '_') {
                    at += 1;
                }
                found.push(text[start..at].iter().collect());
            }
            sign => {
                at += 1;
                if !sign.is_whitespace() {
                    found.push(sign.to_string());
                }
            }
        }
    }
    found
}

/// Returns the position after the item that starts at `at`: after its `;`, or after its outermost braces.
fn after_item(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0_u32;
    while at < tokens.len() {
        at += 1;
        match tokens[at - 1].as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" if depth <= 1 => break,
            "}" | ")" | "]" => depth = depth.saturating_sub(1),
            ";" | "," if depth == 0 => break,
            _ => {}
        }
    }
    at
}

/// Returns the tokens without the items under `#[cfg(test)]`.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if tokens[at..].starts_with(&["#", "[", "cfg", "(", "test", ")", "]"].map(str::to_owned)) {
            at = after_item(&tokens, at + 7);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// Reads the path, or the tree of paths in braces, that starts at `at`. Adds each path, with the name under which a
/// `use` makes it known, to `found`. Returns the position after it.
fn path(tokens: &[Token], mut at: usize, before: &[String], found: &mut Vec<(Vec<String>, String)>) -> usize {
    let token = |at: usize| tokens.get(at).map_or("", String::as_str);
    let mut names = before.to_vec();
    loop {
        if token(at) == "{" {
            at += 1;
            while !["}", ""].contains(&token(at)) {
                at = path(tokens, at, &names, found);
                // Skip the comma, or what cannot be read.
                at += usize::from(token(at) != "}");
            }
            return at + 1;
        }
        names.push(token(at).to_owned());
        at += 1;
        if token(at) != "::" {
            break;
        }
        at += 1;
    }
    if names.len() > 1 && names.last().is_some_and(|name| name == "self") {
        names.pop();
    }
    let mut known_as = names.last().cloned().unwrap_or_default();
    if token(at) == "as" {
        known_as = token(at + 1).to_owned();
        at += 2;
    }
    found.push((names, known_as));
    at
}

/// One file of a crate.
#[derive(Default)]
struct Module {
    /// Its path below `src`.
    file: String,
    /// The paths that it uses.
    uses: Vec<Vec<String>>,
    /// The names that it passes on with `pub use`, and the paths where they are defined.
    passes_on: BTreeMap<String, Vec<String>>,
}

/// The files of one crate by module path; the root's is empty.
type Crate = BTreeMap<Vec<String>, Module>;

/// Returns the path of the module in a file below `src`; `None` for tests.
fn module_of(file: &str) -> Option<Vec<String>> {
    let mut names: Vec<String> = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if names.iter().any(|name| name == "tests") {
        return None;
    }
    if names.last().is_some_and(|name| name == "mod") || matches!(file, "lib.rs" | "main.rs") {
        names.pop();
    }
    Some(names)
}

/// Reads the files of one crate: paths below `src` and contents.
fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Crate {
    let mut modules = Crate::new();
    let mut sources = Vec::new();
    for (file, source) in files {
        if let Some(name) = module_of(file) {
            modules.insert(name.clone(), Module { file: file.to_owned(), ..Module::default() });
            sources.push((name, without_tests(tokens(source))));
        }
    }
    for (name, tokens) in sources {
        let (uses, passes_on) = paths_of(&tokens, &name, &modules);
        let module = modules.get_mut(&name).expect("it was inserted above");
        (module.uses, module.passes_on) = (uses, passes_on);
    }
    modules
}

/// Returns the paths that a file uses, from the root of the crate, and those that it passes on.
fn paths_of(tokens: &[Token], module: &[String], modules: &Crate) -> (Vec<Vec<String>>, BTreeMap<String, Vec<String>>) {
    let (mut uses, mut passes_on) = (Vec::new(), BTreeMap::new());
    // The inline modules around the current position, each with the depth of its braces.
    let (mut inline, mut depth) = (Vec::<(String, u32)>::new(), 0_u32);
    let (mut is_use, mut is_public) = (false, false);
    let mut at = 0;
    while at < tokens.len() {
        let next = tokens.get(at + 1).map_or("", String::as_str);
        match tokens[at].as_str() {
            "mod" if tokens.get(at + 2).is_some_and(|sign| sign == "{") => inline.push((next.to_owned(), depth)),
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                inline.pop_if(|(_, outside)| *outside == depth);
            }
            "use" => {
                // Public for the crate or a module, too: `pub(crate) use`.
                is_public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                is_use = true;
            }
            ";" => is_use = false,
            _ => {}
        }
        let here: Vec<String> = module.iter().chain(inline.iter().map(|(name, _)| name)).cloned().collect();
        let child: Vec<String> = here.iter().chain([&tokens[at]]).cloned().collect();
        let begins = next == "::" && (at == 0 || tokens[at - 1] != "::");
        let relative = modules.contains_key(&child);
        if !begins || !(relative || ["crate", "super", "self"].contains(&tokens[at].as_str())) {
            at += 1;
            continue;
        }
        let mut found = Vec::new();
        at = path(tokens, at, &[], &mut found);
        for (names, known_as) in found {
            let mut whole = if names[0] == "crate" { Vec::new() } else { here.clone() };
            for name in names {
                match name.as_str() {
                    "crate" | "self" => {}
                    "super" => _ = whole.pop(),
                    _ => whole.push(name),
                }
            }
            let is_own = whole.starts_with(module) && whole.len() > module.len();
            if is_use && is_public {
                passes_on.insert(known_as, whole.clone());
            }
            if !(is_use && is_public && is_own) {
                uses.push(whole);
            }
        }
        // The braces of a tree end the `use`; its `;` follows.
        is_use = false;
    }
    (uses, passes_on)
}

/// Returns the module that defines what `path` names.
fn definition(modules: &Crate, path: &[String]) -> Vec<String> {
    let mut path = path.to_vec();
    // A chain of re-exports is shorter than the list of modules, unless it is itself a circle.
    for _ in 0..modules.len() {
        let known = (0..=path.len()).rev().find(|&len| modules.contains_key(&path[..len])).unwrap_or(0);
        let further = path.get(known).and_then(|name| modules.get(&path[..known])?.passes_on.get(name));
        match further {
            Some(further) => path = further.iter().chain(&path[known + 1..]).cloned().collect(),
            None => return path[..known].to_vec(),
        }
    }
    Vec::new()
}

/// Returns the circles of a crate: each is a list of files that all reach each other.
fn circles(modules: &Crate) -> BTreeSet<Vec<String>> {
    let mut reached: BTreeMap<&[String], BTreeSet<Vec<String>>> = BTreeMap::new();
    for (name, module) in modules {
        let imports = module.uses.iter().map(|path| definition(modules, path));
        reached.insert(name, imports.filter(|import| import != name && modules.contains_key(import)).collect());
    }
    // Warshall's algorithm: lets each module in turn be the way from one to another.
    for middle in modules.keys() {
        let beyond = reached[middle.as_slice()].clone();
        for targets in reached.values_mut().filter(|targets| targets.contains(middle)) {
            targets.extend(beyond.iter().cloned());
        }
    }
    let circle = |name: &Vec<String>| -> Vec<String> {
        let both = |other: &&Vec<String>| {
            reached[name.as_slice()].contains(*other) && reached[other.as_slice()].contains(name)
        };
        modules.keys().filter(both).map(|other| modules[other].file.clone()).collect()
    };
    modules.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

/// A row of the list: the folder of a crate and the files of one circle.
type Row = (String, Vec<String>);

/// Reads the list of circles.
fn rows(list: &str) -> Vec<Row> {
    let mut rows = Vec::<Row>::new();
    for line in list.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        if line.starts_with(' ') {
            rows.last_mut().expect("the first line starts a row").1.extend(words);
        } else {
            rows.push((words.next().expect("a row starts with a folder"), words.collect()));
        }
    }
    rows
}

/// Writes a row as in the list.
fn row((folder, files): &Row) -> String {
    let mut text = folder.clone();
    for file in files {
        let line = text.lines().last().map_or(0, str::len);
        text += if line + 1 + file.len() > 120 { "\n   " } else { "" };
        text += &format!(" {file}");
    }
    text + "\n"
}

#[test]
fn the_files_of_a_crate_import_each_other_in_one_direction() {
    let files = rust_files();
    let mut found = BTreeSet::new();
    for package in members().values() {
        let prefix = format!("{}/src/", package.folder);
        let own = files.iter().filter_map(|(path, text)| Some((path.strip_prefix(&prefix)?, text.as_str())));
        found.extend(circles(&read(own)).into_iter().map(|circle| (package.folder.clone(), circle)));
    }
    let known = rows(KNOWN).into_iter().collect();
    let new: String = found.difference(&known).map(row).collect();
    let gone: String = known.difference(&found).map(row).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "Files import each other in circles that house/cycles.txt does not list:\n{new}\
         Listed circles that are gone, or are smaller now; remove or shorten their rows:\n{gone}"
    );
}

#[test]
fn a_row_is_read_as_it_is_written() {
    let long = (0..40).map(|at| format!("folder/file_{at}.rs")).collect();
    let list = [("base/a".to_owned(), long), ("path/b".to_owned(), vec!["c.rs".to_owned(), "d.rs".to_owned()])];
    let text: String = list.iter().map(row).collect();
    assert!(text.lines().all(|line| line.len() <= 120) && text.lines().count() > 3);
    assert_eq!(rows(&text), list);
}

#[test]
fn circles_are_found_through_each_kind_of_path() {
    let found =
        |files: &[(&str, &str)]| -> Vec<Vec<String>> { circles(&read(files.iter().copied())).into_iter().collect() };
    // A tree of imports, an inline path and a child by name. `c` only uses the others.
    let four = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::{b::{B, Other as Name}, d};"),
        ("b.rs", "fn f() { super::d::g() }"),
        ("c.rs", "use crate::a::A; use crate::b::B;"),
        ("d/mod.rs", "mod e; fn g() { e::h() }"),
        ("d/e.rs", "use super::super::a;"),
    ];
    assert_eq!(found(&four), [["a.rs", "b.rs", "d/mod.rs", "d/e.rs"]]);
    // Without the last import there is no circle.
    assert!(found(&four[..5]).is_empty());

    // Names that the root passes on are followed; the root's own list is no import.
    let passed_on = [
        ("lib.rs", "mod a; mod b; pub use a::A; pub(crate) use b::{B};"),
        ("a.rs", "use crate::B;"),
        ("b.rs", "use crate::A;"),
    ];
    assert_eq!(found(&passed_on), [["a.rs", "b.rs"]]);
    assert!(found(&[passed_on[0], passed_on[1], ("b.rs", "")]).is_empty());

    // A parent that uses its child, which uses the parent.
    assert_eq!(found(&[("a.rs", "mod b; use b::B;"), ("a/b.rs", "use super::A;")]), [["a.rs", "a/b.rs"]]);

    // Tests, comments and literals do not count.
    let quiet = [
        (
            "a.rs",
            "#[cfg(test)] mod tests { use super::b::B; } // crate::b\n fn f() { \"crate::b::B\"; } /* crate::b */",
        ),
        ("b.rs", "use crate::a::A; #[cfg(test)] use crate::c::C; struct S<'a>(&'a str);"),
        ("c.rs", "use crate::b::B;"),
        ("a/tests.rs", "use crate::c::C;"),
    ];
    assert!(found(&quiet).is_empty());
}
