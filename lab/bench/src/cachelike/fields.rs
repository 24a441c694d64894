//! The fields of a JSON object, read by name; which of them were read is known afterwards.

use super::config_error::ConfigError;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// A JSON object whose fields are being read.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    /// The file, for messages.
    file: String,
    /// The names of the objects around the fields, such as `test_config`.
    path: String,
    object: &'a Map<String, Value>,
    read: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    /// Begins to read an object.
    pub(super) fn of(file: &str, path: &str, json: &'a Value) -> Result<Self, ConfigError> {
        let object = json.as_object().ok_or_else(|| ConfigError::Field {
            path: file.into(),
            field: if path.is_empty() { "the whole file".into() } else { path.into() },
            problem: "is not an object in braces".into(),
        })?;
        Ok(Fields { file: file.into(), path: path.into(), object, read: BTreeSet::new() })
    }

    fn full(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    /// The error about a field.
    pub(super) fn wrong(&self, name: &str, problem: &str) -> ConfigError {
        ConfigError::Field { path: self.file.clone(), field: self.full(name), problem: problem.into() }
    }

    /// The error about a field that must be there.
    pub(super) fn missing(&self, name: &str) -> ConfigError {
        self.wrong(name, "is missing")
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.read.insert(name);
        self.object.get(name)
    }

    /// Reads a field that must be there.
    pub(super) fn required(&mut self, name: &'static str) -> Result<&'a Value, ConfigError> {
        self.get(name).ok_or_else(|| self.missing(name))
    }

    /// Reads a whole number within a range.
    pub(super) fn count(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let problem = format!("is {value}, not a whole number from {} to {}", range.start(), range.end());
                Err(self.wrong(name, &problem))
            }
        }
    }

    /// Reads a number.
    pub(super) fn number(&mut self, name: &'static str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let problem = || self.wrong(name, &format!("is {value}, not a number"));
        value.as_f64().ok_or_else(problem).map(Some)
    }

    /// Reads a list of numbers.
    pub(super) fn numbers(&mut self, name: &'static str) -> Result<Option<Vec<f64>>, ConfigError> {
        let Some(list) = self.list(name)? else { return Ok(None) };
        let problem = |value: &Value| self.wrong(name, &format!("has {value}, which is not a number"));
        list.iter().map(|value| value.as_f64().ok_or_else(|| problem(value))).collect::<Result<_, _>>().map(Some)
    }

    /// Reads parts of a whole; returns them so that they sum to 1.
    pub(super) fn parts(&mut self, name: &'static str) -> Result<Option<Vec<f64>>, ConfigError> {
        let Some(mut parts) = self.numbers(name)? else { return Ok(None) };
        let all: f64 = parts.iter().sum();
        if all <= 0.0 || parts.iter().any(|part| *part < 0.0) {
            return Err(self.wrong(name, "has a number below 0, or only zeros"));
        }
        parts.iter_mut().for_each(|part| *part /= all);
        Ok(Some(parts))
    }

    /// Reads a list.
    pub(super) fn list(&mut self, name: &'static str) -> Result<Option<&'a Vec<Value>>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_array().ok_or_else(|| self.wrong(name, "is not a list in brackets")).map(Some)
    }

    /// Reads a flag.
    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().ok_or_else(|| self.wrong(name, &format!("is {value}, not true or false"))).map(Some)
    }

    /// Reads a text.
    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<String>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.as_str().map(ToOwned::to_owned);
        text.ok_or_else(|| self.wrong(name, &format!("is {value}, not a text"))).map(Some)
    }

    /// Returns the names of the fields that were not read.
    pub(super) fn unread(self) -> Vec<String> {
        let unread = self.object.keys().filter(|name| !self.read.contains(name.as_str()));
        unread.map(|name| self.full(name)).collect()
    }
}

/// Removes `//` and `/* */` comments, which CacheBench accepts in its JSON.
pub(super) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_text = false;
    while let Some(first) = rest.chars().next() {
        let comment = if in_text { None } else { ["//", "/*"].into_iter().find(|begin| rest.starts_with(begin)) };
        if let Some(begin) = comment {
            // The end of a line stays, so that messages have the right line.
            let end = if begin == "//" { rest.find('\n') } else { rest.find("*/").map(|end| end + 2) };
            rest = &rest[end.unwrap_or(rest.len())..];
            continue;
        }
        let escaped = in_text && first == '\\';
        in_text ^= first == '"';
        let length = first.len_utf8() + if escaped { rest[1..].chars().next().map_or(0, char::len_utf8) } else { 0 };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_removed_outside_of_texts() {
        let text = "// one\n{ \"a\": \"x // \\\" /* y\", /* two\n */ \"b\": 1 } // three";
        let value: Value = serde_json::from_str(&without_comments(text)).unwrap();
        assert_eq!((value["a"].as_str(), value["b"].as_u64()), (Some("x // \" /* y"), Some(1)));
        assert_eq!(without_comments("1 /* open"), "1 ");
    }
}
