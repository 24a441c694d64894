//! One table of a profile, read key by key: each must be there, be possible, and be known.

use super::ProfileError;
use crate::ps::Ps;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The text of a profile and its name, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// The line, from 1, in which something begins.
    pub(super) fn line(&self, span: &Range<usize>) -> usize {
        let end = span.start.min(self.text.len());
        self.text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// A table, and which of its keys were asked for.
#[derive(Debug)]
pub(super) struct Section<'a> {
    source: Source<'a>,
    /// As an error names it: `device` or `op.fill`; empty for the file.
    name: String,
    line: usize,
    table: &'a DeTable<'a>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Section<'a> {
    pub(super) fn new(source: Source<'a>, name: String, span: &Range<usize>, table: &'a DeTable<'a>) -> Self {
        Section { line: source.line(span), source, name, table, asked: RefCell::default() }
    }

    /// The name of a key with that of its table.
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn find(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.table.get(key)
    }

    fn missing(&self, key: &str, expected: &str) -> ProfileError {
        ProfileError::Missing {
            file: self.source.file.to_owned(),
            line: self.line,
            key: self.path(key),
            expected: expected.to_owned(),
        }
    }

    /// An error about what stands at a key.
    pub(super) fn wrong(&self, key: &str, what: impl Into<String>) -> ProfileError {
        let span = self.table.get(key).map(Spanned::span);
        ProfileError::Impossible {
            file: self.source.file.to_owned(),
            line: span.map_or(self.line, |span| self.source.line(&span)),
            key: self.path(key),
            what: what.into(),
        }
    }

    /// A number between two others.
    pub(super) fn number(&self, key: &str, possible: RangeInclusive<f64>, unit: &str) -> Result<f64, ProfileError> {
        let expected = || format!("a number from {} to {} {unit}", possible.start(), possible.end());
        let value = self.find(key).ok_or_else(|| self.missing(key, &expected()))?;
        let text = match value.get_ref() {
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            DeValue::Float(float) => float.as_str(),
            other => return Err(self.wrong(key, format!("is {}, not {}", other.type_str(), expected()))),
        };
        match text.replace('_', "").parse::<f64>() {
            Ok(number) if possible.contains(&number) => Ok(number),
            _ => Err(self.wrong(key, format!("is {text}, not {}", expected()))),
        }
    }

    /// A time, in nanoseconds.
    pub(super) fn nanos(&self, key: &str) -> Result<Ps, ProfileError> {
        self.number(key, 0.0..=1e9, "ns").map(Ps::from_nanos_f64)
    }

    /// A rate, in gigabytes (1e9 bytes) per second.
    pub(super) fn rate(&self, key: &str) -> Result<u64, ProfileError> {
        let rate = self.number(key, 0.001..=100_000.0, "GB/s")?;
        // Cannot lose anything: between 1e6 and 1e14.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range, see above")]
        Ok((rate * 1e9).round() as u64)
    }

    /// A whole number.
    pub(super) fn count(&self, key: &str, possible: RangeInclusive<u32>, unit: &str) -> Result<u64, ProfileError> {
        let number = self.number(key, f64::from(*possible.start())..=f64::from(*possible.end()), unit)?;
        if number.fract() != 0.0 {
            return Err(self.wrong(key, format!("is {number}, not a whole number of {unit}")));
        }
        // Cannot lose anything: whole, and within a u32's range.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range, see above")]
        Ok(number as u64)
    }

    /// A text.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, ProfileError> {
        let value = self.find(key).ok_or_else(|| self.missing(key, "a text"))?;
        value.get_ref().as_str().ok_or_else(|| self.wrong(key, "is not a text"))
    }

    /// A list of whole numbers below `below`, at least one.
    pub(super) fn indices(&self, key: &str, below: usize, of: &str) -> Result<Vec<usize>, ProfileError> {
        let value = self.find(key).ok_or_else(|| self.missing(key, &format!("a list of {of}, such as [0]")))?;
        let list = value.get_ref().as_array().ok_or_else(|| self.wrong(key, format!("is not a list of {of}")))?;
        let index = |item: &Spanned<DeValue<'_>>| {
            item.get_ref().as_integer().and_then(|integer| integer.as_str().parse().ok()).filter(|index| *index < below)
        };
        let indices: Option<Vec<usize>> = list.iter().map(index).collect();
        indices
            .filter(|indices| !indices.is_empty())
            .ok_or_else(|| self.wrong(key, format!("is not a list of {of}, each below {below}")))
    }

    /// A table within.
    pub(super) fn section(&self, key: &str) -> Result<Section<'a>, ProfileError> {
        self.section_if_there(key)?.ok_or_else(|| self.missing(key, "a table"))
    }

    /// A table within that may be absent.
    pub(super) fn section_if_there(&self, key: &str) -> Result<Option<Section<'a>>, ProfileError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong(key, "is not a table"))?;
        Ok(Some(Section::new(self.source, self.path(key), &value.span(), table)))
    }

    /// All tables within, by name.
    pub(super) fn sections(&self) -> Result<Vec<(&'a str, Section<'a>)>, ProfileError> {
        let keys: Vec<&'a str> = self.table.keys().map(|key| key.get_ref().as_ref()).collect();
        keys.into_iter().map(|key| Ok((key, self.section(key)?))).collect()
    }

    /// The tables of an array, at least one.
    pub(super) fn list(&self, key: &str) -> Result<Vec<Section<'a>>, ProfileError> {
        let value = self.find(key).ok_or_else(|| self.missing(key, &format!("at least one [[{key}]]")))?;
        let list = value.get_ref().as_array().ok_or_else(|| self.wrong(key, "is not a list of tables"))?;
        let item = |(index, item): (usize, &'a Spanned<DeValue<'a>>)| {
            let table = item.get_ref().as_table().ok_or_else(|| self.wrong(key, "is not a list of tables"))?;
            Ok(Section::new(self.source, format!("{}[{index}]", self.path(key)), &item.span(), table))
        };
        list.iter().enumerate().map(item).collect()
    }

    /// Refuses keys that nobody asked for.
    pub(super) fn end(self) -> Result<(), ProfileError> {
        let asked = self.asked.borrow();
        for key in self.table.keys() {
            if !asked.contains(key.get_ref().as_ref()) {
                return Err(ProfileError::Unknown {
                    file: self.source.file.to_owned(),
                    line: self.source.line(&key.span()),
                    key: self.path(key.get_ref()),
                    known: asked.iter().cloned().collect::<Vec<_>>().join(", "),
                });
            }
        }
        Ok(())
    }
}
