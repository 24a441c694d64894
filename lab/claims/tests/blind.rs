//! The simulator is independent of the published results: no held-out value occurs in its code or its profiles.

use std::path::{Path, PathBuf};
use telpher_claims::published::{Kind, Use, Value, claims};

/// Every file of the simulator, with its text, without tests: tests compare with published values, like this crate.
fn files() -> Vec<(PathBuf, String)> {
    let sim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim");
    let mut folders = vec![sim.join("src"), sim.join("profiles")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            // Unit tests are at the end of a file.
            let code = text.split("#[cfg(test)]").next().unwrap_or("").to_owned();
            files.push((path, code));
        }
    }
    assert!(files.len() > 20, "{files:?}");
    files
}

/// Numbers of a text, without comments.
fn numbers(text: &str) -> Vec<String> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or("").split('#').next().unwrap_or(""));
    let mut numbers = Vec::new();
    for line in code {
        let mut number = String::new();
        for letter in line.chars().chain([' ']) {
            if letter.is_ascii_digit() || (letter == '.' && !number.is_empty()) || (letter == '_' && !number.is_empty())
            {
                number.push(letter);
            } else if !number.is_empty() {
                numbers.push(number.replace('_', "").trim_end_matches('.').to_owned());
                number.clear();
            }
        }
    }
    numbers
}

#[test]
fn no_claim_is_named() {
    for (path, text) in files() {
        for claim in claims() {
            assert!(!text.contains(&claim.id), "{} in {}", claim.id, path.display());
        }
    }
}

/// Held-out numbers that hardly occur by chance: with at least `digits` digits and a decimal point.
fn held_out_values(digits: usize) -> Vec<(&'static str, String)> {
    let mut values = Vec::new();
    for claim in claims().iter().filter(|claim| claim.usage == Use::Validate && claim.kind == Kind::Number) {
        let all = match &claim.value {
            Value::None => Vec::new(),
            Value::One(value) => vec![*value],
            Value::Many(values) => values.clone(),
        };
        for value in all {
            let text = value.to_string();
            let known = text.trim_start_matches(['0', '.']).chars().filter(char::is_ascii_digit).count();
            if known >= digits && text.contains('.') {
                values.push((claim.id.as_str(), text));
            }
        }
    }
    values
}

#[test]
fn no_value_of_a_held_out_claim_occurs() {
    let values = held_out_values(3);
    assert!(values.len() > 10, "{values:?}");
    for (path, text) in files() {
        let numbers = [numbers(&text), numbers(&comments(&text))].concat();
        for (claim, value) in &values {
            assert!(!numbers.contains(value), "{claim}'s {value} in {}", path.display());
        }
    }
}

/// A profile's comments give the sources of its numbers; a held-out number with a decimal point is no source. A number
/// of two digits may be from elsewhere, so a comment is checked only if it names the document.
#[test]
fn no_comment_has_a_held_out_value_of_its_document() {
    let values = held_out_values(2);
    assert!(values.len() > held_out_values(3).len(), "{values:?}");
    for (path, text) in files() {
        for line in text.lines().map(comment_of) {
            let numbers = numbers(line);
            for (claim, value) in values.iter().filter(|(claim, _)| names_its_document(line, claim)) {
                assert!(!numbers.contains(value), "{claim}'s {value} in {}: {line}", path.display());
            }
        }
    }
}

/// True if a line names the document of a claim.
fn names_its_document(line: &str, claim: &str) -> bool {
    let names: &[&str] = match &claim[..1] {
        "K" => &["kuper", "asplos"],
        "T" => &["thesis"],
        "V" => &["white paper"],
        _ => &["baik", "slides"],
    };
    names.iter().any(|name| line.to_lowercase().contains(name))
}

fn comment_of(line: &str) -> &str {
    let at = [line.find("//"), line.find('#')].into_iter().flatten().min();
    at.map_or("", |at| line[at..].trim_start_matches(['/', '#', '!']))
}

fn comments(text: &str) -> String {
    text.lines().map(comment_of).collect::<Vec<_>>().join("\n")
}

#[test]
fn numbers_in_code_and_comments_are_found() {
    assert_eq!(
        numbers("a = 159.72 # 7.02\nlet b = 1_024; // 4.63\nx1.5..=3"),
        ["159.72", "1024", "1.5..", "3"].map(|n| n.trim_end_matches('.').to_owned())
    );
    assert_eq!(numbers(&comments("a = 159.72 # 7.02\nlet b = 1_024; // 4.63 of it")), ["7.02", "4.63"]);
    assert!(names_its_document(" KUPER §4.2: 2.1", "K-020") && !names_its_document(" slides: 2.1 GHz", "K-020"));
}
