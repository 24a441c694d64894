//! docs/environment.md lists every environment variable that the code names.

use crate::{none, root, rust_files};
use std::collections::BTreeSet;

/// Names in C's headers have the same prefix.
const CONSTANTS_OF_C: &str = "doors/capi/";

/// Returns the names `TELPHER_…` between quotes, or between other characters that end a name.
fn names(text: &str, quoted: bool) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("TELPHER_") {
        let rest = &text[at..];
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        let in_quotes = text[..at].ends_with('"') && rest[end..].starts_with('"');
        if !quoted || in_quotes {
            found.insert(rest[..end].to_owned());
        }
    }
    found
}

#[test]
fn the_documentation_lists_every_environment_variable() {
    let of_variables = |path: &str| !path.starts_with(CONSTANTS_OF_C) && !path.ends_with("house/environment.rs");
    let files = rust_files();
    let code: BTreeSet<String> =
        files.iter().filter(|(path, _)| of_variables(path)).flat_map(|(_, text)| names(text, true)).collect();
    assert!(code.len() > 15, "only {} variables were found", code.len());
    let page = std::fs::read_to_string(root().join("docs/environment.md")).expect("docs/environment.md is readable");
    let page = names(&page, false);
    let missing: Vec<String> = code.difference(&page).cloned().collect();
    none("docs/environment.md does not list", &missing);
    let unknown: Vec<String> = page.difference(&code).cloned().collect();
    none("docs/environment.md lists, and no code names", &unknown);
}
