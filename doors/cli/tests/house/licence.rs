//! Licence expressions (SPDX), and whether code under them may be linked into our releases.

/// Licences without copyleft; `deny.toml` has the same list.
pub(crate) const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Returns true if the expression can be satisfied with allowed licences alone. `/` is the old spelling of OR.
pub(crate) fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    either(&mut rest) == Some(true) && rest.is_empty()
}

/// Parses `both OR both …`; `None` on a syntax error, as in the functions below.
fn either(words: &mut &[&str]) -> Option<bool> {
    let mut fine = both(words)?;
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        fine |= both(words)?;
    }
    Some(fine)
}

/// Parses `one AND one …`.
fn both(words: &mut &[&str]) -> Option<bool> {
    let mut fine = one(words)?;
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        fine &= one(words)?;
    }
    Some(fine)
}

/// Parses a licence, a licence with an exception, or an expression in parentheses.
fn one(words: &mut &[&str]) -> Option<bool> {
    match **words {
        ["(", ..] => {
            *words = &words[1..];
            let fine = either(words)?;
            let (close, rest) = words.split_first()?;
            *words = rest;
            (*close == ")").then_some(fine)
        }
        [licence, "WITH", exception, ..] => {
            *words = &words[3..];
            Some(ALLOWED.contains(&format!("{licence} WITH {exception}").as_str()))
        }
        [licence, ..] => {
            *words = &words[1..];
            Some(ALLOWED.contains(&licence))
        }
        [] => None,
    }
}

#[test]
fn or_needs_one_allowed_side_and_and_needs_both() {
    for fine in ["MIT", "MIT OR GPL-3.0", "GPL-2.0/MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "MIT AND BSD-3-Clause"]
    {
        assert!(is_allowed(fine), "{fine}");
    }
    for not in ["GPL-3.0", "MIT AND GPL-3.0", "", "MIT OR", "(MIT", "MIT )", "MPL-2.0", "GPL-2.0 WITH LLVM-exception"] {
        assert!(!is_allowed(not), "{not}");
    }
    assert!(is_allowed("Apache-2.0 WITH LLVM-exception OR GPL-2.0"));
}
